"""The GPU's memory: what a plan takes of it, and what it may take.

Activations stay from the forward to the backward pass, and parameters and gradients until the step
is over, as MemFerry keeps its buffers; of the layers' workspaces there is one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, compress

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.numbers import check_fields, check_integer, check_number

from .dfgb import dfgb
from .gradients import gradients
from .link import Mode, Plan
from .profile import ModelProfile

__all__ = ["Budget", "budget_of", "completed", "fitted", "gpu_bytes", "parameter_bytes"]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Bytes of the GPU's memory that there are for parameters and gradients together, and of these
    for gradients at most."""

    room_bytes: int
    gradient_bytes: int

    def __post_init__(self) -> None:
        check_fields(self, "room_bytes", "gradient_bytes")

    def for_gradients(self, profile: ModelProfile, modes: Sequence[Mode]) -> int:
        """Bytes left for them beside the parameters; negative if those do not fit."""
        return min(self.gradient_bytes, self.room_bytes - parameter_bytes(profile, modes))

    def fits(self, profile: ModelProfile, plan: Plan) -> bool:
        return _gradient_bytes(profile, plan) <= self.for_gradients(profile, plan.modes)


def budget_of(
    profile: ModelProfile, gpu_memory_bytes: int | None = None, reserve: float = 1.0
) -> Budget:
    """What is left of ``gpu_memory_bytes``, or of any amount, beside activations and workspace,
    with the share ``reserve`` of all gradients on the GPU at most.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for a memory that no plan fits in,
    with the least that one takes, and for a share that is not from 0 to 1.
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
    """Bytes of the parameters that are copied to the GPU."""
    layers = zip(profile.layers, modes, strict=True)
    return sum(layer.nbytes for layer, mode in layers if mode != "DHA")


def gpu_bytes(profile: ModelProfile, plan: Plan) -> int:
    """The most of the GPU's memory that a step takes under a plan."""
    kept = parameter_bytes(profile, plan.modes) + _gradient_bytes(profile, plan)
    return kept + _fixed_bytes(profile)


def fitted(profile: ModelProfile, modes: Sequence[Mode], room_bytes: int) -> tuple[Mode, ...]:
    """``modes`` with DHA instead of GFGB until the parameters take ``room_bytes`` at most: first
    where both passes become slower by least for each byte."""
    fitting, layers = list(modes), profile.layers

    def price(i: int) -> Fraction:
        each = layers[i]
        slower = each.forward_dha_ns - each.forward_ns + each.backward_dha_ns - each.backward_ns
        return Fraction(slower, each.nbytes)

    over = parameter_bytes(profile, modes) - room_bytes
    copied = (i for i, mode in enumerate(modes) if mode != "DHA" and layers[i].nbytes)
    for i in sorted(copied, key=price):
        if over > 0:
            fitting[i] = "DHA"
            over -= layers[i].nbytes
    return tuple(fitting)


def completed(profile: ModelProfile, modes: Sequence[Mode], budget: Budget) -> Plan:
    """A plan from modes of the forward pass: parameters that do not fit become DHA, then come DFGB
    layers, then gradients, in what each leaves."""
    modes = fitted(profile, modes, budget.room_bytes)
    modes = dfgb(profile, modes, budget.room_bytes - parameter_bytes(profile, modes))
    stays = gradients(profile, modes, budget.for_gradients(profile, modes))
    return Plan(modes=modes, gradients_on_gpu=stays)


def _gradient_bytes(profile: ModelProfile, plan: Plan) -> int:
    return sum(compress((layer.nbytes for layer in profile.layers), plan.gradients_on_gpu))


def _fixed_bytes(profile: ModelProfile) -> int:
    activations = accumulate(layer.activation_bytes for layer in profile.layers)
    layers = zip(activations, profile.layers, strict=True)
    return max(kept + layer.workspace_bytes for kept, layer in layers)
