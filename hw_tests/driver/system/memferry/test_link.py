"""Times of plans on both links: by hand, and against a model that goes on ns by ns."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from hw_tests.driver.system.memferry.profiles import (
    FIGURE_4,
    FIGURE_6,
    Ticks,
    any_plan,
    any_profile,
    layer,
    profile_of,
)
from sw_driver.system.memferry.link import AccessPlan, LinkModel, overlap

PAPER = {profile: LinkModel(profile, shared=False) for profile in (FIGURE_4, FIGURE_6)}
SHARED = {profile: LinkModel(profile, shared=True) for profile in (FIGURE_4, FIGURE_6)}
ALL_ON_GPU = (True, True, True)


def test_all_on_the_gpu_waits_for_loads() -> None:
    """Loads are over at 80 and 170; the layers take 80 to 100 and 170 to 200."""
    assert PAPER[FIGURE_4].forward_ns(("GFGB", "GFGB")) == 200
    assert SHARED[FIGURE_4].forward_ns(("GFGB", "GFGB")) == 200


def test_dha_hides_a_load_if_it_takes_nothing_of_the_link() -> None:
    """Figure 4. The second layer's load, 0 to 90, is over before the first layer, 0 to 100. On a
    shared link it has half until 180, when DHA has moved 90 too; DHA ends at 190."""
    assert PAPER[FIGURE_4].forward_ns(("DHA", "GFGB")) == 130
    assert SHARED[FIGURE_4].forward_ns(("DHA", "GFGB")) == 220


def test_what_is_computed_while_it_is_read_takes_little_of_the_link() -> None:
    """DHA is no slower than the GPU's memory, and moves the layer's 5 bytes once: beside the load
    until 10, which ends at 25; the layer ends at 40, and all at 50."""
    profile = profile_of(layer("1", 5, (40, 40)), layer("2", 20, (10, 90)))
    assert LinkModel(profile, shared=True).forward_ns(("DHA", "GFGB")) == 50
    # A table of which 4 bytes' time is read, not 50: until 8, and the load ends at 24.
    profile = profile_of(layer("1", 50, (4, 4)), layer("2", 20, (10, 90)))
    assert LinkModel(profile, shared=True).forward_ns(("DHA", "GFGB")) == 34


def test_a_step_of_figure_6() -> None:
    """Forward: 0 to 12, 12 to 22 by DHA; the third layer's load 0 to 30, then its 30 to 40.

    The second layer's load is 30 to 50. Backward: 40 to 60, 60 to 70, 70 to 79; gradients 60 to 90,
    to 110, to 120. Updates of 6, 4 and 2: 90 to 96, 110 to 114, 120 to 122.
    """
    plan = AccessPlan(modes=("DHA", "DFGB", "GFGB"), gradients_on_gpu=ALL_ON_GPU)
    assert PAPER[FIGURE_6].forward_ns(plan.modes) == 40
    assert PAPER[FIGURE_6].step_ns(plan) == 122


def test_a_step_of_figure_6_on_a_shared_link() -> None:
    """DHA of the first layer moves 12 until 24, of the second 10 until 44; of the load 8 are left,
    until 52. The third layer: 52 to 62.

    The second layer's load is 52 to 72. Backward: 62 to 82, to 92, to 101; gradients 82 to 112, to
    132, to 142, and an update of 2.
    """
    plan = AccessPlan(modes=("DHA", "DFGB", "GFGB"), gradients_on_gpu=ALL_ON_GPU)
    assert SHARED[FIGURE_6].forward_ns(plan.modes) == 62
    assert SHARED[FIGURE_6].step_ns(plan) == 144


def test_a_gradient_that_dha_writes() -> None:
    """The first layer, whose gradient is written in 20, begins at 70, or at 92 on the shared link.

    There the third layer's gradient has 20 of 30 left: both are over at 132. The second's follows,
    to 152, and its update of 4. On the paper's link they come at 90, 90 and 110.
    """
    plan = AccessPlan(modes=("DHA", "DFGB", "GFGB"), gradients_on_gpu=(False, True, True))
    assert PAPER[FIGURE_6].step_ns(plan) == 114
    assert SHARED[FIGURE_6].step_ns(plan) == 156


def test_a_layer_waits_for_its_copy_before_its_backward_pass() -> None:
    """Loaded from 2, after its forward pass, to 12; forward is over at 2, its backward at 13."""
    profile = profile_of(layer("1", 10, (1, 2), (1, 5, 9)))
    plan = AccessPlan(modes=("DFGB",), gradients_on_gpu=(False,))
    assert LinkModel(profile, shared=False).step_ns(plan) == 12 + 9
    plan = replace(plan, gradients_on_gpu=(True,))
    assert LinkModel(profile, shared=False).step_ns(plan) == 12 + 1 + 10


@pytest.mark.parametrize("shared", [False, True], ids=["paper", "shared"])
def test_any_plan_takes_what_it_takes_ns_by_ns(shared: bool) -> None:
    random = Random(1)
    for _ in range(400):
        profile = any_profile(random, random.randrange(1, 7))
        plan = any_plan(random, len(profile.layers))
        ticks, link = Ticks(profile, plan, shared), LinkModel(profile, shared=shared)
        assert link.forward_ns(plan.modes) == ticks.forward_ns
        assert link.step_ns(plan) == ticks.step_ns
        assert ticks.moved == ticks.busy  # the link is used whole whenever it is used
        if not shared:
            assert overlap(profile.layers, plan.modes)[0] == ticks.forward_ns


def test_a_shared_link_is_never_faster_and_the_same_without_dha() -> None:
    random = Random(2)
    for _ in range(300):
        profile = any_profile(random, 5)
        plan = any_plan(random, 5)
        paper, shared = (LinkModel(profile, shared=shared) for shared in (False, True))
        assert shared.step_ns(plan) >= paper.step_ns(plan)
        plan = AccessPlan(modes=("GFGB",) * 5, gradients_on_gpu=(True,) * 5)
        assert shared.step_ns(plan) == paper.step_ns(plan)


def test_the_whole_update_is_made_whatever_is_rounded() -> None:
    """Three layers of which each has a third of 100 ns, all at the end; and layers of no bytes."""
    for transfer in (1, 0):
        layers = (layer(str(n), transfer, (0, 0)) for n in range(3))
        link = LinkModel(profile_of(*layers, update_ns=100), shared=True)
        assert link.step_ns(AccessPlan(modes=("DHA",) * 3, gradients_on_gpu=(False,) * 3)) == 100


def test_a_copy_that_is_asked_for_as_another_ends_is_among_those_that_wait() -> None:
    # The first copy lasts from 1 to 5, when the third forward pass is over, too. So the third's
    # comes before the second's and is there at 6; the second's at 15. Each backward pass takes 1.
    profile = profile_of(
        layer("1", 4, (9, 1), (1, 9, 1)),
        layer("2", 9, (9, 2), (1, 9, 1)),
        layer("3", 1, (9, 2), (1, 9, 1)),
    )
    plan = AccessPlan(modes=("DFGB",) * 3, gradients_on_gpu=(False,) * 3)
    assert LinkModel(profile, shared=False).step_ns(plan) == 15 + 1 + 1
