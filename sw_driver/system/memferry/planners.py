"""Planners by name: the paper's, the exact optimum, and ours; and figures of a plan."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import inf
from operator import getitem
from typing import Any, TypeVar

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.numbers import check_name

from .algorithm import printed, repaired
from .budget import Budget, budget_of, completed, fitted, gpu_bytes
from .link import MODES, WAYS, AccessPlan, LinkModel, Mode, ahead, backward_way
from .profile import DHA_TIMES, LayerProfile, ModelProfile

__all__ = [
    "MOST_LAYERS",
    "PLANNERS",
    "exact",
    "exact_step",
    "figures_of",
    "ours",
    "planned",
    "step_ns_of_changes",
]

MOST_LAYERS = 8
"""Most layers for which plans are enumerated, with six ways each."""


def exact(
    profile: ModelProfile, room_bytes: int, *, width: int | None = None, sharing: int = 0
) -> tuple[Mode, ...]:
    """Return GFGB or DHA for each layer, with the earliest end of a forward pass.

    The pass is on the paper's link, with at most ``room_bytes`` of parameters in the GPU's memory.
    The search goes layer by layer. A partial plan is dropped if another ends no later, has no more
    to load and takes no more memory. With a hundred layers that all differ, this takes some
    seconds.

    With a ``width``, the search keeps only that many partial plans, and the result may not be the
    best. With ``sharing``, it is for a shared link, by the estimate of
    :func:`~sw_driver.system.memferry.link.ahead`.
    """
    layers = profile.layers
    bounded = sum(layer.nbytes for layer in layers) > room_bytes
    rest = sum(layer.transfer_ns for layer in layers)
    beginnings: list[tuple[int, int, int, tuple]] = [(0, 0, 0, ())]
    """End of the pass and of loads, bytes on the GPU, and the last mode linked to those before."""
    for layer in layers:
        rest -= layer.transfer_ns
        longer = []
        for now, loaded, nbytes, before in beginnings:
            for mode in ("DHA", "GFGB"):
                taken = nbytes + layer.nbytes * (bounded and mode == "GFGB")
                if taken <= room_bytes:
                    end, loads = ahead(layer, mode, now, loaded, sharing)
                    # Loads that no later layer can wait for count as over.
                    longer.append((end, max(loads, end - rest), taken, (mode, before)))
        beginnings = []
        front: list[tuple[int, int]] = []
        """Loads and bytes of the kept plans: increasing loads, decreasing bytes."""
        for partial in sorted(longer, key=lambda partial: partial[:3]):
            _, loads, taken, _ = partial
            at = bisect_right(front, (loads, taken))
            if not at or front[at - 1][1] > taken:
                beginnings.append(partial)
                after = next((i for i in range(at, len(front)) if front[i][1] < taken), len(front))
                front[at:after] = [(loads, taken)]
        if width is not None:
            beginnings = sorted(beginnings, key=lambda partial: max(partial[:2]))[:width]
    modes, chain = [], min(beginnings)[3]
    while chain:
        modes.append(chain[0])
        chain = chain[1]
    return tuple(reversed(modes))


def exact_step(profile: ModelProfile, budget: Budget) -> AccessPlan:
    """Return the plan with the shortest step on a shared link, by trying all plans.

    The time of a layer there depends on the loads behind it. Raises
    :class:`~sw_driver.device.errors.InvalidArgumentError` for more than :data:`MOST_LAYERS`.
    """
    link, layers = LinkModel(profile, shared=True), profile.layers
    if len(layers) > MOST_LAYERS:
        raise InvalidArgumentError(
            f"the number of layers is {len(layers)}: expected {MOST_LAYERS} or fewer, whose plans "
            "can all be tried; the planner 'ours' takes any number"
        )
    best, shortest = AccessPlan(modes=(), gradients_on_gpu=()), inf
    all_modes = product(MODES, repeat=len(layers))
    for forward_ns, modes in sorted((link.forward_ns(modes), modes) for modes in all_modes):
        alone = [
            [
                layer.gap_backward_ns + backward_way(layer, mode, on_gpu)[0]
                for on_gpu in (False, True)
            ]
            for layer, mode in zip(layers, modes, strict=True)
        ]
        alone[0][True] += layers[0].gradient_ns  # the copy of the last gradient
        for stays in product((False, True), repeat=len(layers)):
            if forward_ns + sum(map(getitem, alone, stays)) >= shortest:
                continue  # this is a lower bound of the step
            plan = AccessPlan(modes=modes, gradients_on_gpu=stays)
            if budget.fits(profile, plan) and (step_ns := link.step_ns(plan)) < shortest:
                best, shortest = plan, step_ns
    return best


Way = TypeVar("Way")

_LAYERS_TRIED = 100_000
"""Layers of all tries together, at most: the time of a try grows with the layers."""


def ours(profile: ModelProfile, budget: Budget) -> AccessPlan:
    """Return the plan with the shortest step found, on a link that DHA and copies share.

    The plans of other planners are improved, the best first. Each layer is tried in each other way,
    and if that does not help, pairs of layers, neighbours first. A change that makes the step
    shorter is kept. The number of tries is bounded, so that 200 layers take about a second.
    """
    link = _link(profile)

    def plan_of(chosen: tuple[tuple[Mode, bool], ...]) -> AccessPlan:
        modes, stays = zip(*chosen, strict=True)
        return AccessPlan(modes=modes, gradients_on_gpu=stays)

    def step_ns(chosen: tuple[tuple[Mode, bool], ...], limit_ns: float) -> float:
        plan = plan_of(chosen)
        return link.step_below_ns(plan, limit_ns) if budget.fits(profile, plan) else inf

    starts = []
    for modes in dict.fromkeys(_starts(profile, budget.room_bytes)):
        plan = completed(profile, modes, budget)
        for way in (plan.modes, modes):
            for stays in (plan.gradients_on_gpu, (False,) * len(way), (True,) * len(way)):
                starts.append(tuple(zip(way, stays, strict=True)))
    return plan_of(_improved(starts, WAYS, step_ns))


@lru_cache(maxsize=1)
def _link(profile: ModelProfile) -> LinkModel:
    """Return the shared link of a profile, which several budgets try the same plans on."""
    return LinkModel(profile, shared=True)


@lru_cache(maxsize=1)
def _starts(profile: ModelProfile, room_bytes: int) -> list[tuple[Mode, ...]]:
    exact_modes = [exact(profile, room_bytes, width=50, sharing=sharing) for sharing in (0, 1, 2)]
    uniform = [(mode,) * len(profile.layers) for mode in MODES[:2]]
    starts = [printed(profile), repaired(profile), *exact_modes, *uniform]
    return [fitted(profile, modes, room_bytes) for modes in starts]


def _improved(
    starts: list[tuple[Way, ...]],
    ways: tuple[Way, ...],
    score: Callable[[tuple[Way, ...], float], float],
) -> tuple[Way, ...]:
    """Return the best result of all starts by ``score``, which may be infinite from a limit on."""
    scored = sorted((score(start, inf), n, start) for n, start in enumerate(dict.fromkeys(starts)))
    least, _, best = scored[0]
    tries = _LAYERS_TRIED // len(best)
    for reached, _, now in scored:
        changes = _changes(now, ways)
        while tries > 0 and (changed := next(changes, None)) is not None:
            tries -= 1
            if (changed_score := score(changed, reached)) < reached:
                reached, now = changed_score, changed
                changes = _changes(now, ways)
        if reached < least:
            least, best = reached, now
    return best


def _changes(now: tuple[Way, ...], ways: tuple[Way, ...]) -> Iterator[tuple[Way, ...]]:
    """Yield the choices that differ from ``now`` in one layer, then in two."""
    layers = len(now)
    for apart in range(layers):
        for i in range(layers - apart):
            for both in product(ways, repeat=2 if apart else 1):
                changed = list(now)
                changed[i], changed[i + apart] = both[0], both[-1]
                if changed[i] != now[i] and changed[i + apart] != now[i + apart]:
                    yield tuple(changed)


PLANNERS: dict[str, Callable[[ModelProfile, Budget], AccessPlan]] = {
    "printed": lambda profile, budget: completed(profile, printed(profile), budget),
    "repaired": lambda profile, budget: completed(profile, repaired(profile), budget),
    "exact": lambda profile, budget: completed(profile, exact(profile, budget.room_bytes), budget),
    "exact-step": exact_step,
    "ours": ours,
}
"""Planners by name; each returns a plan within a budget."""


def planned(
    profile: ModelProfile,
    planner: str = "ours",
    gpu_memory_bytes: int | None = None,
    reserve: float = 1.0,
) -> AccessPlan:
    """Return the plan of a planner of :data:`PLANNERS`.

    ``gpu_memory_bytes`` is the GPU's memory, and ``reserve`` the largest share of all gradients in
    it. Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for an unknown planner, for
    more layers than the planner takes, and for limits as in
    :func:`~sw_driver.system.memferry.budget.budget_of`.
    """
    check_name("planner", planner, PLANNERS)
    return PLANNERS[planner](profile, budget_of(profile, gpu_memory_bytes, reserve))


def figures_of(profile: ModelProfile, planner: str, plan: AccessPlan) -> dict[str, Any]:
    """Return a plan with its times and its memory, for JSON.

    ``forward_ns`` is on the paper's link, the other times on a shared one.
    """
    names = [layer.name for layer in profile.layers]
    shared = LinkModel(profile, shared=True)
    stays = zip(names, plan.gradients_on_gpu, strict=True)
    return {
        "planner": planner,
        "modes": dict(zip(names, plan.modes, strict=True)),
        "gradients_on_gpu": [name for name, on_gpu in stays if on_gpu],
        "forward_ns": LinkModel(profile, shared=False).forward_ns(plan.modes),
        "shared_link_forward_ns": shared.forward_ns(plan.modes),
        "step_ns": shared.step_ns(plan),
        "gpu_bytes": gpu_bytes(profile, plan),
    }


def step_ns_of_changes(
    profile: ModelProfile, planner: str, gpu_memory_bytes: int | None, reserve: float
) -> dict[str, int]:
    """Return the step with each part twice as good, newly planned, the shortest first.

    Steps are on a shared link. Raises as :func:`~sw_driver.system.memferry.planners.planned` does.
    """

    def step_ns(changed: ModelProfile, memory: int | None = gpu_memory_bytes) -> int:
        plan = planned(changed, planner, memory, reserve)
        return LinkModel(changed, shared=True).step_ns(plan)

    changes = {
        "link": step_ns(_faster(profile, link=2)),
        "GPU": step_ns(_faster(profile, gpu=2)),
        "update": step_ns(replace(profile, update_ns=-(-profile.update_ns // 2))),
    }
    if gpu_memory_bytes is not None:
        changes["GPU's memory"] = step_ns(profile, 2 * gpu_memory_bytes)
    return dict(sorted(changes.items(), key=lambda change: change[1]))


def _faster(profile: ModelProfile, *, link: int = 1, gpu: int = 1) -> ModelProfile:
    def layer(old: LayerProfile) -> LayerProfile:
        names = ("forward_ns", "backward_ns", "gap_forward_ns", "gap_backward_ns")
        now = {name: -(-getattr(old, name) // gpu) for name in names}
        for name, on_gpu in DHA_TIMES.items():
            # DHA that is slower waits for the link; else the GPU decides.
            ns = getattr(old, name)
            waits = ns > getattr(old, on_gpu)
            now[name] = max(now[on_gpu], -(-ns // link)) if waits else min(ns, now[on_gpu])
        return replace(old, transfer_ns=-(-old.transfer_ns // link), **now)

    rate = profile.link_bytes_per_s * link
    return replace(profile, link_bytes_per_s=rate, layers=tuple(map(layer, profile.layers)))
