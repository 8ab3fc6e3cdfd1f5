"""The memory-node: links, groups and the controllers of its memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.dram.controller import Ddr4Controller
from hw.dram.dfi import DfiController
from hw.logic.shared import Shared
from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.flit import CHANNELS
from hw.memory_node.link.port import LINK_COUNTERS, LinkPort
from hw.memory_node.node_control import NodeControl
from hw.memory_node.registers.node_registers import REGISTERS_AXI

__all__ = ["AxiPort", "MemoryNode", "ddr4_channels"]

_OUTSIDE = ("dram", "dfi", "m_axi")


class AxiPort(wiring.Component):
    """A channel whose memory is behind an AXI4 port of the node.

    Members
    -------
    s_axi, m_axi : In(AXI4Signature), Out(AXI4Signature)
    """

    def __init__(self, config: MemoryNodeConfig) -> None:
        super().__init__({"s_axi": In(config.axi), "m_axi": Out(config.axi)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        wiring.connect(m, wiring.flipped(self.s_axi), wiring.flipped(self.m_axi))
        return m


def ddr4_channels(
    config: MemoryNodeConfig, kind: type[Ddr4Controller | DfiController] = Ddr4Controller
) -> list[Any]:
    """The DDR4 controllers of a node, of this kind."""
    one = kind(
        geometry=config.part.geometry,
        timing=config.part.timing,
        addr_width=config.channel_address_bits,
        id_width=config.id_width,
        config=config.controller,
    )
    return [Shared(one, name="node_controller") for _ in range(config.channels)]


class MemoryNode(wiring.Component):
    """A memory-node (docs/memory-node-spec.md).

    Parameters
    ----------
    config
        The node.
    memories
        For each channel, group 0's first, a component with a member ``s_axi``,
        In(:class:`~hw.axi.bus.AXI4Signature`), that keeps ``config.channel_bytes``. It may have one
        of the members ``dram``, ``dfi`` and ``m_axi``, which go to the outside; its other inputs
        stay 0. By default DDR4 controllers.

    Members
    -------
    s_axi : In(AXI4-Lite, 64 bits)
        Registers.
    wire_in, wire_out : In(WireSignature), Out(WireSignature), one for each link
    dram0, dram1, ... : of the memories
    """

    def __init__(self, config: MemoryNodeConfig, memories: Sequence[Any] | None = None) -> None:
        self.config = config
        self._memories = list(memories or ddr4_channels(config))
        if len(self._memories) != config.channels:
            raise ValueError(
                f"memories must be one for each of {config.channels} channels, "
                f"got {len(self._memories)}"
            )
        super().__init__(
            {
                "s_axi": In(REGISTERS_AXI),
                "wire_in": In(config.link.wire).array(config.links),
                "wire_out": Out(config.link.wire).array(config.links),
                **{
                    f"{name}{index}": memory.signature.members[name]
                    for index, memory in enumerate(self._memories)
                    for name in _OUTSIDE
                    if name in memory.signature.members
                },
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        config = self.config
        m.submodules.control = control = NodeControl(config)
        wiring.connect(m, wiring.flipped(self.s_axi), control.s_axi)
        one = LinkPort(config.link)
        ports: list[Any] = [Shared(one, name="node_link_port") for _ in range(config.links)]
        for index, port in enumerate(ports):
            m.submodules[f"link_{index}"] = port
            wiring.connect(m, wiring.flipped(self.wire_in[index]), port.wire_in)
            wiring.connect(m, port.wire_out, wiring.flipped(self.wire_out[index]))
            for channel in range(CHANNELS):
                wiring.connect(m, port.receive[channel], control.receive[index][channel])
                wiring.connect(m, control.transmit[index][channel], port.transmit[channel])
            m.d.comb += [
                getattr(control, name)[index].eq(getattr(port, name)) for name in LINK_COUNTERS
            ]
        m.d.comb += control.dead.eq(Cat(port.dead for port in ports))
        for index, memory in enumerate(self._memories):
            m.submodules[f"memory_{index}"] = memory
            wiring.connect(m, control.memory[index], memory.s_axi)
            for name in _OUTSIDE:
                if name in memory.signature.members:
                    outside = getattr(self, f"{name}{index}")
                    wiring.connect(m, getattr(memory, name), wiring.flipped(outside))
        return m
