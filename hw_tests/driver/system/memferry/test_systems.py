"""Steps of MemFerry and of ZeRO-Offload on an engine: by hand, and against the planners' times."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from hw_tests.driver.system.memferry.profiles import (
    FIGURE_6,
    any_plan,
    any_profile,
    layer,
    profile_of,
)
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.system.memferry.budget import gpu_bytes
from sw_driver.system.memferry.link import AccessPlan, LinkModel, every
from sw_driver.system.memferry.systems import BUCKET_BYTES, System, deepspeed, native, run


def test_steps_take_what_the_planners_say() -> None:
    # Times of the link are events here and arithmetic there; both are exact.
    for seed in range(200):
        random = Random(seed)
        profile = any_profile(random, random.randrange(1, 6))
        plan = any_plan(random, len(profile.layers))
        step, link = run(profile, System(plan=plan), check=True), LinkModel(profile, shared=True)
        figures = step.step_ns, step.marks_ns["forward"], step.peak_bytes["gpu"]
        shared = link.step_ns(plan), link.forward_ns(plan.modes), gpu_bytes(profile, plan)
        assert figures == shared, f"seed {seed}: {plan}"


def test_of_copies_that_are_asked_for_at_once_the_last_layers_is_first() -> None:
    # Both forward passes are over at 0, copies at 1 and 5, and backward passes at 11.
    first, second = layer("1", 4, (0, 0)), layer("2", 1, (0, 0), (10, 10, 10))
    profile = profile_of(first, second)
    assert run(profile, System(plan=every(profile, "DFGB", False)), check=True).step_ns == 11


def test_native_updates_when_all_gradients_are_there() -> None:
    # Copies end at 10, 30 and 60, so forward passes at 14, 36 and 70, and backward ones at 90, 100
    # and 108. Gradients of 30, 20 and 10 come at 120, 140 and 150, and 12 ns of updates are left.
    # MemFerry's of 6, 4 and 2 begin at 120, 140 and 150.
    step = run(FIGURE_6, native(FIGURE_6), check=True)
    assert step.marks_ns == {"forward": 70, "gradients": 150}
    assert (step.step_ns, step.busy("gpu")) == (162, 58)
    assert step.peak_bytes["gpu"] == 2 * 60
    assert run(FIGURE_6, System(plan=every(FIGURE_6, "GFGB", True))).step_ns == 152


def test_gradients_that_leave_make_room() -> None:
    # Those of 30 and 20 ns are on their way when that of 10 is made, so that all are there at once.
    # With room for one, backward passes end at 90, 130 and 158, behind each copy.
    free, one = (run(FIGURE_6, native(FIGURE_6, leaving=n), check=True) for n in (3, 1))
    assert free.step_ns == run(FIGURE_6, native(FIGURE_6)).step_ns
    assert free.peak_bytes["gpu"] == 60 + 30 + 20 + 10
    assert one.peak_bytes["gpu"] == 60 + 30
    assert one.step_ns == 168 + 12


def test_frozen_parameters_have_no_gradients() -> None:
    first, *others = FIGURE_6.layers
    frozen = replace(
        FIGURE_6, layers=(first, *(replace(other, frozen_bytes=other.nbytes) for other in others))
    )
    step, plan = run(frozen, native(frozen), check=True), native(frozen).plan
    assert step.peak_bytes["gpu"] == 60 + first.nbytes == gpu_bytes(frozen, plan)
    # Backward passes end at 90, 100 and 108, the first layer's copy takes 10 ns, its update 12.
    assert (step.marks_ns["gradients"], step.step_ns) == (118, 130)
    assert LinkModel(frozen, shared=True).step_ns(plan) == 130
    with pytest.raises(
        InvalidArgumentError, match="layer 'x': frozen_bytes is 3: expected 2 at most"
    ):
        replace(layer("x", 2, (0, 0)), frozen_bytes=3)


def test_activations_stay_and_workspaces_do_not() -> None:
    first, second, _ = FIGURE_6.layers
    profile = replace(
        FIGURE_6,
        layers=(
            replace(first, activation_bytes=5, workspace_bytes=9),
            replace(second, activation_bytes=7, workspace_bytes=4),
        ),
    )
    # 60 bytes of parameters and gradients; behind them the second's forward pass has 5 + 7 + 4.
    # The first's backward pass has no activations of the second any more.
    step = run(profile, native(profile), check=True)
    assert step.peak_bytes["gpu"] == 60 + 5 + 7 + 4 == gpu_bytes(profile, native(profile).plan)


def test_deepspeed_waits_for_buffers() -> None:
    # Of 30 and 20 ns, so that backward passes end at 90, 130 and 158, and the last copy at 168.
    step = run(FIGURE_6, deepspeed(FIGURE_6, 1000), check=True)
    assert (step.step_ns, step.busy("gpu")) == (168 + 12, 58)
    assert step.peak_bytes["gpu"] == BUCKET_BYTES + 2 * 60


def test_a_ring_passes_on_what_is_copied() -> None:
    # Three hops, each of whole messages: of 10, 20 and 30 bytes 30, 60 and 90 ns, from 10 on. So
    # forward passes end at 200, and backward ones at 220, 230 and 238; gradients are in the first
    # GPU at 310, 370 and 400, and in the host's memory at 410.
    step = run(FIGURE_6, native(FIGURE_6, gpus=4), check=True)
    assert (step.marks_ns["forward"], step.step_ns) == (200, 410 + 12)
    with pytest.raises(InvalidArgumentError, match="gpus is 2: expected 1 for a plan that writes"):
        System(plan=AccessPlan(modes=("GFGB",), gradients_on_gpu=(False,)), gpus=2)


def test_a_plan_of_other_layers_is_refused() -> None:
    plan = every(replace(FIGURE_6, layers=FIGURE_6.layers[:2]), "GFGB", True)
    with pytest.raises(InvalidArgumentError, match="the number of layers in the plan is 2"):
        run(FIGURE_6, System(plan=plan))
