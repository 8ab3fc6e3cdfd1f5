"""The pipeline builder: what it balances and what it refuses."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.dataflow.flow import Flow, FlowError, FlowValue, sqrt
from hw.dataflow.unit import FlowUnit
from hw.logic.delay import Delay
from hw.verilog.writer import to_verilog
from hw_tests.bench import run_bench
from hw_tests.dataflow.rules import momentum, spread
from hw_tests.float.player import PLAYER_BUILD_ARGS, PLAYER_TOP, player_text

SEED = int(os.environ.get("NEARMEM_TEST_SEED", "1"))


class Momentum(FlowUnit):
    def __init__(self) -> None:
        super().__init__(
            momentum, inputs=("p", "g", "m"), constants=("mu", "lr"), outputs=("p", "m")
        )


class Spread(FlowUnit):
    def __init__(self) -> None:
        super().__init__(
            spread, inputs=("a", "b"), constants=("c",), outputs=("ratio", "total", "a", "late")
        )


class DelayLine(wiring.Component):
    """A delay between the ports of an operator."""

    def __init__(self, cycles: int) -> None:
        self.latency = cycles
        self.module_name = f"delay_line_{cycles}"
        super().__init__({"i_valid": In(1), "i_a": In(13), "o_valid": Out(1), "o_y": Out(13)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        ports: Any = self
        m.submodules.data = data = Delay(width=13, cycles=self.latency)
        valid: Any = Signal(self.latency + 1)
        m.d.comb += [data.i.eq(ports.i_a), ports.o_y.eq(data.o)]
        m.d.comb += [valid[0].eq(ports.i_valid), ports.o_valid.eq(valid[-1])]
        m.d.sync += valid[1:].eq(valid[:-1])
        return m


DELAYS = (1, 6, 7, 30)


@cache
def simulator() -> str:
    # One for everything here: building takes longer than running.
    return player_text([Momentum(), Spread(), *map(DelayLine, DELAYS)])


def run(testcase: str, **parameters: int) -> None:
    run_bench(
        simulator(),
        top=PLAYER_TOP,
        module="hw_tests.dataflow.flow_bench",
        testcase=testcase,
        build_args=PLAYER_BUILD_ARGS,
        parameters={"seed": SEED, **parameters},
    )


@pytest.mark.parametrize("rule", ["momentum", "spread"])
def test_pipeline_computes_its_formula(rule: str) -> None:
    run(rule)


@pytest.mark.parametrize("cycles", DELAYS)
def test_delay(cycles: int) -> None:
    run("delay", cycles=cycles)


def test_stages_and_latency() -> None:
    flow = Flow()
    a, b = flow.input("a"), flow.input("b")
    c = flow.constant("c")
    product = a * c
    total = product + b
    assert (a.stage, c.stage, product.stage, total.stage) == (0, None, 6, 12)
    assert sqrt(total).stage == 39
    assert (total / a).stage == 41
    assert Momentum().latency == 24


def test_operators_are_one_module_each() -> None:
    text = to_verilog(Spread(), "spread")
    for module in ("fp32_add", "fp32_mul", "fp32_div", "fp32_sqrt"):
        assert text.count(f"\nmodule {module} (") == 1
    assert text.count("\n  fp32_add ") == 3


def unit(rule: Callable[..., dict[str, FlowValue]], **changed: Any) -> FlowUnit:
    names = {"inputs": ("a", "b"), "constants": ("c",), "outputs": ("y",)}
    return FlowUnit(rule, **{**names, **changed})


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda a, b, c: {"y": a * c}, "input 'b' is not connected"),
        (lambda a, b, c: {"y": a * b}, "constant 'c' is not connected"),
        (lambda a, b, c: {"z": a * b + c}, r"sets the outputs \['z'\], expected \['y'\]"),
        (lambda a, b, c: {}, r"sets the outputs \[\], expected \['y'\]"),
        (lambda a, b, c: {"y": a * b + c, "z": a}, r"outputs \['y', 'z'\], expected \['y'\]"),
        (lambda a, b, c: {"y": (a + b + c, a * c)[0]}, r"\(a \* c\) is computed but not used"),
        (lambda a, b, c: {"y": (a + b + c, -a)[0]}, r"\(-a\) is computed but not used"),
        (lambda a, b, c: {"y": a + b + c * c}, r"\(c \* c\) has only constants as operands"),
        (lambda a, b, c: {"y": a + b + c * 2}, "2 is not a value of the pipeline"),
        (lambda a, b, c: {"y": 2.0 * a + b + c}, "2.0 is not a value of the pipeline"),
        (lambda a, b, c: {"y": 1 / a + b + c}, "1 is not a value of the pipeline"),
        (lambda a, b, c: {"y": a - 1 + b + c}, "1 is not a value of the pipeline"),
        (lambda a, b, c: {"y": sqrt(cast(Any, 2)) * a}, "takes a value of a flow, got 2"),
        (lambda a, b, c: {"y": 3}, "3 is not a value of the pipeline"),
    ],
)
def test_refuses_formulas(rule: Callable[..., dict[str, FlowValue]], message: str) -> None:
    with pytest.raises(FlowError, match=message):
        unit(rule)


def test_refuses_names() -> None:
    def rule(**values: FlowValue) -> dict[str, FlowValue]:
        return values

    with pytest.raises(FlowError, match="name 'a' is taken"):
        unit(rule, constants=("a",))
    with pytest.raises(FlowError, match="'not a name' is not an identifier"):
        unit(rule, inputs=("not a name",))


def test_refuses_values_of_another_pipeline() -> None:
    one, other = Flow(), Flow()
    a, b = one.input("a"), other.input("b")
    for mix in (lambda: a + b, lambda: a - b, lambda: one.output("y", b)):
        with pytest.raises(FlowError, match="b belongs to another pipeline"):
            mix()


def test_refuses_no_output_and_two_of_a_name() -> None:
    flow = Flow()
    a = flow.input("a")
    with pytest.raises(FlowError, match="has no output"):
        flow.finish()
    flow.output("y", a)
    with pytest.raises(FlowError, match="output 'y' is set twice"):
        flow.output("y", a)


@pytest.mark.parametrize(("width", "cycles"), [(0, 1), (1, 0)])
def test_delay_refuses(width: int, cycles: int) -> None:
    with pytest.raises(ValueError, match="is 0, expected 1 or more"):
        Delay(width=width, cycles=cycles)
