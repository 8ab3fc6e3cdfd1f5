"""A channel on LiteDRAM."""

from __future__ import annotations

import pytest

from hw.axdimm.config import configure
from hw_tests.axdimm.litedram import LiteDramChannel
from hw_tests.bench import run_bench

pytest.importorskip("litedram", reason="LiteDRAM is not installed")

CONFIG = configure("tiny", memory="axi4")


def test_litedram() -> None:
    """Copies, switches of the mode and Adam steps, bit for bit."""
    run_bench(
        LiteDramChannel(CONFIG),
        top="litedram_channel",
        module="hw_tests.axdimm.litedram_bench",
        testcase="steps_are_exact",
        parameters={
            "capacity_bytes": CONFIG.capacity_bytes,
            "read_latency": CONFIG.read_latency_fabric_cycles,
            "gaps": "none",
        },
    )
