"""DMA engine of a group: requests of its links in, lines of its memory, answers out."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.flit import FlitStream
from hw.memory_node.group.answers import AnswerMaker
from hw.memory_node.group.channel_port import ChannelPort
from hw.memory_node.group.dispatch import Dispatch
from hw.memory_node.group.intake import Intake
from hw.memory_node.group.layouts import Allocation, Events
from hw.memory_node.group.mover import WriteCollector, WriteMover
from hw.memory_node.group.stripes import StripeWalker, give_bursts

__all__ = ["GroupEngine"]


class GroupEngine(wiring.Component):
    """Does what the requests of a group's links ask (docs/memory-node-spec.md).

    Every link moves a flit a cycle in each direction, every channel a line. Each link reaches all
    channels. Requests of a link are executed and answered in order, several at a time.

    Members
    -------
    node : In(8)
        The node's number.
    allocation : In(:data:`~hw.memory_node.group.layouts.Allocation`)
        Like ``node``, it may change only while nothing is under way.
    requests, answers : In(FlitStream), Out(FlitStream), one for each link
    memory : Out(:class:`~hw.axi.bus.AXI4Signature`), one for each channel
    events : Out(:data:`~hw.memory_node.group.layouts.Events`), one for each link
    """

    def __init__(self, config: MemoryNodeConfig) -> None:
        self._config = config
        links = config.group_links
        super().__init__(
            {
                "node": In(8),
                "allocation": In(Allocation),
                "requests": In(FlitStream).array(links),
                "answers": Out(FlitStream).array(links),
                "memory": Out(config.axi).array(config.group_channels),
                "events": Out(Events).array(links),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        config = self._config
        ports: list[Any] = [ChannelPort(config) for _ in range(config.group_channels)]
        for index, (port, memory) in enumerate(zip(ports, self.memory, strict=True)):
            m.submodules[f"channel_{index}"] = port
            wiring.connect(m, port.axi, wiring.flipped(memory))
        for link in range(config.group_links):
            self._link(m, link, ports)
        return m

    def _link(self, m: Any, link: int, ports: list[Any]) -> None:
        config = self._config
        parts: tuple[Any, ...] = (
            Intake(config), Dispatch(config), StripeWalker(config), WriteMover(config),
            WriteCollector(config), AnswerMaker(config),
        )  # fmt: skip
        intake, dispatch, reader, mover, collector, maker = parts
        for part in parts:
            m.submodules[f"{type(part).__name__}_{link}".lower()] = part
        for source, target in (
            (wiring.flipped(self.requests[link]), intake.i),
            (intake.jobs, dispatch.i),
            (intake.lines, mover.lines),
            (intake.answers, maker.answers),
            (dispatch.reads, reader.i),
            (dispatch.fetches, maker.fetches),
            (dispatch.writes, mover.i),
            (dispatch.stores, collector.i),
            (collector.o, maker.stored),
            (maker.o, wiring.flipped(self.answers[link])),
        ):
            wiring.connect(m, source, target)
        m.d.comb += [
            intake.node.eq(self.node),
            intake.allocation.eq(self.allocation),
            intake.answered.eq(maker.answered),
            dispatch.done.eq(maker.done),
            maker.node.eq(self.node),
            self.events[link].eq(maker.events),
            self.events[link].line_written.eq(mover.written),
            maker.available.eq(Cat(port.available[link] for port in ports)),
        ]
        give_bursts(m, reader, [port.reads[link] for port in ports])
        for index, port in enumerate(ports):
            wiring.connect(m, mover.bursts[index], port.writes[link])
            wiring.connect(m, mover.data[index], port.data[link])
            wiring.connect(m, port.written[link], collector.answers[index])
            m.d.comb += [
                port.fetch[link].eq(maker.fetch[index]),
                maker.lines[index].eq(port.lines[link]),
            ]
