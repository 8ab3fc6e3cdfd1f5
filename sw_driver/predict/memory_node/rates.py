"""Bandwidths of the RTL's memory-node, by the cycle model."""

from __future__ import annotations

from bisect import bisect_right
from functools import cache

from hw.logic.line import LINE_BYTES
from hw.memory_node.config import MEMORY_NODE_PRESETS, MemoryNodeConfig
from hw.memory_node.flit import PACKET_LINES

from ..dram.channel import ChannelState
from ..dram.refresh import RefreshState
from . import answered_fabric_cycles
from .link import Request

__all__ = ["PAPER_NODE", "link_gb_per_s", "memory_gb_per_s"]

PAPER_NODE = MEMORY_NODE_PRESETS["paper"]
"""Memory-node of the MC-DLA paper."""

_WARM_PACKETS = 32


@cache
def link_gb_per_s(config: MemoryNodeConfig) -> float:
    """Return the read bandwidth of one link, in GB/s (10^9 bytes a second).

    It reads packets of 4 KB, one after the other.
    """
    packets = 2 * _WARM_PACKETS
    reads = [Request(False, PACKET_LINES * number, PACKET_LINES) for number in range(packets)]
    others: list[list[Request]] = [[] for _ in range(config.group_links - 1)]
    first, *_ = answered_fabric_cycles(config, [reads, *others])
    return _gb_per_s(config, packets - _WARM_PACKETS, first[-1] - first[_WARM_PACKETS - 1])


@cache
def memory_gb_per_s(config: MemoryNodeConfig) -> float:
    """Return the bandwidth of a node's memory, in GB/s (10^9 bytes a second).

    All links read and write packets of 4 KB in turn, each in its part of the addresses. The time is
    that from one batch of postponed refreshes to the next. The call takes a few seconds.
    """
    links = config.group_links
    share = config.group_bytes // LINE_BYTES // PACKET_LINES // links
    period = config.controller.refresh_postpone * config.part.timing.t_refi // 4
    packets = 2 * _WARM_PACKETS + period * config.group_channels // PACKET_LINES // links
    requests = [
        [
            Request(
                bool(number % 2),
                PACKET_LINES * (link * share + number // 2 + number % 2 * (share // 2)),
                PACKET_LINES,
            )
            for number in range(packets)
        ]
        for link in range(links)
    ]
    fresh = ChannelState(refresh=RefreshState(owed=0, elapsed_fabric_cycles=0))
    answered = answered_fabric_cycles(config, requests, fresh)
    begin = max(cycles[_WARM_PACKETS] for cycles in answered)
    counts = (
        bisect_right(cycles, begin + period) - bisect_right(cycles, begin) for cycles in answered
    )
    return config.groups * _gb_per_s(config, sum(counts), period)


def _gb_per_s(config: MemoryNodeConfig, packets: int, fabric_cycles: int) -> float:
    ns = fabric_cycles * 4 * config.part.timing.tck_ps / 1000
    return packets * PACKET_LINES * LINE_BYTES / ns
