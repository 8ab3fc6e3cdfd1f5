"""``python -m hw_tests.memory_node.link.losses``: what losses leave of a link, RTL and formula."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hw.memory_node.link.config import LINK_PRESETS
from hw.memory_node.link.port import LinkPort
from hw_tests.bench import run_bench
from hw_tests.side_by_side import SideBySide
from sw_driver.predict.memory_node import LinkCycles

FLITS = 1_000_000


def main() -> None:
    """Measures and prints the table of docs/methods.md."""
    config = LINK_PRESETS["full"]
    print("| wire, cycles | one in | RTL | formula |")
    for delay in (10, 53):
        model = LinkCycles(config, wire_cycles=delay)
        for one_in in (1000, 100):
            with tempfile.TemporaryDirectory() as folder:
                result = Path(folder) / "shares"
                run_bench(
                    SideBySide({name: LinkPort(config) for name in "ab"}),
                    top="link_pair",
                    module="hw_tests.memory_node.link.loss_bench",
                    parameters={
                        "preset": "full",
                        "options": {},
                        "delay": delay,
                        "flits": 0,
                        "one_in": one_in,
                        "result": str(result),
                    },
                )
                least, most = map(float, result.read_text().split())
            cycles = model.fabric_cycles(packets=FLITS, lines=0, channels=4, lost=FLITS // one_in)
            share = FLITS * config.phits / cycles
            print(f"| {delay} | {one_in} | {least:.1%} to {most:.1%} | {share:.1%} |", flush=True)


if __name__ == "__main__":
    main()
