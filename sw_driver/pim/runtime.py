"""The paper's runtime (III-C): where each operation of a training step runs, decided when all that
it depends on has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

from sw_driver.device.clock import Steps
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.numbers import check_name, listed

from .opencl import Access, CommandQueue, Context, Event, Kernel, Place

__all__ = ["PRINCIPLES", "Scheduler"]

PRINCIPLES = "literal", "earliest"

_LAUNCH_CYCLES, _BEAT_BYTES = 300, 32
"""Of a work that the pools have, and what the host's port moves in a cycle; for what has not run
yet."""
_CORE_CYCLES, _BYTE_CYCLES, _RESULT_CYCLES, _OPERATION_CYCLES = 2000, 8, 150, 37
"""Of a kernel on a core, of each byte that it uses (3 for relu to 40 for softmax), and of results
and operations of works that it computes itself; measured in RTL."""


class Scheduler(CommandQueue):
    """Commands that depend on each other as what they read and write says, for whichever device.

    Kernels whose names are candidates go to the pools if they can, else to a core, else to the
    host; all others to the host. One that the host does not have goes to a core, the one that is
    free first. By the principle ``literal`` one that finds the pools and all
    cores busy goes to the host (the paper's second principle as it is written); by ``earliest`` it
    goes where it ends first, to the first of equals, from what it took there the last time.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for candidates that are no names
    of the context's kernels, which have to be made before it.
    """

    def __init__(
        self,
        context: Context,
        candidates: Sequence[str],
        *,
        principle: Literal["literal", "earliest"] = "earliest",
    ) -> None:
        super().__init__(context, "cpu")
        self._devices = list(context.platform.devices)
        check_name("principle", principle, PRINCIPLES)
        names = listed("candidates", candidates, "a list of names of kernels, such as ['relu']")
        if names and not context.kernel_names:
            raise InvalidArgumentError(
                f"candidates are {list(names)}, and the context has no kernels: make them first"
            )
        for name in names:
            check_name("a candidate", name, sorted(context.kernel_names))
        self.candidates = frozenset(names)
        self.principle = principle
        self._took: dict[tuple[str, str], int] = {}
        """Cycles of a kernel, by its name, on a device, the last time."""
        self._free_at = dict.fromkeys(context.places, 0)
        """The cycle at which a place is expected to be done with what it was given."""
        self._pending: list[tuple[Event, Sequence[Access]]] = []

    def finish(self) -> None:
        """Lets time pass until all that was queued has ended, and raises the first failure."""
        pending, self._pending = self._pending, []
        for event, _ in pending:
            with suppress(Exception):
                event.wait()
        for event, _ in pending:
            event.wait()

    def recover(self) -> BaseException | None:
        """Forget the failed commands, of which the first one's error is returned: what is queued
        from now on does not depend on them."""
        failed = [event for event, _ in self._pending if event.failed]
        self._pending = [each for each in self._pending if not each[0].failed]
        return failed[0].error if failed else None

    def _begin(self, event: Event, accesses: Sequence[Access], steps: Callable[[], Steps]) -> None:
        self._pending = [each for each in self._pending if not each[0].over or each[0].failed]
        before = [each for each, others in self._pending if _meet(accesses, others)]
        self._pending.append((event, accesses))

        def ordered() -> Steps:
            for each in before:
                yield each
                each.outcome()
            return (yield from steps())

        self.context.domain.clock.begin_now(event, ordered())

    def _run(self, kernel: Kernel, event: Event) -> Steps:
        place = yield from self._choose(kernel)
        yield from self.context.run(kernel, place, event)
        self._took[kernel.name, place.device] = self.context.domain.now - event.running

    def _choose(self, kernel: Kernel) -> Steps:
        can = [place for place in self.context.places if place.device in kernel.devices]
        if kernel.name not in self.candidates:
            can = [place for place in can if place.device == "cpu"] or can
        idle = yield from self.context.pim.idle_steps()
        now, banks = self.context.domain.now, (1 << self.context.pim.config.banks) - 1
        for place, free_at in self._free_at.items():
            is_free = idle & banks if place.device == "pools" else place.over
            self._free_at[place] = now if is_free else max(now + 1, free_at)
        ends = {place: self._free_at[place] + self._cycles(kernel, place) for place in can}
        if self.principle == "literal":
            busy = can[-1] if can[-1].device == "cpu" else min(can, key=self._free_at.__getitem__)
            place = next((each for each in can if self._free_at[each] <= now), busy)
        else:
            place = min(can, key=lambda each: ends[each])
        self._free_at[place] = ends[place]
        return place

    def _cycles(self, kernel: Kernel, place: Place) -> int:
        """What a kernel took there the last time, or is expected to take."""
        device, context = place.device, self.context
        if (kernel.name, device) in self._took:
            return self._took[kernel.name, device]
        if device == "cpu":
            computing = context.cpu_ns(kernel) / (context.cycle_ns or 1)
            return int(computing) + kernel.nbytes // _BEAT_BYTES
        by_pools = kernel.operations // context.pim.config.units + _LAUNCH_CYCLES
        if device == "pools":
            return by_pools
        if kernel.command is not None:
            return _CORE_CYCLES + by_pools * bool(kernel.works) + _BYTE_CYCLES * kernel.nbytes
        results = sum(work.results for work in kernel.works)
        return _CORE_CYCLES + _RESULT_CYCLES * results + _OPERATION_CYCLES * kernel.operations


def _meet(one: Sequence[Access], other: Sequence[Access]) -> bool:
    """Whether one writes what the other uses."""
    return any(
        a.span.start < b.span.stop and b.span.start < a.span.stop
        for a in one
        for b in other
        if a.writes or b.writes
    )
