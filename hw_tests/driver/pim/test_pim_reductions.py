"""Long sums in pieces: bit for bit the whole, for every length and piece."""

from __future__ import annotations

import os

import numpy as np
import pytest

from hw.pim.config import PIM_PRESETS
from sw_driver.pim.backends.golden import GoldenPim
from sw_driver.pim.descriptor import Opcode, Work
from sw_driver.pim.device import Pim
from sw_driver.pim.placing import PlacedTensor, work_on
from sw_driver.pim.reductions import LEAST_PIECE, piece_for, pieces_of, split_sum

SEED = int(os.environ.get("NEARMEM_TEST_SEED", "1"))
VALUES, WHOLE, SPLIT, PARTIAL = 0, 49_152, 57_344, 65_536


def execute(device: Pim, works: list[Work]) -> None:
    for work in works:
        device.wait(device.pim_fix(None, work, work.result, 28))


@pytest.mark.parametrize("rows", [1, 3, 9])
def test_pieces_are_the_whole_bit_for_bit(rows: int) -> None:
    rng = np.random.default_rng([SEED, rows])
    whole, split = (
        PlacedTensor(address_bytes=address, shape=(rows,), strides=(3,))
        for address in (WHOLE, SPLIT)
    )
    with Pim(GoldenPim(PIM_PRESETS["tiny"])) as device:
        differing = 0
        for length in (1, 2, 31, 32, 33, 64, 95, 96, 127, 130, 255, 300):
            strides = (length, 1) if length % 2 else (1, rows)
            values = PlacedTensor(address_bytes=VALUES, shape=(rows, length), strides=strides)
            device.write_tensor(values, rng.standard_normal((rows, length), np.float32))
            execute(device, [work_on(Opcode.SUM, a=values, result=whole)])
            expected = device.read_tensor(whole).view(np.uint32)
            for piece in (1, 2, 8, 32, 128, 512):
                device.write_tensor(split, np.full(rows, 7, np.float32))
                execute(device, split_sum(values, split, piece, PARTIAL))
                assert (device.read_tensor(split).view(np.uint32) == expected).all(), length
            running = np.add.accumulate(device.read_tensor(values), axis=1)[:, -1]
            differing += int((running.view(np.uint32) != expected).any())
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
