"""Sentinel's policy: a pool for short-lived tensors, and moves by intervals for the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sw_driver.workload.trace import Op, Tensor, Trace

from ..clock import EngineEvent, ProcessSteps
from ..engine import Engine
from ..placing import FAST, SLOW, MoveQueue, Placing

__all__ = ["Schedule", "Sentinel"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Moves of a step that is cut into intervals; tensors and operations are by id."""

    interval_layers: int
    begins: Mapping[int, int]
    """Number of each interval, by its first operation."""
    prefetched: tuple[tuple[int, ...], ...]
    """Tensors to move to fast memory at the start of each interval, for the next; by first use."""
    leaving: Mapping[int, tuple[int, ...]]
    """Tensors that leave fast memory after an operation, by operation."""
    pooled: frozenset[int]
    """Tensors that are in the pool."""
    pool_bytes: tuple[int, ...]
    """Peak of the pool from each operation to the end of its interval."""
    nbytes: tuple[int, ...]
    """Bytes that each tensor takes, and moves."""
    stays: Mapping[tuple[int, int], int]
    """Peak of the pool in later intervals while a tensor stays, by tensor and interval of its move.

    The tensor may move to fast memory in no other interval.
    """
    waits: frozenset[int]
    """Intervals that wait at their start for moves that had too little time (case 3).

    At other intervals, a late tensor is used where it is.
    """


class Sentinel(Placing):
    """Runs a schedule.

    In the last step, interval ``trial`` does the opposite in case 3.
    """

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
        """Bytes that the pool has now."""
        self.coming, self.leaving = MoveQueue(self, FAST), MoveQueue(self, SLOW)
        self.cases: list[tuple[list[int], list[int], list[int]]] = []
        """Intervals that began in case 1, 2 and 3, for each step."""

    def begin(self, op: Op) -> Iterable[EngineEvent]:
        first = op.id % len(self.step.ops)
        if first in self.schedule.begins:
            return [self.engine.process(self._begin(first), f"begin of operation {op.id}")]
        self._resize(first)
        return ()

    def after(self, op: Op) -> None:
        super().after(op)
        for tensor in self.schedule.leaving.get(op.id % len(self.step.ops), ()):
            self.leaving.ask(self.now(tensor))

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
        """Return the bytes free beside all that the pool will take while the tensor stays."""
        stays = self.schedule.stays.get((self.base(tensor), self.interval))
        if stays is None:
            return -1
        return self.fast.free_bytes - max(stays - self.pool_bytes, 0)

    def _begin(self, first: int) -> ProcessSteps:
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
        for tensor in schedule.prefetched[interval]:
            if self.room(self.now(tensor)) >= 0:
                self.leaving.forget(self.now(tensor))
            coming.ask(self.now(tensor))

    def _unfinished(self, interval: int) -> bool:
        """Return whether tensors requested at the start of the interval before have not arrived."""
        due, coming = self.schedule.prefetched[interval - 1], self.coming
        return bool(coming.waiting) or any(self.base(tensor) in due for tensor in coming.moving)

    def _resize(self, op: int) -> None:
        nbytes = self.schedule.pool_bytes[op]
        if nbytes != self.pool_bytes:
            if self.pool_bytes:
                self.fast.give("pool")
            if nbytes:
                self.fast.take("pool", nbytes)
            self.pool_bytes = nbytes
