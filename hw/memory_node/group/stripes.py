"""Map from lines of a group's memory to its channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.group.layouts import Job, Place

__all__ = ["StripeFinder", "StripeWalker", "give_bursts"]

_DIGIT_BITS = 4


class StripeFinder(wiring.Component):
    """Finds the place of a job's first line: divides the number of its stripe by the channels.

    This takes one cycle if the number of channels is a power of two. Otherwise it finds four bits
    of the quotient in each cycle.

    Members
    -------
    i : In(stream of :class:`~hw.memory_node.group.layouts.Job`)
        Must not change until it is taken, which is in the cycle in which ``o`` is.
    o : Out(stream of :class:`~hw.memory_node.group.layouts.Place`)
    """

    def __init__(self, config: MemoryNodeConfig) -> None:
        self._config = config
        super().__init__(
            {
                "i": In(stream.Signature(Job(config))),
                "o": Out(stream.Signature(Place(config))),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        channels = self._config.group_channels
        offset_bits = self._config.stripe_lines.bit_length() - 1
        line: Any = self.i.payload.line
        stripe = line[offset_bits:]
        place: Any = self.o.payload
        m.d.comb += [place.lines.eq(self.i.payload.lines), self.i.ready.eq(self.o.ready)]
        if not channels & (channels - 1):
            bits = channels.bit_length() - 1
            m.d.comb += [
                self.o.valid.eq(self.i.valid),
                place.channel.eq(stripe[:bits]),
                place.line.eq(Cat(line[:offset_bits], stripe[bits:])),
            ]
            return m

        digits = -(-len(stripe) // _DIGIT_BITS)
        left = Signal(digits * _DIGIT_BITS)
        """Digits of the dividend still to come, then those of the quotient."""
        remainder = Signal(range(channels))
        count = Signal(range(digits + 1))
        dividend = Cat(left[-_DIGIT_BITS:], remainder)
        divided = range(channels << _DIGIT_BITS)
        quotient: Any = Array(Const(value // channels, _DIGIT_BITS) for value in divided)[dividend]
        rest: Any = Array(Const(value % channels, len(remainder)) for value in divided)[dividend]
        busy = Signal()
        m.d.comb += [
            self.o.valid.eq(busy & (count == 0)),
            place.channel.eq(remainder),
            place.line.eq(Cat(line[:offset_bits], left)),
        ]
        with m.If(~busy):
            m.d.sync += [
                left.eq(stripe),
                remainder.eq(0),
                count.eq(digits),
                busy.eq(self.i.valid),
            ]
        with m.Elif(count != 0):
            m.d.sync += [
                left.eq(Cat(quotient, left[:-_DIGIT_BITS])),
                remainder.eq(rest),
                count.eq(count - 1),
            ]
        with m.Elif(self.o.ready):
            m.d.sync += busy.eq(0)
        return m


class StripeWalker(wiring.Component):
    """Goes over a place stripe by stripe.

    Members
    -------
    i : In(stream of :class:`~hw.memory_node.group.layouts.Place`)
        Places; one is taken while the last of the one before is gone over.
    active : Out(1)
        There are lines left; what follows is meaningful only then.
    place : Out(:class:`~hw.memory_node.group.layouts.Place`)
        What is left.
    lines : Out(range(65))
        Lines of it in this stripe.
    step, step_lines : In(1), In(range(65))
        Moves on by ``step_lines``, 1 to ``lines``, at the end of the cycle.
    last : Out(1)
        This step would end the place (combinational from ``step_lines``).
    """

    def __init__(self, config: MemoryNodeConfig) -> None:
        self._config = config
        layout = Place(config)
        super().__init__(
            {
                "i": In(stream.Signature(layout)),
                "active": Out(1),
                "place": Out(layout),
                "lines": Out(layout["lines"].shape),
                "step": In(1),
                "step_lines": In(layout["lines"].shape),
                "last": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        channels, stripe_lines = self._config.group_channels, self._config.stripe_lines
        place = self.place
        offset_bits = stripe_lines.bit_length() - 1
        to_end = Signal(range(stripe_lines + 1))
        moved = Signal(len(place.line) + 1)
        crosses = Signal()
        last_channel = place.channel == channels - 1
        m.d.comb += [
            to_end.eq(stripe_lines - place.line[:offset_bits]),
            self.lines.eq(Mux(place.lines < to_end, place.lines, to_end)),
            self.last.eq(self.step_lines == place.lines),
            self.i.ready.eq(~self.active | (self.step & self.last)),
            crosses.eq(self.step_lines == to_end),
            moved.eq(place.line + self.step_lines),
        ]
        with m.If(self.i.ready):
            m.d.sync += [self.active.eq(self.i.valid), place.eq(self.i.payload)]
        with m.Elif(self.step):
            m.d.sync += [
                place.lines.eq(place.lines - self.step_lines),
                place.line.eq(moved),
            ]
            with m.If(crosses & ~last_channel):
                # The same stripe of the next channel, from its first line.
                m.d.sync += [
                    place.channel.eq(place.channel + 1),
                    place.line.eq(Cat(Const(0, offset_bits), place.line[offset_bits:])),
                ]
            with m.Elif(crosses):
                m.d.sync += place.channel.eq(0)
        return m


def give_bursts(m: Any, walker: Any, bursts: Sequence[Any], *, may: Any = 1) -> Any:
    """Walk over a place burst by burst; return whether a burst is taken.

    Each stripe is offered to its channel's stream of ``bursts`` while ``may`` is set.
    """
    taken = Signal()
    m.d.comb += [walker.step_lines.eq(walker.lines), walker.step.eq(taken)]
    for index, burst in enumerate(bursts):
        m.d.comb += [
            burst.valid.eq(walker.active & may & (walker.place.channel == index)),
            burst.payload.line.eq(walker.place.line),
            burst.payload.lines.eq(walker.lines),
        ]
        with m.If(burst.valid & burst.ready):
            m.d.comb += taken.eq(1)
    return taken
