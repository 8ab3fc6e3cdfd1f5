"""Configuration of a memory-node."""

from __future__ import annotations

from dataclasses import dataclass, field

from hw.axi.bus import AXI4Signature
from hw.dram.config import ControllerConfig
from hw.dram.presets import (
    DDR4_2400_8GBIT_X8,
    DDR4_3200_8GBIT_X8,
    DramPart,
)
from hw.logic.checks import check_int
from hw.logic.line import AXI_BURST_LINES, LINE_BITS, LINE_BYTES
from hw.memory_node.flit import PACKET_LINES
from hw.memory_node.link.config import LINK_PRESETS, LinkConfig

__all__ = ["MEMORY_NODE_PRESETS", "MemoryNodeConfig"]


@dataclass(frozen=True, kw_only=True)
class MemoryNodeConfig:
    """Configuration of a memory-node; the defaults are the paper's (Kwon and Rhu, Table II).

    Raises ``ValueError`` for values that cannot be built.

    Examples
    --------
    >>> node = MemoryNodeConfig()
    >>> node.group_channels, node.group_bytes >> 30
    (5, 40)
    >>> MemoryNodeConfig(links=5)
    Traceback (most recent call last):
        ...
    ValueError: links must be a multiple of the 2 groups, got 5
    """

    links: int = 6
    """Links of the node, 1 to 16; each group has ``links / groups``."""

    groups: int = 2
    """Groups, 1 to 4, each with a share of links and channels. With two, the node is a stop of
    ``links / 2`` rings."""

    channels: int = 10
    """Memory channels of the node; each group has ``channels / groups``, 16 at most."""

    part: DramPart = DDR4_3200_8GBIT_X8
    """DRAM of a channel; with another memory only its capacity counts."""

    controller: ControllerConfig = field(default_factory=ControllerConfig)
    """Configuration of each DDR4 channel's controller."""

    link: LinkConfig = LINK_PRESETS["full"]
    """Configuration of each link."""

    interleave_bytes: int = 1024
    """Bytes that go to one channel before the next, a power of two from 64 to 4096."""

    requests: int = 16
    """Requests in flight from a link, a power of two from 2 to 64."""

    write_buffer_lines: int = 256
    """Lines that a link may deliver ahead of memory, a power of two from 64 to 4096. A write goes
    to memory when all of it has arrived."""

    write_queue_lines: int = 32
    """Lines of a link that may wait at each channel during the turns of other links, 4 to 1024.
    Short stripes need fewer."""

    read_buffer_lines: int = 256
    """Lines that a channel may deliver ahead of a link, a power of two from 64 to 4096."""

    def __post_init__(self) -> None:
        check_int("groups", self.groups, 1, 4)
        check_int("links", self.links, 1, 16)
        check_int("channels", self.channels, 1, 16 * self.groups)
        for name in ("links", "channels"):
            value = getattr(self, name)
            if value % self.groups:
                raise ValueError(
                    f"{name} must be a multiple of the {self.groups} groups, got {value!r}"
                )
        check_int("interleave_bytes", self.interleave_bytes, LINE_BYTES, 4096, power_of_two=True)
        check_int("requests", self.requests, 2, 64, power_of_two=True)
        check_int("write_queue_lines", self.write_queue_lines, 4, 1024)
        for name in ("write_buffer_lines", "read_buffer_lines"):
            check_int(name, getattr(self, name), PACKET_LINES, 4096, power_of_two=True)
        if self.group_bytes > 1 << 48:
            raise ValueError(
                f"a group has at most {1 << 48} bytes, the range of an address; "
                f"got {self.group_bytes}"
            )

    @property
    def group_links(self) -> int:
        """Links of a group."""
        return self.links // self.groups

    @property
    def group_channels(self) -> int:
        """Memory channels of a group."""
        return self.channels // self.groups

    @property
    def ring(self) -> bool:
        """True if packets for other nodes pass through."""
        return self.groups == 2

    @property
    def channel_bytes(self) -> int:
        """Bytes of a channel's memory."""
        return self.part.geometry.capacity_bytes

    @property
    def channel_address_bits(self) -> int:
        """Width of the byte addresses of a channel, in bits."""
        return self.channel_bytes.bit_length() - 1

    @property
    def group_bytes(self) -> int:
        """Bytes of a group's memory."""
        return self.group_channels * self.channel_bytes

    @property
    def stripe_lines(self) -> int:
        """Lines that go to one channel before the next: at most the 4 KB of an AXI burst."""
        return AXI_BURST_LINES if self.group_channels == 1 else self.interleave_bytes // LINE_BYTES

    @property
    def id_width(self) -> int:
        """Bits of the AXI IDs; each link of the group has an ID of its own."""
        return max(1, (self.group_links - 1).bit_length())

    @property
    def axi(self) -> AXI4Signature:
        """Signature of a channel's AXI4 port."""
        return AXI4Signature(
            addr_width=self.channel_address_bits, data_width=LINE_BITS, id_width=self.id_width
        )


MEMORY_NODE_PRESETS = {
    "paper": MemoryNodeConfig(),
    "paper_ddr4_2400": MemoryNodeConfig(part=DDR4_2400_8GBIT_X8),
    "tiny": MemoryNodeConfig(
        links=2,
        channels=2,
        part=DDR4_3200_8GBIT_X8.with_capacity(1 << 20),
    ),
}
"""Nodes by name: the paper's, the same with slower memory, and one for tests."""
