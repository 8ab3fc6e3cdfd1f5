"""Steps of the paper's networks on its systems, each simulated once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

from sw_driver.machine import Machine
from sw_driver.machine.memferry import MEMFERRY_A100, MEMFERRY_V100
from sw_driver.numbers import check_fields, check_name, check_number
from sw_driver.workload import load_trace

from .. import runs
from ..outcome import Outcome
from .costs import profile_of
from .link import AccessPlan
from .planners import planned
from .profile import DHA_TIMES, LayerProfile, ModelProfile
from .systems import System, deepspeed, native, run

__all__ = ["MACHINES", "SYSTEMS", "MemferryCase", "part_of", "profile_for"]

DEEPSPEED, NATIVE, MEMFERRY, GO = "DeepSpeed", "native", "MemFerry", "GO-MemFerry"
OURS = "ours"
"""MemFerry with our planner."""
PAPERS = (DEEPSPEED, NATIVE, MEMFERRY, GO)
SYSTEMS = (*PAPERS, OURS)
MACHINES: Mapping[str, Machine] = {"a100": MEMFERRY_A100, "v100": MEMFERRY_V100}

BUFFER_PS_PER_BYTE = 51
"""Time that the GPU waits for DeepSpeed's gradient buffers, in ps a byte.

Fitted to MemFerry's speed-up of 1.37 over DeepSpeed at 1 B on an A100 (V-D).
"""


@dataclass(frozen=True, kw_only=True)
class MemferryCase(runs.Case[Outcome]):
    """A step of a network on a system.

    Examples
    --------
    >>> for system in ("native", "MemFerry"):
    ...     case = MemferryCase(network="bert-base", system=system)
    ...     print(case.result(lambda _: None).step_ns // 10**6, "ms")
    111 ms
    102 ms
    """

    system: str = MEMFERRY
    machine: str = "a100"
    reserve: float = 0.0
    """Share of gradients that GO-MemFerry may keep on the GPU."""
    gpus: int = 1
    samples: float = 1.0
    """Share of the trace's samples in a step."""

    def __post_init__(self) -> None:
        check_fields(self, "reserve")
        check_number("reserve", self.reserve, 0, 1)
        check_name("system", self.system, SYSTEMS)
        check_name("machine", self.machine, MACHINES)

    def __str__(self) -> str:
        return f"{self.system}, {self.network}"

    def simulate(self) -> Outcome:
        return run(profile_for(self), system_of(self))


def profile_for(case: MemferryCase) -> ModelProfile:
    """Return the profile of a case on one of its GPUs."""
    profile = _profile(case.network, MACHINES[case.machine].override(case.changes))
    share = Fraction(str(case.samples)) / case.gpus
    return replace(profile, layers=tuple(part_of(layer, share) for layer in profile.layers))


def system_of(case: MemferryCase) -> System:
    """Return the system of a case."""
    profile = profile_for(case)
    if case.system == DEEPSPEED:
        return deepspeed(profile, BUFFER_PS_PER_BYTE, case.gpus)
    if case.system == NATIVE:
        return native(profile, case.gpus)
    return System(plan=_plan(profile, case.system, case.reserve), gpus=case.gpus)


@cache
def _profile(network: str, machine: Machine) -> ModelProfile:
    return profile_of(load_trace(network), machine)


@cache
def _plan(profile: ModelProfile, system: str, reserve: float) -> AccessPlan:
    if system == GO:
        return planned(profile, "repaired", reserve=reserve)
    plan = planned(profile, "ours" if system == OURS else "repaired")
    return replace(plan, gradients_on_gpu=(True,) * len(plan.modes))


def part_of(layer: LayerProfile, share: Fraction | int) -> LayerProfile:
    """Return the layer with a share of the samples; the time that DHA adds stays the same."""
    names = ("forward_ns", "backward_ns", "gap_forward_ns", "gap_backward_ns")
    part = {
        n: int(getattr(layer, n) * share) for n in (*names, "activation_bytes", "workspace_bytes")
    }
    for name, on_gpu in DHA_TIMES.items():
        part[name] = getattr(layer, name) - getattr(layer, on_gpu) + part[on_gpu]
    return replace(layer, **part)
