"""Ours: a plan for the link that DHA and copies share.

What the other planners say is improved, the best first: each layer in each other way, and when that
does not help, two layers, neighbours first. A change is kept if it makes the time shorter. After so
many tries that 200 layers take about a second it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import inf
from typing import TypeVar

from .budget import Budget, completed, fitted
from .exact import exact
from .link import MODES, WAYS, Link, Mode, Plan
from .printed import printed
from .profile import ModelProfile
from .repaired import repaired

__all__ = ["ours"]

Way = TypeVar("Way")

_LAYERS_TRIED = 100_000
"""In all tries together: a try takes as long as there are layers."""


def ours(profile: ModelProfile, budget: Budget) -> Plan:
    """The plan with the shortest step that is found."""
    link = Link(profile, shared=True)

    def plan_of(chosen: tuple[tuple[Mode, bool], ...]) -> Plan:
        modes, stays = zip(*chosen, strict=True)
        return Plan(modes=modes, gradients_on_gpu=stays)

    def step_ns(chosen: tuple[tuple[Mode, bool], ...]) -> float:
        plan = plan_of(chosen)
        return link.step_ns(plan) if budget.fits(profile, plan) else inf

    starts = []
    for modes in _starts(profile, budget.room_bytes):
        plan = completed(profile, modes, budget)
        for way in (plan.modes, modes):
            for stays in (plan.gradients_on_gpu, (False,) * len(way), (True,) * len(way)):
                starts.append(tuple(zip(way, stays, strict=True)))
    return plan_of(_improved(starts, WAYS, step_ns))


def _starts(profile: ModelProfile, room_bytes: int) -> list[tuple[Mode, ...]]:
    found = [exact(profile, room_bytes, width=50, sharing=sharing) for sharing in (0, 1, 2)]
    every = [(mode,) * len(profile.layers) for mode in MODES[:2]]
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
    for apart in range(layers):
        for i in range(layers - apart):
            for both in product(ways, repeat=2 if apart else 1):
                changed = list(now)
                changed[i], changed[i + apart] = both[0], both[-1]
                if changed[i] != now[i] and changed[i + apart] != now[i + apart]:
                    yield tuple(changed)
