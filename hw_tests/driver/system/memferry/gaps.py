"""How far planners are from the best plan, on random profiles and on networks.

``python -m hw_tests.driver.system.memferry.gaps`` prints a table for 1,000 profiles of each of
three kinds, for 100 of them for the whole step, and for the networks that are shipped, in some
minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from math import inf
from random import Random
from typing import Any

from sw_driver.machine.presets import PRESETS
from sw_driver.system.memferry.algorithm import printed, repaired
from sw_driver.system.memferry.budget import budget_of, parameter_bytes
from sw_driver.system.memferry.costs import profile_of
from sw_driver.system.memferry.link import MODES, AccessPlan, LinkModel, Mode, every
from sw_driver.system.memferry.planners import PLANNERS, _improved, _starts, exact
from sw_driver.system.memferry.profile import LayerProfile, ModelProfile
from sw_driver.workload import load_trace
from sw_driver.workload.networks import MEMFERRY

__all__ = [
    "KINDS",
    "exact_shared",
    "forward_gaps",
    "network_gaps",
    "ours_forward",
    "random_profile",
    "step_gaps",
]

KINDS = ("transformer", "uniform", "heavy")
EVERY: dict[str, Mode] = {"all on the GPU": "GFGB", "all by DHA": "DHA"}

Gaps = dict[str, tuple[float, ...]]
"""Percent above the optimum of each planner."""


def random_profile(kind: str, layers: int, seed: int) -> ModelProfile:
    """A profile of a kind on a link of 12 GB/s. What differs is the layers' sizes and times.

    transformer: an embedding of which DHA reads a few rows, then in turn products, which DHA reads
    several times, and small layers, which are computed while they are read. uniform: each time and
    size is any from 0 to 1 ms. heavy: sizes of which few make up most of the sum.
    """
    random = Random(f"{kind} {seed}")

    def layer(number: int) -> LayerProfile:
        transfer, forward, dha = (1_000_000 * random.random() for _ in range(3))
        if kind == "heavy":
            transfer = min(10_000 / (1 - random.random()), 1e7)
            forward = transfer * random.random()
            dha = max(forward, transfer * 3 * random.random())
        elif kind == "transformer" and number == 0:
            transfer, forward, dha = 8 * transfer, forward / 10, forward / 10 + dha / 5
        elif kind == "transformer" and number % 2:
            transfer, forward = forward, transfer / 2
            dha = max(forward, transfer * (1 + 5 * random.random()))
        elif kind == "transformer":
            forward = 10_000 + transfer / 50
            transfer, dha = 1000 * random.random(), forward * (1 + random.random() / 10)
        written = max(2 * forward, transfer) * (1 + random.random())
        return LayerProfile(
            name=str(number),
            nbytes=int(transfer * 12),
            transfer_ns=int(transfer),
            forward_ns=int(forward),
            forward_dha_ns=int(dha),
            backward_ns=int(2 * forward),
            backward_dha_ns=int(2 * forward * (1 + 0.1 * random.random())),
            backward_gradient_dha_ns=int(written),
            gap_forward_ns=int(20_000 * random.random()),
            gap_backward_ns=int(40_000 * random.random()),
        )

    made = tuple(map(layer, range(layers)))
    update = sum(made_layer.transfer_ns for made_layer in made) * random.random()
    return ModelProfile(device=kind, link_bytes_per_s=12e9, update_ns=int(update), layers=made)


def ours_forward(profile: ModelProfile, room_bytes: int) -> tuple[Mode, ...]:
    """Return GFGB or DHA for each layer: the shortest forward pass that our search finds."""
    link = LinkModel(profile, shared=True)

    def forward_ns(modes: tuple[Mode, ...], _: float) -> float:
        return link.forward_ns(modes) if parameter_bytes(profile, modes) <= room_bytes else inf

    return _improved(_starts(profile, room_bytes), MODES[:2], forward_ns)


def exact_shared(profile: ModelProfile, room_bytes: int) -> tuple[Mode, ...]:
    """Return the shortest forward pass of all on a shared link."""
    plans = product(MODES[:2], repeat=len(profile.layers))
    fitting = (modes for modes in plans if parameter_bytes(profile, modes) <= room_bytes)
    return min(fitting, key=LinkModel(profile, shared=True).forward_ns)


def forward_gaps(profile: ModelProfile) -> Gaps:
    """Of the forward passes, on the paper's link and on a shared one."""
    room = budget_of(profile).room_bytes
    plans: dict[str, Any] = {name: [mode] * len(profile.layers) for name, mode in EVERY.items()}
    plans |= {
        "printed": printed(profile),
        "repaired": repaired(profile),
        "exact, paper's link": exact(profile, room),
        "ours": ours_forward(profile, room),
        "exact, shared link": exact_shared(profile, room),
    }
    return _gaps(plans, *(LinkModel(profile, shared=shared).forward_ns for shared in (False, True)))


def step_gaps(profile: ModelProfile) -> Gaps:
    """Of the steps on a shared link, each planner's with its DFGB layers and gradients."""
    return _gaps(_plans(profile, *PLANNERS), LinkModel(profile, shared=True).step_ns)


def network_gaps(name: str) -> Gaps:
    """Of a network's forward passes on the paper's link, and its steps on a shared one, there above
    the best of these plans: no better one is known."""
    profile = profile_of(load_trace(name), PRESETS["memferry_v100"])
    paper, shared = (LinkModel(profile, shared=shared) for shared in (False, True))
    plans = _plans(profile, "printed", "repaired", "exact", "ours")
    return _gaps(plans, lambda plan: paper.forward_ns(plan.modes), shared.step_ns)


def _plans(profile: ModelProfile, *planners: str) -> dict[str, AccessPlan]:
    plans = {name: every(profile, mode, True) for name, mode in EVERY.items()}
    return plans | {name: PLANNERS[name](profile, budget_of(profile)) for name in planners}


def _gaps(plans: dict[str, Any], *times: Callable[[Any], int]) -> Gaps:
    least = [min(map(time, plans.values())) for time in times]
    return {
        name: tuple(100 * (time(plan) / best - 1) for time, best in zip(times, least, strict=True))
        for name, plan in plans.items()
    }


def main() -> None:
    for kind in KINDS:
        forward, step = (
            [random_profile(kind, layers, seed) for seed in range(count)]
            for layers, count in ((8, 1000), (6, 100))
        )
        _print(f"{kind}: forward, paper's and shared link", map(forward_gaps, forward))
        _print(f"{kind}: step", map(step_gaps, step))
    title = "networks: forward on the paper's link, step on a shared one"
    _print(title, map(network_gaps, MEMFERRY))


def _print(title: str, gaps_of: Iterable[Gaps]) -> None:
    gaps = list(gaps_of)
    print(f"{title}; mean and worst of {len(gaps)} in %", flush=True)
    for name in gaps[0]:
        columns = zip(*(gap[name] for gap in gaps), strict=True)
        print(f"  {name:20}", *(f"{sum(c) / len(gaps):11.3f} {max(c):8.2f}" for c in columns))


if __name__ == "__main__":
    main()
