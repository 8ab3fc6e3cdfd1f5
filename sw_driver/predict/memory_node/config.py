"""What is asked of a group of a memory-node, and the group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ..axdimm.config import BURST_LINES, LINE_BYTES, CycleConfig
from ..axdimm.link import LinkCycles

__all__ = ["GroupCycles", "Request", "Stripe"]


class Request(NamedTuple):
    """A read or a write of 1 to 64 lines from a line of the group's memory on."""

    write: bool
    line: int
    lines: int


class Stripe(NamedTuple):
    """Lines of a request in one channel: an AXI burst."""

    channel: int
    line: int
    lines: int


@dataclass(frozen=True, kw_only=True)
class GroupCycles:
    """A group; the defaults are those of the paper's node, as in docs/memory-node-spec.md and
    ``hw/memory_node/config.py``, where each is described."""

    links: int = 3
    channels: int = 5
    channel: CycleConfig = field(default_factory=CycleConfig)
    channel_bytes: int = 8 << 30
    interleave_bytes: int = 1024
    requests: int = 16
    write_buffer_lines: int = 256
    write_queue_lines: int = 32
    read_buffer_lines: int = 256
    phit_bytes: int = 72
    buffer_flits: int = 128
    replay_flits: int = 128
    wire_cycles: int = 0

    @property
    def stripe_lines(self) -> int:
        """Lines that go to one channel before the next."""
        return BURST_LINES if self.channels == 1 else self.interleave_bytes // LINE_BYTES

    @property
    def wire(self) -> LinkCycles:
        """Each link."""
        return LinkCycles(
            phit_bytes=self.phit_bytes,
            buffer_flits=self.buffer_flits,
            replay_flits=self.replay_flits,
            wire_cycles=self.wire_cycles,
        )

    @property
    def flit_fabric_cycles(self) -> float:
        """From a flit of a link to the next, all the time: its phits, or what the way there and
        back leaves of the flits that are kept and that a receiver has room for."""
        wire = self.wire
        return max(
            wire.interval_fabric_cycles,
            wire.acknowledged_fabric_cycles / self.replay_flits,
            wire.credited_fabric_cycles / self.buffer_flits,
        )

    def stripes(self, request: Request) -> Iterator[Stripe]:
        """Where the lines of a request are, in order."""
        line, end = request.line, request.line + request.lines
        while line < end:
            stripe, offset = divmod(line, self.stripe_lines)
            lines = min(self.stripe_lines - offset, end - line)
            place, channel = divmod(stripe, self.channels)
            yield Stripe(channel, place * self.stripe_lines + offset, lines)
            line += lines
