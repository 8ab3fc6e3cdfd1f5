"""Microcode that checks a descriptor and finds the spans of its tensors."""

from __future__ import annotations

from hw.pim.config import PimConfig
from hw.pim.front.microcode import NONZERO, Label, Microcode, Operation, Place, When
from hw.pim.work.descriptor import (
    DESCRIPTOR_WORDS,
    ELEMENTWISE_OPCODES,
    FORMS,
    TENSORS,
    Cause,
    Opcode,
    address_word,
    field_word,
    size_limit,
    stride_word,
)

__all__ = ["Checker", "field", "stride"]

_NONZERO = Place(NONZERO)


def field(name: str) -> Place:
    """A field or size of the descriptor."""
    return Place(field_word(name))


def stride(tensor: str, index: int) -> Place:
    """The stride of a tensor for one of its indices."""
    return Place(stride_word(tensor, index))


class Checker:
    """Writes the checks into a program, cause by cause in their order (docs/pim-spec.md).

    A cause ends the program with the value ``cause`` set to it.
    """

    def __init__(self, program: Microcode, config: PimConfig) -> None:
        self._program = program
        self._config = config
        self._refusals: dict[Cause, Label] = {}

    def _refuse(self, cause: Cause, when: When = When.ALWAYS) -> None:
        label = self._refusals.get(cause) or self._refusals.setdefault(cause, self._program.label())
        self._program.jump(label, when)

    def refusals(self) -> None:
        """Writes what is done for the causes; where nothing runs into it."""
        p = self._program
        for cause, label in self._refusals.items():
            p.put(label)
            p.move(p.value("cause"), cause)
            p.stop()

    def opcodes(self) -> dict[Opcode, Label]:
        """Goes to the label of the descriptor's opcode."""
        p = self._program
        labels = {opcode: p.label() for opcode in reversed(Opcode)}
        for opcode, label in labels.items():
            p.is_equal(field("opcode"), opcode)
            p.jump(label, When.FLAG)
        self._refuse(Cause.OPCODE)
        return labels

    def work(self, opcode: Opcode) -> None:
        """All but what the work runs on.

        Leaves for each tensor the values ``TENSOR.origin`` (the address of its first element in
        elements), ``spans.NUMBER.low`` and ``.high``, and ``SIZE.last``, a size less one.
        """
        p = self._program
        form = FORMS[opcode]
        p.is_common(_NONZERO, sum(1 << word for word in {*range(DESCRIPTOR_WORDS)} - form.words))
        self._refuse(Cause.RESERVED, When.FLAG)
        # From here on the flag is not set until a check has failed.
        for size in form.sizes:
            p.is_less(field(size), 1, When.NO_FLAG)
        for size in (*form.sizes, *form.pads):
            p.is_less(size_limit(size), field(size), When.NO_FLAG)
        self._refuse(Cause.SIZE, When.FLAG)
        for tensor in form.tensors:
            p.is_common(Place(address_word(tensor)), 3, When.NO_FLAG)
        self._refuse(Cause.MISALIGNED, When.FLAG)
        for size in dict.fromkeys(size for sizes in form.tensors.values() for size in sizes):
            p.subtract(p.value(f"{size}.last"), field(size), 1)
        for tensor, sizes in form.tensors.items():
            self._span(tensor, sizes)
        config = self._config
        for tensor in form.tensors:
            low, high = self._ends(tensor)
            p.is_less(config.local_bytes // 4 - 1, high)
            p.is_less(low, config.striped_start_bytes // 4, When.FLAG)
            p.is_less(low, 0, When.NO_FLAG)
            p.is_less(config.stack_bytes // 4 - 1, high, When.NO_FLAG)
            self._refuse(Cause.OUT_OF_RANGE, When.FLAG)
        self._places_are_distinct(form.tensors["result"])
        for tensor in form.tensors:
            if tensor != "result":
                self._is_apart(tensor, in_place=opcode in ELEMENTWISE_OPCODES)

    def _ends(self, tensor: str) -> tuple[Place, Place]:
        p, number = self._program, TENSORS.index(tensor)
        return p.value(f"spans.{number}.low"), p.value(f"spans.{number}.high")

    def _span(self, tensor: str, sizes: tuple[str, ...]) -> None:
        """Also the magnitudes of strides and reaches, of the result the last."""
        p = self._program
        low, high = self._ends(tensor)
        origin = p.value(f"{tensor}.origin")
        p.do(Operation.SHIFT, origin, Place(address_word(tensor)), 2)
        p.move(low, origin)
        p.move(high, origin)
        for index, size in enumerate(sizes):
            step, reach = stride(tensor, index), p.value(f"reach.{index}")
            p.multiply(reach, step, p.value(f"{size}.last"))
            p.is_less(reach, 0)
            p.add(low, low, reach, When.FLAG)
            p.add(high, high, reach, When.NO_FLAG)
            if tensor == "result":
                p.subtract(reach, 0, reach, When.FLAG)
                # Where the size is 1 this may be negative; then the reach is 0 and so no matter.
                p.move(p.value(f"magnitude.{index}"), step, When.NO_FLAG)
                p.subtract(p.value(f"magnitude.{index}"), 0, step, When.FLAG)

    def _places_are_distinct(self, sizes: tuple[str, ...]) -> None:
        """A stride is greater than the reaches of those that are not greater, together. Sorting
        them is not necessary; of two that are equal and used neither passes."""
        p = self._program
        below = p.value("below")
        for index, size in enumerate(sizes):
            magnitude = p.value(f"magnitude.{index}")
            p.move(below, 0)
            for other in range(len(sizes)):
                if other != index:
                    p.is_less(magnitude, p.value(f"magnitude.{other}"))
                    p.add(below, below, p.value(f"reach.{other}"), When.NO_FLAG)
            p.is_less(below, magnitude)
            p.is_equal(p.value(f"{size}.last"), 0, When.NO_FLAG)
            self._refuse(Cause.OVERLAP, When.NO_FLAG)

    def _is_apart(self, tensor: str, *, in_place: bool) -> None:
        p = self._program
        low, high = self._ends(tensor)
        result_low, result_high = self._ends("result")
        apart = p.label()
        p.is_less(result_high, low)
        p.is_less(high, result_low, When.NO_FLAG)
        if in_place:
            p.jump(apart, When.FLAG)
            p.is_equal(p.value(f"{tensor}.origin"), p.value("result.origin"))
            for index in range(2):
                p.is_equal(stride(tensor, index), stride("result", index), When.FLAG)
        self._refuse(Cause.OVERLAP, When.NO_FLAG)
        p.put(apart)

    def units(self) -> None:
        """What the work may run on; leaves the value ``workers``, the banks among which the pool
        can choose. Goes on with the flag set if the work names its banks."""
        p = self._program
        chooses, checked = p.label(), p.label()
        banks, units, workers = field("banks"), field("units"), p.value("workers")
        p.is_less((1 << self._config.banks) - 1, banks)
        self._refuse(Cause.BANKS, When.FLAG)
        p.is_equal(banks, 0)
        p.jump(chooses, When.FLAG)
        p.is_equal(units, 0)
        self._refuse(Cause.UNITS, When.NO_FLAG)
        p.do(Operation.COUNT, workers, banks)
        p.jump(checked)
        p.put(chooses)
        p.move(workers, self._config.banks)
        p.is_less(units, 1)
        p.is_less(self._config.units, units, When.NO_FLAG)
        self._refuse(Cause.UNITS, When.FLAG)
        p.put(checked)
