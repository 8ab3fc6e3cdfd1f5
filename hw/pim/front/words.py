"""Words of the descriptor that is being checked."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import Out

from hw.pim.config import BEAT_BYTES
from hw.pim.work.descriptor import (
    DESCRIPTOR_WORDS,
    PLAN_BITS,
    PLAN_WORD,
    address_word,
    field_word,
    stride_word,
)

__all__ = ["WordWriteSignature", "Words"]

_BEAT_WORDS = BEAT_BYTES // 4
_BEATS = DESCRIPTOR_WORDS // _BEAT_WORDS


class WordWriteSignature(wiring.Signature):
    """Write of a descriptor's beat: words 8 · ``index`` to 8 · ``index`` + 7."""

    def __init__(self) -> None:
        super().__init__(
            {"enable": Out(1), "index": Out(range(_BEATS)), "data": Out(8 * BEAT_BYTES)}
        )


class Words:
    """Registers of a descriptor; a :class:`WordWriteSignature` is taken only while ``open``."""

    def __init__(self, m: Any, write: Any, open: Any) -> None:
        self.words = Signal(data.ArrayLayout(32, DESCRIPTOR_WORDS))
        with m.If(write.enable & open), m.Switch(write.index):
            for index in range(_BEATS):
                with m.Case(index):
                    m.d.sync += [
                        self.words[_BEAT_WORDS * index + word].eq(write.data.word_select(word, 32))
                        for word in range(_BEAT_WORDS)
                    ]

    def field(self, name: str) -> Any:
        """Return the value of a field or a size."""
        return self.words[field_word(name)]

    def element(self, tensor: str) -> Any:
        """Return the address of a tensor's first element, in elements."""
        return Value.cast(self.byte(tensor))[2:]

    def byte(self, tensor: str) -> Any:
        """Return the address of a tensor's first element, in bytes."""
        word = address_word(tensor)
        return Cat(self.words[word], self.words[word + 1])

    def stride(self, tensor: str, index: int) -> Any:
        """Return the signed stride of a tensor for one of its indices."""
        return self.words[stride_word(tensor, index)].as_signed()

    @property
    def plan(self) -> Any:
        """Plan of the work; its field ``rest`` must be zero."""
        rest = 64 - sum(PLAN_BITS.values())
        layout = data.StructLayout({**PLAN_BITS, "rest": rest})
        return data.View(layout, Cat(self.words[PLAN_WORD], self.words[PLAN_WORD + 1]))
