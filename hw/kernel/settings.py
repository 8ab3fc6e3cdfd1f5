"""The settings of a kernel's run, and their check."""

from __future__ import annotations

from itertools import combinations
from typing import Any, NamedTuple

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.kernel.config import COUNT_WIDTH, PARAMETERS_PER_BEAT, KernelConfig
from hw.kernel.registers import kernel_map, union
from hw.logic.line import LINE_BYTE_BITS, LINE_BYTES, line_width
from hw.rules.update_rule import UpdateRule

__all__ = ["ConstantsSignature", "RunSettings", "check_cycles"]


class ConstantsSignature(wiring.Signature):
    """The constants of all rules by their names, 32 bits each, as their source sees them."""

    def __init__(self, config: KernelConfig) -> None:
        names = union(each.constants for each in config.update_rules)
        super().__init__({name: Out(32) for name in names})


class _Pair(NamedTuple):
    """An output, and an input or another output, that must not overlap."""

    output: int
    other: int
    may_be_same: bool


def _pairs(rule: UpdateRule, first_output: int) -> list[_Pair]:
    """The pairs of tensors that must not overlap, by their slots."""
    outputs = [first_output + index for index in range(len(rule.outputs))]
    pairs = [
        _Pair(output, source, name == rule.inputs[source])
        for output, name in zip(outputs, rule.outputs, strict=True)
        for source in range(len(rule.inputs))
    ]
    return pairs + [_Pair(one, other, False) for one, other in combinations(outputs, 2)]


def check_cycles(rule: UpdateRule) -> int:
    """Fabric cycles that the check of a run's settings takes: one a tensor and one a pair."""
    return len(rule.inputs) + len(rule.outputs) + len(_pairs(rule, 0))


class RunSettings(wiring.Component):
    """Takes over the settings of a run, checks them, and holds them for the run.

    A slot is a place for a tensor: first come those of ``config.loaded``, then those of
    ``config.stored``. A rule uses the first of each.

    Members
    -------
    rule : In(range(rules))
        The rule of the run, for ``take``; kept in ``kept_rule``.
    known : In(1)
        The rule exists, for ``take``.
    addresses : In(COUNT_WIDTH), one for each slot
        Byte addresses of the tensors, for ``take``; 0 for slots that are not used.
    count : In(COUNT_WIDTH)
        Parameters to update, for ``take``.
    constants : In(:class:`ConstantsSignature`)
        Constants of the update rules, for ``take``.
    take : In(1)
        The settings are taken over at the end of the cycle.
    check : In(1)
        The next tensor or pair is checked; high from the cycle after ``take`` until a fault or
        ``last``.
    fault : Out(cause)
        With ``check``: what is wrong, a code of the cause in the kernel's status, or 0.
    last : Out(1)
        With ``check``: it is the last of the check.
    kept_rule : Out(range(rules))
        The rule of the run.
    cycles : Out(8)
        Fabric cycles that the check of the rule takes.
    lines : Out(line), one for each slot
        First line of each tensor.
    kept : Out(:class:`ConstantsSignature`)
        The constants of the run.
    rounds : Out(:class:`~hw.stream.rounds.RoundsLayout`)
        The rounds of the run.
    last_parameters : Out(16)
        The parameters that are in the last line of each tensor, a bit each.
    """

    def __init__(self, config: KernelConfig) -> None:
        self._config = config
        self._cause = kernel_map(config.rules)["status"]["cause"]
        self._first_output = len(config.loaded)
        self._slots = len(config.loaded + config.stored)
        rules = range(len(config.rules))
        super().__init__(
            {
                "rule": In(rules),
                "known": In(1),
                "addresses": In(COUNT_WIDTH).array(self._slots),
                "count": In(COUNT_WIDTH),
                "constants": In(ConstantsSignature(config)),
                "take": In(1),
                "check": In(1),
                "fault": Out(self._cause.width),
                "last": Out(1),
                "kept_rule": Out(rules),
                "cycles": Out(8),
                "lines": Out(line_width(config.address_width)).array(self._slots),
                "kept": Out(ConstantsSignature(config)),
                "rounds": Out(config.rounds),
                "last_parameters": Out(PARAMETERS_PER_BEAT),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config = self._config
        block_bits = config.block_beats.bit_length() - 1
        part_bits = PARAMETERS_PER_BEAT.bit_length() - 1

        full_line = Signal(line_width(COUNT_WIDTH))
        lines = [
            Signal.like(full_line, name=f"line_{slot}", reset_less=True)
            for slot in range(self._slots)
        ]
        none = Signal(reset_less=True)
        kept_rule = Signal.like(self.kept_rule, reset_less=True)
        known = Signal(reset_less=True)
        unaligned = Signal()
        step = Signal.like(self.cycles)
        before_last = Signal(COUNT_WIDTH, reset_less=True)
        beats = Signal(range((1 << COUNT_WIDTH) // PARAMETERS_PER_BEAT + 1), reset_less=True)
        for name in self.constants.signature.members:
            constant = Signal(32, name=name, reset_less=True)
            m.d.comb += getattr(self.kept, name).eq(constant)
            with m.If(self.take):
                m.d.sync += constant.eq(getattr(self.constants, name))
        with m.If(self.take):
            m.d.sync += [
                *(
                    line.eq(address[LINE_BYTE_BITS:])
                    for line, address in zip(lines, self.addresses, strict=True)
                ),
                kept_rule.eq(self.rule),
                known.eq(self.known),
                none.eq(self.count == 0),
                before_last.eq(self.count - 1),
                beats.eq(((self.count - 1) >> part_bits) + 1),
                unaligned.eq(Cat(each[:LINE_BYTE_BITS] for each in self.addresses).any()),
                step.eq(0),
            ]
        with m.Elif(self.check):
            m.d.sync += step.eq(step + 1)

        beats_before_last = before_last >> part_bits
        m.d.comb += [
            self.rounds.last_round.eq(beats_before_last >> block_bits),
            self.rounds.tail_beats.eq(beats_before_last[:block_bits] + 1),
            *(
                self.last_parameters[index].eq(before_last[:part_bits] >= index)
                for index in range(PARAMETERS_PER_BEAT)
            ),
            *(out.eq(line[: len(out)]) for out, line in zip(self.lines, lines, strict=True)),
            self.kept_rule.eq(kept_rule),
        ]

        # One tensor, or one pair, a cycle, put here in the cycle before.
        first, second = (
            Signal.like(full_line, name=name, reset_less=True) for name in ("first", "second")
        )
        may_be_same, is_range_check = Signal(reset_less=True), Signal(reset_less=True)
        with m.Switch(kept_rule):
            for number, rule in enumerate(config.update_rules):
                with m.Case(number):
                    m.d.comb += self.cycles.eq(check_cycles(rule))
        with m.If(self.take), m.Switch(self.rule):
            for number, rule in enumerate(config.update_rules):
                with m.Case(number):
                    address = self.addresses[self._slots_of(rule)[0]]
                    m.d.sync += [is_range_check.eq(1), first.eq(address[LINE_BYTE_BITS:])]
        with m.Elif(self.check), m.Switch(kept_rule):
            for number, rule in enumerate(config.update_rules):
                with m.Case(number):
                    self._select(m, rule, step, lines, (first, second, may_be_same, is_range_check))
        out_of_range = first + beats > config.memory_bytes // LINE_BYTES
        overlap = (
            (first < second + beats) & (second < first + beats) & ~(may_be_same & (first == second))
        )
        m.d.comb += self.last.eq(step == self.cycles - 1)
        with m.If(~known):
            m.d.comb += self.fault.eq(self._cause.code("no_rule"))
        with m.Elif(none):
            m.d.comb += self.fault.eq(self._cause.code("zero_count"))
        with m.Elif(unaligned):
            m.d.comb += self.fault.eq(self._cause.code("unaligned"))
        with m.Elif(is_range_check & out_of_range):
            m.d.comb += self.fault.eq(self._cause.code("out_of_range"))
        with m.Elif(~is_range_check & overlap):
            m.d.comb += self.fault.eq(self._cause.code("overlap"))
        return m

    def _slots_of(self, rule: UpdateRule) -> list[int]:
        """The slots that ``rule`` uses."""
        outputs = range(self._first_output, self._first_output + len(rule.outputs))
        return [*range(len(rule.inputs)), *outputs]

    def _select(
        self, m: Module, rule: UpdateRule, step: Signal, lines: list[Signal], what: tuple[Any, ...]
    ) -> None:
        """Puts the tensors of the step after ``step`` in the check of ``rule`` into ``what``."""
        first, second, may_be_same, is_range_check = what
        slots = self._slots_of(rule)
        with m.Switch(step):
            for index, slot in enumerate(slots[1:]):
                with m.Case(index):
                    m.d.sync += first.eq(lines[slot])
            for index, pair in enumerate(_pairs(rule, self._first_output), len(slots) - 1):
                with m.Case(index):
                    m.d.sync += [
                        is_range_check.eq(0),
                        first.eq(lines[pair.output]),
                        second.eq(lines[pair.other]),
                        may_be_same.eq(pair.may_be_same),
                    ]
