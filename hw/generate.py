"""The designs that are given out as Verilog."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from amaranth.lib import wiring

from hw.adam.kernel import AdamKernel
from hw.adam.unit import AdamUnit
from hw.axdimm.channel import Channel
from hw.axdimm.config import ModuleConfig
from hw.axdimm.module import Axdimm
from hw.dram.controller import Ddr4Controller
from hw.float.add import FloatAdd
from hw.float.div import FloatDiv
from hw.float.mul import FloatMul
from hw.float.sqrt import FloatSqrt
from hw.verilog import ports_of, to_verilog

__all__ = ["DESIGNS", "generate"]


def _controller(config: ModuleConfig) -> wiring.Component:
    return Ddr4Controller(
        geometry=config.part.geometry,
        timing=config.part.timing,
        addr_width=config.address_width,
        id_width=1,
    )


DESIGNS: dict[str, Callable[[ModuleConfig], wiring.Component]] = {
    "fp32_add": lambda _: FloatAdd(),
    "fp32_mul": lambda _: FloatMul(),
    "fp32_div": lambda _: FloatDiv(),
    "fp32_sqrt": lambda _: FloatSqrt(),
    "adam_unit": lambda _: AdamUnit(),
    "adam_kernel": lambda config: AdamKernel(config.kernel),
    "ddr4_controller": _controller,
    "axdimm_channel": Channel,
    "axdimm": Axdimm,
}
"""Each design by its name, made for a configuration of the module."""


def generate(name: str, config: ModuleConfig) -> tuple[str, dict[str, Any]]:
    """The Verilog of a design, and a description of it for tools.

    The description has ``name``, ``clock`` and ``reset``, ``latency`` (clock cycles from
    ``i_valid`` to ``o_valid``, or None where there is no such pair), ``ports`` (name, width,
    direction; clock and reset included) and ``configuration``.
    """
    if name not in DESIGNS:
        raise ValueError(f"no design {name!r}; known: {', '.join(DESIGNS)}")
    component = DESIGNS[name](config)
    description = {
        "name": name,
        "clock": "clk",
        "reset": "rst",
        "latency": getattr(component, "latency", None),
        "ports": [asdict(port) for port in ports_of(component)],
        "configuration": config.describe(),
    }
    return to_verilog(component, name), description
