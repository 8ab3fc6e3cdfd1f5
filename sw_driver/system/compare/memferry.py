"""Systems with parameters, gradients and states in the host's memory.

ZeRO-Offload is as in Ren et al., MemFerry as in Yao et al. The host's cores update, or AXDIMMs in
place of the host's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import ceil

from sw_driver.axdimm.figures import BYTES_PER_PARAMETER
from sw_driver.axdimm.measure import own_mparams_per_s
from sw_driver.machine import Machine
from sw_driver.workload import Trace

from ..memferry.budget import gpu_bytes
from ..memferry.costs import TILE_ROWS, profile_of
from ..memferry.link import LinkModel, every
from ..memferry.planners import planned
from ..memferry.profile import ModelProfile
from ..memferry.runs import BUFFER_PS_PER_BYTE
from ..memferry.systems import System as Way
from ..memferry.systems import deepspeed, native, run
from ..outcome import Outcome
from .axdimm import update_bytes
from .comparison import capacity_bytes
from .system import Assumption, Need, Needs, System

__all__ = ["SYSTEMS"]

_MODULE_BYTES = 32 << 30
_HOSTS = ("parameter", "gradient", "optimizer_state")

_Choose = Callable[[ModelProfile, int | None], Way]
"""Function that chooses how a step runs in bytes of GPU memory, or in the least if None."""


def _planned(profile: ModelProfile, memory_bytes: int | None, reserves: tuple[float, ...]) -> Way:
    """Return the best plan of several limits on the share of gradients on the GPU.

    A higher limit in ``reserves`` does not always lead the planner to a better plan.
    """
    if memory_bytes is None:
        return Way(plan=every(profile, "DHA", False))
    plans = [planned(profile, "ours", memory_bytes, reserve) for reserve in reserves]
    return Way(plan=min(plans, key=LinkModel(profile, shared=True).step_ns))


def _profile(trace: Trace, machine: Machine, axdimm: bool) -> ModelProfile:
    """Return the profile; with AXDIMMs, the GPU's link is no faster than theirs together."""
    if not axdimm:
        return profile_of(trace, machine)
    modules = -(-capacity_bytes(machine, "host") // _MODULE_BYTES)
    pcie, link = machine.link("pcie"), machine.link("module")
    rates = {
        f"pcie.{way}": f"{min(getattr(pcie, way).value, modules * getattr(link, way).value):.9f}"
        for way in ("read_gb_per_s", "write_gb_per_s")
    }
    bytes_per_us = modules * own_mparams_per_s() * BYTES_PER_PARAMETER
    update_ns = ceil(update_bytes(trace) / bytes_per_us * 1000)
    return replace(profile_of(trace, machine.override(rates)), update_ns=update_ns)


def _system(
    name: str, mark: str, choose: _Choose, *assumptions: Assumption, axdimm: bool = False
) -> System:
    def needs(trace: Trace, machine: Machine) -> Needs:
        profile = _profile(trace, machine, axdimm)
        way, host = choose(profile, None), _bytes(trace, *_HOSTS)
        nbytes = gpu_bytes(profile, way.plan)
        copied = nbytes - gpu_bytes(profile, every(profile, "DHA", False))
        growing = copied + _bytes(trace, "activation")
        return {
            "gpu": Need(nbytes=nbytes + way.bucket_bytes, growing_bytes=growing),
            "host": Need(nbytes=host, growing_bytes=host),
        }

    def outcome(trace: Trace, machine: Machine) -> Outcome:
        profile = _profile(trace, machine, axdimm)
        step = run(profile, choose(profile, capacity_bytes(machine, "gpu")))
        gpu = machine.device("gpu")
        computing = sum(gpu.cost(op) for op in trace.ops if op.phase != "update")
        updating = step.step_ns - step.marks_ns["gradients"]
        return replace(
            step,
            parts_ns={"computing": computing, "updating": updating},
            peak_bytes={"gpu": step.peak_bytes["gpu"], "host": _bytes(trace, *_HOSTS)},
            busy_ns={} if axdimm else {"gpu": step.busy("gpu"), "cpu": profile.update_ns},
        )

    if axdimm:
        assumptions += (
            "Every 32 GiB of the host's memory is an AXDIMM with a link like Kim et al.'s. All of "
            "them update in parallel, at our RTL's rate, while transfers go on; no core updates.",
            "The modules move the same number of bytes per second for any optimizer and format.",
        )
    return System(
        name=name,
        mark=mark,
        assumptions=(*assumptions, *_ALWAYS),
        needs=needs,
        run=outcome,
        micro_batches=False,
    )


def _casts(trace: Trace) -> bool:
    """Return whether casts read parameters, in place of products."""
    return any(
        trace.tensors[tensor].kind == "parameter"
        for op in trace.ops
        if op.kind == "_to_copy"
        for tensor in op.reads
    )


def _bytes(trace: Trace, *kinds: str) -> int:
    return sum(tensor.nbytes for tensor in trace.tensors if tensor.kind in kinds)


_ALWAYS = (
    "Copies in both directions have the rate of the link towards the GPU.",
    "Every parameter has a gradient that moves, even a parameter that is not trained.",
)
_ALL_THERE = "All parameters and gradients stay in the GPU's memory for the step."
_PLAN = (
    "Our planner, which improves on the paper's, makes the plan. It uses all GPU memory that "
    "activations leave free.",
    "Parameters that are copied to the GPU stay for the step.",
    (
        f"A product reads other parameters from the host's memory, once for every {TILE_ROWS} rows "
        "of its result.",
        lambda trace: not _casts(trace),
    ),
    ("The cast of another parameter reads it from the host's memory, once.", _casts),
)

SYSTEMS = (
    _system("ZeRO-Offload", "predicted", lambda profile, _: native(profile), _ALL_THERE),
    _system(
        "ZeRO-Offload, DeepSpeed",
        "calibrated",
        lambda profile, _: deepspeed(profile, BUFFER_PS_PER_BYTE),
        _ALL_THERE,
        "The GPU's time for a gradient's buffer is fitted to one of Yao et al.'s speed-ups.",
    ),
    *(
        _system(
            name, "predicted", partial(_planned, reserves=reserves), *_PLAN, where, axdimm=axdimm
        )
        for axdimm, ending in ((False, ""), (True, ", AXDIMM"))
        for name, reserves, where in (
            (
                f"MemFerry{ending}",
                (1, 0.5, 0),
                "Gradients stay on the GPU where that makes the step faster.",
            ),
            (f"GO-MemFerry{ending}", (0,), "No gradient stays in the GPU's memory."),
        )
    ),
)
