"""Accounts of memory: holders of bytes, and requests that wait for room."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from ..device.timeline import Timeline
from ..numbers import check_integer
from .clock import EngineClock, EngineEvent
from .errors import EngineError, NoRoomError
from .log import Held, Log

__all__ = ["Account"]

_LARGEST = 5


class _Room(EngineEvent):
    """An event that happens when a memory has ``nbytes`` of room."""

    __slots__ = ("account", "key", "nbytes")

    def __init__(self, account: Account, nbytes: int, key: Hashable) -> None:
        super().__init__(account.clock)
        self.account = account
        self.nbytes = nbytes
        self.key = key

    @property
    def description(self) -> str:
        return f"room for {self.nbytes} bytes in memory {self.account.name!r}"


class Account:
    """The bytes of one memory, by holder."""

    def __init__(
        self,
        clock: EngineClock,
        name: str,
        capacity_bytes: int,
        log: Log | None,
        timeline: Timeline | None,
        setting: str = "",
    ) -> None:
        self.clock = clock
        self._setting = setting or f"{name}.capacity_bytes"
        # A setting given by the caller may cover several memories together.
        self._is_own_setting = not setting
        self._log, self._timeline = log, timeline
        self.name = name
        self.capacity_bytes = check_integer("capacity_bytes", capacity_bytes)
        self.free_bytes = capacity_bytes
        self.peak_bytes = 0
        self._held: dict[Hashable, int] = {}
        self._waiting: deque[_Room] = deque()
        self._watching: list[_Room] = []

    def holds(self, key: Hashable) -> bool:
        """Return whether ``key`` holds bytes."""
        return key in self._held

    @property
    def held(self) -> dict[Hashable, int]:
        """Bytes of each holder, in the order of taking."""
        return dict(self._held)

    def take(self, key: Hashable, nbytes: int) -> None:
        """Take bytes for a holder.

        Raises :class:`NoRoomError` if they are not free, and :class:`EngineError` if ``key`` holds
        some already.
        """
        if key in self._held:
            raise EngineError(
                f"memory {self.name!r}: {key!r} holds {self._held[key]} bytes already: give them "
                "back first"
            )
        if type(nbytes) is not int or nbytes < 0:
            name = f"memory {self.name!r}: what {key!r} takes, in bytes,"
            nbytes = check_integer(name, nbytes, 0, error=EngineError)
        if nbytes > self.free_bytes:
            raise NoRoomError(
                f"memory {self.name!r}: {key!r} takes {nbytes} bytes, but only "
                f"{self.free_bytes} of {self.capacity_bytes} are free; {self._holders()}; raise "
                f"{self._enough(self.capacity_bytes - self.free_bytes + nbytes)}"
            )
        self._held[key] = nbytes
        self.free_bytes -= nbytes
        self.peak_bytes = max(self.peak_bytes, self.capacity_bytes - self.free_bytes)
        self._record(key, nbytes)

    def give(self, key: Hashable) -> None:
        """Free the bytes of a holder. Raises :class:`EngineError` if it has none."""
        if key not in self._held:
            raise EngineError(f"memory {self.name!r}: {key!r} holds nothing to give back")
        nbytes = self._held.pop(key)
        self.free_bytes += nbytes
        self._record(key, -nbytes)
        self._serve()
        self.changed()

    def room(self, nbytes: int, key: Hashable) -> EngineEvent:
        """Return an event at which ``nbytes`` are taken; the oldest request is served first.

        Raises :class:`NoRoomError` if the memory is smaller than that.
        """
        room = self._room(nbytes, key)
        self._waiting.append(room)
        self._serve()
        return room

    def change(self, nbytes: int, key: Hashable) -> EngineEvent:
        """Return an event at which more room may be free, for a holder that then takes it itself.

        Raises as :meth:`room`.
        """
        room = self._room(nbytes, key)
        self._watching.append(room)
        return room

    def changed(self) -> None:
        """Trigger the events of :meth:`change`."""
        for room in self._watching:
            room.succeed()
        self._watching.clear()

    def _room(self, nbytes: int, key: Hashable) -> _Room:
        if type(nbytes) is not int or nbytes < 0:
            name = f"memory {self.name!r}: what {key!r} asks for, in bytes,"
            nbytes = check_integer(name, nbytes, 0, error=EngineError)
        if nbytes > self.capacity_bytes:
            raise NoRoomError(
                f"memory {self.name!r}: {nbytes} bytes never fit into its {self.capacity_bytes}: "
                f"raise {self._enough(nbytes)}"
            )
        return _Room(self, nbytes, key)

    @property
    def lack(self) -> str:
        """Needs of the first waiting request, in words; empty if none waits."""
        waiting = (*self._waiting, *self._watching)
        if not waiting:
            return ""
        first, held = waiting[0], self.capacity_bytes - self.free_bytes
        return (
            f"memory {self.name!r} of {self.capacity_bytes} bytes is too small, as {first.key!r} "
            f"needs {first.nbytes} beside the {held} that are held: free more, or raise "
            f"{self._enough(held + first.nbytes)}"
        )

    def waiting(self) -> list[str]:
        """Return descriptions of the waiting requests."""
        return [
            f"{room.key!r} waits for {room.description}, with {self.free_bytes} free; "
            f"{self._holders()}"
            for room in self._waiting
        ]

    def _enough(self, nbytes: int) -> str:
        return self._setting + (f" to at least {nbytes}" if self._is_own_setting else "")

    def _serve(self) -> None:
        while self._waiting and self._waiting[0].nbytes <= self.free_bytes:
            room = self._waiting.popleft()
            self.take(room.key, room.nbytes)
            room.succeed()

    def _record(self, key: Hashable, nbytes: int) -> None:
        now_ns = self.clock.now_ns
        if self._log is not None:
            self._log.held.append(Held(now_ns, self.name, key, nbytes))
        if self._timeline is not None:
            held_bytes = self.capacity_bytes - self.free_bytes
            self._timeline.count(f"memory {self.name}, bytes", held_bytes, now_ns)

    def _holders(self) -> str:
        largest = sorted(self._held.items(), key=lambda item: -item[1])[:_LARGEST]
        if not largest:
            return "nothing is held"
        return "the largest holders are " + ", ".join(f"{key!r} ({size})" for key, size in largest)
