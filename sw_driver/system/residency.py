"""Where every tensor is on a machine: what is there, in use or on its way, and what leaves for it.

A place is a memory, or a name for several over which each tensor is spread. A tensor holds its
bytes of a place from when it has room there until it has left. It is there when the event of its
coming has happened; what is being moved away can be read where it was until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..machine import MachineError
from ..numbers import check_name
from .clock import Event, Steps
from .engine import Engine
from .errors import EngineError
from .memory import Account

__all__ = ["Leaves", "Residency"]

Leaves = Callable[[], Iterable[tuple[Any, str]]]
"""Who may leave a place that is full, and where to; asked anew for each. The first that can does:
who is there, not pinned, and not on its way there. One that is there already, too, is freed."""


@dataclass(kw_only=True)
class _Place:
    accounts: list[Account]
    leaves: Leaves | None = None
    here: dict[Any, Event] = field(default_factory=dict)
    """What is there or is to be, with the event of its coming."""
    left: dict[Any, Event] = field(default_factory=dict)
    """What has left or is leaving, with the event of its coming elsewhere."""
    pins: dict[Any, int] = field(default_factory=dict)
    unpinned: dict[Any, Event] = field(default_factory=dict)
    """What waits to leave until nobody needs it."""

    def parts(self, nbytes: int) -> list[tuple[Account, int]]:
        share, more = divmod(nbytes, len(self.accounts))
        return [(each, share + (index < more)) for index, each in enumerate(self.accounts)]

    def has(self, key: Any) -> bool:
        return key in self.here and self.here[key].happened

    def leaving(self, key: Any) -> bool:
        return key in self.left and not self.left[key].happened

    def changed(self) -> None:
        """There may be room, or who can leave."""
        for account in self.accounts:
            account.changed()

    def give(self, key: Any) -> None:
        for account in self.accounts:
            account.give(key)


class _Places(dict[str, _Place]):
    def __missing__(self, name: str) -> _Place:
        check_name("place", name, self, MachineError)
        raise AssertionError(name)


class Residency:
    """Holds tensors in the memories of an engine, and moves them. A tensor's key is anything that
    a dictionary takes.

    Parameters
    ----------
    size: bytes of a tensor in a place. They may differ, as where it is compressed: then the fewer
        are moved.
    name: of a tensor, for people.
    spread: names for several memories, each of which holds an equal part of every tensor.
    leaves: by place, what leaves when it is full. Without, whoever asks for room waits, and has it
        in the order of asking. With it, whoever asks lets one after the other leave until there is
        enough, whoever asked before, and waits only while none can.
    carry: moves the bytes of a tensor from one place to another; plain transfers if not given.
    """

    def __init__(
        self,
        engine: Engine,
        size: Callable[[Any, str], int],
        *,
        name: Callable[[Any], str] = str,
        spread: Mapping[str, Sequence[str]] | None = None,
        leaves: Mapping[str, Leaves] | None = None,
        carry: Callable[[Any, str, str], Steps] | None = None,
    ) -> None:
        self.engine = engine
        self._size, self._name = size, name
        self._carry = carry or self._transfer
        self._places = _Places()
        memories = {each: (each,) for each in engine.memories} | dict(spread or {})
        for place, names in memories.items():
            self._places[place] = _Place(accounts=[engine.memory(each) for each in names])
        for place, order in (leaves or {}).items():
            self._places[place].leaves = order

    # What is where

    def where(self, key: Any) -> str:
        """Where it can be read: of several places the first by the machine's memories; an empty
        text if nowhere."""
        for name, at in self._places.items():
            if at.has(key) or at.leaving(key):
                return name
        return ""

    def has(self, key: Any, place: str) -> bool:
        """Whether it is there to stay."""
        return self._places[place].has(key)

    def held(self, place: str) -> Iterator[Any]:
        """What is there, longest unused first: since it was asked for, copied, or touched."""
        return (key for key, coming in self._places[place].here.items() if coming.happened)

    def touch(self, key: Any, place: str) -> None:
        """Notes that it is used, if it is there or on its way there."""
        here = self._places[place].here
        if key in here:
            here[key] = here.pop(key)

    def pin(self, key: Any, place: str) -> None:
        """Keeps it from leaving until it is unpinned as often; it need not be there yet."""
        pins = self._places[place].pins
        pins[key] = pins.get(key, 0) + 1

    def unpin(self, key: Any, place: str) -> int:
        """How many pins are left. Raises :class:`EngineError` if there was none."""
        at = self._places[place]
        if key not in at.pins:
            raise EngineError(f"{self._name(key)} is not pinned in {place!r}")
        left = at.pins.pop(key) - 1
        if left:
            at.pins[key] = left
        else:
            if key in at.unpinned:
                at.unpinned.pop(key).succeed()
            at.changed()
        return left

    # Coming and leaving

    def put(self, key: Any, place: str) -> None:
        """Has it there now. Raises :class:`~sw_driver.system.errors.NoRoomError` if it does not
        fit, and :class:`EngineError` if it is there already."""
        at = self._places[place]
        for account, nbytes in at.parts(self._size(key, place)):
            account.take(key, nbytes)
        self._expect(key, place, self.engine.clock.event())
        at.here[key].happen()

    def room(self, key: Any, place: str) -> Event:
        """An event at which it has room, for who is about to write it. Raises :class:`EngineError`
        if it has, or asked before."""
        at = self._places[place]
        if key in at.here:
            raise EngineError(f"{self._name(key)} has room in {place!r} already: free it first")
        rooms = self._ask(key, place)
        if len(rooms) != 1:
            steps = _behind(rooms, self._take(key, place))
            rooms = [self.engine.process(steps, f"room for {self._name(key)}")]
        self._expect(key, place, rooms[0])
        return rooms[0]

    def copy(self, key: Any, target: str, queue: str = "", after: Iterable[Event] = ()) -> Event:
        """An event at which it is in another place, too; if it is or was to be, that event.

        It asks for room at once, unless something may leave for it. Then, in its turn of a queue,
        if given, and not before ``after``, it comes from the first place where it is. Raises
        :class:`EngineError` if it is nowhere.
        """
        return self._bring(key, target, queue, after, stays=True)

    def move(self, key: Any, target: str, queue: str = "", after: Iterable[Event] = ()) -> Event:
        """As :meth:`copy`; but it leaves the place that it comes from, when it is not pinned."""
        return self._bring(key, target, queue, after, stays=False)

    def free(self, key: Any, place: str = "") -> None:
        """In one place; or everywhere, and then not before it has come if it is on its way. Raises
        :class:`EngineError` if it is pinned, or not there."""
        places = [place] if place else [name for name, at in self._places.items() if key in at.here]
        coming = [] if place else [each for each in places if not self.has(key, each)]
        if coming:
            event = self._places[coming[0]].here[key]
            event.callbacks.append(lambda _: self.free(key))
            return
        pinned = [name for name in places if key in self._places[name].pins]
        if pinned or not places or not self.has(key, places[0]):
            found = f"pinned in {pinned[0]}" if pinned else self._found(key)
            raise EngineError(f"{self._name(key)} cannot be freed: it is {found}")
        for name in places:
            del self._places[name].here[key]
            self._places[name].give(key)

    def _bring(
        self, key: Any, target: str, queue: str, after: Iterable[Event], *, stays: bool
    ) -> Event:
        there = self._places[target]
        if key not in there.here:
            self._coming(key, target)
            label = f"{self._name(key)} to {target}"
            after = [*after, *self._ask(key, target)]
            steps = partial(self._go, key, target, stays)
            if queue:
                event = self.engine.queue(queue).call(steps, label, after, "move")
            else:
                event = self.engine.process(_behind(after, steps()), label)
            self._expect(key, target, event)
        return there.here[key]

    def _expect(self, key: Any, place: str, coming: Event) -> None:
        self._places[place].here[key] = coming
        coming.callbacks.append(self._came)

    def _came(self, _: Event) -> None:
        """What is in one place more may leave any other."""
        for place in self._places.values():
            if place.leaves is not None:
                place.changed()

    def _ask(self, key: Any, place: str) -> list[Event]:
        """Room, where that is given in the order of asking."""
        at = self._places[place]
        if at.leaves is not None or at.leaving(key):
            return []
        return [account.room(nbytes, key) for account, nbytes in at.parts(self._size(key, place))]

    def _take(self, key: Any, place: str) -> Steps:
        """Takes the room that was not asked for."""
        at = self._places[place]
        if at.leaving(key):
            yield at.left[key]
        for account, nbytes in at.parts(self._size(key, place)):
            if account.holds(key):
                continue
            while at.leaves is not None and nbytes > account.free_bytes:
                can = (each for each in at.leaves() if self._can_leave(place, *each))
                leaving = next(can, None)
                if leaving is None:
                    yield account.change(nbytes, key)
                else:
                    yield from self._evict(place, *leaving)
            room = account.room(nbytes, key)
            if not account.holds(key):
                yield room

    def _can_leave(self, place: str, key: Any, target: str) -> bool:
        at, there = self._places[place], self._places[target]
        if at is there:
            raise EngineError(f"{self._name(key)} is to leave {place!r} for itself: name another")
        return at.has(key) and key not in at.pins and (key not in there.here or there.has(key))

    def _evict(self, place: str, key: Any, target: str) -> Steps:
        there = self._places[target]
        if there.has(key):
            self.free(key, place)
        else:
            said = f"{self._name(key)} to leave {place!r} for {target!r}"
            coming = self.engine.clock.event(said)
            self._expect(key, target, coming)
            yield from self._leave(key, place, target)
            coming.succeed()

    def _go(self, key: Any, target: str, stays: bool) -> Steps:
        # First, so that it may make room where it is itself.
        yield from self._take(key, target)
        while True:
            source = next((name for name, at in self._places.items() if at.has(key)), "")
            if not source:
                yield self._coming(key, target)
            elif stays or key not in self._places[source].pins:
                break
            else:
                said = f"{self._name(key)} to be unpinned in {source!r}"
                event = self.engine.clock.event(said)
                yield self._places[source].unpinned.setdefault(key, event)
        if stays:
            self.touch(key, source)
            self.pin(key, source)
            yield from self._carry(key, source, target)
            self.unpin(key, source)
        else:
            yield from self._leave(key, source, target)

    def _leave(self, key: Any, source: str, target: str) -> Steps:
        at, coming = self._places[source], self._places[target].here[key]
        del at.here[key]
        at.left[key] = coming
        yield from self._take(key, target)
        yield from self._carry(key, source, target)
        at.give(key)

    def _coming(self, key: Any, target: str) -> Event:
        """Its coming to a place other than ``target``, past or future."""
        for name, place in self._places.items():
            if key in place.here and name != target:
                return place.here[key]
        raise EngineError(f"{self._name(key)} cannot come to {target!r}: it is {self._found(key)}")

    def _found(self, key: Any) -> str:
        places = self._places.items()
        there = [f"in {name}" for name, place in places if place.has(key)]
        coming = [f"on its way to {name}" for name, each in places if key in each.here]
        return ", ".join(there or coming) or "nowhere: put it somewhere, or ask for room"

    def _transfer(self, key: Any, source: str, target: str) -> Steps:
        at, there = self._places[source], self._places[target]
        nbytes = min(self._size(key, source), self._size(key, target))
        label = f"{self._name(key)} to {target}"
        wide = max(at, there, key=lambda each: len(each.accounts))
        moved: list[Event] = []
        for index, (_, part) in enumerate(wide.parts(nbytes)):
            a, b = (each.accounts[index % len(each.accounts)].name for each in (at, there))
            moved.append(self.engine.transfer(part, a, b, label))
        yield from moved


def _behind(after: Iterable[Event], steps: Steps) -> Steps:
    for event in after:
        if not event.happened:
            yield event
    yield from steps
