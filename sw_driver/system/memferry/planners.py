"""Planners by name: the paper's, the best that any plan can do, and ours; a plan as it is told."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from math import inf
from operator import getitem
from typing import Any, TypeVar

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.numbers import check_name

from .algorithm import printed, repaired
from .budget import Budget, budget_of, completed, fitted, gpu_bytes
from .link import MODES, WAYS, Link, Mode, Plan, ahead, backward_way
from .profile import DHA_TIMES, LayerProfile, ModelProfile

__all__ = [
    "MOST_LAYERS",
    "PLANNERS",
    "exact",
    "exact_step",
    "ours",
    "planned",
    "step_ns_of_changes",
    "told",
]

MOST_LAYERS = 8
"""Most layers whose plans are enumerated: six ways through a step for each."""


def exact(
    profile: ModelProfile, room_bytes: int, *, width: int | None = None, sharing: int = 0
) -> tuple[Mode, ...]:
    """GFGB or DHA for each layer, so that no forward pass on the paper's link ends sooner and has
    ``room_bytes`` of parameters in the GPU's memory at most.

    It is searched layer by layer: of two beginnings the one is dropped that ends no sooner, has no
    less to load and takes no less memory. With a hundred layers that all differ this takes some
    seconds. With a ``width`` only so many beginnings are followed, and the result is only good;
    with ``sharing`` it is for a shared link, by the estimate of
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
    """Return the plan with the shortest step on a shared link, on which what a layer takes depends
    on the loads behind it: plans are enumerated.

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


Way = TypeVar("Way")

_LAYERS_TRIED = 100_000
"""In all tries together: a try takes as long as there are layers."""


def ours(profile: ModelProfile, budget: Budget) -> Plan:
    """The plan with the shortest step that is found, on the link that DHA and copies share.

    What other planners say is improved, the best first: each layer in each other way, and when that
    does not help, two layers, neighbours first. A change is kept if it makes the time shorter.
    After so many tries that 200 layers take about a second it ends.
    """
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


PLANNERS: dict[str, Callable[[ModelProfile, Budget], Plan]] = {
    "printed": lambda profile, budget: completed(profile, printed(profile), budget),
    "repaired": lambda profile, budget: completed(profile, repaired(profile), budget),
    "exact": lambda profile, budget: completed(profile, exact(profile, budget.room_bytes), budget),
    "exact-step": exact_step,
    "ours": ours,
}
"""Each gives a plan within a budget."""


def planned(
    profile: ModelProfile,
    planner: str = "ours",
    gpu_memory_bytes: int | None = None,
    reserve: float = 1.0,
) -> Plan:
    """The plan of a planner of :data:`PLANNERS`, in so much of the GPU's memory and with the share
    ``reserve`` of all gradients there at most. Raises
    :class:`~sw_driver.device.errors.InvalidArgumentError` for a planner that there is not, for
    limits as :func:`~sw_driver.system.memferry.budget.budget_of` does, and for more layers than the
    planner can do."""
    check_name("planner", planner, PLANNERS)
    return PLANNERS[planner](profile, budget_of(profile, gpu_memory_bytes, reserve))


def told(profile: ModelProfile, planner: str, plan: Plan) -> dict[str, Any]:
    """A plan with its times and its memory, ready for JSON. ``forward_ns`` is on the paper's link,
    the others on a shared one."""
    names = [layer.name for layer in profile.layers]
    shared = Link(profile, shared=True)
    stays = zip(names, plan.gradients_on_gpu, strict=True)
    return {
        "planner": planner,
        "modes": dict(zip(names, plan.modes, strict=True)),
        "gradients_on_gpu": [name for name, on_gpu in stays if on_gpu],
        "forward_ns": Link(profile, shared=False).forward_ns(plan.modes),
        "shared_link_forward_ns": shared.forward_ns(plan.modes),
        "step_ns": shared.step_ns(plan),
        "gpu_bytes": gpu_bytes(profile, plan),
    }


def step_ns_of_changes(
    profile: ModelProfile, planner: str, gpu_memory_bytes: int | None, reserve: float
) -> dict[str, int]:
    """The step of a new plan, on a shared link, with each part twice as good; the shortest first.
    Raises as :func:`~sw_driver.system.memferry.planners.planned` does."""

    def step_ns(changed: ModelProfile, memory: int | None = gpu_memory_bytes) -> int:
        plan = planned(changed, planner, memory, reserve)
        return Link(changed, shared=True).step_ns(plan)

    found = {
        "link": step_ns(_faster(profile, link=2)),
        "GPU": step_ns(_faster(profile, gpu=2)),
        "update": step_ns(replace(profile, update_ns=-(-profile.update_ns // 2))),
    }
    if gpu_memory_bytes is not None:
        found["GPU's memory"] = step_ns(profile, 2 * gpu_memory_bytes)
    return dict(sorted(found.items(), key=lambda each: each[1]))


def _faster(profile: ModelProfile, *, link: int = 1, gpu: int = 1) -> ModelProfile:
    def layer(of: LayerProfile) -> LayerProfile:
        names = ("forward_ns", "backward_ns", "gap_forward_ns", "gap_backward_ns")
        now = {name: -(-getattr(of, name) // gpu) for name in names}
        for name, on_gpu in DHA_TIMES.items():
            # What takes longer by DHA waits for the link; else the GPU decides.
            ns = getattr(of, name)
            waits = ns > getattr(of, on_gpu)
            now[name] = max(now[on_gpu], -(-ns // link)) if waits else min(ns, now[on_gpu])
        return replace(of, transfer_ns=-(-of.transfer_ns // link), **now)

    rate = profile.link_bytes_per_s * link
    return replace(profile, link_bytes_per_s=rate, layers=tuple(map(layer, profile.layers)))
