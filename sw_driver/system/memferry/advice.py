"""What a plan's step would gain from faster parts or more memory."""

from __future__ import annotations

from dataclasses import replace

from .link import Link
from .planners import planned
from .profile import DHA_TIMES, LayerProfile, ModelProfile

__all__ = ["step_ns_of_changes"]


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
