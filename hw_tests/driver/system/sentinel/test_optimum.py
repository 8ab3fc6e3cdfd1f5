"""The optimum of small steps: by hand, by trying all, and below what any policy takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from random import Random

import numpy as np
import pytest
from scipy.optimize import linprog

from sw_driver.machine import Machine
from sw_driver.system.placing import Placing, run
from sw_driver.system.sentinel.active_lists import ActiveLists
from sw_driver.system.sentinel.planning import lower_bound_bytes, planned
from sw_driver.system.sentinel.profiling import StepProfile
from sw_driver.workload.trace import LASTING, Trace, TraceError

from .clairvoyant import Foreseen, belady, settled
from .optimum import MOST_TENSORS, optimum
from .random_steps import random_step, with_fast
from .steps import a_step

ROUND = {
    "cpu__gb_per_s": "20",
    "cpu__tflop_per_s": "1",
    "cpu__launch_ns": "0",
    "fast__total_gb_per_s": "20",
    "slow__total_gb_per_s": "10",
    "cross__read_gb_per_s": "10",
    "cross__write_gb_per_s": "10",
    "cross__latency_ns": "0",
}
"""Fast memory has 20 bytes a ns, all else has 10."""


def turns(between_ns: int) -> Trace:
    """Two inputs of 10,000 bytes are read in turns, and there is arithmetic after each."""
    step = a_step(1, (0, "i0>"), (0, ">"), (1, "i1>"), (1, ">"), sizes={"i0": 10_000, "i1": 10_000})
    flops = between_ns * 1000
    return replace(step, ops=tuple(replace(op, flops=flops * (op.id % 2)) for op in step.ops))


@pytest.mark.parametrize(
    ("fast_bytes", "between_ns", "step_ns", "moved_bytes"),
    [
        (20_000, 400, 2 * (500 + 400), 0),
        (9_999, 400, 2 * (1000 + 400), 0),
        (10_000, 400, 500 + 1000 + 2 * 400, 0),  # one stays
        (10_000, 1500, 2 * (500 + 1500), 40_000),  # to change places takes 2000 ns
        (10_000, 1400, 2 * 2000, 40_000),
    ],
)
def test_inputs_read_in_turns(
    fast_bytes: int, between_ns: int, step_ns: int, moved_bytes: int
) -> None:
    best = optimum(turns(between_ns), with_fast(fast_bytes, "apart", **ROUND))
    assert (best.step_ns, best.moved_bytes) == (step_ns, moved_bytes)
    used = {10_000: ({0, 2} if moved_bytes else {0}), 20_000: {0, 2}}.get(fast_bytes, set())
    used_ops = {op for op, tensors in best.used_fast.items() if tensors}
    assert used_ops == used or used_ops == {2}


@pytest.mark.parametrize(
    ("between_ns", "step_ns"),
    [
        (2000, 2 * (500 + 2000)),
        (1600, 2 * (700 + 1600)),  # reads wait for 200 ns, in which 4,000 bytes are moved
        (1400, 500 + 1000 + 2 * 1400),  # they would have to take 800
    ],
)
def test_moves_take_from_memories_that_they_share(between_ns: int, step_ns: int) -> None:
    """While an input is read at 20 bytes a ns nothing is moved, and to change places takes 2000."""
    assert optimum(turns(between_ns), with_fast(10_000, "shared", **ROUND)).step_ns == step_ns


def test_an_engine_takes_as_long_if_moves_go_on_meanwhile() -> None:
    """To change places takes 2 (96 + 527) ns on the paper's machine, and there are 1300."""
    step, machine = turns(0), with_fast(10_000, "apart", cpu__tflop_per_s="1")
    step = replace(step, ops=tuple(replace(op, flops=op.id % 2 * 1_300_000) for op in step.ops))
    policy = partial(Foreseen, stretches=belady(step, machine, 1))
    outcome = run(machine, step, policy, record=True)
    assert outcome.step_ns == 2 * (87 + 295 + 87 + 1300)
    assert sum(outcome.moved_bytes.values()) == 40_000
    best = optimum(step, machine)
    assert best.step_ns == 2 * (87 + 87 + 1300) + -(-20_000 // 34)
    assert best.moved_bytes == 40_000


def test_all_accesses_tried() -> None:
    """For each choice of what is read and written where, a linear programme of its own."""
    random, cases_found = Random(5), 0
    for number in range(12):
        step = random_step(random, random.randrange(1, 4), random.randrange(2, 5))
        apart = number % 2 == 0
        capacity = random.randrange(5, 60) * 1000
        machine = with_fast(capacity, "apart" if apart else "shared")
        accesses = [(tensor_id, op) for tensor_id, ops in enumerate(step.accesses) for op in ops]
        if len(accesses) > 8:
            continue
        times = []
        for chosen in product((False, True), repeat=len(accesses)):
            fast = {key for key, inside in zip(accesses, chosen, strict=True) if inside}
            times.append(least_ns(step, machine, capacity, fast, apart=apart))
        cases_found += 1
        assert optimum(step, machine).step_ns == pytest.approx(min(times), abs=1)
    assert cases_found > 6


def least_ns(
    step: Trace, machine: Machine, capacity: int, fast: set[tuple[int, int]], *, apart: bool
) -> float:
    """With bytes for shares: at each operation's begin, and then what comes and what goes in it."""
    ops, tensors = len(step.ops), len(step.tensors)
    there, come, go = np.arange(3 * ops * tensors).reshape(3, ops, tensors)
    columns = 3 * ops * tensors + ops
    above, above_most, equal, bounds = [], [], [], [(0.0, None)] * columns

    def row(*parts: tuple[int, float]) -> np.ndarray:
        solution = np.zeros(columns)
        for column, factor in parts:
            solution[column] += factor
        return solution

    for tensor in step.tensors:
        lasts = tensor.kind in LASTING
        lives = range(0 if lasts else tensor.allocated, ops if lasts else tensor.freed or ops)
        for op in range(ops):
            most = tensor.nbytes if op in lives else 0
            bounds[there[op, tensor.id]] = (most if (tensor.id, op) in fast else 0, most)
        for op, then in pairwise([*lives, *lives[:1]] if lasts else lives):
            parts = (there, op, 1.0), (come, op, 1.0), (go, op, -1.0), (there, then, -1.0)
            equal.append(row(*((which[at, tensor.id], factor) for which, at, factor in parts)))
    for op in step.ops:
        time = columns - ops + op.id
        parts = [
            (nbytes, (label, op.id) in fast, ends)
            for ends, names, sizes in (
                ("read", op.reads, op.read_bytes), ("write", op.writes, op.write_bytes)
            )
            for label, nbytes in zip(names, sizes, strict=True)
        ]  # fmt: skip
        own = sum(nbytes for nbytes, inside, _ in parts if inside)
        slow = {
            way: sum(nbytes for nbytes, inside, ends in parts if not inside and ends == way)
            for way in ("read", "write")
        }
        other = sum(slow.values())
        device = machine.devices[0]
        bounds[time] = (max(device.compute_ns(op), own / 34 + other / 19) + 87, None)
        comes, goes = ([(n, 1.0) for n in which[op.id]] for which in (come, go))
        for moves, rate, more in (
            (comes, 19, slow["read"]),
            (goes, 19, slow["write"]),
            (comes + goes, 19, 0 if apart else other),
            (comes + goes, 34, 0 if apart else own),
        ):
            above.append(row((time, -rate), *moves))
            above_most.append(-more)
        above.append(row(*((n, 1.0) for n in there[op.id])))
        above_most.append(capacity)
    solved = linprog(
        row(*((columns - ops + op, 1.0) for op in range(ops))),
        A_ub=np.array(above),
        b_ub=above_most,
        A_eq=np.array(equal) if equal else None,
        b_eq=np.zeros(len(equal)) if equal else None,
        bounds=bounds,
    )
    return solved.fun if solved.success else np.inf


def test_more_fast_memory_is_never_slower() -> None:
    step = random_step(Random(11), 6, 12)
    total = sum(tensor.nbytes for tensor in step.tensors)
    times = [optimum(step, with_fast(max(total * n // 6, 1))).step_ns for n in range(7)]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[3] > times[-1]
    slow = run(with_fast(1), step, Placing).step_ns
    assert slow - len(step.ops) * 3 - 96 * 2 * len(step.ops) <= times[0] <= slow


@pytest.mark.parametrize("seed", range(16))
def test_no_policy_is_better(seed: int) -> None:
    random = Random(seed)
    step = random_step(random, random.randrange(2, MOST_TENSORS), random.randrange(4, 20))
    total = sum(tensor.nbytes for tensor in step.tensors)
    capacity = max(int(total * random.uniform(0.1, 0.9)), 1)
    machine = with_fast(capacity, random.choice(("shared", "apart")))
    policies: list[Callable[..., Placing]] = [
        Placing,
        partial(ActiveLists, period_ns=1000),
        partial(Foreseen, stretches=settled(step, machine)),
        *(partial(Foreseen, stretches=belady(step, machine, ahead)) for ahead in (1, 4)),
    ]
    best, steady = optimum(step, machine).step_ns, 0
    for policy in policies:
        outcome = run(machine, step, policy, steps=5, record=True)
        assert outcome.peak_bytes["fast"] <= capacity
        if len(set(outcome.steps_ns[2:])) == 1:
            steady += 1
            assert outcome.step_ns >= best
    assert steady >= 3
    profile = StepProfile(step=step)
    if lower_bound_bytes(profile) <= capacity:
        plan = planned(profile, machine)
        assert plan.step_ns >= best or plan.outcome.steps_ns[-2] != plan.step_ns


def test_too_many_tensors_are_refused() -> None:
    step = random_step(Random(0), MOST_TENSORS + 1, 2)
    with pytest.raises(TraceError, match="11 tensors: expected up to 10"):
        optimum(step, with_fast(1))
