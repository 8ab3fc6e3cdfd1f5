"""The walker: each element once, in order, in the longest segments, at every stride and padding."""

from __future__ import annotations

from hw.pim.bank.move.walker import Walker
from hw.pim.config import PIM_PRESETS
from hw_tests.bench import run_bench
from hw_tests.side_by_side import SideBySide

CONTEXT_BITS = 5
RUNS = [("tiny", "none", 160), ("tiny", "random", 50), ("tiny", "heavy", 12), ("paper", "none", 80)]


def test_walker() -> None:
    names = sorted({name for name, _, _ in RUNS})
    run_bench(
        SideBySide({name: Walker(PIM_PRESETS[name], context_bits=CONTEXT_BITS) for name in names}),
        top="walkers",
        module="hw_tests.pim.bank.walker_bench",
        parameters={"context_bits": CONTEXT_BITS, "runs": RUNS},
    )
