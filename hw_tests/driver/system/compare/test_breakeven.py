"""Break-evens: the search, and two systems by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from hw_tests.driver.system.compare.bases import a_base
from hw_tests.driver.system.compare.test_mc_dla import STEP as NODES_STEP
from hw_tests.driver.system.sentinel.steps import a_step
from sw_driver.axdimm.figures import BYTES_PER_PARAMETER
from sw_driver.axdimm.measure import own_mparams_per_s
from sw_driver.machine import Machine
from sw_driver.report import Watch
from sw_driver.system.compare import breakeven
from sw_driver.system.compare.axdimm import update_bytes
from sw_driver.system.compare.bases import BASES
from sw_driver.system.compare.breakeven import (
    LEAST,
    MOST,
    MOST_RUNS,
    BreakEven,
    break_evens,
    least_factor,
)
from sw_driver.system.compare.comparison import TrainedSteps
from sw_driver.system.compare.systems import SYSTEMS
from sw_driver.workload import load_trace
from sw_driver.workload.trace import Trace
from sw_driver.workload.training import Training


@pytest.mark.parametrize("wanted", [0.13, 0.5, 1, 2.3, 31])
def test_a_search_comes_within_two_percent_in_twenty_runs(wanted: float) -> None:
    tried = []

    def beats(factor: float) -> bool:
        tried.append(factor)
        return factor >= wanted

    made, runs = least_factor(beats)
    assert made is not None
    assert wanted <= made < 1.021 * wanted
    assert runs == len(tried) <= MOST_RUNS
    assert LEAST <= min(tried) <= max(tried) <= MOST


def of(
    name: str,
    part: str,
    step: Trace,
    machine: Machine,
    rival_ns: int,
    monkeypatch: pytest.MonkeyPatch,
) -> BreakEven:
    """The break-even of one system's part."""
    (system,) = (one for one in SYSTEMS if one.name == name)
    hardware: Mapping = {part: system.hardware[part]}
    monkeypatch.setattr(breakeven, "SYSTEMS", (replace(system, hardware=hardware),))
    (made,) = break_evens(TrainedSteps(step, Training()), machine, rival_ns, watch=Watch())
    return made


def test_links_to_memory_nodes_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations take 800 ns. One activation of 100 bytes returns in 100 ns, which all wait for:
    the step takes 800 ns and 100 ns by the factor. Less than 850 ns leave whole 49 ns of them."""
    made = of("MC-DLA's memory-nodes", "its links", NODES_STEP, a_base(500), 850, monkeypatch)
    assert made.factor == pytest.approx(100 / 49, rel=0.02)
    assert made.factor is not None
    assert made.gb_per_s == 1
    assert made.sentence().startswith("MC-DLA's memory-nodes: wins from 2.0")
    already = of("MC-DLA's memory-nodes", "its links", NODES_STEP, a_base(500), 925, monkeypatch)
    assert already.factor == pytest.approx(100 / 124, rel=0.02)
    assert "wins already, down to 0.8" in already.sentence()
    never = of("MC-DLA's memory-nodes", "its links", NODES_STEP, a_base(500), 802, monkeypatch)
    assert never.factor is None
    assert "not with its links 32 times as fast, bound by " in never.sentence()
    none = of("MC-DLA's memory-nodes", "its links", NODES_STEP, a_base(399), 900, monkeypatch)
    assert "needs at least 400.0 B of GPU memory" in none.sentence()


def test_the_update_rate_of_modules_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer's update is behind all else, at the rate of eight modules for 256 GiB."""
    name, part = "MemFerry, AXDIMM", "its update rate"
    step = a_step(1, (0, "p0 > a0"), (1, "a0 p0 > g0"), (-1, "g0 p0 > p0"), sizes={
        "p0": 4 << 30, "a0": 1 << 30, "g0": 4 << 30,
    })  # fmt: skip
    update_ns = update_bytes(step) / (8 * own_mparams_per_s() * BYTES_PER_PARAMETER) * 1000
    (system,) = (one for one in SYSTEMS if one.name == name)
    before_ns = system.run(step, BASES["v100"]).step_ns - update_ns
    assert before_ns > 0
    made = of(name, part, step, BASES["v100"], round(before_ns + update_ns / 3), monkeypatch)
    assert made.factor == pytest.approx(3, rel=0.021)
    assert made.gb_per_s is None


def test_processes_find_the_same() -> None:
    steps = TrainedSteps(load_trace("word2vec"), Training(precision="fp32"))
    small = BASES["v100"].override({"gpu.capacity_bytes": "60e6"})
    here = break_evens(steps, small, 10**6)
    assert break_evens(steps, small, 10**6, workers=2) == here
    assert {one.system for one in here} >= {"Smart-Infinity", "Sentinel over CXL"}
    assert all(one.runs <= MOST_RUNS for one in here)
