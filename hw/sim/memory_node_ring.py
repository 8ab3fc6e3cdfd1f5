"""Memory-nodes with their memory, and the devices' ends of their links, in a ring, simulated."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.flit import CHANNELS, Flit, FlitStream
from hw.memory_node.link.config import LinkConfig
from hw.memory_node.link.port import LinkPort
from hw.memory_node.link.wire import WireSignature
from hw.sim.assembly import Assembly, PoweredUp
from hw.sim.memory_node import SimulatedMemoryNode
from hw.stream.fifo import StreamFifo

__all__ = ["memory_node_ring"]


class _DevicePort(wiring.Component):
    """A device's end of a link, with a queue for each virtual channel: no ``ready`` depends on a
    ``valid`` in the same cycle.

    Members
    -------
    As of :class:`~hw.memory_node.link.port.LinkPort`, with ``transmit_0``, ``receive_0`` and so on
    in place of arrays, and without the counters.
    """

    def __init__(self, config: LinkConfig) -> None:
        self._config = config
        wire = WireSignature(phit_bytes=config.phit_bytes)
        super().__init__(
            {
                **{f"transmit_{channel}": In(FlitStream) for channel in range(CHANNELS)},
                **{f"receive_{channel}": Out(FlitStream) for channel in range(CHANNELS)},
                "wire_in": In(wire),
                "wire_out": Out(wire),
                "dead": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.port = port = LinkPort(self._config)
        wiring.connect(m, wiring.flipped(self.wire_in), port.wire_in)
        wiring.connect(m, port.wire_out, wiring.flipped(self.wire_out))
        m.d.comb += self.dead.eq(port.dead)
        for channel in range(CHANNELS):
            m.submodules[f"queue_{channel}"] = queue = StreamFifo(shape=Flit, depth=4)
            transmit, receive = (
                getattr(self, f"{way}_{channel}") for way in ("transmit", "receive")
            )
            wiring.connect(m, wiring.flipped(transmit), queue.i)
            wiring.connect(m, queue.o, port.transmit[channel])
            wiring.connect(m, port.receive[channel], wiring.flipped(receive))
        return m


class _Node(wiring.Component):
    """A :class:`~hw.sim.memory_node.SimulatedMemoryNode` with a member for each wire:
    ``wire_in_0``, ``wire_out_0`` and so on."""

    def __init__(self, config: MemoryNodeConfig) -> None:
        self._node = node = SimulatedMemoryNode(config)
        self._links = config.links
        wire = WireSignature(phit_bytes=config.link.phit_bytes)
        super().__init__(
            {
                "s_axi": node.signature.members["s_axi"],
                **{f"wire_in_{link}": In(wire) for link in range(config.links)},
                **{f"wire_out_{link}": Out(wire) for link in range(config.links)},
                "violation": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.node = node = self._node
        wiring.connect(m, wiring.flipped(self.s_axi), node.s_axi)
        for link in range(self._links):
            wire_in, wire_out = (getattr(self, f"wire_{way}_{link}") for way in ("in", "out"))
            wiring.connect(m, wiring.flipped(wire_in), node.wire_in[link])
            wiring.connect(m, node.wire_out[link], wiring.flipped(wire_out))
        m.d.comb += self.violation.eq(node.violation)
        return m


def memory_node_ring(config: MemoryNodeConfig, devices: int) -> Assembly:
    """``devices`` devices and as many memory-nodes: node n has device n at the side of its group 0,
    and the next one at the side of its group 1.

    Of a device there are the ends of its links, ``device_0_link_0`` and so on: those to the node
    before it, then those to the node of its own number.
    """
    system = Assembly(
        components={
            "memory_node": PoweredUp(_Node(config)),
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
