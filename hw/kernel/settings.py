"""The settings of a kernel's run, and their check."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axdimm.registers import kernel_map
from hw.kernel.config import COUNT_WIDTH, PARAMETERS_PER_BEAT, KernelConfig
from hw.kernel.lanes import ConstantsSignature
from hw.line import LINE_BYTE_BITS, LINE_BYTES, line_width
from hw.rules.adam import INPUTS, OUTPUTS

__all__ = ["CHECK_CYCLES", "TENSORS", "RunSettings"]

TENSORS = (*(f"{name}_in" for name in INPUTS), *(f"{name}_out" for name in OUTPUTS))
"""The tensors of a run, those that are loaded before those that are stored."""


def _pairs_to_check() -> list[tuple[int, int, bool]]:
    """Each output with each input and each other output: two indices of ``TENSORS``, and
    whether they may be the same tensor."""
    outputs = range(len(INPUTS), len(TENSORS))
    pairs = [
        (output, source, OUTPUTS[output - len(INPUTS)] == INPUTS[source])
        for output in outputs
        for source in range(len(INPUTS))
    ]
    return pairs + [(first, second, False) for first, second in combinations(outputs, 2)]


_PAIRS = _pairs_to_check()

CHECK_CYCLES = len(TENSORS) + len(_PAIRS)
"""Fabric cycles that the check of the settings takes: one for each tensor and each pair."""


class RunSettings(wiring.Component):
    """Takes over the settings of a run, checks them, and holds them for the run.

    Members
    -------
    addresses : In(COUNT_WIDTH), one for each of :data:`TENSORS`
        Byte addresses of the tensors, for ``take``.
    count : In(COUNT_WIDTH)
        Parameters to update, for ``take``.
    constants : In(:class:`~hw.kernel.lanes.ConstantsSignature`)
        Of the update rule, for ``take``.
    take : In(1)
        The settings are taken over at the end of the cycle.
    check : In(1)
        The next tensor or pair is checked; high from the cycle after ``take`` until a fault or
        ``last``.
    fault : Out(cause)
        With ``check``: what is wrong, a code of the cause in the kernel's status, or 0.
    last : Out(1)
        With ``check``: it is the last of the check.
    lines : Out(line), one for each of :data:`TENSORS`
        First line of each tensor.
    kept : Out(:class:`~hw.kernel.lanes.ConstantsSignature`)
        The constants.
    rounds : Out(:class:`~hw.stream.rounds.RoundsLayout`)
        The rounds of the run.
    last_strobes : Out(64)
        Byte strobes of the last line of each tensor.
    """

    def __init__(self, config: KernelConfig) -> None:
        self._config = config
        self._cause = kernel_map()["status"]["cause"]
        super().__init__(
            {
                "addresses": In(COUNT_WIDTH).array(len(TENSORS)),
                "count": In(COUNT_WIDTH),
                "constants": In(ConstantsSignature()),
                "take": In(1),
                "check": In(1),
                "fault": Out(self._cause.width),
                "last": Out(1),
                "lines": Out(line_width(config.address_width)).array(len(TENSORS)),
                "kept": Out(ConstantsSignature()),
                "rounds": Out(config.rounds),
                "last_strobes": Out(LINE_BYTES),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config = self._config
        block_bits = config.block_beats.bit_length() - 1
        part_bits = PARAMETERS_PER_BEAT.bit_length() - 1

        full_line = Signal(line_width(COUNT_WIDTH))
        lines = [Signal.like(full_line, name=f"line_{name}", reset_less=True) for name in TENSORS]
        count = Signal(COUNT_WIDTH, reset_less=True)
        unaligned = Signal()
        step = Signal(range(CHECK_CYCLES))
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
                count.eq(self.count),
                unaligned.eq(Cat(each[:LINE_BYTE_BITS] for each in self.addresses).any()),
                step.eq(0),
            ]
        with m.Elif(self.check):
            m.d.sync += step.eq(step + 1)

        beats = Signal(range((1 << COUNT_WIDTH) // PARAMETERS_PER_BEAT + 1))
        beats_before_last = Signal.like(beats)
        m.d.comb += [
            beats_before_last.eq((count - 1) >> part_bits),
            beats.eq(beats_before_last + 1),
            self.rounds.last_round.eq(beats_before_last >> block_bits),
            self.rounds.tail_beats.eq(beats_before_last[:block_bits] + 1),
            *(
                self.last_strobes.word_select(index, 4).eq(
                    Mux((count - 1)[:part_bits] >= index, 0b1111, 0)
                )
                for index in range(PARAMETERS_PER_BEAT)
            ),
            *(out.eq(line[: len(out)]) for out, line in zip(self.lines, lines, strict=True)),
        ]

        # One tensor, or one pair, a cycle.
        first, second = Signal.like(full_line), Signal.like(full_line)
        may_be_same, is_range_check = Signal(), Signal()
        with m.Switch(step):
            for index in range(len(TENSORS)):
                with m.Case(index):
                    m.d.comb += [is_range_check.eq(1), first.eq(lines[index])]
            for index, (one, other, same) in enumerate(_PAIRS, len(TENSORS)):
                with m.Case(index):
                    m.d.comb += [
                        first.eq(lines[one]),
                        second.eq(lines[other]),
                        may_be_same.eq(same),
                    ]
        out_of_range = first + beats > config.memory_bytes // LINE_BYTES
        overlap = (
            (first < second + beats) & (second < first + beats) & ~(may_be_same & (first == second))
        )
        m.d.comb += self.last.eq(step == CHECK_CYCLES - 1)
        with m.If(count == 0):
            m.d.comb += self.fault.eq(self._cause.code("zero_count"))
        with m.Elif(unaligned):
            m.d.comb += self.fault.eq(self._cause.code("unaligned"))
        with m.Elif(is_range_check & out_of_range):
            m.d.comb += self.fault.eq(self._cause.code("out_of_range"))
        with m.Elif(~is_range_check & overlap):
            m.d.comb += self.fault.eq(self._cause.code("overlap"))
        return m
