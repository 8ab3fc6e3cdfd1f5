"""Runs the bench of the block loader and the block writer; their refusals."""

from __future__ import annotations

import pytest

from hw.stream.block_loader import BlockLoader
from hw.stream.block_writer import BlockWriter
from hw.stream.rounds import RoundsLayout, RoundWalker
from hw_tests.bench import run_bench
from hw_tests.stream.block_mover import BlockMover


@pytest.mark.parametrize(
    ("tensors", "block_beats", "buffer_blocks"), [(3, 4, 1), (2, 128, 2)], ids=["tiny", "8 KB"]
)
def test_block_mover(tensors: int, block_beats: int, buffer_blocks: int) -> None:
    run_bench(
        BlockMover(
            tensors=tensors, block_beats=block_beats, buffer_blocks=buffer_blocks, addr_width=18
        ),
        top="block_mover",
        module="hw_tests.stream.block_mover_bench",
        parameters={
            "tensors": tensors,
            "block_beats": block_beats,
            "buffer_blocks": buffer_blocks,
        },
    )


@pytest.mark.parametrize("block_beats", [0, 1, 3, 48, 4.0])
def test_refuses_block(block_beats: int) -> None:
    with pytest.raises(ValueError, match=f"block_beats .* got {block_beats!r}"):
        RoundsLayout(block_beats=block_beats, beats_width=20)


def test_refuses_beats_width() -> None:
    with pytest.raises(ValueError, match=r"beats_width must be more than 4,.* got 4"):
        RoundsLayout(block_beats=16, beats_width=4)


@pytest.mark.parametrize("part", [BlockLoader, BlockWriter])
@pytest.mark.parametrize("buffer_blocks", [0, -1, 1.0])
def test_refuses_buffers(part: type, buffer_blocks: int) -> None:
    layout = RoundsLayout(block_beats=16, beats_width=10)
    with pytest.raises(ValueError, match=f"buffer_blocks .* got {buffer_blocks!r}"):
        part(layout=layout, tensors=3, buffer_blocks=buffer_blocks, addr_width=16)


def test_refuses_tensors() -> None:
    layout = RoundsLayout(block_beats=16, beats_width=10)
    with pytest.raises(ValueError, match="tensors must be an integer from 1, got 0"):
        RoundWalker(layout=layout, tensors=0)
