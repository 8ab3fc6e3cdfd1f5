"""A memory-node with its DRAM and the other ends of its links."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.logic.expose import expose
from hw.logic.shared import Shared
from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.flit import CHANNELS, FlitStream
from hw.memory_node.link.port import LinkPort
from hw.memory_node.registers.node_registers import REGISTERS_AXI
from hw.sim.memory_node import SimulatedMemoryNode

__all__ = ["NodeSystem"]


class NodeSystem(wiring.Component):
    """``send`` and ``get`` are what a user of the other end of each link gives and takes."""

    def __init__(self, config: MemoryNodeConfig) -> None:
        self._config = config
        super().__init__(
            {
                "s_axi": In(REGISTERS_AXI),
                "send": In(FlitStream).array(config.links, CHANNELS),
                "get": Out(FlitStream).array(config.links, CHANNELS),
                "violation": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        config = self._config
        m.submodules.node = node = SimulatedMemoryNode(config)
        expose(m, self, node, ("s_axi", "violation"))
        peer = LinkPort(config.link)
        ports: list[Any] = [Shared(peer, name="peer_link_port") for _ in range(config.links)]
        for link, port in enumerate(ports):
            m.submodules[f"port_{link}"] = port
            wiring.connect(m, port.wire_out, node.wire_in[link])
            wiring.connect(m, node.wire_out[link], port.wire_in)
            for channel in range(CHANNELS):
                wiring.connect(m, wiring.flipped(self.send[link][channel]), port.transmit[channel])
                wiring.connect(m, port.receive[channel], wiring.flipped(self.get[link][channel]))
        return m
