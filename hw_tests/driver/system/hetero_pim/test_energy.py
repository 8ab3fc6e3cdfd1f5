"""Energy of a step, worked by hand, and the area of cores."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hw_tests.driver.system.sentinel.steps import a_step
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.machine.hetero_pim import HETERO_PIM
from sw_driver.system.hetero_pim.configurations import CPU, HETERO, PROGR
from sw_driver.system.hetero_pim.costs import Phase
from sw_driver.system.hetero_pim.energy import Energy, energy, units_beside
from sw_driver.system.hetero_pim.scheduling import Row, Schedule


def test_energy_by_hand() -> None:
    """One operation is on the pools with a phase on a core, one on a core, one on the CPU."""
    trace = a_step(
        2, (0, "i>a"), (1, "a>b"), (3, "a b>c"), sizes={"i": 100, "a": 40, "b": 20, "c": 7}
    )
    rows = [("core", 0, 3), ("pools", 3, 10), ("core", 10, 30), ("cpu", 30, 80), ("gpu", 80, 100)]
    made = Schedule(
        trace=trace,
        banks=32,
        rows=tuple(
            Row(min(2, max(0, n - 1)), device, 32 * (device == "pools"), *at, "compute")
            for n, (device, *at) in enumerate(rows)
        ),
        ends_ns=(100,),
        total_ns=100,
    )
    phases = (Phase("core", "fill", 5, 8), Phase("pools", "forward", 1000, 64))
    costs: Any = SimpleNamespace(
        machine=HETERO_PIM.override({"cpu.cache_bytes": "0"}),
        gpu_use=0.3,
        core_mhz=500,
        readings=SimpleNamespace(cores=1),
        phases=lambda op: phases,
    )
    ours = energy(made, costs, HETERO)
    by_hand = Energy(
        host=100 * 85e-9,
        gpu=20 * 0.3 * 250e-9,
        cores=0.083 * 23 * 0.5 * 475e-12,
        pools=0.083 * 1000 * (2.3 + 5) * 1e-12,  # half an addition and a multiplication, an operand
        memory=8 * (132 * 3.7 + 67 * 10.48) * 1e-12,  # 72 and 60 bytes inside, 67 from outside
    )
    assert ours == pytest.approx(by_hand)
    assert ours.total == pytest.approx(sum(by_hand))
    memory = 8 * (132 * 3.7 + 67 * 20.3) * 1e-12
    assert energy(made, costs, CPU) == pytest.approx(by_hand._replace(memory=memory))
    costs.readings.cores = 4
    assert energy(made, costs, PROGR).cores == pytest.approx(4 * by_hand.cores)


def test_cores_take_the_place_of_units() -> None:
    # A core is 4,625 lookup tables, a unit 22,526 / 16: 3 cores are 9.86 units, 15 are 49.3.
    assert [units_beside(cores) for cores in (1, 4, 16)] == [444, 434, 394]
    with pytest.raises(ValueError, match="cores is 136: there is no room"):
        units_beside(136)
    with pytest.raises(InvalidArgumentError, match="cores"):
        units_beside(0)
