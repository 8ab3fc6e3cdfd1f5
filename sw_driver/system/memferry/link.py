"""Duration of a step under a plan, on the paper's link and on a shared one.

The GPU computes one layer after the other, forward and back. On both links:

- The parameters of GFGB layers are copied to the GPU from the step's start on, in the order of
  the layers. Then come those of DFGB layers, each once its forward pass is over. Of several waiting
  DFGB layers the last goes first, as the backward pass needs it first. A layer that needs a copy
  waits for it.
- A gradient in the GPU's memory is copied to the host after its layer's backward pass, in that
  order. The other direction does not slow it.
- The host updates a layer's parameters after their gradient has arrived and earlier updates are
  over. A layer's share of the update is that of its bytes.

On the paper's link, DHA takes as long as alone and does not slow copies. On a shared link, a copy
and a concurrent DHA have half the rate each. The time of DHA alone gives the bytes that it moves.
If it is slower than computing in the GPU's memory, it uses the link all that time. If not, it moves
the layer's bytes once, or what fits into the time (an embedding reads few of its rows). A layer
ends when both its time alone and its bytes are over.

All times are exact integers. A transfer begins when the link has a free half, so a half rate lasts
until one of the two is over, an even number of ns later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, pairwise, product
from math import inf
from typing import Literal, get_args

from .profile import LayerProfile, ModelProfile

__all__ = [
    "MODES",
    "WAYS",
    "AccessPlan",
    "LinkModel",
    "Mode",
    "ahead",
    "backward_way",
    "every",
    "forward_way",
    "overlap",
    "updates_ns",
]

Mode = Literal["GFGB", "DHA", "DFGB"]
"""Way of a layer's parameters.

GFGB: both passes on a copy in the GPU's memory. DHA: both passes on the host's memory. DFGB:
forward by DHA, backward on a copy.
"""

MODES: tuple[Mode, ...] = get_args(Mode)

WAYS = tuple(product(MODES, (False, True)))
"""Ways of a layer through a step: its mode, and whether its gradient stays on the GPU."""


@dataclass(frozen=True, kw_only=True)
class AccessPlan:
    """Choices for each layer of a profile, in its order.

    Examples
    --------
    >>> from sw_driver.system.memferry.runs import MemferryCase, profile_for
    >>> profile = profile_for(MemferryCase(network="bert-base"))
    >>> layers = len(profile.layers)
    >>> plan = AccessPlan(modes=("GFGB",) * layers, gradients_on_gpu=(False,) * layers)
    >>> LinkModel(profile, shared=True).step_ns(plan) // 10**6
    94
    """

    modes: tuple[Mode, ...]
    gradients_on_gpu: tuple[bool, ...]
    """True for gradients in the GPU's memory; the others are written to the host's by DHA."""


def every(profile: ModelProfile, mode: Mode, on_gpu: bool) -> AccessPlan:
    """Return a plan with the same choice for all layers."""
    layers = len(profile.layers)
    return AccessPlan(modes=(mode,) * layers, gradients_on_gpu=(on_gpu,) * layers)


class LinkModel:
    """Times of a profile's plans on the paper's link, or on a shared one.

    Examples
    --------
    >>> from sw_driver.machine.presets import PRESETS
    >>> from sw_driver.system.memferry.costs import profile_of
    >>> from sw_driver.workload import load_trace
    >>> profile = profile_of(load_trace("bert-base"), PRESETS["memferry_v100"])
    >>> link, layers = LinkModel(profile, shared=False), len(profile.layers)
    >>> [link.forward_ns((mode,) * layers) // 10**6 for mode in ("GFGB", "DHA")]
    [41, 294]
    """

    def __init__(self, profile: ModelProfile, *, shared: bool) -> None:
        layers = self._layers = profile.layers
        self._loads = [layer.transfer_ns for layer in layers]
        self._gradients = [layer.gradient_ns for layer in layers]
        self._updates = updates_ns(profile)
        self._forward = [{m: forward_way(layer, m) for m in MODES} for layer in layers]
        self._backward = [{way: backward_way(layer, *way) for way in WAYS} for layer in layers]
        self._shared = shared
        self._gaps_ns = sum(layer.gap_backward_ns for layer in layers)
        self._steps: dict[AccessPlan, float] = {}

    def forward_ns(self, modes: Sequence[Mode]) -> int:
        """Return the end of the forward pass, in ns."""
        return self._go_forward(modes)[0]

    def step_ns(self, plan: AccessPlan) -> int:
        """Return the end of the last layer's update, in ns."""
        return int(self.step_below_ns(plan, inf))

    def step_below_ns(self, plan: AccessPlan, limit_ns: float) -> float:
        """Return :meth:`step_ns`, or infinity if that is sure not to be below a limit."""
        if plan not in self._steps:
            step_ns = self._step_ns(plan, limit_ns)
            if step_ns == inf:
                return inf
            self._steps[plan] = step_ns
        return self._steps[plan]

    def _step_ns(self, plan: AccessPlan, limit_ns: float) -> float:
        chosen = zip(self._backward, plan.modes, plan.gradients_on_gpu, strict=True)
        left_ns = self._gaps_ns + sum(ways[mode, on_gpu][0] for ways, mode, on_gpu in chosen)
        now, loads = self._go_forward(plan.modes)
        gradients = _Copies(self._gradients, [])
        there = []
        numbers = range(-1, -len(self._layers) - 1, -1)
        for layer in numbers:
            if now + left_ns >= limit_ns:
                return inf
            mode, on_gpu = plan.modes[layer], plan.gradients_on_gpu[layer]
            now += (gap := self._layers[layer].gap_backward_ns)
            if mode == "DFGB":
                now = max(now, loads.finish(layer))
            alone, reads, writes = self._backward[layer][mode, on_gpu]
            left_ns -= gap + alone
            end = now + alone
            if self._shared and reads:
                end = max(end, loads.beside(now, reads))
            if self._shared and writes:
                end = max(end, gradients.beside(now, writes))
            now = end
            if on_gpu:
                gradients.until(now)
                heappush(gradients.waiting, -layer)
            else:
                there.append((now, layer))
        there += [(gradients.finish(n), n) for n in numbers if plan.gradients_on_gpu[n]]
        updated = 0
        for at, layer in sorted(there):
            updated = max(updated, at) + self._updates[layer]
        return updated

    def _go_forward(self, modes: Sequence[Mode]) -> tuple[int, _Copies]:
        """Return the end of the forward pass, with the state of the copies to the GPU."""
        first = -len(modes)
        loads = _Copies(self._loads, [first + n for n, m in enumerate(modes) if m == "GFGB"])
        now = 0
        for layer, mode in enumerate(modes, first):
            if mode == "GFGB":
                now = max(now, loads.finish(layer))
            alone, reads, _ = self._forward[layer][mode]
            end = now + alone
            if self._shared and reads:
                end = max(end, loads.beside(now, reads))
            now = end
            if mode == "DFGB":
                loads.until(now)
                heappush(loads.waiting, -layer)
            now += self._layers[layer].gap_forward_ns
        return now, loads


def forward_way(layer: LayerProfile, mode: Mode) -> tuple[int, int, int]:
    """Return the ns of a layer's forward pass alone, and the ns that it uses the link.

    The link's times are towards the GPU and from it, at the full rate.
    """
    if mode == "GFGB":
        return layer.forward_ns, 0, 0
    return layer.forward_dha_ns, _link_ns(layer, layer.forward_dha_ns, layer.forward_ns), 0


def backward_way(layer: LayerProfile, mode: Mode, on_gpu: bool) -> tuple[int, int, int]:
    """Return the times of :func:`forward_way` for the backward pass.

    DHA of parameters and gradients at once takes as long as the slower of the two, as they go in
    opposite directions.
    """
    reads_ns = layer.backward_dha_ns if mode == "DHA" else 0
    writes_ns = 0 if on_gpu else layer.backward_gradient_dha_ns
    return (
        layer.backward_ns if on_gpu and mode != "DHA" else max(reads_ns, writes_ns),
        _link_ns(layer, reads_ns, layer.backward_ns),
        _link_ns(layer, writes_ns, layer.backward_ns),
    )


def updates_ns(profile: ModelProfile) -> list[int]:
    """Return the ns of each layer's update, by its share of the bytes."""
    nbytes = list(accumulate(layer.gradient_bytes for layer in profile.layers))
    if nbytes[-1] == 0:
        nbytes = list(range(1, len(nbytes) + 1))
    ends = [0, *(profile.update_ns * end // nbytes[-1] for end in nbytes)]
    return [after - before for before, after in pairwise(ends)]


def ahead(
    layer: LayerProfile, mode: Mode, now: int, loaded: int, sharing: int = 0
) -> tuple[int, int]:
    """Return the ends of a layer's forward pass and of its load, on the paper's link.

    ``now`` and ``loaded`` are the ends of the layers before it. With ``sharing``, the result
    estimates a shared link with constant loads. There, the bytes of DHA delay the loads, and take
    ``sharing`` times as long as alone.
    """
    alone, moved, _ = forward_way(layer, mode)
    if mode == "GFGB":
        loaded += layer.transfer_ns
        now = max(now, loaded)
    elif sharing:
        loaded += moved
    return now + max(alone, sharing * moved) + layer.gap_forward_ns, loaded


def overlap(layers: Sequence[LayerProfile], modes: Sequence[Mode]) -> tuple[int, int]:
    """Return the end of a forward pass on the paper's link, and its part after the loads.

    The pass has as many layers as there are modes.
    """
    now = loaded = 0
    for layer, mode in zip(layers, modes, strict=False):
        now, loaded = ahead(layer, mode, now, loaded)
    return now, now - loaded


def _link_ns(layer: LayerProfile, alone_ns: int, on_gpu_ns: int) -> int:
    """Return the ns for which DHA that takes ``alone_ns`` uses the whole link."""
    return alone_ns if alone_ns > on_gpu_ns else min(alone_ns, layer.transfer_ns)


class _Copies:
    """Copies in one direction of a link, with other transfers beside them.

    Layers are counted from the end: -1 is the last. ``waiting`` is a heap. It has a layer's number
    for GFGB, and its negative for DFGB, so that the last DFGB layer goes first.
    """

    def __init__(self, transfers: Sequence[int], waiting: list[int]) -> None:
        self.waiting = waiting
        self._transfers = transfers
        self._now = self._left = 0
        self._copied: int | None = None
        self._done: dict[int, int] = {}

    def until(self, at: int) -> None:
        """Copy without other transfers until ``at``."""
        while self._now < at and self._begin():
            self._go_on(min(self._left, at - self._now))
        self._now = max(self._now, at)

    def beside(self, at: int, full_rate_ns: int) -> int:
        """Return the end of a transfer that begins at ``at`` and takes ``full_rate_ns`` alone."""
        self.until(at)
        while full_rate_ns and self._begin():
            both = min(full_rate_ns, self._left)
            full_rate_ns -= both
            self._now += both
            self._go_on(both)
        self._now += full_rate_ns
        return self._now

    def finish(self, layer: int) -> int:
        """Return the end of a layer's copy, with no other transfers until then."""
        while layer not in self._done:
            self._begin()
            self._go_on(self._left)
        return self._done[layer]

    def _begin(self) -> bool:
        if self._copied is None and self.waiting:
            self._copied = -abs(heappop(self.waiting))
            self._left = self._transfers[self._copied]
        return self._copied is not None

    def _go_on(self, ns: int) -> None:
        self._now += ns
        self._left -= ns
        if not self._left and self._copied is not None:
            self._done[self._copied], self._copied = self._now, None
