"""Random descriptors, good ones, and such that are at the limits and next to them."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations, product
from math import prod
from typing import Any

from golden.pim import Descriptor, Opcode, StackMap, StridedTensor
from golden.pim.descriptor import ELEMENTWISE, FORMS
from hw.pim.config import PimConfig, configure
from hw_tests.pim.plans import any_plan, planned

__all__ = ["Works", "front_configurations", "words_of"]

_OPCODES_NEARBY = (0, 5, 0x0F, 0x12, 0x1F, 0x22, 0x2F, 0x31, 0x101, 0x130, 1 << 16, 1 << 31)
_EXTREMES = (0, 1, 65535, 65536, (1 << 24) - 1, 1 << 24, 1 << 31, (1 << 32) - 1)


def words_of(work: Descriptor) -> list[int]:
    """The 48 words."""
    return list(struct.unpack("<48I", work.encode()))


def _reach(strides: tuple[int, ...], extents: tuple[int, ...]) -> tuple[int, int]:
    reaches = [stride * (extent - 1) for stride, extent in zip(strides, extents, strict=False)]
    return sum(min(0, reach) for reach in reaches), sum(max(0, reach) for reach in reaches)


def front_configurations() -> dict[str, PimConfig]:
    """What the front is tested for: the paper's machine, and about the least and the most of what
    it depends on."""
    return {
        "paper": configure("paper"),
        "tiny": configure("tiny"),
        "large": configure(
            "pairs",
            bank_bytes=1 << 30,
            buffer_bytes=1 << 20,
            state_words=4096,
            total=1024,
            corner=1,
            edge=1,
            inside=1,
        ),
    }


class Works:
    """Makes descriptors for a stack."""

    def __init__(self, config: PimConfig, seed: int) -> None:
        self._random = random.Random(seed)
        self._config = config
        self._bank_count = config.banks
        self._unit_count = config.units
        stack = StackMap(banks=config.banks, bank_bytes=config.bank_bytes)
        self._memories = [
            range(memory.start // 4, memory.stop // 4) for memory in (stack.local, stack.striped)
        ]

    @property
    def _any_opcode(self) -> Opcode:
        """Convolutions, which have most to them, come oftener."""
        return self._random.choice([*Opcode, *[Opcode.CONV2D] * 2])

    def small(self) -> Descriptor:
        """A good work that can be gone through index by index."""
        while True:
            work = self._work(self._any_opcode, self._small_size)
            products = work.length or work.channels * work.filter_height * work.filter_width or 1
            if prod(work.extents("result")) * products <= 1500:
                return work

    def words(self) -> list[int]:
        """The words of a work, small or large, in which up to three things are at a limit or
        beyond."""
        size = self._small_size if self._random.random() < 0.5 else self._any_size
        work = self._work(self._any_opcode, size)
        changes = [
            self._opcode, self._size, self._alignment, self._edge, self._edge, self._stride,
            self._overlap, self._overlap, self._overlap, self._result_stride, self._result_stride,
            self._banks, self._units, self._units, self._plan, self._plan,
        ]  # fmt: skip
        for _ in range(self._random.choice((0, 1, 1, 1, 2, 3))):
            work = self._random.choice(changes)(work)
        return words_of(work)

    def limits(self) -> Iterator[list[int]]:
        """Works of each opcode at and beyond each limit."""
        for opcode in Opcode:
            work = self._work(opcode, self._small_size)
            yield from self._word_by_word(work)
            yield from map(words_of, self._sizes(work))
            yield from map(words_of, self._places(work))
            if opcode in ELEMENTWISE:
                yield from map(words_of, self._in_place(work))
            else:
                yield from map(words_of, self._short_steps(opcode))
            if len(work.extents("result")) > 1:
                yield from map(words_of, self._close(opcode))
        yield from map(words_of, self._long_rows())

    def _word_by_word(self, work: Descriptor) -> Iterator[list[int]]:
        """Any word is changed, those that must be zero among them."""
        for word, value in enumerate(good := words_of(work)):
            changed = list(good)
            changed[word] = value ^ 1 << self._random.randrange(32)
            yield changed

    def _sizes(self, work: Descriptor) -> Iterator[Descriptor]:
        form = FORMS[Opcode(work.opcode)]
        for size in (*form.sizes, *form.pads):
            limit = (1 << 24 if size in ("rows", "columns", "length") else 1 << 16) - 1
            for value in (0, 1, limit, limit + 1):
                changes: dict[str, Any] = {size: value}
                yield replace(work, **changes)

    def _places(self, work: Descriptor) -> Iterator[Descriptor]:
        """Addresses that are not those of elements, and tensors at both ends of each memory."""
        for name in work.form.tensors:
            tensor = getattr(work, name)
            low, high = _reach(tensor.strides, work.extents(name))
            at = tensor.address_bytes
            for address in (at + 1, at + 2):
                yield self._moved(work, name, address_bytes=address)
            for memory in self._memories:
                first, last = memory.start - low, memory.stop - 1 - high
                for word in (first, first - 1, last, last + 1):
                    yield self._moved(work, name, address_bytes=4 * word)

    def _in_place(self, work: Descriptor) -> Iterator[Descriptor]:
        """In place but for one stride or the address."""
        for name in work.operands:
            same = replace(work, **{name: work.result})
            for index in range(2):
                strides = list(work.result.strides)
                strides[index] += 1
                yield self._moved(same, name, strides=tuple(strides))
            yield self._moved(same, name, address_bytes=work.result.address_bytes + 4)

    def _short_steps(self, opcode: Opcode) -> Iterator[Descriptor]:
        """Operands whose elements or vectors are neighbours or nearly, and few or just not."""
        work = self._work(opcode, lambda name: 1 if name == "stride" else 2)
        taps = "filter_width" if opcode == Opcode.CONV2D else "length"
        for name in work.operands:
            for count in (3, 4):
                for _ in range(100 if opcode == Opcode.CONV2D else 16):
                    changes: dict[str, Any] = {taps: count}
                    # Either operand is the first.
                    sizes = {"rows": 1, "columns": 2, "filters": 6, "dilation": 2}
                    changes |= {
                        size: self._random.randint(1, most)
                        for size, most in sizes.items()
                        if size in work.form.sizes
                    }
                    changed = replace(work, **changes)
                    extents = changed.extents(name)
                    strides = tuple(self._random.randint(-2, 2) for _ in extents)
                    yield replace(changed, **{name: self._place(strides, extents)})

    def _long_rows(self) -> Iterator[Descriptor]:
        """Convolutions with as many filters as make them the first operand, or just not, and with
        rows of the result that 16 bits cannot count."""
        for rows, columns, filters in (
            *((1, 1, 2), (1, 1, 3), (2, 3, 12), (2, 3, 13)),
            *((1, 65535, 1), (2, 65536, 1), (2, 65537, 2), (1, (1 << 24) - 1, 1)),
        ):
            work = self._work(Opcode.CONV2D, lambda _: 1)
            work = replace(work, rows=rows, columns=columns, filters=filters)
            extents = work.extents("result")
            strides = tuple(prod(extents[place + 1 :]) for place in range(len(extents)))
            if prod(extents) < len(self._memories[0]):
                work = replace(work, result=self._place(strides, extents))
                yield self._with_operand(self._with_operand(work, "a"), "b")

    def _close(self, opcode: Opcode) -> Iterator[Descriptor]:
        """Works whose results are just distinct, or, at one of the indices, just not, in every
        order of the indices."""
        rng = self._random
        work = self._work(opcode, lambda _: rng.randint(3, 4))
        extents = work.extents("result")
        signs = list(product((1, -1), repeat=len(extents)))
        for order in permutations(range(len(extents))):
            for meets in order:
                for sign in signs if len(signs) <= 4 else rng.sample(signs, 2):
                    strides, below = [0] * len(extents), 0
                    for index in order:
                        step = below + (index != meets or index == order[0])
                        strides[index] = step * sign[index]
                        below += step * (extents[index] - 1)
                    result = self._place(tuple(strides), extents)
                    changed = replace(work, result=result)
                    for name in work.operands:
                        changed = self._with_operand(changed, name)
                    yield changed

    # Good works.

    def _small_size(self, name: str) -> int:
        most = 3 if name in ("images", "channels", "stride", "dilation") else 7
        return self._random.randint(1, most)

    def _any_size(self, name: str) -> int:
        large = name in ("rows", "columns", "length")
        exponent = self._random.uniform(0, (24 if large else 16) * self._random.random())
        return min((1 << (24 if large else 16)) - 1, int(2**exponent))

    def _work(self, opcode: Opcode, size: Callable[[str], int]) -> Descriptor:
        rng, form = self._random, FORMS[opcode]
        for _ in range(50):
            sizes = {name: size(name) for name in form.sizes}
            sizes |= {name: rng.choice((0, rng.randint(0, 4))) for name in form.pads}
            if rng.random() < 0.02 and form.pads:
                sizes |= {name: rng.choice((65535, 65534, 0)) for name in form.pads}
            if prod(sizes[name] for name in form.tensors["result"]) <= len(self._memories[1]) // 2:
                break
        else:
            sizes = dict.fromkeys(form.sizes, 1) | dict.fromkeys(form.pads, 0)
        by_banks = rng.random() < 0.4
        work = Descriptor(
            opcode=opcode,
            alpha_bits=rng.getrandbits(32) if form.alpha else 0,
            banks=rng.randrange(1, 1 << self._bank_count) if by_banks else 0,
            units=0
            if by_banks
            else rng.choice((1, 2, 3, self._unit_count, rng.randint(1, self._unit_count))),
            **sizes,
        )
        result = self._place(self._distinct(work.extents("result")), work.extents("result"))
        work = replace(work, result=result)
        for name in work.operands:
            work = self._with_operand(work, name)
        if rng.random() < 0.3:
            return planned(work, self._config)
        return any_plan(work, self._config, rng)

    def _with_operand(self, work: Descriptor, name: str) -> Descriptor:
        rng = self._random
        if work.opcode in ELEMENTWISE and rng.random() < 0.4:
            return replace(work, **{name: work.result})
        extents, result = work.extents(name), work.span("result")
        for _ in range(20):
            kind = rng.random()
            if kind < 0.4:
                strides = self._distinct(extents)
            elif kind < 0.6:
                strides = tuple(rng.randint(-2, 2) for _ in extents)
            elif kind < 0.8:
                strides = tuple(rng.choice((0, 1, -1, 2, rng.randint(-9, 9))) for _ in extents)
            else:
                strides = (0,) * len(extents)
            tensor = self._place(strides, extents)
            moved: dict[str, Any] = {name: tensor}
            span = replace(work, **moved).span(name)
            if span.stop <= result.start or result.stop <= span.start:
                break
        return replace(work, **{name: tensor})

    def _distinct(self, extents: tuple[int, ...]) -> tuple[int, ...]:
        """Strides with which no two indices share a place, dense or with gaps."""
        rng = self._random
        order = rng.sample(range(len(extents)), len(extents))
        if rng.random() < 0.5:
            order = list(reversed(range(len(extents))))
        strides, below = [0] * len(extents), 0
        for index in order:
            gap = rng.choice((0, 0, 0, rng.randint(0, 5)))
            strides[index] = min(below + 1 + gap, (1 << 31) - 1) * rng.choice((1, 1, -1))
            below += abs(strides[index]) * (extents[index] - 1)
        return tuple(strides)

    def _place(self, strides: tuple[int, ...], extents: tuple[int, ...]) -> StridedTensor:
        low, high = _reach(strides, extents)
        memory = self._random.choice(self._memories)
        first, last = memory.start - low, memory.stop - 1 - high
        at = self._random.choice((first, last, self._random.randint(first, max(first, last))))
        return StridedTensor(address_bytes=4 * at % (1 << 64), strides=strides)

    # Changes.

    def _opcode(self, work: Descriptor) -> Descriptor:
        return replace(work, opcode=self._random.choice((*_OPCODES_NEARBY, *Opcode)))

    def _form(self, work: Descriptor) -> Any:
        return FORMS.get(Opcode(work.opcode)) if work.opcode in FORMS else FORMS[Opcode.CONV2D]

    def _size(self, work: Descriptor) -> Descriptor:
        form = self._form(work)
        name = self._random.choice((*form.sizes, *form.pads))
        value = self._random.choice((*_EXTREMES, getattr(work, name) + 1))
        changes: dict[str, Any] = {name: value % (1 << 32)}
        return replace(work, **changes)

    def _tensor(self, work: Descriptor) -> str:
        return self._random.choice(list(self._form(work).tensors))

    def _moved(self, work: Descriptor, name: str, **changes: Any) -> Descriptor:
        if "address_bytes" in changes:
            changes["address_bytes"] %= 1 << 64
        return replace(work, **{name: replace(getattr(work, name), **changes)})

    def _alignment(self, work: Descriptor) -> Descriptor:
        name = self._tensor(work)
        address = getattr(work, name).address_bytes + self._random.choice((1, 2, 3, 4))
        return self._moved(work, name, address_bytes=address)

    def _edge(self, work: Descriptor) -> Descriptor:
        """A tensor at an end of a memory, or one element beyond, or far out."""
        if work.opcode not in FORMS:
            return work
        name = self._tensor(work)
        low, high = _reach(getattr(work, name).strides, work.extents(name))
        memory = self._random.choice(self._memories)
        first, end = memory.start - low, memory.stop - 1 - high
        far = ((1 << 62) - self._random.randint(1, 9), 1 << 61, (1 << 62) - high, 1 << 30, 1 << 31)
        word = self._random.choice((first, first - 1, end, end + 1, first + 1, *far))
        return self._moved(work, name, address_bytes=4 * word)

    def _stride(self, work: Descriptor) -> Descriptor:
        """A stride of any magnitude, the most negative one among them."""
        name = self._tensor(work)
        strides = list(getattr(work, name).strides)
        index = self._random.randrange(len(self._form(work).tensors[name]))
        wide = self._random.randint(-(1 << 31), (1 << 31) - 1) >> self._random.randrange(32)
        strides[index] = self._random.choice((-(1 << 31), (1 << 31) - 1, wide, -strides[index] - 1))
        strides[index] = max(-(1 << 31), min((1 << 31) - 1, strides[index]))
        return self._moved(work, name, strides=tuple(strides))

    def _overlap(self, work: Descriptor) -> Descriptor:
        """The result just beside an operand, or one element into it, or in place or nearly."""
        if work.opcode not in FORMS:
            return work
        name = self._random.choice(list(work.operands))
        operand: StridedTensor = getattr(work, name)
        if self._random.random() < 0.3:
            work = replace(work, result=operand)
            return self._stride(work) if self._random.random() < 0.3 else work
        span, result = work.span(name), work.span("result")
        shift = self._random.choice((span.stop - result.start, span.start - result.stop))
        shift += 4 * self._random.choice((0, 0, 1, -1))
        return self._moved(
            work, "result", address_bytes=(work.result.address_bytes + shift) % (1 << 64)
        )

    def _result_stride(self, work: Descriptor) -> Descriptor:
        """Strides of the result one more or less, or of equal magnitude, or exchanged."""
        strides = list(work.result.strides)
        indices = range(len(self._form(work).tensors["result"]))
        one, other = (self._random.choice(indices) for _ in range(2))
        step = self._random.choice((1, -1))
        match self._random.randrange(4):
            case 0:
                strides[one] += step
            case 1:
                strides[one] = step * strides[other]
            case 2:
                strides[one], strides[other] = strides[other], strides[one]
            case _:
                strides[one] = -strides[one]
        strides = [max(-(1 << 31), min((1 << 31) - 1, stride)) for stride in strides]
        return self._moved(work, "result", strides=tuple(strides))

    def _banks(self, work: Descriptor) -> Descriptor:
        every = (1 << self._bank_count) - 1
        beyond = 1 << min(self._bank_count, 31)
        banks = self._random.choice(
            (every, beyond, every | beyond, 1 << 31, 1, 1 << self._bank_count - 1)
        )
        return replace(work, banks=banks, units=self._random.choice((0, 0, 0, 1)))

    def _units(self, work: Descriptor) -> Descriptor:
        units = (
            0,
            1,
            self._unit_count,
            self._unit_count + 1,
            1 << 31,
            self._random.randint(1, self._unit_count),
        )
        banks = self._random.choice((0, 0, 0, 0, work.banks))
        return replace(work, banks=banks, units=self._random.choice(units))

    def _plan(self, work: Descriptor) -> Descriptor:
        """A field of the plan one more or less, or far out."""
        fields = ("chunk", "depth", "seconds", "block", "channels", "flags")
        weights = (4, 3, 3, 3, 3, 1)
        (name,) = self._random.choices(fields, weights)
        bits = 16 if name in ("channels", "flags") else 8
        value = getattr(work.plan, name)
        far = self._random.getrandbits(bits) >> self._random.randrange(bits)
        value = self._random.choice((value + 1, value + 1, value - 1, far)) % (1 << bits)
        return replace(work, plan=work.plan._replace(**{name: value}))
