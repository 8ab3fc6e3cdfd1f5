"""Calculates with a descriptor's words, one operation after the other, as a program says."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, signed, unsigned
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from hw.pim.front.microcode import (
    ADDRESS_BITS,
    DIVIDEND_BITS,
    NONZERO,
    VALUE_BITS,
    VALUES,
    Microcode,
    Operation,
    When,
    instruction_layout,
)
from hw.pim.work.descriptor import DESCRIPTOR_WORDS, TENSORS, address_word, stride_word

__all__ = ["Calculator", "ValueWriteSignature", "WordWriteSignature"]

_DIGIT_BITS = 16
"""Of the multiplier that are used in a cycle."""

_PAIRS = DESCRIPTOR_WORDS // 2


class WordWriteSignature(wiring.Signature):
    """Writes words 2 · ``index`` and 2 · ``index`` + 1 of a descriptor."""

    def __init__(self) -> None:
        super().__init__(
            {"enable": Out(1), "index": Out((_PAIRS - 1).bit_length()), "data": Out(64)}
        )


class ValueWriteSignature(wiring.Signature):
    """``data`` is written to the value at ``address``."""

    def __init__(self) -> None:
        super().__init__(
            {"enable": Out(1), "address": Out(ADDRESS_BITS), "data": Out(signed(VALUE_BITS))}
        )


class Calculator(wiring.Component):
    """Runs a program (:mod:`hw.pim.front.microcode`).

    An operation takes two cycles: its operands are read, then its result is written and the next
    instruction fetched. A multiplication takes one more, and one for every 16 bits of ``b`` up to
    its highest bit set; a division 16 more. There is one adder and one multiplier.

    Parameters
    ----------
    program
        Runs from its first instruction to ``STOP``, which it must reach.

    Members
    -------
    word_write : In(:class:`WordWriteSignature`)
        Not while it is ``busy``. After a reset all words are to be written before ``start``.
    start : In(1)
        A pulse; ignored while it is ``busy``.
    busy : Out(1)
    value_write : Out(:class:`ValueWriteSignature`)
        What the program computes, as it does.
    done : Out(1)
        A pulse in the last cycle in which it is ``busy``.
    """

    word_write: Any
    start: Any
    busy: Any
    value_write: Any
    done: Any

    def __init__(self, program: Microcode) -> None:
        self._program = program
        super().__init__(
            {
                "word_write": In(WordWriteSignature()),
                "start": In(1),
                "busy": Out(1),
                "value_write": Out(ValueWriteSignature()),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        instructions = list(self._program.assembled())
        counter_bits = len(instructions).bit_length()
        m.submodules.program = program = memory.Memory(
            shape=instruction_layout(counter_bits), depth=len(instructions), init=instructions
        )
        fetch: Any = program.read_port()
        instruction = fetch.data
        counter = Signal(counter_bits)
        read, write = Signal(), Signal()  # Read the operands; write the result, fetch the next.
        m.d.comb += [fetch.addr.eq(counter), fetch.en.eq(write)]

        a, b = self._operands(m, [instruction.a, instruction.b], read)

        flag = Signal()
        does = Signal()
        with m.Switch(instruction.when):
            with m.Case(When.ALWAYS):
                m.d.comb += does.eq(1)
            with m.Case(When.FLAG):
                m.d.comb += does.eq(flag)
            with m.Case(When.NO_FLAG):
                m.d.comb += does.eq(~flag)

        # The multiplier's digits, lowest first, and the dividend's bits, highest first, which make
        # room for those of the quotient.
        multiplicand, product, total = (Signal(signed(VALUE_BITS)) for _ in range(3))
        digits = Signal(VALUE_BITS)
        quotient = Signal(DIVIDEND_BITS)
        steps = Signal(range(DIVIDEND_BITS))

        left, right, result, added = (Signal(signed(VALUE_BITS)) for _ in range(4))
        subtracts = Signal()
        m.d.comb += [
            left.eq(a),
            right.eq(b),
            added.eq(Mux(subtracts, left - right, left + right)),
            result.eq(added),
            self.value_write.address.eq(instruction.to),
            self.value_write.data.eq(result),
            self.busy.eq(1),
        ]

        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.busy.eq(0)
                m.d.sync += counter.eq(0)
                with m.If(self.start):
                    m.next = "FETCH"
            with m.State("FETCH"):
                m.d.comb += write.eq(1)
                m.next = "READ"
            with m.State("READ"):
                m.d.comb += read.eq(1)
                m.d.sync += counter.eq(counter + 1)
                with m.If(does & (instruction.operation == Operation.JUMP)):
                    m.d.sync += counter.eq(instruction.target)
                m.next = "EXECUTE"
            with m.State("EXECUTE"):
                m.d.comb += write.eq(1)
                m.next = "READ"
                with m.If(does), m.Switch(instruction.operation):
                    with m.Case(Operation.STOP):
                        m.d.comb += self.done.eq(1)
                        m.next = "IDLE"
                    with m.Case(Operation.ADD):
                        m.d.comb += self.value_write.enable.eq(1)
                    with m.Case(Operation.SUBTRACT):
                        m.d.comb += [subtracts.eq(1), self.value_write.enable.eq(1)]
                    with m.Case(Operation.SHIFT):
                        m.d.comb += [result.eq(a >> b[:5]), self.value_write.enable.eq(1)]
                    with m.Case(Operation.LENGTH):
                        m.d.comb += self.value_write.enable.eq(1)
                        m.d.comb += result.eq(_length(m, a[:32]))
                    with m.Case(Operation.COUNT):
                        m.d.comb += self.value_write.enable.eq(1)
                        m.d.comb += result.eq(sum(a[:32]))
                    with m.Case(Operation.IS_LESS):
                        m.d.comb += subtracts.eq(1)
                        # Of different signs, the difference might not fit.
                        m.d.sync += flag.eq(Mux(a[-1] == b[-1], added[-1], a[-1]))
                    with m.Case(Operation.IS_EQUAL):
                        m.d.sync += flag.eq(a == b)
                    with m.Case(Operation.IS_COMMON):
                        m.d.sync += flag.eq((a & b).any())
                    with m.Case(Operation.MULTIPLY):
                        m.d.comb += write.eq(0)
                        # The product is 0: that with no digits ended the last multiplication.
                        m.d.sync += [multiplicand.eq(a), digits.eq(b), total.eq(0)]
                        m.next = "MULTIPLY"
                    with m.Case(Operation.DIVIDE):
                        m.d.comb += write.eq(0)
                        m.d.sync += [quotient.eq(a), total.eq(0), steps.eq(0)]
                        m.next = "DIVIDE"
            with m.State("MULTIPLY"):
                m.d.comb += [left.eq(total), right.eq(product)]
                m.d.sync += [
                    product.eq(multiplicand * digits[:_DIGIT_BITS]),
                    total.eq(added),
                    multiplicand.eq(multiplicand << _DIGIT_BITS),
                    digits.eq(digits >> _DIGIT_BITS),
                ]
                with m.If(digits == 0):
                    m.d.comb += [write.eq(1), self.value_write.enable.eq(1)]
                    m.next = "READ"
            with m.State("DIVIDE"):
                m.d.comb += [
                    left.eq(Cat(quotient[-1], total[:DIVIDEND_BITS])),
                    subtracts.eq(1),
                    result.eq(Cat(added >= 0, quotient[:-1])),
                ]
                m.d.sync += [
                    total.eq(Mux(added < 0, left, added)),
                    quotient.eq(result),
                    steps.eq(steps + 1),
                ]
                with m.If(steps == DIVIDEND_BITS - 1):
                    m.d.comb += [write.eq(1), self.value_write.enable.eq(1)]
                    m.next = "READ"
        return m

    def _operands(self, m: Any, addresses: list[Any], read: Any) -> list[Any]:
        """What is at ``addresses`` in the cycle after ``read``, and until the next."""
        words: Any = memory.Memory(shape=unsigned(64), depth=_PAIRS, init=[])
        values: Any = memory.Memory(
            shape=signed(VALUE_BITS),
            depth=1 << ADDRESS_BITS,
            init=[self._program.constants.get(address, 0) for address in range(1 << ADDRESS_BITS)],
        )
        m.submodules += [words, values]

        nonzero = Signal(DESCRIPTOR_WORDS)
        pair, write = self.word_write, words.write_port()
        m.d.comb += [write.addr.eq(pair.index), write.data.eq(pair.data), write.en.eq(pair.enable)]
        with m.If(pair.enable):
            halves = Cat(pair.data[:32].any(), pair.data[32:].any())
            m.d.sync += nonzero.word_select(pair.index, 2).eq(halves)
        write = values.write_port()
        m.d.comb += [
            write.addr.eq(self.value_write.address),
            write.data.eq(self.value_write.data),
            write.en.eq(self.value_write.enable),
        ]

        strides = stride_word(TENSORS[0], 0)
        operands = []
        for number, address in enumerate(addresses):
            word, value = words.read_port(), values.read_port()
            m.d.comb += [
                word.addr.eq(address[1:]),
                word.en.eq(read),
                value.addr.eq(address),
                value.en.eq(read),
            ]
            operand = Signal(signed(VALUE_BITS), name=f"operand_{number}")
            half = word.data.word_select(address[0], 32)
            with m.If(address >= VALUES):
                m.d.comb += operand.eq(value.data)
            with m.Elif(address == NONZERO):
                m.d.comb += operand.eq(nonzero)
            with m.Elif(address >= strides):
                m.d.comb += operand.eq(half.as_signed())
            with m.Elif((address >= address_word(TENSORS[0])) & (address < _END_OF_ADDRESSES)):
                m.d.comb += operand.eq(word.data)
            with m.Else():
                m.d.comb += operand.eq(half)
            operands.append(operand)
        return operands


_END_OF_ADDRESSES = address_word(TENSORS[-1]) + 2


def _length(m: Any, value: Any) -> Signal:
    """The position of the highest bit set, from 1; 0 if there is none."""
    length = Signal(range(len(value) + 1))
    for position in range(len(value)):
        with m.If(value[position]):
            m.d.comb += length.eq(position + 1)
    return length
