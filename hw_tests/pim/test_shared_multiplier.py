"""Sums of products by one multiplier: what they are, when they are there, what is refused."""

from __future__ import annotations

import pytest
from amaranth.hdl import Module, Signal, signed

from hw.pim.shared_multiplier import SharedMultiplier, Sum
from hw_tests.bench import run_bench
from hw_tests.pim.shared_multiplier_sample import SharedMultiplierSample


def test_sums() -> None:
    run_bench(
        SharedMultiplierSample(),
        top="multiplier",
        module="hw_tests.pim.shared_multiplier_bench",
    )


@pytest.mark.parametrize("place", [0, 1])
def test_factors_with_a_sign_are_refused(place: int) -> None:
    factors = [Signal(4), Signal(4)]
    factors[place] = Signal(signed(4), name="below_zero")
    sums = {"all": [Sum(Signal(8), 0, [(3, 5), (factors[0], factors[1])])]}
    with pytest.raises(ValueError, match=r"factors must be unsigned, got \(sig below_zero\)"):
        SharedMultiplier(Module(), width=8, lists=sums)
