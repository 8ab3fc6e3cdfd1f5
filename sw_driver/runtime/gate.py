"""When streams that were idle begin."""

from __future__ import annotations

import threading
import time

__all__ = ["Gate"]

PAUSE_S = 0.05
"""Without another operation queued, a program has queued what it queues at once."""
LONGEST_PAUSE_S = 0.5


class Gate:
    """Lets streams that were idle begin when the program has queued what it queues at once.

    It has when it waits for something, or does nothing for a moment. Otherwise it would depend on
    the host whether the first operation is over before the next is queued, and with that who is
    first at the link.
    """

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._waits = threading.Event()
        self._queued_at = 0.0

    def close(self) -> None:
        """Nothing begins until :meth:`open`."""
        self._open.clear()

    def open(self) -> None:
        """What has been queued begins."""
        self._waits.set()
        self._open.set()

    def note(self) -> None:
        """An operation was queued."""
        self._queued_at = time.monotonic()
        self._waits.clear()

    def program_waits(self) -> None:
        """The program waits for something: it queues nothing else before."""
        self._waits.set()

    def wait(self) -> None:
        """Waits until the gate is open and the program has queued what it queues at once."""
        self._open.wait()
        limit = time.monotonic() + LONGEST_PAUSE_S
        while True:
            pause = min(self._queued_at + PAUSE_S, limit) - time.monotonic()
            if pause <= 0 or self._waits.wait(pause):
                return
