"""Queue of bursts between the AXI front end and the schedulers of the DRAM controller."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from hw.dram.address_map import line_layout
from hw.dram.geometry import DramGeometry
from hw.logic.counter import step
from hw.logic.line import AXI_BURST_BITS

__all__ = ["SEQUENCE_BITS", "RequestQueue", "request_layout"]

SEQUENCE_BITS = 12
"""Width of a request's sequence number, which wraps around."""


def request_layout(geometry: DramGeometry) -> data.StructLayout:
    """Return the layout of a burst: direction, first line, and ``length`` (its lines less one).

    All lines lie in the aligned 4 KB of the first, and so in one row of a pair of bank groups.
    """
    return data.StructLayout({"write": 1, "line": line_layout(geometry), "length": AXI_BURST_BITS})


class RequestQueue(wiring.Component):
    """Requests in order, read at two places: where rows are prepared and where columns go.

    A request pushed in one cycle is at ``plan`` in the next if nothing is ahead of it. ``plan``
    runs ahead of ``column``; a request reaches ``column`` only after a pulse on ``prepared``.
    ``replan`` moves ``plan`` back to the request at ``column``, after its rows were closed.

    ``depth`` is a power of two.

    Members
    -------
    push, request, room : In(1), In(request), Out(1)
        ``push`` only while ``room``.
    plan_valid, plan, plan_sequence : Out(1), Out(request), Out(SEQUENCE_BITS)
        The next request whose rows are to be prepared.
    plan_next : In(1)
        Moves ``plan`` on to the request behind it.
    prepared : In(1)
        One more request, in order, has its rows open or on the way.
    column_valid, column, column_sequence : Out(1), Out(request), Out(SEQUENCE_BITS)
        The oldest request.
    column_next : In(1)
        Removes the request at ``column``.
    replan : In(1)
        See above; not together with any other event but ``push``.
    level : Out(range(depth + 1))
        Requests held.
    """

    def __init__(self, *, geometry: DramGeometry, depth: int) -> None:
        self._layout = request_layout(geometry)
        self._depth = depth
        super().__init__(
            {
                "push": In(1),
                "request": In(self._layout),
                "room": Out(1),
                "plan_valid": Out(1),
                "plan": Out(self._layout),
                "plan_sequence": Out(SEQUENCE_BITS),
                "plan_next": In(1),
                "prepared": In(1),
                "column_valid": Out(1),
                "column": Out(self._layout),
                "column_sequence": Out(SEQUENCE_BITS),
                "column_next": In(1),
                "replan": In(1),
                "level": Out(range(depth + 1)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        storage: Any = memory.Memory(shape=self._layout, depth=self._depth, init=[])
        m.submodules.storage = storage
        write = storage.write_port()
        plan = storage.read_port(domain="comb")
        column = storage.read_port(domain="comb")

        tail = Signal(SEQUENCE_BITS)
        ready = Signal(range(self._depth + 1))
        m.d.comb += [
            self.room.eq(self.level != self._depth),
            write.addr.eq(tail),
            write.data.eq(self.request),
            write.en.eq(self.push),
            plan.addr.eq(self.plan_sequence),
            self.plan.eq(plan.data),
            self.plan_valid.eq(self.plan_sequence != tail),
            column.addr.eq(self.column_sequence),
            self.column.eq(column.data),
            self.column_valid.eq(ready != 0),
        ]
        step(m, self.level, up=self.push, down=self.column_next)
        step(m, ready, up=self.prepared, down=self.column_next)
        for moves, pointer in (
            (self.push, tail),
            (self.plan_next, self.plan_sequence),
            (self.column_next, self.column_sequence),
        ):
            with m.If(moves):
                m.d.sync += pointer.eq(pointer + 1)
        with m.If(self.replan):
            m.d.sync += [self.plan_sequence.eq(self.column_sequence), ready.eq(0)]
        return m
