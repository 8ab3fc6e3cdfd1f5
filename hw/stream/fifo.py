"""FIFO between two streams."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Shape, ShapeLike, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hw.logic.checks import is_int
from hw.logic.counter import step
from hw.logic.storage import NEVER_BOTH

__all__ = ["StreamFifo"]


class StreamFifo(wiring.Component):
    """First in, first out; the storage is one memory with a register behind it.

    It moves one payload a cycle in and one out at the same time, if ``depth`` is at least 3. A
    payload written to an empty FIFO appears at the output two cycles later.

    Parameters
    ----------
    shape
        Shape of the payload.
    depth
        Maximum number of payloads inside, 2 or more.
    early
        Drive the output from flip-flops, early in the cycle, and build the storage of lookup
        tables. It suits narrow payloads that much logic depends on, and small depths. Otherwise
        the output register is the block RAM's own, which takes most of a cycle on some FPGAs.

    Members
    -------
    i : In(stream of shape)
        What is put in.
    o : Out(stream of shape)
        What is taken out.
    level : Out(range(depth + 1))
        Payloads inside, the one at the output included.
    rests : Out(1)
        Nothing is inside, and the places to write and to read agree on that.
    flush : In(1)
        Empties the FIFO at the end of the cycle; ``i`` and ``o`` must not move then.

    Examples
    --------
    >>> from hw.sim.outputs import outputs
    >>> fifo = StreamFifo(shape=8, depth=4)
    >>> for cycles in (0, 2, 4):
    ...     after = outputs(fifo, cycles, i_valid=1, i_payload=7)
    ...     print(after["i_ready"], after["o_valid"], after["level"])
    1 0 0
    1 1 2
    0 1 4
    """

    def __init__(self, *, shape: ShapeLike, depth: int, early: bool = False) -> None:
        if not is_int(depth) or depth < 2:
            raise ValueError(f"depth of a FIFO must be an integer from 2, got {depth!r}")
        self._shape = shape
        self._depth = depth
        self._early = early
        super().__init__(
            {
                "i": In(stream.Signature(shape)),
                "o": Out(stream.Signature(shape)),
                "level": Out(range(depth + 1)),
                "rests": Out(1),
                "flush": In(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        width = Shape.cast(self._shape).width
        # Without `ram_style` synthesis takes the register behind the memory for a block RAM's own.
        attributes = {"ram_style": "distributed"} if self._early else NEVER_BOTH
        m.submodules.storage = storage = Memory(
            shape=width, depth=self._depth, init=[], attrs=attributes
        )
        write_port = storage.write_port()
        read_port = storage.read_port(domain="comb" if self._early else "sync")

        # `stored` counts the payloads in the memory that are not yet in the read port's register,
        # which holds the payload at the output while `o.valid`. Wide words wait for flip-flops
        # only: `some` is set if anything is stored, `full` if there is no room.
        stored = Signal(range(self._depth + 1))
        some, full = Signal(), Signal()
        o_valid = Signal()
        write = self.i.valid & ~full
        read = some & (~o_valid | self.o.ready)

        def advance(pointer: Signal) -> None:
            wrapped = Mux(pointer == self._depth - 1, 0, pointer + 1)
            m.d.sync += pointer.eq(wrapped)

        m.d.comb += [
            self.level.eq(stored + o_valid),
            self.i.ready.eq(~full),
            self.o.valid.eq(o_valid),
            write_port.data.eq(self.i.payload),
            write_port.en.eq(write),
        ]
        if self._early:
            head = Signal(width, reset_less=True)
            with m.If(read):
                m.d.sync += head.eq(read_port.data)
            m.d.comb += self.o.payload.eq(head)
        else:
            m.d.comb += [read_port.en.eq(read), self.o.payload.eq(read_port.data)]
        write_address, read_address = (Signal(range(self._depth)) for _ in range(2))
        m.d.comb += [
            write_port.addr.eq(write_address),
            read_port.addr.eq(read_address),
            self.rests.eq(~some & ~o_valid & (write_address == read_address)),
        ]
        with m.If(write):
            advance(write_address)
        with m.If(read):
            advance(read_address)
            m.d.sync += o_valid.eq(1)
        with m.Elif(self.o.ready):
            m.d.sync += o_valid.eq(0)
        step(m, stored, up=write, down=read)
        with m.If(write):
            m.d.sync += some.eq(1)
        with m.Elif(read):
            m.d.sync += some.eq(stored != 1)
        with m.If(o_valid & self.o.ready):
            m.d.sync += full.eq(0)
        with m.Elif(write):
            m.d.sync += full.eq(self.level == self._depth - 1)
        with m.If(self.flush):
            m.d.sync += [
                stored.eq(0),
                some.eq(0),
                full.eq(0),
                o_valid.eq(0),
                write_address.eq(0),
                read_address.eq(0),
            ]
        return m
