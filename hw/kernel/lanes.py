"""The functional units of a kernel, between input and output FIFOs."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, ClockDomain, ClockSignal, Module, ResetSignal, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.clock_gate import ClockGate
from hw.kernel.config import KernelConfig
from hw.line import LINE_BITS
from hw.rules.adam import CONSTANTS, INPUTS, OUTPUTS
from hw.stream.rounds import RoundWalker
from hw.verilog import Shared

__all__ = ["AdamLanes", "ConstantsSignature"]

LINE_BITS = LINE_BITS


class ConstantsSignature(wiring.Signature):
    """The constants of the update rule, 32 bits each, as their source sees them."""

    def __init__(self) -> None:
        super().__init__({name: Out(32) for name in CONSTANTS})


class AdamLanes(wiring.Component):
    """``config.lanes`` functional units that work on whole blocks (paper 3.3).

    A round is taken up when all of it is in the input FIFOs and the output FIFOs have room for
    all of its results; it then passes without a bubble, 16 / ``lanes`` cycles a beat, so that the
    units need no stall. Results of a beat are at ``o`` (1 + latency of the unit) cycles after the
    beat, or after the last of its parts.

    The units and the registers around them are on a gated clock, which runs from the cycle of
    the first operand until the last result has left, and in reset: while the lanes have no
    work they take no power and no time to simulate. All operands and constants go through
    registers of that domain for the same reason: no logic of the units follows from signals that
    change while the clock stands still.

    Parameters
    ----------
    config
        Number of lanes, block, depth of the FIFOs.
    unit
        The functional unit: a component with the members of a
        :class:`~hw.dataflow.unit.UnitSignature`, the inputs and outputs being those of
        :mod:`hw.rules.adam` and the constants as many of those there as the rule needs; placed
        ``config.lanes`` times as one Verilog module.

    Members
    -------
    start : In(1)
        Begins a run; the lanes must be ``idle`` and the FIFOs empty.
    rounds : In(:class:`~hw.stream.rounds.RoundsLayout`)
        The rounds of the run; must hold still until it is done.
    constants : In(:class:`ConstantsSignature`)
        Must hold still until the run is done.
    i : In(streams ``p``, ``g``, ``m``, ``v`` of beats)
        From the input FIFOs.
    o : Out(streams ``p``, ``m``, ``v`` of beats)
        To the output FIFOs; the room for them being known, ``ready`` is not looked at.
    loaded : In(1)
        Pulse: the input FIFOs hold one more complete round.
    consumed : Out(1)
        Pulse: the last beat of a round leaves the input FIFOs.
    filled : Out(1)
        Pulse: the last results of a round go to the output FIFOs.
    stored : In(1)
        Pulse: the output FIFOs have lost their oldest round.
    stop : In(1)
        Take up no further round of this run; must stay high until the next ``start``.
    idle : Out(1)
        No round is at work.
    """

    def __init__(self, config: KernelConfig, *, unit: Any) -> None:
        self._config = config
        self._unit = unit
        beat = stream.Signature(LINE_BITS)
        super().__init__(
            {
                "start": In(1),
                "rounds": In(config.rounds),
                "constants": In(ConstantsSignature()),
                "i": In(wiring.Signature({name: Out(beat) for name in INPUTS})),
                "o": Out(wiring.Signature({name: Out(beat) for name in OUTPUTS})),
                "loaded": In(1),
                "consumed": Out(1),
                "filled": Out(1),
                "stored": In(1),
                "stop": In(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config = self._config
        parts = config.cycles_per_beat
        part_bits = LINE_BITS // parts

        # Rounds that are ready at either side, and the round at work.
        m.submodules.issue_walker = issue = RoundWalker(layout=config.rounds, tensors=1)
        m.submodules.result_walker = result = RoundWalker(layout=config.rounds, tensors=1)
        loaded_rounds = Signal(range(config.buffer_blocks + 1))
        free_rounds = Signal(range(config.buffer_blocks + 1))
        begin = Signal()
        working = Signal()
        part = Signal(range(parts))
        last_part = part == parts - 1
        operands_valid = Signal()
        step = Signal()
        round_end = step & last_part & issue.round_end
        m.d.comb += [
            operands_valid.eq(Cat(getattr(self.i, name).valid for name in INPUTS).all()),
            step.eq(working & operands_valid),
            begin.eq(
                issue.active
                & (loaded_rounds != 0)
                & (free_rounds != 0)
                & ~self.stop
                & ~self.start
                & (~working | (round_end & ~issue.last_round))
            ),
            issue.start.eq(self.start),
            issue.rounds.eq(self.rounds),
            issue.step.eq(step & last_part),
            issue.step_beats.eq(1),
            self.consumed.eq(round_end),
        ]
        for name in INPUTS:
            m.d.comb += getattr(self.i, name).ready.eq(step & last_part)
        with m.If(step):
            m.d.sync += part.eq(part + 1)
        with m.If(begin):
            m.d.sync += working.eq(1)
        with m.Elif(round_end):
            m.d.sync += working.eq(0)
        with m.If(self.start):
            m.d.sync += [loaded_rounds.eq(0), free_rounds.eq(config.buffer_blocks)]
        with m.Else():
            m.d.sync += [
                loaded_rounds.eq(loaded_rounds + self.loaded - begin),
                free_rounds.eq(free_rounds + self.stored - begin),
            ]

        # The gated domain. Its reset is a register of its own, so that the reset of the chip is
        # no input of the units' logic; it comes two cycles late, when nothing is at work yet.
        m.submodules.gate = gate = ClockGate()
        m.domains.compute = ClockDomain(local=True)
        reset_request = Signal(reset_less=True)
        reset = Signal(reset_less=True)
        m.d.sync += reset_request.eq(ResetSignal("sync"))
        m.d.compute += reset.eq(reset_request)
        m.d.comb += [
            ClockSignal("compute").eq(gate.gated),
            ResetSignal("compute").eq(reset),
        ]

        constants = {
            name: Signal(32, name=name, reset_less=True)
            for name in CONSTANTS
            if name in self._unit.signature.members
        }
        operands = {name: Signal(part_bits, name=f"i_{name}", reset_less=True) for name in INPUTS}
        units_valid = Signal()
        results_valid = Signal()
        due = Signal(range(self._unit.latency + 3))
        results = {name: Signal(part_bits, name=f"o_{name}") for name in OUTPUTS}
        m.d.compute += units_valid.eq(step)
        m.d.compute += [kept.eq(getattr(self.constants, name)) for name, kept in constants.items()]
        m.d.compute += [
            kept.eq(getattr(self.i, name).payload.word_select(part, part_bits))
            for name, kept in operands.items()
        ]
        for lane in range(config.lanes):
            unit: Any = Shared(self._unit, name=self._unit.module_name, domain="compute")
            m.submodules[f"unit_{lane}"] = unit
            word = slice(32 * lane, 32 * (lane + 1))
            m.d.comb += unit.i_valid.eq(units_valid)
            m.d.comb += [getattr(unit, name).eq(value) for name, value in constants.items()]
            m.d.comb += [
                getattr(unit, f"i_{name}").eq(value[word]) for name, value in operands.items()
            ]
            m.d.comb += [
                value[word].eq(getattr(unit, f"o_{name}")) for name, value in results.items()
            ]
            if lane == 0:
                m.d.comb += results_valid.eq(unit.o_valid & (due != 0))

        # While results are due the clock runs, so what the units show is of this cycle; after a
        # reset they may show old results for two cycles.
        m.d.sync += due.eq(due + step - results_valid)
        result_part = Signal(range(parts))
        beat_done = results_valid & (result_part == parts - 1)
        with m.If(results_valid):
            m.d.sync += result_part.eq(result_part + 1)
        m.d.comb += [
            gate.enable.eq(working | (due != 0) | reset_request | reset),
            result.start.eq(self.start),
            result.rounds.eq(self.rounds),
            result.step.eq(beat_done),
            result.step_beats.eq(1),
            self.filled.eq(beat_done & result.round_end),
            self.idle.eq(~working & (due == 0)),
        ]
        for name, value in results.items():
            o = getattr(self.o, name)
            m.d.comb += o.valid.eq(beat_done)
            if parts == 1:
                m.d.comb += o.payload.eq(value)
                continue
            earlier = Signal(LINE_BITS - part_bits, name=f"earlier_{name}", reset_less=True)
            with m.If(results_valid):
                m.d.compute += earlier.eq(Cat(earlier, value)[part_bits:])
            m.d.comb += o.payload.eq(Cat(earlier, value))
        return m
