"""Training on the GPU alone: all in its memory, or with activations computed again."""

from __future__ import annotations

from sw_driver.machine import Machine
from sw_driver.workload import Trace, peak_bytes
from sw_driver.workload.recomputation import recomputed

from ..outcome import Outcome
from .system import PARTS, Need, Needs, System

__all__ = ["RECOMPUTED", "SYSTEMS", "alone"]

RECOMPUTED = (
    "Only activations between blocks are kept; others are computed again, once, before the "
    "backward pass needs them."
)


def alone(trace: Trace, machine: Machine) -> Outcome:
    """Return a step with everything in the GPU's memory."""
    gpu = machine.device("gpu")
    parts: dict[str, int] = dict.fromkeys(PARTS[:-1], 0)
    repeated = {*trace.origin.get("recomputed", ())}
    for op in trace.ops:
        again = "recomputing" if op.id in repeated else "computing"
        parts["updating" if op.phase == "update" else again] += gpu.cost(op)
    total = sum(parts.values())
    taken = {"gpu": peak_bytes(trace)}
    return Outcome(step_ns=total, parts_ns=parts, peak_bytes=taken, busy_ns={"gpu": total})


def _needs(trace: Trace, _: Machine) -> Needs:
    return {"gpu": Need.of_all(trace)}


SYSTEMS = (
    System(name="all on the GPU", mark="predicted", needs=_needs, run=alone),
    System(
        name="recomputation",
        mark="predicted",
        assumptions=(RECOMPUTED,),
        needs=lambda trace, machine: _needs(recomputed(trace), machine),
        run=lambda trace, machine: alone(recomputed(trace), machine),
    ),
)
