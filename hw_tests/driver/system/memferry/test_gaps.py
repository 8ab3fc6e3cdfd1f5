"""The table of gaps."""

from __future__ import annotations

import pytest

from hw_tests.driver.system.memferry.gaps import (
    KINDS,
    forward_gaps,
    network_gaps,
    random_profile,
    step_gaps,
)


@pytest.mark.parametrize("kind", KINDS)
def test_gaps_are_from_the_best_and_ours_is_near_it(kind: str) -> None:
    profile = random_profile(kind, 5, 3)
    assert profile == random_profile(kind, 5, 3) != random_profile(kind, 5, 4)
    forward, step = forward_gaps(profile), step_gaps(profile)
    assert forward["exact, paper's link"][0] == forward["exact, shared link"][1] == 0
    assert step["exact-step"] == (0,)
    assert min(min(gaps) for gaps in (*forward.values(), *step.values())) >= 0
    assert forward["ours"][1] <= 2
    assert step["ours"][0] <= 2


def test_of_a_network_exact_has_the_best_forward_pass_and_ours_the_best_step() -> None:
    gaps = network_gaps("bert-base")
    assert gaps["exact"][0] == gaps["ours"][1] == 0
    assert all(value >= 0 for gap in gaps.values() for value in gap)
