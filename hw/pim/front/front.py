"""The front of the pool: a descriptor in, the work out, checked and planned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amaranth.hdl import Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.pim.config import PimConfig
from hw.pim.front.calculator import Calculator, WordWriteSignature
from hw.pim.front.checker import Checker
from hw.pim.front.microcode import Microcode
from hw.pim.front.planner import Planner
from hw.pim.work.layouts import Jobs

__all__ = ["Front", "front_program"]


def front_program(config: PimConfig) -> Microcode:
    """What is computed of a descriptor. Its results are the values with the names of the fields of
    :attr:`hw.pim.work.layouts.Jobs.checked`, all zero before."""
    program = Microcode()
    checker, planner = Checker(program, config), Planner(program, config)
    common = program.label()
    for opcode, label in checker.opcodes().items():
        program.put(label)
        checker.work(opcode)
        planner.work(opcode)
        program.jump(common)
    program.put(common)
    checker.units()
    planner.units()
    planner.plan()
    checker.refusals()
    return program


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of a view that are not made of others, with their names."""
    layout = value.shape() if isinstance(value, data.View) else None
    if isinstance(layout, data.Layout):
        for key, _ in layout:
            yield from _leaves(value[key], f"{name}.{key}" if name else str(key))
    else:
        yield name, value


class Front(wiring.Component):
    """Checks and plans works, one after the other, in sequence (docs/pim-spec.md, "Refused works").

    The cause is that of the specification except for FULL, which the front does not know. A work
    takes less than 1,100 cycles, by its kind.

    Parameters
    ----------
    config
        The pool's.

    Members
    -------
    descriptor_write : In(:class:`~hw.pim.front.calculator.WordWriteSignature`)
        Ignored while it is ``busy``, since what has been checked must not change. After a reset all
        words are to be written before ``start``.
    start : In(1)
        A pulse: the descriptor is complete. Ignored while it is ``busy``.
    busy : Out(1)
        A descriptor is being checked, or has been and ``o`` has not been taken.
    o : Out(stream of :attr:`hw.pim.work.layouts.Jobs.checked`)
    """

    descriptor_write: Any
    start: Any
    busy: Any
    o: Any

    def __init__(self, config: PimConfig) -> None:
        self._config = config
        super().__init__(
            {
                "descriptor_write": In(WordWriteSignature()),
                "start": In(1),
                "busy": Out(1),
                "o": Out(stream.Signature(Jobs(config).checked)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        program = front_program(self._config)
        m.submodules.calculator = calculator = Calculator(program)
        write, result = self.descriptor_write, calculator.value_write
        m.d.comb += [
            calculator.word_write.enable.eq(write.enable & ~self.busy),
            calculator.word_write.index.eq(write.index),
            calculator.word_write.data.eq(write.data),
            calculator.start.eq(self.start & ~self.busy),
            self.busy.eq(calculator.busy | self.o.valid),
        ]
        with m.If(calculator.start):
            m.d.sync += self.o.payload.eq(0)
        with m.If(calculator.done):
            m.d.sync += self.o.valid.eq(1)
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(result.enable), m.Switch(result.address):
            for name, field in _leaves(self.o.payload):
                if name in program.values:
                    with m.Case(program.values[name]):
                        m.d.sync += field.eq(result.data)
        return m
