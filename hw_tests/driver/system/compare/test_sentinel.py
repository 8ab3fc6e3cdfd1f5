"""Sentinel in the comparison: a chain by hand, directions, and what it needs."""

from __future__ import annotations

import pytest

from hw_tests.driver.system.compare.bases import V100, a_base, both_ways, ran, row
from hw_tests.driver.system.sentinel.steps import a_step
from sw_driver.system.compare.sentinel import SYSTEMS, tiers
from sw_driver.workload import load_trace

PCIE, CXL = SYSTEMS
PLACES = {PCIE: "host", CXL: "cxl"}
CHAIN = a_step(
    2,
    *((visit, f"p{visit} > p{visit} t{visit}") for visit in range(4)),
    sizes={f"{kind}{visit}": 100 for visit in range(4) for kind in "pt"},
)
"""Four visits of 150 ns in the GPU's memory, each with weights and a temporary of 100 bytes."""


@pytest.mark.parametrize(
    ("memory", "link", "to_gpu"), [("host", "pcie", "write"), ("cxl", "cxl", "read")]
)
def test_a_rate_towards_the_gpu_stays_one(memory: str, link: str, to_gpu: str) -> None:
    machine = V100.override({f"{link}.{to_gpu}_gb_per_s": "7"})
    view = tiers(machine, memory, link)
    ((joins, writing),) = view.route("slow", "fast")
    assert joins.rate(writing=writing) == 7 * 10**9
    assert joins.rate(writing=not writing) > 7 * 10**9
    for ours, theirs in (("fast", "gpu"), ("slow", memory)):
        assert view.memory(ours).capacity_bytes == machine.memory(theirs).capacity_bytes


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_chain_takes_what_was_worked_by_hand(system) -> None:
    """As in Sentinel's own tests: with room for two weights beside the pool a visit takes 175 ns,
    with room for one 200 and 250, and with less nothing runs. A link twice as fast hides all."""
    assert ran(system, CHAIN, a_base(300)).step_ns == 4 * 175
    assert ran(system, CHAIN, a_base(300, pcie=2, cxl=2)).step_ns == 4 * 150
    described = row(system, CHAIN, a_base(200)).describe()
    assert described["least_bytes"] == {"gpu": 200, PLACES[system]: 500}
    assert described["parts_ns"] == {
        "computing": 600, "recomputing": 0, "updating": 0, "waiting": described["step_ns"] - 600
    }  # fmt: skip
    assert "needs at least" in row(system, CHAIN, a_base(199)).reason
    assert "needs at least" in row(system, CHAIN, a_base(300, 499)).reason
    assert not row(system, CHAIN, a_base(300, 500)).reason


def test_the_gpu_works_while_it_does_not_wait_for_an_interval() -> None:
    assert ran(PCIE, CHAIN, a_base(300)).busy("gpu") == 4 * 150
    # But for bytes of its own it does, with weights in the host's memory.
    less = ran(PCIE, CHAIN, a_base(200))
    assert less.busy("gpu") == less.step_ns == 900


def test_with_room_for_all_nothing_moves() -> None:
    made = ran(PCIE, CHAIN, a_base(500))
    assert (made.step_ns, made.busy("gpu")) == (600, 600)
    assert made.peak_bytes == {"gpu": 500, "host": 500}


@pytest.mark.parametrize("name", ["gpt-tiny", "alexnet", "word2vec"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_least_is_enough_and_more_is_not_slower(system, name: str) -> None:
    trace, place = load_trace(name), PLACES[system]
    alone = sum(V100.device("gpu").cost(op) for op in trace.ops)
    needs = system.needs(trace, V100)
    least, everything = needs["gpu"].nbytes, needs[place].nbytes
    others = {f"{place}__capacity_bytes": everything}
    assert row(system, trace, gpu__capacity_bytes=least - 1).reason
    took = []
    for nbytes in (least, (least + everything) // 2, everything - 1, everything):
        made = ran(system, trace, gpu__capacity_bytes=nbytes, **others)
        assert least <= made.peak_bytes["gpu"] <= nbytes
        took.append(made.step_ns)
    assert took == sorted(took, reverse=True)
    assert took[-1] == alone


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_faster_link_is_not_slower(system) -> None:
    way = "pcie" if system is PCIE else "cxl"
    took = [
        ran(system, "alexnet", gpu__capacity_bytes="400e6", **both_ways(way, rate)).step_ns
        for rate in (6, 12, 24, 48)
    ]
    assert took == sorted(took, reverse=True)
    assert took[0] > 1.5 * took[1]


def test_updates_do_not_wait_for_the_end() -> None:
    """So a gradient is gone before the next layer's is there."""
    step = a_step(
        2,
        *((2, "> g1"), (3, "> g0"), (-3, "g1 p1 > p1"), (-4, "g0 p0 > p0")),
        sizes={"p0": 10, "p1": 10, "g0": 100, "g1": 100},
    )
    assert PCIE.needs(step, V100)["host"].nbytes == 120


def test_an_expander_may_be_faster_than_the_memory_of_the_gpu() -> None:
    trace = load_trace("gpt-tiny")
    fast = {f"cxl.{way}_gb_per_s": "1000" for way in ("read", "write", "total")}
    machine = V100.override({**fast, "gpu.gb_per_s": "0.01", "gpu.capacity_bytes": "400000"})
    made = row(CXL, trace, machine).describe()
    assert 0 < made["step_ns"] == sum(made["parts_ns"].values())
    assert all(ns >= 0 for ns in made["parts_ns"].values())
    assert made["parts_ns"]["waiting"] == 0
