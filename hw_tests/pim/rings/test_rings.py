"""Rings of descriptors: which are fetched when, what is written of them, pauses everywhere."""

from __future__ import annotations

import pytest

from hw.pim.config import configure
from hw.pim.rings.rings import Rings
from hw_tests.bench import run_bench


@pytest.mark.parametrize("rings", [1, 2, 4])
def test_rings(rings: int) -> None:
    run_bench(
        Rings(configure("tiny", rings=rings)),
        top="rings",
        module="hw_tests.pim.rings.rings_bench",
        parameters={"rings": rings},
    )
