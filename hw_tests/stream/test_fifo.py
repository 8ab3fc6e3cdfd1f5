"""Runs the bench of the FIFO."""

from __future__ import annotations

import pytest

from hw.stream.fifo import StreamFifo
from hw.verilog.writer import to_verilog
from hw_tests.bench import run_bench
from hw_tests.collisions import with_useless_collisions


@pytest.mark.parametrize("early", [False, True])
def test_fifo(early: bool) -> None:
    depth = 3
    text = to_verilog(StreamFifo(shape=12, depth=depth, early=early), "stream_fifo")
    run_bench(
        text if early else with_useless_collisions(text),
        top="stream_fifo",
        module="hw_tests.stream.fifo_bench",
        parameters={"depth": depth},
    )


@pytest.mark.parametrize("depth", [1, 0, -3, 2.0])
def test_refuses_depth(depth: int) -> None:
    with pytest.raises(ValueError, match=f"got {depth!r}"):
        StreamFifo(shape=8, depth=depth)
