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
            for each in self.plan[begin:end]:
                each[tensor] = None
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
        inside = {self.base(each): each for each in self.residency.held(FAST)}
        for base, each in inside.items():
            if base not in self.wanted:
                self.down.ask(each)
        for each in map(self.now, (base for base in self.wanted if base not in inside)):
            if self.where(each) == SLOW and each not in self.moving:
                self.up.ask(each)
        return ()


def belady(step: Trace, machine: Machine, ahead_ops: int) -> list[Stretch]:
    """What is used next is there: what is used farthest in the future leaves. So many operations
    before a tensor is used, or is new, it has its place."""
    end, capacity = len(step.ops), int(machine.memory(FAST).capacity_bytes.value)
    lives = [life(step, each) for each in step.tensors]
    new: dict[int, list[int]] = {}
    for each, lived in enumerate(lives):
        new.setdefault(max(lived.start - ahead_ops, 0), []).append(each)
    order: list[tuple[int, int]] = []
    """When each is used next, or freed, and who."""
    since: dict[int, int] = {}
    """Who is there."""
    stretches = []
    for now in range(end):
        used = [tensor for next_use, tensor in order if next_use < now]
        del order[: len(used)]
        for each in [*used, *new.get(now, ())]:
            uses, again = step.accesses[each], lives[each].stop - 1
            if uses and step.tensors[each].kind in LASTING:
                again = end + uses[0]
            if now < lives[each].stop:
                insort(order, ((*uses, again)[bisect_left(uses, now)], each))
        room, chosen = capacity, {}
        for next_use, each in order:
            nbytes = step.tensors[each].nbytes
            late = next_use > now + ahead_ops and each not in since
            if nbytes <= room and not (late and lives[each].start < now):
                room -= nbytes
                chosen[each] = since.get(each, now)
        stretches += [(begin, now, each) for each, begin in since.items() if each not in chosen]
        since = chosen
    return sorted([*stretches, *((begin, end, each) for each, begin in since.items())])


def worthwhile(stretches: Iterable[Stretch], step: Trace, machine: Machine) -> list[Stretch]:
    """Those in which operations gain more than the moves take before and behind them."""
    gains, found = _gains(step, machine), []
    ns_per_byte = _ns_per_byte(machine, SLOW)
    for begin, end, each in stretches:
        tensor = step.tensors[each]
        lived = life(step, tensor)
        moves = (begin > lived.start) + (end < lived.stop)
        gain = sum(ns for op, ns in gains[each].items() if begin <= op < end)
        if gain >= moves * tensor.nbytes * ns_per_byte:
            found.append((begin, end, each))
    return found


def settled(step: Trace, machine: Machine, stretches: Sequence[Stretch] = ()) -> list[Stretch]:
    """These, and for those that have none all their lives, as far as there is room: first for those
    that gain the most by byte and operation."""
    gains = _gains(step, machine)
    capacity = int(machine.memory(FAST).capacity_bytes.value)
    held = np.zeros(len(step.ops), dtype=np.int64)
    for begin, end, each in stretches:
        held[begin:end] += step.tensors[each].nbytes
    done = {each for _, _, each in stretches}
    lives = {
        each: lived
        for each in step.tensors
        if each.id not in done and each.nbytes and (lived := life(step, each))
    }

    def density(tensor: Tensor) -> float:
        return sum(gains[tensor.id].values()) / (tensor.nbytes * len(lives[tensor]))

    found = [*stretches]
    for each in sorted(lives, key=density, reverse=True):
        part = held[lives[each].start : lives[each].stop]
        if each.nbytes + part.max() <= capacity:
            part += each.nbytes
            found.append((lives[each].start, lives[each].stop, each.id))
    return found


def _gains(step: Trace, machine: Machine) -> list[dict[int, float]]:
    """For each tensor the ns that each operation gains if it is in the fast memory."""
    device = machine.devices[0]
    slow, fast = (_ns_per_byte(machine, each, device.name) for each in (SLOW, FAST))
    found: list[dict[int, float]] = [{} for _ in step.tensors]
    for op in step.ops:
        compute_ns, nbytes = device.compute_ns(op), op.nbytes
        gain = max(nbytes * slow, compute_ns) - max(nbytes * fast, compute_ns)
        accesses = zip(op.reads + op.writes, op.read_bytes + op.write_bytes, strict=True)
        for tensor, part in accesses:
            if part:
                found[tensor][op.id] = found[tensor].get(op.id, 0) + gain * part / nbytes
    return found


def _ns_per_byte(machine: Machine, source: str, device: str = "") -> float:
    """Of what comes to the fast memory, or to a device there."""
    shares = Engine(machine).network.path(source, FAST, device).shares
    return max(weight / channel.budget for channel, weight in shares) * 1e9
