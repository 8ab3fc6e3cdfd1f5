"""What the RTL's memory-node reaches, by the cycle model."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import fields
from functools import cache

from hw.logic.line import LINE_BYTES
from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.flit import PACKET_LINES
from sw_driver.predict.axdimm import ChannelState, CycleConfig, RefreshState
from sw_driver.predict.memory_node import GroupCycles, Request, answered_fabric_cycles

__all__ = ["group_cycles", "link_gb_per_s", "memory_gb_per_s"]

_WARM_PACKETS = 32


def group_cycles(config: MemoryNodeConfig, *, wire_cycles: int = 0) -> GroupCycles:
    """What the cycle model needs to know of a group of the node."""

    def of(kind: type, *sources: object) -> dict[str, object]:
        return {
            each.name: next(
                getattr(source, each.name) for source in sources if hasattr(source, each.name)
            )
            for each in fields(kind)
            if any(hasattr(source, each.name) for source in sources)
        }

    part = config.part
    channel = CycleConfig(**of(CycleConfig, config.controller, part.timing, part.geometry))  # type: ignore[arg-type]
    own = of(GroupCycles, config, config.link)
    own.update(links=config.group_links, channels=config.group_channels, channel=channel)
    return GroupCycles(**own, wire_cycles=wire_cycles)  # type: ignore[arg-type]


@cache
def link_gb_per_s(config: MemoryNodeConfig) -> float:
    """What one link reads: packets of 4 KB, one after the other."""
    group = group_cycles(config)
    packets = 2 * _WARM_PACKETS
    reads = [Request(False, PACKET_LINES * number, PACKET_LINES) for number in range(packets)]
    first, *_ = answered_fabric_cycles(group, [reads, *[[] for _ in range(group.links - 1)]])
    return _gb_per_s(config, packets - _WARM_PACKETS, first[-1] - first[_WARM_PACKETS - 1])


@cache
def memory_gb_per_s(config: MemoryNodeConfig) -> float:
    """What the node's memory moves while all links read and write packets of 4 KB in turn, each in
    its part of the addresses, from one batch of collected refreshes to the next. A few seconds."""
    group = group_cycles(config)
    share = config.group_bytes // LINE_BYTES // PACKET_LINES // group.links
    channel = group.channel
    period = channel.refresh_postpone * channel.t_refi // 4
    packets = 2 * _WARM_PACKETS + period * group.channels // PACKET_LINES // group.links
    requests = [
        [
            Request(
                bool(number % 2),
                PACKET_LINES * (link * share + number // 2 + number % 2 * (share // 2)),
                PACKET_LINES,
            )
            for number in range(packets)
        ]
        for link in range(group.links)
    ]
    fresh = ChannelState(refresh=RefreshState(owed=0, elapsed_fabric_cycles=0))
    answered = answered_fabric_cycles(group, requests, fresh)
    begin = max(each[_WARM_PACKETS] for each in answered)
    counts = (bisect_right(each, begin + period) - bisect_right(each, begin) for each in answered)
    return config.groups * _gb_per_s(config, sum(counts), period)


def _gb_per_s(config: MemoryNodeConfig, packets: int, fabric_cycles: int) -> float:
    ns = fabric_cycles * 4 * config.part.timing.tck_ps / 1000
    return packets * PACKET_LINES * LINE_BYTES / ns
