"""What is found of a step of two layers, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sw_driver.system.sentinel.profiling import StepProfile, profile_of
from sw_driver.workload import TraceError
from sw_driver.workload.stages import OUTSIDE

from .steps import a_step

SIZES = {
    "i": 64, "p0": 64, "p1": 100, "a0": 200, "a1": 65, "d1": 10, "d0": 10, "g0": 64, "g1": 100,
}  # fmt: skip
OPS = (
    (0, "i p0>a0"),
    (1, "a0 p1>a1"),
    (2, "a1>d1"),
    (2, "d1 a0>g1"),
    (2, "d1 p1>d0"),
    (3, "d0 i>g0"),
    (-4, "p0 g0>p0"),
    (-3, "p1 g1>p1"),
)


def named(profile: StepProfile, *names: str) -> list[int]:
    return [next(t.id for t in profile.step.tensors if t.name == wanted) for wanted in names]


def test_updates_run_at_the_end_of_their_layers() -> None:
    profile = profile_of(a_step(2, *OPS, sizes=SIZES), 0)
    updates = [op.id for op in profile.step.ops if op.phase == "update"]
    assert profile.visits == (range(1), range(1, 2), range(2, 6), range(6, 8))
    assert updates == [5, 7]
    assert [profile.step.tensors[number].freed for number in named(profile, "d0", "g0", "g1")] == [
        7, 8, 6
    ]  # fmt: skip
    used = a_step(2, *OPS[:5], (3, "d0 i p1>g0"), (3, "g0>g0"), *OPS[6:], sizes=SIZES)
    ops = profile_of(used, 0).step.ops
    assert [(op.phase, op.stage) for op in ops[-2:]] == [("update", 3)] * 2
    assert [op.reads[0] for op in ops[-2:]] == named(profile, "p0", "p1")


def test_tensors_live_in_visits_and_are_accessed_in_lines() -> None:
    profile = profile_of(a_step(2, *OPS, sizes=SIZES), 0)
    names = ("i", "a0", "a1", "d1", "d0", "g1", "g0")
    assert [profile.lifetime[number] for number in named(profile, *names)] == [
        range(4), range(3), range(1, 3), range(2, 3), range(2, 4), range(2, 3), range(3, 4)
    ]  # fmt: skip
    assert profile.short_lived == set(named(profile, "d1", "g1", "g0"))
    lines = [profile.lines[number] for number in named(profile, "i", "a0", "a1", "d1", "p1")]
    assert not profile_of(a_step(1, (0, "i p0>p0"), sizes={"i": 1, "p0": 1}), 0).short_lived
    assert lines == [{0: 1, 3: 1}, {0: 4, 1: 4, 2: 4}, {1: 2, 2: 2}, {2: 3}, {1: 2, 2: 6}]


def test_what_stays_in_the_cache_is_no_access() -> None:
    profile = profile_of(a_step(2, *OPS, sizes=SIZES), 10_000)
    lines = [profile.lines[number] for number in named(profile, "i", "a0", "d1", "p1")]
    assert lines == [{0: 1}, {0: 4}, {2: 1}, {1: 2, 2: 2}]


@pytest.mark.parametrize("ops", [(), (0, 1, 2, 3, 4, 5, 6, 7)])
def test_a_step_has_operations_and_layers(ops: tuple[int, ...]) -> None:
    trace = a_step(2, *OPS, sizes=SIZES)
    bare = replace(
        trace,
        ops=tuple(trace.ops[op] for op in ops),
        tensors=trace.tensors if ops else (),
        stages=tuple(replace(stage, name=OUTSIDE) for stage in trace.stages),
    )
    with pytest.raises(TraceError, match="add_layer" if ops else "capture it again"):
        profile_of(bare, 0)
