"""Crossbar of streams, from every input to every output."""

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
    """Return the layout of an input: a payload and the number of its output.

    ``follows``: the payload has the same output as the previous one, and the output should take
    both without another input's payload between them.
    """
    return data.StructLayout({"payload": shape, "to": range(outputs), "follows": 1})


class Crossbar(wiring.Component):
    """Crossbar that carries payloads from any input to any output, one a cycle at each.

    Outputs serve their waiting inputs in turn. So an input waits at most once for each other input
    and the payloads that follow there. Payloads of an input stay in order, also to different
    outputs: a payload that waits blocks those behind it. Without contention, the latency is three
    cycles: the input's queue, the choice, and the move to the output's queue.

    No ``ready`` depends on another, nor on a ``valid``, in the same cycle.

    Parameters
    ----------
    shape
        Shape of a payload.
    inputs, outputs
        Numbers of inputs and outputs, from 1.
    name
        Prefix of the names of the Verilog modules of an input and of an output.

    Members
    -------
    i_0, i_1, ... : In(stream of :func:`crossbar_layout`)
        ``to`` must be below ``outputs``.
    o_0, o_1, ... : Out(stream of ``shape``)
    idle : Out(1)
        No payload is inside.

    Examples
    --------
    >>> from hw.verilog.writer import to_verilog
    >>> text = to_verilog(Crossbar(shape=8, inputs=4, outputs=2, name="bar"), "top")
    >>> [text.count(f"  bar_{end} ") for end in ("input", "output")]  # instances
    [4, 2]
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
            inputs.append(source := Shared(one_input, name=f"{self._name}_input"))
            m.submodules[f"input_{number}"] = source
            wiring.connect(m, wiring.flipped(getattr(self, f"i_{number}")), source.i)
        for number in range(self._outputs):
            outputs.append(target := Shared(one_output, name=f"{self._name}_output"))
            m.submodules[f"output_{number}"] = target
            wiring.connect(m, target.o, wiring.flipped(getattr(self, f"o_{number}")))

        waiting = Signal(self._inputs)
        following = Signal(self._inputs)
        served: Any = Signal(self._inputs)
        m.d.comb += [
            waiting.eq(~Cat(source.empty for source in inputs)),
            following.eq(waiting & Cat(source.follows for source in inputs)),
            served.eq(reduce(or_, (target.grant for target in outputs))),
            self.idle.eq(~(waiting.any() | Cat(target.busy for target in outputs).any())),
        ]
        # Payloads that move from input to output: a place for each input.
        m.submodules.moving = moving = memory.Memory(
            shape=Shape.cast(self._shape).width, depth=self._inputs, init=[]
        )
        for number, source in enumerate(inputs):
            write = moving.write_port()
            m.d.comb += [
                source.served.eq(served[number]),
                write.addr.eq(number),
                write.data.eq(source.payload),
                write.en.eq(served[number]),
            ]
        by_output = self._by_output(m, waiting, [source.to for source in inputs])
        for target, requests in zip(outputs, by_output, strict=False):
            read = moving.read_port(domain="comb")
            m.d.comb += [
                target.waiting.eq(requests),
                target.following.eq(following),
                read.addr.eq(target.mover),
                target.payload.eq(read.data),
            ]
        return m

    def _by_output(self, m: Any, waiting: Any, to: list[Any]) -> list[Any]:
        """Return, for each output, the ``waiting`` inputs that want it, a bit for each.

        It splits all inputs at once by each bit of the output's number. A simulator runs this much
        faster than a comparison for each input and output.
        """
        groups: list[Any] = [waiting]
        for bit in reversed(range((self._outputs - 1).bit_length())):
            upper, lower = Signal(self._inputs), Signal(self._inputs)
            m.d.comb += [upper.eq(waiting & Cat(number[bit] for number in to)), lower.eq(~upper)]
            halves = []
            for group in groups:
                for side in (lower, upper):
                    halves.append(half := Signal(self._inputs))
                    m.d.comb += half.eq(group & side)
            groups = halves
        return groups


class _Input(wiring.Component):
    """Queue of an input.

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
        Pulse: the first payload leaves.
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
    """Arbiter of an output, and its queue.

    Members
    -------
    waiting, following : In(inputs)
        Inputs with a first payload for this output, and inputs with a first payload that follows.
    grant : Out(inputs)
        The input that is served, or none.
    mover : Out(range(inputs))
        Number of the input served last; its payload moves in the cycle after its grant.
    payload : In(width of ``shape``)
        The payload that moves.
    o : Out(stream of ``shape``)
    busy : Out(1)
        A payload moves or is in the queue.
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
        # Room is reserved when an input is served, so a moving payload always has a place.
        room = Signal(range(_OUT_DEPTH + 1), init=_OUT_DEPTH)
        get = self.o.valid & self.o.ready
        # The input served last, one-hot.
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
