"""Location of every tensor on a machine: tensors in place, in use, on their way, and evicted.

A place is a memory, or a name for several memories over which each tensor is spread. A tensor holds
its bytes of a place from the grant of room until it has left. It is in place once the event of its
arrival has happened. Until a move away ends, the tensor can still be read at the old place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..machine import MachineError
from ..numbers import check_name
from .clock import EngineEvent, ProcessSteps
from .engine import Engine
from .errors import EngineError
from .memory import Account

__all__ = ["Leaves", "Residency"]

Leaves = Callable[[], Iterable[tuple[Any, str]]]
"""Function that returns the candidates to leave a full place, with their targets.

It is called again for each eviction. The first candidate that can leave does. It must be in place,
not pinned, and not on its way to the target. A candidate that is at its target already is freed.
"""


@dataclass(kw_only=True)
class _Place:
    accounts: list[Account]
    leaves: Leaves | None = None
    here: dict[Any, EngineEvent] = field(default_factory=dict)
    """Tensors in place or expected, with the events of their arrival."""
    left: dict[Any, EngineEvent] = field(default_factory=dict)
    """Tensors that have left or are leaving, with the events of their arrival elsewhere."""
    pins: dict[Any, int] = field(default_factory=dict)
    unpinned: dict[Any, EngineEvent] = field(default_factory=dict)
    """Events for moves that wait until a tensor is unpinned."""

    def parts(self, nbytes: int) -> list[tuple[Account, int]]:
        share, more = divmod(nbytes, len(self.accounts))
        return [(account, share + (n < more)) for n, account in enumerate(self.accounts)]

    def has(self, key: Any) -> bool:
        return key in self.here and self.here[key].happened

    def leaving(self, key: Any) -> bool:
        return key in self.left and not self.left[key].happened

    def changed(self) -> None:
        """Tell waiting requests that there may be room, or a tensor that can leave."""
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
    """Tensors in the memories of an engine, and their moves. Keys are any hashable values.

    Parameters
    ----------
    size: bytes of a tensor in a place. They may differ between places, for example with
        compression; then the smaller number is moved.
    name: name of a tensor in messages.
    spread: names for several memories, each of which holds an equal part of every tensor.
    leaves: eviction candidates of a place. Without them, requests for room are granted in order.
        With them, a request evicts one tensor after the other until it has enough room. It does not
        wait for earlier requests, only while no tensor can leave.
    carry: process that moves the bytes of a tensor between places; plain transfers if not given.

    Examples
    --------
    >>> from sw_driver.machine.tiny import TINY
    >>> from sw_driver.system.engine import Engine
    >>> engine = Engine(TINY)
    >>> tensors = Residency(engine, lambda key, place: 1000)
    >>> tensors.put("weights", "host")
    >>> move = tensors.move("weights", "gpu")
    >>> engine.run(), tensors.where("weights")
    (600, 'gpu')
    """

    def __init__(
        self,
        engine: Engine,
        size: Callable[[Any, str], int],
        *,
        name: Callable[[Any], str] = str,
        spread: Mapping[str, Sequence[str]] | None = None,
        leaves: Mapping[str, Leaves] | None = None,
        carry: Callable[[Any, str, str], ProcessSteps] | None = None,
    ) -> None:
        self.engine = engine
        self._size, self._name = size, name
        self._carry = carry or self._transfer
        self._places = _Places()
        memories = {memory: (memory,) for memory in engine.memories} | dict(spread or {})
        for place, names in memories.items():
            self._places[place] = _Place(accounts=[engine.memory(memory) for memory in names])
        for place, order in (leaves or {}).items():
            self._places[place].leaves = order

    # Locations

    def where(self, key: Any) -> str:
        """Return the first place, in the machine's order, where a tensor can be read.

        Return an empty text if there is none.
        """
        for name, at in self._places.items():
            if at.has(key) or at.leaving(key):
                return name
        return ""

    def has(self, key: Any, place: str) -> bool:
        """Return whether a tensor is in a place and not leaving it."""
        return self._places[place].has(key)

    def held(self, place: str) -> Iterator[Any]:
        """Yield the tensors in a place, least recently used first.

        A request, a copy and :meth:`touch` count as uses.
        """
        return (key for key, coming in self._places[place].here.items() if coming.happened)

    def touch(self, key: Any, place: str) -> None:
        """Mark a tensor as used, if it is in the place or on its way there."""
        here = self._places[place].here
        if key in here:
            here[key] = here.pop(key)

    def pin(self, key: Any, place: str) -> None:
        """Keep a tensor from leaving until it is unpinned as often; it need not have arrived."""
        pins = self._places[place].pins
        pins[key] = pins.get(key, 0) + 1

    def unpin(self, key: Any, place: str) -> int:
        """Remove a pin and return the number left. Raises :class:`EngineError` without a pin."""
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

    # Arrivals and departures

    def put(self, key: Any, place: str) -> None:
        """Place a tensor now.

        Raises :class:`~sw_driver.system.errors.NoRoomError` if it does not fit, and
        :class:`EngineError` if it is there already.
        """
        at = self._places[place]
        for account, nbytes in at.parts(self._size(key, place)):
            account.take(key, nbytes)
        self._expect(key, place, self.engine.clock.event())
        at.here[key].happen()

    def room(self, key: Any, place: str) -> EngineEvent:
        """Return an event at which a tensor has room, for a caller that will write it.

        Raises :class:`EngineError` if it has room or has requested it.
        """
        at = self._places[place]
        if key in at.here:
            raise EngineError(f"{self._name(key)} has room in {place!r} already: free it first")
        rooms = self._ask(key, place)
        if len(rooms) != 1:
            steps = _behind(rooms, self._take(key, place))
            rooms = [self.engine.process(steps, f"room for {self._name(key)}")]
        self._expect(key, place, rooms[0])
        return rooms[0]

    def copy(
        self, key: Any, target: str, queue: str = "", after: Iterable[EngineEvent] = ()
    ) -> EngineEvent:
        """Return the event of a tensor's arrival at another place, too; copy it if necessary.

        The copy asks for room at once, unless the target has eviction. It then waits for its turn
        in ``queue``, if given, and for ``after``. The source is the first place that has the
        tensor. Raises :class:`EngineError` if the tensor is nowhere.
        """
        return self._bring(key, target, queue, after, stays=True)

    def move(
        self, key: Any, target: str, queue: str = "", after: Iterable[EngineEvent] = ()
    ) -> EngineEvent:
        """Move a tensor like :meth:`copy`, but free the source once it is not pinned."""
        return self._bring(key, target, queue, after, stays=False)

    def free(self, key: Any, place: str = "") -> None:
        """Free a tensor in one place, or everywhere after it has arrived.

        Raises :class:`EngineError` if it is pinned, or not there.
        """
        places = [place] if place else [name for name, at in self._places.items() if key in at.here]
        coming = [] if place else [name for name in places if not self.has(key, name)]
        if coming:
            event = self._places[coming[0]].here[key]
            event.callbacks.append(lambda _: self.free(key))
            return
        pinned = [name for name in places if key in self._places[name].pins]
        if pinned or not places or not self.has(key, places[0]):
            state = f"pinned in {pinned[0]}" if pinned else self._state(key)
            raise EngineError(f"{self._name(key)} cannot be freed: it is {state}")
        for name in places:
            del self._places[name].here[key]
            self._places[name].give(key)

    def _bring(
        self, key: Any, target: str, queue: str, after: Iterable[EngineEvent], *, stays: bool
    ) -> EngineEvent:
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

    def _expect(self, key: Any, place: str, coming: EngineEvent) -> None:
        self._places[place].here[key] = coming
        coming.callbacks.append(self._came)

    def _came(self, _: EngineEvent) -> None:
        """Wake waiting requests; a tensor with one place more may leave any other."""
        for place in self._places.values():
            if place.leaves is not None:
                place.changed()

    def _ask(self, key: Any, place: str) -> list[EngineEvent]:
        """Request room in a place without eviction, in the order of requests."""
        at = self._places[place]
        if at.leaves is not None or at.leaving(key):
            return []
        return [account.room(nbytes, key) for account, nbytes in at.parts(self._size(key, place))]

    def _take(self, key: Any, place: str) -> ProcessSteps:
        """Take the room that was not requested before, evicting tensors if necessary."""
        at = self._places[place]
        if at.leaving(key):
            yield at.left[key]
        for account, nbytes in at.parts(self._size(key, place)):
            if account.holds(key):
                continue
            while at.leaves is not None and nbytes > account.free_bytes:
                can = (choice for choice in at.leaves() if self._can_leave(place, *choice))
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

    def _evict(self, place: str, key: Any, target: str) -> ProcessSteps:
        there = self._places[target]
        if there.has(key):
            self.free(key, place)
        else:
            text = f"{self._name(key)} to leave {place!r} for {target!r}"
            coming = self.engine.clock.event(text)
            self._expect(key, target, coming)
            yield from self._leave(key, place, target)
            coming.succeed()

    def _go(self, key: Any, target: str, stays: bool) -> ProcessSteps:
        # Take room first: the tensor itself may have to make room at its source.
        yield from self._take(key, target)
        while True:
            source = next((name for name, at in self._places.items() if at.has(key)), "")
            if not source:
                yield self._coming(key, target)
            elif stays or key not in self._places[source].pins:
                break
            else:
                text = f"{self._name(key)} to be unpinned in {source!r}"
                event = self.engine.clock.event(text)
                yield self._places[source].unpinned.setdefault(key, event)
        if stays:
            self.touch(key, source)
            self.pin(key, source)
            yield from self._carry(key, source, target)
            self.unpin(key, source)
        else:
            yield from self._leave(key, source, target)

    def _leave(self, key: Any, source: str, target: str) -> ProcessSteps:
        at, coming = self._places[source], self._places[target].here[key]
        del at.here[key]
        at.left[key] = coming
        yield from self._take(key, target)
        yield from self._carry(key, source, target)
        at.give(key)

    def _coming(self, key: Any, target: str) -> EngineEvent:
        """Return the past or future event of a tensor's arrival at a place but ``target``."""
        for name, place in self._places.items():
            if key in place.here and name != target:
                return place.here[key]
        raise EngineError(f"{self._name(key)} cannot come to {target!r}: it is {self._state(key)}")

    def _state(self, key: Any) -> str:
        """Return where a tensor is or will be, in words."""
        places = self._places.items()
        there = [f"in {name}" for name, place in places if place.has(key)]
        coming = [f"on its way to {name}" for name, place in places if key in place.here]
        return ", ".join(there or coming) or "nowhere: put it somewhere, or ask for room"

    def _transfer(self, key: Any, source: str, target: str) -> ProcessSteps:
        at, there = self._places[source], self._places[target]
        nbytes = min(self._size(key, source), self._size(key, target))
        label = f"{self._name(key)} to {target}"
        wide = max(at, there, key=lambda place: len(place.accounts))
        moved: list[EngineEvent] = []
        for index, (_, part) in enumerate(wide.parts(nbytes)):
            a, b = (place.accounts[index % len(place.accounts)].name for place in (at, there))
            moved.append(self.engine.transfer(part, a, b, label))
        yield from moved


def _behind(after: Iterable[EngineEvent], steps: ProcessSteps) -> ProcessSteps:
    for event in after:
        if not event.happened:
            yield event
    yield from steps
