"""Sentinel with the GPU's memory as the fast one, and the host's or an expander's as the slow."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from sw_driver.machine import Machine, MachineError
from sw_driver.workload import Trace, peak_bytes

from ..outcome import Outcome, Span
from ..placing import FAST, SLOW
from ..sentinel.planning import ALL_LENGTHS, TRIALS, Settings, lower_bound_bytes, planned
from ..sentinel.profiling import StepProfile, profile_of
from .lanes import alone
from .system import PLACE_NAMES, CannotRunError, Need, Needs, System

__all__ = ["SYSTEMS", "spans_at", "tiers"]


def tiers(machine: Machine, slow: str, link: str) -> Machine:
    """Return a machine with the GPU's memory as the fast one, and another memory over one link."""
    try:
        connection, other = machine.link(link), machine.memory(slow)
    except MachineError as error:
        raise CannotRunError(
            f"no {PLACE_NAMES[slow]}{'s' * (slow == 'memory_node')} on this GPU"
        ) from error
    ends = (FAST, SLOW) if connection.a == "gpu" else (SLOW, FAST)
    gpu = machine.memory("gpu")
    return Machine(
        name=machine.name,
        memories=(
            replace(gpu, name=FAST, setting="gpu.capacity_bytes"),
            replace(other, name=SLOW, setting=f"{slow}.capacity_bytes"),
        ),
        devices=(replace(machine.device("gpu"), memory=FAST),),
        links=(replace(connection, a=ends[0], b=ends[1]),),
    )


def spans_at(made: Outcome, slow: str) -> tuple[Span, ...]:
    """Return the spans of a step on :func:`tiers`, with lanes by the names of its memories."""
    names = {f"{FAST} to {SLOW}": f"gpu to {slow}", f"{SLOW} to {FAST}": f"{slow} to gpu"}
    return tuple(replace(span, lane=names.get(span.lane, span.lane)) for span in made.spans)


def _profile(trace: Trace) -> StepProfile:
    """Return a profile without a cache, so that an operation costs the same in all systems."""
    return profile_of(trace, 0)


def _searched_ops(trace: Trace, machine: Machine) -> int:
    """Return the operations of two steps for each interval length, about; none if all fits."""
    if peak_bytes(trace) <= machine.memory("gpu").capacity_bytes.value:
        return 0
    visits = len(trace.stages)
    lengths = visits if visits <= ALL_LENGTHS else 3 * visits.bit_length()
    return 2 * lengths * len(trace.ops)


def _needs(place: str, link: str, trace: Trace, machine: Machine) -> Needs:
    """Return the needs; short-lived tensors and the largest one do not add up over layers."""
    tiers(machine, place, link)
    profile = _profile(trace)
    everything = Need.of_all(profile.step)
    least = min(lower_bound_bytes(profile), everything.nbytes)
    return {"gpu": Need(nbytes=least, growing_bytes=0), place: everything}


def _run(place: str, link: str, trace: Trace, machine: Machine) -> Outcome:
    profile, view = _profile(trace), tiers(machine, place, link)
    needs, made = _needs(place, link, trace, machine), alone(profile.step, machine)
    everything = needs[place].nbytes
    if everything <= machine.memory("gpu").capacity_bytes.value:
        return replace(made, peak_bytes={"gpu": everything, place: everything})
    plan = planned(profile, view, Settings(trial=False))
    if 0 < plan.cases[2] <= TRIALS:
        plan = planned(profile, view, lengths=[plan.interval_layers])
    peak = max(plan.outcome.peak_bytes[FAST], needs["gpu"].nbytes)
    taken = {"gpu": peak, place: everything}
    busy_ns, spans = {"gpu": sum(plan.outcome.busy_ns.values())}, spans_at(plan.outcome, place)
    parts_ns, whole = made.parts_ns, sum(made.parts_ns.values())
    if whole > plan.step_ns:  # operations take less time in a memory faster than the GPU's
        parts_ns = {part: ns * plan.step_ns // whole for part, ns in parts_ns.items()}
        parts_ns["computing"] += plan.step_ns - sum(parts_ns.values())
    return replace(
        made,
        step_ns=plan.step_ns,
        parts_ns=parts_ns,
        busy_ns=busy_ns,
        peak_bytes=taken,
        spans=spans,
    )


def _system(name: str, place: str, link: str, owner: str) -> System:
    return System(
        name=f"Sentinel over {name}",
        mark="predicted",
        bounds={"waiting": name},
        hardware={"its link": tuple(f"cxl.{way}_gb_per_s" for way in ("read", "write", "total"))}
        if place == "cxl"
        else {},
        searched_ops=_searched_ops,
        assumptions=(
            f"The first step is profiled with all tensors in {owner} memory, like the paper's slow "
            "memory: they must fit there. In later steps all are on the GPU if they fit.",
            "An update runs on the GPU once its layer's gradients are there, and frees them.",
            f"If a step has at most {TRIALS} cases 3, both answers to them are tried; otherwise "
            "the next interval waits.",
        ),
        needs=partial(_needs, place, link),
        run=partial(_run, place, link),
    )


SYSTEMS = (
    _system("PCIe", "host", "pcie", "the host's"),
    _system("CXL", "cxl", "cxl", "the expander's"),
)
