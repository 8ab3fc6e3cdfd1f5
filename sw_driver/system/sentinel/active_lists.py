"""IAL: migration by the kernel's lists of active and inactive pages.

After Yan et al., *Nimble Page Management for Tiered Memory Systems* (ASPLOS 2019), which the paper
compares itself with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from statistics import mean

from sw_driver.machine import Machine
from sw_driver.workload.trace import Op, Tensor, Trace

from ..clock import EngineEvent
from ..engine import Engine
from ..placing import FAST, SLOW, MoveQueue, Placing, run
from .profiling import PAGE_BYTES, original

__all__ = ["AT_ONCE", "BLOCK_BYTES", "PERIOD_NS", "ActiveLists", "active_lists", "in_blocks"]

BLOCK_BYTES = 2 << 20
"""Bytes of a huge page, the unit of migration of Yan et al."""
PERIOD_NS = 5_000_000_000
"""Time between two migrations of Yan et al., and of the paper, in ns."""
AT_ONCE = 8
"""Concurrent migrations (section 6.1).

The four copying threads are assumed to be as fast as the link and the memories.
"""
_PERIODS = 6


class ActiveLists(Placing):
    """Policy that migrates once in each period.

    The units are the tensors of the trace, which may be blocks of memory (:func:`in_blocks`). New
    ones go to the fast memory while there is room, and are active.

    Each memory has two lists, first in, first out. A period looks at the older half of each list.
    An inactive unit becomes active if it was accessed since the last look at it, and also in the
    interval before that. All active units in the older half become inactive. Then all active units
    of the slow memory move to the fast one, the oldest first. They move while there is room, or
    inactive units there make room.
    """

    def __init__(
        self,
        engine: Engine,
        trace: Trace,
        step: Trace,
        *,
        period_ns: int,
        every_steps: int = 0,
        at_once: int = AT_ONCE,
    ) -> None:
        """Create the policy of a trace.

        With ``every_steps``, a period is that many steps. ``at_once`` is the number of concurrent
        migrations.
        """
        self.period_ns, self.every_steps = period_ns, every_steps
        self.due_ns = period_ns
        self.active: dict[int, None] = {}
        self.inactive: dict[int, None] = {}
        """Units of both memories, the oldest first."""
        self.accessed: set[int] = set()
        """Units accessed since the last look at them."""
        self.referenced: set[int] = set()
        """Units that were accessed before the last look at them."""
        super().__init__(engine, trace, step)
        self.up, self.down = MoveQueue(self, FAST, at_once), MoveQueue(self, SLOW, at_once)

    def begins(self, tensor: Tensor) -> str:
        return self.allocate(tensor)

    def allocate(self, tensor: Tensor) -> str:
        self.active[tensor.id] = None
        return super().allocate(tensor)

    def release(self, tensor: Tensor) -> None:
        self.active.pop(tensor.id, None)
        self.inactive.pop(tensor.id, None)
        super().release(tensor)

    def begin(self, op: Op) -> Iterable[EngineEvent]:
        if self.every_steps:
            due = op.id % (self.every_steps * len(self.step.ops)) == 0
        else:
            due = self.engine.now_ns >= self.due_ns
        if due:
            self.due_ns = self.engine.now_ns + self.period_ns
            self.up.drop()
            self.down.drop()
            self._age(SLOW)
            self._age(FAST)
            self._migrate()
        self.accessed.update(op.reads, op.writes)
        return ()

    def placed(self, tensors: Iterable[int], memory: str) -> list[int]:
        """Return the tensors that are in a memory."""
        return [tensor for tensor in tensors if self.where(tensor) == memory]

    def _age(self, memory: str) -> None:
        inactive = self.placed(self.inactive, memory)
        for tensor in inactive[: len(inactive) // 2]:
            del self.inactive[tensor]
            hot = tensor in self.accessed and tensor in self.referenced
            (self.active if hot else self.inactive)[tensor] = None
            (self.referenced.add if tensor in self.accessed else self.referenced.discard)(tensor)
            self.accessed.discard(tensor)
        active = self.placed(self.active, memory)
        for tensor in active[: len(active) // 2]:
            del self.active[tensor]
            self.inactive[tensor] = None
            self.accessed.discard(tensor)

    def _migrate(self) -> None:
        hot, room = self.placed(self.active, SLOW), self.fast.free_bytes
        wanted = min(sum(map(self.nbytes, hot)), self.fast.capacity_bytes)
        for tensor in self.placed(self.inactive, FAST):
            if room >= wanted:
                break
            room += self.nbytes(tensor)
            self._move(tensor, self.inactive, self.down)
        for tensor in hot:
            room -= self.nbytes(tensor)
            if room < 0:
                break
            self._move(tensor, self.active, self.up)

    def _move(self, tensor: int, own: dict[int, None], queue: MoveQueue) -> None:
        own[tensor] = own.pop(tensor)  # now the newest
        queue.ask(tensor)


def active_lists(
    step: Trace, machine: Machine, period_ns: int, slow_ns: int, at_once: int = AT_ONCE
) -> float:
    """Return the ns of a step, on average over the last of several periods.

    ``slow_ns`` is the time of a step without fast memory. Of a period of several steps, two are
    simulated: the step that migrates and the next. The other steps are like the latter, as nothing
    moves any more and each step leaves the memories as it found them.
    """
    alike = max(period_ns // slow_ns - 1, 0)
    every_steps = 2 if alike else 0
    outcome = run(
        machine,
        step,
        partial(ActiveLists, period_ns=period_ns, every_steps=every_steps, at_once=at_once),
        steps=_PERIODS * (every_steps or 1),
    )

    last = outcome.steps_ns[len(outcome.steps_ns) // 2 :]
    if not alike:
        return mean(last)
    return mean(last[::2]) / (1 + alike) + mean(last[1::2]) * alike / (1 + alike)


def in_blocks(step: Trace, block_bytes: int = BLOCK_BYTES) -> Trace:
    """Return the step with memory blocks in place of tensors.

    The blocks exist all the time. An access of a tensor becomes accesses of the blocks that its
    pages are in (:func:`~.profiling.original`).
    """
    layout, length = original(step), block_bytes // PAGE_BYTES
    parts: list[list[tuple[int, float]]] = []
    """Blocks of each tensor, with the share of the tensor up to the end of each."""
    for pages in layout:
        numbers = range(pages.start // length, -(-pages.stop // length))
        ends = [min((block + 1) * length, pages.stop) - pages.start for block in numbers]
        parts.append([(n, end / len(pages)) for n, end in zip(numbers, ends, strict=True)])
    blocks = range(-(-max(pages.stop for pages in layout) // length))
    return replace(
        step,
        tensors=tuple(Tensor(id=n, nbytes=block_bytes, kind="input") for n in blocks),
        ops=tuple(replace(op, **_of_blocks(op, parts)) for op in step.ops),
    )


def _of_blocks(op: Op, parts: list[list[tuple[int, float]]]) -> dict[str, tuple[int, ...]]:
    changed = {}
    for name in ("read", "write"):
        accessed: dict[int, int] = {}
        accesses = zip(getattr(op, f"{name}s"), getattr(op, f"{name}_bytes"), strict=True)
        for tensor, nbytes in accesses:
            before = 0
            for block, share in parts[tensor]:
                until = round(nbytes * share)
                accessed[block] = accessed.get(block, 0) + until - before
                before = until
        changed[f"{name}s"], changed[f"{name}_bytes"] = tuple(accessed), tuple(accessed.values())
    return changed
