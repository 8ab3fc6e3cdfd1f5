"""Lengths of a run's tensors with narrow formats, and their beats in each round."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.kernel.config import COUNT_WIDTH, PARAMETERS_PER_BEAT, KernelConfig
from hw.logic.line import LINE_BYTES
from hw.narrow.formats import BLOCK_PARAMETERS, PAIR_BYTES
from hw.narrow.run_formats import FORMATS_WIDTH, RunFormats

__all__ = ["BEATS", "RunLengths"]

BEATS = range((1 << COUNT_WIDTH) // PARAMETERS_PER_BEAT + 1)
"""Range of the beats of an FP32 tensor."""


class RunLengths(wiring.Component):
    """Lengths and presence of a run's tensors by slot, with narrow formats.

    The slots are those of :class:`~hw.kernel.settings.RunSettings`.

    Members
    -------
    formats : In(9)
        The formats of the run.
    before_last : In(COUNT_WIDTH)
        Index of its last parameter.
    beats : In(:data:`BEATS`)
        Beats of an FP32 tensor.
    unknown : Out(1)
        ``formats`` are none.
    part_of_block : Out(1)
        A tensor is not in FP32, and the last block of 256 parameters is not full; all that follows
        is meaningful only otherwise, and for tensors that are present.
    present : Out(1), one for each slot
        The run has the tensor.
    lengths : Out(:data:`BEATS`), one for each slot
        Beats of the tensor.
    rounds : Out(:class:`~hw.stream.rounds.RoundsLayout`)
        The rounds of the run, in beats of the widest tensor; a cycle late.
    full, tail : Out(range(block_beats + 1)), one for each slot
        Beats of the tensor's block in a round, and in the last; a cycle late.
    strobes : Out(64), one for each stored slot
        Bytes that are in the last beat of the tensor.
    """

    def __init__(self, config: KernelConfig) -> None:
        self._config = config
        self._places = (*config.loaded, *config.stored)
        slots = len(self._places)
        block = range(config.block_beats + 1)
        super().__init__(
            {
                "formats": In(FORMATS_WIDTH),
                "before_last": In(COUNT_WIDTH),
                "beats": In(BEATS),
                "unknown": Out(1),
                "part_of_block": Out(1),
                "present": Out(1).array(slots),
                "lengths": Out(BEATS).array(slots),
                "rounds": Out(config.rounds),
                "full": Out(block).array(slots),
                "tail": Out(block).array(slots),
                "strobes": Out(LINE_BYTES).array(len(config.stored)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        config = self._config
        part_bits = PARAMETERS_PER_BEAT.bit_length() - 1
        pair_bits = (LINE_BYTES // PAIR_BYTES).bit_length() - 1
        block_bits = BLOCK_PARAMETERS.bit_length() - 1
        round_bits = config.block_beats.bit_length() - 1
        formats = RunFormats(self.formats)

        # Shared terms, in beats of an FP32 tensor. A round has a block of the widest tensor, so
        # twice as many parameters if that is in BF16.
        wide = Signal()
        beats_before_last = self.before_last[part_bits:]
        a_round = Signal(range(2 * config.block_beats + 1))
        last_round = Signal.like(a_round)
        m.d.comb += [
            wide.eq(formats.wide),
            a_round.eq(Mux(wide, config.block_beats, 2 * config.block_beats)),
            last_round.eq(
                Mux(wide, beats_before_last[:round_bits], beats_before_last[: round_bits + 1]) + 1
            ),
            self.unknown.eq(formats.unknown),
            self.part_of_block.eq(formats.narrow & ~self.before_last[:block_bits].all()),
        ]
        m.d.sync += [
            self.rounds.last_round.eq(
                Mux(wide, beats_before_last >> round_bits, beats_before_last >> round_bits + 1)
            ),
            self.rounds.tail_beats.eq(Mux(wide, last_round, last_round >> 1)),
        ]
        for slot, name in enumerate(self._places):
            m.d.comb += [
                self.present[slot].eq(formats.present(name)),
                self.lengths[slot].eq(formats.lines(name, self.beats)),
            ]
            m.d.sync += [
                self.full[slot].eq(formats.lines(name, a_round)),
                self.tail[slot].eq(formats.lines(name, last_round)),
            ]
        # The strobes hold for narrow tensors too: in whole blocks all their beats are full.
        last_parameter = self.before_last[:part_bits]
        last_pair = self.before_last[block_bits : block_bits + pair_bits]
        for strobes, name in zip(self.strobes, config.stored, strict=True):
            last, size = (last_pair, PAIR_BYTES) if name == "scales" else (last_parameter, 4)
            m.d.comb += [
                strobes.word_select(index, size).eq((last >= index).replicate(size))
                for index in range(LINE_BYTES // size)
            ]
        return m
