"""When streams that were idle begin."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..device.errors import QueueingError

__all__ = ["Block", "Gate"]

PAUSE_S = 0.05
"""Seconds without another operation queued after which a program has queued what it queues at
once."""
LONGEST_PAUSE_S = 0.5


class Block:
    """The time from the first ``queueing()`` to the end of the last one that began before that
    end."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.depth = 0
        self.held: list[Callable[[], None]] = []
        """What happens at the block's end, before anything begins that waits for it."""


_inside: ContextVar[tuple[Block, ...]] = ContextVar("inside", default=())
"""The blocks that the program is in, here: in this thread and, in asyncio, in this task."""


class Gate:
    """Lets streams that were idle begin when the program has queued what it queues at once.

    It has when it waits for something, or does nothing for a moment. Otherwise it would depend on
    the host whether the first operation is over before the next is queued, and with that who is
    first at the link.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._block: Block | None = None
        self._waits = threading.Event()
        self._queued_at = 0.0

    @contextmanager
    def queueing(self) -> Iterator[None]:
        """What is queued inside begins at the end, and at that of those around it."""
        with self._lock:
            block = self._block = self._block or Block()
            block.depth += 1
        token = _inside.set((*_inside.get(), block))
        try:
            yield
        finally:
            _inside.reset(token)
            with self._lock:
                block.depth -= 1
                if not block.depth:
                    self._end(block)

    def open(self) -> None:
        """What has been queued begins, whoever is still queueing."""
        with self._lock:
            if self._block is not None:
                self._end(self._block)

    def _end(self, block: Block) -> None:
        if self._block is block:
            self._block = None
            for enter in block.held:
                enter()
        self._waits.set()
        block.over.set()

    def note(self, enter: Callable[[], None] | None) -> Block | None:
        """An operation was queued in a stream, which was idle if ``enter`` is given; returns what
        it has to wait for. ``enter`` is called now, or when that ends."""
        self._queued_at = time.monotonic()
        self._waits.clear()
        if enter is None:
            return None
        with self._lock:
            if self._block is None:
                enter()
            else:
                self._block.held.append(enter)
            return self._block

    def program_waits(self) -> None:
        """The program waits for something: it queues nothing else before."""
        self._waits.set()

    def wait(self, block: Block | None) -> None:
        """Waits until ``block`` is over and the program has queued what it queues at once."""
        if block is not None:
            block.over.wait()
        limit = time.monotonic() + LONGEST_PAUSE_S
        while True:
            pause = min(self._queued_at + PAUSE_S, limit) - time.monotonic()
            if pause <= 0 or self._waits.wait(pause):
                return

    def check_wait(self, block: Block | None, what: str) -> None:
        """Raises :class:`QueueingError` if ``what`` waits for ``block``, which the caller is in."""
        if block is not None and not block.over.is_set() and block in _inside.get():
            raise QueueingError(
                f"{what} is queued and begins when queueing() ends: wait for it behind the block"
            )

    def check_call(self, what: str) -> None:
        """Raises :class:`QueueingError` if ``what`` is not queued, but would come behind others."""
        block = self._block
        if block is not None and block.held and block in _inside.get():
            raise QueueingError(
                f"{what} would come before what was queued earlier, which begins when queueing() "
                "ends: give it a stream, or call it before the block or behind it"
            )
