"""Memory column of a bank's buffers."""

from __future__ import annotations

from functools import cache
from typing import Any

from amaranth.hdl import Module
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import Out

from hw.logic.shared import Shared

__all__ = ["ColumnMemory", "shared_column"]


class ColumnMemory(wiring.Component):
    """Memory of ``words`` words of 32 bits, with one read and one write a cycle.

    A word can be read from the cycle after its write on. The read data stays until the next read.

    Members
    -------
    write : Out(:class:`amaranth.lib.memory.WritePort.Signature`)
    read : Out(:class:`amaranth.lib.memory.ReadPort.Signature`)
        Directions of both as the memory sees them.
    """

    def __init__(self, words: int) -> None:
        self._words = words
        address_bits = (words - 1).bit_length()
        super().__init__(
            {
                "write": Out(memory.WritePort.Signature(addr_width=address_bits, shape=32)),
                "read": Out(memory.ReadPort.Signature(addr_width=address_bits, shape=32)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.storage = storage = memory.Memory(shape=32, depth=self._words, init=[])
        wiring.connect(m, wiring.flipped(self.write), storage.write_port())
        wiring.connect(m, wiring.flipped(self.read), storage.read_port())
        return m


@cache
def _column(words: int) -> ColumnMemory:
    return ColumnMemory(words)


def shared_column(words: int) -> Any:
    """Return a :class:`ColumnMemory` as a submodule; equal ones become one Verilog module."""
    return Shared(_column(words), name=f"pim_column_{words}")
