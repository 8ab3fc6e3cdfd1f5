"""Long sums in pieces: bit for bit the whole, for every length and piece, and faster where it is
said."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from hw.pim.config import PIM_PRESETS
from sw_driver.pim.backends.cycles import CyclesPim
from sw_driver.pim.backends.golden import GoldenPim
from sw_driver.pim.descriptor import Opcode, Work
from sw_driver.pim.device import Pim
from sw_driver.pim.placing import PlacedTensor, StackMemory, work_on
from sw_driver.pim.reductions import in_pieces, split

SEED = int(os.environ.get("NEARMEM_TEST_SEED", "1"))
TINY, PAPER = PIM_PRESETS["tiny"], replace(PIM_PRESETS["paper"], bank_bytes=1 << 20)
SUMS = (Opcode.SUM, Opcode.DOT, Opcode.MATVEC)


def scratch() -> Callable[[int], int]:
    """Places of its own in the striped memory of ``tiny``."""
    memory = StackMemory(TINY)
    return lambda elements: memory.place("pieces", (elements,)).address_bytes


def execute(device: Pim, works: list[Work]) -> int:
    begin = device.transport.cycles()
    ids: list[int] = []
    for work in works:
        if len(ids) >= device.config.works:
            device.wait(ids[-device.config.works])
        ids.append(device.pim_fix(None, work, work.result, device.config.units))
    for work_id in ids:
        device.wait(work_id)
    return device.transport.cycles() - begin


class Sums:
    """Sums of some shape, with operands and result in the local memory of ``tiny``."""

    def __init__(self, opcode: Opcode, shape: tuple[int, ...], rng: random.Random) -> None:
        self._rng = rng
        self._next = 0
        self.operands = {"a": self._tensor(*shape)}
        if opcode == Opcode.DOT:
            self.operands["b"] = self._tensor(*shape)
        if opcode == Opcode.MATVEC:
            self.operands["b"] = self._tensor(*shape[1:])
        self.result = self._tensor(*shape[:-1])
        self.work = work_on(opcode, **self.operands, result=self.result)

    def _tensor(self, *shape: int) -> PlacedTensor:
        """Dense, with its indices in any order."""
        strides, size = [0] * len(shape), 1
        for index in self._rng.sample(range(len(shape)), len(shape)):
            strides[index] = size
            size *= shape[index]
        address, self._next = self._next, self._next + 4 * prod(shape)
        return PlacedTensor(address_bytes=address, shape=shape, strides=tuple(strides))


@pytest.mark.parametrize("opcode", SUMS)
def test_pieces_are_the_whole_bit_for_bit(opcode: Opcode) -> None:
    rng = np.random.default_rng([SEED, opcode])
    draws = random.Random(f"{SEED} {opcode}")
    differing = 0
    with Pim(GoldenPim(TINY)) as device:
        for length in (1, 2, 7, 8, 9, 31, 64, 95, 96, 127, 130, 255, 300):
            outer = draws.choice(((1, 1, 1), (1, 3, 1), (2, 1, 4), (1, 1, 9), (5, 2, 1)))
            shape = (draws.choice((1, 2, 5)), 1) if opcode == Opcode.MATVEC else outer
            sums = Sums(opcode, (*shape, length), draws)
            for tensor in sums.operands.values():
                device.write_tensor(tensor, rng.standard_normal(tensor.shape, np.float32))
            execute(device, [sums.work])
            expected = device.read_tensor(sums.result).view(np.uint32)
            ways = [
                in_pieces(sums.work, piece, TINY, scratch(), opcode=way)
                for piece in (1, 2, 8, 32, 128, 512)
                for way in {opcode, Opcode.DOT if opcode == Opcode.MATVEC else opcode}
            ]
            for works in [*ways, split(sums.work, PAPER, scratch())]:
                device.write_tensor(sums.result, np.full(sums.result.shape, 7, np.float32))
                execute(device, works)
                got = device.read_tensor(sums.result).view(np.uint32)
                assert (got == expected).all(), (length, works)
            values = device.read_tensor(sums.operands["a"])
            if opcode != Opcode.SUM:
                values = values * device.read_tensor(sums.operands["b"])
            running = np.add.accumulate(values, axis=-1)[..., -1]
            differing += int((running.view(np.uint32) != expected).any())
    # Another order shows: the comparison is not of sums that are exact anyway.
    assert differing > 5


def test_what_is_not_split() -> None:
    def never(elements: int) -> int:
        raise AssertionError(elements)

    three = Sums(Opcode.SUM, (2, 3, 4, 5000), random.Random(1)).work
    assert split(three, PAPER, never) == [three]
    short = Sums(Opcode.SUM, (1, 1, 3, 8), random.Random(1)).work
    assert split(short, PAPER, never) == [short]
    many = Sums(Opcode.DOT, (1, 1, 4000, 32), random.Random(1)).work
    assert split(many, PAPER, never) == [many]
    product = Work(opcode=Opcode.MATMUL, rows=1, columns=1, length=100_000)
    assert split(product, PAPER, never) == [product]


@pytest.mark.parametrize(
    ("opcode", "sums", "length", "times"),
    [
        *((Opcode.SUM, 1, 65536, 100), (Opcode.SUM, 12, 12100, 10), (Opcode.DOT, 1, 65536, 100)),
        *((Opcode.MATVEC, 2, 16384, 30), (Opcode.SUM, 1, 10_000, 30)),
    ],
)
def test_long_sums_are_faster_in_pieces(opcode: Opcode, sums: int, length: int, times: int) -> None:
    memory = StackMemory(PAPER)
    shapes = {"a": (sums, length), "result": (sums,)}
    if opcode != Opcode.SUM:
        shapes["b"] = (1, length) if opcode == Opcode.MATVEC else (sums, length)
    tensors = {name: memory.place(name, shape) for name, shape in shapes.items()}
    if opcode == Opcode.MATVEC:
        tensors |= {name: tensors[name].in_columns for name in ("a", "result")}
    whole = work_on(opcode, **tensors)
    with Pim(CyclesPim(PAPER, computes=False)) as device:
        works = split(whole, PAPER, lambda size: memory.place("pieces", (size,)).address_bytes)
        assert times * execute(device, works) < execute(device, [whole])
