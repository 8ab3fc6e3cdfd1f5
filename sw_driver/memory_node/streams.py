"""Streams and events of device-nodes: copies in their order.

See :mod:`sw_driver.device.streams` for when time passes.
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
    told: bool = False


class Event(Handle[None]):
    """A place in a stream (``cudaEvent_t``). Made by :meth:`Stream.record`."""

    failures: tuple[_Failure, ...] = ()
    """Those of the stream before the event that nobody had been told when it happened."""

    @property
    def cycles(self) -> int | None:
        """Fabric cycles at which all before the event had ended; None until then."""
        return self.ended if self.over and not self.failed else None

    @property
    def happened(self) -> bool:
        """Whether all before the event has ended. The question takes the time of a register's
        read."""
        return self.done

    def synchronize(self) -> None:
        """Lets time pass until the event has happened.

        Raises the failure of a copy before it, see :class:`Stream`.
        """
        self.wait()

    def outcome(self) -> None:
        """The event's error, or that of a copy before it, is raised."""
        for each in self.failures:
            if not each.told:
                each.told = True
                raise each.error
        super().outcome()


class Stream(device_streams.Stream):
    """Copies one after the other; those of different streams go on at once.

    A copy that failed, as it does when a memory-node refuses it, is out of its stream, which goes
    on. Its handle raises the error whenever it is waited for. So does, once, the first to
    synchronize with what is behind it: the stream, an event of it, or a stream that waits for such
    an event.
    """

    def __init__(self, name: str, network: DmaNetwork) -> None:
        super().__init__(name, network.domain)
        self.network = network
        self._failures: list[_Failure] = []
        network.add(self)

    def record(self) -> Event:
        """An event that happens when all that is queued now has ended."""
        event = Event(f"an event of stream {self.name}", self._domain)

        def steps() -> Steps:
            yield from ()
            self._failures = [each for each in self._failures if not each.told]
            event.failures = tuple(self._failures)

        with self._domain.clock:
            self.submit(event, steps)
        return event

    def wait_event(self, event: Event) -> None:
        """What is queued from now on begins after ``event``, of any stream of the network."""
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
        """Lets time pass until all that is queued now has ended.

        Raises the failure of one of the copies, see :class:`Stream`, and what :meth:`Handle.wait`
        raises.
        """
        self.record().wait(timeout)

    def synchronize(self) -> None:
        """See :meth:`wait`."""
        self.wait()

    @property
    def idle(self) -> bool:
        """Whether all that was queued has ended. The question takes the time of a register's
        read."""
        with self._domain.clock as clock:
            if self._queue or self._free_at > clock.now:
                clock.ask(self._domain)
            return not self._queue and self._free_at <= clock.now

    def _fail(self, first: Handle[Any], error: BaseException) -> None:
        self._failures.append(_Failure(error))
        if self._queue:
            self._begin()
