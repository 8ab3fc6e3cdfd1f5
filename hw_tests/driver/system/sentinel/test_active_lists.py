"""Migration by lists of active and inactive pages, against its description."""

from __future__ import annotations

from functools import partial
from random import Random
from statistics import mean

import pytest

from sw_driver.system.engine import Engine
from sw_driver.system.placing import FAST, SLOW, run
from sw_driver.system.sentinel.active_lists import ActiveLists, active_lists, in_blocks

from .random_steps import random_step, with_fast
from .steps import a_step

SIZES = {f"i{n}": 100 for n in range(6)}


def pages() -> ActiveLists:
    """Six inputs, of which two fit into fast memory."""
    step = a_step(1, (0, "i0>"), sizes=SIZES)
    return ActiveLists(Engine(with_fast(250)), step, step, period_ns=1000)


def scan(lists: ActiveLists, *accessed: int) -> None:
    lists.accessed.update(accessed)
    lists.due_ns = 0
    lists.begin(lists.step.ops[0])
    lists.engine.run()


def listed(lists: ActiveLists, memory: str) -> tuple[list[int], list[int]]:
    """The active and the inactive."""
    return lists.placed(lists.active, memory), lists.placed(lists.inactive, memory)


def test_new_pages_are_active_and_go_to_fast_memory_first() -> None:
    lists = pages()
    assert listed(lists, FAST) == ([0, 1], [])
    assert listed(lists, SLOW) == ([2, 3, 4, 5], [])


def test_the_older_half_ages_and_the_active_change_places_with_the_inactive() -> None:
    lists = pages()
    scan(lists)  # of fast memory 0 becomes inactive, of slow 2 and 3; the first of the others comes
    assert listed(lists, FAST) == ([1, 4], [])
    assert listed(lists, SLOW) == ([5], [2, 3, 0])
    assert sum(nbytes for *_, nbytes in lists.begun) == 200
    assert not lists.up.waiting  # as there is no room for 5


def test_the_oldest_inactive_makes_room() -> None:
    lists = pages()
    lists.active, lists.inactive = {5: None}, dict.fromkeys((1, 0, 4))
    scan(lists)  # 1 is looked at, and has its turn behind 0
    assert [lists.where(number) for number in (0, 1, 5)] == [SLOW, FAST, FAST]
    assert listed(lists, SLOW) == ([], [4, 0])


def test_two_references_make_a_page_active() -> None:
    lists = pages()
    lists.active, lists.inactive = lists.inactive, lists.active
    scan(lists, 2, 3)  # the first time
    assert listed(lists, SLOW) == ([], [4, 5, 2, 3])
    scan(lists, 4)
    scan(lists, 2)  # the second, and 3 was not accessed
    assert lists.where(2) == FAST
    assert [lists.where(number) for number in (3, 4, 5)] == [SLOW] * 3
    scan(lists, 4)
    assert lists.where(4) == FAST
    scan(lists, 3)  # not when it was looked at before
    assert lists.where(3) == SLOW
    assert 3 in lists.inactive


def test_a_period_of_many_steps_is_that_and_the_next() -> None:
    """All steps of a period, but the first, are equal."""
    step = random_step(Random(14), 12, 20)
    machine = with_fast(sum(tensor.nbytes for tensor in step.tensors) // 4)
    policy = partial(ActiveLists, period_ns=1, every_steps=5)
    whole = run(machine, step, policy, steps=30, record=True)
    assert len(set(whole.steps_ns)) == 12
    slow_ns = whole.steps_ns[0]
    step_ns = active_lists(step, machine, 5 * slow_ns, slow_ns)
    assert step_ns == pytest.approx(mean(whole.steps_ns[15:]))


def test_blocks_have_the_bytes_of_what_is_in_them() -> None:
    sizes = {"i0": 6_000, "a0": 10_000, "t0": 4_000, "t1": 5_000}
    step = a_step(2, (0, "i0>a0"), (1, "a0>t0"), (2, "a0 t0>"), (3, ">t1"), sizes=sizes)
    blocks = in_blocks(step, 8192)
    # Of pages of 4096 bytes, i0 is in 0 and 1, a0 behind it in 1 to 3, t0 in 3 and 4; t1 comes
    # where a0 was, in 1 and 2. A block has two.
    assert [tensor.nbytes for tensor in blocks.tensors] == [8192] * 3
    moves = [
        dict(zip(op.reads + op.writes, op.read_bytes + op.write_bytes, strict=True))
        for op in blocks.ops
    ]
    assert blocks.ops[0].reads == (0,)
    assert moves[1:] == [
        {0: 3333, 1: 2000, 2: 2000},
        {0: 3333, 1: 8667, 2: 2000},
        {0: 2500, 1: 2500},
    ]
    for op, same in zip(step.ops, blocks.ops, strict=True):
        assert op.nbytes == same.nbytes
