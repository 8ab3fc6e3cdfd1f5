"""The best that any plan can do.

On the paper's link the forward pass is searched layer by layer: of two beginnings the one that ends
no sooner, has no less to load and takes no less memory is dropped, and what cannot end sooner than
a plan that is known. With two hundred layers that all differ this takes half a minute or more. On a
shared link what a layer takes depends on the loads behind it, so plans are enumerated, those of few
layers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import product
from operator import getitem

from sw_driver.device.errors import InvalidArgumentError

from .budget import Budget, parameter_bytes
from .link import MODES, Link, Mode, Plan, ahead, backward_ns, overlap
from .profile import LayerProfile, ModelProfile

__all__ = ["MOST_LAYERS", "exact", "exact_shared", "exact_step", "search"]

MOST_LAYERS = 8
"""Of what is enumerated: two forward passes, or six ways through a step, for each."""


def exact(profile: ModelProfile, room_bytes: int) -> tuple[Mode, ...]:
    """GFGB or DHA for each layer, so that no forward pass on the paper's link ends sooner and has
    ``room_bytes`` of parameters in the GPU's memory at most."""
    found = search(profile, room_bytes, width=200)
    return search(profile, room_bytes, sooner_than=overlap(profile.layers, found)[0]) or found


def search(
    profile: ModelProfile,
    room_bytes: int,
    *,
    width: int | None = None,
    sooner_than: int | None = None,
    sharing: int = 0,
) -> tuple[Mode, ...]:
    """As :func:`exact`; with a ``width``, at each layer only that many beginnings are followed,
    those that promise most. Only what ends ``sooner_than`` is found, which may be nothing. With
    ``sharing`` it is for a shared link, by the estimate of :func:`ahead`."""
    layers = profile.layers
    bounded = sum(layer.nbytes for layer in layers) > room_bytes
    rest, weigh = sum(layer.transfer_ns for layer in layers), _least_rests(layers)
    beginnings: list[tuple[int, int, int, tuple]] = [(0, 0, 0, ())]
    """When it ends, when its loads do, bytes on the GPU, and the last mode with those before."""
    for number, layer in enumerate(layers):
        rest -= layer.transfer_ns
        longer = []
        for now, loaded, nbytes, before in beginnings:
            for mode in ("DHA", "GFGB"):
                taken = nbytes + layer.nbytes * (bounded and mode == "GFGB")
                if taken <= room_bytes:
                    end, loads = ahead(layer, mode, now, loaded, sharing)
                    # Loads that no later layer can wait for are as good as over.
                    longer.append((end, max(loads, end - rest), taken, (mode, before)))
        least = weigh[number]
        beginnings = []
        front: list[tuple[int, int]] = []
        """Loads and bytes of those that are kept, more of the one with less of the other."""
        for each in sorted(longer, key=lambda each: each[:3]):
            _, loads, taken, _ = each
            at = bisect_right(front, (loads, taken))
            if at and front[at - 1][1] <= taken:
                continue
            if sooner_than is not None and _at_least(each, least) >= _SHARES * sooner_than:
                continue
            beginnings.append(each)
            after = next((i for i in range(at, len(front)) if front[i][1] < taken), len(front))
            front[at:after] = [(loads, taken)]
        if width is not None and len(beginnings) > width:
            beginnings = sorted(beginnings, key=lambda each: _at_least(each, least))[:width]
    modes, chain = [], min(beginnings, default=(0, 0, 0, ()))[3]
    while chain:
        modes.append(chain[0])
        chain = chain[1]
    return tuple(reversed(modes))


_SHARES = 8


def _least_rests(layers: Sequence[LayerProfile]) -> list[list[int]]:
    """A forward pass ends no sooner than its loads, and no sooner than its layers take. So it ends
    no sooner than any weighted mean of both, which is least if each layer takes the mode with the
    least of it. That of the layers behind each one, for each share of loads in eighths, times 8."""
    behind = [[0] * (_SHARES + 1)]
    for layer in reversed(layers[1:]):
        behind.append(
            [
                least
                + (_SHARES - share) * layer.gap_forward_ns
                + min(
                    (_SHARES - share) * layer.forward_dha_ns,
                    (_SHARES - share) * layer.forward_ns + share * layer.transfer_ns,
                )
                for share, least in enumerate(behind[-1])
            ]
        )
    return behind[::-1]


def _at_least(beginning: tuple[int, int, int, tuple], least: Sequence[int]) -> int:
    """8 times what a forward pass takes at least that begins so."""
    now, loads = beginning[:2]
    return max((_SHARES - n) * now + n * loads + rest for n, rest in enumerate(least))


def exact_shared(profile: ModelProfile, room_bytes: int) -> tuple[Mode, ...]:
    """The same on a shared link. Raises
    :class:`~sw_driver.device.errors.InvalidArgumentError` for more than :data:`MOST_LAYERS`."""
    link = _few(profile)
    forward: tuple[Mode, ...] = ("DHA", "GFGB")
    plans = product(forward, repeat=len(profile.layers))
    fitting = (modes for modes in plans if parameter_bytes(profile, modes) <= room_bytes)
    return min(fitting, key=link.forward_ns)


def exact_step(profile: ModelProfile, budget: Budget) -> Plan:
    """The plan with the shortest step on a shared link. Raises as :func:`exact_shared` does."""
    link, layers = _few(profile), profile.layers
    ways = (False, True)
    bounds = []
    """A step takes no less than its forward pass and what the layers' backward passes take alone,
    so what is sure to be worse is not looked at."""
    for modes in product(MODES, repeat=len(layers)):
        alone = [
            [each.gap_backward_ns + backward_ns(each, mode, on_gpu) for on_gpu in ways]
            for each, mode in zip(layers, modes, strict=True)
        ]
        forward = link.forward_ns(modes)
        bounds.append((forward + sum(map(min, alone)), forward, modes, alone))
    best, shortest = None, None
    for bound, forward, modes, alone in sorted(bounds):
        if shortest is not None and bound >= shortest:
            break
        room = budget.for_gradients(profile, modes)
        for stays in product(ways, repeat=len(layers)):
            if (
                sum(each.nbytes for each, on_gpu in zip(layers, stays, strict=True) if on_gpu)
                > room
            ):
                continue
            at_least = forward + sum(map(getitem, alone, stays))
            if shortest is None or at_least < shortest:
                plan = Plan(modes=modes, gradients_on_gpu=stays)
                step = link.step_ns(plan)
                if shortest is None or step < shortest:
                    best, shortest = plan, step
    assert best is not None  # nothing on the GPU fits into any budget
    return best


def _few(profile: ModelProfile) -> Link:
    if len(profile.layers) > MOST_LAYERS:
        raise InvalidArgumentError(
            f"the number of layers is {len(profile.layers)}: expected {MOST_LAYERS} or fewer, "
            "whose plans can all be tried; the planner 'ours' takes any number"
        )
    return Link(profile, shared=True)
