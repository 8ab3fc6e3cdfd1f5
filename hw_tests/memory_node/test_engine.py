"""The memory-node's group engine: packets in, AXI4 memory, packets out."""

from __future__ import annotations

from dataclasses import replace

from hw.dram.presets import TINY
from hw.memory_node.config import MEMORY_NODE_PRESETS, MemoryNodeConfig
from hw.memory_node.group.engine import GroupEngine
from hw_tests.bench import run_bench
from hw_tests.side_by_side import SideBySide

_PART = TINY.with_capacity(1 << 19)

CONFIGS = {
    # A number of channels that is no power of two, stripes within a packet, and read buffers that
    # hold less than may be asked for.
    "odd": MemoryNodeConfig(
        links=4, channels=6, part=_PART, interleave_bytes=512, requests=8, read_buffer_lines=64
    ),
    "tiny": replace(MEMORY_NODE_PRESETS["tiny"], part=_PART),
    # Many links to few channels, a line each.
    "lines": MemoryNodeConfig(
        links=3,
        groups=1,
        channels=2,
        part=_PART,
        interleave_bytes=64,
        requests=16,
        write_buffer_lines=128,
        read_buffer_lines=64,
    ),
}


def test_engine() -> None:
    run_bench(
        SideBySide({name: GroupEngine(config) for name, config in CONFIGS.items()}),
        top="engines",
        module="hw_tests.memory_node.engine_bench",
        parameters={
            "groups": {
                name: {
                    "links": config.group_links,
                    "channels": config.group_channels,
                    "interleave_bytes": 64 * config.stripe_lines,
                    "channel_bytes": config.channel_bytes,
                }
                for name, config in CONFIGS.items()
            }
        },
    )
