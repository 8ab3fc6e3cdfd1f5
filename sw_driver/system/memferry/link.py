"""How long a step takes under a plan, on a link of the paper's and on one that is shared.

The GPU computes one layer after the other, forward and back. On both links:

- The parameters of GFGB layers are copied to the GPU from the step's beginning, in the order of the
  layers. Then come those of DFGB layers, each when its forward pass is over; of several the last
  layer's, which the backward pass needs first. A layer that needs a copy waits for it.
- A gradient in the GPU's memory is copied to the host when its layer's backward pass is over, in
  that order; the other direction does not slow it.
- The host updates a layer's parameters when their gradient is there and the updates of those that
  came before are over. A layer's share of the update is that of its bytes.

On the paper's link DHA takes what it takes alone, and copies do not notice. On a shared link each
of a copy and of what the GPU reads or writes beside it has half the rate. How much that is follows
from what DHA takes alone: if it is slower than computing in the GPU's memory, the link is what it
waits for, all that time. If not, it moves the layer's bytes once, or what fits into the time (an
embedding reads few of its rows). A layer ends when both its time alone and what it moves are over.

All times are integers and stay exact: what begins on the link begins when it has a free half, so a
half rate lasts until one of the two is over, an even number of ns later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, pairwise, product
from typing import Literal, get_args

from .profile import LayerProfile, ModelProfile

__all__ = [
    "MODES",
    "Link",
    "Mode",
    "Plan",
    "ahead",
    "backward_ns",
    "link_ns",
    "overlap",
    "updates_ns",
]

Mode = Literal["GFGB", "DHA", "DFGB"]
"""Forward and backward passes on the GPU's copy of the parameters; both by DHA; or forward by DHA
and backward on a copy."""

MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is chosen for each layer of a profile, in its order."""

    modes: tuple[Mode, ...]
    gradients_on_gpu: tuple[bool, ...]
    """The others are written to the host's memory by DHA."""


class Link:
    """Times of a profile's plans on the paper's link, or on a shared one."""

    def __init__(self, profile: ModelProfile, *, shared: bool) -> None:
        layers = self._layers = profile.layers
        self._transfers = [layer.transfer_ns for layer in layers]
        moved = [
            (
                shared * link_ns(each, each.forward_dha_ns, each.forward_ns),
                shared * link_ns(each, each.backward_dha_ns, each.backward_ns),
                shared * link_ns(each, each.backward_gradient_dha_ns, each.backward_ns),
            )
            for each in layers
        ]
        self._forward = [
            (of.forward_dha_ns, reads) for of, (reads, _, _) in zip(layers, moved, strict=True)
        ]
        self._backward = [
            [
                (backward_ns(of, mode, on_gpu), reads * (mode == "DHA"), writes * (not on_gpu))
                for mode, on_gpu in product(("GFGB", "DHA"), (False, True))
            ]
            for of, (_, reads, writes) in zip(layers, moved, strict=True)
        ]
        """What each layer takes alone, reads and writes in each of the four ways."""
        self._updates = updates_ns(profile)

    def forward_ns(self, modes: Sequence[Mode]) -> int:
        """When the forward pass is over."""
        return self._go_forward(modes)[0]

    def step_ns(self, plan: Plan) -> int:
        """When the last layer's parameters are updated."""
        now, loads = self._go_forward(plan.modes)
        gradients = _Copies(self._transfers, [])
        layers = len(self._layers)
        there = []
        for layer in range(-1, -layers - 1, -1):
            mode, on_gpu = plan.modes[layer], plan.gradients_on_gpu[layer]
            now += self._layers[layer].gap_backward_ns
            if mode == "DFGB":
                now = max(now, loads.finish(layer))
            alone, reads, writes = self._backward[layer][2 * (mode == "DHA") + on_gpu]
            now = max(now + alone, loads.beside(now, reads), gradients.beside(now, writes))
            if on_gpu:
                gradients.until(now)
                heappush(gradients.waiting, -layer)
            else:
                there.append((now, layer))
        there += [
            (gradients.finish(layer), layer)
            for layer in range(-1, -layers - 1, -1)
            if plan.gradients_on_gpu[layer]
        ]
        updated = 0
        for at, layer in sorted(there):
            updated = max(updated, at) + self._updates[layer]
        return updated

    def _go_forward(self, modes: Sequence[Mode]) -> tuple[int, _Copies]:
        """When the forward pass is over, and the copies to the GPU as they are then."""
        first = -len(modes)
        loads = _Copies(self._transfers, [first + n for n, m in enumerate(modes) if m == "GFGB"])
        now = 0
        for layer, mode in enumerate(modes, first):
            of = self._layers[layer]
            if mode == "GFGB":
                now = max(now, loads.finish(layer)) + of.forward_ns
            else:
                alone, reads = self._forward[layer]
                now = max(now + alone, loads.beside(now, reads))
            if mode == "DFGB":
                loads.until(now)
                heappush(loads.waiting, -layer)
            now += of.gap_forward_ns
        return now, loads


def backward_ns(layer: LayerProfile, mode: Mode, on_gpu: bool) -> int:
    """What a layer's backward pass takes alone, with its gradient on the GPU or without. DHA of
    both parameters and gradients takes as long as the slower of the two: they go opposite ways."""
    if on_gpu:
        return layer.backward_dha_ns if mode == "DHA" else layer.backward_ns
    read_ns = layer.backward_dha_ns if mode == "DHA" else 0
    return max(read_ns, layer.backward_gradient_dha_ns)


def updates_ns(profile: ModelProfile) -> list[int]:
    """What the update of each layer takes: the share of its bytes."""
    nbytes = list(accumulate(layer.nbytes for layer in profile.layers))
    if nbytes[-1] == 0:
        nbytes = list(range(1, len(nbytes) + 1))
    done = [0, *(profile.update_ns * each // nbytes[-1] for each in nbytes)]
    return [after - before for before, after in pairwise(done)]


def ahead(
    layer: LayerProfile, mode: Mode, now: int, loaded: int, sharing: int = 0
) -> tuple[int, int]:
    """When a forward pass is behind a layer on the paper's link, and when its loads are over, from
    what both are before it.

    With ``sharing`` this is an estimate for a shared link, on which there is always a load: what
    DHA moves delays the loads, and takes ``sharing`` times as long as on a link of its own.
    """
    if mode == "GFGB":
        loaded += layer.transfer_ns
        now = max(now, loaded) + layer.forward_ns
    else:
        moved = link_ns(layer, layer.forward_dha_ns, layer.forward_ns) if sharing else 0
        loaded += moved
        now += max(layer.forward_dha_ns, sharing * moved)
    return now + layer.gap_forward_ns, loaded


def overlap(layers: Sequence[LayerProfile], modes: Sequence[Mode]) -> tuple[int, int]:
    """What the forward pass of as many layers as there are modes takes on the paper's link, and how
    much of that is left when the loads are over."""
    now = loaded = 0
    for layer, mode in zip(layers, modes, strict=False):
        now, loaded = ahead(layer, mode, now, loaded)
    return now, now - loaded


def link_ns(layer: LayerProfile, alone_ns: int, on_gpu_ns: int) -> int:
    """For how long DHA, which takes ``alone_ns``, needs all of the link."""
    return alone_ns if alone_ns > on_gpu_ns else min(alone_ns, layer.transfer_ns)


class _Copies:
    """Copies in one direction of a link, and what else moves in it beside them.

    Layers are counted from the end: -1 is the last. What waits is in a heap, a layer's number for
    GFGB, or without its sign, by which the last layer goes first.
    """

    def __init__(self, transfers: Sequence[int], waiting: list[int]) -> None:
        self.waiting = waiting
        self._transfers = transfers
        self._now = self._left = 0
        self._copied: int | None = None
        self._done: dict[int, int] = {}

    def until(self, at: int) -> None:
        """Copies alone until then."""
        while self._now < at and self._begin() and self._now + self._left <= at:
            self._now += self._left
            self._end()
        if self._copied is not None and at > self._now:
            self._left -= at - self._now
        self._now = max(self._now, at)

    def beside(self, at: int, work: int) -> int:
        """When something is over that takes the whole link for ``work`` ns and begins then."""
        if not work:
            return at
        self.until(at)
        while work and self._begin():
            both = min(work, self._left)
            self._now += 2 * both
            self._left -= both
            work -= both
            if not self._left:
                self._end()
        self._now += work
        return self._now

    def finish(self, layer: int) -> int:
        """When a layer's copy is over, which is waited for."""
        while layer not in self._done:
            self._begin()
            self._now += self._left
            self._end()
        return self._done[layer]

    def _begin(self) -> bool:
        if self._copied is None and self.waiting:
            self._copied = -abs(heappop(self.waiting))
            self._left = self._transfers[self._copied]
        return self._copied is not None

    def _end(self) -> None:
        assert self._copied is not None
        self._done[self._copied] = self._now
        self._copied, self._left = None, 0
