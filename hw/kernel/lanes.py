"""Lanes: the functional units of a kernel, between input and output FIFOs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from amaranth.hdl import (
    C,
    Cat,
    ClockDomain,
    ClockSignal,
    DomainRenamer,
    Elaboratable,
    EnableInserter,
    Module,
    Mux,
    ResetSignal,
    Signal,
)
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.kernel.config import PARAMETERS_PER_BEAT, KernelConfig
from hw.kernel.registers import union
from hw.kernel.settings import ConstantsSignature
from hw.kernel.sums import LaneSums
from hw.logic.clock_gate import stopping_clock
from hw.logic.counter import under_way
from hw.logic.held import lost_bit
from hw.logic.line import LINE_BITS
from hw.logic.shared import Shared
from hw.stream.rounds import RoundWalker

__all__ = ["Lanes"]


class SumsSignature(wiring.Signature):
    """Sums of all rules by name, 32 bits each, as their source sees them."""

    def __init__(self, config: KernelConfig) -> None:
        super().__init__(
            {
                name: Out(32)
                for name in union(update_rule.sums for update_rule in config.update_rules)
            }
        )


class Lanes(wiring.Component):
    """``config.lanes`` functional units that work on whole blocks (paper 3.3).

    A round starts when all of it is in the input FIFOs and the output FIFOs have room for all of
    its results. It then passes without a bubble, 16 / ``lanes`` cycles a beat, so the units need no
    stall. Results of a beat are at ``o`` (1 + latency of the unit) cycles after the beat, or after
    the last of its parts.

    The units and the registers around them are on a clock that may stop (``config.clocking``). It
    runs from the cycle of the first operand until the last result has left, and in reset. Idle
    lanes take no power and, with a clock gate, no time to simulate. For the same reason all
    operands and constants go through registers of that domain: no logic of the units depends on
    signals that change while the clock stands still.

    Parameters
    ----------
    config
        Configuration of the kernel.
    units
        Functional unit of each rule: a component with the members of a
        :class:`~hw.dataflow.unit.UnitSignature`. Inputs, outputs and sums are those of the rule; it
        has as many of the rule's constants as it needs. It is placed ``config.lanes`` times as one
        Verilog module.

    Members
    -------
    load : In(1)
        Takes over what is said of a run; the lanes must be ``idle`` and the FIFOs empty.
    start : In(1)
        With ``load``: the run begins.
    rounds : In(:class:`~hw.stream.rounds.RoundsLayout`)
        The rounds of the run; must hold still until it is done.
    rule : In(range(rules))
        The rule of the run; must hold still until it is done.
    constants : In(:class:`~hw.kernel.settings.ConstantsSignature`)
        Constants of the rules; must hold still until the run is done.
    last_parameters : In(16)
        The parameters that are in the last beat, a bit each; must hold still until the run is done.
    i : In(streams of beats, by ``config.loaded``)
        Beats from the input FIFOs; a rule's inputs are the first ones.
    o : Out(streams of beats, by ``config.stored``)
        Beats to the output FIFOs; the room for them being known, ``ready`` is not looked at.
    sums : Out(32), by the names of the rules' sums
        Sums of the last run that had them, see :class:`~hw.kernel.sums.LaneSums`; when ``idle``.
    loaded : In(1)
        Pulse: the input FIFOs hold one more complete round.
    freed : Out(1)
        Pulse: the input FIFOs lose a round, a beat in each cycle from the next on, or its last
        beat in this one if a beat takes more than a cycle.
    filled : Out(1)
        Pulse: the last results of a round go to the output FIFOs.
    stored : In(1)
        Pulse: the output FIFOs have lost their oldest round.
    stop : In(1)
        Take up no further round of this run; must stay high until the next ``start``.
    idle : Out(1)
        No round is at work and none is to come (because all were or because of ``stop``).
    constants_upset, walk_upset : Out(1)
        Pulses: a bit of the units' constants was lost; a bit of the walk through rounds was lost.
    """

    _more_members: ClassVar[dict[str, Any]] = {}

    def __init__(self, config: KernelConfig, *, units: Sequence[Any]) -> None:
        self._config = config
        self._units = units
        beat = stream.Signature(LINE_BITS)
        super().__init__(
            {
                "load": In(1),
                "start": In(1),
                "rounds": In(config.rounds),
                "rule": In(range(len(config.rules))),
                "constants": In(ConstantsSignature(config)),
                "last_parameters": In(PARAMETERS_PER_BEAT),
                "i": In(wiring.Signature({name: Out(beat) for name in config.loaded})),
                "o": Out(wiring.Signature({name: Out(beat) for name in config.stored})),
                "sums": Out(SumsSignature(config)),
                "loaded": In(1),
                "freed": Out(1),
                "filled": Out(1),
                "stored": In(1),
                "stop": In(1),
                "idle": Out(1),
                "constants_upset": Out(1),
                "walk_upset": Out(1),
                **self._more_members,
            }
        )

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        config = self._config
        parts = config.cycles_per_beat
        loads, stores = self._used_tensors(m)
        m.submodules.issue_walker = issue = RoundWalker(layout=config.rounds, tensors=1)
        m.submodules.result_walker = result = RoundWalker(layout=config.rounds, tensors=1)
        working, step, part = self._issue(m, issue, loads, stores)
        enable = Signal()
        register_enable, resetting = self._compute_domain(m, enable)
        # While results are due the clock runs, so the outputs of the units are up to date. After a
        # reset they may show old results for two cycles.
        results_valid = Signal()
        most = max(unit.latency for unit in self._units) + 2
        _, no_results = under_way(m, "results", most, begun=step, ended=results_valid)
        units_done, results, shares = self._place_units(m, step, part, register_enable)
        m.d.comb += results_valid.eq(units_done & ~no_results)

        result_part = Signal(range(parts))
        beat_done = results_valid & (result_part == parts - 1)
        over = ~working & no_results & (~issue.active | self.stop)
        summing = Signal()
        busy = self._add_up(m, shares, results_valid, result_part, result, over, register_enable)
        if shares:  # The start clears them.
            m.d.comb += summing.eq(busy | self.start)
        with m.If(results_valid):
            m.d.sync += result_part.eq(result_part + 1)
        m.d.comb += [
            enable.eq(working | ~no_results | resetting | summing),
            result.load.eq(self.load),
            result.start.eq(self.start),
            result.rounds.eq(self.rounds),
            result.step.eq(beat_done),
            result.step_beats.eq(1),
            self.filled.eq(beat_done & result.round_end),
            self.idle.eq(over & ~busy),
            self.walk_upset.eq(issue.upset | result.upset),
        ]
        outputs = [getattr(self.o, name) for name in config.stored]
        for o, value, used in zip(outputs, results, stores, strict=True):
            m.d.comb += o.valid.eq(beat_done & used)
            if parts == 1:
                m.d.comb += o.payload.eq(value)
                continue
            width = LINE_BITS - len(value)
            earlier = Signal(width, name=f"earlier_{value.name}", reset_less=True)
            with m.If(results_valid):
                m.d.compute += earlier.eq(Cat(earlier, value)[len(value) :])
            m.d.comb += o.payload.eq(Cat(earlier, value))
        return m if register_enable is None else EnableInserter({"compute": register_enable})(m)

    def _used_tensors(self, m: Any) -> tuple[list[Signal], list[Signal]]:
        """Return flags for the tensor slots that the run loads, and for those that it stores."""
        config = self._config
        loads, stores = (
            [Signal(name=f"{way}_{name}") for name in names]
            for way, names in (("load", config.loaded), ("store", config.stored))
        )
        with m.Switch(self.rule):
            for number, rule in enumerate(config.update_rules):
                with m.Case(number):
                    m.d.comb += [used.eq(1) for used in loads[: len(rule.inputs)]]
                    m.d.comb += [used.eq(1) for used in stores[: len(rule.outputs)]]
        return loads, stores

    def _issue(
        self, m: Any, issue: RoundWalker, loads: list[Signal], stores: list[Signal]
    ) -> tuple[Signal, Signal, Signal]:
        """Start rounds and step through them.

        Return whether a round is at work, whether operands go to the units in this cycle, and which
        part of their beat.
        """
        config = self._config
        parts = config.cycles_per_beat
        inputs = [getattr(self.i, name) for name in config.loaded]
        part = Signal(range(parts))
        last_part = part == parts - 1
        operands_valid = Signal()
        step = Signal()
        round_end = step & last_part & issue.round_end
        any_load, any_store = (used[0] if used else C(0, 1) for used in (loads, stores))
        begin, working = self._take_rounds(
            m, issue, round_end, any_load=any_load, any_store=any_store
        )
        m.d.comb += [
            operands_valid.eq(
                Cat(i.valid | ~used for i, used in zip(inputs, loads, strict=True)).all()
            ),
            step.eq(working & operands_valid),
            issue.step.eq(step & last_part),
            # Data comes no faster than a beat a cycle, so it cannot overtake data that leaves.
            self.freed.eq(begin if parts == 1 else round_end),
        ]
        for i, used in zip(inputs, loads, strict=True):
            m.d.comb += i.ready.eq(step & last_part & used)
        with m.If(step):
            m.d.sync += part.eq(part + 1)
        return working, step, part

    def _take_rounds(
        self, m: Any, issue: RoundWalker, round_end: Any, *, any_load: Any, any_store: Any
    ) -> tuple[Signal, Signal]:
        """Start rounds; return whether one begins, and whether one is at work.

        ``any_load`` and ``any_store`` tell if the run loads or stores anything.
        """
        most = range(self._config.buffer_blocks + 1)
        loaded_rounds = Signal(most)
        free_rounds = Signal(most)
        begin = Signal()
        working = Signal()
        m.d.comb += [
            begin.eq(
                issue.active
                & ((loaded_rounds != 0) | ~any_load)
                & ((free_rounds != 0) | ~any_store)
                & ~self.stop
                & ~self.load
                & (~working | (round_end & ~issue.last_round))
            ),
            issue.load.eq(self.load),
            issue.start.eq(self.start),
            issue.rounds.eq(self.rounds),
            issue.step_beats.eq(1),
        ]
        with m.If(begin):
            m.d.sync += working.eq(1)
        with m.Elif(round_end):
            m.d.sync += working.eq(0)
        with m.If(self.load):
            m.d.sync += [loaded_rounds.eq(0), free_rounds.eq(self._config.buffer_blocks)]
        with m.Else():
            m.d.sync += [
                loaded_rounds.eq(loaded_rounds + self.loaded - (begin & any_load)),
                free_rounds.eq(free_rounds + self.stored - (begin & any_store)),
            ]
        return begin, working

    def _compute_domain(self, m: Any, enable: Signal) -> tuple[Any, Any]:
        """Create the units' clock domain, which stops while ``enable`` is low.

        Return the enable that its registers need, if any, and whether its reset is on the way. The
        reset is a register of its own, so that the chip's reset is no input of the units' logic. It
        comes two cycles late, when nothing is at work yet.
        """
        clock, register_enable = stopping_clock(m, self._config.clocking, enable)
        m.domains.compute = ClockDomain(local=True)
        reset_request = Signal(reset_less=True)
        reset = Signal(reset_less=True)
        m.d.sync += reset_request.eq(ResetSignal("sync"))
        m.d.compute += reset.eq(reset_request)
        m.d.comb += [
            ClockSignal("compute").eq(clock),
            ResetSignal("compute").eq(reset),
        ]
        return register_enable, reset_request | reset

    def _place_units(
        self, m: Any, step: Signal, part: Signal, register_enable: Any
    ) -> tuple[Signal, list[Signal], dict[str, Signal]]:
        """Place the units of all rules; they get the operands of a ``step`` one cycle later.

        Return whether the units of the run's rule have results, these results by tensor, and the
        contribution to each sum.
        """
        part_bits = LINE_BITS // self._config.cycles_per_beat
        loaded = self._config.loaded
        operands = [Signal(part_bits, name=f"i_{name}", reset_less=True) for name in loaded]
        units_valid = Signal()
        m.d.compute += units_valid.eq(step)
        m.d.compute += [
            kept.eq(getattr(self.i, name).payload.word_select(part, part_bits))
            for name, kept in zip(loaded, operands, strict=True)
        ]
        return self._connect_units(m, units_valid, operands, register_enable)

    def _connect_units(
        self, m: Any, units_valid: Any, operands: list[Any], register_enable: Any
    ) -> tuple[Signal, list[Signal], dict[str, Signal]]:
        """Connect the units to registers in their own clock domain; see :meth:`_place_units`."""
        config, rules = self._config, self._config.update_rules
        part_bits = LINE_BITS // config.cycles_per_beat
        outputs = max(len(rule.outputs) for rule in rules)
        results = [Signal(part_bits, name=f"o_{name}") for name in config.stored[:outputs]]
        shares = {
            name: Signal(part_bits, name=f"share_{name}") for name in self.sums.signature.members
        }
        taken = union(
            [name for name in rule.constants if name in unit.signature.members]
            for rule, unit in zip(rules, self._units, strict=True)
        )
        constants = {name: Signal(32, name=name, reset_less=True) for name in taken}
        chosen = Signal.like(self.rule, name="chosen", reset_less=True)
        units_done = Signal()
        m.d.compute += chosen.eq(self.rule)
        m.d.compute += [kept.eq(getattr(self.constants, name)) for name, kept in constants.items()]
        # From the first operands on they hold still, and lose what the settings lose.
        settled = Signal()
        with m.If(units_valid):
            m.d.sync += settled.eq(1)
        with m.If(self.load):
            m.d.sync += settled.eq(0)
        held = [*constants.values(), chosen]
        m.d.comb += self.constants_upset.eq(lost_bit(m, "constants", held, self.load, ~settled))
        for number, (rule, model) in enumerate(zip(rules, self._units, strict=True)):
            targets = {**dict(zip(rule.outputs, results, strict=False)), **shares}
            for lane in range(config.lanes):
                unit: Any = Shared(
                    model, name=model.module_name, domain="compute", enable=register_enable
                )
                name = f"unit_{lane}" if len(rules) == 1 else f"unit_{lane}_{rule.name}"
                m.submodules[name] = unit
                word = slice(32 * lane, 32 * (lane + 1))
                m.d.comb += unit.i_valid.eq(units_valid & (chosen == number))
                m.d.comb += [
                    getattr(unit, name).eq(constants[name])
                    for name in rule.constants
                    if name in model.signature.members
                ]
                m.d.comb += [
                    getattr(unit, f"i_{name}").eq(value[word])
                    for name, value in zip(rule.inputs, operands, strict=False)
                ]
                with m.If(chosen == number):
                    m.d.comb += [
                        targets[name][word].eq(getattr(unit, f"o_{name}"))
                        for name in (*rule.outputs, *rule.sums)
                    ]
                    if lane == 0:
                        m.d.comb += units_done.eq(unit.o_valid)
        return units_done, results, shares

    def _add_up(
        self,
        m: Any,
        shares: dict[str, Signal],
        valid: Signal,
        part: Signal,
        result: RoundWalker,
        over: Any,
        register_enable: Any,
    ) -> Any:
        """Connect the sums of the rules; return whether one is busy."""
        config = self._config
        lanes = config.lanes
        last_line = result.last_round & result.tensor_end
        parameters = self.last_parameters.word_select(part, lanes) | ~last_line.replicate(lanes)
        busy = C(0, 1)
        for name, share in shares.items():
            numbers = [
                number for number, rule in enumerate(config.update_rules) if name in rule.sums
            ]
            wanted = Cat(self.rule == number for number in numbers).any()
            sums = LaneSums(lanes=lanes, format=config.format, enable=register_enable)
            m.submodules[f"sum_{name}"] = DomainRenamer("compute")(sums)
            m.d.comb += [
                sums.clear.eq(self.start & wanted),
                sums.valid.eq(valid & wanted),
                sums.finish.eq(over),
                getattr(self.sums, name).eq(sums.sum),
            ]
            for lane, value in enumerate(sums.values):
                there = parameters.bit_select(lane, 1)
                m.d.comb += value.eq(Mux(there, share[32 * lane : 32 * (lane + 1)], 0))
            busy |= sums.busy
        return busy
