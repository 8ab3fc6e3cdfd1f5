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
from sw_driver.workload.masters import with_masters

from ..memferry.budget import gpu_bytes, parameter_bytes
from ..memferry.costs import TILE_ROWS, profile_of
from ..memferry.link import LinkModel, every
from ..memferry.planners import planned
from ..memferry.profile import ModelProfile
from ..memferry.runs import BUFFER_PS_PER_BYTE
from ..memferry.systems import LEAST_LEAVING, deepspeed, native, run
from ..memferry.systems import System as Way
from ..outcome import Outcome
from .axdimm import MODULE_LINK, update_bytes
from .comparison import capacity_bytes
from .system import Assumption, Need, Needs, System, formats_of, remembering

__all__ = ["SYSTEMS"]

_MODULE_BYTES = 32 << 30
_SLOTS = 16
"""Slots for modules: two for each of a socket's eight channels."""
_HOSTS = ("parameter", "gradient", "optimizer_state")

_Choose = Callable[[ModelProfile, int | None], Way]
"""Function that chooses how a step runs in bytes of GPU memory, or in the least if None."""


def _offloaded(make: Callable[..., Way], profile: ModelProfile, memory_bytes: int | None) -> Way:
    """Return ZeRO-Offload in a GPU's memory, with few gradients there if not all fit."""
    free = make(profile, leaving=len(profile.layers))
    fits = gpu_bytes(profile, free.plan) + free.bucket_bytes <= (memory_bytes or 0)
    return free if fits else make(profile, leaving=LEAST_LEAVING)


def _planned(profile: ModelProfile, memory_bytes: int | None, reserves: tuple[float, ...]) -> Way:
    """Return the best plan of several limits on the share of gradients on the GPU.

    A higher limit in ``reserves`` does not always lead the planner to a better plan.
    """
    if memory_bytes is None:
        return Way(plan=every(profile, "DHA", False))
    plans = [planned(profile, "ours", memory_bytes, reserve) for reserve in reserves]
    return Way(plan=min(plans, key=LinkModel(profile, shared=True).step_ns))


_with_masters = remembering(with_masters)


@remembering
def _profile(trace: Trace, machine: Machine, axdimm: float) -> ModelProfile:
    """Return the profile; with AXDIMMs, the GPU's link is no faster than theirs together.

    ``axdimm`` is the factor of their rate of updates, or 0 without them.
    """
    if not axdimm:
        return profile_of(trace, machine)
    modules = min(-(-capacity_bytes(machine, "host") // _MODULE_BYTES), _SLOTS)
    pcie, link = machine.link("pcie"), machine.link("module")
    rates = {
        f"pcie.{way}": f"{min(getattr(pcie, way).value, modules * getattr(link, way).value):.9f}"
        for way in ("read_gb_per_s", "write_gb_per_s")
    }
    bytes_per_us = modules * axdimm * own_mparams_per_s() * BYTES_PER_PARAMETER
    update_ns = ceil(update_bytes(trace) / bytes_per_us * 1000)
    return replace(profile_of(trace, machine.override(rates)), update_ns=update_ns)


def _system(
    name: str, mark: str, choose: _Choose, *assumptions: Assumption, axdimm: float = 0
) -> System:
    given = assumptions

    def faster(_: System, factor: float) -> System:
        return _system(name, mark, choose, *given, axdimm=factor)

    def needs(trace: Trace, machine: Machine) -> Needs:
        trace = _with_masters(trace)
        profile = _profile(trace, machine, axdimm)
        way, host = choose(profile, None), _bytes(trace, *_HOSTS)
        nbytes = gpu_bytes(profile, way.plan)
        copied = nbytes - gpu_bytes(profile, every(profile, "DHA", False))
        if way.leaving is not None:  # the gradients on their way do not grow with the model
            nbytes = run(profile, way).peak_bytes["gpu"]
            copied = parameter_bytes(profile, way.plan.modes)
        return {
            "gpu": Need(nbytes=nbytes, growing_bytes=copied + _bytes(trace, "activation")),
            "host": Need(nbytes=host, growing_bytes=host),
        }

    def outcome(trace: Trace, machine: Machine) -> Outcome:
        trace = _with_masters(trace)
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
            "Every 32 GiB of the host's memory is an AXDIMM with a link like Kim et al.'s, "
            f"{_SLOTS} at most, one a slot of a socket. All of them update in parallel, at our "
            "RTL's rate, while transfers go on; no core updates.",
            "The modules move the same number of bytes per second for any optimizer and format.",
        )
    return System(
        name=name,
        mark=mark,
        assumptions=(*assumptions, *_ALWAYS),
        bounds={"updating": "modules" if axdimm else "CPU", "waiting": "PCIe"},
        hardware={"its links": MODULE_LINK, "its update rate": faster} if axdimm else {},
        needs=needs,
        run=outcome,
        micro_batches=False,
    )


def _bytes(trace: Trace, *kinds: str) -> int:
    return sum(tensor.nbytes for tensor in trace.tensors if tensor.kind in kinds)


_ALWAYS = (
    "Copies in both directions have the rate of the link towards the GPU.",
    (
        "Instead of autocast's copies the GPU has parameters and gradients in 16 bits, which an "
        "update makes of those in FP32 on the host.",
        lambda trace: formats_of(trace).endswith("-mixed"),
    ),
)
_ALL_THERE = (
    "All parameters stay in the GPU's memory for the step. A gradient leaves it as it is made. "
    f"Where not all gradients fit, {LEAST_LEAVING} are there at most, and the GPU waits for one."
)
_PLAN = (
    "Our planner, which improves on the paper's, makes the plan. It uses all GPU memory that "
    "activations leave free.",
    "Parameters that are copied to the GPU stay for the step. A product reads others from the "
    f"host's memory, once for every {TILE_ROWS} rows of its result.",
)

SYSTEMS = (
    _system("ZeRO-Offload", "predicted", partial(_offloaded, native), _ALL_THERE),
    _system(
        "ZeRO-Offload, DeepSpeed",
        "calibrated",
        partial(_offloaded, partial(deepspeed, buffer_ps_per_byte=BUFFER_PS_PER_BYTE)),
        _ALL_THERE,
        "The GPU's time for a gradient's buffer is fitted to one of Yao et al.'s speed-ups.",
    ),
    *(
        _system(
            name, "predicted", partial(_planned, reserves=reserves), *_PLAN, where, axdimm=axdimm
        )
        for axdimm, ending in ((0, ""), (1, ", AXDIMM"))
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
