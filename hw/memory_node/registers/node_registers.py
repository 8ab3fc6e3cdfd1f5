"""The registers of a memory-node on AXI4-Lite, and its counters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.bus import AXI4LiteSignature
from hw.csr.axi4_lite import AXI4LiteSubordinate
from hw.csr.bank import CSR_DATA_WIDTH, CsrBank
from hw.csr.register_map import load_registers
from hw.logic.line import LINE_BYTES
from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.flit import CHANNELS, Status
from hw.memory_node.group.layouts import Allocation, Events
from hw.memory_node.link.port import COUNTER_BITS, LINK_COUNTERS

__all__ = [
    "GROUPS_OFFSET_BYTES",
    "LINKS_OFFSET_BYTES",
    "MEMORY_NODE_RDL",
    "PART_BYTES",
    "REGISTERS_ADDR_WIDTH",
    "REGISTERS_AXI",
    "NodeRegisters",
]

MEMORY_NODE_RDL = Path(__file__).parent / "memory_node.rdl"

REGISTERS_ADDR_WIDTH = 12
REGISTERS_AXI = AXI4LiteSignature(addr_width=REGISTERS_ADDR_WIDTH, data_width=CSR_DATA_WIDTH)
"""AXI4-Lite of the registers."""

GROUPS_OFFSET_BYTES = 0x400
"""Where the registers of group 0 begin."""
LINKS_OFFSET_BYTES = 0x800
"""Where the registers of link 0 begin."""

_PART_BITS = 7

PART_BYTES = 1 << _PART_BITS
"""From one group's or link's registers to those of the next."""


class NodeRegisters(wiring.Component):
    """The registers that ``memory_node.rdl`` describes. Accesses where nothing is get SLVERR.

    Members
    -------
    s_axi : In(AXI4-Lite, ``REGISTERS_ADDR_WIDTH``, 64 bits)
    node, date_line : Out(8), Out(1)
    allocations : Out(:data:`~hw.memory_node.group.layouts.Allocation`), one for each group
    dead : In(links)
    events : In(:data:`~hw.memory_node.group.layouts.Events`), one for each link
    passed : In(CHANNELS), one for each link
        Pulse for each virtual channel: a packet has passed.
    dropped : In(links)
        Pulse: a packet was dropped.
    sent, sent_again, taken, discarded : In(48), one for each link
        Counts of the link port.
    """

    def __init__(self, config: MemoryNodeConfig) -> None:
        self._config = config
        links = config.links
        super().__init__(
            {
                "s_axi": In(REGISTERS_AXI),
                "node": Out(8),
                "date_line": Out(1),
                "allocations": Out(Allocation).array(config.groups),
                "dead": In(links),
                "events": In(Events).array(links),
                "passed": In(CHANNELS).array(links),
                "dropped": In(links),
                **{name: In(COUNTER_BITS).array(links) for name in LINK_COUNTERS},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        config = self._config
        m.submodules.lite = lite = AXI4LiteSubordinate(addr_width=REGISTERS_ADDR_WIDTH, parts=True)
        wiring.connect(m, wiring.flipped(self.s_axi), lite.s_axi)

        def bank(name: str, offset: int, *, top: str) -> Any:
            """Registers in the ``PART_BYTES`` from ``offset`` on."""
            m.submodules[name] = part = CsrBank(
                load_registers(top, MEMORY_NODE_RDL), addr_width=_PART_BITS, strobes=True
            )
            m.d.comb += [
                part.address.eq(lite.address),
                part.write_data.eq(lite.write_data),
                part.strobes.eq(lite.strobes),
            ]
            with m.If(lite.address[_PART_BITS:] == offset >> _PART_BITS):
                m.d.comb += [
                    part.write.eq(lite.write),
                    lite.hit.eq(part.hit),
                    lite.read_data.eq(part.read_data),
                ]
            return part

        node = bank("node", 0, top="memory_node")
        m.d.comb += [
            self.node.eq(node.node_identity),
            self.date_line.eq(node.node_date_line),
            node.config_links.eq(config.links),
            node.config_groups.eq(config.groups),
            node.config_channels.eq(config.channels),
            node.config_interleave_bytes.eq(config.stripe_lines * LINE_BYTES),
            node.memory_group_bytes.eq(config.group_bytes),
            node.dead_links.eq(self.dead),
        ]
        for index, allocation in enumerate(self.allocations):
            offset = GROUPS_OFFSET_BYTES + PART_BYTES * index
            group = bank(f"group_{index}", offset, top="memory_node_group")
            m.d.comb += [
                allocation.base.eq(group.base_line),
                allocation.size.eq(group.size_lines),
                allocation.owner.eq(group.owner_device),
            ]
            first = index * config.group_links
            events = list(self.events)[first : first + config.group_links]
            for status in Status:
                if status is not Status.OK:
                    _count(
                        m,
                        getattr(group, f"refused_{status.name.lower()}_count"),
                        Cat(each.refused[status] for each in events),
                    )
        for index in range(config.links):
            offset = LINKS_OFFSET_BYTES + PART_BYTES * index
            link = bank(f"link_{index}", offset, top="memory_node_link")
            events = self.events[index]
            for name, event in (
                ("requests", events.request),
                ("lines_read", events.line_read),
                ("lines_written", events.line_written),
                ("passed", self.passed[index]),
                ("dropped", self.dropped[index]),
            ):
                _count(m, getattr(link, f"{name}_count"), event)
            m.d.comb += [
                getattr(link, f"{name}_count").eq(getattr(self, name)[index])
                for name in LINK_COUNTERS
            ]
        return m


def _count(m: Any, register: Any, events: Any) -> None:
    """``register`` is how many of ``events`` there were."""
    total = Signal.like(register)
    m.d.comb += register.eq(total)
    m.d.sync += total.eq(total + sum(events[bit] for bit in range(len(events))))
