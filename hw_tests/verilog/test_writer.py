"""Verilog generation: equal units are one module, different ones never; memories begin right."""

from __future__ import annotations

import re
from typing import Any

import pytest
from amaranth.hdl import Module, Shape, Signal, signed, unsigned
from amaranth.hdl._nir import CombinationalCycle  # not exported
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from hw.dataflow.flow import FlowValue, Formula
from hw.dataflow.unit import FlowUnit
from hw.kernel.unit import RuleUnit
from hw.logic.shared import Shared
from hw.rules import rule
from hw.sim.delay_unit import DelayUnit
from hw.verilog.writer import ports_of, to_verilog


def product_rule() -> Formula:
    def rule(*, a: FlowValue, b: FlowValue) -> dict[str, FlowValue]:
        return {"y": a * b}

    return rule


def sum_rule() -> Formula:
    """Another formula that has the name of the first."""

    def rule(*, a: FlowValue, b: FlowValue) -> dict[str, FlowValue]:
        return {"y": a * b + a}

    return rule


def unit(rule: Formula) -> FlowUnit:
    return FlowUnit(rule, inputs=("a", "b"), outputs=("y",))


class Placed(wiring.Component):
    """Units under their names, side by side."""

    def __init__(self, *units: Any) -> None:
        self._units = units
        super().__init__({"a": In(32), "y": Out(32).array(len(units))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        ports: Any = self
        for index, each in enumerate(self._units):
            shared: Any = Shared(each, name=each.module_name)
            m.submodules[f"unit_{index}"] = shared
            m.d.comb += [shared.i_a.eq(ports.a), ports.y[index].eq(shared.o_y)]
        return m


class Byte(wiring.Component):
    """A byte in, a byte out."""

    def __init__(self) -> None:
        super().__init__({"a": In(8), "y": Out(8)})


class Inverter(Byte):
    """Its module is called as the class, with the top's name before it."""

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.d.comb += self.y.eq(~self.a)
        return m


class Doubler(Byte):
    """Another module."""

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.d.comb += self.y.eq(self.a << 1)
        return m


class NamedAlike(Byte):
    """Has a shared module with the name that another one would have."""

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.one = one = Inverter()
        m.submodules.other = other = Shared(Doubler(), name="top_inverter")
        ports: Any = other
        m.d.comb += [one.a.eq(self.a), ports.a.eq(one.y), self.y.eq(ports.y)]
        return m


def test_a_module_does_not_take_the_name_of_a_shared_one() -> None:
    text = to_verilog(NamedAlike(), "top")
    modules = re.findall(r"^module (\w+)", text, re.MULTILINE)
    assert sorted(modules) == ["top", "top_inverter", "top_inverter_2"]


def test_different_units_of_one_name_are_refused() -> None:
    first, second = unit(product_rule()), unit(sum_rule())
    assert first.module_name == second.module_name == "rule_unit"
    assert ports_of(first) == ports_of(second)
    assert first.latency != second.latency
    with pytest.raises(ValueError, match="'rule_unit' stands for two different components"):
        to_verilog(Placed(first, second), "top")


def test_equal_units_are_one_module() -> None:
    text = to_verilog(Placed(unit(product_rule()), unit(product_rule())), "top")
    assert text.count("module rule_unit (") == 1
    assert text.count("  rule_unit unit_") == 2


def test_a_unit_may_not_have_the_name_of_the_whole() -> None:
    with pytest.raises(ValueError, match="'rule_unit' stands for two different components"):
        to_verilog(Placed(unit(product_rule())), "rule_unit")


def test_the_stand_in_for_a_unit_has_a_name_of_its_own() -> None:
    assert DelayUnit(rule("adam")).module_name != RuleUnit(rule("adam")).module_name


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
    found = re.findall(r"^\s*memory\[(\d+)\] = 5'd(\w+);", text, re.MULTILINE)
    assert {int(row): int(value) for row, value in found} == dict(enumerate(written))


class Parities(wiring.Component):
    """Bit by bit from the first, which may be that of the last."""

    def __init__(self, *, loop: bool) -> None:
        self._loop = loop
        super().__init__({"a": In(4), "y": Out(4)})

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        ports: Any = self
        parities = Signal(4)
        m.d.comb += parities[0].eq(parities[3] if self._loop else ports.a[0])
        m.d.comb += [parities[at].eq(parities[at - 1] ^ ports.a[at]) for at in range(1, 4)]
        m.d.comb += ports.y.eq(parities)
        return m


def test_a_loop_of_logic_is_refused() -> None:
    """And told bit by bit; that a signal depends on itself is none yet."""
    assert "assign y =" in to_verilog(Parities(loop=False), "parities")
    with pytest.raises(CombinationalCycle, match="signal parities bit 3"):
        to_verilog(Parities(loop=True), "parities")


def test_the_names_of_clock_and_reset_are_taken() -> None:
    class Taken(wiring.Component):
        def __init__(self) -> None:
            super().__init__({"rst": In(1), "y": Out(1)})

        def elaborate(self, platform: object) -> Module:
            m = Module()
            m.d.sync += self.y.eq(self.rst)
            return m

    with pytest.raises(ValueError, match="has a member 'rst'"):
        to_verilog(Taken(), "taken")
