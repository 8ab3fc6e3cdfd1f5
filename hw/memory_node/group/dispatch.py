"""Dispatcher of a link's jobs that keeps reads and writes of the same memory in order."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.logic.line import AXI_BURST_BITS
from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.group.layouts import Job, Place
from hw.memory_node.group.stripes import StripeFinder
from hw.stream.fifo import StreamFifo

__all__ = ["Dispatch"]


class Dispatch(wiring.Component):
    """Finds the place of each job and hands it out; reads and writes then go on side by side.

    AXI4 does not order reads and writes against each other. So a job waits until no job of the
    other kind is in flight on a 4 KB page that it touches.

    Members
    -------
    i : In(stream of :class:`~hw.memory_node.group.layouts.Job`)
    done : In(1)
        Pulse: the oldest job under way is done, as far as memory is concerned.
    reads, fetches : Out(stream of :class:`~hw.memory_node.group.layouts.Place`)
        Each read, for who asks memory and for who takes its data.
    writes, stores : Out(stream of :class:`~hw.memory_node.group.layouts.Place`)
        Each write, for who gives data to memory and for who takes its answers.
    """

    def __init__(self, config: MemoryNodeConfig) -> None:
        self._config = config
        places = stream.Signature(Place(config))
        super().__init__(
            {
                "i": In(stream.Signature(Job(config))),
                "done": In(1),
                **{name: Out(places) for name in ("reads", "fetches", "writes", "stores")},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        config = self._config
        depth = config.requests
        m.submodules.finder = finder = StripeFinder(config)
        wiring.connect(m, wiring.flipped(self.i), finder.i)

        job: Any = self.i.payload
        page_bits = len(job.line) - AXI_BURST_BITS
        under_way = data.StructLayout({"write": 1, "first": page_bits, "last": page_bits})
        last_line = Signal.like(job.line)
        new: Any = Signal(under_way)
        m.d.comb += [
            last_line.eq(job.line + job.lines - 1),
            new.write.eq(job.write),
            new.first.eq(job.line[AXI_BURST_BITS:]),
            new.last.eq(last_line[AXI_BURST_BITS:]),
        ]
        table: list[Any] = [
            Signal(under_way, name=f"under_way_{index}", reset_less=True) for index in range(depth)
        ]
        busy = Signal(depth)
        oldest, free = Signal(range(depth)), Signal(range(depth))
        # A job touches one page or two.
        touches = Cat(
            (entry.write != new.write)
            & ((entry.first == new.first) | (entry.first == new.last) | (entry.last == new.first))
            for entry in table
        )
        go = Signal()
        m.d.comb += [
            go.eq(finder.o.valid & ~(touches & busy).any()),
            finder.o.ready.eq(go),
        ]
        with m.If(go):
            m.d.sync += [busy.bit_select(free, 1).eq(1), free.eq(free + 1)]
            for index, entry in enumerate(table):
                with m.If(free == index):
                    m.d.sync += entry.eq(new)
        with m.If(self.done):
            m.d.sync += [busy.bit_select(oldest, 1).eq(0), oldest.eq(oldest + 1)]

        # Each of these FIFOs holds as many jobs as can be in flight.
        for name, write in (("reads", 0), ("fetches", 0), ("writes", 1), ("stores", 1)):
            m.submodules[name] = fifo = StreamFifo(shape=Place(config), depth=depth, early=True)
            m.d.comb += [
                fifo.i.valid.eq(go & (job.write == write)),
                fifo.i.payload.eq(finder.o.payload),
            ]
            wiring.connect(m, fifo.o, wiring.flipped(getattr(self, name)))
        return m
