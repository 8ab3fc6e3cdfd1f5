"""Planners by name, and a plan as it is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sw_driver.numbers import check_name

from .budget import Budget, budget_of, completed, gpu_bytes
from .exact import exact, exact_step
from .link import Link, Plan
from .ours import ours
from .printed import printed
from .profile import ModelProfile
from .repaired import repaired

__all__ = ["PLANNERS", "planned", "told"]

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
