"""The designs that are given out as Verilog."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from amaranth.lib import wiring

from hw.axdimm.channel import axdimm_channel, channel_controller
from hw.axdimm.config import ModuleConfig
from hw.axdimm.module import Axdimm
from hw.clock_gate import CLOCK_GATE_MODULE
from hw.dram.dfi import DfiController, dfi_timing
from hw.float.add import FloatAdd
from hw.float.div import FloatDiv
from hw.float.maximum import FloatMaximum
from hw.float.mul import FloatMul
from hw.float.sign import FloatSign
from hw.float.sqrt import FloatSqrt
from hw.kernel.kernel import Kernel
from hw.kernel.unit import RuleUnit
from hw.pim.bank.bank import PimBank
from hw.pim.config import PimConfig
from hw.pim.pool import PimPool
from hw.pim.vault.timing import vault_part
from hw.rules import PAPER_RULES, RULES
from hw.rules.update_rule import UpdateRule
from hw.verilog import ports_of, to_verilog

__all__ = ["DESIGNS", "Design", "Machines", "generate"]


class Machines(NamedTuple):
    """What the designs are made for."""

    module: ModuleConfig
    pim: PimConfig
    clock_gate_cell: str = "bufgce"
    """Of the designs that have clock gates, one of :data:`hw.clocking.CLOCK_GATE_CELLS`."""


def _operator(make: Callable[[], Any]) -> Callable[[Machines], Design]:
    def design(_: Machines) -> Design:
        component = make()
        return Design(component, {"format": asdict(component.format)})

    return design


def _unit(rule: UpdateRule) -> Callable[[Machines], Design]:
    def design(_: Machines) -> Design:
        unit = RuleUnit(rule)
        return Design(unit, {"rule": rule.signature, "format": asdict(unit.format)})

    return design


def _kernel(machines: Machines) -> Design:
    config = machines.module.kernel
    return Design(Kernel(config), asdict(config))


def _papers_kernel(machines: Machines) -> Design:
    config = replace(machines.module.kernel, rules=PAPER_RULES)
    return Design(Kernel(config), asdict(config))


def _controller(machines: Machines) -> Design:
    config = machines.module
    return Design(
        channel_controller(config, DfiController),
        {
            "part": asdict(config.part),
            **asdict(config.controller),
            "dfi": dfi_timing(config.part.timing),
        },
    )


def _channel(machines: Machines) -> Design:
    return Design(axdimm_channel(machines.module), _described(machines.module))


def _module(machines: Machines) -> Design:
    return Design(Axdimm(machines.module), _described(machines.module))


def _described(config: ModuleConfig) -> dict[str, Any]:
    values = config.describe()
    if config.memory == "ddr4":
        return {**values, "dfi": dfi_timing(config.part.timing)}
    del values["controller"]
    return values


def _bank(machines: Machines) -> Design:
    config = machines.pim
    # A corner's, the largest.
    units = {
        "multipliers": config.placement.multipliers[0],
        "adders": config.placement.adders[0],
    }
    return Design(PimBank(config, **units), {**asdict(config), **units})


def _pool(machines: Machines) -> Design:
    config, part = machines.pim, vault_part("hmc2")
    return Design(PimPool(config, part), {**asdict(config), "part": asdict(part)})


class Design(NamedTuple):
    """A component and what it was made for, as plain values."""

    component: wiring.Component
    configuration: dict[str, Any]


DESIGNS: dict[str, Callable[[Machines], Design]] = {
    "fp32_add": _operator(FloatAdd),
    "fp32_mul": _operator(FloatMul),
    "fp32_div": _operator(FloatDiv),
    "fp32_sqrt": _operator(FloatSqrt),
    "fp32_sign": _operator(FloatSign),
    "fp32_maximum": _operator(FloatMaximum),
    **{f"{name}_unit": _unit(rule) for name, rule in RULES.items()},
    "_".join((*PAPER_RULES, "kernel")): _papers_kernel,
    "kernel": _kernel,
    "ddr4_controller": _controller,
    "axdimm_channel": _channel,
    "axdimm": _module,
    "pim_bank": _bank,
    "pim_pool": _pool,
}
"""Each design by its name."""


def generate(name: str, machines: Machines) -> tuple[str, dict[str, Any]]:
    """The Verilog of a design, and a description of it for tools.

    The description has ``name``, ``clock`` and ``reset``, ``latency`` (clock cycles from
    ``i_valid`` to ``o_valid``, or None where there is no such pair), ``ports`` (name, width,
    direction; clock and reset included), ``clock_gate_cell`` (what its clock gates are made of, or
    None where there are none) and ``configuration``, what the design was made for.
    """
    if name not in DESIGNS:
        raise ValueError(f"no design {name!r}; known: {', '.join(DESIGNS)}")
    component, configuration = DESIGNS[name](machines)
    cell = machines.clock_gate_cell
    text = to_verilog(component, name, clock_gate_cell=cell)
    gated = CLOCK_GATE_MODULE in text
    if gated:
        text = _CLOCK_GATE_NOTE.format(cell=cell, what=_CLOCK_GATES[cell]) + text
    description = {
        "name": name,
        "clock": "clk",
        "reset": "rst",
        "latency": getattr(component, "latency", None),
        "ports": [asdict(port) for port in ports_of(component)],
        "clock_gate_cell": cell if gated else None,
        "configuration": configuration,
    }
    return text, description


_CLOCK_GATES = {
    "model": "a latch and an AND gate, for simulation and not for an FPGA",
    "bufgce": "BUFGCE of AMD's UltraScale and UltraScale+",
    "dcca": "DCCA of Lattice's ECP5",
}

_CLOCK_GATE_NOTE = """\
// The clock gates are of the cell "{cell}": {what}.
// For another cell, or for a design without clock gates, see docs/fpga.md.
"""
