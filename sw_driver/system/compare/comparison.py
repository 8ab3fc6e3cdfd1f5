"""One row for each system: step time, bytes of each memory, and the largest model that fits.

The largest model has more layers of the same sizes. Bytes of a step grow with the number of layers,
except for fixed ones such as the workspace of one layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sw_driver.device.errors import DeadlockError, InvalidArgumentError
from sw_driver.machine import Machine
from sw_driver.numbers import check_name
from sw_driver.workload import Trace
from sw_driver.workload.summary import parameters_of
from sw_driver.workload.trace import TraceError
from sw_driver.workload.training import Training

from ..errors import EngineError
from ..outcome import Outcome
from ..reproduction import Progress
from .bases import CPU_WATTS, gpu_watts
from .device import RECOMPUTED
from .lanes import alone
from .system import PARTS, PLACE_NAMES, PLACES, CannotRunError, Needs, System, all_parts_ns

__all__ = ["Row", "TrainedSteps", "capacity_bytes", "compare", "size"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A system, with its result for a training step."""

    system: System
    needs: Needs
    """Least bytes that it needs; empty if the system does not say."""
    outcome: Outcome | None
    """Result of the step; None if the system cannot run it."""
    reason: str
    """Reason why it cannot run the step; else empty."""
    energy_j: float | None
    """Energy in joules, by the system's own model or by full power.

    Without a model of its own, GPU and cores take full power while they work and none while they
    wait. Links, drives and other memories count nothing. None if other hardware computes, whose
    power is unknown.
    """
    largest_parameters: int | None
    """Parameters of the largest model that fits; None if unknown."""
    assumptions: tuple[str, ...] = ()
    """Assumptions of its figures, beyond those of all systems."""

    def describe(self) -> dict[str, Any]:
        """Return the row for JSON."""
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


class TrainedSteps:
    """A captured step in each system's own training, made once for each training.

    Examples
    --------
    >>> from sw_driver.workload import load_trace
    >>> from sw_driver.system.compare.device import SYSTEMS
    >>> from sw_driver.workload.training import Training
    >>> steps = TrainedSteps(load_trace("gpt-tiny"), Training(precision="bf16-mixed"))
    >>> steps.of(SYSTEMS[0]) is steps.usual
    True
    """

    def __init__(self, captured: Trace, training: Training) -> None:
        self.captured, self.training = captured, training
        self._begun: dict[tuple[Any, ...], Trace] = {}
        self._made: dict[Training, Trace] = {}
        self.usual = self._step(training)

    def of(self, system: System) -> Trace:
        """Return the step that a system runs.

        Raises :class:`~sw_driver.workload.trace.TraceError`, ``InvalidArgumentError`` or
        :class:`CannotRunError` for a training that does not fit.
        """
        return self._step(system.training(self.training, self.captured))

    def _step(self, own: Training) -> Trace:
        if own.beginning not in self._begun:
            self._begun[own.beginning] = own.begun(self.captured)
        if own not in self._made:
            self._made[own] = own.completed(self._begun[own.beginning])
        return self._made[own]

    def __getstate__(self) -> dict[str, Any]:
        """Return what makes the steps: another process makes them as fast as it reads them."""
        return {"captured": self.captured, "training": self.training}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(**state)


def compare(
    steps: TrainedSteps | Trace, machine: Machine, systems: Iterable[System], progress: Progress
) -> list[Row]:
    """Return a row for each system; the step may recompute activations.

    A trace alone is a captured step. See :mod:`~sw_driver.workload.recomputation`. Raises
    :class:`~sw_driver.workload.trace.TraceError` for a step without an operation.
    """
    steps = TrainedSteps(steps, Training()) if isinstance(steps, Trace) else steps
    if not steps.usual.ops:
        raise TraceError(f"{steps.usual.name} has no operation: give a training step")
    return [_row(system, steps, machine, progress) for system in systems]


def capacity_bytes(machine: Machine, place: str) -> int:
    """Return the bytes of all memories of a place; 0 if the machine has none of them."""
    capacities = {memory.name: int(memory.capacity_bytes.value) for memory in machine.memories}
    return sum(capacities.get(name, 0) for name in PLACES[place])


def size(nbytes: int) -> str:
    """Return a size with a binary prefix, as memories are sold: ``"24.0 GiB"``."""
    power = min(max(nbytes.bit_length() - 1, 0) // 10, 4)
    return f"{nbytes / 1024**power:,.1f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def _row(system: System, steps: TrainedSteps, machine: Machine, progress: Progress) -> Row:
    progress(f"{system.name}, {steps.usual.name}")
    needs: Needs = {}
    outcome, reason, largest, trace = None, "", None, steps.usual
    try:
        trace = steps.of(system)
        system.check(trace)
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
    row = Row(
        system=system,
        needs=needs,
        outcome=outcome,
        reason=reason,
        energy_j=_energy_j(outcome, machine) if outcome else None,
        largest_parameters=largest,
        assumptions=system.assumed(trace) if needs or outcome else (),
    )
    return _recomputing(row, trace, machine) if "recomputed" in trace.origin else row


def _recomputing(row: Row, trace: Trace, machine: Machine) -> Row:
    """Split a row's computing time into computing and recomputing, as on the GPU alone."""
    if row.assumptions or row.outcome:
        row = replace(row, assumptions=(*row.assumptions, _repeats(trace)))
    made, share = row.outcome, alone(trace, machine).parts_ns
    if made is None or not share["recomputing"]:
        return row
    computing, again = (made.parts_ns.get(part, 0) for part in ("computing", "recomputing"))
    both, alone_ns = computing + again, share["computing"] + share["recomputing"]
    again = both * share["recomputing"] // alone_ns
    parts = {**made.parts_ns, "computing": both - again, "recomputing": again}
    return replace(row, outcome=replace(made, parts_ns=parts))


def _repeats(trace: Trace) -> str:
    """Return the sentence on what a step computes again."""
    applied = dict(text.partition("=")[::2] for text in trace.origin.get("applied", ()))
    policy, _, text = applied.get("checkpoint", "").partition(":")
    if policy == "full":
        return "A block keeps only its input; the rest of it is computed again, once."
    if text:
        return f"A module with {text!r} in its name keeps only its input, and is computed again."
    if policy:
        return (
            "A block keeps its input, and the results of fused attention and of every second "
            "linear layer; the rest of it is computed again, once."
        )
    return RECOMPUTED


def _energy_j(outcome: Outcome, machine: Machine) -> float | None:
    if outcome.energy_j is not None:
        return outcome.energy_j
    watts = gpu_watts(machine) if outcome.busy_ns else None
    if watts is None:
        return None
    return (outcome.busy("gpu") * watts.value + outcome.busy("cpu") * CPU_WATTS.value) / 1e9


def _lacking(needs: Needs, machine: Machine) -> str:
    """Return the memories that are too small, in words; empty if none is."""
    return "; ".join(
        "needs at least {1} of {0}, which has {2}".format(
            PLACE_NAMES[place], *_apart(need.nbytes, there)
        )
        for place, need in needs.items()
        if need.nbytes > (there := capacity_bytes(machine, place))
    )


def _apart(one: int, other: int) -> tuple[str, str]:
    """Return two sizes as texts that differ."""
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
