"""Registers of a memory-node on AXI4-Lite, and its counters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.bus import AXI4LiteSignature
from hw.csr.axi4_lite import AXI4LiteSubordinate
from hw.csr.bank import CSR_DATA_WIDTH, CsrBank
from hw.csr.register_map import unrolled_registers
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
    "node_text",
]

MEMORY_NODE_RDL = Path(__file__).parent / "memory_node.rdl"

REGISTERS_ADDR_WIDTH = 12
REGISTERS_AXI = AXI4LiteSignature(addr_width=REGISTERS_ADDR_WIDTH, data_width=CSR_DATA_WIDTH)
"""AXI4-Lite of the registers."""

GROUPS_OFFSET_BYTES = 0x400
"""Byte offset of the registers of group 0."""
LINKS_OFFSET_BYTES = 0x800
"""Byte offset of the registers of link 0."""

PART_BYTES = 128
"""Bytes from one group's or link's registers to those of the next."""


def node_text(config: MemoryNodeConfig) -> str:
    """Return the description of a node's registers in SystemRDL; its top is ``registers``."""
    return f"""{MEMORY_NODE_RDL.read_text()}
addrmap registers {{
    name = "Registers";
    memory_node node @ 0x0;
    memory_node_group group[{config.groups}] @ {GROUPS_OFFSET_BYTES:#x} += {PART_BYTES:#x};
    memory_node_link link[{config.links}] @ {LINKS_OFFSET_BYTES:#x} += {PART_BYTES:#x};
}};
"""


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
        registers = unrolled_registers("registers", node_text(config))
        m.submodules.lite = lite = AXI4LiteSubordinate(addr_width=REGISTERS_ADDR_WIDTH, parts=True)
        m.submodules.bank = bank = CsrBank(registers, addr_width=REGISTERS_ADDR_WIDTH, strobes=True)
        wiring.connect(m, wiring.flipped(self.s_axi), lite.s_axi)
        wiring.connect(m, lite.bus, bank.bus)
        m.d.comb += [
            self.node.eq(bank.node_node_identity),
            self.date_line.eq(bank.node_node_date_line),
            bank.node_config_links.eq(config.links),
            bank.node_config_groups.eq(config.groups),
            bank.node_config_channels.eq(config.channels),
            bank.node_config_interleave_bytes.eq(config.stripe_lines * LINE_BYTES),
            bank.node_memory_group_bytes.eq(config.group_bytes),
            bank.node_dead_links.eq(self.dead),
        ]
        for index, allocation in enumerate(self.allocations):
            m.d.comb += [
                allocation.base.eq(getattr(bank, f"group_{index}_base_line")),
                allocation.size.eq(getattr(bank, f"group_{index}_size_lines")),
                allocation.owner.eq(getattr(bank, f"group_{index}_owner_device")),
            ]
            first = index * config.group_links
            events = list(self.events)[first : first + config.group_links]
            for status in Status:
                if status is not Status.OK:
                    count = getattr(bank, f"group_{index}_refused_{status.name.lower()}_count")
                    _count(m, count, Cat(link_events.refused[status] for link_events in events))
        for index, events in enumerate(self.events):
            for name, event in (
                ("requests", events.request),
                ("lines_read", events.line_read),
                ("lines_written", events.line_written),
                ("passed", self.passed[index]),
                ("dropped", self.dropped[index]),
            ):
                _count(m, getattr(bank, f"link_{index}_{name}_count"), event)
            for name in LINK_COUNTERS:
                m.d.comb += getattr(bank, f"link_{index}_{name}_count").eq(
                    getattr(self, name)[index]
                )
        return m


def _count(m: Any, register: Any, events: Any) -> None:
    """Drive ``register`` with a count of ``events``."""
    total = Signal.like(register)
    m.d.comb += register.eq(total)
    m.d.sync += total.eq(total + sum(events[bit] for bit in range(len(events))))
