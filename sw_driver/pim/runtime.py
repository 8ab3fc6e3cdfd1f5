"""The paper's runtime (III-C), which chooses a device for each operation of a training step.

It chooses once everything that the operation depends on has ended.
"""

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
"""Cycles to launch works in the pools, and bytes per cycle of the host's port.

These and the next constants estimate the time of a kernel that has not run on a device yet.
"""
_CORE_CYCLES, _BYTE_CYCLES, _RESULT_CYCLES, _OPERATION_CYCLES = 2000, 8, 150, 37
"""Cycles on a core: per kernel, per byte that it uses, and per result and operation of works.

The last two are for works that the core computes itself. A byte takes 3 cycles in relu and 40 in
softmax. Measured in RTL.
"""


class Scheduler(CommandQueue):
    """A queue that chooses a device for each kernel.

    A command waits for earlier ones if one of the two writes bytes that the other uses.
    Kernels named in ``candidates`` go to the pools if they can, else to a core, else to the host.
    All other kernels go to the host. A kernel that the host lacks goes to the core that is free
    first. ``principle`` says what happens to a candidate while devices are busy:

    - ``literal``: if the pools and all cores are busy, it goes to the host (the paper's second
      principle as written).
    - ``earliest``: it goes where it is expected to end first, the first of equals. The estimate
      is the time that it took there last.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` if a candidate is not the name of
    a kernel of the context. Make the kernels before the scheduler.

    Examples
    --------
    >>> from hw.pim.config import configure
    >>> from sw_driver.pim.backends.golden import GoldenPim
    >>> from sw_driver.pim.device import Pim
    >>> from sw_driver.pim.opencl import Context, Platform
    >>> with Pim(GoldenPim(configure(preset="tiny", bank_bytes=1 << 17))) as pim:
    ...     context = Context(Platform(pim))
    ...     print(Scheduler(context, []).enqueue_read(context.buffer("x", (1, 2))).wait())
    [[0. 0.]]
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
        """Cycles that a kernel took the last time, by its name and device."""
        self._free_at = dict.fromkeys(context.places, 0)
        """Cycle in which a place is expected to have finished its kernels."""
        self._pending: list[tuple[Event, Sequence[Access]]] = []

    def finish(self) -> None:
        """Let time pass until all queued commands have ended; raise the first failure."""
        pending, self._pending = self._pending, []
        for event, _ in pending:
            with suppress(Exception):
                event.wait()
        for event, _ in pending:
            event.wait()

    def recover(self) -> BaseException | None:
        """Forget failed commands and return the error of the first; later commands can run."""
        failed = [event for event, _ in self._pending if event.failed]
        self._pending = [entry for entry in self._pending if not entry[0].failed]
        return failed[0].error if failed else None

    def _begin(self, event: Event, accesses: Sequence[Access], steps: Callable[[], Steps]) -> None:
        self._pending = [entry for entry in self._pending if not entry[0].over or entry[0].failed]
        before = [earlier for earlier, others in self._pending if _meet(accesses, others)]
        self._pending.append((event, accesses))

        def ordered() -> Steps:
            for earlier in before:
                yield earlier
                earlier.outcome()
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
            place = next((place for place in can if self._free_at[place] <= now), busy)
        else:
            place = min(can, key=ends.__getitem__)
        self._free_at[place] = ends[place]
        return place

    def _cycles(self, kernel: Kernel, place: Place) -> int:
        """Return the cycles that a kernel took at a place the last time, or an estimate."""
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
    """Return whether one command writes bytes that the other uses."""
    return any(
        a.span.start < b.span.stop and b.span.start < a.span.stop
        for a in one
        for b in other
        if a.writes or b.writes
    )
