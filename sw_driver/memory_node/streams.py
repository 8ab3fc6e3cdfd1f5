"""Streams and events of device-nodes: ordered copies.

:mod:`sw_driver.device.streams` explains when time passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..device import streams as device_streams
from ..device.clock import Steps
from ..device.errors import InvalidArgumentError
from ..device.streams import Handle
from .dma import DmaNetwork

__all__ = ["Event", "Stream"]


@dataclass
class _Failure:
    error: BaseException
    is_reported: bool = False
    """True once a synchronization has raised the error."""


class Event(Handle[None]):
    """A point in a stream (``cudaEvent_t``), made by :meth:`Stream.record`."""

    failures: tuple[_Failure, ...] = ()
    """Failures of earlier copies of the stream that were unreported when the event happened."""

    @property
    def cycles(self) -> int | None:
        """Fabric cycle at which everything before the event had ended; None until then."""
        return self.ended if self.over and not self.failed else None

    @property
    def happened(self) -> bool:
        """True if everything before the event has ended.

        A query takes the time of a register read.
        """
        return self.done

    def synchronize(self) -> None:
        """Let time pass until the event has happened.

        Raises the failure of a copy before it, see :class:`Stream`.
        """
        self.wait()

    def outcome(self) -> None:
        """Raise the event's error, or the first unreported one of a copy before it."""
        for failure in self.failures:
            if not failure.is_reported:
                failure.is_reported = True
                raise failure.error
        super().outcome()


class Stream(device_streams.Stream):
    """Copies one after the other; different streams run in parallel.

    A failed copy, such as one that a memory-node refuses, leaves its stream, which goes on. Each
    wait for the copy's handle raises the error. So does, once, the first synchronization with what
    is queued behind the copy: the stream, an event of it, or a stream that waits for such an event.
    """

    def __init__(self, name: str, network: DmaNetwork) -> None:
        super().__init__(name, network.domain)
        self.network = network
        self._failures: list[_Failure] = []
        network.add(self)

    def record(self) -> Event:
        """Return an event that happens when all operations queued so far have ended."""
        event = Event(f"an event of stream {self.name}", self._domain)

        def steps() -> Steps:
            yield from ()
            self._failures = [known for known in self._failures if not known.is_reported]
            event.failures = tuple(self._failures)

        with self._domain.clock:
            self.submit(event, steps)
        return event

    def wait_event(self, event: Event) -> None:
        """Delay later operations until ``event``, which may be of any stream of the network."""
        if not isinstance(event, Event) or event.domain is not self._domain:
            raise InvalidArgumentError(
                f"{event!r} is no event of this network: expected what record() returned"
            )

        def steps() -> Steps:
            yield event
            self._failures += event.failures

        with self._domain.clock:
            self.submit(Handle(f"stream {self.name}", self._domain), steps)

    def wait(self, timeout: float | None = None) -> None:
        """Let time pass until all operations queued so far have ended.

        Raises the failure of one of the copies, see :class:`Stream`, and as :meth:`Handle.wait`.
        """
        self.record().wait(timeout)

    def synchronize(self) -> None:
        """See :meth:`wait`."""
        self.wait()

    @property
    def idle(self) -> bool:
        """True if all queued operations have ended.

        A query takes the time of a register read.
        """
        with self._domain.clock as clock:
            if self._queue or self._free_at > clock.now:
                clock.ask(self._domain)
            return not self._queue and self._free_at <= clock.now

    def _fail(self, first: Handle[Any], error: BaseException) -> None:
        self._failures.append(_Failure(error))
        if self._queue:
            self._begin()
