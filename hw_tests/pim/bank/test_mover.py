"""Loader, storer and buffers of a bank: every word, with a memory that answers in any order."""

from __future__ import annotations

from typing import Any

import pytest

from hw.pim.bank.buffer.buffers import OperandBuffers
from hw.pim.bank.move.storer import Storer
from hw.pim.config import configure
from hw_tests.bench import run_bench
from hw_tests.pim.bank.mover_system import MoverSystem

# Two groups of lanes, and so two buffers for the first operand.
LANES = 11
CHUNKS = [3, 4, 5, 3, 8, 6, 4, 7, 5]
OPTIONS = {"total": 2 * 6 * LANES}


def test_mover() -> None:
    run_bench(
        MoverSystem(configure("tiny", **OPTIONS), lanes=LANES),
        top="mover",
        module="hw_tests.pim.bank.mover_bench",
        parameters={"lanes": LANES, "options": OPTIONS, "chunks": CHUNKS, "stores": 40},
    )


@pytest.mark.parametrize("part", [OperandBuffers, Storer])
@pytest.mark.parametrize("lanes", [0, 17, 2.0])
def test_refused_lanes(part: Any, lanes: Any) -> None:
    with pytest.raises(ValueError, match=f"lanes must be an integer from 1 to 16, got {lanes}"):
        part(configure("tiny"), lanes=lanes)
