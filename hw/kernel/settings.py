"""Settings of a kernel's run, and their check."""

from __future__ import annotations

from itertools import combinations
from typing import Any, NamedTuple

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.kernel.config import COUNT_WIDTH, PARAMETERS_PER_BEAT, KernelConfig
from hw.kernel.lengths import BEATS, RunLengths
from hw.kernel.registers import kernel_map, union
from hw.logic.line import LINE_BYTE_BITS, LINE_BYTES, line_width
from hw.narrow.run_formats import FORMATS_WIDTH, RunFormats
from hw.rules.update_rule import UpdateRule

__all__ = ["ConstantsSignature", "RunSettings"]

_NARROW_WIDTHS = {"formats": FORMATS_WIDTH, "seed": 64, "t": 32}
"""Additional settings of kernels with narrow formats, with their widths in bits."""


class ConstantsSignature(wiring.Signature):
    """The constants of all rules by their names, 32 bits each, as their source sees them."""

    def __init__(self, config: KernelConfig) -> None:
        names = union(update_rule.constants for update_rule in config.update_rules)
        super().__init__({name: Out(32) for name in names})


class _Pair(NamedTuple):
    """Pair of an output and an input or another output that must not overlap."""

    output: int
    other: int
    may_be_same: bool


class _Tensor(NamedTuple):
    """Data of a tensor for the check: first line, beats, presence."""

    line: Any
    beats: Any
    there: Any = 1

    def take(self, tensor: _Tensor) -> list[Any]:
        """Return the statements that store ``tensor`` here, except for parts that are the same."""
        return [
            kept.eq(value) for kept, value in zip(self, tensor, strict=True) if kept is not value
        ]


class RunSettings(wiring.Component):
    """Takes over the settings of a run, checks them, and holds them for the run.

    A slot is a place for a tensor; the slots are those of ``config.loaded``, then those of
    ``config.stored``. A rule uses the first slots of each. With narrow formats it uses all, but a
    run may have fewer tensors. The members from ``formats`` on exist with narrow formats only.
    Then ``rounds`` counts beats of the widest tensor, and outputs of absent tensors are void.

    Members
    -------
    rule : In(range(rules))
        The rule of the run, for ``take``; kept in ``kept_rule``.
    known : In(1)
        The rule exists, for ``take``.
    addresses : In(COUNT_WIDTH), one for each slot
        Byte addresses of the tensors, for ``take``; 0 for slots that the rule does not use.
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
        The parameters that are in the last line of each FP32 tensor, a bit each.
    formats, seed, t : In(9), In(64), In(32)
        The registers of the run, for ``take``; kept in ``kept_formats``, ``kept_seed`` and
        ``kept_t``.
    load_present, store_present : Out(loaded), Out(stored)
        The tensors that the run has, a bit each.
    load_full, load_tail, store_full, store_tail : Out(range(block_beats + 1)), one for each slot
        Beats of each tensor's block in a round, and in the last.
    strobes : Out(64), one for each stored slot
        Bytes that are in the last line of each tensor.
    """

    def __init__(self, config: KernelConfig) -> None:
        self._config = config
        self._cause = kernel_map(config.rules, config.narrow)["status"]["cause"]
        self._first_output = len(config.loaded)
        self._slots = len(config.loaded + config.stored)
        rules = range(len(config.rules))
        narrow: dict[str, Any] = {}
        if config.narrow:
            for name, width in _NARROW_WIDTHS.items():
                narrow |= {name: In(width), f"kept_{name}": Out(width)}
            for way, slots in (("load", len(config.loaded)), ("store", len(config.stored))):
                beats = Out(range(config.block_beats + 1)).array(slots)
                narrow |= {f"{way}_present": Out(slots), f"{way}_full": beats, f"{way}_tail": beats}
            narrow["strobes"] = Out(LINE_BYTES).array(len(config.stored))
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
                **narrow,
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
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
        beats = Signal(BEATS, reset_less=True)
        count_beats = ((self.count - 1) >> part_bits) + 1
        # The tensor or pair that is checked in this cycle, loaded in the cycle before.
        first, second = (
            _Tensor(Signal.like(full_line, name=name, reset_less=True), beats)
            for name in ("first", "second")
        )
        tensors = [_Tensor(line, beats) for line in lines]
        requested = [_Tensor(address[LINE_BYTE_BITS:], beats) for address in self.addresses]
        low = [address[:LINE_BYTE_BITS] for address in self.addresses]
        no_format: list[tuple[str, Any]] = []
        part_of_block: list[tuple[str, Any]] = []
        if config.narrow:
            places = (*config.loaded, *config.stored)
            m.submodules.lengths = lengths = RunLengths(config)
            formats = RunFormats(self.formats)
            first, second = (
                tensor._replace(
                    beats=Signal(BEATS, name=f"{tensor.line.name}_beats", reset_less=True),
                    there=Signal(name=f"{tensor.line.name}_there", reset_less=True),
                )
                for tensor in (first, second)
            )
            tensors = list(map(_Tensor, lines, lengths.lengths, lengths.present))
            requested = [
                _Tensor(tensor.line, formats.lines(name, count_beats), formats.present(name))
                for tensor, name in zip(requested, places, strict=True)
            ]
            low = [Mux(tensor.there, bits, 0) for tensor, bits in zip(requested, low, strict=True)]
            no_format = [("no_format", lengths.unknown)]
            part_of_block = [("part_of_block", lengths.part_of_block)]
            self._keep_narrow(m, lengths)
            m.d.comb += [lengths.before_last.eq(before_last), lengths.beats.eq(beats)]
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
                beats.eq(count_beats),
                unaligned.eq(Cat(low).any()),
                step.eq(0),
            ]
        with m.Elif(self.check):
            m.d.sync += step.eq(step + 1)

        m.d.comb += [
            *(
                self.last_parameters[index].eq(before_last[:part_bits] >= index)
                for index in range(PARAMETERS_PER_BEAT)
            ),
            *(out.eq(line[: len(out)]) for out, line in zip(self.lines, lines, strict=True)),
            self.kept_rule.eq(kept_rule),
        ]
        if not config.narrow:
            beats_before_last = before_last >> part_bits
            m.d.comb += [
                self.rounds.last_round.eq(beats_before_last >> block_bits),
                self.rounds.tail_beats.eq(beats_before_last[:block_bits] + 1),
            ]

        may_be_same, is_range_check = Signal(reset_less=True), Signal(reset_less=True)
        with m.Switch(kept_rule):
            for number, rule in enumerate(config.update_rules):
                with m.Case(number):
                    # One step for each slot and pair, even if the run does not have the tensor.
                    steps = len(self._slots_of(rule)) + len(self._pairs(rule))
                    m.d.comb += self.cycles.eq(steps)
        with m.If(self.take), m.Switch(self.rule):
            for number, rule in enumerate(config.update_rules):
                with m.Case(number):
                    slot = self._slots_of(rule)[0]
                    m.d.sync += [is_range_check.eq(1), *first.take(requested[slot])]
        with m.Elif(self.check), m.Switch(kept_rule):
            for number, rule in enumerate(config.update_rules):
                with m.Case(number):
                    targets = (first, second, may_be_same, is_range_check)
                    self._select(m, rule, step, tensors, targets)
        out_of_range = first.line + first.beats > config.memory_bytes // LINE_BYTES
        overlap = (
            (first.line < second.line + second.beats)
            & (second.line < first.line + first.beats)
            & ~(may_be_same & (first.line == second.line))
        )
        if config.narrow:
            out_of_range &= first.there
            overlap &= first.there & second.there
        m.d.comb += self.last.eq(step == self.cycles - 1)
        causes = [
            ("no_rule", ~known),
            *no_format,
            ("zero_count", none),
            *part_of_block,
            ("unaligned", unaligned),
            ("out_of_range", is_range_check & out_of_range),
            ("overlap", ~is_range_check & overlap),
        ]
        for index, (cause, wrong) in enumerate(causes):
            with m.Elif(wrong) if index else m.If(wrong):
                m.d.comb += self.fault.eq(self._cause.code(cause))
        return m

    def _keep_narrow(self, m: Any, lengths: RunLengths) -> None:
        """Keep the settings of narrow formats, and connect the results of ``lengths``."""
        for name, width in _NARROW_WIDTHS.items():
            kept = Signal(width, name=f"{name}_kept", reset_less=True)
            m.d.comb += getattr(self, f"kept_{name}").eq(kept)
            with m.If(self.take):
                m.d.sync += kept.eq(getattr(self, name))
        m.d.comb += [lengths.formats.eq(self.kept_formats), self.rounds.eq(lengths.rounds)]
        for way, first in (("load", 0), ("store", self._first_output)):
            for slot in range(len(getattr(self, f"{way}_full"))):
                m.d.comb += [
                    getattr(self, f"{way}_present")[slot].eq(lengths.present[first + slot]),
                    getattr(self, f"{way}_full")[slot].eq(lengths.full[first + slot]),
                    getattr(self, f"{way}_tail")[slot].eq(lengths.tail[first + slot]),
                ]
        m.d.comb += [
            strobes.eq(line_strobes)
            for strobes, line_strobes in zip(self.strobes, lengths.strobes, strict=True)
        ]

    def _slots_of(self, rule: UpdateRule) -> list[int]:
        """Return the slots that ``rule`` uses."""
        stores = len(self._config.stores(rule))
        loads = range(len(self._config.loads(rule)))
        return [*loads, *range(self._first_output, self._first_output + stores)]

    def _pairs(self, rule: UpdateRule) -> list[_Pair]:
        """Return the pairs of tensors that must not overlap, by their slots."""
        loads = self._config.loads(rule)
        outputs = dict(enumerate(self._config.stores(rule), self._first_output))
        pairs = [
            _Pair(output, source, name == loads[source])
            for output, name in outputs.items()
            for source in range(len(loads))
        ]
        return pairs + [_Pair(one, other, False) for one, other in combinations(outputs, 2)]

    def _select(
        self,
        m: Module,
        rule: UpdateRule,
        step: Signal,
        tensors: list[_Tensor],
        targets: tuple[_Tensor, _Tensor, Signal, Signal],
    ) -> None:
        """Load the tensors of the step after ``step`` in the check of ``rule`` into ``targets``."""
        first, second, may_be_same, is_range_check = targets
        slots = self._slots_of(rule)
        with m.Switch(step):
            for index, slot in enumerate(slots[1:]):
                with m.Case(index):
                    m.d.sync += first.take(tensors[slot])
            for index, pair in enumerate(self._pairs(rule), len(slots) - 1):
                with m.Case(index):
                    m.d.sync += [
                        is_range_check.eq(0),
                        *first.take(tensors[pair.output]),
                        *second.take(tensors[pair.other]),
                        may_be_same.eq(pair.may_be_same),
                    ]
