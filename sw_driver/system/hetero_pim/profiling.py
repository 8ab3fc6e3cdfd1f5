"""A training step's operations on the CPU: time, and accesses to main memory.

Accesses are lines of 64 bytes past a model of the CPU's last-level cache. Times are by the CPU's
rates, or measured on this computer.
"""

from __future__ import annotations

from collections.abc import Sequence

from sw_driver.machine import Machine
from sw_driver.machine.hetero_pim import HETERO_PIM
from sw_driver.workload.loading import Build, StepFunction, with_step
from sw_driver.workload.trace import Op, Trace, TraceError

from .costs import past
from .operations import operation_name
from .ranking import SHARE, Profiled, by_type, chosen

__all__ = ["instance_name", "measured", "modelled", "offered"]

_LINE_BYTES = 64


def instance_name(op: Op) -> str:
    """Return an operation's name in a profile, unique in its step."""
    return f"{operation_name(op)}_{op.id}"


def modelled(trace: Trace, machine: Machine = HETERO_PIM) -> list[Profiled]:
    """Return a profile by a model of the machine's CPU, with times in ns."""
    cpu = machine.device("cpu")
    outer = past(trace, cpu)
    return _profile(trace, outer, [cpu.cost(op) for op in outer])


def measured(
    workload: str, trace: Trace, batch: int | None = None, seq: int | None = None
) -> list[Profiled]:
    """Return a profile of ``trace`` with the times of PyTorch on this computer, in ns.

    The trace is the step of ``workload``, a network or a ``FILE.py:FUNCTION``. Accesses are by the
    cache of the machine's CPU. Raises :class:`~sw_driver.workload.trace.TraceError` for a
    step that does not run here, and for one that lacks an operation of the trace.
    """

    def times(build: Build, step: StepFunction) -> list[tuple[str, int]]:
        from sw_driver.workload.measuring import operation_times

        return operation_times(build, step, trace.origin["rule"])

    # The trace lacks operations that move nothing.
    ran, times_ns = iter(with_step(workload, times, "run", batch=batch, seq=seq)), []
    for op in trace.ops:
        ns = next((ns for kind, ns in ran if kind == op.kind), None)
        if ns is None:
            raise TraceError(
                f"the measured step of {workload} has no {instance_name(op)} ({op.kind}): give the "
                "model and batch of the trace, or plan with --profile model"
            )
        times_ns.append(ns)
    return _profile(trace, past(trace, HETERO_PIM.device("cpu")), times_ns)


def offered(rows: Sequence[Profiled], share: float = SHARE, *, types: bool = True) -> list[int]:
    """Return the indices in ``rows`` of operations that the PIMs are offered.

    They are ranked by type, or one by one.
    """
    names = {row.operation for row in chosen(by_type(rows) if types else rows, share)}
    return [
        number
        for number, row in enumerate(rows)
        if (row.kind or row.operation if types else row.operation) in names
    ]


def _profile(trace: Trace, outer: Sequence[Op], times_ns: Sequence[int]) -> list[Profiled]:
    return [
        Profiled(
            operation=instance_name(op),
            time=ns,
            accesses=-(-behind.nbytes // _LINE_BYTES),
            kind=operation_name(op),
        )
        for op, behind, ns in zip(trace.ops, outer, times_ns, strict=True)
    ]
