"""Runs the bench of the block loader and the block writer."""

from __future__ import annotations

import pytest

from hw_tests.bench import run_bench
from hw_tests.stream.block_mover import BlockMover


@pytest.mark.parametrize(
    ("tensors", "block_beats", "buffer_blocks", "uneven"),
    [
        pytest.param(3, 4, 1, False, id="tiny"),
        pytest.param(2, 128, 2, False, id="8 KB", marks=pytest.mark.soak),
        pytest.param(5, 4, 1, True, id="uneven, tiny", marks=pytest.mark.soak),
        pytest.param(5, 128, 2, True, id="uneven, 8 KB"),
    ],
)
def test_block_mover(tensors: int, block_beats: int, buffer_blocks: int, uneven: bool) -> None:
    run_bench(
        BlockMover(
            tensors=tensors,
            block_beats=block_beats,
            buffer_blocks=buffer_blocks,
            addr_width=18,
            uneven=uneven,
        ),
        top="block_mover",
        module="hw_tests.stream.block_mover_bench",
        parameters={
            "tensors": tensors,
            "block_beats": block_beats,
            "buffer_blocks": buffer_blocks,
            "uneven": uneven,
        },
    )
