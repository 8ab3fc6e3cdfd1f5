"""Checks of a descriptor, with the causes of its refusal."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Mux, Signal

from hw.float.parts import wire
from hw.pim.config import PimConfig
from hw.pim.front.amounts import Amounts
from hw.pim.front.words import Words
from hw.pim.work.descriptor import (
    ELEMENTWISE_OPCODES,
    FORMS,
    TENSORS,
    Cause,
    Opcode,
    field_word,
    size_limit,
)
from hw.pim.work.status import CAUSE_BITS

__all__ = ["Checks"]

_LEAST_CHUNK = 3
_MOST_ELEMENTS = 9
_MOST_DEPTH = 3
_MOST_SECONDS = 10
_MOST_BLOCK = 6
"""Binary logarithm of a block's most vectors: a buffer has eight groups of eight vectors."""
_LANES = 3
"""Binary logarithm of the lanes that share a part of a buffer."""
_CHUNKS = 5
"""Binary logarithm of the chunks that a buffer must hold, at least.

A lane has no places for the tree of a longer chunk.
"""


class Checks:
    """All checks of docs/pim-spec.md, "Refused works".

    They are valid once all products are computed, see :class:`~hw.pim.front.amounts.Amounts`.
    """

    def __init__(self, m: Any, words: Words, amounts: Amounts, config: PimConfig) -> None:
        self._m = m
        self._words = words
        self._amounts = amounts
        self._config = config
        self.used = {tensor: Signal(name=f"{tensor}_used") for tensor in TENSORS}
        """High for each tensor that the opcode has."""
        self.is_elementwise = self._is("elementwise", *ELEMENTWISE_OPCODES)
        self.levels = self._levels()
        """Binary logarithm of each result's places in a lane's state."""
        self.cause = Signal(CAUSE_BITS)
        """Lowest cause to refuse the work, or ``NONE``."""

        known, is_reserved, is_zero = Signal(), Signal(), Signal()
        nonzero = wire(m, Cat(word.any() for word in words.words), "nonzero")
        with m.Switch(words.field("opcode")):
            for opcode, form in FORMS.items():
                with m.Case(opcode):
                    unused = [bit for word, bit in enumerate(nonzero) if word not in form.words]
                    m.d.comb += [
                        known.eq(1),
                        is_reserved.eq(Cat(unused).any()),
                        is_zero.eq(~Cat(nonzero[field_word(size)] for size in form.sizes).all()),
                        *(self.used[tensor].eq(1) for tensor in form.tensors),
                    ]
        sizes = {size for form in FORMS.values() for size in (*form.sizes, *form.pads)}
        is_large = Cat(
            words.field(size)[size_limit(size).bit_length() :].any() for size in sorted(sizes)
        ).any()
        banks, units = words.field("banks"), words.field("units")
        refusals = {
            Cause.OPCODE: ~known,
            Cause.RESERVED: is_reserved,
            Cause.SIZE: is_zero | is_large,
            Cause.MISALIGNED: Cat(words.byte(tensor)[:2] for tensor in TENSORS).any(),
            Cause.OUT_OF_RANGE: ~Cat(map(self._is_in_stack, TENSORS)).all(),
            Cause.OVERLAP: amounts.is_shared | Cat(map(self._meets_result, TENSORS[:-1])).any(),
            Cause.BANKS: banks[config.banks :].any(),
            Cause.UNITS: Mux(banks.any(), units.any(), ~units.any() | (units > config.units)),
            Cause.PLAN: Mux(self.is_elementwise, self._is_bad_piece(), self._is_bad_plan()),
        }
        for cause in sorted(refusals, reverse=True):
            with m.If(wire(m, refusals[cause], f"is_{cause.name.lower()}")):
                m.d.comb += self.cause.eq(cause)

    def _is(self, name: str, *opcodes: Opcode) -> Any:
        opcode = self._words.field("opcode")
        return wire(self._m, Cat(opcode == other for other in opcodes).any(), f"is_{name}")

    def _levels(self) -> Any:
        """Return the binary logarithm, rounded up, of the sums that a result keeps.

        There is one for each bit of a tap's number beyond a chunk, and one over the channels.
        """
        beyond = wire(
            self._m, (self._amounts.taps - 1)[:32] >> self._words.plan.chunk[:4], "beyond"
        )
        return _length(self._m, _length(self._m, beyond, "waiting"), "levels")

    def _is_in_stack(self, tensor: str) -> Any:
        low, high = self._amounts.low[tensor], self._amounts.high[tensor]
        config = self._config
        is_local = high < config.local_bytes // 4
        is_striped = (low >= config.striped_start_bytes // 4) & (high < config.stack_bytes // 4)
        return ~low[-1] & (is_local | is_striped)

    def _meets_result(self, tensor: str) -> Any:
        """Return whether a tensor overlaps the result; valid if both are in the stack."""
        words, amounts = self._words, self._amounts
        bits = (self._config.stack_bytes // 4 - 1).bit_length()
        low, high = amounts.low, amounts.high
        meets = (low[tensor][:bits] <= high["result"][:bits]) & (
            low["result"][:bits] <= high[tensor][:bits]
        )
        in_place = self.is_elementwise & (words.element(tensor) == words.element("result"))
        for index in range(2):
            in_place &= words.stride(tensor, index) == words.stride("result", index)
        return self.used[tensor] & meets & ~in_place

    def _is_bad_piece(self) -> Any:
        """Return whether an elementwise work's plan, which is only a chunk, is bad."""
        plan, most = self._words.plan, min(_MOST_ELEMENTS, _logarithm(self._config.second_words))
        bits = plan.as_value()
        return (plan.chunk < _LEAST_CHUNK) | (plan.chunk > most) | bits[len(plan.chunk) :].any()

    def _is_bad_plan(self) -> Any:
        """Return whether a reduction's plan is bad."""
        config, plan, amounts = self._config, self._words.plan, self._amounts
        first, second = _logarithm(config.first_words), _logarithm(config.second_words)
        chunk, depth, seconds, block = plan.chunk, plan.depth, plan.seconds, plan.block
        has_own = self._is("private", Opcode.DOT)
        room = Mux(has_own, min(first, second), first)
        may_exchange = self._is("two_ways", Opcode.MATMUL, Opcode.CONV2D)
        return Cat(
            chunk < _LEAST_CHUNK,
            chunk > max(_LEAST_CHUNK, first - _CHUNKS),
            depth > _MOST_DEPTH,
            chunk + depth + _LANES > room,
            seconds > _MOST_SECONDS,
            depth + seconds + self.levels > _logarithm(config.state_words),
            block > _MOST_BLOCK,
            chunk + block > second,
            amounts.chunk_taps > wire(self._m, (1 << chunk[:4])[:16], "chunk_elements"),
            plan.exchanged & ~may_exchange,
            plan.rest.any(),
        ).any()


def _logarithm(value: int) -> int:
    """Return the binary logarithm of ``value``, rounded down."""
    return value.bit_length() - 1


def _length(m: Any, value: Any, name: str) -> Signal:
    """Return the position of the highest set bit, from 1; 0 if there is none."""
    length = Signal(range(len(value) + 1), name=name)
    for position in range(len(value)):
        with m.If(value[position]):
            m.d.comb += length.eq(position + 1)
    return length
