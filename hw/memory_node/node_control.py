"""Control part of a memory-node, between its links and its memory."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.logic.expose import expose
from hw.logic.shared import Shared
from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.flit import CHANNELS, FlitStream
from hw.memory_node.group.engine import GroupEngine
from hw.memory_node.link.port import COUNTER_BITS, LINK_COUNTERS
from hw.memory_node.registers.node_registers import REGISTERS_AXI, NodeRegisters
from hw.memory_node.ring.detour import Detour
from hw.memory_node.ring.stop import RingStop

__all__ = ["NodeControl"]


class NodeControl(wiring.Component):
    """Groups, stops of rings and registers: all of a node but its links and its memory.

    Members
    -------
    s_axi : In(AXI4-Lite, 64 bits)
        Registers.
    receive, transmit : In(FlitStream), Out(FlitStream), for each link one a virtual channel
    dead : In(links)
        Links that are dead.
    sent, sent_again, taken, discarded : In(48), one for each link
        Counts of the link port, for the registers.
    memory : Out(:class:`~hw.axi.bus.AXI4Signature`), one for each channel
        The memory's channels, those of group 0 first.
    """

    def __init__(self, config: MemoryNodeConfig) -> None:
        self._config = config
        links = config.links
        super().__init__(
            {
                "s_axi": In(REGISTERS_AXI),
                "receive": In(FlitStream).array(links, CHANNELS),
                "transmit": Out(FlitStream).array(links, CHANNELS),
                "dead": In(links),
                **{name: In(COUNTER_BITS).array(links) for name in LINK_COUNTERS},
                "memory": Out(config.axi).array(config.channels),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        config = self._config
        m.submodules.registers = registers = NodeRegisters(config)
        expose(m, self, registers, ("s_axi", "dead", *LINK_COUNTERS))

        # In a ring, links with the same number in both groups are the sides of a stop.
        sides = 2 if config.ring else 1
        requests: list[Any] = [None] * config.links
        answers: list[Any] = [None] * config.links
        dropped: list[Any] = [None] * config.links
        one_stop = RingStop(sides)
        for number in range(config.links // sides):
            stop: Any = Shared(one_stop, name="node_ring_stop")
            m.submodules[f"stop_{number}"] = stop
            links = [number + side * config.group_links for side in range(sides)]
            m.d.comb += [
                stop.node.eq(registers.node),
                stop.date_line.eq(registers.date_line),
                stop.dead.eq(Cat(self.dead[link] for link in links)),
            ]
            for side, link in enumerate(links):
                for channel in range(CHANNELS):
                    wiring.connect(
                        m,
                        wiring.flipped(self.receive[link][channel]),
                        stop.receive[side][channel],
                    )
                    wiring.connect(
                        m,
                        stop.transmit[side][channel],
                        wiring.flipped(self.transmit[link][channel]),
                    )
                requests[link], answers[link] = stop.requests[side], stop.answers[side]
                # A memory-node sends no requests, so no response is for it.
                response = stop.responses[side]
                dropped[link] = response.valid & response.payload.tail
                m.d.comb += [
                    response.ready.eq(1),
                    registers.passed[link].eq(stop.passed[side]),
                ]
        m.d.comb += registers.dropped.eq(Cat(dropped))

        one_engine = GroupEngine(config)
        for index in range(config.groups):
            engine: Any = Shared(one_engine, name="node_group_engine")
            m.submodules[f"group_{index}"] = engine
            m.submodules[f"detour_{index}"] = detour = Detour(config.group_links)
            first = index * config.group_links
            m.d.comb += [
                engine.node.eq(registers.node),
                engine.allocation.eq(registers.allocations[index]),
                detour.dead.eq(self.dead[first : first + config.group_links]),
            ]
            for number in range(config.group_links):
                link = first + number
                wiring.connect(m, requests[link], engine.requests[number])
                wiring.connect(m, engine.answers[number], detour.i[number])
                wiring.connect(m, detour.o[number], answers[link])
                m.d.comb += registers.events[link].eq(engine.events[number])
            for number in range(config.group_channels):
                wiring.connect(
                    m,
                    engine.memory[number],
                    wiring.flipped(self.memory[index * config.group_channels + number]),
                )
        return m
