"""What happens when on a machine: queues of operations, transfers, and memory, in simulated time.

Everything that can be waited for is an :class:`~sw_driver.system.clock.Event`, and a policy may add
processes of its own. Times are integer ns, sizes bytes. The same calls give the same result: what
happens at one moment happens in the order in which it was asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from ..device.errors import DeadlockError
from ..device.timeline import Timeline
from ..machine.machine import Machine
from ..numbers import check_integer
from .clock import Action, Clock, Event, Process, Steps
from .errors import EngineError
from .log import Log, Ran, Transferred, Worked, check_log
from .memory import Account
from .network import Network, Transfer
from .work import Flow, Work

__all__ = ["Engine", "Queue"]

_NEVER = 1 << 62

_NAMED = 8
"""So many of those who wait are named in a message."""


class _Call(Action):
    __slots__ = ("category", "function", "process")

    category: str
    function: Callable[[], Steps]
    process: Callable[[Steps, str], Process]

    def begin(self, now_ns: int) -> None:
        self.process(self.function(), self.label).callbacks.append(self._returned)

    def _returned(self, process: Event) -> None:
        self.succeed(process.value)


class _Do(Action):
    __slots__ = ("ask", "category", "engine", "moved", "parts", "work")

    ask: Callable[[], Work | int]
    category: str
    engine: Engine
    work: Work
    moved: list[Transfer]
    """Its flows that have begun."""
    parts: int
    """So many are not over: the time, and each flow."""

    def begin(self, now_ns: int) -> None:
        asked = self.ask()
        if type(asked) is int and asked >= 0:
            self.work = Work(asked)
            self.clock.at(now_ns + asked, self.happen)
            return
        self.work = work = asked if isinstance(asked, Work) else Work(asked)
        for each in (work.duration_ns, work.launch_ns):
            if type(each) is not int or each < 0:
                check_integer(f"what {self.label!r} takes, in ns,", each, 0, error=EngineError)
        self.parts = 1 + len(work.flows)
        self.clock.at(now_ns + work.launch_ns, self._launched)

    def _launched(self) -> None:
        self.clock.at(self.clock.now_ns + self.work.duration_ns, self._over)
        flows = self.work.flows
        if len(flows) > 1 and self.engine.machine.device(self.queue).accesses == "in_turn":
            flows = flows[:1]
        for flow in flows:
            self._move(flow)

    def _move(self, flow: Flow) -> None:
        network = self.engine.network
        transfer = Transfer(network, "", *flow, self.label, (), self._arrived, device=self.queue)
        self.moved.append(transfer)
        transfer.proceed()

    def _arrived(self, transfer: Transfer) -> None:
        transfer.end_ns = self.clock.now_ns
        if self.engine.recording:
            self.engine.record(transfer)
        if len(self.moved) < len(self.work.flows):
            self._move(self.work.flows[len(self.moved)])
        self._over()

    def _over(self) -> None:
        self.parts -= 1
        if not self.parts:
            self.happen()


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
        what = f"what {label!r} takes, in ns,"
        duration_ns = check_integer(what, duration_ns, 0, error=EngineError)
        return self.work(lambda: duration_ns, label, after, category)

    def work(
        self,
        ask: Callable[[], Work | int],
        label: str,
        after: Iterable[Event] = (),
        category: str = "work",
    ) -> Action:
        """An entry that takes what ``ask`` says when it begins: ns, or a
        :class:`~sw_driver.system.work.Work`. If that moves bytes, the queue's name is its
        device's."""
        action = _Do(self.engine.clock, self.name, label, after, self._ended)
        action.ask, action.engine, action.moved = ask, self.engine, []
        action.category = category
        return self._add(action)

    def transfer(
        self, nbytes: int, source: str, target: str, label: str, after: Iterable[Event] = ()
    ) -> Transfer:
        """An entry that moves bytes; see :meth:`Engine.transfer`."""
        network = self.engine.network
        return self._add(
            Transfer(network, self.name, nbytes, source, target, label, after, self._ended)
        )

    def call(
        self,
        function: Callable[[], Steps],
        label: str,
        after: Iterable[Event] = (),
        category: str = "call",
    ) -> Action:
        """An entry that is what a generator function does: it ends when that returns, and its value
        is what was returned. The generator yields events."""
        action = _Call(self.engine.clock, self.name, label, after, self._ended)
        action.function, action.process = function, self.engine.process
        action.category = category
        return self._add(action)

    def _add(self, action: Any) -> Any:
        if self.engine.log is not None:
            action.awaited = tuple(action.after)
        if self.head is None:
            self.head = action
            action.proceed()
        else:
            self._entries.append(action)
        return action

    def _ended(self, action: Any) -> None:
        engine = self.engine
        action.end_ns = now_ns = engine.clock.now_ns
        self.busy_ns += now_ns - action.begin_ns
        if engine.recording:
            engine.record(action)
        if self._entries:
            self.head = self._entries.popleft()
            self.head.proceed()
        else:
            self.head = None


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
        self.log = log = Log() if record else None
        self.clock = clock = Clock()
        self.network = Network(clock, machine, log)
        self.queues: dict[str, Queue] = {}
        self.memories = {
            memory.name: Account(
                clock, memory.name, int(memory.capacity_bytes.value), log, timeline, memory.setting
            )
            for memory in machine.memories
        }
        self.recording = record or timeline is not None
        self._processes: dict[Process, None] = {}
        """Those that have not returned."""
        self._pending: dict[Transfer, None] = {}
        """Transfers without a queue that have not ended."""
        self._ended = self._ended  # one bound method for all transfers

    @property
    def now_ns(self) -> int:
        return self.clock.now_ns

    def memory(self, name: str) -> Account:
        """Raises :class:`~sw_driver.machine.parts.MachineError` if there is none of that name."""
        return self.memories[self.machine.memory(name).name]

    def queue(self, name: str) -> Queue:
        """The queue of that name, which is made when it is first asked for."""
        if name not in self.queues:
            self.queues[name] = Queue(self, name)
        return self.queues[name]

    def process(self, steps: Steps, name: str = "") -> Process:
        """Lets a generator run, which yields the events that it waits for."""
        process = self.clock.process(steps, name)
        self._processes[process] = None
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
        transfer = Transfer(self.network, "", nbytes, source, target, label, after, self._ended)
        if self.log is not None:
            transfer.awaited = tuple(transfer.after)
        self._pending[transfer] = None
        transfer.proceed()
        return transfer

    def run(self) -> int:
        """Runs until nothing is left to do; returns the time.

        Raises :class:`~sw_driver.device.errors.DeadlockError` if something still waits then, and
        what a process raised. If it waits for room the memory is named that is too small.
        """
        self.clock.run()
        stuck = self._stuck()
        if stuck:
            more = f"\n  and {len(stuck) - _NAMED} more" if len(stuck) > _NAMED else ""
            lacks = "".join(f"{each.lack}.\n" for each in self.memories.values() if each.lack)
            raise DeadlockError(
                f"{lacks}at {self.now_ns} ns nothing can happen any more, but\n  "
                + "\n  ".join(stuck[:_NAMED])
                + more
            )
        return self.now_ns

    def check(self) -> None:
        """Checks that what was recorded can be, on this machine.

        Raises :class:`~sw_driver.system.log.ConservationError` if not, and
        :class:`~sw_driver.system.errors.EngineError` if nothing was recorded.
        """
        if self.log is None:
            raise EngineError("nothing was recorded: make the engine with record=True")
        check_log(self.log, self.machine)

    def record(self, action: Any) -> None:
        """Writes down what has ended now, for the log and the timeline."""
        log, timeline = self.log, self.timeline
        begin_ns, end_ns = times = action.begin_ns, action.end_ns
        waited = [each for each in action.awaited if isinstance(each, Action)]
        after_ns = max((getattr(each, "end_ns", _NEVER) for each in waited), default=0)
        tracks = [f"queue {action.queue}"] if action.queue else []
        moved = {}
        if type(action) is Transfer:
            path, nbytes = action.path, action.nbytes
            moved = {"nbytes": nbytes, "from": path.source, "to": path.target}
            if log is not None:
                number, of_path = action.number, (nbytes, path.source, path.target)
                log.transferred.append(
                    Transferred(number, action.label, *of_path, *times, after_ns, action.device)
                )
            if timeline is not None:
                for link, writing in path.hops:
                    way = "" if link.sharing == "half" else " write" if writing else " read"
                    track = f"link {link.name}{way}"
                    number = timeline.lane(track, *times)
                    tracks.append(track + f" {number + 1}" * (number > 0))
        if log is not None and action.queue:
            log.ran.append(Ran(action.queue, action.label, *times, after_ns))
            if isinstance(action, _Do):
                work, moved_by = action.work, tuple(each.number for each in action.moved)
                of_work = (work.launch_ns, work.duration_ns, work.flows)
                log.worked.append(Worked(action.queue, *times, *of_work, moved_by))
        if timeline is not None:
            for track in tracks:
                timeline.track(track)
                timeline.add(track, action.label, begin_ns, end_ns, action.category, **moved)

    def _ended(self, transfer: Transfer) -> None:
        del self._pending[transfer]
        transfer.end_ns = self.now_ns
        if self.recording:
            self.record(transfer)

    def _stuck(self) -> list[str]:
        """Who waits for what, in words."""
        heads = [queue.head for queue in self.queues.values() if queue.head is not None]
        actions = [action for action in (*heads, *self._pending) if action.after]
        found = [f"{action.what} waits for {action.after[-1].what}" for action in actions]
        found += [f"{each.what} waits for {each.waits_for.what}" for each in self._processes]
        for account in self.memories.values():
            found += account.waiting()
        return found
