"""Placement of the PIM's tensors in the stack: apart from each other, over all banks."""

from __future__ import annotations

import os
from math import prod

import numpy as np
import pytest

from golden.pim import StackMap
from hw.pim.config import configure
from sw_driver.device.errors import OutOfMemoryError
from sw_driver.pim.placing import PlacedTensor, StackMemory
from sw_driver.pim.ring import ring_place

SEED = int(os.environ.get("NEARMEM_TEST_SEED", "1"))
CONFIG = configure("tiny", rows=2, columns=4)
STACK = StackMap(banks=CONFIG.banks, bank_bytes=CONFIG.bank_bytes)


def places(tensor: PlacedTensor) -> np.ndarray:
    """The address of every element."""
    indices = np.indices(tensor.shape).reshape(len(tensor.shape), -1)
    return tensor.address_bytes + 4 * (np.array(tensor.strides) @ indices)


def test_tensors_are_apart_and_in_the_memory() -> None:
    rng = np.random.default_rng(SEED)
    placed = refused = 0
    for _ in range(100):
        memory = StackMemory(CONFIG)
        taken: list[np.ndarray] = []
        for number in range(6):
            shape = tuple(map(int, rng.integers(1, 20, rng.integers(1, 5))))
            try:
                tensor = memory.place(f"t{number}", shape)
            except OutOfMemoryError:
                refused += 1
                continue
            placed += 1
            addresses = places(tensor)
            assert len(np.unique(addresses)) == prod(shape) == tensor.elements
            assert addresses.min() == tensor.address_bytes
            assert STACK.holds(range(tensor.address_bytes, int(addresses.max()) + 4))
            assert tensor.address_bytes in STACK.striped
            assert tensor.address_bytes % 512 == 0
            taken.append(addresses)
        everything = np.concatenate(taken)
        assert len(np.unique(everything)) == len(everything)
    assert placed > 300
    assert refused > 5


@pytest.mark.parametrize("slice_bytes", [512, 1024, 4096, 4100])
def test_slices_begin_in_all_banks(slice_bytes: int) -> None:
    config = configure("tiny", rows=2, columns=4, bank_bytes=1 << 20)
    stack = StackMap(banks=8, bank_bytes=1 << 20)
    tensor = StackMemory(config).place("x", (16, slice_bytes // 4))
    banks = [stack.decode(tensor.at(number))[0] for number in range(16)]
    assert all(banks.count(bank) == 2 for bank in range(8))


def test_small_slices_stay_together() -> None:
    assert StackMemory(CONFIG).place("x", (32, 63)).strides == (63, 1)


def test_blocks_are_the_dense_pieces() -> None:
    stretched = PlacedTensor(address_bytes=64, shape=(2, 3, 4), strides=(100, 4, 1))
    assert list(stretched.blocks()) == [((0,), 64), ((1,), 464)]
    dense = PlacedTensor(address_bytes=64, shape=(2, 3, 4), strides=(12, 4, 1))
    assert list(dense.blocks()) == [((), 64)]
    single = PlacedTensor(address_bytes=0, shape=(3,), strides=(8,))
    assert list(single.blocks()) == [((0,), 0), ((1,), 32), ((2,), 64)]


def test_parts_are_those_of_an_array() -> None:
    tensor = StackMemory(CONFIG).place("x", (6, 5, 4, 150))
    number = np.arange(6 * 5 * 4 * 150).reshape(tensor.shape)
    address = places(tensor)
    for part, expected in (
        (tensor[2:5], number[2:5]),
        (tensor[1:, 2:3, ::2, 7::3], number[1:, 2:3, ::2, 7::3]),
        (tensor[:, :, ::-1, 1::2][:, :, 1:, ::-1], number[:, :, ::-1, 1::2][:, :, 1:, ::-1]),
        (tensor[1:3].view(1, 0, 2, 3), number[1:3].transpose(1, 0, 2, 3)),
        (tensor[4:, 3:].view(2), number[4, 3, :, 0]),
        (tensor[:, 2:3].lines, number[:, 2].reshape(6, -1)),
    ):
        assert part.shape == expected.shape
        assert (places(part) == address[expected.ravel()]).all()


def test_flat_is_what_is_dense_and_fits_a_descriptor() -> None:
    memory = StackMemory(configure(bank_bytes=1 << 27))
    assert memory.place("x", (32, 9, 7)).flat.shape == (1, 32 * 63)
    assert memory.place("x", (32, 400)).flat.shape == (32, 400)
    assert memory.place("x", (1 << 20, 16)).flat.shape == (1 << 20, 16)


def test_refuses_what_does_not_fit() -> None:
    memory = StackMemory(CONFIG)
    whole = ring_place(CONFIG).start - CONFIG.striped_start_bytes
    memory.place("x", (whole // 4 - 128,))
    memory.place("y", (8,))
    least = 2 * CONFIG.bank_bytes
    message = f"bank_bytes of at least {least} would do"
    with pytest.raises(OutOfMemoryError, match=message):
        memory.place("z", (1,))


@pytest.mark.parametrize("cores", [0, 1])
def test_tensors_for_cores_are_apart_in_their_caches(cores: int) -> None:
    config = configure("tiny", rows=2, columns=4, bank_bytes=1 << 17, cores=cores, rings=2)
    memory = StackMemory(config)
    begins = [memory.place(name, (1024,)).address_bytes % 4096 for name in "pgmv"]
    assert begins == [0, 512 * cores, 1024 * cores, 1536 * cores]
