"""How far planners are from the best plan, on random profiles and on networks.

``python -m sw_driver.system.memferry.gaps`` prints a table for 1,000 profiles of each of three
kinds, for 100 of them for the whole step, and for the networks that are shipped, in some minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import product
from random import Random
from typing import Any

from rich.console import Console
from rich.progress import Progress

from sw_driver.machine.presets import PRESETS
from sw_driver.workload import load_trace
from sw_driver.workload.networks import MEMFERRY

from .budget import budget_of
from .costs import profile_of
from .exact import exact, exact_shared
from .link import Link, Mode, Plan
from .ours import ours_forward
from .planners import PLANNERS
from .printed import printed
from .profile import LayerProfile, ModelProfile
from .repaired import repaired

__all__ = ["KINDS", "forward_gaps", "network_gaps", "random_profile", "step_gaps"]

KINDS = ("transformer", "uniform", "heavy")
EVERY: dict[str, Mode] = {"all on the GPU": "GFGB", "all by DHA": "DHA"}

_BYTES_PER_NS = 12

Gaps = dict[str, tuple[float, ...]]
"""Percent above the optimum of each planner."""


def random_profile(kind: str, layers: int, seed: int) -> ModelProfile:
    """A profile of a kind on a link of 12 GB/s. What differs is the layers' sizes and times.

    transformer: an embedding of which DHA reads a few rows, then in turn products, which DHA reads
    several times, and small layers, which are computed while they are read. uniform: each time and
    size is any from 0 to 1 ms. heavy: sizes of which few make up most of the sum.
    """
    random = Random(f"{kind} {seed}")

    def times(transfer: float, forward: float, dha: float) -> dict[str, int]:
        written = max(2 * forward, transfer) * (1 + random.random())
        backward_dha = 2 * forward * (1 + 0.1 * random.random())
        return {
            "nbytes": int(transfer * _BYTES_PER_NS),
            "transfer_ns": int(transfer),
            "forward_ns": int(forward),
            "forward_dha_ns": int(dha),
            "backward_ns": int(2 * forward),
            "backward_dha_ns": int(backward_dha),
            "backward_gradient_dha_ns": int(written),
            "gap_forward_ns": int(20_000 * random.random()),
            "gap_backward_ns": int(40_000 * random.random()),
        }

    made = []
    for number in range(layers):
        any_ns = [1_000_000 * random.random() for _ in range(3)]
        if kind == "uniform":
            found = times(*any_ns)
        elif kind == "heavy":
            transfer = min(10_000 / (1 - random.random()), 1e7)
            forward = transfer * random.random()
            found = times(transfer, forward, max(forward, transfer * 3 * random.random()))
        elif number == 0:
            found = times(8 * any_ns[0], any_ns[1] / 10, any_ns[1] / 10 + any_ns[2] / 5)
        elif number % 2:
            forward = any_ns[0] / 2
            found = times(any_ns[1], forward, max(forward, any_ns[1] * (1 + 5 * random.random())))
        else:
            forward = 10_000 + any_ns[0] / 50
            found = times(1000 * random.random(), forward, forward * (1 + random.random() / 10))
        made.append(LayerProfile(name=str(number), **found))
    update = sum(layer.transfer_ns for layer in made) * random.random()
    return ModelProfile(
        device=kind, link_bytes_per_s=12e9, update_ns=int(update), layers=tuple(made)
    )


def forward_gaps(profile: ModelProfile) -> Gaps:
    """Of the forward passes, on the paper's link and on a shared one."""
    room = budget_of(profile).room_bytes
    links = (Link(profile, shared=shared).forward_ns for shared in (False, True))
    plans: dict[str, Any] = {name: [mode] * len(profile.layers) for name, mode in EVERY.items()}
    plans["printed"] = printed(profile)
    plans["repaired"] = repaired(profile)
    plans["exact, paper's link"] = exact(profile, room)
    plans["ours"] = ours_forward(profile, room)
    plans["exact, shared link"] = exact_shared(profile, room)
    return _gaps(plans, *links)


def step_gaps(profile: ModelProfile) -> Gaps:
    """Of the steps on a shared link, each planner's with its DFGB layers and gradients."""
    return _gaps(_plans(profile, *PLANNERS), Link(profile, shared=True).step_ns)


def network_gaps(name: str) -> Gaps:
    """Of a network's forward passes on the paper's link, and its steps on a shared one, there above
    the best of these plans: no better one is known."""
    profile = profile_of(load_trace(name), PRESETS["memferry_v100"])
    forward_ns = Link(profile, shared=False).forward_ns
    return _gaps(
        _plans(profile, "printed", "repaired", "exact", "ours"),
        lambda plan: forward_ns(plan.modes),
        Link(profile, shared=True).step_ns,
    )


def _plans(profile: ModelProfile, *planners: str) -> dict[str, Plan]:
    layers = len(profile.layers)
    every = {
        name: Plan(modes=(mode,) * layers, gradients_on_gpu=(True,) * layers)
        for name, mode in EVERY.items()
    }
    return every | {name: PLANNERS[name](profile, budget_of(profile)) for name in planners}


def _gaps(plans: dict[str, Any], *times: Callable[[Any], int]) -> Gaps:
    least = [min(map(time, plans.values())) for time in times]
    return {
        name: tuple(100 * (time(plan) / best - 1) for time, best in zip(times, least, strict=True))
        for name, plan in plans.items()
    }


def main() -> None:
    shown = Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    for kind, (what, gaps, layers, count) in product(
        KINDS,
        (("forward, paper's and shared link", forward_gaps, 8, 1000), ("step", step_gaps, 6, 100)),
    ):
        with shown:
            profiles = (random_profile(kind, layers, seed) for seed in range(count))
            found = [*shown.track(map(gaps, profiles), count, description=f"{kind}, {what}")]
        _print(f"{kind}, {count} of {layers} layers: {what}", found)
    with shown:
        found = [*shown.track(map(network_gaps, MEMFERRY), len(MEMFERRY), description="networks")]
    _print("networks: forward on the paper's link, step on a shared one", found)


def _print(title: str, found: list[Gaps]) -> None:
    print(f"{title}; mean and worst in %")
    for name in found[0]:
        columns = zip(*(each[name] for each in found), strict=True)
        print(f"  {name:20}", *(f"{sum(c) / len(found):11.3f} {max(c):8.2f}" for c in columns))


if __name__ == "__main__":
    main()
