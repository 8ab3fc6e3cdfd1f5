"""A loader, FIFOs and a writer, back to back: copies tensors block by block."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.bus import AXI4Signature
from hw.logic.expose import expose
from hw.logic.line import LINE_BITS, LINE_BYTES, line_width
from hw.stream.block_loader import BlockLoader
from hw.stream.block_writer import BlockWriter
from hw.stream.fifo import StreamFifo
from hw.stream.rounds import RoundsLayout, share_members

__all__ = ["BlockMover"]


class BlockMover(wiring.Component):
    """Loader and writer on one AXI4 port, with what a bench wants to see of them.

    ``room`` is the depth of the FIFOs; the loader and the writer work with ``buffer_blocks``.
    A round is handed from the loader to the writer when ``hand_over`` is high. Of tensors that are
    not ``uneven`` all are present, and the first one's ``tail`` and strobes are those of all.
    """

    def __init__(
        self,
        *,
        tensors: int,
        block_beats: int,
        buffer_blocks: int,
        addr_width: int,
        uneven: bool = False,
    ) -> None:
        layout = RoundsLayout(block_beats=block_beats, beats_width=addr_width - 5)
        self._tensors = tensors
        self._uneven = uneven
        self._depth = block_beats * buffer_blocks
        options: dict[str, Any] = {
            "layout": layout,
            "tensors": tensors,
            "buffer_blocks": buffer_blocks,
            "addr_width": addr_width,
            "uneven": uneven,
        }
        self._loader = BlockLoader(**options)
        self._writer = BlockWriter(**options)
        line = line_width(addr_width)
        shares = share_members(layout=layout, tensors=tensors, uneven=True)
        super().__init__(
            {
                "m_axi": Out(AXI4Signature(addr_width=addr_width, data_width=LINE_BITS)),
                "start": In(1),
                "last_round": In(layout["last_round"].shape),
                **shares,
                "last_strobes": In(LINE_BYTES).array(tensors),
                "source": In(line).array(tensors),
                "target": In(line).array(tensors),
                "hand_over": In(1),
                "stop": In(1),
                **{
                    name: Out(1)
                    for name in (
                        "loaded", "stored", "load_idle", "store_idle", "load_error", "store_error"
                    )
                },
            }
        )  # fmt: skip

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.loader = loader = self._loader
        m.submodules.writer = writer = self._writer
        for part in (loader, writer):
            m.d.comb += [
                part.load.eq(self.start),
                part.start.eq(self.start),
                part.rounds.last_round.eq(self.last_round),
                part.stop.eq(self.stop),
            ]
            if self._uneven:
                expose(m, self, part, ("present", "full", "tail"))
            else:
                m.d.comb += part.rounds.tail_beats.eq(self.tail[0])
        if self._uneven:
            expose(m, self, writer, ("last_strobes",))
        else:
            m.d.comb += writer.last_strobes.eq(self.last_strobes[0])
        for index in range(self._tensors):
            m.submodules[f"fifo_{index}"] = fifo = StreamFifo(shape=LINE_BITS, depth=self._depth)
            wiring.connect(m, loader.o[index], fifo.i)
            wiring.connect(m, fifo.o, writer.i[index])
            m.d.comb += [
                fifo.flush.eq(self.start),
                loader.lines[index].eq(self.source[index]),
                writer.lines[index].eq(self.target[index]),
            ]
        for part in (loader, writer):
            expose(m, self.m_axi, part.axi, part.axi.signature.members)
        m.d.comb += [
            writer.filled.eq(self.hand_over),
            loader.freed.eq(writer.stored),
            self.loaded.eq(loader.loaded),
            self.stored.eq(writer.stored),
            self.load_idle.eq(loader.idle),
            self.store_idle.eq(writer.idle),
            self.load_error.eq(loader.error),
            self.store_error.eq(writer.error),
        ]
        return m
