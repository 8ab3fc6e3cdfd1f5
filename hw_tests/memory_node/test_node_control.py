"""A memory-node without links and DRAM: groups, rings, registers, counters."""

from __future__ import annotations

import pytest

from hw.dram.presets import TINY
from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.node_control import NodeControl
from hw_tests.bench import run_bench

CONFIGS = {
    "ring": MemoryNodeConfig(links=4, channels=4, part=TINY, interleave_bytes=1024, requests=8),
    "alone": MemoryNodeConfig(links=2, groups=1, channels=1, part=TINY, requests=8),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_node_control(name: str) -> None:
    config = CONFIGS[name]
    run_bench(
        NodeControl(config),
        top="node_control",
        module="hw_tests.memory_node.node_control_bench",
        parameters={
            "links": config.links,
            "groups": config.groups,
            "channels": config.channels,
            "interleave_bytes": 64 * config.stripe_lines,
            "channel_bytes": config.channel_bytes,
        },
    )
