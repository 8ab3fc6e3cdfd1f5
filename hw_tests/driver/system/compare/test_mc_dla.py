"""MC-DLA's policy in the comparison: a step by hand, what the engine wrote down, directions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from random import Random

import pytest

from hw_tests.driver.system.compare.bases import V100, a_base, both_ways, ran, row
from hw_tests.driver.system.sentinel.random_steps import random_step
from hw_tests.driver.system.sentinel.steps import a_step
from sw_driver.machine import Machine
from sw_driver.system.compare.bases import BASES
from sw_driver.system.compare.mc_dla import SYSTEMS, Virtual, leaving_of
from sw_driver.system.compare.sentinel import tiers
from sw_driver.system.placing import run
from sw_driver.workload import Trace, load_trace, peak_bytes

NODES, HOST = SYSTEMS
STEP = a_step(
    3,
    *((0, "p > a0"), (1, "a0 > a1"), (2, "a1 > a2")),
    *((3, "a2 > t2"), (4, "a1 t2 > t1"), (5, "a0 t1 > t0")),
    sizes={"p": 100, "a0": 100, "a1": 100, "a2": 200, "t2": 100, "t1": 100, "t0": 100},
)
"""Operations take 100, 100, 150, 150, 150, 150 ns. While the last of the forward pass and the first
two of the backward pass run, a0 is away, and a1 in the first of these; both are moved in 100 ns.
a2 stays. With all there they take 600 bytes at most; else 400."""


@pytest.mark.parametrize(("system", "place"), [(NODES, "memory_node"), (HOST, "host")])
def test_a_step_by_hand(system, place: str) -> None:
    """With 500 bytes a1 leaves beside operation 3, and is there again 100 ns after that; a0 comes
    beside operation 4. With 400 a2 and t2 wait for a0 and a1 to have left, to 300 and 550, and a0
    comes when operation 4 is over."""
    described = row(system, STEP, a_base(500)).describe()
    assert described["step_ns"] == 900
    assert described["memory_bytes"] == {"gpu": 500, place: 200}
    assert described["least_bytes"] == {"gpu": 400, place: 200}
    assert described["parts_ns"] == {
        "computing": 800, "recomputing": 0, "updating": 0, "waiting": 100
    }  # fmt: skip
    made = ran(system, STEP, a_base(400))
    assert (made.step_ns, made.busy("gpu")) == (1200, 800)
    assert ran(system, STEP, a_base(599)).step_ns == 900


def test_what_does_not_add_up_over_layers_is_fixed() -> None:
    """Of 400 bytes all but p's 100."""
    needs = NODES.needs(STEP, a_base(500))
    assert needs["gpu"].growing_bytes == 100
    assert needs["memory_node"].growing_bytes == 200


def test_what_leaves_is_there_until_it_was_used() -> None:
    sizes = {"a0": 100, "t": 300, "t1": 200}
    step = a_step(1, (0, "> a0"), (0, "a0 > t"), (0, "> t1"), (1, "a0 >"), sizes=sizes)
    assert NODES.needs(step, a_base(1))["gpu"].nbytes == 400


def test_with_room_for_all_nothing_moves_and_with_less_nothing_runs() -> None:
    described = row(NODES, STEP, a_base(600)).describe()
    assert (described["step_ns"], described["memory_bytes"]) == (
        800,
        {"gpu": 600, "memory_node": 0},
    )
    assert "needs at least" in row(NODES, STEP, a_base(399)).reason
    assert "needs at least" in row(NODES, STEP, a_base(500, 199)).reason
    assert ran(NODES, STEP, a_base(500, 200)).step_ns == 900


def test_a_gpu_without_links_to_nodes_has_none() -> None:
    made = row(NODES, "gpt-tiny", BASES["rtx4090"])
    assert made.reason == "no memory-nodes on this GPU"
    assert row(HOST, "gpt-tiny", BASES["rtx4090"]).outcome is not None


def _recorded(trace: Trace, machine: Machine) -> None:
    """At the least bytes; that memories are not exceeded, and all arrives, the engine checks."""
    least = {place: need.nbytes for place, need in NODES.needs(trace, machine).items()}
    less = machine.override(
        {f"{place}.capacity_bytes": str(max(nbytes, 1)) for place, nbytes in least.items()}
    )
    leaving = leaving_of(trace)
    view = tiers(less, "memory_node", "node")
    outcome = run(view, trace, partial(Virtual, leaving=leaving), steps=1, record=True)
    log = outcome.policy.engine.log
    assert log is not None
    assert outcome.peak_bytes["fast"] == least["gpu"]
    ops = [ran for ran in log.ran if ran.queue == view.devices[0].name]
    moves = [transfer for transfer in log.transferred if not transfer.device]
    assert len(moves) == 2 * len(leaving.until)
    for move in moves:
        tensor = int(move.label.split()[1])
        if move.target == "slow":
            last = next(op for op, left in leaving.behind.items() if tensor in left)
            assert move.begin_ns >= ops[last].end_ns
        else:
            assert move.end_ns <= ops[leaving.until[tensor]].begin_ns
    alone = sum(machine.device("gpu").cost(op) for op in trace.ops)
    assert sum(ran.end_ns - ran.begin_ns for ran in ops) == alone <= outcome.step_ns


@pytest.mark.parametrize(
    "name", ["gpt-tiny", "alexnet", "lstm-ptb", "dcgan", "word2vec", "bert-base", "rnn-gru"]
)
def test_networks_run_in_the_least_memory(name: str) -> None:
    _recorded(load_trace(name), V100.override({"gpu.capacity_bytes": "1"}))


@pytest.mark.parametrize("seed", range(60))
def test_steps_at_random_run_in_the_least_memory(seed: int) -> None:
    random = Random(seed)
    step = random_step(random, 30, 24)
    half = random.randrange(25)
    ops = [replace(op, phase="forward" if op.id < half else "backward") for op in step.ops]
    _recorded(replace(step, ops=tuple(ops)), a_base(1))


@pytest.mark.parametrize("name", ["gpt-tiny", "alexnet", "resnet32"])
def test_more_memory_and_faster_links_are_not_slower(name: str) -> None:
    trace = load_trace(name)
    alone = sum(V100.device("gpu").cost(op) for op in trace.ops)
    least = NODES.needs(trace, V100.override({"gpu.capacity_bytes": "1"}))["gpu"].nbytes
    peak = peak_bytes(trace)
    sizes = [least + (peak - least) * eighths // 8 for eighths in range(9)]
    took = [ran(HOST, trace, gpu__capacity_bytes=size).step_ns for size in sizes]
    assert all(later <= 1.01 * before for before, later in pairwise(took))
    assert took[-1] == alone < took[0]
    assert ran(NODES, trace, gpu__capacity_bytes=least).step_ns < took[0]
    faster = [
        ran(HOST, trace, gpu__capacity_bytes=sizes[1], **both_ways("pcie", rate)).step_ns
        for rate in (6, 12, 48)
    ]
    assert faster == sorted(faster, reverse=True)
