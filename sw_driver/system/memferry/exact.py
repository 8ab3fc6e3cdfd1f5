"""The best that any plan can do.

On the paper's link the forward pass is searched layer by layer: of two beginnings the one is
dropped that ends no sooner, has no less to load and takes no less memory. With a hundred layers
that all differ this takes some seconds. On a shared link what a layer takes depends on the loads
behind it, so plans are enumerated, those of few layers.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import product
from math import inf
from operator import getitem

from sw_driver.device.errors import InvalidArgumentError

from .budget import Budget
from .link import MODES, Link, Mode, Plan, ahead, backward_way
from .profile import ModelProfile

__all__ = ["MOST_LAYERS", "exact", "exact_step"]

MOST_LAYERS = 8
"""Most layers whose plans are enumerated: six ways through a step for each."""


def exact(
    profile: ModelProfile, room_bytes: int, *, width: int | None = None, sharing: int = 0
) -> tuple[Mode, ...]:
    """GFGB or DHA for each layer, so that no forward pass on the paper's link ends sooner and has
    ``room_bytes`` of parameters in the GPU's memory at most.

    With a ``width`` only so many beginnings are followed, and the result is only good; with
    ``sharing`` it is for a shared link, by the estimate of
    :func:`~sw_driver.system.memferry.link.ahead`.
    """
    layers = profile.layers
    bounded = sum(layer.nbytes for layer in layers) > room_bytes
    rest = sum(layer.transfer_ns for layer in layers)
    beginnings: list[tuple[int, int, int, tuple]] = [(0, 0, 0, ())]
    """When it ends, when its loads do, bytes on the GPU, and the last mode with those before."""
    for layer in layers:
        rest -= layer.transfer_ns
        longer = []
        for now, loaded, nbytes, before in beginnings:
            for mode in ("DHA", "GFGB"):
                taken = nbytes + layer.nbytes * (bounded and mode == "GFGB")
                if taken <= room_bytes:
                    end, loads = ahead(layer, mode, now, loaded, sharing)
                    # Loads that no later layer can wait for are as good as over.
                    longer.append((end, max(loads, end - rest), taken, (mode, before)))
        beginnings = []
        front: list[tuple[int, int]] = []
        """Loads and bytes of those that are kept, more of the one with less of the other."""
        for each in sorted(longer, key=lambda each: each[:3]):
            _, loads, taken, _ = each
            at = bisect_right(front, (loads, taken))
            if not at or front[at - 1][1] > taken:
                beginnings.append(each)
                after = next((i for i in range(at, len(front)) if front[i][1] < taken), len(front))
                front[at:after] = [(loads, taken)]
        if width is not None:
            beginnings = sorted(beginnings, key=lambda each: max(each[:2]))[:width]
    modes, chain = [], min(beginnings)[3]
    while chain:
        modes.append(chain[0])
        chain = chain[1]
    return tuple(reversed(modes))


def exact_step(profile: ModelProfile, budget: Budget) -> Plan:
    """Return the plan with the shortest step on a shared link.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for more than :data:`MOST_LAYERS`.
    """
    link, layers = Link(profile, shared=True), profile.layers
    if len(layers) > MOST_LAYERS:
        raise InvalidArgumentError(
            f"the number of layers is {len(layers)}: expected {MOST_LAYERS} or fewer, whose plans "
            "can all be tried; the planner 'ours' takes any number"
        )
    best, shortest = Plan(modes=(), gradients_on_gpu=()), inf
    every = product(MODES, repeat=len(layers))
    for forward_ns, modes in sorted((link.forward_ns(modes), modes) for modes in every):
        alone = [
            [each.gap_backward_ns + backward_way(each, mode, on_gpu)[0] for on_gpu in (False, True)]
            for each, mode in zip(layers, modes, strict=True)
        ]
        alone[0][True] += layers[0].transfer_ns  # of the last gradient
        for stays in product((False, True), repeat=len(layers)):
            if forward_ns + sum(map(getitem, alone, stays)) >= shortest:
                continue  # as a step takes no less than that
            plan = Plan(modes=modes, gradients_on_gpu=stays)
            if budget.fits(profile, plan) and (step_ns := link.step_ns(plan)) < shortest:
                best, shortest = plan, step_ns
    return best
