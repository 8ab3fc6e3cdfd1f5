"""Placement of the PIM's tensors in banks: within their banks, apart from each other, spread."""

from __future__ import annotations

import os
from math import prod

import numpy as np
import pytest

from sw_driver.errors import OutOfMemoryError
from sw_driver.pim.placing import BankAllocator, PlacedTensor, share_banks

SEED = int(os.environ.get("NEARMEM_TEST_SEED", "1"))
BANK_BYTES = 1 << 14


def places(tensor: PlacedTensor) -> np.ndarray:
    """The address of every element."""
    indices = np.indices(tensor.shape).reshape(len(tensor.shape), -1)
    return tensor.address_bytes + 4 * (np.array(tensor.strides) @ indices)


def test_tensors_are_apart_and_in_their_banks() -> None:
    rng = np.random.default_rng(SEED)
    placed = refused = 0
    for _ in range(100):
        allocator = BankAllocator(banks=6, bank_bytes=BANK_BYTES)
        taken: list[np.ndarray] = []
        for number in range(5):
            shape = tuple(map(int, rng.integers(1, 12, rng.integers(1, 5))))
            first = int(rng.integers(0, 6))
            banks = range(first, int(rng.integers(first + 1, 7)))
            least = int(rng.choice([4, 64, 1 << 20]))
            try:
                tensor = allocator.place(f"t{number}", shape, banks, least_bytes=least)
            except OutOfMemoryError:
                refused += 1
                continue
            placed += 1
            addresses = places(tensor)
            assert len(np.unique(addresses)) == prod(shape) == tensor.elements
            assert addresses.min() == tensor.address_bytes == tensor.span.start
            assert addresses.max() + 4 == tensor.span.stop
            assert banks.start * BANK_BYTES <= addresses.min()
            assert addresses.max() < banks.stop * BANK_BYTES
            assert tensor.address_bytes % 32 == 0
            taken.append(addresses)
        everything = np.concatenate(taken)
        assert len(np.unique(everything)) == len(everything)
    assert placed > 300
    assert refused > 5


def test_slices_are_spread_over_banks() -> None:
    bank_bytes = 1 << 20
    tensor = BankAllocator(banks=8, bank_bytes=bank_bytes).place(
        "x", (32, 8, 8), range(2, 6), least_bytes=256
    )
    banks = [tensor.at(slice_) // bank_bytes for slice_ in range(32)]
    assert sorted(set(banks)) == [2, 3, 4, 5]
    assert max(banks.count(bank) for bank in set(banks)) <= 10
    # Neighbours begin in different DRAM banks of a vault.
    assert tensor.strides[0] * 4 % 1024 == 512


def test_small_slices_stay_together() -> None:
    tensor = BankAllocator(banks=4, bank_bytes=BANK_BYTES).place(
        "x", (32, 63), range(4), least_bytes=256
    )
    assert (tensor.strides, tensor.address_bytes) == ((63, 1), 0)


def test_blocks_are_the_dense_pieces() -> None:
    stretched = PlacedTensor(address_bytes=64, shape=(2, 3, 4), strides=(100, 4, 1))
    assert list(stretched.blocks()) == [((0,), 64), ((1,), 464)]
    dense = PlacedTensor(address_bytes=64, shape=(2, 3, 4), strides=(12, 4, 1))
    assert list(dense.blocks()) == [((), 64)]
    single = PlacedTensor(address_bytes=0, shape=(3,), strides=(8,))
    assert list(single.blocks()) == [((0,), 0), ((1,), 32), ((2,), 64)]
    assert stretched.view(2, 0, start=[1, 2]).address_bytes == 64 + 4 * 108
    assert stretched.view(2, 0, start=[1, 2]).strides == (1, 100)


def test_refuses_what_does_not_fit() -> None:
    allocator = BankAllocator(banks=2, bank_bytes=BANK_BYTES)
    allocator.place("x", (BANK_BYTES // 4 - 8,), range(1), least_bytes=256)
    allocator.place("y", (8,), range(1), least_bytes=256)
    with pytest.raises(OutOfMemoryError, match=r"no room for z: its 4 bytes .* the 0 .* banks 0"):
        allocator.place("z", (1,), range(1), least_bytes=256)


@pytest.mark.parametrize(
    ("banks", "weights", "counts"),
    [
        (range(32), (3, 3, 2), (12, 12, 8)),
        (range(32), (6, 1, 1), (24, 4, 4)),
        (range(6), (3, 3, 2), (2, 2, 2)),
        (range(16, 32), (2, 1), (11, 5)),
        (range(3), (6, 1, 1), (1, 1, 1)),
        (range(5, 8), (9, 1, 1), (1, 1, 1)),
        (range(4), (9, 1, 1), (2, 1, 1)),
    ],
)
def test_shares(banks: range, weights: tuple[int, ...], counts: tuple[int, ...]) -> None:
    shares = share_banks(banks, {str(place): weight for place, weight in enumerate(weights)})
    assert tuple(map(len, shares.values())) == counts
    assert [bank for share in shares.values() for bank in share] == list(banks)


def test_fewer_banks_than_tensors() -> None:
    assert share_banks(range(4, 6), dict.fromkeys("xyz", 1)) == {
        "x": range(4, 5),
        "y": range(5, 6),
        "z": range(4, 5),
    }
