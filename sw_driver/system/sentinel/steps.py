"""Record of a program's step, and plans to try in later steps like it.

A plan names the storages that leave after an operation, and those that come before one. Nothing
computes in slow memory here: a storage that is late comes at its use.
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

__all__ = ["Ask", "MigrationPlan", "StepRecord"]


class Ask(NamedTuple):
    """A storage to fetch."""

    use: int
    """Operation that it is fetched for; numbers go on into the next step."""
    slot: int
    beside_bytes: int = 0
    """Bytes that must be free beside it."""


@dataclass(frozen=True, kw_only=True)
class MigrationPlan:
    """Moves in a step; storages are by their numbers in the step."""

    name: str
    leaving: Mapping[int, Sequence[int]]
    """Storages that leave after an operation, by operation."""
    asks: Mapping[int, Sequence[Ask]]
    """Storages to fetch from the start of an operation on, in this order, by operation."""


@dataclass(eq=False)
class StepRecord:
    """Record of a step; storages are numbered as they appear."""

    functions: list[Any] = field(default_factory=list)
    """Function of each operation."""
    slots: list[tuple[int, ...]] = field(default_factory=list)
    """Storages that each operation used."""
    made: list[tuple[int, ...]] = field(default_factory=list)
    """Storages that each operation created."""
    nbytes: list[int] = field(default_factory=list)
    """Bytes of each storage."""
    born: dict[int, int] = field(default_factory=dict)
    """Operation that created a storage, if it was in this step."""
    freed: dict[int, int] = field(default_factory=dict)
    """First operation without a storage that was freed in the step."""
    visits: list[int] = field(default_factory=list)
    """First operation of each layer, in each pass."""

    @cached_property
    def uses(self) -> list[list[int]]:
        """Operations that used or created each storage."""
        uses: list[list[int]] = [[] for _ in self.nbytes]
        for number, slots in enumerate(zip(self.slots, self.made, strict=True)):
            for slot in dict.fromkeys(slots[0] + slots[1]):
                uses[slot].append(number)
        return uses

    @cached_property
    def made_bytes(self) -> list[int]:
        """Bytes that each operation created."""
        return [sum(self.nbytes[slot] for slot in made) for made in self.made]

    def is_like(self, other: StepRecord, number: int) -> bool:
        """Return whether operation ``number`` of another step is the same as here."""
        return (
            number < len(self.functions)
            and self.functions[number] is other.functions[number]
            and self.slots[number] == other.slots[number]
            and all(self.nbytes[slot] == other.nbytes[slot] for slot in self.slots[number])
        )

    def begins_like(self, other: StepRecord) -> bool:
        """Return whether another step is the same up to its last operation."""
        return all(self.is_like(other, number) for number in range(len(other.functions)))

    def begin(self, number: int, *, without_results: bool = False) -> StepRecord:
        """Return a record of the operations before ``number``, for a step that goes on otherwise.

        The last of them has no results ``without_results``.
        """
        slots, made = self.slots[:number], self.made[:number]
        if made and without_results:
            made[-1] = ()
        seen = {slot for some in (*slots, *made) for slot in some}
        count = max(seen, default=-1) + 1
        return StepRecord(
            functions=self.functions[:number],
            slots=slots,
            made=made,
            nbytes=self.nbytes[:count],
            born={slot: at for slot, at in self.born.items() if slot < count},
            freed={slot: at for slot, at in self.freed.items() if slot < count and at <= number},
            visits=[at for at in self.visits if at < number],
        )

    def lasts(self, slot: int) -> bool:
        """Return whether a storage exists before the step and after it."""
        return slot not in self.born and slot not in self.freed

    def next_use(self, slot: int, number: int) -> float:
        """Return the first operation from ``number`` on that uses a storage, infinity for none.

        For a lasting storage, it may be in the next step.
        """
        uses = self.uses[slot]
        at = bisect_left(uses, number)
        if at < len(uses):
            return uses[at]
        return uses[0] + len(self.functions) if uses and self.lasts(slot) else inf

    def last_use(self, slot: int, number: int) -> float:
        """Return the last operation before ``number`` that uses a storage, infinity for none.

        For a lasting storage, it may be in the step before.
        """
        count, uses = len(self.functions), self.uses[slot]
        begin = number // count * count
        at = bisect_left(uses, number - begin)
        if at:
            return begin + uses[at - 1]
        return begin + uses[-1] - count if self.lasts(slot) else inf

    @cached_property
    def planner(self) -> Planner:
        """Planner of the step's profile, in which all accesses go past the cache."""
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
        names = tuple(
            Stage(name=f"visit {number}", phase="forward") for number in range(stages + 1)
        )
        step = Trace(name="step", tensors=tensors, ops=tuple(ops), layers=("",), stages=names)
        return Planner(StepProfile(step=step), Settings())

    def plans(self, fast_bytes: int, step_ns: int, bytes_per_s: float) -> list[MigrationPlan]:
        """Return the plans to try, for a step that takes ``step_ns`` without waiting."""
        lengths = self.planner.lengths_left(fast_bytes, step_ns, bytes_per_s)
        plans = [self._in_intervals(layers) for layers in lengths]
        return [self._as_there_is_room(fast_bytes), *plans]

    def _in_intervals(self, layers: int) -> MigrationPlan:
        schedule = self.planner.schedule(layers, frozenset())
        asks: dict[int, list[Ask]] = {}
        begins = list(schedule.begins)
        for (begin, end), prefetched in zip(
            pairwise([*begins, len(self.functions)]), schedule.prefetched, strict=True
        ):
            for slot in prefetched:
                if self.next_use(slot, begin) < end:
                    continue  # it is fetched for this interval
                stays = schedule.stays.get((slot, schedule.begins[begin]), 0)
                beside = max(stays - self.planner.pool_bytes[begin], 0)
                use = int(self.next_use(slot, end))
                asks.setdefault(begin, []).append(Ask(use, slot, beside))
        name = f"intervals of {layers} layer{'s' * (layers > 1)}"
        return MigrationPlan(name=name, leaving=schedule.leaving, asks=asks)

    def _as_there_is_room(self, fast_bytes: int) -> MigrationPlan:
        """Return a plan that evicts the storage with the farthest next use, and fetches early.

        A storage comes as soon as everything used until then has room beside short-lived storages.
        """
        asks: dict[int, list[Ask]] = {}
        count, ahead = len(self.functions), 0
        for number, end in enumerate(self._windows(fast_bytes)):
            for use in range(max(ahead, number + 1), end):
                for slot in self.slots[use % count]:
                    if self.last_use(slot, use) < number:
                        asks.setdefault(number, []).append(Ask(use, slot))
            ahead = max(ahead, end)
        return MigrationPlan(name="as there is room", leaving=self._leaving(fast_bytes), asks=asks)

    def _leaving(self, fast_bytes: int) -> dict[int, list[int]]:
        there: set[int] = set()
        total, after = 0, {}
        ends: dict[int, list[int]] = {}
        for slot, number in self.freed.items():
            ends.setdefault(number, []).append(slot)
        for again in range(2):  # the second round starts from the end state of the first
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
        """Return the operation up to which all storages have room at once, by operation.

        Short-lived storages have room beside them.
        """
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
