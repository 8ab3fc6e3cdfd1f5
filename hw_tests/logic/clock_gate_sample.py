"""The same pipelines behind a clock gate and behind clock-enables."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, ClockDomain, ClockSignal, Module, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.dataflow.flow import FlowValue
from hw.dataflow.unit import FlowUnit
from hw.logic.clock_gate import ClockGate
from hw.logic.shared import Shared

__all__ = ["ClockGateSample", "EnabledUnitSample"]


class ClockGateSample(wiring.Component):
    """Registers of ``sync`` feed registers of the gated domain and these feed ``sync`` again."""

    def __init__(self) -> None:
        super().__init__(
            {
                "enable": In(1),
                "i": In(16),
                **{
                    f"{kind}_{name}": Out(16)
                    for kind in ("gated", "enabled")
                    for name in ("o", "back", "edges")
                },
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        enable, source = Signal(), Signal(16)
        m.d.sync += [enable.eq(self.enable), source.eq(self.i)]
        m.submodules.gate = gate = ClockGate()
        m.domains.gated = ClockDomain(reset_less=True, local=True)
        m.d.comb += [gate.enable.eq(enable), ClockSignal("gated").eq(gate.gated)]

        stages = {kind: [Signal(16, name=f"{kind}_{n}") for n in range(2)] for kind in ("a", "b")}
        m.d.gated += [
            stages["a"][0].eq(source),
            stages["a"][1].eq(stages["a"][0] + source),
            self.gated_edges.eq(self.gated_edges + 1),
        ]
        with m.If(enable):
            m.d.sync += [
                stages["b"][0].eq(source),
                stages["b"][1].eq(stages["b"][0] + source),
                self.enabled_edges.eq(self.enabled_edges + 1),
            ]
        m.d.comb += [self.gated_o.eq(stages["a"][1]), self.enabled_o.eq(stages["b"][1])]
        # A sum over every cycle, so that a value taken early or late leaves a trace.
        m.d.sync += [
            self.gated_back.eq(self.gated_back * 3 + self.gated_o),
            self.enabled_back.eq(self.enabled_back * 3 + self.enabled_o),
        ]
        return m


def _formula(*, a: FlowValue, b: FlowValue) -> dict[str, FlowValue]:
    """Its delays are short ones of registers and long ones of memory."""
    return {"y": (a * b + a) * b}


class EnabledUnitSample(wiring.Component):
    """A functional unit, with modules in its module, on a gated clock and with an enable."""

    def __init__(self) -> None:
        super().__init__(
            {
                "enable": In(1),
                "i": In(32),
                **{f"{kind}_{name}": Out(width) for kind in ("gated", "enabled")
                   for name, width in (("valid", 1), ("y", 32))},
            }
        )  # fmt: skip

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        enable, source = Signal(), Signal(32)
        m.d.sync += [enable.eq(self.enable), source.eq(self.i)]
        m.submodules.gate = gate = ClockGate()
        m.domains.gated = ClockDomain(local=True)
        m.d.comb += [
            gate.enable.eq(enable),
            ClockSignal("gated").eq(gate.gated),
            ResetSignal("gated").eq(ResetSignal()),
        ]
        model = FlowUnit(_formula, inputs=("a", "b"), outputs=("y",), name="sample")
        gated: Any = Shared(model, name=model.module_name, domain="gated")
        enabled: Any = Shared(model, name=model.module_name, enable=enable)
        m.submodules += [gated, enabled]
        for unit in (gated, enabled):
            m.d.comb += [
                unit.i_valid.eq(source[0]),
                unit.i_a.eq(source),
                unit.i_b.eq(Cat(source[16:], source[:16])),
            ]
        for kind, unit in (("gated", gated), ("enabled", enabled)):
            m.d.comb += [
                getattr(self, f"{kind}_valid").eq(unit.o_valid),
                getattr(self, f"{kind}_y").eq(unit.o_y),
            ]
        return m
