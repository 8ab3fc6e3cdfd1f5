"""Runs the bench of the FIFO."""

from __future__ import annotations

import pytest

from hw.stream.fifo import StreamFifo
from hw_tests.bench import run_bench


@pytest.mark.parametrize("depth", [3])
def test_fifo(depth: int) -> None:
    run_bench(
        StreamFifo(shape=12, depth=depth),
        top="stream_fifo",
        module="hw_tests.stream.fifo_bench",
        parameters={"depth": depth},
    )


@pytest.mark.parametrize("depth", [1, 0, -3, 2.0])
def test_refuses_depth(depth: int) -> None:
    with pytest.raises(ValueError, match=f"got {depth!r}"):
        StreamFifo(shape=8, depth=depth)
