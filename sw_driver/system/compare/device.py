"""Training on the GPU alone: all in its memory, or with activations computed again."""

from __future__ import annotations

from sw_driver.machine import Machine
from sw_driver.workload import Trace
from sw_driver.workload.recomputation import recomputed

from .lanes import alone
from .system import CannotRunError, Need, Needs, System, remembering

__all__ = ["FUSED", "RECOMPUTED", "SYSTEMS"]

RECOMPUTED = (
    "Only activations between blocks are kept; others are computed again, once, before the "
    "backward pass needs them."
)

FUSED = (
    "Checkpoints are set after the compiler has fused operations, not before, as --checkpoint full "
    "would."
)


def _needs(trace: Trace, _: Machine) -> Needs:
    return {"gpu": Need.of_all(trace)}


@remembering
def _again(trace: Trace) -> Trace:
    if "gpus" in trace.origin and "recomputed" not in trace.origin:
        raise CannotRunError(
            f"checkpoints have their place in a step before {trace.origin['gpus']} GPUs share it: "
            f"give --checkpoint full"
        )
    return recomputed(trace)


def _is_late(trace: Trace) -> bool:
    """Return whether a compiler has fused operations, and nothing is recomputed yet."""
    return "compiled=yes" in trace.origin.get("applied", ()) and "recomputed" not in trace.origin


SYSTEMS = (
    System(name="all on the GPU", mark="predicted", needs=_needs, run=alone, several_gpus=True),
    System(
        name="recomputation",
        mark="predicted",
        assumptions=(
            (RECOMPUTED, lambda trace: "recomputed" not in trace.origin),
            (FUSED, _is_late),
        ),
        needs=lambda trace, machine: _needs(_again(trace), machine),
        run=lambda trace, machine: alone(_again(trace), machine),
        several_gpus=True,
    ),
)
