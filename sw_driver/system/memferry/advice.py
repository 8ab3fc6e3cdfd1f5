"""What a plan's step would gain from faster parts or more memory."""

from __future__ import annotations

from dataclasses import replace

from .link import Link
from .planners import planned
from .profile import LayerProfile, ModelProfile

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
        forward, backward = -(-of.forward_ns // gpu), -(-of.backward_ns // gpu)

        def dha(ns: int, before: int, alone: int) -> int:
            """What takes longer by DHA waits for the link; else the GPU decides."""
            return max(alone, -(-ns // link)) if ns > before else min(ns, alone)

        return replace(
            of,
            transfer_ns=-(-of.transfer_ns // link),
            forward_ns=forward,
            forward_dha_ns=dha(of.forward_dha_ns, of.forward_ns, forward),
            backward_ns=backward,
            backward_dha_ns=dha(of.backward_dha_ns, of.backward_ns, backward),
            backward_gradient_dha_ns=dha(of.backward_gradient_dha_ns, of.backward_ns, backward),
            gap_forward_ns=-(-of.gap_forward_ns // gpu),
            gap_backward_ns=-(-of.gap_backward_ns // gpu),
        )

    return replace(
        profile,
        link_bytes_per_s=profile.link_bytes_per_s * link,
        layers=tuple(map(layer, profile.layers)),
    )
