"""The GPU's memory: bytes that a plan takes, and bytes that it may take.

Activations stay from the forward to the backward pass. Parameters and gradients stay until the end
of the step, as in MemFerry's buffers. There is one layer's workspace at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, compress

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.numbers import check_fields, check_integer, check_number

from .link import AccessPlan, Mode, backward_way, overlap
from .profile import ModelProfile

__all__ = [
    "Budget",
    "budget_of",
    "completed",
    "dfgb",
    "fitted",
    "gpu_bytes",
    "gradients",
    "parameter_bytes",
]


def dfgb(profile: ModelProfile, modes: Sequence[Mode], room_bytes: int) -> tuple[Mode, ...]:
    """Return ``modes`` with DFGB for some DHA layers, whose parameters fit in ``room_bytes``.

    The paper has no pseudo-code for its greedy choice. Here, the paper's link towards the GPU is
    idle from the last load to the first gradient. That is at the end of the last layer's backward
    pass. Layers become DFGB in the order of their gains in the backward pass, if a copy fits
    into the rest of that time and of the memory.
    """
    layers, chosen = profile.layers, list(modes)
    gains = [layer.backward_dha_ns - layer.backward_ns for layer in layers]
    last = layers[-1]
    _, idle = overlap(layers, modes)
    idle += last.gap_backward_ns
    idle += backward_way(last, modes[-1], True)[0]
    for i in sorted(range(len(layers)), key=lambda i: -gains[i]):
        layer = layers[i]
        fits = layer.transfer_ns <= idle and layer.nbytes <= room_bytes
        if modes[i] == "DHA" and gains[i] > 0 and fits:
            chosen[i] = "DFGB"
            idle -= layer.transfer_ns
            room_bytes -= layer.nbytes
    return tuple(chosen)


def gradients(profile: ModelProfile, modes: Sequence[Mode], room_bytes: int) -> tuple[bool, ...]:
    """Choose the gradients that stay in the GPU's memory, in at most ``room_bytes``.

    A gradient that gains nothing is written to the host's memory. The paper's D(i, j) is the
    largest gain of i layers over writing each gradient by DHA, if those that stay take at most j
    bytes. Here, a list of choices replaces its table of bytes, so that the result is exact. Layers
    with the most gain for their bytes come first. A choice is dropped if another takes no more
    bytes and gains as much. It is also dropped if it cannot reach the gain that another is sure to
    reach.
    """
    gains = [
        backward_way(layer, mode, False)[0] - backward_way(layer, mode, True)[0]
        for layer, mode in zip(profile.layers, modes, strict=True)
    ]
    sizes = [layer.nbytes for layer in profile.layers]
    order = sorted(
        (i for i, gain in enumerate(gains) if gain > 0),
        key=lambda i: (sizes[i] > 0, -Fraction(gains[i], sizes[i] or 1)),
    )
    taken = list(accumulate((sizes[i] for i in order), initial=0))
    gained = list(accumulate((gains[i] for i in order), initial=0))

    def reach(number: int, nbytes: int, gain: int) -> tuple[int, int]:
        """Return the gain with all layers that still fit in order, and with a part of the next."""
        left = room_bytes - nbytes + taken[number]
        last = bisect_right(taken, left) - 1
        surely = gain + gained[last] - gained[number]
        if last == len(order):
            return surely, surely
        return surely, surely + (left - taken[last]) * gains[order[last]] // sizes[order[last]]

    choices: list[tuple[int, int, tuple]] = [(0, 0, ())]
    """Bytes, gain, and the last layer that stays, linked to those before it."""
    sure = 0
    for number, i in enumerate(order, 1):
        more = [
            (nbytes + sizes[i], gain + gains[i], (i, before))
            for nbytes, gain, before in choices
            if nbytes + sizes[i] <= room_bytes
        ]
        kept: list[tuple[int, int, tuple]] = []
        for choice in sorted(choices + more, key=lambda choice: (choice[0], -choice[1])):
            surely, at_most = reach(number, *choice[:2])
            sure = max(sure, surely)
            if at_most >= sure and (not kept or choice[1] > kept[-1][1]):
                kept.append(choice)
        choices = kept
    chain = choices[-1][2]
    stays = [False] * len(sizes)
    while chain:
        stays[chain[0]], chain = True, chain[1]
    return tuple(stays)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Bytes of the GPU's memory for parameters and gradients, and the limit for gradients.

    Examples
    --------
    >>> from sw_driver.system.memferry.link import AccessPlan
    >>> from sw_driver.system.memferry.runs import MemferryCase, profile_for
    >>> profile = profile_for(MemferryCase(network="bert-base"))
    >>> layers = len(profile.layers)
    >>> plan = AccessPlan(modes=("GFGB",) * layers, gradients_on_gpu=(False,) * layers)
    >>> [Budget(room_bytes=room << 20, gradient_bytes=0).fits(profile, plan) for room in (9, 999)]
    [False, True]
    """

    room_bytes: int
    gradient_bytes: int

    def __post_init__(self) -> None:
        check_fields(self, "room_bytes", "gradient_bytes")

    def for_gradients(self, profile: ModelProfile, modes: Sequence[Mode]) -> int:
        """Return the bytes left for gradients; negative if the parameters do not fit."""
        return min(self.gradient_bytes, self.room_bytes - parameter_bytes(profile, modes))

    def fits(self, profile: ModelProfile, plan: AccessPlan) -> bool:
        """Return whether a plan fits."""
        return _gradient_bytes(profile, plan) <= self.for_gradients(profile, plan.modes)


def budget_of(
    profile: ModelProfile, gpu_memory_bytes: int | None = None, reserve: float = 1.0
) -> Budget:
    """Return the budget beside activations and workspace.

    ``gpu_memory_bytes`` is the GPU's memory, unlimited if None; ``reserve`` is the largest share of
    all gradients on the GPU. Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for a
    memory without room for any plan, with the least that one takes, and for a share outside 0 to 1.
    """
    check_number("reserve", reserve, 0, 1)
    total, fixed = sum(layer.nbytes for layer in profile.layers), _fixed_bytes(profile)
    room = 2 * total
    if gpu_memory_bytes is not None:
        room = check_integer("the GPU's memory in bytes", gpu_memory_bytes) - fixed
        if room < 0:
            raise InvalidArgumentError(
                f"the GPU's memory is {gpu_memory_bytes} bytes: expected {fixed} or more, which "
                "activations and workspace take when no parameter or gradient is on the GPU"
            )
    return Budget(room_bytes=room, gradient_bytes=int(Fraction(str(reserve)) * total))


def parameter_bytes(profile: ModelProfile, modes: Sequence[Mode]) -> int:
    """Return the bytes of parameters that are copied to the GPU."""
    layers = zip(profile.layers, modes, strict=True)
    return sum(layer.nbytes for layer, mode in layers if mode != "DHA")


def gpu_bytes(profile: ModelProfile, plan: AccessPlan) -> int:
    """Return the peak of the GPU's memory in a step, in bytes."""
    kept = parameter_bytes(profile, plan.modes) + _gradient_bytes(profile, plan)
    return kept + _fixed_bytes(profile)


def fitted(profile: ModelProfile, modes: Sequence[Mode], room_bytes: int) -> tuple[Mode, ...]:
    """Return ``modes`` with DHA instead of GFGB until the parameters fit in ``room_bytes``.

    Layers are changed in the order of the time that both passes lose for each byte.
    """
    fitting, layers = list(modes), profile.layers

    def price(i: int) -> Fraction:
        layer = layers[i]
        slower = layer.forward_dha_ns - layer.forward_ns + layer.backward_dha_ns - layer.backward_ns
        return Fraction(slower, layer.nbytes)

    over = parameter_bytes(profile, modes) - room_bytes
    copied = (i for i, mode in enumerate(modes) if mode != "DHA" and layers[i].nbytes)
    for i in sorted(copied, key=price):
        if over > 0:
            fitting[i] = "DHA"
            over -= layers[i].nbytes
    return tuple(fitting)


def completed(profile: ModelProfile, modes: Sequence[Mode], budget: Budget) -> AccessPlan:
    """Return a plan from modes of the forward pass.

    Parameters that do not fit become DHA. Then DFGB layers and gradients are chosen in the room
    that is left.
    """
    modes = fitted(profile, modes, budget.room_bytes)
    modes = dfgb(profile, modes, budget.room_bytes - parameter_bytes(profile, modes))
    stays = gradients(profile, modes, budget.for_gradients(profile, modes))
    return AccessPlan(modes=modes, gradients_on_gpu=stays)


def _gradient_bytes(profile: ModelProfile, plan: AccessPlan) -> int:
    return sum(compress((layer.nbytes for layer in profile.layers), plan.gradients_on_gpu))


def _fixed_bytes(profile: ModelProfile) -> int:
    activations = accumulate(layer.activation_bytes for layer in profile.layers)
    layers = zip(activations, profile.layers, strict=True)
    return max(kept + layer.workspace_bytes for kept, layer in layers)
