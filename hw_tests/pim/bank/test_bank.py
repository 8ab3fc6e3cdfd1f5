"""A bank of the pool: whole works from tiles to memory, bit for bit the golden model's."""

from __future__ import annotations

import pytest

from hw.logic.clocking import CLOCKINGS
from hw.pim.bank.bank import PimBank
from hw.pim.config import configure
from hw_tests.bench import run_bench
from hw_tests.lockstep import Lockstep
from hw_tests.soak import for_soak


@pytest.mark.soak
def test_every_clocking_is_the_same() -> None:
    """In every cycle, from work to work, with random stalls; with more multipliers than adders."""
    units = {"multipliers": 3, "adders": 2}
    banks = {each: PimBank(configure("tiny", clocking=each), **units) for each in CLOCKINGS}
    run_bench(
        Lockstep(banks),
        top="pim_bank",
        module="hw_tests.pim.bank.bank_bench",
        parameters={"preset": "tiny", "stalls": "random", **units},
        optimization="-Og",
    )


@pytest.mark.parametrize(
    ("multipliers", "adders", "stalls"), [(2, 2, "heavy"), *for_soak((2, 3, "none"))]
)
def test_works(multipliers: int, adders: int, stalls: str) -> None:
    units = {"multipliers": multipliers, "adders": adders}
    run_bench(
        PimBank(configure("tiny"), **units),
        top="pim_bank",
        module="hw_tests.pim.bank.bank_bench",
        parameters={"preset": "tiny", "stalls": stalls, **units},
        optimization="-Og",
    )
