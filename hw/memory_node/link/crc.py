"""CRC-32C of a flit's content."""

from __future__ import annotations

from functools import cache
from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.memory_node.link.wire import CHECKED_BITS

__all__ = ["FlitCrc"]

_POLYNOMIAL = 0x82F63B78
"""Polynomial 0x1EDC6F41 (Castagnoli) with the coefficient of x^31 in bit 0."""

_WORD = 32


class FlitCrc(wiring.Component):
    """CRC-32C of the 68 bytes of a cycle, two cycles later and until others come.

    Each bit of a CRC is a parity of some of the input bits. Each of the two stages is at most two
    levels of six-input lookup tables. The first computes the parities within each of the 17 words
    of 32 bits, the second those over all words. Each result depends on its cycle's bytes alone.

    Members
    -------
    valid : In(1)
        There are bytes. Without, nothing is computed, which makes simulation faster.
    i : In(544)
        The bytes, the first in the lowest bits.
    o : Out(32)
        CRC of the bytes.
    """

    latency = 2

    def __init__(self) -> None:
        super().__init__({"valid": In(1), "i": In(CHECKED_BITS), "o": Out(32)})

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        masks, constant = _parities()
        words = range(0, CHECKED_BITS, _WORD)
        partial = [Signal(32, name=f"word_{at // _WORD}", reset_less=True) for at in words]
        for at, parity in zip(words, partial, strict=True):
            word = self.i[at : at + _WORD]
            with m.If(self.valid):
                m.d.sync += parity.eq(
                    Cat((word & (mask >> at & (1 << _WORD) - 1)).xor() for mask in masks)
                )
        whole = Signal(32, reset_less=True)
        total: Any = constant
        for parity in partial:
            total = parity ^ total
        m.d.sync += whole.eq(total)
        m.d.comb += self.o.eq(whole)
        return m


@cache
def _parities() -> tuple[list[int], int]:
    """Return a mask of input bits for the parity of each CRC bit, and the bits to invert."""
    masks = [0] * 32
    # A bit has the effect of the last bit before the CRC, moved on by all bits in between.
    effect = _POLYNOMIAL
    for bit in reversed(range(CHECKED_BITS)):
        for number in range(32):
            masks[number] |= (effect >> number & 1) << bit
        effect = _moved(effect)
    constant = 0xFFFFFFFF
    for _ in range(CHECKED_BITS):
        constant = _moved(constant)
    return masks, constant ^ 0xFFFFFFFF


def _moved(state: int) -> int:
    return state >> 1 ^ (_POLYNOMIAL if state & 1 else 0)
