"""Which steps run by whose plan."""

from __future__ import annotations

import pytest

from hw_tests.driver.system.sentinel.steps import a_step
from sw_driver.system.sentinel.buckets import Buckets
from sw_driver.workload.trace import Trace


def _step(size: int, then: str = "a > b") -> Trace:
    sizes = {"p": 10, "a": size, "b": size}
    return a_step(1, (0, "p > a"), (1, then), sizes=sizes)


def test_each_bucket_and_each_data_flow_is_profiled_once() -> None:
    buckets = Buckets((8, 16), lambda step: step.tensors[1].nbytes)
    assert buckets.plan(5, _step(50)) == 50
    assert buckets.plan(8, _step(80)) == 50
    assert buckets.plan(9, _step(90)) == 90
    assert buckets.plan(7, _step(70, "a p > b")) == 70
    assert buckets.plan(1, _step(10)) == 50
    with pytest.raises(ValueError, match="size is 17: expected"):
        buckets.plan(17, _step(170))


def test_buckets_are_at_most_ten_and_grow() -> None:
    with pytest.raises(ValueError, match="11 buckets: expected at most 10"):
        Buckets(range(1, 12), id)
    for sizes in ((8, 8), (16, 8)):
        with pytest.raises(ValueError, match="each to be above the last"):
            Buckets(sizes, id)
    with pytest.raises(ValueError, match="the number of buckets is 0"):
        Buckets((), id)
