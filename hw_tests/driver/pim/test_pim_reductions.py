"""Long sums and dot products in pieces: bit for bit the whole, for every length and piece."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from hw.pim.config import PIM_PRESETS
from sw_driver.pim.backends.golden import GoldenPim
from sw_driver.pim.descriptor import Opcode, Tensor, Work
from sw_driver.pim.device import Pim
from sw_driver.pim.errors import DescriptorError
from sw_driver.pim.reductions import LEAST_PIECE, piece_for, pieces_of, split_reduction

SEED = int(os.environ.get("NEARMEM_TEST_SEED", "1"))
FIRST, SECOND, WHOLE, SPLIT, PARTIAL = 0, 24_576, 49_152, 57_344, 65_536


def execute(device: Pim, works: list[Work]) -> None:
    for work in works:
        device.wait(device.pim_fix(None, work, work.result, 28))


@pytest.mark.parametrize("opcode", [Opcode.SUM, Opcode.DOT])
@pytest.mark.parametrize("rows", [1, 3, 9])
def test_pieces_are_the_whole_bit_for_bit(opcode: Opcode, rows: int) -> None:
    rng = np.random.default_rng([SEED, rows])
    with Pim(GoldenPim(PIM_PRESETS["tiny"])) as device:
        differing = 0
        for length in (1, 2, 31, 32, 33, 64, 95, 96, 127, 130, 255, 300):
            for address in (FIRST, SECOND):
                device.write_memory(address, rng.standard_normal(rows * length, np.float32))
            strides = (length, 1) if length % 2 else (1, rows)
            second = Tensor(address_bytes=SECOND, strides=(0, 1))
            work = Work(
                opcode=opcode,
                a=Tensor(address_bytes=FIRST, strides=strides),
                b=second if opcode == Opcode.DOT else Tensor(),
                result=Tensor(address_bytes=WHOLE, strides=(3,)),
                rows=rows,
                length=length,
            )
            execute(device, [work])
            whole = device.read_memory(WHOLE, 12 * rows).view(np.uint32)[::3].copy()
            for piece in (1, 2, 8, 32, 128, 512):
                device.write_memory(WHOLE, np.full(3 * rows, 7, np.float32))
                execute(device, split_reduction(work, piece, PARTIAL))
                split = device.read_memory(WHOLE, 12 * rows).view(np.uint32)[::3]
                assert (split == whole).all(), (length, piece)
            values = device.read_memory(FIRST, 4 * rows * length).view(np.float32)
            lines = values.reshape(rows, length).T if length % 2 else values.reshape(length, rows)
            running = np.add.accumulate(lines)[-1]
            differing += int((running.view(np.uint32) != whole).any())
        if opcode == Opcode.SUM:
            # Another order shows: the comparison is not of sums that are exact anyway.
            assert differing > 3


@pytest.mark.parametrize(
    ("sizes", "pieces"),
    [
        ({"rows": 96, "length": 3025, "wanted_rows": 222}, 3),
        ({"rows": 1, "length": 1 << 20, "wanted_rows": 1776}, 2048),
        ({"rows": 1, "length": 33, "wanted_rows": 1776}, 2),
        ({"rows": 1, "length": 32, "wanted_rows": 1776}, 1),
        ({"rows": 222, "length": 3025, "wanted_rows": 222}, 1),
        ({"rows": 221, "length": 3025, "wanted_rows": 222}, 2),
    ],
)
def test_how_many_pieces(sizes: dict[str, int], pieces: int) -> None:
    piece = piece_for(**sizes)
    assert piece >= LEAST_PIECE
    assert piece & (piece - 1) == 0
    assert pieces_of(sizes["length"], piece) == pieces


@pytest.mark.parametrize(
    ("changes", "piece", "said"),
    [
        ({"opcode": Opcode.MATVEC}, 32, "opcode 0x20 is not a SUM or DOT"),
        ({}, 48, "a piece of 48 elements is no part of the tree"),
        ({}, 0, "a piece of 0 elements"),
    ],
)
def test_refuses_other_works_and_pieces(changes: dict[str, Any], piece: int, said: str) -> None:
    settings: dict[str, Any] = {"opcode": Opcode.SUM, "rows": 1, "length": 100}
    work = Work(a=Tensor(strides=(0, 1)), result=Tensor(strides=(1,)), **settings | changes)
    with pytest.raises(DescriptorError, match=said):
        split_reduction(work, piece, PARTIAL)
