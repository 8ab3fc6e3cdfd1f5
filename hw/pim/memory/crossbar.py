"""Crossbar of streams: every input reaches every output."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Shape, ShapeLike, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from hw.logic.shared import Shared
from hw.pim.selected import selected

__all__ = ["Crossbar", "crossbar_layout"]

_IN_DEPTH = 2
_OUT_DEPTH = 4


def crossbar_layout(shape: ShapeLike, outputs: int) -> data.StructLayout:
    """What an input carries: a payload, and the number of the output that it is for.

    ``follows``: it is for the same output as the payload before it, and the output should take it
    next if it took that one last.
    """
    return data.StructLayout({"payload": shape, "to": range(outputs), "follows": 1})


class Crossbar(wiring.Component):
    """Carries payloads from any input to any output, one a cycle at each.

    Outputs take in turn from the inputs that have something for them, so an input waits for each
    other one, with what follows there, once at most. What an input gives stays in order, also
    towards different outputs: a payload that waits for its output holds up what is behind it. It
    comes out three cycles after it went in, if no other is in its way: one for the queue of the
    input, one for the choice, one for the way to the queue of the output.

    No ``ready`` depends on another, nor on a ``valid``, in the same cycle.

    Parameters
    ----------
    shape
        Shape of a payload.
    inputs, outputs
        Numbers of inputs and outputs, from 1.
    name
        Begin of the names of its Verilog modules for an input and for an output.

    Members
    -------
    i_0, i_1, ... : In(stream of :func:`crossbar_layout`)
        ``to`` must be below ``outputs``.
    o_0, o_1, ... : Out(stream of ``shape``)
    idle : Out(1)
        There is nothing inside.
    """

    def __init__(self, *, shape: ShapeLike, inputs: int, outputs: int, name: str) -> None:
        self._shape = shape
        self._name = name
        self._inputs = inputs
        self._outputs = outputs
        layout = crossbar_layout(shape, outputs)
        super().__init__(
            {
                **{f"i_{number}": In(stream.Signature(layout)) for number in range(inputs)},
                **{f"o_{number}": Out(stream.Signature(shape)) for number in range(outputs)},
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        one_input = _Input(self._shape, self._outputs)
        one_output = _Output(self._shape, self._inputs)
        inputs: list[Any] = []
        outputs: list[Any] = []
        for number in range(self._inputs):
            inputs.append(each := Shared(one_input, name=f"{self._name}_input"))
            m.submodules[f"input_{number}"] = each
            wiring.connect(m, wiring.flipped(getattr(self, f"i_{number}")), each.i)
        for number in range(self._outputs):
            outputs.append(each := Shared(one_output, name=f"{self._name}_output"))
            m.submodules[f"output_{number}"] = each
            wiring.connect(m, each.o, wiring.flipped(getattr(self, f"o_{number}")))

        waiting = Signal(self._inputs)
        following = Signal(self._inputs)
        served: Any = Signal(self._inputs)
        m.d.comb += [
            waiting.eq(~Cat(each.empty for each in inputs)),
            following.eq(waiting & Cat(each.follows for each in inputs)),
            served.eq(reduce(or_, (each.grant for each in outputs))),
            self.idle.eq(~(waiting.any() | Cat(each.busy for each in outputs).any())),
        ]
        # What moves from input to output: a place for each input.
        m.submodules.moving = moving = memory.Memory(
            shape=Shape.cast(self._shape).width, depth=self._inputs, init=[]
        )
        for number, each in enumerate(inputs):
            write = moving.write_port()
            m.d.comb += [
                each.served.eq(served[number]),
                write.addr.eq(number),
                write.data.eq(each.payload),
                write.en.eq(served[number]),
            ]
        by_output = self._by_output(m, waiting, [each.to for each in inputs])
        for each, those in zip(outputs, by_output, strict=False):
            read = moving.read_port(domain="comb")
            m.d.comb += [
                each.waiting.eq(those),
                each.following.eq(following),
                read.addr.eq(each.mover),
                each.payload.eq(read.data),
            ]
        return m

    def _by_output(self, m: Any, waiting: Any, to: list[Any]) -> list[Any]:
        """For each output those of the inputs ``waiting`` that want it, a bit for each.

        Bit by bit of the outputs' numbers, for all inputs at once: a simulator is much faster with
        that than with a comparison for each input and output.
        """
        groups: list[Any] = [waiting]
        for bit in reversed(range((self._outputs - 1).bit_length())):
            upper, lower = Signal(self._inputs), Signal(self._inputs)
            m.d.comb += [upper.eq(waiting & Cat(each[bit] for each in to)), lower.eq(~upper)]
            halves = []
            for group in groups:
                for side in (lower, upper):
                    halves.append(half := Signal(self._inputs))
                    m.d.comb += half.eq(group & side)
            groups = halves
        return groups


class _Input(wiring.Component):
    """The queue of an input.

    Members
    -------
    i : In(stream of :func:`crossbar_layout`)
    empty : Out(1)
        There is no payload.
    to : Out(range(outputs))
    follows : Out(1)
    payload : Out(width of ``shape``)
        The first payload.
    served : In(1)
        The first payload goes.
    """

    def __init__(self, shape: ShapeLike, outputs: int) -> None:
        width = Shape.cast(shape).width
        super().__init__(
            {
                "i": In(stream.Signature(crossbar_layout(shape, outputs))),
                "empty": Out(1),
                "to": Out(range(outputs)),
                "follows": Out(1),
                "payload": Out(width),
                "served": In(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        given = self.i.payload
        word = Cat(given.payload, given.to, given.follows)
        m.submodules.queue = queue = SyncFIFO(width=len(word), depth=_IN_DEPTH)
        m.d.comb += [
            self.i.ready.eq(queue.w_rdy),
            queue.w_en.eq(self.i.valid),
            queue.w_data.eq(word),
            queue.r_en.eq(self.served),
            Cat(self.payload, self.to, self.follows).eq(queue.r_data),
            self.empty.eq(~queue.r_rdy),
        ]
        return m


class _Output(wiring.Component):
    """The choice of an output, and its queue.

    Members
    -------
    waiting, following : In(inputs)
        The inputs whose first payload is for this output, and those whose first payload follows.
    grant : Out(inputs)
        The input that is served, or none.
    mover : Out(range(inputs))
        The number of the input that was served last, whose payload moves in the cycle after that.
    payload : In(width of ``shape``)
        The payload that moves.
    o : Out(stream of ``shape``)
    busy : Out(1)
        Something moves or is in the queue.
    """

    def __init__(self, shape: ShapeLike, inputs: int) -> None:
        self._inputs = inputs
        super().__init__(
            {
                "waiting": In(inputs),
                "following": In(inputs),
                "grant": Out(inputs),
                "mover": Out(range(inputs)),
                "payload": In(Shape.cast(shape).width),
                "o": Out(stream.Signature(shape)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        # Room is counted when an input is served, so what moves is always taken.
        room = Signal(range(_OUT_DEPTH + 1), init=_OUT_DEPTH)
        get = self.o.valid & self.o.ready
        # The input that was served last, as a bit.
        last, pick = Signal(self._inputs), Signal(self._inputs)
        again, behind = Signal(self._inputs), Signal(self._inputs)
        m.d.comb += [
            again.eq(self.waiting & last & self.following),
            behind.eq(self.waiting & -last & ~last),
            pick.eq(Mux(again.any(), again, Mux(behind.any(), behind, self.waiting))),
            self.grant.eq(Mux(room != 0, pick & -pick, 0)),
        ]
        moving, serves = Signal(), Signal()
        m.d.comb += serves.eq((room != 0) & self.waiting.any())
        m.d.sync += [moving.eq(serves), room.eq(room - serves + get)]
        with m.If(serves):
            m.d.sync += [
                last.eq(self.grant),
                self.mover.eq(selected(range(self._inputs), self.grant)),
            ]

        m.submodules.queue = queue = SyncFIFO(width=len(self.payload), depth=_OUT_DEPTH)
        m.d.comb += [
            queue.w_en.eq(moving),
            queue.w_data.eq(self.payload),
            queue.r_en.eq(self.o.ready),
            self.o.payload.eq(queue.r_data),
            self.o.valid.eq(queue.r_rdy),
            self.busy.eq(moving | self.o.valid),
        ]
        return m
