"""How many fabric cycles a group of a memory-node takes for what its links ask.

A model at the grain of AXI bursts: requests come over the links as fast as these take them, are cut
into stripes, wait for their turn at the channels, and are answered in order on each link. The
DDR4 controller is that of :mod:`sw_driver.predict.dram`.

From the specification (docs/memory-node-spec.md) and the configuration's fields: order, stripes,
flits and packets, windows and buffers. By the RTL's source: depths of small FIFOs and pipeline
latencies, named constants beside what they belong to. Nothing is fitted to a measurement.
"""

from __future__ import annotations

from collections.abc import Sequence

from hw.logic.line import LINE_BYTES
from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.flit import PACKET_LINES
from sw_driver.numbers import check_integer

from ..dram.channel import ChannelState
from ..events import Clock
from .channel import ChannelPort
from .link import GroupLink, Request
from .wire import LinkCycles

__all__ = ["LinkCycles", "Request", "answered_fabric_cycles"]


def answered_fabric_cycles(
    config: MemoryNodeConfig,
    requests: Sequence[Sequence[Request]],
    state: ChannelState | None = None,
    *,
    wire_cycles: int = 0,
) -> list[list[int]]:
    """For each link of a group and each of its requests, the fabric cycle in which the device has
    the last flit of the answer. The devices begin to send in cycle 0; ``state`` is that of each
    channel then, by default after a long time without requests, and ``wire_cycles`` are those from
    a port of a link to the other.

    Raises ``ValueError`` unless there are requests for each link, each of 1 to 64 lines of one
    page or two, which begin in the group's memory.
    """
    if len(requests) != config.group_links:
        raise ValueError(f"expected requests for {config.group_links} links, got {len(requests)}")
    for each in (request for link in requests for request in link):
        check_integer("lines of a request", each.lines, 1, PACKET_LINES)
        check_integer("the line of a request", each.line, 0, config.group_bytes // LINE_BYTES - 1)
    clock = Clock()
    state = state or ChannelState.after_idle(config)
    ports = [ChannelPort(clock, config, state) for _ in range(config.group_channels)]
    wire = LinkCycles(config.link, wire_cycles)
    links = [
        GroupLink(clock, config, wire, ports, number, each) for number, each in enumerate(requests)
    ]
    clock.run()
    for link, each in zip(links, requests, strict=True):
        assert len(link.answered) == len(each), "a request was never answered"
    return [link.answered for link in links]
