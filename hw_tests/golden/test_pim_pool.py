"""The PIM's functional pool: visibility, order, banks, registers, refusals."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from golden.pim import (
    Descriptor,
    FullError,
    Opcode,
    Pool,
    StridedTensor,
    WorkRefusedError,
)

SEED = int(os.environ.get("NEARMEM_TEST_SEED", "1"))
BANK_BYTES = 4096


def make_pool(**changes: Any) -> Pool:
    """Six banks of 5, 4, 5, 5, 4 and 5 units."""
    settings = {"multipliers": [3, 2, 2, 3, 2, 2], "adders": [2, 2, 3, 2, 2, 3]}
    return Pool(**{**settings, "bank_bytes": BANK_BYTES, "slots": 4, **changes})


def at(address_bytes: int, *strides: int) -> StridedTensor:
    return StridedTensor(address_bytes=address_bytes, strides=strides)


def add(a: int, b: int, result: int, count: int = 8, **fields: Any) -> Descriptor:
    """Adds ``count`` values at two addresses."""
    return Descriptor(
        opcode=Opcode.ADD,
        a=at(a, 0, 1),
        b=at(b, 0, 1),
        result=at(result, 0, 1),
        rows=1,
        columns=count,
        **({"units": 1} | fields),
    )


def floats(pool: Pool, address: int, count: int = 8) -> NDArray[np.float32]:
    return pool.memory.view(np.float32)[address // 4 : address // 4 + count]


def test_results_become_visible_at_completion() -> None:
    pool = make_pool()
    floats(pool, 0)[:] = 1
    floats(pool, 64)[:] = 2
    floats(pool, 128)[:] = 7
    work = pool.submit(add(0, 64, 128))
    assert pool.work_query(work) == 0
    assert (floats(pool, 128) == 7).all()
    pool.finish(work)
    assert pool.work_query(work) == 1
    assert (floats(pool, 128) == 3).all()


@pytest.mark.parametrize(
    ("second", "waits"),
    [
        (add(128, 64, 256), True),  # reads what the first writes
        (add(256, 320, 0), True),  # writes what the first reads
        (add(256, 320, 128), True),  # writes what the first writes
        (add(0, 64, 256), False),  # reads what the first reads
        (add(124, 128 + 32, 256, 1), False),  # next to the first's result, on both sides
        (add(124, 128 + 32, 256, 2), True),
    ],
    ids=["reads", "overwrites_operand", "overwrites_result", "shares", "beside", "touches"],
)
def test_dependent_works_wait(second: Descriptor, waits: bool) -> None:
    pool = make_pool()
    first = pool.submit(replace(add(0, 64, 128), units=0, banks=1))
    work = pool.submit(replace(second, units=0, banks=2))
    assert pool.banks_of(work) == ([] if waits else [1])
    if waits:
        with pytest.raises(ValueError, match=f"work {work} waits for others"):
            pool.finish(work)
    else:
        pool.finish(work)
    pool.finish(first)
    assert pool.banks_of(work) == [1]
    pool.finish(work)


def test_independent_works_complete_in_any_order() -> None:
    pool = make_pool()
    works = [pool.submit(add(0, 64, 128 + 32 * n, banks=1 << n, units=0)) for n in range(3)]
    for work in (works[2], works[0], works[1]):
        assert pool.work_query(work) == 0
        pool.finish(work)
        assert pool.work_query(work) == 1


def test_any_overlap_in_time_is_as_one_after_the_other() -> None:
    """Random works on few places, completed in random order."""
    rng = np.random.default_rng(SEED)
    for _ in range(20):
        pool, serial = make_pool(), make_pool()
        start = rng.standard_normal(256).astype(np.float32)
        floats(pool, 0, 256)[:] = floats(serial, 0, 256)[:] = start
        running: list[int] = []
        waited = 0
        for _ in range(40):
            a, b = 32 * rng.integers(0, 8, 2)
            result = 32 * int(rng.choice([8, 9, 10, 11]))
            if rng.random() < 0.5:
                a, b, result = 32 * int(rng.choice([8, 9, 10])), int(b), 32 * 11
            units = int(rng.integers(1, 29))
            work = add(int(a), int(b), int(result), units=units)
            while True:
                try:
                    running.append(pool.submit(work))
                    break
                except FullError:
                    startable = [work for work in running if pool.banks_of(work)]
                    waited += len(running) - len(startable)
                    done = int(rng.choice(startable))
                    pool.finish(done)
                    running.remove(done)
            serial.submit(work)
            serial.finish()
        pool.finish()
        assert (pool.memory == serial.memory).all()
        assert waited


def test_banks_with_the_data_come_first() -> None:
    pool = make_pool()
    # Bank 3 holds one operand, bank 5 the result.
    work = add(3 * BANK_BYTES, 3 * BANK_BYTES + 64, 5 * BANK_BYTES, units=8)
    assert pool.banks_of(pool.submit(work)) == [3, 5]
    # Bank 0 has the data, bank 3 is busy.
    assert pool.banks_of(pool.submit(add(0, 64, 128, units=8))) == [0, 1]


def test_stripes_are_near_to_no_bank() -> None:
    pool = make_pool()
    third = pool.stack.striped.start + 2 * 512
    work = add(third, third + 64, third + 128, units=8)
    assert pool.banks_of(pool.submit(work)) == [0, 1]


def test_a_second_work_takes_what_the_first_leaves() -> None:
    pool = make_pool()
    first = pool.submit(add(0, 256, 512, 64, units=14))
    assert (pool.banks_of(first), pool.idle) == ([0, 1, 2], 0b111000)
    second = pool.submit(add(1024, 1280, 1536, 64, units=28))
    assert (pool.banks_of(second), pool.idle) == ([3, 4, 5], 0)
    third = pool.submit(add(2048, 2304, 2560, units=1))
    assert pool.banks_of(third) == []
    pool.finish(second)
    assert (pool.banks_of(third), pool.idle) == ([3], 0b110000)


def test_named_banks_are_taken_together() -> None:
    pool = make_pool()
    first = pool.submit(add(0, 64, 128, banks=0b000010, units=0))
    second = pool.submit(add(256, 320, 384, banks=0b000110, units=0))
    assert (pool.banks_of(second), pool.idle) == ([], 0b111101)
    # A later work that can start does not wait for it, but takes none of its banks.
    third = pool.submit(add(512, 576, 640, banks=0b000100, units=0))
    fourth = pool.submit(add(768, 832, 896, units=8))
    assert (pool.banks_of(third), pool.banks_of(fourth)) == ([], [0, 3])
    pool.finish(first)
    assert (pool.banks_of(second), pool.banks_of(third)) == ([1, 2], [])
    pool.finish(second)
    assert pool.banks_of(third) == [2]


def test_banks_are_not_kept_for_a_work_that_needs_a_result() -> None:
    pool = make_pool()
    first = pool.submit(add(0, 64, 128, banks=0b000001, units=0))
    second = pool.submit(add(128, 64, 256, banks=0b111111, units=0))
    third = pool.submit(add(512, 576, 640, banks=0b000100, units=0))
    assert (pool.banks_of(second), pool.banks_of(third)) == ([], [2])
    pool.finish(first)
    fourth = pool.submit(add(768, 832, 896, banks=0b000001, units=0))
    assert (pool.banks_of(second), pool.banks_of(fourth)) == ([], [])
    pool.finish(third)
    assert (pool.banks_of(second), pool.banks_of(fourth)) == ([0, 1, 2, 3, 4, 5], [])


def test_idle_banks_join_works_that_run() -> None:
    pool = make_pool()
    first = pool.submit(add(0, 256, 512, 64, units=14))
    second = pool.submit(add(1024, 1280, 1536, 64, units=24))
    third = pool.submit(add(2048, 2304, 2560, 64, banks=0b000011, units=0))
    assert (pool.banks_of(second), pool.grow()) == ([3, 4, 5], None)
    pool.finish(first)
    # Banks 0 and 1 are the third's. Ten of the second's 24 units were lacking, five are.
    assert pool.banks_of(third) == [0, 1]
    assert (pool.grow([second]), pool.banks_of(second)) == (None, [3, 4, 5])
    assert (pool.grow(), pool.banks_of(second)) == (second, [2, 3, 4, 5])
    assert pool.grow() is None
    pool.finish(third)
    # No more than it takes.
    assert (pool.grow(), pool.banks_of(second), pool.idle) == (second, [0, 2, 3, 4, 5], 0b000010)
    assert pool.grow() is None
    assert pool.starts == 3


def test_the_oldest_work_grows_first() -> None:
    pool = make_pool()
    named = [
        pool.submit(add(1024 * place, 256, 512 + 1024 * place, 64, banks=banks, units=0))
        for place, banks in enumerate((0b000011, 0b011000))
    ]
    older = pool.submit(add(2048, 2304, 2560, 64, units=28))
    pool.finish(named[1])
    younger = pool.submit(add(3072, 3328, 3584, 64, units=28))
    assert (pool.banks_of(older), pool.banks_of(younger)) == ([2, 5], [3, 4])
    pool.finish(named[0])
    assert (pool.grow([older]), pool.banks_of(younger)) == (younger, [0, 1, 3, 4])
    pool.finish(younger)
    assert (pool.grow(), pool.grow()) == (older, None)
    assert (pool.banks_of(older), pool.idle) == ([0, 1, 2, 3, 4, 5], 0)


def test_works_do_not_grow_onto_banks_that_one_waits_for() -> None:
    pool = make_pool()
    first = pool.submit(add(0, 256, 512, 64, banks=0b000111, units=0))
    second = pool.submit(add(1024, 1280, 1536, 64, units=28))
    third = pool.submit(add(2048, 2304, 2560, 64, banks=0b001011, units=0))
    pool.finish(first)
    assert (pool.grow(), pool.banks_of(second)) == (second, [2, 3, 4, 5])
    assert (pool.grow(), pool.banks_of(third), pool.idle) == (None, [], 0b000011)
    pool.finish(second)
    assert pool.banks_of(third) == [0, 1, 3]


def test_counters() -> None:
    pool = make_pool()
    work = Descriptor(
        opcode=Opcode.DOT,
        units=28,
        a=at(0, 0, 16, 0, 1),
        b=at(1024, 0, 0, 0, 1),
        result=at(2048, 0, 1),
        images=1,
        rows=3,
        columns=1,
        length=16,
    )
    number = pool.submit(work)
    assert pool.counters(number) == (0, 48, 0, 45, 0, 0)
    pool.finish()
    assert pool.counters(number) == (48, 0, 45, 0, 4 * 64, 12)


def test_full() -> None:
    pool = make_pool()
    works = [pool.submit(add(0, 64, 128 + 32 * n)) for n in range(4)]
    assert not pool.has_room
    with pytest.raises(FullError, match="all 4 slots of the pool are taken"):
        pool.submit(add(0, 64, 512))
    with pytest.raises(WorkRefusedError, match="size"):  # what is wrong with it, even then
        pool.submit(add(0, 64, 512, 0))
    pool.finish(works[2])
    assert pool.has_room
    last = pool.submit(add(0, 64, 512))
    assert [work % 4 for work in (*works, last)] == [0, 1, 2, 3, 2]
    assert (min(works) > 0, last > works[2]) == (True, True)


@pytest.mark.parametrize(
    ("banks", "gap", "end"), [(3, (3, 4), 6), (5, (5, 8), 12), (6, (6, 8), 12)]
)
def test_host_requests_that_no_bank_holds(banks: int, gap: tuple[int, int], end: int) -> None:
    """Worked out by hand: what banks hold ends, begins again and ends at these multiples."""
    pool = make_pool(multipliers=[1] * banks, adders=[1] * banks)
    pool.memory[:] = 7
    assert pool.host_error is None
    begin, again, stop = (BANK_BYTES * place for place in (*gap, end))
    assert pool.read(begin - 32, 64).tolist() == [7] * 32 + [0] * 32
    assert (pool.host_errors, pool.host_error) == (1, (begin, False))
    pool.write(again - 33, np.full(66, 9, np.uint8))
    assert (pool.host_errors, pool.host_error) == (3, (again - 32, True))
    assert pool.read(again, 34).tolist() == [9] * 33 + [7]
    assert pool.host_errors == 3
    assert pool.read(stop - 1, 33).tolist() == [7] + [0] * 32
    assert (pool.host_errors, pool.host_error) == (4, (stop, False))
    pool.write(stop + 320, np.full(1, 9, np.uint8))
    assert (pool.host_errors, pool.host_error) == (5, (stop + 320, True))
    pool.write(0, np.full(stop, 3, np.uint8))
    assert pool.host_errors == 5 + (again - begin) // 32
    assert not (pool.read(0, begin) != 3).any()
    assert pool.memory[begin:again].tolist() == [7] * (again - begin)


def test_starts_are_counted() -> None:
    pool = make_pool()
    first = pool.submit(add(0, 64, 128, banks=1, units=0))
    assert pool.starts == 1
    pool.submit(add(0, 64, 256, banks=2, units=0))
    pool.submit(add(128, 64, 512, banks=4, units=0))
    assert pool.starts == 2
    pool.finish(first)
    assert pool.starts == 3
