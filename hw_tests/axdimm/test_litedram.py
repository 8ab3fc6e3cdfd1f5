"""A channel on LiteDRAM."""

from __future__ import annotations

import pytest

from hw.axdimm.config import configure
from hw_tests.axdimm.litedram import LiteDramChannel
from hw_tests.axdimm.litedram_speed import measure
from hw_tests.bench import run_bench

pytest.importorskip("litedram", reason="LiteDRAM is not installed")

pytestmark = pytest.mark.soak

CONFIG = configure("tiny", memory="axi4")


def test_our_controller_beside_litedram() -> None:
    """Both accounts add up over the same beats; blocks of 1 KB are slow on either."""
    sides = measure(configure("tiny"), 8192)
    assert list(sides) == ["ours", "litedram"]
    for side, figures in sides.items():
        times = [value for name, value in figures.items() if name.endswith("_tck")]
        assert sum(times) == 4 * figures["cycles"]
        beats = figures["beats_read"] + figures["beats_written"]
        assert beats == 7 * 8192 // 16
        # Ours has one data bus; the other's port has one each way.
        assert (
            figures["data_tck"] == 4 * beats if side == "ours" else figures["data_tck"] < 4 * beats
        )


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
