"""Configuration of the memory-node: presets and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from hw.memory_node.config import MEMORY_NODE_PRESETS, MemoryNodeConfig
from hw.memory_node.node import MemoryNode
from hw.verilog.writer import to_verilog


def test_the_papers_node() -> None:
    """Six links in two groups, ten channels of DDR4-3200 with 256 GB/s (Table II)."""
    paper = MEMORY_NODE_PRESETS["paper"]
    assert (paper.links, paper.groups, paper.channels) == (6, 2, 10)
    assert (paper.group_links, paper.group_channels) == (3, 5)
    fabric_ns = 4 * paper.part.timing.tck_ps / 1000
    assert 64 * paper.channels / fabric_ns == 256.0
    assert MEMORY_NODE_PRESETS["paper_ddr4_2400"].part.timing.tck_ps == 833


@pytest.mark.soak
def test_slower_memory_becomes_verilog() -> None:
    """As the other presets do, in ``test_generate.py`` and the benches."""
    node = MemoryNode(MEMORY_NODE_PRESETS["paper_ddr4_2400"])
    assert "module memory_node (" in to_verilog(node, "memory_node")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": 5}, "groups must be an integer from 1 to 4, got 5"),
        ({"links": 0}, "links must be an integer from 1 to 16, got 0"),
        ({"links": 5}, "links must be a multiple of the 2 groups, got 5"),
        ({"channels": 33}, "channels must be an integer from 1 to 32, got 33"),
        ({"channels": 7}, "channels must be a multiple of the 2 groups, got 7"),
        ({"interleave_bytes": 8192}, "interleave_bytes must be a power of two from 64 to 4096"),
        ({"requests": 12}, "requests must be a power of two from 2 to 64, got 12"),
        ({"write_queue_lines": 2}, "write_queue_lines must be an integer from 4 to 1024, got 2"),
        ({"write_buffer_lines": 32}, "write_buffer_lines must be a power of two from 64 to 4096"),
        ({"read_buffer_lines": True}, "read_buffer_lines must be a power of two .* got True"),
    ],
)
def test_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MemoryNodeConfig(**options)
