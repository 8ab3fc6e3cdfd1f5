"""A step that a program did, and what to do in the next that is like it: plans to be tried.

A plan says after which operations what leaves, and before which ones what comes. Nothing computes
in slow memory here: what has not come when it is used comes then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

from sw_driver.workload.trace import Op, Stage, Tensor, Trace

from .planning import Planner, Settings
from .profiling import StepProfile

__all__ = ["Ask", "Plan", "Step"]


class Ask(NamedTuple):
    """What is to come."""

    use: int
    """The operation that it is for; of the next step, counted on."""
    slot: int
    beside_bytes: int = 0
    """That are to be free beside it."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is done in a step. Storages are by their numbers in the step."""

    name: str
    leaving: Mapping[int, Sequence[int]]
    """By operation what leaves after it."""
    asks: Mapping[int, Sequence[Ask]]
    """By operation what is to come from when that begins, in this order."""


@dataclass(eq=False)
class Step:
    """What a step did. Storages are numbered as they come up."""

    functions: list[Any] = field(default_factory=list)
    slots: list[tuple[int, ...]] = field(default_factory=list)
    """By operation the storages it had."""
    made: list[tuple[int, ...]] = field(default_factory=list)
    """By operation the storages it made."""
    nbytes: list[int] = field(default_factory=list)
    """By storage."""
    born: dict[int, int] = field(default_factory=dict)
    """Operation that made a storage, of those made in the step."""
    freed: dict[int, int] = field(default_factory=dict)
    """First operation without a storage, of those that were freed in the step."""
    visits: list[int] = field(default_factory=list)
    """Operations that a layer begins with, in a pass."""

    @cached_property
    def uses(self) -> list[list[int]]:
        """By storage the operations that had or made it."""
        uses: list[list[int]] = [[] for _ in self.nbytes]
        for number, slots in enumerate(zip(self.slots, self.made, strict=True)):
            for slot in dict.fromkeys(slots[0] + slots[1]):
                uses[slot].append(number)
        return uses

    @cached_property
    def made_bytes(self) -> list[int]:
        return [sum(self.nbytes[slot] for slot in made) for made in self.made]

    def is_like(self, other: Step, number: int) -> bool:
        """Whether an operation of another step is that of this one, in what it has."""
        return (
            number < len(self.functions)
            and self.functions[number] is other.functions[number]
            and self.slots[number] == other.slots[number]
            and all(self.nbytes[each] == other.nbytes[each] for each in self.slots[number])
        )

    def begins_like(self, other: Step) -> bool:
        """Whether another step is the same as far as it has come."""
        return all(self.is_like(other, number) for number in range(len(other.functions)))

    def lasts(self, slot: int) -> bool:
        """Whether a storage is there before the step and after it."""
        return slot not in self.born and slot not in self.freed

    def next_use(self, slot: int, number: int) -> float:
        """The first operation from ``number`` on that has a storage; of the next step, if it
        lasts."""
        uses = self.uses[slot]
        at = bisect_left(uses, number)
        if at < len(uses):
            return uses[at]
        return uses[0] + len(self.functions) if uses and self.lasts(slot) else inf

    def last_use(self, slot: int, number: int) -> float:
        """The last operation before ``number`` that has a storage, of the step before, if it lasts;
        infinity for none."""
        count, uses = len(self.functions), self.uses[slot]
        begin = number // count * count
        at = bisect_left(uses, number - begin)
        if at:
            return begin + uses[at - 1]
        return begin + uses[-1] - count if self.lasts(slot) else inf

    @cached_property
    def planner(self) -> Planner:
        """Of the step's profile, in which all that an operation has goes past the cache."""
        begins = {0, *self.visits}
        stages, ops = -1, []
        for number, (slots, made) in enumerate(zip(self.slots, self.made, strict=True)):
            stages += number in begins
            reads = tuple(dict.fromkeys(slots + made))
            ops.append(
                Op(
                    id=number,
                    kind="",
                    layer=0,
                    phase="forward",
                    stage=stages,
                    reads=reads,
                    writes=(),
                    read_bytes=tuple(map(self.nbytes.__getitem__, reads)),
                    write_bytes=(),
                    flops=0,
                )
            )
        tensors = tuple(
            Tensor(
                id=slot,
                nbytes=nbytes,
                kind="input" if self.lasts(slot) else "activation",
                allocated=self.born.get(slot, 0),
                freed=self.freed.get(slot),
            )
            for slot, nbytes in enumerate(self.nbytes)
        )
        names = tuple(Stage(name=f"visit {each}", phase="forward") for each in range(stages + 1))
        step = Trace(name="step", tensors=tensors, ops=tuple(ops), layers=("",), stages=names)
        return Planner(StepProfile(step=step), Settings())

    def plans(self, fast_bytes: int, step_ns: int, bytes_per_s: float) -> list[Plan]:
        """Those to be tried, for a step that takes ``step_ns`` when nothing is waited for."""
        lengths = self.planner.lengths_left(fast_bytes, step_ns, bytes_per_s)
        plans = [self._in_intervals(layers) for layers in lengths]
        return [self._as_there_is_room(fast_bytes), *plans]

    def _in_intervals(self, layers: int) -> Plan:
        schedule = self.planner.schedule(layers, frozenset())
        asks: dict[int, list[Ask]] = {}
        begins = list(schedule.begins)
        for (begin, end), asked in zip(
            pairwise([*begins, len(self.functions)]), schedule.asked, strict=True
        ):
            for slot in asked:
                if self.next_use(slot, begin) < end:
                    continue  # it comes for this one
                stays = schedule.stays.get((slot, schedule.begins[begin]), 0)
                beside = max(stays - self.planner.pool_bytes[begin], 0)
                use = int(self.next_use(slot, end))
                asks.setdefault(begin, []).append(Ask(use, slot, beside))
        name = f"intervals of {layers} layer{'s' * (layers > 1)}"
        return Plan(name=name, leaving=schedule.leaving, asks=asks)

    def _as_there_is_room(self, fast_bytes: int) -> Plan:
        """What is used last leaves for what has no room, and what comes next comes as soon as all
        until then has room beside what lives short."""
        asks: dict[int, list[Ask]] = {}
        count, ahead = len(self.functions), 0
        for number, end in enumerate(self._windows(fast_bytes)):
            for use in range(max(ahead, number + 1), end):
                for slot in self.slots[use % count]:
                    if self.last_use(slot, use) < number:
                        asks.setdefault(number, []).append(Ask(use, slot))
            ahead = max(ahead, end)
        return Plan(name="as there is room", leaving=self._leaving(fast_bytes), asks=asks)

    def _leaving(self, fast_bytes: int) -> dict[int, list[int]]:
        there: set[int] = set()
        total, after = 0, {}
        ends: dict[int, list[int]] = {}
        for slot, number in self.freed.items():
            ends.setdefault(number, []).append(slot)
        for again in range(2):  # the second begins with what the first ends with
            for number, slots in enumerate(self.slots):
                for slot in there.intersection(ends.get(number, ())):
                    there.remove(slot)
                    total -= self.nbytes[slot]
                have = {*slots, *self.made[number]}
                total += sum(self.nbytes[slot] for slot in have - there)
                there |= have
                while total > fast_bytes and (rest := there - have):
                    victim = max(rest, key=lambda slot: (self.next_use(slot, number), slot))
                    there.remove(victim)
                    total -= self.nbytes[victim]
                    uses = self.uses[victim]
                    last = bisect_left(uses, number) - 1
                    if again and last >= 0:
                        after.setdefault(uses[last], []).append(victim)
            there = {slot for slot in there if slot not in self.born}
            total = sum(self.nbytes[slot] for slot in there)
        return after

    def _windows(self, fast_bytes: int) -> list[int]:
        """By operation how far what comes next has room, all of it, beside what lives short."""
        count, short = len(self.functions), self.planner.pooled
        touched = [
            [slot for slot in {*slots, *made} if slot not in short]
            for slots, made in zip(self.slots, self.made, strict=True)
        ]
        room_bytes = fast_bytes - max(self.planner.pool_bytes)
        inside: Counter[int] = Counter()
        total, end, windows = 0, 0, []
        for number in range(count):
            while end < number + count:
                new = [slot for slot in touched[end % count] if not inside[slot]]
                more = sum(self.nbytes[slot] for slot in new)
                if total + more > room_bytes and end > number:
                    break
                total += more
                inside.update(touched[end % count])
                end += 1
            windows.append(end)
            inside.subtract(touched[number])
            total -= sum(self.nbytes[slot] for slot in touched[number] if not inside[slot])
        return windows
