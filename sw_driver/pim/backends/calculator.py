"""What the calculator of the pool's front does with a descriptor, and in how many cycles."""

from __future__ import annotations

from collections.abc import Sequence

from hw.pim.front.microcode import (
    DIVIDEND_BITS,
    NONZERO,
    VALUE_BITS,
    VALUES,
    Microcode,
    Operation,
    When,
)

__all__ = ["CalculatorModel"]

_MASK = (1 << 32) - 1


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (value >> (bits - 1) << bits)


class CalculatorModel:
    """Runs a program on the 48 words of descriptors."""

    def __init__(self, program: Microcode) -> None:
        self._program = program
        self._values = dict(program.constants)
        self._flag = False
        self.cycles = 0
        """From the start of the last run to its end."""

    def run(self, words: Sequence[int]) -> list[tuple[int, int]]:
        """Address and number of each value that the program computes, in order."""
        written: list[tuple[int, int]] = []
        counter, self.cycles = 0, 2
        while True:
            instruction = self._program.instructions[counter]
            counter += 1
            self.cycles += 2
            if instruction.when != When.ALWAYS and self._flag != (instruction.when == When.FLAG):
                continue
            a, b = (self._operand(words, each) for each in (instruction.a, instruction.b))
            match instruction.operation:
                case Operation.STOP:
                    return written
                case Operation.JUMP:
                    assert instruction.target
                    counter = self._program.counter_of(instruction.target)
                case Operation.IS_LESS:
                    self._flag = a < b
                case Operation.IS_EQUAL:
                    self._flag = a == b
                case Operation.IS_COMMON:
                    self._flag = a & b != 0
                case operation:
                    result = _signed(self._result(operation, a, b), VALUE_BITS)
                    self._values[instruction.to] = result
                    written.append((instruction.to, result))

    def _operand(self, words: Sequence[int], address: int) -> int:
        if address >= VALUES:
            return self._values.get(address, 0)
        if address == NONZERO:
            return sum(1 << number for number, word in enumerate(words) if word)
        if 4 <= address < 12:
            return _signed(words[address] | words[address + 1] << 32, 64)
        return _signed(words[address], 32) if address >= 32 else words[address]

    def _result(self, operation: Operation, a: int, b: int) -> int:
        match operation:
            case Operation.ADD:
                return a + b
            case Operation.SUBTRACT:
                return a - b
            case Operation.MULTIPLY:
                assert b >= 0
                self.cycles += 1 + -(-b.bit_length() // 16)
                return a * b
            case Operation.DIVIDE:
                assert 0 <= a < 1 << DIVIDEND_BITS
                assert b > 0
                self.cycles += DIVIDEND_BITS
                return a // b
            case Operation.SHIFT:
                assert 0 <= b < 32
                return a >> b
            case Operation.LENGTH:
                return (a & _MASK).bit_length()
            case Operation.COUNT:
                return (a & _MASK).bit_count()
        raise AssertionError(f"{operation} has no result")
