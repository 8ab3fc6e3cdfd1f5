"""A bank's lanes: sums in the stated order bit for bit, counts, results, stores, utilisation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest

from hw.pim.bank.units.compute import Compute
from hw.pim.config import configure
from hw.verilog.writer import to_verilog
from hw_tests.bench import run_bench
from hw_tests.side_by_side import SideBySide


@dataclass(frozen=True)
class _Bank:
    config: str
    multipliers: int
    adders: int

    def compute(self) -> Compute:
        return Compute(configure(self.config), multipliers=self.multipliers, adders=self.adders)


BANKS = {
    "two": _Bank("tiny", 2, 3),
    "one": _Bank("tiny", 2, 1),
    "nine": _Bank("pairs", 9, 9),
}


@cache
def verilog() -> str:
    banks = {name: bank.compute() for name, bank in BANKS.items()}
    return to_verilog(SideBySide(banks), "computes")


@pytest.mark.parametrize("name", BANKS)
def test_compute(name: str) -> None:
    run_bench(
        verilog(),
        top="computes",
        module="hw_tests.pim.bank.compute_bench",
        parameters={"name": name, **vars(BANKS[name]), "steady": name == "nine"},
    )


@pytest.mark.parametrize("units", [{"multipliers": 0}, {"multipliers": 17}, {"adders": 0}])
def test_refused(units: dict[str, int]) -> None:
    (name, value), *_ = units.items()
    with pytest.raises(ValueError, match=f"{name} must be an integer from 1 to 16, got {value}"):
        Compute(configure("tiny"), **{"multipliers": 1, "adders": 1, **units})
