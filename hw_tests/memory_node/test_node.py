"""The memory-node with links and simulated DRAM: data, bandwidth, latency."""

from __future__ import annotations

from dataclasses import replace

from hw.dram.config import ControllerConfig
from hw.dram.timing import DramTiming
from hw.memory_node.config import MEMORY_NODE_PRESETS, MemoryNodeConfig
from hw_tests.bench import run_bench
from hw_tests.memory_node.node_system import NodeSystem

_SOONER = 8


def _refreshed_sooner(config: MemoryNodeConfig) -> MemoryNodeConfig:
    """The same share of time for refreshes, in shorter pieces: a short measurement sees many."""
    timing = config.part.timing
    sooner: DramTiming = replace(
        timing, t_rfc=timing.t_rfc // _SOONER, t_refi=timing.t_refi // _SOONER
    )
    return replace(
        config,
        part=replace(config.part, timing=sooner, allow_nonstandard=True),
        controller=ControllerConfig(refresh_postpone=4),
    )


def test_node() -> None:
    run_node(_refreshed_sooner(MEMORY_NODE_PRESETS["tiny"]), packets=160)


def run_node(config: MemoryNodeConfig, *, packets: int) -> None:
    """All of the bench; ``packets`` on each link where bandwidth is measured."""
    run_bench(
        NodeSystem(config),
        top="node_system",
        module="hw_tests.memory_node.node_bench",
        parameters={
            "links": config.links,
            "groups": config.groups,
            "channels": config.channels,
            "group_bytes": config.group_bytes,
            "t_rfc": config.part.timing.t_rfc,
            "t_refi": config.part.timing.t_refi,
            "packets": packets,
        },
    )
