"""A memory-node with its DRAM, for simulation."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.bus import AXI4LiteSignature
from hw.csr.bank import CSR_DATA_WIDTH
from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.link.wire import WireSignature
from hw.memory_node.node import MemoryNode
from hw.memory_node.registers.node_registers import REGISTERS_ADDR_WIDTH
from hw.sim.dram_device import Ddr4Device

__all__ = ["SimulatedMemoryNode"]


class SimulatedMemoryNode(wiring.Component):
    """A memory-node on DRAM that carries data and checks every command.

    Members
    -------
    s_axi, wire_in, wire_out
        See :class:`~hw.memory_node.node.MemoryNode`.
    violation : Out(1)
        A DRAM was given a command that it refuses.
    """

    def __init__(self, config: MemoryNodeConfig) -> None:
        self._config = config
        wire = WireSignature(phit_bytes=config.link.phit_bytes)
        lite = AXI4LiteSignature(addr_width=REGISTERS_ADDR_WIDTH, data_width=CSR_DATA_WIDTH)
        super().__init__(
            {
                "s_axi": In(lite),
                "wire_in": In(wire).array(config.links),
                "wire_out": Out(wire).array(config.links),
                "violation": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        config = self._config
        m.submodules.node = node = MemoryNode(config)
        wiring.connect(m, wiring.flipped(self.s_axi), node.s_axi)
        for link in range(config.links):
            wiring.connect(m, wiring.flipped(self.wire_in[link]), node.wire_in[link])
            wiring.connect(m, node.wire_out[link], wiring.flipped(self.wire_out[link]))
        devices = [
            Ddr4Device(
                geometry=config.part.geometry,
                timing=config.part.timing,
                check_refresh=config.controller.refresh,
            )
            for _ in range(config.channels)
        ]
        for index, device in enumerate(devices):
            m.submodules[f"dram_{index}"] = device
            wiring.connect(m, getattr(node, f"dram{index}"), device.dram)
        m.d.comb += self.violation.eq(Cat(device.violation for device in devices).any())
        return m
