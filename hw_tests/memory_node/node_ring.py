"""Devices and memory-nodes in turn, in a ring of rings."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.bus import AXI4LiteSignature
from hw.csr.bank import CSR_DATA_WIDTH
from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.registers.node_registers import REGISTERS_ADDR_WIDTH
from hw.sim.device_node import DeviceNode, Transfer
from hw.sim.memory_node import SimulatedMemoryNode
from hw.verilog import Shared

__all__ = ["DEVICES", "NodeRing"]

DEVICES = 2
"""Devices, and as many memory-nodes."""

_COUNTS = ("done", "again", "refused", "wrong", "received")


class NodeRing(wiring.Component):
    """Device d has the links of group 0 of memory-node d, then those of group 1 of the one before.

    Devices have the numbers 0 and 1. ``cut`` has a bit for each link of each device.
    """

    s_axi: Any
    transfers: Any
    cut: Any
    idle: Any
    dead: Any
    violation: Any

    def __init__(self, config: MemoryNodeConfig) -> None:
        self._config = config
        links = config.links
        lite = AXI4LiteSignature(addr_width=REGISTERS_ADDR_WIDTH, data_width=CSR_DATA_WIDTH)
        super().__init__(
            {
                "s_axi": In(lite).array(DEVICES),
                "transfers": In(stream.Signature(Transfer(links))).array(DEVICES),
                "cut": In(links).array(DEVICES),
                "idle": Out(DEVICES),
                "dead": Out(links).array(DEVICES),
                **{name: Out(32).array(DEVICES) for name in _COUNTS},
                "violation": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        config = self._config
        half = config.group_links
        node = SimulatedMemoryNode(config)
        device = DeviceNode(links=config.links, link=config.link)
        nodes: list[Any] = [Shared(node, name="ring_node") for _ in range(DEVICES)]
        devices: list[Any] = [Shared(device, name="ring_device") for _ in range(DEVICES)]
        for number, (node, device) in enumerate(zip(nodes, devices, strict=True)):
            m.submodules[f"node_{number}"] = node
            m.submodules[f"device_{number}"] = device
            wiring.connect(m, wiring.flipped(self.s_axi[number]), node.s_axi)
            wiring.connect(m, wiring.flipped(self.transfers[number]), device.transfers)
            m.d.comb += [
                device.node.eq(number),
                self.idle[number].eq(device.idle),
                self.dead[number].eq(device.dead),
            ]
            m.d.comb += [getattr(self, name)[number].eq(getattr(device, name)) for name in _COUNTS]
            for link in range(config.links):
                # Group 0 of its own, group 1 of the one before.
                other = nodes[number if link < half else number - 1]
                for source, target in (
                    (device.wire_out[link], other.wire_in[link]),
                    (other.wire_out[link], device.wire_in[link]),
                ):
                    m.d.comb += [
                        target.valid.eq(source.valid & ~self.cut[number][link]),
                        target.first.eq(source.first),
                        target.data.eq(source.data),
                    ]
        m.d.comb += self.violation.eq(Cat(node.violation for node in nodes).any())
        return m
