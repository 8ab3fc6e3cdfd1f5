"""What happens when on a machine: queues of operations, transfers, and memory, in simulated time.

Thin over SimPy: everything that can be waited for is one of its events, and a policy may add
processes of its own. Times are integer ns, sizes bytes. The same calls give the same result: what
happens at one moment happens in the order in which it was asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from heapq import heappop, heappush
from itertools import count
from operator import index
from typing import Any

import simpy
from simpy.core import EmptySchedule
from simpy.events import NORMAL, PENDING, Condition, Event, Process

from ..machine.machine import Machine
from ..runtime.timeline import Timeline
from .conservation import check_log
from .log import Log, Ran, Transferred
from .memory import Account, EngineError, NoRoomError
from .network import Network

__all__ = [
    "Action",
    "DeadlockError",
    "Engine",
    "EngineError",
    "NoRoomError",
    "Queue",
    "Transfer",
]

_NAMED = 8
"""So many of those who wait are named in a message."""


class DeadlockError(EngineError):
    """Nothing can happen any more, and something still waits."""


class Action(Event):
    """An event that happens when the action ends; it knows when it began."""

    # Those of SimPy's event, too: a slot is found faster than an entry of a dictionary.
    __slots__ = (
        "_ok",
        "_value",
        "after",
        "begin_ns",
        "callbacks",
        "end_ns",
        "engine",
        "env",
        "label",
        "queue",
    )

    begin_ns: int
    end_ns: int
    """Neither is there before its time."""

    def __init__(self, engine: Engine, queue: Queue | None, label: str, after: Iterable[Event]):
        self.env = engine.env
        self.engine = engine
        self.callbacks = [engine._ended if queue is None else queue._ended]
        self._ok = True
        self._value = PENDING
        self.label = label
        self.queue = queue
        self.after = list(after)
        """What it still waits for; the last is looked at first."""

    def _proceed(self, _: Event | None = None) -> None:
        """Begins, unless there is something left to wait for."""
        after = self.after
        while after:
            event = after[-1]
            if event.callbacks is not None:
                event.callbacks.append(self._proceed)
                return
            after.pop()
        self.begin_ns = now_ns = self.engine.env._now
        self._begin(now_ns)

    def _begin(self, now_ns: int) -> None:
        raise NotImplementedError

    @property
    def what(self) -> str:
        """In words."""
        where = "" if self.queue is None else f" in queue {self.queue.name!r}"
        return f"{self.label!r}{where}"


class _Execute(Action):
    category: str
    duration_ns: int

    def _begin(self, now_ns: int) -> None:
        self._value = None
        env = self.env
        heappush(env._queue, (now_ns + self.duration_ns, NORMAL, next(env._eid), self))


class Transfer(Action):
    """Bytes on their way from one memory to another."""

    __slots__ = (
        "due_ns",
        "lanes",
        "left",
        "listed_ns",
        "nbytes",
        "number",
        "path",
        "rate",
        "since_ns",
    )

    category = "transfer"
    number: int
    rate: int
    """In bytes a second; below 0 until the latency is over."""
    left: int
    """In 10^-9 bytes."""
    since_ns: int
    due_ns: int
    listed_ns: int
    """The first time for which the clock has it in its list."""
    lanes: list[tuple[str, int]]

    def __init__(
        self,
        engine: Engine,
        queue: Queue | None,
        nbytes: int,
        source: str,
        target: str,
        label: str,
        after: Iterable[Event],
    ) -> None:
        super().__init__(engine, queue, label, after)
        self.nbytes = index(nbytes)
        if nbytes < 0:
            raise EngineError(f"{label!r} moves {nbytes} bytes: expected at least 0")
        self.path = engine.network.path(source, target)
        self.number = next(engine._numbers)
        self.rate = -1

    def _begin(self, now_ns: int) -> None:
        env = self.env
        if self.engine.timeline is not None:
            self.engine._find_lanes(self)
        self.listed_ns = due_ns = now_ns + self.path.latency_ns
        heappush(env._queue, (due_ns, NORMAL, next(env._eid), self))


class _Call(Action):
    category: str
    function: Callable[[], Generator[Event, Any, Any]]

    def _begin(self, now_ns: int) -> None:
        process = self.engine.process(self.function(), self.label)
        process.callbacks.append(self._done)

    def _done(self, process: Event) -> None:
        if process.ok:
            self.succeed(process.value)


class Queue:
    """Runs its entries one after the other, as a CUDA stream does."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine = engine
        self.name = name
        self.busy_ns = 0
        self.head: Action | None = None
        self._entries: deque[Action] = deque()
        self._ended = self._ended  # one bound method for all entries

    def execute(
        self,
        duration_ns: int,
        label: str,
        after: Iterable[Event] = (),
        category: str = "execute",
    ) -> Action:
        """An entry that takes so long, once those before it and ``after`` are over."""
        duration_ns = index(duration_ns)
        if duration_ns < 0:
            raise EngineError(f"{label!r} takes {duration_ns} ns: expected at least 0")
        action = _Execute(self.engine, self, label, after)
        action.duration_ns = duration_ns
        action.category = category
        return self._add(action)

    def transfer(
        self, nbytes: int, source: str, target: str, label: str, after: Iterable[Event] = ()
    ) -> Transfer:
        """An entry that moves bytes; see :meth:`Engine.transfer`."""
        return self._add(Transfer(self.engine, self, nbytes, source, target, label, after))

    def call(
        self,
        function: Callable[[], Generator[Event, Any, Any]],
        label: str,
        after: Iterable[Event] = (),
        category: str = "call",
    ) -> Action:
        """An entry that is what a generator function does: it ends when that returns, and its value
        is what was returned. The generator yields events."""
        action = _Call(self.engine, self, label, after)
        action.function = function
        action.category = category
        return self._add(action)

    def _add(self, action: Any) -> Any:
        if self.head is None:
            self.head = action
            action._proceed()
        else:
            self._entries.append(action)
        return action

    def _ended(self, action: Any) -> None:
        engine = self.engine
        action.end_ns = now_ns = engine.env._now
        self.busy_ns += now_ns - action.begin_ns
        if engine._recording:
            engine._record(action, now_ns)
        if self._entries:
            self.head = self._entries.popleft()
            self.head._proceed()
        else:
            self.head = None


class _Environment(simpy.Environment):
    """SimPy's, in whose list of what comes next a transfer may be at times that are not its own.

    Its run() would step as well, but not notice who waits at the end.
    """

    network: Network
    _now: int
    _queue: list[tuple[int, int, int, Any]]  # type: ignore[assignment]

    def step(self) -> None:
        queue, network = self._queue, self.network
        while True:
            if network.unsettled and (not queue or queue[0][0] > self._now):
                network.settle()
            if not queue:
                raise EmptySchedule
            at_ns, _, _, event = heappop(queue)
            if type(event) is not Transfer or network.arrives(event, at_ns):
                break
        self._now = at_ns
        callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
        for callback in callbacks:
            callback(event)
        if not event._ok and not event.defused:
            raise event._value


class Engine:
    """A machine at work.

    Parameters
    ----------
    timeline: gets every action, if given; make it with ``fabric_mhz=1000``, so that its cycles are
        nanoseconds. Queues have a track each, and links one for each transfer at once; a memory's
        counter says how many of its bytes are held.
    record: whether to write everything into ``log``, for :meth:`check`.
    """

    def __init__(
        self, machine: Machine, timeline: Timeline | None = None, *, record: bool = False
    ) -> None:
        if timeline is not None and timeline.fabric_mhz != 1000:
            raise EngineError(
                f"the timeline counts cycles of {timeline.fabric_mhz} MHz: expected 1000, for ns"
            )
        self.machine = machine
        self.timeline = timeline
        self.log = Log() if record else None
        self.env = _Environment()
        self.network = self.env.network = Network(self, machine)
        self.queues: dict[str, Queue] = {}
        self.memories = {
            memory.name: Account(self, memory.name, int(memory.capacity_bytes.value))
            for memory in machine.memories
        }
        self._processes: dict[Process, tuple[str, bool]] = {}
        self._pending: dict[Transfer, None] = {}
        """Transfers without a queue that have not ended."""
        self._numbers = count()
        self._lanes: dict[str, list[bool]] = {}
        self._recording = record or timeline is not None
        self._ended = self._ended  # one bound method for all transfers

    @property
    def now_ns(self) -> int:
        return int(self.env._now)

    def memory(self, name: str) -> Account:
        """Raises :class:`~sw_driver.machine.parts.MachineError` if there is none of that name."""
        return self.memories[self.machine.memory(name).name]

    def queue(self, name: str) -> Queue:
        """The queue of that name, which is made when it is first asked for."""
        if name not in self.queues:
            self.queues[name] = Queue(self, name)
        return self.queues[name]

    def process(
        self, generator: Generator[Event, Any, Any], name: str = "", *, background: bool = False
    ) -> Process:
        """Lets a generator run, which yields the events that it waits for.

        One in the ``background`` may still wait for something when all is over.
        """
        process = self.env.process(generator)
        self._processes[process] = name or process.name, background
        process.callbacks.append(self._processes.__delitem__)
        return process

    def transfer(
        self, nbytes: int, source: str, target: str, label: str, after: Iterable[Event] = ()
    ) -> Transfer:
        """Moves bytes from one memory to another, over the route of fewest links, all at once.

        It begins when ``after`` is over, waits for the latencies, and has its fair share of each
        link (see :mod:`sw_driver.system.network`). Takes and gives no memory. Raises
        :class:`~sw_driver.machine.parts.MachineError` if there is no route.
        """
        transfer = Transfer(self, None, nbytes, source, target, label, after)
        self._pending[transfer] = None
        transfer._proceed()
        return transfer

    def run(self) -> int:
        """Runs until nothing is left to do; returns the time.

        Raises :class:`DeadlockError` if something still waits then, and what a process raised.
        """
        step = self.env.step
        try:
            while True:
                step()
        except EmptySchedule:
            pass
        stuck = self._stuck()
        if stuck:
            more = f"\n  and {len(stuck) - _NAMED} more" if len(stuck) > _NAMED else ""
            raise DeadlockError(
                f"at {self.now_ns} ns nothing can happen any more, but\n  "
                + "\n  ".join(stuck[:_NAMED])
                + more
            )
        return self.now_ns

    def check(self) -> None:
        """Checks that what was recorded can be, on this machine.

        Raises :class:`~sw_driver.system.conservation.ConservationError` if not, and
        :class:`EngineError` if nothing was recorded.
        """
        if self.log is None:
            raise EngineError("nothing was recorded: make the engine with record=True")
        check_log(self.log, self.machine)

    def _ended(self, transfer: Any) -> None:
        del self._pending[transfer]
        transfer.end_ns = self.now_ns
        if self._recording:
            self._record(transfer, self.now_ns)

    def _find_lanes(self, transfer: Transfer) -> None:
        """Of the tracks of each link the first that no other transfer has at the time."""
        transfer.lanes = []
        for link, writing in transfer.path.hops:
            way = "" if link.sharing == "half" else " write" if writing else " read"
            taken = self._lanes.setdefault(link.name + way, [])
            number = taken.index(False) if False in taken else len(taken)
            taken[number : number + 1] = [True]
            transfer.lanes.append((link.name + way, number))

    def _record(self, action: Any, now_ns: int) -> None:
        log, timeline, queue, begin_ns = self.log, self.timeline, action.queue, action.begin_ns
        moved = {}
        if type(action) is Transfer:
            path = action.path
            moved = {"nbytes": action.nbytes, "from": path.source, "to": path.target}
            if log is not None:
                log.transferred.append(
                    Transferred(
                        action.number,
                        action.label,
                        action.nbytes,
                        path.source,
                        path.target,
                        begin_ns,
                        now_ns,
                    )
                )
        if log is not None and queue is not None:
            log.ran.append(Ran(queue.name, action.label, begin_ns, now_ns))
        if timeline is None:
            return
        tracks = [] if queue is None else [f"queue {queue.name}"]
        for name, number in action.lanes if moved else ():
            self._lanes[name][number] = False
            tracks.append(f"link {name}" + f" {number + 1}" * (number > 0))
        for track in tracks:
            timeline.track(track)
            timeline.add(track, action.label, begin_ns, now_ns, action.category, **moved)

    def _stuck(self) -> list[str]:
        """Who waits for what, in words."""
        heads = [queue.head for queue in self.queues.values() if queue.head is not None]
        actions = [action for action in (*heads, *self._pending) if action.after]
        found = [f"{action.what} waits for {_what(action.after[-1])}" for action in actions]
        for process, (name, background) in self._processes.items():
            if not background:
                found.append(f"process {name!r} waits for {_what(process.target)}")
        for account in self.memories.values():
            found += account.waiting()
        return found


def _what(event: Event) -> str:
    if isinstance(event, Condition):
        left = [each for each in event._events if each.callbacks is not None]
        return " and ".join(_what(each) for each in left)
    if isinstance(event, Process):
        return f"process {event.name!r}"
    return getattr(event, "what", f"an event ({type(event).__name__}) that nobody lets happen")
