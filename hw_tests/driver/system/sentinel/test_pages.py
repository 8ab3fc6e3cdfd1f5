"""Where tensors of a step are, by addresses that are worked out by hand."""

from __future__ import annotations

from sw_driver.system.sentinel.pages import (
    PAGE_BYTES,
    Layout,
    class_of,
    original,
    packed,
    peak_in_pages,
)
from sw_driver.system.sentinel.profiling import profile_of

from .steps import a_step

SIZES = {
    "i": 64, "p0": 4032, "p1": 4096, "s0": 64, "a0": 100, "a1": 4000, "g0": 4032, "g1": 4010,
    "d": 64,
}  # fmt: skip
PROFILE = profile_of(
    a_step(
        2,
        (0, "i p0>a0"),
        (1, "a0 p1>a1"),
        (2, "a1>d"),
        (2, "d d d d d d d>d"),
        (2, "d a0>g1"),
        (3, "d>g0"),
        (-4, "p0 g0 s0>p0 s0"),
        (-3, "p1 g1>p1"),
        sizes=SIZES,
    ),
    0,
)


def pages(layout: Layout) -> dict[str, list[int]]:
    return {name: [*each] for name, each in zip(SIZES, layout.pages, strict=True)}


def test_an_allocator_takes_the_first_gap() -> None:
    layout = original(PROFILE.step)
    assert pages(layout) == {
        "i": [0], "p0": [0], "p1": [1], "s0": [2], "a0": [2], "a1": [2, 3], "g0": [2],
        "g1": [2, 3], "d": [3],
    }  # fmt: skip
    names = list(SIZES)
    together = {names[n]: {names[m] for m in each} for n, each in enumerate(layout.together)}
    assert together == {
        "i": {"p0"}, "p0": {"i"}, "p1": set(), "s0": {"a0", "a1", "g0", "g1"},
        "a0": {"s0", "a1", "g1"}, "a1": {"s0", "a0", "d"}, "g0": {"s0"}, "g1": {"s0", "a0", "d"},
        "d": {"a1", "g1"},
    }  # fmt: skip


def test_what_is_accessed_in_the_same_visits_is_packed() -> None:
    assert pages(packed(PROFILE)) == {
        "i": [0], "p0": [1], "a1": [2], "p1": [2, 3], "s0": [4], "a0": [5], "g0": [6], "g1": [7],
        "d": [8],
    }  # fmt: skip


def test_pages_are_accessed_as_often_as_all_in_them() -> None:
    assert [class_of(each) for each in (0, 10, 11, 100, 101)] == [0, 0, 1, 1, 2]
    assert PROFILE.accesses == (1, 3, 3, 2, 3, 2, 2, 2, 11)
    layout = original(PROFILE.step)
    assert layout.classes(PROFILE) == ([2, 2, 0], 2)
    assert packed(PROFILE).classes(PROFILE) == ([8, 1, 0], 0)
    assert layout.needed_apart(PROFILE) == 3
    assert peak_in_pages(PROFILE.step) == 7 * PAGE_BYTES
