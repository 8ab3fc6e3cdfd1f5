"""Microcode of a sequential calculator, and its assembler.

An instruction is ``operation to, a, b``, done always or only if the flag is set or is not set. An
address below :data:`VALUES` is one of a descriptor's words, from there on one of the calculator's
own values: what the program computes, and its constants, which are there from the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from amaranth.lib import data, enum

__all__ = [
    "ADDRESS_BITS",
    "DIVIDEND_BITS",
    "NONZERO",
    "VALUES",
    "VALUE_BITS",
    "Instruction",
    "Label",
    "Microcode",
    "Operation",
    "Place",
    "When",
    "instruction_layout",
]

VALUE_BITS = 64
"""Values are signed. So an address of 2 ** 63 or more is negative, which is as far out of range."""

ADDRESS_BITS = 8

NONZERO = 48
"""Address of the map of the descriptor's words that are not zero: bit i for word i."""

VALUES = 64
"""Address of the first value; below are the words: the lower word of an address stands for all its
64 bits, strides are signed, the others are not."""

DIVIDEND_BITS = 16


class Operation(enum.Enum, shape=4):
    """What an instruction does."""

    STOP = 0
    JUMP = 1
    ADD = 2
    SUBTRACT = 3
    MULTIPLY = 4
    """``b`` may not be negative. Modulo 2 ** 64."""
    DIVIDE = 5
    """Rounds down; ``a`` has 16 bits and ``b`` is positive."""
    SHIFT = 6
    """``a`` to the right by ``b``, 0 to 31."""
    LENGTH = 7
    """The position of the highest bit set in the lowest 32 of ``a``, from 1; 0 if there is none."""
    COUNT = 8
    """How many of the lowest 32 bits of ``a`` are set."""
    IS_LESS = 9
    """Sets the flag to ``a < b``."""
    IS_EQUAL = 10
    """Sets the flag to ``a == b``."""
    IS_COMMON = 11
    """Sets the flag to whether ``a`` and ``b`` have a bit set in common."""


class When(enum.Enum, shape=2):
    """For which flag an instruction is done."""

    ALWAYS = 0
    FLAG = 1
    NO_FLAG = 2


@dataclass(frozen=True)
class Place:
    """Where a value is."""

    address: int


@dataclass(frozen=True)
class Label:
    """A place of the program."""

    number: int


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """An instruction; ``target`` is that of a jump."""

    operation: Operation
    when: When = When.ALWAYS
    to: int = 0
    a: int = 0
    b: int = 0
    target: Label | None = None


def instruction_layout(counter_bits: int) -> data.StructLayout:
    """An instruction of a program of up to ``2 ** counter_bits``."""
    return data.StructLayout(
        {
            "operation": Operation,
            "when": When,
            "to": ADDRESS_BITS,
            "a": ADDRESS_BITS,
            "b": ADDRESS_BITS,
            "target": counter_bits,
        }
    )


class Microcode:
    """A program that is being written, instruction by instruction.

    Operands are places or numbers; a number becomes a constant. Raises ``ValueError`` when there is
    no room for another value.
    """

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self._labels: list[int | None] = []
        self._values: dict[str, Place] = {}
        self._constants: dict[int, Place] = {}

    def value(self, name: str) -> Place:
        """The place of the value ``name``; the same for the same name. At first it is undefined."""
        return self._values.get(name) or self._values.setdefault(name, self._next())

    def constant(self, number: int) -> Place:
        """Where ``number`` is."""
        return self._constants.get(number) or self._constants.setdefault(number, self._next())

    def _next(self) -> Place:
        address = VALUES + len(self._values) + len(self._constants)
        if address >> ADDRESS_BITS:
            raise ValueError(
                f"a program must have {(1 << ADDRESS_BITS) - VALUES} values and constants or "
                f"fewer; use some again"
            )
        return Place(address)

    @property
    def values(self) -> dict[str, int]:
        """The addresses of the values that there are, by name."""
        return {name: place.address for name, place in self._values.items()}

    @property
    def constants(self) -> dict[int, int]:
        """What is at which address at the start."""
        return {place.address: number for number, place in self._constants.items()}

    def label(self) -> Label:
        """A label, to be put (:meth:`put`) anywhere."""
        self._labels.append(None)
        return Label(len(self._labels) - 1)

    def put(self, label: Label) -> None:
        """``label`` is where the next instruction will be."""
        self._labels[label.number] = len(self.instructions)

    def counter_of(self, label: Label) -> int:
        """Number of the instruction at ``label``; ``ValueError`` if it has not been put."""
        counter = self._labels[label.number]
        if counter is None:
            raise ValueError(f"{label} must have been put somewhere; call put()")
        return counter

    def assembled(self) -> Iterator[dict[str, object]]:
        """The instructions as fields of :func:`instruction_layout`."""
        for each in self.instructions:
            target = 0 if each.target is None else self.counter_of(each.target)
            yield {**vars(each), "target": target}

    def do(
        self,
        operation: Operation,
        to: Place | None,
        a: Place | int,
        b: Place | int = 0,
        when: When = When.ALWAYS,
    ) -> None:
        """``to = a operation b``; without ``to`` the operation is one that sets the flag."""
        a, b = (self.constant(each) if isinstance(each, int) else each for each in (a, b))
        self.instructions.append(
            Instruction(
                operation=operation,
                when=when,
                to=to.address if to else 0,
                a=a.address,
                b=b.address,
            )
        )

    def move(self, to: Place, a: Place | int, when: When = When.ALWAYS) -> None:
        """``to = a``"""
        self.do(Operation.ADD, to, a, 0, when)

    def add(self, to: Place, a: Place | int, b: Place | int, when: When = When.ALWAYS) -> None:
        """``to = a + b``"""
        self.do(Operation.ADD, to, a, b, when)

    def subtract(self, to: Place, a: Place | int, b: Place | int, when: When = When.ALWAYS) -> None:
        """``to = a - b``"""
        self.do(Operation.SUBTRACT, to, a, b, when)

    def multiply(self, to: Place, a: Place | int, b: Place | int, when: When = When.ALWAYS) -> None:
        """``to = a * b``; it takes a cycle for every 16 bits of ``b``."""
        self.do(Operation.MULTIPLY, to, a, b, when)

    def minimum(self, to: Place, limit: Place | int) -> None:
        """``to = min(to, limit)``; changes the flag."""
        self.is_less(limit, to)
        self.move(to, limit, When.FLAG)

    def is_less(self, a: Place | int, b: Place | int, when: When = When.ALWAYS) -> None:
        """``flag = a < b``; so with ``FLAG`` and with ``NO_FLAG`` it is `and` and `or` to it."""
        self.do(Operation.IS_LESS, None, a, b, when)

    def is_equal(self, a: Place | int, b: Place | int, when: When = When.ALWAYS) -> None:
        """``flag = a == b``"""
        self.do(Operation.IS_EQUAL, None, a, b, when)

    def is_common(self, a: Place | int, b: Place | int, when: When = When.ALWAYS) -> None:
        """``flag = (a & b) != 0``"""
        self.do(Operation.IS_COMMON, None, a, b, when)

    def jump(self, target: Label, when: When = When.ALWAYS) -> None:
        """Goes on at ``target``."""
        self.instructions.append(Instruction(operation=Operation.JUMP, when=when, target=target))

    def stop(self) -> None:
        """The end of the program."""
        self.instructions.append(Instruction(operation=Operation.STOP))
