"""Crossbar: order, turns, what follows, pace, latency, backpressure."""

from __future__ import annotations

from hw.pim.memory.crossbar import Crossbar
from hw_tests.bench import run_bench
from hw_tests.side_by_side import SideBySide

SIZES = {"widening": (3, 5), "narrowing": (5, 3), "merging": (2, 1), "spreading": (1, 2)}


def test_crossbars() -> None:
    run_bench(
        SideBySide(
            {
                name: Crossbar(shape=16, inputs=inputs, outputs=outputs, name=name)
                for name, (inputs, outputs) in SIZES.items()
            }
        ),
        top="crossbars",
        module="hw_tests.pim.memory.crossbar_bench",
        parameters={"sizes": SIZES},
    )
