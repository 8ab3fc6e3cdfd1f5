"""A fixed delay."""

from __future__ import annotations

from functools import cache
from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hw.logic.shared import Shared

__all__ = ["Delay", "shared_delay"]

# Moving a word through a few registers is cheaper than reading and writing a memory.
_LONGEST_CHAIN = 6


class Delay(wiring.Component):
    """Gives back what it is given, ``cycles`` clock cycles later.

    A short delay is a chain of registers, a longer one a ring memory. Only one word of the memory
    moves each cycle, so that a long delay costs no more than a short one in simulation. Data has
    no reset: for ``cycles`` cycles after a reset ``o`` is old or arbitrary.

    Parameters
    ----------
    width
        Bits, 1 or more.
    cycles
        Delay, 1 or more.

    Members
    -------
    i : In(width)
    o : Out(width)
        ``i`` of ``cycles`` cycles ago.

    Examples
    --------
    >>> from hw.sim.outputs import outputs
    >>> delay = Delay(width=8, cycles=3)
    >>> [outputs(delay, cycles, i=7)["o"] for cycles in range(5)]
    [0, 0, 0, 7, 7]
    """

    def __init__(self, *, width: int, cycles: int) -> None:
        if width < 1:
            raise ValueError(
                f"width is {width}, expected 1 or more; a delay carries at least a bit"
            )
        if cycles < 1:
            raise ValueError(
                f"cycles is {cycles}, expected 1 or more; use the value itself for no delay"
            )
        self._width = width
        self._cycles = cycles
        super().__init__({"i": In(width), "o": Out(width)})

    @property
    def module_name(self) -> str:
        """Name of the Verilog module; unique to the configuration."""
        return f"delay_{self._cycles}_cycles_{self._width}_bits"

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        if self._cycles <= _LONGEST_CHAIN:
            value: Any = self.i
            for cycle in range(self._cycles):
                stage = Signal(self._width, name=f"stage_{cycle}", reset_less=True)
                m.d.sync += stage.eq(value)
                value = stage
            m.d.comb += self.o.eq(value)
            return m

        # A slot is read in the cycle in which it is written again. The last two cycles of the delay
        # are the read register and one more register: a block RAM takes most of a cycle to give
        # its word, and arithmetic follows.
        depth = self._cycles - 2
        slot = Signal(range(depth))
        # A depth that is a power of two spares simulators a bounds check; the rest stays unused.
        m.submodules.ring = ring = Memory(shape=self._width, depth=1 << len(slot), init=[])
        write: Any = ring.write_port()
        read: Any = ring.read_port()
        o = Signal(self._width, reset_less=True)
        m.d.sync += o.eq(read.data)
        m.d.sync += slot.eq(Mux(slot == depth - 1, 0, slot + 1))
        m.d.comb += [
            write.addr.eq(slot),
            write.data.eq(self.i),
            write.en.eq(1),
            read.addr.eq(slot),
            self.o.eq(o),
        ]
        return m


_delay = cache(Delay)


def shared_delay(*, width: int, cycles: int) -> Any:
    """Return a :class:`Delay` to place as a submodule; equal ones become one Verilog module."""
    delay = _delay(width=width, cycles=cycles)
    return Shared(delay, name=delay.module_name)
