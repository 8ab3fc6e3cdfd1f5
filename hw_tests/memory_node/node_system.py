"""A memory-node with its DRAM and the other ends of its links."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.bus import AXI4LiteSignature
from hw.csr.bank import CSR_DATA_WIDTH
from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.flit import CHANNELS, FlitStream
from hw.memory_node.link.port import LinkPort
from hw.memory_node.registers.node_registers import REGISTERS_ADDR_WIDTH
from hw.sim.memory_node import SimulatedMemoryNode
from hw.verilog import Shared

__all__ = ["NodeSystem"]


class NodeSystem(wiring.Component):
    """``send`` and ``get`` are what a user of the other end of each link gives and takes; ``cut``
    parts a link's wires."""

    s_axi: Any
    send: Any
    get: Any
    cut: Any
    violation: Any

    def __init__(self, config: MemoryNodeConfig) -> None:
        self._config = config
        lite = AXI4LiteSignature(addr_width=REGISTERS_ADDR_WIDTH, data_width=CSR_DATA_WIDTH)
        super().__init__(
            {
                "s_axi": In(lite),
                "send": In(FlitStream).array(config.links, CHANNELS),
                "get": Out(FlitStream).array(config.links, CHANNELS),
                "cut": In(config.links),
                "dead": Out(config.links),
                "violation": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        config = self._config
        m.submodules.node = node = SimulatedMemoryNode(config)
        wiring.connect(m, wiring.flipped(self.s_axi), node.s_axi)
        port = LinkPort(config.link)
        ports: list[Any] = [Shared(port, name="peer_link_port") for _ in range(config.links)]
        for link, port in enumerate(ports):
            m.submodules[f"port_{link}"] = port
            for source, target in (
                (port.wire_out, node.wire_in[link]),
                (node.wire_out[link], port.wire_in),
            ):
                m.d.comb += [
                    target.valid.eq(source.valid & ~self.cut[link]),
                    target.first.eq(source.first),
                    target.data.eq(source.data),
                ]
            for channel in range(CHANNELS):
                wiring.connect(m, wiring.flipped(self.send[link][channel]), port.transmit[channel])
                wiring.connect(m, port.receive[channel], wiring.flipped(self.get[link][channel]))
        m.d.comb += [
            self.violation.eq(node.violation),
            self.dead.eq(Cat(port.dead for port in ports)),
        ]
        return m
