"""Planners: by hand, against every plan there is, and within limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from random import Random

import pytest

from hw_tests.driver.system.memferry.gaps import KINDS, exact_shared, ours_forward, random_profile
from hw_tests.driver.system.memferry.profiles import (
    FIGURE_4,
    FIGURE_6,
    any_profile,
    layer,
    profile_of,
)
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.system.memferry.algorithm import printed, repaired
from sw_driver.system.memferry.budget import (
    Budget,
    budget_of,
    dfgb,
    fitted,
    gpu_bytes,
    gradients,
    parameter_bytes,
)
from sw_driver.system.memferry.link import MODES, AccessPlan, LinkModel, Mode, backward_way
from sw_driver.system.memferry.planners import (
    PLANNERS,
    exact,
    exact_step,
    figures_of,
    ours,
    planned,
)
from sw_driver.system.memferry.profile import ModelProfile

ANY_ROOM = 10**15


def test_on_figure_4_the_papers_link_misleads() -> None:
    """Planned 130; the plan takes 220 on a shared link, where 200 is the best."""
    for planner in (printed, repaired):
        assert planner(FIGURE_4) == ("DHA", "GFGB")
    assert exact(FIGURE_4, ANY_ROOM) == ("DHA", "GFGB")
    assert exact_shared(FIGURE_4, ANY_ROOM) == ours_forward(FIGURE_4, ANY_ROOM) == ("GFGB", "GFGB")


def test_backtracking_makes_a_layer_dha_that_was_not() -> None:
    """The first layer is GFGB: 20 by DHA, 15 with its load. The second's load of 40 is over at 50,
    or at 40 if the first is DHA: 45 instead of 55."""
    profile = profile_of(layer("1", 10, (5, 20)), layer("2", 40, (5, 100)))
    assert printed(profile_of(profile.layers[0])) == ("GFGB",)
    assert printed(profile) == repaired(profile) == ("DHA", "GFGB")


def test_backtracking_changes_nothing_that_ends_no_sooner() -> None:
    """Loads are over at 1 and 2, and all at 2. With the first by DHA, 0 to 2, it ends then, too."""
    profile = profile_of(layer("1", 1, (0, 2)), layer("2", 1, (0, 2)))
    assert repaired(profile) == ("GFGB", "GFGB")
    # As printed, from 2 on with 1 left, 3 more for the load of 4; with the first by DHA none, but
    # that takes 3 more.
    profile = profile_of(layer("1", 1, (1, 4)), layer("2", 4, (0, 6)))
    assert printed(profile) == ("GFGB", "GFGB")


def test_as_printed_time_that_is_left_counts_for_nothing() -> None:
    """The second layer's load, 0 to 50, is over before the first's DHA, at 100: its 10 on the GPU
    end at 110. Line 3 compares 60 by DHA with 10 and all of the load."""
    profile = profile_of(layer("1", 100, (10, 100)), layer("2", 50, (10, 60)))
    assert printed(profile) == ("DHA", "DHA")
    assert repaired(profile) == ("DHA", "GFGB")


def test_as_printed_reserves_are_added_to_reserves() -> None:
    """Loads are over at 10, 20 and 29. Behind the second layer, at 25, there are 5 left for the
    third's, not the 5 and 5 that are printed, with which it is taken as hidden. With the first by
    DHA, 0 to 20, the second follows at once, and the third is over at 30 instead of 34."""
    profile = profile_of(layer("1", 10, (5, 20)), layer("2", 10, (5, 20)), layer("3", 9, (5, 100)))
    assert printed(profile) == ("GFGB", "GFGB", "GFGB")
    assert repaired(profile) == ("DHA", "GFGB", "GFGB")


def test_dfgb_takes_the_largest_gain_that_fits_into_the_idle_time() -> None:
    """The load is over at 30, the first gradient at 60: 20 for the second layer, which gains 4,
    and 10 for the first, which gains 1."""
    modes: tuple[Mode, ...] = ("DHA", "DHA", "GFGB")
    assert dfgb(FIGURE_6, modes, ANY_ROOM) == ("DFGB", "DFGB", "GFGB")
    assert dfgb(FIGURE_6, modes, 29) == ("DHA", "DFGB", "GFGB")
    assert dfgb(FIGURE_6, modes, 19) == ("DFGB", "DHA", "GFGB")
    first = replace(FIGURE_6.layers[0], transfer_ns=11)
    longer = replace(FIGURE_6, layers=(first, *FIGURE_6.layers[1:]))
    assert dfgb(longer, modes, ANY_ROOM) == ("DHA", "DFGB", "GFGB")
    last = replace(longer.layers[-1], gap_backward_ns=1)
    later = replace(longer, layers=(*longer.layers[:-1], last))
    assert dfgb(later, modes, ANY_ROOM) == ("DFGB", "DFGB", "GFGB")
    first = replace(FIGURE_6.layers[0], backward_dha_ns=8)  # gains nothing
    same = replace(FIGURE_6, layers=(first, *FIGURE_6.layers[1:]))
    assert dfgb(same, modes, ANY_ROOM) == ("DHA", "DFGB", "GFGB")


def test_what_does_not_fit_is_dha_where_that_costs_least_for_a_byte() -> None:
    """80 for the first layer's 80 bytes, 170 for the second's 90; then 90 are left."""
    on_gpu: tuple[Mode, ...] = ("GFGB", "GFGB")
    assert fitted(FIGURE_4, on_gpu, 170) == on_gpu
    assert fitted(FIGURE_4, on_gpu, 90) == ("DHA", "GFGB")
    assert fitted(FIGURE_4, on_gpu, 89) == ("DHA", "DHA")


def test_gradients_by_hand() -> None:
    """Gains of 11, which DHA of the parameters leaves of 12, 20 and 70 for 10, 20 and 30 bytes."""
    modes: tuple[Mode, ...] = ("DHA", "GFGB", "GFGB")
    assert gradients(FIGURE_6, modes, 29) == (False, True, False)
    assert gradients(FIGURE_6, modes, 30) == (False, False, True)
    assert gradients(FIGURE_6, modes, 40) == (True, False, True)
    assert gradients(FIGURE_6, modes, 0) == (False, False, False)


def _randoms(count: int, layers: int) -> Iterator[tuple[Random, ModelProfile]]:
    """Profiles of small numbers and of the kinds of the table."""
    random = Random(count + layers)
    for seed in range(count):
        kind = (*KINDS, "")[seed % 4]
        yield random, random_profile(kind, layers, seed) if kind else any_profile(random, layers)


def _nbytes(profile: ModelProfile, stays: tuple[bool, ...]) -> int:
    return sum(layer.nbytes for layer, on_gpu in zip(profile.layers, stays, strict=True) if on_gpu)


def test_gradients_gain_as_much_as_the_best_of_all_subsets() -> None:
    for random, profile in _randoms(200, 7):
        modes = tuple(random.choice(MODES) for _ in profile.layers)
        gains = [
            backward_way(layer, mode, False)[0] - backward_way(layer, mode, True)[0]
            for layer, mode in zip(profile.layers, modes, strict=True)
        ]
        room = int(random.random() * sum(layer.nbytes for layer in profile.layers))
        chosen = gradients(profile, modes, room)

        def gain(stays: tuple[bool, ...], gains: list[int] = gains) -> int:
            return sum(gain for gain, on_gpu in zip(gains, stays, strict=True) if on_gpu)

        subsets = product((False, True), repeat=7)
        best = max(gain(stays) for stays in subsets if _nbytes(profile, stays) <= room)
        assert gain(chosen) == best
        assert _nbytes(profile, chosen) <= room


def test_the_exact_forward_pass_is_the_best_of_all() -> None:
    forward: tuple[Mode, ...] = ("GFGB", "DHA")
    for random, profile in _randoms(120, 7):
        room = int(random.random() * 1.5 * sum(layer.nbytes for layer in profile.layers))
        plans = [
            modes for modes in product(forward, repeat=7) if parameter_bytes(profile, modes) <= room
        ]
        link, modes = LinkModel(profile, shared=False), exact(profile, room)
        assert link.forward_ns(modes) == min(map(link.forward_ns, plans))
        assert parameter_bytes(profile, modes) <= room
        assert ours_forward(profile, room) in plans
        assert exact(profile, room, width=2) in plans


def test_the_exact_step_is_the_best_of_all() -> None:
    for random, profile in _randoms(12, 3):
        total = sum(layer.nbytes for layer in profile.layers)
        budget = Budget(
            room_bytes=int(2 * random.random() * total),
            gradient_bytes=int(random.random() * total),
        )
        link, steps = LinkModel(profile, shared=True), []
        for modes, stays in product(product(MODES, repeat=3), product((False, True), repeat=3)):
            if _nbytes(profile, stays) <= budget.for_gradients(profile, modes):
                steps.append(link.step_ns(AccessPlan(modes=modes, gradients_on_gpu=stays)))
        assert link.step_ns(exact_step(profile, budget)) == min(steps)


@pytest.mark.parametrize("planner", PLANNERS)
def test_plans_keep_to_their_limits(planner: str) -> None:
    for random, profile in _randoms(12, 5):
        layers = tuple(replace(layer, activation_bytes=100, workspace_bytes=n)
                       for n, layer in enumerate(profile.layers))  # fmt: skip
        profile = replace(profile, layers=layers)
        total = sum(layer.nbytes for layer in layers)
        memory, reserve = 504 + int(2 * random.random() * total), random.random()
        plan = planned(profile, planner, memory, reserve)
        assert gpu_bytes(profile, plan) <= memory
        assert _nbytes(profile, plan.gradients_on_gpu) <= reserve * total
        least = planned(profile, planner, 504, reserve)
        assert gpu_bytes(profile, least) == 504
        with pytest.raises(InvalidArgumentError, match="503 bytes: expected 504 or more"):
            planned(profile, planner, 503)


def test_a_share_of_the_gradients_is_exact() -> None:
    profile = profile_of(layer("1", 29, (1, 1)), layer("2", 71, (1, 1)))
    assert budget_of(profile, reserve=0.29).gradient_bytes == 29  # 28.999... in floating point


def test_ours_is_no_worse_than_any_other_and_near_the_best() -> None:
    for random, profile in _randoms(8, 5):
        total = sum(layer.nbytes for layer in profile.layers)
        link, memory = LinkModel(profile, shared=True), int(total * 2 * random.random()) + 1
        steps = {name: link.step_ns(planned(profile, name, memory)) for name in PLANNERS}
        assert steps["ours"] <= min(steps[name] for name in ("printed", "repaired", "exact"))
        assert steps["exact-step"] <= steps["ours"] <= 1.02 * steps["exact-step"]
        assert ours(profile, budget_of(profile, memory)) == planned(profile, "ours", memory)


def test_ours_changes_two_layers_where_one_does_not_help() -> None:
    profile = random_profile("uniform", 8, 15)  # 3 % longer with the best changes of one
    forward_ns = LinkModel(profile, shared=True).forward_ns
    plans = ours_forward(profile, ANY_ROOM), exact_shared(profile, ANY_ROOM)
    assert forward_ns(plans[0]) == forward_ns(plans[1])


def test_many_layers() -> None:
    """More than can be enumerated, which says so; the others plan them, ours best."""
    profile = random_profile("transformer", 40, 0)
    with pytest.raises(InvalidArgumentError, match="of layers is 40: expected 8 or fewer"):
        exact_step(profile, budget_of(profile))
    link = LinkModel(profile, shared=True)
    steps = {name: link.step_ns(planned(profile, name)) for name in ("printed", "repaired", "ours")}
    assert steps["ours"] < min(steps["printed"], steps["repaired"])


def test_a_plan_is_told_by_the_layers_names() -> None:
    plan = AccessPlan(modes=("DHA", "DFGB", "GFGB"), gradients_on_gpu=(False, True, True))
    assert figures_of(FIGURE_6, "mine", plan) == {
        "planner": "mine",
        "modes": {"1": "DHA", "2": "DFGB", "3": "GFGB"},
        "gradients_on_gpu": ["2", "3"],
        "forward_ns": 40,
        "shared_link_forward_ns": 62,
        "step_ns": 156,
        "gpu_bytes": 20 + 30 + 20 + 30,
    }


def test_a_planner_that_there_is_not() -> None:
    with pytest.raises(InvalidArgumentError, match="planner is 'our': did you mean ours"):
        planned(FIGURE_6, "our")
