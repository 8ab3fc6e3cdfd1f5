"""What goes past a cache, worked out by hand, and by the definition of a stack distance."""

from __future__ import annotations

import random
from dataclasses import replace
from math import prod

import pytest

from sw_driver.workload import Op, Tensor, Trace, TraceError
from sw_driver.workload.cache import past_cache
from sw_driver.workload.trace import Geometry, Stage

SIZES = {"a": 10, "b": 10, "c": 10, "d": 100}
ROOMS = range(0, 70, 3)


def a_trace(*accesses: str, freed: dict[str, int] | None = None) -> Trace:
    """Operations such as ``ab>c``, which reads a and b and writes c, of :data:`SIZES`."""
    names = list(SIZES)
    reads_writes = [
        tuple(tuple(map(names.index, side)) for side in each.split(">")) for each in accesses
    ]
    sizes = list(SIZES.values())
    return Trace(
        name="by hand",
        tensors=tuple(
            Tensor(id=number, nbytes=SIZES[name], kind="temporary", freed=(freed or {}).get(name))
            for number, name in enumerate(names)
        ),
        ops=tuple(
            Op(
                id=number, kind="kind", layer=0, phase="forward", stage=0, flops=0,
                reads=reads, writes=writes,
                read_bytes=tuple(sizes[each] for each in reads),
                write_bytes=tuple(sizes[each] for each in writes),
            )
            for number, (reads, writes) in enumerate(reads_writes)
        ),
        layers=("layer",),
        stages=(Stage(name="layer", phase="forward"),),
    )  # fmt: skip


def a_random_trace(seed: int) -> Trace:
    chance = random.Random(seed)

    def some(least: int) -> str:
        return "".join(chance.sample("abcd", chance.randint(least, 2)))

    return a_trace(*(f"{some(0)}>{some(1)}" for _ in range(40)))


def read(trace: Trace, cache_bytes: int) -> list[int]:
    return [sum(op.read_bytes) for op in past_cache(trace, cache_bytes).ops]


def written(trace: Trace, cache_bytes: int, *, write_allocate: bool = False) -> list[int]:
    past = past_cache(trace, cache_bytes, write_allocate=write_allocate)
    return [sum(op.write_bytes) for op in past.ops]


def test_what_was_used_least_recently_goes() -> None:
    """Of two places a takes one at its first read; c takes that of b; the next b, that of a."""
    trace = a_trace("a>", "b>", "a>", "c>", "b>", "c>", "a>")
    assert read(trace, 20) == [10, 10, 0, 10, 10, 0, 10]


def test_a_sweep_over_a_bit_more_than_the_cache_finds_nothing() -> None:
    trace = a_trace(*["a>", "b>", "c>"] * 3)
    assert read(trace, 29) == [10] * 9
    assert read(trace, 30) == [10] * 3 + [0] * 6


def test_what_does_not_fit_leaves_nothing() -> None:
    """Neither a tensor of 100 in 50, nor what else its operation touches, nor two of 10 in 19."""
    assert read(a_trace("d>", "d>"), 50) == [100, 100]
    assert read(a_trace("b>", "ad>", "ab>"), 50) == [10, 110, 20]
    assert read(a_trace("ab>", "a>"), 19) == [20, 10]
    assert read(a_trace("ab>", "a>"), 20) == [20, 0]


def test_a_write_counts_once_it_is_written_back() -> None:
    """A write over what is still there takes its place; what is there at the end is written."""
    assert written(a_trace(">a", "a>", ">a"), 20) == [0, 0, 10]
    assert written(a_trace(">a", "b>", ">a"), 15) == [10, 0, 10]
    assert written(a_trace(">a", "a>a", "a>a"), 20) == [0, 0, 10]
    assert written(a_trace(">a", "b>", "a>", "c>"), 20) == [10, 0, 0, 0]


def test_what_is_freed_in_the_cache_is_not_written_and_makes_room() -> None:
    """So c does not evict b."""
    trace = a_trace(">a", "ab>", "c>", "b>", freed={"a": 2})
    assert written(trace, 20) == [0, 0, 0, 0]
    assert read(trace, 20) == [0, 10, 10, 0]
    assert written(a_trace(">a", "b>", ">c", freed={"a": 3, "c": 3}), 10) == [10, 0, 0]


def test_a_cpu_fetches_what_it_writes() -> None:
    """Unless it is in the cache, or read by the same operation."""
    assert written(a_trace(">a", ">a"), 20, write_allocate=True) == [10, 10]
    assert written(a_trace("a>a", "b>", ">a"), 10, write_allocate=True) == [10, 0, 20]


def test_parts_are_the_first_bytes() -> None:
    """Of 100 bytes, 40 are read, and again, then all, and 40 and all again. A write of a part takes
    no other's place."""
    trace = a_trace(*["d>"] * 5)
    parts = tuple(
        replace(op, read_bytes=(nbytes,))
        for op, nbytes in zip(trace.ops, (40, 40, 100, 40, 100), strict=True)
    )
    assert read(replace(trace, ops=parts), 100) == [40, 0, 60, 0, 0]
    trace = a_trace(">d", ">d")
    ops = tuple(replace(op, write_bytes=(50,)) for op in trace.ops)
    assert written(replace(trace, ops=ops), 100) == [50, 50]


def a_product(rows: int, depth: int, *batch: int) -> Trace:
    """Of ``rows`` x ``depth`` by its transposed, in FP32; or a batch of them."""
    trace = a_trace("ab>c")
    shapes = (*batch, rows, depth), (*batch, depth, rows), (*batch, rows, rows)
    one, other, result = (4 * prod(each) for each in shapes)
    op = replace(
        trace.ops[0], kind="bmm" if batch else "mm", read_bytes=(one, other), write_bytes=(result,),
        geometry=Geometry(operands=shapes[:2], result=shapes[2]), flops=2 * rows * prod(shapes[0]),
    )  # fmt: skip
    tensors = tuple(replace(each, nbytes=max(one, result)) for each in trace.tensors)
    return replace(trace, ops=(op,), tensors=tensors)


def test_a_product_works_in_blocks() -> None:
    """In 1024 elements a block of 32 x 32: each operand of 64 x 64 is read twice. If one fits, or
    the gradient of a filter, once; without a cache, as the trace has it."""
    assert read(a_product(64, 64), 4096) == [2 * 2 * 4 * 64**2]
    assert read(a_product(64, 64), 4 * 64**2 - 1) > [2 * 4 * 64**2]
    for cache_bytes in (0, 4 * 64**2):
        assert read(a_product(64, 64), cache_bytes) == [2 * 4 * 64**2]
    assert read(a_product(128, 4, 8), 4 * 128 * 4 - 1) > [2 * 8 * 4 * 128 * 4]
    assert read(a_product(128, 4, 8), 4 * 128 * 4) == [2 * 8 * 4 * 128 * 4]
    gradient = a_product(16, 1024)
    ops = tuple(replace(op, flops=9 * op.flops) for op in gradient.ops)
    assert read(replace(gradient, ops=ops), 4 * 16**2) == [2 * 4 * 16 * 1024]


@pytest.mark.parametrize("seed", range(20))
def test_a_read_is_found_by_its_stack_distance(seed: int) -> None:
    """The bytes of all different tensors since its last use, that operation with its own."""
    trace = a_random_trace(seed)
    for cache_bytes in ROOMS[1:]:
        past = past_cache(trace, cache_bytes)
        for op in trace.ops:
            for tensor, moved in zip(op.reads, past.ops[op.id].read_bytes, strict=True):
                before = [each for each in trace.accesses[tensor] if each < op.id]
                since = trace.ops[before[-1] : op.id] if before else trace.ops
                different = {each for other in since for each in other.reads + other.writes}
                distance = sum(trace.tensors[each].nbytes for each in different)
                found = bool(before) and distance <= cache_bytes
                assert moved == (0 if found else trace.tensors[tensor].nbytes)


@pytest.mark.parametrize("write_allocate", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_more_cache_never_moves_more(seed: int, write_allocate: bool) -> None:
    trace = a_random_trace(seed)
    past = [past_cache(trace, room, write_allocate=write_allocate) for room in (*ROOMS[1:], 200)]
    totals = [sum(op.nbytes for op in each.ops) for each in past]
    assert totals == sorted(totals, reverse=True)
    assert past_cache(trace, 0) == trace
    if not write_allocate:
        assert past[0].ops == trace.ops  # in 3 bytes nothing fits
    first_reads = sum(
        tensor.nbytes
        for tensor, accesses in zip(trace.tensors, trace.accesses, strict=True)
        if write_allocate or tensor.id in trace.ops[accesses[0]].reads
    )
    changed = {each for op in trace.ops for each in op.writes}
    assert totals[-1] == first_reads + sum(trace.tensors[each].nbytes for each in changed)


def test_a_second_step_finds_the_parameters_of_the_first() -> None:
    trace = a_trace("a>b", "ab>a", freed={"b": 2})
    tensors = (replace(trace.tensors[0], kind="parameter"), *trace.tensors[1:])
    twice = replace(trace, tensors=tensors).unrolled(2)
    assert read(twice, 20) == [10, 0, 0, 0]
    assert written(twice, 20) == [0, 0, 0, 10]


@pytest.mark.parametrize("cache_bytes", [-1, 0.5, True])
def test_a_size_that_is_none_is_refused(cache_bytes: int) -> None:
    with pytest.raises(TraceError, match=r"cache_bytes is .*: expected an integer of 0 or more"):
        past_cache(a_trace("a>"), cache_bytes)
