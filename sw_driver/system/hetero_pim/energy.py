"""Dynamic energy of a training step, and area in the stack's logic layer, by published figures."""

from __future__ import annotations

from typing import NamedTuple

from sw_driver.machine.parts import assumed, given
from sw_driver.numbers import check_integer

from .configurations import Configuration
from .costs import Costs, past
from .scheduling import Schedule

__all__ = ["FIGURES", "Energy", "energy", "units_beside"]

_HOROWITZ = "Horowitz, Computing's energy problem (ISSCC 2014), at 45 nm"
FIGURES = {
    "a socket, W": given(85, "Intel: E5-2630 v3, TDP, taken to be dynamic while it computes"),
    "a GPU at full use, W": given(250, "NVIDIA: GTX 1080 Ti, with its memory"),
    "10 nm for 45, of the energy": assumed(
        0.083,
        "Stillmaker and Baas, Scaling equations (Integration 58, 2017), from 0.9 to 0.75 V",
    ),
    "an addition, pJ": given(0.9, f"{_HOROWITZ}: FP32"),
    "a multiplication, pJ": given(3.7, f"{_HOROWITZ}: FP32"),
    "an operand from a bank's buffer, pJ": assumed(
        5, f"{_HOROWITZ}: half of 64 bits of a cache of 8 KB, for each operation one"
    ),
    "a cycle of a core, pJ": assumed(
        475,
        "ARM: two Cortex-A9 of 2 GHz take 1.9 W in TSMC's 40 nm, taken for 45; our cores are "
        "smaller, and taken to be alike",
    ),
    "DRAM of the stack, pJ a bit": given(
        3.7,
        "Jeddeloh and Keeth, Hybrid memory cube (VLSIT 2012): of 10.48, without logic and links",
    ),
    "the stack from outside, pJ a bit": given(10.48, "Jeddeloh and Keeth, all"),
    "DDR4, pJ a bit": assumed(20.3, f"{_HOROWITZ}: 64 bits of DRAM take 1.3 to 2.6 nJ, the lesser"),
}
"""Energy or power of operations, cycles and bits, each with its source."""


class Energy(NamedTuple):
    """Energy of a step in joules, by component."""

    host: float
    gpu: float
    cores: float
    pools: float
    memory: float

    @property
    def total(self) -> float:
        """Energy of all components, in joules."""
        return sum(self)


def energy(made: Schedule, costs: Costs, configuration: Configuration) -> Energy:
    """Return the dynamic energy of a scheduled step, at constant voltage.

    It depends on frequency only through time. The host takes its full power for the whole step
    ("CPU power into account", VI-B). Bytes of the CPU are those past its cache. The main memory is
    the stack if something computes there, else DDR4 (Table IV).
    """
    pj = {name: figure.value for name, figure in FIGURES.items()}
    logic = pj["10 nm for 45, of the energy"]
    flop_pj = (pj["an addition, pJ"] + pj["a multiplication, pJ"]) / 2
    flop_pj += pj["an operand from a bank's buffer, pJ"]
    outer = past(made.trace, costs.machine.device("cpu"))
    flops = inside = outside = 0
    for number, place in made.places.items():
        op, on = made.trace.ops[number], place.split("+")
        if "pools" in on:
            phases = costs.phases(op)
            flops += sum(phase.flops for phase in phases if phase.device == "pools")
            inside += sum(phase.nbytes for phase in phases)
        elif "core" in on:
            inside += op.nbytes
        elif "cpu" in on:
            outside += outer[number].nbytes
    stacked = bool({"pools", "core"} & {*configuration.devices})
    main = "the stack from outside, pJ a bit" if stacked else "DDR4, pJ a bit"
    cycles = made.busy_ns("core") * costs.readings.cores * costs.core_mhz / 1000
    return Energy(
        host=made.step_ns * pj["a socket, W"] / 1e9,
        gpu=made.busy_ns("gpu") * costs.gpu_use * pj["a GPU at full use, W"] / 1e9,
        cores=cycles * pj["a cycle of a core, pJ"] * logic / 1e12,
        pools=flops * flop_pj * logic / 1e12,
        memory=8 * (inside * pj["DRAM of the stack, pJ a bit"] + outside * pj[main]) / 1e12,
    )


_UNITS = 444
_CORE_CELLS, _BANK_CELLS, _BANK_UNITS = 2562 + 2063, 22526, 16
"""Lookup tables by Yosys: a core with its float unit, and a corner's bank; units of that bank."""


def units_beside(cores: int) -> int:
    """Return the units that fit beside ``cores`` cores in the area of 444 units and one core."""
    check_integer("cores", cores, 1)
    units = _UNITS - -(-(cores - 1) * _CORE_CELLS * _BANK_UNITS // _BANK_CELLS)
    if units < 1:
        raise ValueError(f"cores is {cores}: there is no room for a unit beside them")
    return units
