"""Plans of who knows the step."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random

import numpy as np
import pytest

from sw_driver.system.placing import run
from sw_driver.workload.trace import Trace

from .clairvoyant import Foreseen, belady, life, settled, worthwhile
from .random_steps import random_step, with_fast
from .steps import a_step

INPUTS = a_step(
    1,
    *((0, f"i{n}>") for n in (0, 1, 2, 0, 1, 3)),
    sizes={f"i{n}": 10_000 for n in range(4)},
)
"""Of them two have room."""
MACHINE = with_fast(20_000)


def inside(step: Trace, stretches: list[tuple[int, int, int]]) -> list[set[int]]:
    return [
        {number for begin, end, number in stretches if begin <= op < end}
        for op in range(len(step.ops))
    ]


@pytest.mark.parametrize(
    ("ahead_ops", "plan"), [(0, "01 01 02 02 01 03"), (1, "01 12 02 01 13 03")]
)
def test_what_is_used_farthest_in_the_future_leaves(ahead_ops: int, plan: str) -> None:
    """0 1 2 0 1 3, again and again: for 2, 1 leaves, whose next use is the last."""
    residents = inside(INPUTS, belady(INPUTS, MACHINE, ahead_ops))
    assert residents == [{*map(int, numbers)} for numbers in plan.split()]


def test_worthwhile_moves_gain_more_than_they_take() -> None:
    """An access gains 10,000 (1/19 - 1/34), 232 ns, and a move takes 526."""
    moves = belady(INPUTS, MACHINE, 0)
    assert moves == [(0, 2, 1), (0, 6, 0), (2, 4, 2), (4, 5, 1), (5, 6, 3)]
    assert worthwhile(moves, INPUTS, MACHINE) == [(0, 6, 0)]
    assert settled(INPUTS, MACHINE, [(0, 6, 0)]) == [(0, 6, 0), (0, 6, 1)]


def test_settled_are_those_that_gain_the_most_by_byte_and_operation() -> None:
    step = a_step(
        1,
        *((0, name) for name in ("i0 i1>a0", "i0 a0>t0", "t0>t1", "t1 i0>")),
        sizes={"i0": 1000, "i1": 2000, "a0": 3000, "t0": 500, "t1": 500},
    )
    names = {index: step.tensors[index].name for index in range(5)}
    chosen = [names[number] for _, _, number in settled(step, with_fast(4500))]
    assert chosen == ["a0", "t0", "t1", "i0"]  # 1, 1, 1, and 3/4 bytes by byte and operation


def test_long_arithmetic_gains_nothing() -> None:
    step = a_step(1, (0, "i0>"), (0, "i1>"), sizes={"i0": 1000, "i1": 1000})
    step = replace(step, ops=(replace(step.ops[0], flops=10**9), step.ops[1]))
    assert settled(step, with_fast(1000)) == [(0, 2, 1)]


@pytest.mark.parametrize("seed", range(8))
def test_plans_fit_and_are_lived(seed: int) -> None:
    random = Random(seed)
    step = random_step(random, 15, 25)
    capacity = sum(tensor.nbytes for tensor in step.tensors) // random.randrange(2, 6)
    machine = with_fast(capacity, random.choice(("shared", "apart")))
    for ahead in (0, 1, 5):
        moves = belady(step, machine, ahead)
        for plan in (moves, settled(step, machine, worthwhile(moves, step, machine))):
            held = np.zeros(len(step.ops))
            for begin, end, number in plan:
                held[begin:end] += step.tensors[number].nbytes
                lived = life(step, step.tensors[number])
                assert max(lived.start - ahead, 0) <= begin < end <= lived.stop
            assert held.max() <= capacity
            outcome = run(machine, step, partial(Foreseen, stretches=plan), record=True)
            assert outcome.peak_bytes["fast"] <= capacity


def test_what_never_leaves_is_never_moved() -> None:
    step = random_step(Random(1), 15, 25)
    machine = with_fast(sum(tensor.nbytes for tensor in step.tensors) // 3)
    outcome = run(machine, step, partial(Foreseen, stretches=settled(step, machine)))
    assert [sum(move.values()) for move in outcome.moves] == [0, 0, 0]
    assert outcome.peak_bytes["fast"] > 0
