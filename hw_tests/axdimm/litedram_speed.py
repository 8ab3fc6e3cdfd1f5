"""``python -m hw_tests.axdimm.litedram_speed``: an update on our controller and on LiteDRAM.

Both channels are in one simulation and do the same update at the same time: the paper's lanes and
blocks, a delay in place of each functional unit. DDR4-1600 and DDR3-1600 have the same peak, and
what refresh leaves of it is the same.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

from hw.axdimm.config import ModuleConfig, configure
from hw.sim.channel import SimulatedChannel
from hw_tests.axdimm.litedram import LITEDRAM_BYTES, LiteDramChannel
from hw_tests.bench import run_bench
from hw_tests.side_by_side import SideBySide

__all__ = ["main", "measure"]


def measure(ours: ModuleConfig, count: int) -> dict[str, dict[str, int]]:
    """The kernel's and the arbiter's counts of an update of ``count`` parameters, by channel.

    ``ours`` is the configuration of both, and has at most :data:`LITEDRAM_BYTES` a channel.
    """
    sides = {
        "ours": SimulatedChannel(ours, arithmetic=False),
        "litedram": LiteDramChannel(replace(ours, memory="axi4"), arithmetic=False),
    }
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        run_bench(
            SideBySide(sides),
            top="beside_litedram",
            module="hw_tests.axdimm.litedram_bench",
            testcase="speed",
            optimization="-O1",
            test_seconds=None,
            parameters={
                "capacity_bytes": ours.capacity_bytes,
                "read_latency": ours.read_latency_fabric_cycles,
                "gaps": "none",
                "sides": list(sides),
                "count": count,
                "report": str(report),
            },
        )
        return json.loads(report.read_text())


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=128 * 4096, help="parameters of a channel")
    count = parser.parse_args().count
    limit = configure().refresh_efficiency
    print(f"{count} parameters, Adam; refresh leaves {limit:.2%} of the peak")
    config = configure(capacity_bytes=LITEDRAM_BYTES)
    for side, figures in measure(config, count).items():
        beats = figures["beats_read"] + figures["beats_written"]
        waits = ", ".join(
            f"{name.removesuffix('_tck')} {value / 4 / figures['cycles']:.1%}"
            for name, value in figures.items()
            if name.endswith("_tck") and value
        )
        print(
            f"{side:9} {figures['cycles']} fabric cycles, {beats / figures['cycles']:.2%} ({waits})"
        )


if __name__ == "__main__":
    main()
