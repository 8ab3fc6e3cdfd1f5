"""Who knows the step, and every use of every tensor in it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

import numpy as np

from sw_driver.machine import Machine
from sw_driver.system.clock import EngineEvent
from sw_driver.system.engine import Engine
from sw_driver.system.placing import FAST, SLOW, MoveQueue, Placing, life
from sw_driver.workload.trace import LASTING, Op, Tensor, Trace

__all__ = ["Foreseen", "Stretch", "belady", "settled", "worthwhile"]

Stretch = tuple[int, int, int]
"""A tensor is to be in the fast memory from an operation on to before another: these, and who."""


class Foreseen(Placing):
    """Has in the fast memory who is to be there in each operation, as far as there is room. Who is
    not there in time is used where it is."""

    def __init__(
        self, engine: Engine, trace: Trace, step: Trace, *, stretches: Iterable[Stretch]
    ) -> None:
        """Who is to come first is the first of ``stretches``."""
        self.plan: list[dict[int, None]] = [{} for _ in step.ops]
        for begin, end, tensor in stretches:
            for stretch in self.plan[begin:end]:
                stretch[tensor] = None
        self.wanted = self.plan[0]
        super().__init__(engine, trace, step)
        self.up, self.down = MoveQueue(self, FAST), MoveQueue(self, SLOW)

    def begins(self, tensor: Tensor) -> str:
        return self.allocate(tensor)

    def allocate(self, tensor: Tensor) -> str:
        return super().allocate(tensor) if self.base(tensor.id) in self.wanted else SLOW

    def begin(self, op: Op) -> Iterable[EngineEvent]:
        self.wanted = self.plan[op.id % len(self.plan)]
        self.up.drop()
        self.down.drop()
        inside = {self.base(number): number for number in self.residency.held(FAST)}
        for base, number in inside.items():
            if base not in self.wanted:
                self.down.ask(number)
        for number in map(self.now, (base for base in self.wanted if base not in inside)):
            if self.where(number) == SLOW and number not in self.moving:
                self.up.ask(number)
        return ()


def belady(step: Trace, machine: Machine, ahead_ops: int) -> list[Stretch]:
    """What is used next is there: what is used farthest in the future leaves. So many operations
    before a tensor is used, or is new, it has its place."""
    end, capacity = len(step.ops), int(machine.memory(FAST).capacity_bytes.value)
    lives = [life(step, tensor_of_step) for tensor_of_step in step.tensors]
    new: dict[int, list[int]] = {}
    for number, lived in enumerate(lives):
        new.setdefault(max(lived.start - ahead_ops, 0), []).append(number)
    order: list[tuple[int, int]] = []
    """When each is used next, or freed, and who."""
    since: dict[int, int] = {}
    """Who is there."""
    stretches = []
    for now in range(end):
        used = [tensor for next_use, tensor in order if next_use < now]
        del order[: len(used)]
        for number in [*used, *new.get(now, ())]:
            uses, again = step.accesses[number], lives[number].stop - 1
            if uses and step.tensors[number].kind in LASTING:
                again = end + uses[0]
            if now < lives[number].stop:
                insort(order, ((*uses, again)[bisect_left(uses, now)], number))
        room, chosen = capacity, {}
        for next_use, number in order:
            nbytes = step.tensors[number].nbytes
            late = next_use > now + ahead_ops and number not in since
            if nbytes <= room and not (late and lives[number].start < now):
                room -= nbytes
                chosen[number] = since.get(number, now)
        stretches += [
            (begin, now, number) for number, begin in since.items() if number not in chosen
        ]
        since = chosen
    return sorted([*stretches, *((begin, end, number) for number, begin in since.items())])


def worthwhile(stretches: Iterable[Stretch], step: Trace, machine: Machine) -> list[Stretch]:
    """Those in which operations gain more than the moves take before and behind them."""
    gains, planned = _gains(step, machine), []
    ns_per_byte = _ns_per_byte(machine, SLOW)
    for begin, end, number in stretches:
        tensor = step.tensors[number]
        lived = life(step, tensor)
        moves = (begin > lived.start) + (end < lived.stop)
        gain = sum(ns for op, ns in gains[number].items() if begin <= op < end)
        if gain >= moves * tensor.nbytes * ns_per_byte:
            planned.append((begin, end, number))
    return planned


def settled(step: Trace, machine: Machine, stretches: Sequence[Stretch] = ()) -> list[Stretch]:
    """These, and for those that have none all their lives, as far as there is room: first for those
    that gain the most by byte and operation."""
    gains = _gains(step, machine)
    capacity = int(machine.memory(FAST).capacity_bytes.value)
    held = np.zeros(len(step.ops), dtype=np.int64)
    for begin, end, number in stretches:
        held[begin:end] += step.tensors[number].nbytes
    done = {number for _, _, number in stretches}
    lives = {
        tensor_left: lived
        for tensor_left in step.tensors
        if tensor_left.id not in done and tensor_left.nbytes and (lived := life(step, tensor_left))
    }

    def density(tensor: Tensor) -> float:
        return sum(gains[tensor.id].values()) / (tensor.nbytes * len(lives[tensor]))

    chosen = [*stretches]
    for candidate in sorted(lives, key=density, reverse=True):
        part = held[lives[candidate].start : lives[candidate].stop]
        if candidate.nbytes + part.max() <= capacity:
            part += candidate.nbytes
            chosen.append((lives[candidate].start, lives[candidate].stop, candidate.id))
    return chosen


def _gains(step: Trace, machine: Machine) -> list[dict[int, float]]:
    """For each tensor the ns that each operation gains if it is in the fast memory."""
    device = machine.devices[0]
    slow, fast = (_ns_per_byte(machine, memory, device.name) for memory in (SLOW, FAST))
    gains: list[dict[int, float]] = [{} for _ in step.tensors]
    for op in step.ops:
        compute_ns, nbytes = device.compute_ns(op), op.nbytes
        gain = max(nbytes * slow, compute_ns) - max(nbytes * fast, compute_ns)
        accesses = zip(op.reads + op.writes, op.read_bytes + op.write_bytes, strict=True)
        for tensor, part in accesses:
            if part:
                gains[tensor][op.id] = gains[tensor].get(op.id, 0) + gain * part / nbytes
    return gains


def _ns_per_byte(machine: Machine, source: str, device: str = "") -> float:
    """Of what comes to the fast memory, or to a device there."""
    shares = Engine(machine).network.path(source, FAST, device).shares
    return max(weight / channel.budget for channel, weight in shares) * 1e9
