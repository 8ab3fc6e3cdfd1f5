"""What the calculator does, instruction by instruction, and random programs for it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hw.pim.microcode import (
    DIVIDEND_BITS,
    NONZERO,
    VALUE_BITS,
    VALUES,
    Label,
    Microcode,
    Operation,
    Place,
    When,
)

__all__ = ["CalculatorModel", "random_program"]

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


def random_program(seed: int, length: int) -> Microcode:
    """A program of about ``length`` instructions in which every operation is met, many times."""
    rng, p = random.Random(seed), Microcode()
    results = [p.value(f"result {number}") for number in range(10)]
    words = [Place(address) for address in (*range(4), *range(4, 12, 2), *range(12, 48), NONZERO)]
    counts = [Place(address) for address in (*range(4), *range(12, 32), NONZERO)]
    numbers = [0, 1, -1, 7, (1 << 63) - 1, -(1 << 63), 1 << 48, 65535, 65536, -(1 << 31)]
    dividend, small, divisor = p.value("dividend"), p.value("small"), p.value("divisor")
    ends: list[tuple[int, Label]] = []
    for place in (*results, dividend, small, divisor):
        p.move(place, rng.choice(words))
    while len(p.instructions) < length:
        for at, label in [each for each in ends if each[0] <= len(p.instructions)]:
            p.put(label)
            ends.remove((at, label))
        when = rng.choice(list(When))
        to, a = rng.choice(results), rng.choice([*words, *results, *numbers])
        match rng.choice(list(Operation)[1:]):
            case Operation.JUMP:
                label = p.label()
                ends.append((len(p.instructions) + rng.randint(2, 6), label))
                p.jump(label, when)
            case Operation.MULTIPLY:
                p.multiply(
                    to, a, rng.choice([*counts, *(each for each in numbers if each >= 0)]), when
                )
            case Operation.DIVIDE:
                p.do(Operation.SHIFT, dividend, rng.choice(counts[:-1]), 16)
                p.do(Operation.SHIFT, divisor, rng.choice(counts[:-1]), rng.randrange(32))
                p.add(divisor, divisor, 1)
                p.do(
                    Operation.DIVIDE, to, dividend, rng.choice([divisor, 1, 65535, 65536, 3]), when
                )
            case Operation.SHIFT:
                p.do(Operation.SHIFT, small, rng.choice(counts[:4]), 1)
                p.do(Operation.LENGTH, small, small)
                p.do(Operation.SHIFT, to, a, rng.choice([small, 0, 31, 16]), when)
            case Operation.IS_LESS | Operation.IS_EQUAL | Operation.IS_COMMON as test:
                a, b = (rng.choice([a, rng.choice(numbers), rng.choice(words)]) for _ in range(2))
                p.do(test, None, a, b, when)
            case operation:
                p.do(operation, to, a, rng.choice([*words, *results, *numbers]), when)
    for _, label in ends:
        p.put(label)
    # And a loop.
    again = p.label()
    p.move(small, 5)
    p.put(again)
    p.add(results[0], results[0], small)
    p.subtract(small, small, 1)
    p.is_less(0, small)
    p.jump(again, When.FLAG)
    p.stop()
    return p
