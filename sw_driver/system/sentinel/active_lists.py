"""Who migrates by the kernel's lists of active and inactive pages: IAL, after Yan et al., *Nimble
Page Management for Tiered Memory Systems* (ASPLOS 2019), with which the paper compares itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from statistics import mean

from sw_driver.machine import Machine
from sw_driver.workload.trace import Op, Tensor, Trace

from ..clock import Event
from ..engine import Engine
from ..placing import FAST, SLOW, Lane, Placing, run
from .profiling import PAGE_BYTES, original

__all__ = ["AT_ONCE", "BLOCK_BYTES", "PERIOD_NS", "ActiveLists", "active_lists", "in_blocks"]

BLOCK_BYTES = 2 << 20
"""A huge page, as Yan et al. migrate them."""
PERIOD_NS = 5_000_000_000
"""After so long they optimize where pages are, and so does the paper."""
AT_ONCE = 8
"""So many migrations (section 6.1). The four threads that copy are taken to be as fast as the link
and the memories."""
_PERIODS = 6


class ActiveLists(Placing):
    """Migrates each period. The units are the tensors of the trace, which may be blocks of memory
    (:func:`in_blocks`); new ones go to the fast memory while there is room, and are active.

    Each memory has two lists, first in, first out. A period looks at the older half of each: of the
    inactive, who was accessed since it was looked at before, and the time before that, too, is
    active; of the active, all become inactive. Then all the active of the slow memory are to come
    to the fast one, the oldest first, as far as there is room or the inactive there make it.
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
        """With ``every_steps`` a period is so many steps instead. So many migrate ``at_once``."""
        self.period_ns, self.every_steps = period_ns, every_steps
        self.due_ns = period_ns
        self.active: dict[int, None] = {}
        self.inactive: dict[int, None] = {}
        """Those of both memories, the oldest first."""
        self.accessed: set[int] = set()
        """Since they were looked at."""
        self.referenced: set[int] = set()
        """Who was accessed when they were."""
        super().__init__(engine, trace, step)
        self.up, self.down = Lane(self, FAST, at_once), Lane(self, SLOW, at_once)

    def begins(self, tensor: Tensor) -> str:
        return self.allocate(tensor)

    def allocate(self, tensor: Tensor) -> str:
        self.active[tensor.id] = None
        return super().allocate(tensor)

    def release(self, tensor: Tensor) -> None:
        self.active.pop(tensor.id, None)
        self.inactive.pop(tensor.id, None)
        super().release(tensor)

    def begin(self, op: Op) -> Iterable[Event]:
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

    def of(self, tensors: Iterable[int], memory: str) -> list[int]:
        """Those that are in a memory."""
        return [each for each in tensors if self.where(each) == memory]

    def _age(self, memory: str) -> None:
        inactive = self.of(self.inactive, memory)
        for each in inactive[: len(inactive) // 2]:
            del self.inactive[each]
            hot = each in self.accessed and each in self.referenced
            (self.active if hot else self.inactive)[each] = None
            (self.referenced.add if each in self.accessed else self.referenced.discard)(each)
            self.accessed.discard(each)
        active = self.of(self.active, memory)
        for each in active[: len(active) // 2]:
            del self.active[each]
            self.inactive[each] = None
            self.accessed.discard(each)

    def _migrate(self) -> None:
        hot, room = self.of(self.active, SLOW), self.fast.free_bytes
        wanted = min(sum(map(self.nbytes, hot)), self.fast.capacity_bytes)
        for each in self.of(self.inactive, FAST):
            if room >= wanted:
                break
            room += self.nbytes(each)
            self._move(each, self.inactive, self.down)
        for each in hot:
            room -= self.nbytes(each)
            if room < 0:
                break
            self._move(each, self.active, self.up)

    def _move(self, tensor: int, own: dict[int, None], lane: Lane) -> None:
        own[tensor] = own.pop(tensor)  # the newest
        lane.ask(tensor)


def active_lists(
    step: Trace, machine: Machine, period_ns: int, slow_ns: int, at_once: int = AT_ONCE
) -> float:
    """Return what a step takes in ns, on average over the last of several periods. ``slow_ns`` is
    what a step takes without fast memory.

    Of a period of several steps two are simulated, that in which it migrates and the next: the rest
    are as that, as nothing moves any more, and what a step leaves is what it found.
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
    """The step, whose tensors are blocks of memory that are there all the time. What it accesses of
    a tensor it accesses of the blocks that this is in, by its pages (:func:`~.pages.original`)."""
    layout, length = original(step), block_bytes // PAGE_BYTES
    parts: list[list[tuple[int, float]]] = []
    """For each tensor its blocks, and what of it is in these and those before."""
    for pages in layout:
        numbers = range(pages.start // length, -(-pages.stop // length))
        ends = [min((each + 1) * length, pages.stop) - pages.start for each in numbers]
        parts.append([(n, end / len(pages)) for n, end in zip(numbers, ends, strict=True)])
    blocks = range(-(-max(each.stop for each in layout) // length))
    return replace(
        step,
        tensors=tuple(Tensor(id=n, nbytes=block_bytes, kind="input") for n in blocks),
        ops=tuple(replace(op, **_of_blocks(op, parts)) for op in step.ops),
    )


def _of_blocks(op: Op, parts: list[list[tuple[int, float]]]) -> dict[str, tuple[int, ...]]:
    changed = {}
    for name in ("read", "write"):
        found: dict[int, int] = {}
        accesses = zip(getattr(op, f"{name}s"), getattr(op, f"{name}_bytes"), strict=True)
        for tensor, nbytes in accesses:
            before = 0
            for block, share in parts[tensor]:
                until = round(nbytes * share)
                found[block] = found.get(block, 0) + until - before
                before = until
        changed[f"{name}s"], changed[f"{name}_bytes"] = tuple(found), tuple(found.values())
    return changed
