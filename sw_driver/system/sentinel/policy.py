"""Sentinel's policy: a pool for what lives short, and moves by intervals for what lives long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sw_driver.workload.trace import Op, Tensor, Trace

from ..clock import Event, Steps
from ..engine import Engine
from ..placing import FAST, SLOW, Lane, Placing

__all__ = ["Schedule", "Sentinel"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What happens when in a step that is cut into intervals. Tensors and operations are by id."""

    interval_layers: int
    begins: Mapping[int, int]
    """The intervals, by their first operations."""
    asked: tuple[tuple[int, ...], ...]
    """By interval what is to come to fast memory at its begin, for the next; by first use."""
    leaving: Mapping[int, tuple[int, ...]]
    """By operation what is to leave fast memory after it."""
    pooled: frozenset[int]
    """Tensors that are in the pool."""
    pool_bytes: tuple[int, ...]
    """By operation the most that they take from then to the end of the interval."""
    nbytes: tuple[int, ...]
    """What each tensor takes, and moves."""
    stays: Mapping[tuple[int, int], int]
    """The most that the pool takes in later intervals in which a tensor stays in fast memory that
    comes there in an interval. It is to come there in no other."""
    waits: frozenset[int]
    """Intervals whose begin waits for what is on its way when there was no time for it (case 3);
    before others it stays where it is."""


class Sentinel(Placing):
    """Runs a schedule. In the last step, ``trial`` is an interval that does the opposite in case
    3."""

    def __init__(
        self,
        engine: Engine,
        trace: Trace,
        step: Trace,
        schedule: Schedule,
        trial: int | None = None,
    ) -> None:
        self.schedule, self.trial = schedule, trial
        super().__init__(engine, trace, step)
        self.interval = 0
        self.pool_bytes = 0
        """What the pool has now."""
        self.coming, self.leaving = Lane(self, FAST), Lane(self, SLOW)
        self.cases: list[tuple[list[int], list[int], list[int]]] = []
        """By step, for each case the intervals at whose begin it was the case."""

    def begin(self, op: Op) -> Iterable[Event]:
        first = op.id % len(self.step.ops)
        if first in self.schedule.begins:
            return [self.engine.process(self._begin(first), f"begin of operation {op.id}")]
        self._resize(first)
        return ()

    def after(self, op: Op) -> None:
        super().after(op)
        for each in self.schedule.leaving.get(op.id % len(self.step.ops), ()):
            self.leaving.ask(self.now(each))

    def allocate(self, tensor: Tensor) -> str:
        if self.base(tensor.id) in self.schedule.pooled:
            return ""
        return super().allocate(tensor)

    def release(self, tensor: Tensor) -> None:
        if self.base(tensor.id) not in self.schedule.pooled:
            super().release(tensor)

    def where(self, tensor: int) -> str:
        return FAST if self.base(tensor) in self.schedule.pooled else super().where(tensor)

    def nbytes(self, tensor: int) -> int:
        return self.schedule.nbytes[self.base(tensor)]

    def room(self, tensor: int) -> int:
        """What is free beside what the pool will take while the tensor is there."""
        stays = self.schedule.stays.get((self.base(tensor), self.interval))
        if stays is None:
            return -1
        return self.fast.free_bytes - max(stays - self.pool_bytes, 0)

    def _begin(self, first: int) -> Steps:
        schedule, coming = self.schedule, self.coming
        interval = schedule.begins[first]
        if not first:
            self.cases.append(([], [], []))
        case = 1 if not self._unfinished(interval) else 3 if coming.moving else 2
        self.cases[-1][case - 1].append(interval)
        last = self.number == self.trace.steps // self.step.steps - 1
        if (interval in schedule.waits) != (last and interval == self.trial):
            while coming.moving and self._unfinished(interval):
                yield next(iter(coming.moving.values()))
        coming.drop()
        while (lacks := schedule.pool_bytes[first] - self.pool_bytes) > self.fast.free_bytes:
            yield self.fast.change(lacks, "pool")
        self._resize(first)
        self.interval = interval
        for each in schedule.asked[interval]:
            if self.room(self.now(each)) >= 0:
                self.leaving.forget(self.now(each))
            coming.ask(self.now(each))

    def _unfinished(self, interval: int) -> bool:
        """Whether not all has come that was asked for at the begin of the one before."""
        asked, coming = self.schedule.asked[interval - 1], self.coming
        return bool(coming.waiting) or any(self.base(each) in asked for each in coming.moving)

    def _resize(self, op: int) -> None:
        nbytes = self.schedule.pool_bytes[op]
        if nbytes != self.pool_bytes:
            if self.pool_bytes:
                self.fast.give("pool")
            if nbytes:
                self.fast.take("pool", nbytes)
            self.pool_bytes = nbytes
