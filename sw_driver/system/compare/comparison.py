"""Each system's row: a step's time, what it takes of each memory, and the largest model that fits.

The largest model has more layers of the same sizes: all that a step takes of a place grows with
their number, but for what is fixed, such as the workspace of one layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from sw_driver.device.errors import DeadlockError, InvalidArgumentError
from sw_driver.machine import Machine
from sw_driver.numbers import check_name
from sw_driver.workload import Trace
from sw_driver.workload.summary import parameters_of
from sw_driver.workload.trace import TraceError

from ..errors import EngineError
from ..outcome import Outcome
from ..reproduction import Progress
from .bases import WATTS
from .device import RECOMPUTED, alone
from .system import PARTS, PLACES, CannotRunError, Needs, System, all_parts_ns

__all__ = ["Row", "capacity_bytes", "compare", "size"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A system, and what it makes of a step."""

    system: System
    needs: Needs
    """The least that it takes; empty if the system does not say."""
    outcome: Outcome | None
    """None if it cannot run."""
    reason: str
    """Why it cannot; else empty."""
    energy_j: float | None
    """In joules: by the system's own model, or GPU and cores at their full power while they work,
    nothing while they wait, and nothing of links, drives and other memories. None if something
    else computes, of whose power there is no figure."""
    largest_parameters: int | None
    """Of the largest model; None if nothing says."""

    def describe(self) -> dict[str, Any]:
        """As JSON has it."""
        made = self.outcome
        least = {place: need.nbytes for place, need in self.needs.items()}
        return {
            "system": self.system.name,
            "step_ns": made.step_ns if made else None,
            "memory_bytes": dict(made.peak_bytes) if made else least,
            "least_bytes": least,
            "parts_ns": all_parts_ns(made) if made else None,
            "energy_j": self.energy_j,
            "largest_parameters": self.largest_parameters,
            "mark": self.system.mark,
            "reason": self.reason,
        }


def compare(
    trace: Trace, machine: Machine, systems: Iterable[System], progress: Progress
) -> list[Row]:
    """A row of each, also of a :func:`~sw_driver.workload.recomputation.recomputed` step. Raises
    :class:`~sw_driver.workload.trace.TraceError` for a step without an operation."""
    if not trace.ops:
        raise TraceError(f"{trace.name} has no operation: give a training step")
    rows = [_row(each, trace, machine, progress) for each in systems]
    if "recomputed" in trace.origin:
        return [_recomputing(row, trace, machine) for row in rows]
    return rows


def capacity_bytes(machine: Machine, place: str) -> int:
    """Of all memories of a place; 0 if the machine has none of them."""
    found = {each.name: int(each.capacity_bytes.value) for each in machine.memories}
    return sum(found.get(name, 0) for name in PLACES[place])


def size(nbytes: int) -> str:
    """As memories are sold: ``"24.0 GiB"``."""
    power = min(max(nbytes.bit_length() - 1, 0) // 10, 4)
    return f"{nbytes / 1024**power:,.1f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def _row(system: System, trace: Trace, machine: Machine, progress: Progress) -> Row:
    progress(f"{system.name}, {trace.name}")
    needs: Needs = {}
    outcome, reason, largest = None, "", None
    try:
        needs = system.needs(trace, machine)
        largest = _largest(needs, trace, machine)
        if not (reason := _lacking(needs, machine)):
            outcome = system.run(trace, machine)
            for name in outcome.parts_ns:
                check_name("part", name, PARTS[:-1], ValueError)
            for name in outcome.peak_bytes:
                check_name("place", name, PLACES, ValueError)
    except (CannotRunError, EngineError, DeadlockError, InvalidArgumentError, TraceError) as error:
        reason = str(error)
    return Row(
        system=system,
        needs=needs,
        outcome=outcome,
        reason=reason,
        energy_j=_energy_j(outcome, machine) if outcome else None,
        largest_parameters=largest,
    )


def _recomputing(row: Row, trace: Trace, machine: Machine) -> Row:
    """What computes is parted as the GPU's time without any waiting is."""
    assumptions = dict.fromkeys((*row.system.assumptions, RECOMPUTED))
    row = replace(row, system=replace(row.system, assumptions=tuple(assumptions)))
    made, share = row.outcome, alone(trace, machine).parts_ns
    if made is None or not share["recomputing"]:
        return row
    computing, again = (made.parts_ns.get(each, 0) for each in ("computing", "recomputing"))
    both, of_gpu = computing + again, share["computing"] + share["recomputing"]
    again = both * share["recomputing"] // of_gpu
    parts = {**made.parts_ns, "computing": both - again, "recomputing": again}
    return replace(row, outcome=replace(made, parts_ns=parts))


def _energy_j(outcome: Outcome, machine: Machine) -> float | None:
    if outcome.energy_j is not None:
        return outcome.energy_j
    if not outcome.busy_ns or machine.name not in WATTS:
        return None
    gpu_w, cpu_w = WATTS[machine.name].value, WATTS["cpu"].value
    return (outcome.busy("gpu") * gpu_w + outcome.busy("cpu") * cpu_w) / 1e9


def _lacking(needs: Needs, machine: Machine) -> str:
    """What a machine has too little of."""
    return "; ".join(
        "takes at least {1} of {0}, which has {2}".format(place, *_apart(need.nbytes, there))
        for place, need in needs.items()
        if need.nbytes > (there := capacity_bytes(machine, place))
    )


def _apart(one: int, other: int) -> tuple[str, str]:
    """Two sizes so that they differ."""
    if (short := (size(one), size(other)))[0] != short[1]:
        return short
    return f"{one:,} bytes", f"{other:,}"


def _largest(needs: Needs, trace: Trace, machine: Machine) -> int | None:
    rooms = [(capacity_bytes(machine, place), need) for place, need in needs.items()]
    if any(need.nbytes - need.growing_bytes > there for there, need in rooms):
        return 0
    times = [
        1 + (there - need.nbytes) / need.growing_bytes
        for there, need in rooms
        if need.growing_bytes > 0
    ]
    return max(int(min(times) * parameters_of(trace)), 0) if times else None
