"""Ring of memory-nodes with their memory and the devices' ends of their links, for simulation."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.logic.expose import expose
from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.flit import CHANNELS, Flit, FlitStream
from hw.memory_node.link.config import LinkConfig
from hw.memory_node.link.port import LinkPort
from hw.sim.assembly import Assembly, PoweredUp
from hw.sim.memory_node import SimulatedMemoryNode
from hw.stream.fifo import StreamFifo

__all__ = ["memory_node_ring"]


class _DevicePort(wiring.Component):
    """Device's end of a link, with a queue for each virtual channel.

    No ``ready`` depends on a ``valid`` in the same cycle.

    Members
    -------
    As of :class:`~hw.memory_node.link.port.LinkPort`, without the counters.
    """

    def __init__(self, config: LinkConfig) -> None:
        self._config = config
        super().__init__(
            {
                "transmit": In(FlitStream).array(CHANNELS),
                "receive": Out(FlitStream).array(CHANNELS),
                "wire_in": In(config.wire),
                "wire_out": Out(config.wire),
                "dead": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.port = port = LinkPort(self._config)
        expose(m, self, port, ("wire_in", "wire_out", "dead"))
        for channel in range(CHANNELS):
            m.submodules[f"queue_{channel}"] = queue = StreamFifo(shape=Flit, depth=4)
            wiring.connect(m, wiring.flipped(self.transmit[channel]), queue.i)
            wiring.connect(m, queue.o, port.transmit[channel])
            wiring.connect(m, port.receive[channel], wiring.flipped(self.receive[channel]))
        return m


def memory_node_ring(config: MemoryNodeConfig, devices: int) -> Assembly:
    """Return a ring of ``devices`` devices and as many memory-nodes.

    Node n has device n at the side of its group 0, and the next device at the side of its group 1.
    A device is represented by the ends of its links, ``device_0_link_0`` and so on: first those to
    the node before it, then those to the node of its own number.
    """
    system = Assembly(
        components={
            "memory_node": PoweredUp(SimulatedMemoryNode(config)),
            "device_port": PoweredUp(_DevicePort(config.link)),
        },
        instances={f"node_{number}": "memory_node" for number in range(devices)},
    )
    half = config.links // 2
    for device in range(devices):
        for link in range(config.links):
            port = f"device_{device}_link_{link}"
            system.instances[port] = "device_port"
            node = f"node_{device if link >= half else (device - 1) % devices}"
            there = link - half if link >= half else link + half
            system.connect((port, "wire_out"), (node, f"wire_in_{there}"))
            system.connect((node, f"wire_out_{there}"), (port, "wire_in"))
    return system
