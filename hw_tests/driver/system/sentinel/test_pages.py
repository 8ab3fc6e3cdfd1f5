"""Where tensors of a step are, by addresses that are worked out by hand."""

from __future__ import annotations

from sw_driver.system.sentinel.profiling import original, profile_of

from .steps import a_step

SIZES = {
    "i": 64, "p0": 4032, "p1": 4096, "s0": 64, "a0": 100, "a1": 4000, "g0": 4032, "g1": 4010,
    "d": 64,
}  # fmt: skip


def test_an_allocator_takes_the_first_gap() -> None:
    step = profile_of(
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
    ).step
    assert {name: [*pages] for name, pages in zip(SIZES, original(step), strict=True)} == {
        "i": [0], "p0": [0], "p1": [1], "s0": [2], "a0": [2], "a1": [2, 3], "g0": [2],
        "g1": [2, 3], "d": [3],
    }  # fmt: skip
