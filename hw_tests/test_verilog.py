"""Verilog generation: what memories begin with."""

from __future__ import annotations

import re
from typing import Any

import pytest
from amaranth.hdl import Module, Shape, signed, unsigned
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from hw.verilog import to_verilog


class Table(wiring.Component):
    """A memory that is read."""

    def __init__(self, shape: Shape, init: list[int], depth: int) -> None:
        self._memory = memory.Memory(shape=shape, depth=depth, init=init)
        super().__init__({"address": In(range(depth)), "value": Out(shape)})

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.memory = table = self._memory
        port = table.read_port()
        m.d.comb += [port.addr.eq(self.address), self.value.eq(port.data), port.en.eq(1)]
        return m


@pytest.mark.parametrize(
    ("shape", "init", "written"),
    [
        (unsigned(5), [1, 18, 31], [1, 18, 31, 0]),
        (signed(5), [-1, -16, 15], [31, 16, 15, 0]),
    ],
)
def test_memories_begin_with_their_contents(
    shape: Shape, init: list[int], written: list[int]
) -> None:
    text = to_verilog(Table(shape, init, depth=4), "table")
    found = re.findall(r"^\s*memory\[(\d+)\] = 5'h(\w+);", text, re.MULTILINE)
    assert {int(row): int(value, 16) for row, value in found} == dict(enumerate(written))
