"""Walk over tensors block by block, round-robin."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.logic.held import lost_bit

__all__ = ["RoundWalker", "RoundsLayout", "share_members"]


class RoundsLayout(data.StructLayout):
    """Number of rounds in a run. Round k covers block k of each tensor.

    Fields
    ------
    last_round
        Index of the last round.
    tail_beats
        Beats of a block in the last round, 1 to ``block_beats``; not if tensors are uneven.

    Examples
    --------
    >>> rounds = RoundsLayout(block_beats=256, beats_width=36)
    >>> {name: field.width for name, field in rounds}
    {'last_round': 28, 'tail_beats': 9}
    """

    def __init__(self, *, block_beats: int, beats_width: int) -> None:
        block_bits = block_beats.bit_length() - 1
        self.block_beats = block_beats
        super().__init__({"last_round": beats_width - block_bits, "tail_beats": block_bits + 1})


def share_members(*, layout: RoundsLayout, tensors: int, uneven: bool) -> dict[str, wiring.Member]:
    """Return the members that give each tensor's part of a round; see :class:`RoundWalker`."""
    if not uneven:
        return {"last_tensor": In(range(tensors), init=tensors - 1)}
    beats = In(range(layout.block_beats + 1))
    return {"present": In(tensors), "full": beats.array(tensors), "tail": beats.array(tensors)}


class RoundWalker(wiring.Component):
    """Knows which tensor is at work, and how many beats its block still has.

    The order is block 0 of tensor 0, 1, …, then block 1 of tensor 0, and so on; blocks of the
    last round may be shorter. All tensors have the same number of beats in a round unless
    ``uneven``: then each has its own number, and any of them may be absent.

    Parameters
    ----------
    layout
        Layout of ``rounds``.
    tensors
        Maximum number of tensors in a round.
    uneven
        Give each tensor its own number of beats.

    Members
    -------
    load : In(1)
        Takes over ``rounds``, and ends the walk that was.
    start : In(1)
        With ``load``: the walk begins.
    rounds : In(:class:`RoundsLayout`)
        The rounds of the run; must hold still while ``active``.
    last_tensor : In(range(tensors))
        Index of the last tensor of each round; likewise.
    present : In(tensors)
        If ``uneven``, instead of ``last_tensor``: a bit for each tensor that there is, one at
        least; likewise.
    full, tail : In(range(block_beats + 1)), one for each tensor
        If ``uneven``: beats, from 1, that each tensor that there is has in a round, and in the
        last one instead of ``tail_beats``; likewise.
    step, step_beats : In(1), In(range(block_beats + 1))
        Moves on by ``step_beats`` (1 to ``left``) at the end of the cycle.
    active : Out(1)
        Beats are left; the following members are meaningful only then.
    tensor : Out(range(tensors))
        Tensor at work.
    left : Out(range(block_beats + 1))
        Beats left in its block.
    fresh : Out(1)
        The round has not begun.
    tensor_end : Out(1)
        This step ends the block (combinational from ``step_beats``).
    round_end : Out(1)
        This step ends the round (likewise).
    last_round : Out(1)
        The round is the last.
    upset : Out(1)
        Pulse: a bit of the walk's state was lost while it held still (see
        :func:`~hw.logic.held.lost_bit`).
    """

    def __init__(self, *, layout: RoundsLayout, tensors: int, uneven: bool = False) -> None:
        self._layout = layout
        self._tensors = tensors
        self._uneven = uneven
        beats = range(layout.block_beats + 1)
        super().__init__(
            {
                "load": In(1),
                "start": In(1),
                "rounds": In(layout),
                **share_members(layout=layout, tensors=tensors, uneven=uneven),
                "step": In(1),
                "step_beats": In(beats),
                "active": Out(1),
                "tensor": Out(range(tensors)),
                "left": Out(beats),
                "fresh": Out(1),
                "tensor_end": Out(1),
                "round_end": Out(1),
                "last_round": Out(1),
                "upset": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        rounds_after = Signal.like(self.rounds.last_round)
        if self._uneven:
            next_tensor, last_tensor = self._next_tensor(m)
            first = next_tensor
            full, tail = (Array(beats)[next_tensor] for beats in (self.full, self.tail))
        else:
            first, next_tensor = 0, self.tensor + 1
            last_tensor = self.tensor == self.last_tensor
            full, tail = self._layout.block_beats, self.rounds.tail_beats
        m.d.comb += [
            self.last_round.eq(rounds_after == 0),
            self.tensor_end.eq(self.left == self.step_beats),
            self.round_end.eq(self.tensor_end & last_tensor),
        ]
        place = [self.active, self.tensor, rounds_after]
        block = [self.fresh, self.left]
        m.d.comb += self.upset.eq(
            lost_bit(m, "place", place, self.load, self.step & self.tensor_end)
            | lost_bit(m, "block", block, self.load, self.step)
        )

        def block_of(is_last: Any) -> Any:
            return Mux(is_last, tail, full)

        with m.If(self.load):
            m.d.sync += [
                self.active.eq(self.start),
                self.fresh.eq(1),
                self.tensor.eq(first),
                rounds_after.eq(self.rounds.last_round),
                self.left.eq(block_of(self.rounds.last_round == 0)),
            ]
        with m.Elif(self.step):
            m.d.sync += self.fresh.eq(0)
            with m.If(~self.tensor_end):
                m.d.sync += self.left.eq(self.left - self.step_beats)
            with m.Elif(~last_tensor):
                m.d.sync += [
                    self.tensor.eq(next_tensor),
                    self.left.eq(block_of(self.last_round)),
                ]
            with m.Else():
                m.d.sync += [
                    self.active.eq(~self.last_round),
                    self.fresh.eq(1),
                    self.tensor.eq(first),
                    rounds_after.eq(rounds_after - 1),
                    self.left.eq(block_of(rounds_after == 1)),
                ]
        return m

    def _next_tensor(self, m: Module) -> tuple[Signal, Any]:
        """Return the next tensor (with ``load`` the first), and whether the current is the last.

        Both refer to the order within a round.
        """
        first, coming, after = (
            Signal.like(self.tensor, name=name) for name in ("first", "coming", "after")
        )
        # A flip-flop, since the beats of the next block are chosen by it.
        kept = Signal.like(self.tensor, name="next_tensor")
        m.d.comb += [coming.eq(Mux(self.load, first, kept)), after.eq(first)]
        for index in reversed(range(self._tensors)):
            with m.If(self.present[index]):
                m.d.comb += first.eq(index)
                with m.If(coming < index):
                    m.d.comb += after.eq(index)
        with m.If(self.load | (self.step & self.tensor_end)):
            m.d.sync += kept.eq(after)
        return coming, kept <= self.tensor
