"""Compressed blocks go over noisy links to a memory-node and come back whole, all in RTL."""

from __future__ import annotations

from dataclasses import replace

from hw.dram.presets import TINY
from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.link.config import LINK_PRESETS
from hw.sim.memory_node import SimulatedMemoryNode
from hw_tests.bench import run_bench
from hw_tests.memory_node.compressing_device import CompressingDevice
from hw_tests.side_by_side import SideBySide

_CONFIG = MemoryNodeConfig(
    links=1,
    groups=1,
    channels=1,
    part=TINY.with_capacity(1 << 20),
    requests=4,
    write_buffer_lines=64,
    read_buffer_lines=64,
    link=replace(
        LINK_PRESETS["tiny"], phit_bytes=36, buffer_flits=16, replay_flits=16, dead_retries=64
    ),
)


def test_compressed_node() -> None:
    run_bench(
        SideBySide(
            {"device": CompressingDevice(_CONFIG.link), "node": SimulatedMemoryNode(_CONFIG)}
        ),
        top="compressed_node",
        module="hw_tests.memory_node.compressed_node_bench",
        parameters={"phit_bytes": _CONFIG.link.phit_bytes, "group_bytes": _CONFIG.group_bytes},
    )
