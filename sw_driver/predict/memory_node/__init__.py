"""Predictor of the fabric cycles in which a group of a memory-node answers its links' requests.

It is a model at the grain of AXI bursts. Requests come over the links as fast as these take them.
They are cut into stripes, wait for their turn at the channels, and are answered in order on each
link. The DDR4 controller is that of :mod:`sw_driver.predict.dram`.

Order, stripes, flits, packets, windows and buffers are those of the specification
(docs/memory-node-spec.md) and of the configuration's fields. Depths of small FIFOs and pipeline
latencies are those of the RTL's source, in named constants beside their use. Nothing is fitted to a
measurement.
"""

from __future__ import annotations

from collections.abc import Sequence

from hw.logic.line import LINE_BYTES
from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.flit import PACKET_LINES
from sw_driver.numbers import check_integer

from ..dram.channel import ChannelState
from ..events import CycleClock
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
    """Return, for each link and each of its requests, the fabric cycle of the answer's last flit.

    It is the cycle in which the device has the flit. The devices begin to send in cycle 0.
    ``state`` is that of each channel in this cycle, by default after a long time without requests.
    ``wire_cycles`` is the latency from one port of a link to the other.

    Raises ``ValueError`` unless there are requests for each link, each of 1 to 64 lines of one
    page or two, which begin in the group's memory.
    """
    if len(requests) != config.group_links:
        raise ValueError(f"expected requests for {config.group_links} links, got {len(requests)}")
    last_line = config.group_bytes // LINE_BYTES - 1
    for request in (request for link_requests in requests for request in link_requests):
        check_integer("lines of a request", request.lines, 1, PACKET_LINES)
        check_integer("the line of a request", request.line, 0, last_line)
    clock = CycleClock()
    state = state or ChannelState.after_idle(config)
    ports = [ChannelPort(clock, config, state) for _ in range(config.group_channels)]
    wire = LinkCycles(config.link, wire_cycles)
    links = [
        GroupLink(clock, config, wire, ports, number, link_requests)
        for number, link_requests in enumerate(requests)
    ]
    clock.run()
    for link, link_requests in zip(links, requests, strict=True):
        assert len(link.answered) == len(link_requests), "a request was never answered"
    return [link.answered for link in links]
