"""Benches end, also those of a broken design."""

from __future__ import annotations

import pytest

from hw.stream.fifo import StreamFifo
from hw_tests.bench import run_bench


def test_a_bench_whose_design_hangs_is_ended() -> None:
    with pytest.raises(AssertionError, match=r"died, or hung: a test may take 1 s(.|\n)*hangs"):
        run_bench(
            StreamFifo(shape=8, depth=4), top="fifo", module="hw_tests.hang_bench", test_seconds=1
        )
