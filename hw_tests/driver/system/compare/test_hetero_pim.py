"""The heterogeneous PIM in the comparison: the reproduction's step, parts, refusals."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from sw_driver.machine import Machine
from sw_driver.system.compare.bases import BASES
from sw_driver.system.compare.comparison import Row, compare
from sw_driver.system.compare.hetero_pim import SYSTEMS
from sw_driver.system.compare.system import all_parts_ns
from sw_driver.system.hetero_pim.configurations import HEADLINE, HETERO
from sw_driver.system.hetero_pim.costs import Costs
from sw_driver.system.hetero_pim.profiling import modelled, offered
from sw_driver.system.hetero_pim.runs import CALIBRATED_RATE, HeteroPimCase
from sw_driver.system.hetero_pim.scheduling import schedule
from sw_driver.system.outcome import Outcome
from sw_driver.workload import Trace, load_trace, peak_bytes

RTL, CALIBRATED = SYSTEMS
V100 = BASES["v100"]


def quiet(_: str) -> None:
    pass


def rows(trace: Trace, machine: Machine = V100, **changes: str) -> list[Row]:
    changed = machine.override({name.replace("__", "."): text for name, text in changes.items()})
    return compare(trace, changed, SYSTEMS, quiet)


def outcomes(name: str, machine: Machine = V100, **changes: str) -> list[Outcome]:
    made = [row.outcome for row in rows(load_trace(name), machine, **changes)]
    return [outcome for outcome in made if outcome is not None]


@pytest.mark.parametrize("name", ["vgg-19", "dcgan"])
def test_a_step_is_that_of_the_reproduction(name: str) -> None:
    peak = {"stack": peak_bytes(load_trace(name))}
    for made, rate in zip(outcomes(name), (0, CALIBRATED_RATE), strict=True):
        step = HeteroPimCase(network=name, unit_rate=rate).result(quiet)
        assert (made.step_ns, made.energy_j) == (step.step_ns, step.energy_j)
        assert made.peak_bytes == peak


def test_parts_are_what_a_look_at_every_nanosecond_finds() -> None:
    trace, costs = load_trace("gpt-tiny"), Costs(unit_rate=CALIBRATED_RATE)
    made = schedule(trace, costs, HETERO, offered(modelled(trace), HEADLINE.share))
    computing, updating = np.zeros((2, made.total_ns), bool)
    for row in made.rows:
        if trace.ops[row.op % len(trace.ops)].phase == "update":
            updating[row.begin_ns : row.end_ns] = True
        elif row.part == "compute":
            computing[row.begin_ns : row.end_ns] = True
    steady = slice(made.ends_ns[0], made.ends_ns[-2])
    by_hand = [int(active[steady].sum()) // 6 for active in (computing, updating & ~computing)]
    parts = all_parts_ns(outcomes("gpt-tiny")[1])
    assert [parts["computing"], parts["updating"]] == pytest.approx(by_hand, abs=1)
    assert min(by_hand) > 0
    assert parts["recomputing"] == 0
    assert sum(parts.values()) == made.step_ns


def test_the_stack_has_to_have_all_of_a_step() -> None:
    least = peak_bytes(load_trace("vgg-19"))
    assert len(outcomes("vgg-19", stack__capacity_bytes=str(least))) == 2
    for row in rows(load_trace("vgg-19"), stack__capacity_bytes=str(least - 1)):
        assert row.outcome is None
        assert row.reason == f"needs at least {least:,} bytes of stack, which has {least - 1:,}"
    assert not outcomes("gpt3-13b")
    assert len(outcomes("gpt3-13b", stack__capacity_bytes="256GiB")) == 2


def test_what_the_stack_does_not_suit_is_refused() -> None:
    trace = load_trace("word2vec")
    half = tuple(
        replace(tensor, element_bytes=2) if tensor.kind == "parameter" else tensor
        for tensor in trace.tensors
    )
    for row in rows(replace(trace, tensors=half)):
        assert row.reason == (
            "the stack's units compute FP32, and parameters of word2vec take 2 bytes each"
        )
    roots = tuple(replace(op, kind="sqrt", geometry=None) for op in trace.ops)
    for row in rows(replace(trace, ops=roots)):
        assert row.reason == "the stack's units can run no operation of word2vec"


def test_its_time_goes_with_the_stack_and_not_with_the_gpu() -> None:
    rtl, calibrated = outcomes("alexnet")
    assert calibrated.step_ns < rtl.step_ns
    slow, fast = (
        outcomes("alexnet", stack__total_gb_per_s=str(int(320 * Fraction(factor))))[1].step_ns
        for factor in ("1/2", "2")
    )
    assert fast <= calibrated.step_ns < slow
    assert outcomes("alexnet", BASES["h100"], stack__capacity_bytes="16GiB") == [rtl, calibrated]
