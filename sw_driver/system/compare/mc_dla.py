"""MC-DLA: activations move to a memory-node, or to the host as in the paper's baseline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from sw_driver.machine import Machine
from sw_driver.workload import Op, Trace, peak_bytes
from sw_driver.workload.trace import Tensor

from ..clock import EngineEvent, ProcessSteps
from ..engine import Engine
from ..outcome import Outcome
from ..placing import FAST, SLOW, Placing, life, run
from .lanes import alone
from .sentinel import spans_at, tiers
from .system import Need, Needs, System

__all__ = ["SYSTEMS", "Leaving", "Virtual", "leaving_of"]

_GROWING = ("parameter", "gradient", "optimizer_state")


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """Tensors that leave in a step, and the bytes that the GPU must hold at least."""

    behind: dict[int, list[int]] = field(default_factory=dict)
    """Activations that leave after an operation, by operation."""
    until: dict[int, int] = field(default_factory=dict)
    """Operation before which each activation must be back, in order of these operations."""
    held_bytes: np.ndarray
    """Bytes held in each operation, without the tensors that have left."""


def leaving_of(step: Trace) -> Leaving:
    """Return the activations that leave.

    They are used in the forward pass, and again later than in the next operation.
    """
    held = np.zeros(len(step.ops), dtype=np.int64)
    behind: dict[int, list[int]] = {}
    until: dict[int, int] = {}
    for tensor in step.tensors:
        lived = life(step, tensor)
        held[lived.start : lived.stop] += tensor.nbytes
        uses = step.accesses[tensor.id]
        forward = [op for op in uses if step.ops[op].phase == "forward"]
        last = forward[-1] if forward else len(step.ops)
        again = next((op for op in uses if op > last), 0)
        if tensor.kind == "activation" and again > last + 1:
            behind.setdefault(last, []).append(tensor.id)
            until[tensor.id] = again
            held[last + 1 : again] -= tensor.nbytes
    until = dict(sorted(until.items(), key=lambda item: item[1]))
    return Leaving(behind=behind, until=until, held_bytes=held)


class Virtual(Placing):
    """Policy that moves activations out after the forward pass, and back early.

    An activation returns as soon as there is room beside everything that the GPU must hold until
    its use.
    """

    def __init__(self, engine: Engine, trace: Trace, step: Trace, leaving: Leaving) -> None:
        super().__init__(engine, trace, step)
        self.leaving = leaving
        self.held_bytes = leaving.held_bytes.copy()
        """Bytes held in each operation, including tensors that return early."""
        self.due: dict[int, list[int]] = {}
        for tensor, op in leaving.until.items():
            self.due.setdefault(op, []).append(tensor)
        self.order = [*leaving.until][::-1]
        """Tensors that no move back was requested for, the next one at the end."""
        self.left: dict[int, EngineEvent] = {}

    def begins(self, tensor: Tensor) -> str:
        return FAST

    def allocate(self, tensor: Tensor) -> str:
        return ""

    def begin(self, op: Op) -> Iterable[EngineEvent]:
        return [self.engine.process(self._begin(op.id), f"begin of operation {op.id}")]

    def _begin(self, op: int) -> ProcessSteps:
        due = self.due.get(op, ())
        yield from map(self.left.__getitem__, due)
        self._fetch(op)
        coming = [self.residency.move(tensor, FAST) for tensor in due]
        room = [self.residency.room(tensor.id, FAST) for tensor in self.born.get(op, ())]
        yield from coming + room

    def _fetch(self, op: int) -> None:
        while self.order and self.residency.has(tensor := self.order[-1], SLOW):
            nbytes = self.step.tensors[tensor].nbytes
            meanwhile = self.held_bytes[op : self.leaving.until[tensor]]
            if meanwhile.max(initial=0) + nbytes > self.fast.capacity_bytes:
                return
            meanwhile += nbytes
            self.order.pop()
            self.residency.move(tensor, FAST, "back")

    def after(self, op: Op) -> None:
        super().after(op)
        for tensor in self.leaving.behind.get(op.id, ()):
            self.left[tensor] = self.residency.move(tensor, SLOW, "out")


def _fits(trace: Trace, machine: Machine) -> bool:
    return peak_bytes(trace) <= machine.memory("gpu").capacity_bytes.value


def _needs(place: str, link: str, trace: Trace, machine: Machine) -> Needs:
    """Return the needs; parameters, gradients, states and activations add up over layers."""
    tiers(machine, place, link)
    leaving = leaving_of(trace)
    at = int(leaving.held_bytes.argmax())
    grows = sum(
        tensor.nbytes
        for tensor in trace.tensors
        if tensor.kind in _GROWING and at in life(trace, tensor)
    )
    least = int(leaving.held_bytes[at])
    out = sum(trace.tensors[tensor].nbytes for tensor in leaving.until)
    out = 0 if _fits(trace, machine) else out
    return {
        "gpu": Need(nbytes=least, growing_bytes=grows),
        place: Need(nbytes=out, growing_bytes=out),
    }


def _run(place: str, link: str, trace: Trace, machine: Machine) -> Outcome:
    everything, away = alone(trace, machine), _needs(place, link, trace, machine)[place].nbytes
    if _fits(trace, machine):
        return replace(everything, peak_bytes={**everything.peak_bytes, place: away})
    make = partial(Virtual, leaving=leaving_of(trace))
    made = run(tiers(machine, place, link), trace, make, steps=1)
    taken = {"gpu": made.peak_bytes[FAST], place: away}
    spans = spans_at(made, place)
    return replace(everything, step_ns=made.step_ns, peak_bytes=taken, spans=spans)


def _system(name: str, place: str, link: str, words: str) -> System:
    return System(
        name=name,
        mark="predicted",
        bounds={"waiting": words},
        hardware={"its links": ("node.read_gb_per_s", "node.write_gb_per_s")}
        if link == "node"
        else {},
        assumptions=(
            "Parameters, gradients and optimizer states stay on the GPU. Activations leave if an "
            "operation after the next one uses them, unless everything fits.",
            ("Nothing is computed again.", lambda trace: "recomputed" not in trace.origin),
            "An activation leaves after its last use in the forward pass, and returns as soon as "
            "there is room. Activations move whole, one at a time.",
        ),
        needs=partial(_needs, place, link),
        run=partial(_run, place, link),
    )


SYSTEMS = (
    _system("MC-DLA's memory-nodes", "memory_node", "node", "node links"),
    _system("MC-DLA's policy over PCIe", "host", "pcie", "PCIe"),
)
"""Systems of MC-DLA; the second is the paper's baseline, DC-DLA."""
