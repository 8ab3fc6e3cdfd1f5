"""Sentinel's policy: a pool for short-lived tensors, and moves by intervals for the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sw_driver.workload.trace import Op, Tensor, Trace

from ..clock import EngineEvent, ProcessSteps
from ..engine import Engine
from ..placing import FAST, SLOW, MoveQueue, Placing

__all__ = ["MigrationSchedule", "Sentinel"]


@dataclass(frozen=True, kw_only=True)
class MigrationSchedule:
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
    stay_uses: Mapping[int, tuple[int, ...]]
    """Operations that access each new tensor before it leaves fast memory."""
    waits: frozenset[int]
    """Intervals that wait at their start for moves that had too little time (case 3).

    At other intervals, a late tensor is used where it is.
    """


class Sentinel(Placing):
    """Runs a schedule.

    A new tensor without room waits for those that leave, if that is predicted to take less time
    than its accesses in slow memory would; else it goes there.
    In the last step, interval ``trial`` does the opposite in case 3.
    """

    def __init__(
        self,
        engine: Engine,
        trace: Trace,
        step: Trace,
        schedule: MigrationSchedule,
        trial: int | None = None,
    ) -> None:
        self.schedule, self.trial = schedule, trial
        super().__init__(engine, trace, step)
        self.interval = 0
        self.pool_bytes = 0
        """Bytes that the pool has now."""
        self.coming, self.leaving = MoveQueue(self, FAST), MoveQueue(self, SLOW)
        self.kept: dict[int, int] = {}
        """Bytes for which room is kept, by new tensor of the next operation."""
        out, into = (
            min(link.rate(writing=writing) for link, writing in engine.machine.route(*ends))
            for ends in ((FAST, SLOW), (SLOW, FAST))
        )
        self._leave_ns, self._slow_ns = 1e9 / out, 1e9 / into
        """Time in ns for a byte to leave, and of an access of a byte in slow memory."""
        self.cases: list[tuple[list[int], list[int], list[int]]] = []
        """Intervals that began in case 1, 2 and 3, for each step."""

    def begin(self, op: Op) -> Iterable[EngineEvent]:
        first = op.id % len(self.step.ops)
        if first in self.schedule.begins:
            return [self.engine.process(self._begin(op), f"begin of operation {op.id}")]
        self._resize(first)
        self._keep(op)
        if self._lacks_bytes() <= 0:
            return ()
        return [self.engine.process(self._make_room(), f"room for operation {op.id}")]

    def after(self, op: Op) -> None:
        super().after(op)
        for tensor in self.schedule.leaving.get(op.id % len(self.step.ops), ()):
            self.leaving.ask(self.now(tensor))

    def allocate(self, tensor: Tensor) -> str:
        if self.base(tensor.id) in self.schedule.pooled:
            return ""
        place = super().allocate(tensor)
        self.kept.pop(tensor.id, None)
        return place

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
        kept = sum(self.kept.values()) - self.kept.get(tensor, 0)
        return self.fast.free_bytes - max(stays - self.pool_bytes, 0) - kept

    def _begin(self, op: Op) -> ProcessSteps:
        schedule, coming, first = self.schedule, self.coming, op.id % len(self.step.ops)
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
        self._keep(op)
        for tensor in schedule.prefetched[interval]:
            if self.room(self.now(tensor)) >= 0:
                self.leaving.forget(self.now(tensor))
            coming.ask(self.now(tensor))
        yield from self._make_room()

    def _keep(self, op: Op) -> None:
        """Keep room for the new tensors of an operation."""
        self.kept = {
            tensor.id: self.nbytes(tensor.id)
            for tensor in self.born.get(op.id, ())
            if (self.base(tensor.id), self.interval) in self.schedule.stays
        }

    def _lacks_bytes(self) -> int:
        """Return the bytes that must leave before all new tensors have room."""
        return max((nbytes - self.room(new) for new, nbytes in self.kept.items()), default=0)

    def _make_room(self) -> ProcessSteps:
        """Wait while new tensors lack room, or give up if slow memory is predicted to be faster."""
        leaving, gain_ns = self.leaving, sum(map(self._gain_ns, self.kept))
        while (lacks := self._lacks_bytes()) > 0:
            # The first has begun to leave already.
            wait_ns: float = sum(
                self._begun_ns(tensor) - self.engine.now_ns for tensor in leaving.moving
            )
            for tensor in (*leaving.moving, *leaving.waiting):
                if lacks > 0:
                    lacks -= self.nbytes(tensor)
                    wait_ns += self.nbytes(tensor) * self._leave_ns
            if lacks > 0 or wait_ns > gain_ns or not leaving.moving:
                self.kept.clear()
                self.fast.changed()
                return
            yield next(iter(leaving.moving.values()))

    def _begun_ns(self, tensor: int) -> int:
        """Return the time at which the last move of a tensor began, in ns."""
        base = self.base(tensor)
        return next(at_ns for at_ns, moved, _ in reversed(self.begun) if moved == base)

    def _gain_ns(self, new: int) -> float:
        """Return the time in ns that a new tensor's accesses would take longer in slow memory."""
        device, tensor, gain_ns = self.engine.machine.devices[0], self.base(new), 0.0
        byte_ns = 1 / device.gb_per_s.value
        for number in self.schedule.stay_uses[tensor]:
            op = self.step.ops[number]
            accesses = zip(op.reads + op.writes, op.read_bytes + op.write_bytes, strict=True)
            own_bytes = sum(nbytes for other, nbytes in accesses if other == tensor)
            compute_ns, fast_ns = device.compute_ns(op), op.nbytes * byte_ns
            slow_ns = fast_ns + own_bytes * (self._slow_ns - byte_ns)
            gain_ns += max(compute_ns, slow_ns) - max(compute_ns, fast_ns)
        return gain_ns

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
