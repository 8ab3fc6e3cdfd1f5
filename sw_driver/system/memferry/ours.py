"""Ours: a plan for the link that DHA and copies share.

What the other planners say is improved, the best first: each layer in each other way, and when that
does not help, two layers, neighbours first. A change is kept if it makes the time shorter. After so
many tries that 200 layers take about a second it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product, repeat
from math import inf
from typing import TypeVar

from .budget import Budget, completed, fitted, parameter_bytes
from .exact import search
from .link import MODES, Link, Mode, Plan
from .printed import printed
from .profile import ModelProfile
from .repaired import repaired

__all__ = ["ours", "ours_forward"]

Way = TypeVar("Way")

_LAYERS_TRIED = 100_000
"""In all tries together: a try takes as long as there are layers."""


def ours(profile: ModelProfile, budget: Budget) -> Plan:
    """The plan with the shortest step that is found."""
    link = Link(profile, shared=True)
    ways = tuple(product(MODES, (False, True)))
    nbytes = [layer.nbytes for layer in profile.layers]

    def plan_of(chosen: tuple[tuple[Mode, bool], ...]) -> Plan:
        modes, stays = zip(*chosen, strict=True)
        return Plan(modes=modes, gradients_on_gpu=stays)

    def step(chosen: tuple[tuple[Mode, bool], ...]) -> float:
        plan = plan_of(chosen)
        kept = sum(n for n, stays in zip(nbytes, plan.gradients_on_gpu, strict=True) if stays)
        fits = kept <= budget.for_gradients(profile, plan.modes)
        return link.step_ns(plan) if fits else inf

    starts = []
    for modes in _starts(profile, budget.room_bytes):
        plan = completed(profile, modes, budget)
        for way in (plan.modes, modes):
            starts += [
                tuple(zip(way, stays, strict=True))
                for stays in (plan.gradients_on_gpu, (False,) * len(nbytes), (True,) * len(nbytes))
            ]
    return plan_of(_improved(starts, ways, step))


def ours_forward(profile: ModelProfile, room_bytes: int) -> tuple[Mode, ...]:
    """GFGB or DHA for each layer: the shortest forward pass that is found."""
    link = Link(profile, shared=True)

    def forward(modes: tuple[Mode, ...]) -> float:
        return link.forward_ns(modes) if parameter_bytes(profile, modes) <= room_bytes else inf

    return _improved(_starts(profile, room_bytes), MODES[:2], forward)


def _starts(profile: ModelProfile, room_bytes: int) -> list[tuple[Mode, ...]]:
    layers = len(profile.layers)
    found = [search(profile, room_bytes, width=50, sharing=sharing) for sharing in (0, 1, 2)]
    every = [tuple(repeat(mode, layers)) for mode in MODES[:2]]
    starts = [printed(profile), repaired(profile), *found, *every]
    return [fitted(profile, modes, room_bytes) for modes in starts]


def _improved(
    starts: list[tuple[Way, ...]],
    ways: tuple[Way, ...],
    score: Callable[[tuple[Way, ...]], float],
) -> tuple[Way, ...]:
    """The least by ``score`` of what each start leads to."""
    scored = sorted((score(each), n, each) for n, each in enumerate(dict.fromkeys(starts)))
    least, _, best = scored[0]
    tries = _LAYERS_TRIED // len(best)
    for reached, _, now in scored:
        changes = _changes(now, ways)
        while tries > 0 and (changed := next(changes, None)) is not None:
            tries -= 1
            if (found := score(changed)) < reached:
                reached, now = found, changed
                changes = _changes(now, ways)
        if reached < least:
            least, best = reached, now
    return best


def _changes(now: tuple[Way, ...], ways: tuple[Way, ...]) -> Iterator[tuple[Way, ...]]:
    """What differs from ``now`` in one layer, and then what differs in two."""
    layers = len(now)
    for i in range(layers):
        for way in ways:
            if way != now[i]:
                yield (*now[:i], way, *now[i + 1 :])
    for apart in range(1, layers):
        for i in range(layers - apart):
            j = i + apart
            for one, other in product(ways, ways):
                if one != now[i] and other != now[j]:
                    yield (*now[:i], one, *now[i + 1 : j], other, *now[j + 1 :])
