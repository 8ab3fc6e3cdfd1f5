"""Memory-node: links, groups and the controllers of its memory."""

from __future__ import annotations

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

__all__ = ["MemoryNode"]


class MemoryNode(wiring.Component):
    """A memory-node (docs/memory-node-spec.md).

    Parameters
    ----------
    config
        Configuration of the node.
    controller
        Controller between each channel's AXI4 port and its DRAM (``dram0`` and so on) or the PHY of
        that (``dfi0`` and so on).

    Members
    -------
    s_axi : In(AXI4-Lite, 64 bits)
        Registers.
    wire_in, wire_out : In(WireSignature), Out(WireSignature), one for each link
    dram0, dram1, ... : of the controllers, group 0's first

    Examples
    --------
    >>> from hw.memory_node.config import MEMORY_NODE_PRESETS
    >>> node = MemoryNode(MEMORY_NODE_PRESETS["tiny"])
    >>> list(node.signature.members)
    ['s_axi', 'wire_in', 'wire_out', 'dram0', 'dram1']
    """

    def __init__(
        self,
        config: MemoryNodeConfig,
        controller: type[Ddr4Controller | DfiController] = Ddr4Controller,
    ) -> None:
        self.config = config
        self._controller = controller(
            geometry=config.part.geometry,
            timing=config.part.timing,
            addr_width=config.channel_address_bits,
            id_width=config.id_width,
            config=config.controller,
            reserve=False,
        )
        self._side = "dfi" if controller is DfiController else "dram"
        super().__init__(
            {
                "s_axi": In(REGISTERS_AXI),
                "wire_in": In(config.link.wire).array(config.links),
                "wire_out": Out(config.link.wire).array(config.links),
                **{
                    f"{self._side}{index}": self._controller.signature.members[self._side]
                    for index in range(config.channels)
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
        for index in range(config.channels):
            memory: Any = Shared(self._controller, name="node_controller")
            m.submodules[f"memory_{index}"] = memory
            wiring.connect(m, control.memory[index], memory.s_axi)
            outside = getattr(self, f"{self._side}{index}")
            wiring.connect(m, getattr(memory, self._side), wiring.flipped(outside))
        return m
