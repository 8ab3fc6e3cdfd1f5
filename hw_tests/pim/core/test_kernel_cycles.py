"""The model of kernels' cycles: its cache by hand, and what it says against RTL."""

from __future__ import annotations

import pytest

from hw.pim.config import configure
from hw.pim.core.core import Core
from hw.pim.core.faster import FasterCore
from hw_tests.bench import run_bench
from sw_driver.predict.pim.core import kernel_cycles, kernel_work


def test_lines_that_the_cache_misses() -> None:
    # A line has 8 elements. Lines 4 KiB apart take each other's place with each element.
    start = kernel_work("fill", (0, 8, 0))[-1]
    assert kernel_work("relu", (0, 0x1000, 64)) == [1, 64, start + 8]
    assert kernel_work("relu", (4, 0x1000, 64)) == [1, 64, start + 9]
    assert kernel_work("sgd", (0, 0x1000, 64, 0.1, 0.1))[-1] == start + 2 * 64
    assert kernel_work("sgd", (0, 0x1020, 64, 0.1, 0.1))[-1] == start + 2 * 8
    # The channels' line and the first of six push each other out eight times.
    assert kernel_work("bias", (0, 0x2000, 0x4000, 2, 3, 8)) == [1, 6, 48, start + 16 + 5]
    # A plane of 4 x 4 with windows of 3 x 3, padded by 1: 2, 3, 3 and 2 elements of each row.
    assert kernel_work("max_pool", (0, 0x1000, 1, 4, 4, 4, 4, 3, 3, 1, 1, 1))[1:4] == [16, 40, 100]


def test_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="the kernel is 'works'"):
        kernel_cycles("works", (0, 1), read_cycles=40)
    with pytest.raises(ValueError, match="read_cycles is 0"):
        kernel_cycles("relu", (0, 0x1000, 8), read_cycles=0)
    for ratio in (0, 3, 8):
        with pytest.raises(ValueError, match=f"clock_ratio is {ratio}: expected 1, 2 or 4"):
            kernel_cycles("relu", (0, 0x1000, 8), read_cycles=40, clock_ratio=ratio)


@pytest.mark.parametrize(("kind", "core_clock_ratio"), [(Core, 1), (FasterCore, 4)])
def test_as_on_rtl(kind: type[Core | FasterCore], core_clock_ratio: int) -> None:
    run_bench(
        kind(configure("tiny", cores=1)),
        top="pim_core",
        module="hw_tests.pim.core.kernel_cycles_bench",
        parameters={"core_clock_ratio": core_clock_ratio},
        optimization="-Og",
    )
