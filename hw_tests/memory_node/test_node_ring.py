"""A ring of two devices and two memory-nodes: striping, messages, a link that dies."""

from __future__ import annotations

from hw.dram.presets import TINY
from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.link.config import LinkConfig
from hw_tests.bench import run_bench
from hw_tests.memory_node.node_ring import NodeRing

_CONFIG = MemoryNodeConfig(
    links=4,
    channels=2,
    part=TINY.with_capacity(1 << 18),
    requests=4,
    write_buffer_lines=64,
    read_buffer_lines=64,
    link=LinkConfig(
        phit_bytes=18,
        buffer_flits=16,
        replay_flits=16,
        retry_cycles=128,
        keepalive_cycles=32,
        dead_cycles=512,
        dead_retries=16,
    ),
)


def test_node_ring() -> None:
    run_bench(
        NodeRing(_CONFIG),
        top="node_ring",
        module="hw_tests.memory_node.node_ring_bench",
        parameters={"links": _CONFIG.links},
    )
