"""The pool's front: causes of refusal at their limits, spans, canonical forms."""

from __future__ import annotations

import pytest

from hw.pim.front.front import Front
from hw_tests.bench import run_bench
from hw_tests.pim.front.front_works import front_configurations
from hw_tests.soak import for_soak


@pytest.mark.parametrize(
    "name", ["tiny", *for_soak(*sorted(front_configurations().keys() - {"tiny"}))]
)
def test_front(name: str) -> None:
    run_bench(
        Front(front_configurations()[name]),
        top="front",
        module="hw_tests.pim.front.front_bench",
        parameters={"name": name, "seed": 1, "works": 1500, "small": 300},
    )
