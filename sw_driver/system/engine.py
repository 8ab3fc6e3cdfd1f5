"""Event-driven model of a machine: queues of operations, transfers, and memory.

Everything that can be waited for is an :class:`~sw_driver.system.clock.EngineEvent`. A policy may
add processes of its own. Times are integer ns, sizes bytes. The same calls give the same result:
simultaneous events happen in the order in which they were requested.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from ..device.errors import DeadlockError
from ..device.timeline import Timeline
from ..machine.machine import Machine
from ..numbers import check_integer
from .clock import Action, EngineClock, EngineEvent, Process, ProcessSteps
from .errors import EngineError
from .log import Log, Ran, Transferred, Worked, check_log
from .memory import Account
from .network import Network, Transfer
from .work import DeviceWork, Flow

__all__ = ["Engine", "Queue"]

_NEVER = 1 << 62

_NAMED = 8
"""Waiting actions that an error message names, at most."""


class _Call(Action):
    __slots__ = ("category", "function", "process")

    category: str
    function: Callable[[], ProcessSteps]
    process: Callable[[ProcessSteps, str], Process]

    def begin(self, now_ns: int) -> None:
        self.process(self.function(), self.label).callbacks.append(self._returned)

    def _returned(self, process: EngineEvent) -> None:
        self.succeed(process.value)


class _Do(Action):
    __slots__ = ("ask", "category", "engine", "moved", "parts", "work")

    ask: Callable[[], DeviceWork | int]
    category: str
    engine: Engine
    work: DeviceWork
    moved: list[Transfer]
    """Transfers of its flows that have begun."""
    parts: int
    """Parts not over yet: the time, and each flow."""

    def begin(self, now_ns: int) -> None:
        cost = self.ask()
        if type(cost) is int and cost >= 0:
            self.work = DeviceWork(cost)
            self.clock.at(now_ns + cost, self.happen)
            return
        self.work = work = cost if isinstance(cost, DeviceWork) else DeviceWork(cost)
        for time_ns in (work.duration_ns, work.launch_ns):
            if type(time_ns) is not int or time_ns < 0:
                check_integer(f"what {self.label!r} takes, in ns,", time_ns, 0, error=EngineError)
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
        if transfer.path.source != transfer.path.target:
            self.engine.note(transfer)
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
    """A queue that runs its entries one after the other, as a CUDA stream does."""

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
        after: Iterable[EngineEvent] = (),
        category: str = "execute",
    ) -> Action:
        """Enqueue an operation of ``duration_ns``, after earlier entries and ``after``."""
        name = f"what {label!r} takes, in ns,"
        duration_ns = check_integer(name, duration_ns, 0, error=EngineError)
        return self.work(lambda: duration_ns, label, after, category)

    def work(
        self,
        ask: Callable[[], DeviceWork | int],
        label: str,
        after: Iterable[EngineEvent] = (),
        category: str = "work",
    ) -> Action:
        """Enqueue an operation with the cost that ``ask`` returns when it begins.

        The cost is in ns, or a :class:`~sw_driver.system.work.DeviceWork`. If the work moves
        bytes, the queue must have the name of its device.
        """
        action = _Do(self.engine.clock, self.name, label, after, self._ended)
        action.ask, action.engine, action.moved = ask, self.engine, []
        action.category = category
        return self._add(action)

    def transfer(
        self, nbytes: int, source: str, target: str, label: str, after: Iterable[EngineEvent] = ()
    ) -> Transfer:
        """Enqueue a transfer of bytes; see :meth:`Engine.transfer`."""
        network = self.engine.network
        return self._add(
            Transfer(network, self.name, nbytes, source, target, label, after, self._ended)
        )

    def call(
        self,
        function: Callable[[], ProcessSteps],
        label: str,
        after: Iterable[EngineEvent] = (),
        category: str = "call",
    ) -> Action:
        """Enqueue a call of a generator function.

        The generator yields events. The entry ends when it returns, with the returned value.
        """
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
        engine.note(action)
        if engine.recording:
            engine.record(action)
        if self._entries:
            self.head = self._entries.popleft()
            self.head.proceed()
        else:
            self.head = None


class Engine:
    """A running machine.

    Parameters
    ----------
    timeline: records every action, if given. Make it with ``fabric_mhz=1000``, so that its cycles
        are nanoseconds. Each queue has a track, and each link one for every concurrent transfer. A
        counter for each memory shows the bytes held.
    record: whether to write everything into ``log``, for :meth:`check`.

    Examples
    --------
    >>> from sw_driver.machine.tiny import TINY
    >>> engine = Engine(TINY)
    >>> copy = engine.transfer(2000, "host", "gpu", "weights")
    >>> work = engine.queue("compute").execute(500, "forward", after=[copy])
    >>> engine.run(), copy.end_ns
    (1600, 1100)
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
        self.clock = clock = EngineClock()
        self.network = Network(clock, machine, log)
        self.queues: dict[str, Queue] = {}
        self.memories = {
            memory.name: Account(
                clock, memory.name, int(memory.capacity_bytes.value), log, timeline, memory.setting
            )
            for memory in machine.memories
        }
        self.recording = record or timeline is not None
        self.noted: list[tuple[str, str, int, int]] = []
        """Lane, name, begin and end in ns of work and transfers, in the order of their ends."""
        self._processes: dict[Process, None] = {}
        """Processes that have not returned."""
        self._pending: dict[Transfer, None] = {}
        """Transfers without a queue that have not ended."""
        self._ended = self._ended  # one bound method for all transfers

    @property
    def now_ns(self) -> int:
        """Simulated time, in ns."""
        return self.clock.now_ns

    def memory(self, name: str) -> Account:
        """Return the account of a memory.

        Raises :class:`~sw_driver.machine.parts.MachineError` for an unknown name.
        """
        return self.memories[self.machine.memory(name).name]

    def queue(self, name: str) -> Queue:
        """Return the queue of that name; the first call creates it."""
        if name not in self.queues:
            self.queues[name] = Queue(self, name)
        return self.queues[name]

    def process(self, steps: ProcessSteps, name: str = "") -> Process:
        """Start a generator that yields the events it waits for."""
        process = self.clock.process(steps, name)
        self._processes[process] = None
        process.callbacks.append(self._processes.__delitem__)
        return process

    def transfer(
        self, nbytes: int, source: str, target: str, label: str, after: Iterable[EngineEvent] = ()
    ) -> Transfer:
        """Move bytes from one memory to another, over the route with the fewest links.

        The transfer begins when ``after`` is over, waits for the latencies, and gets its fair share
        of each link (see :mod:`sw_driver.system.network`). It takes and frees no memory. Raises
        :class:`~sw_driver.machine.parts.MachineError` if there is no route.
        """
        transfer = Transfer(self.network, "", nbytes, source, target, label, after, self._ended)
        if self.log is not None:
            transfer.awaited = tuple(transfer.after)
        self._pending[transfer] = None
        transfer.proceed()
        return transfer

    def run(self) -> int:
        """Run until nothing is left to do, and return the time in ns.

        Raises :class:`~sw_driver.device.errors.DeadlockError` if something still waits at the end;
        it names each memory that is too small. Exceptions of processes pass through.
        """
        self.clock.run()
        stuck = self._stuck()
        if stuck:
            more = f"\n  and {len(stuck) - _NAMED} more" if len(stuck) > _NAMED else ""
            accounts = self.memories.values()
            lacks = "".join(f"{account.lack}.\n" for account in accounts if account.lack)
            raise DeadlockError(
                f"{lacks}deadlock at {self.now_ns} ns:\n  " + "\n  ".join(stuck[:_NAMED]) + more
            )
        return self.now_ns

    def check(self) -> None:
        """Check that the record is possible on this machine.

        Raises :class:`~sw_driver.system.log.ConservationError` if not, and
        :class:`~sw_driver.system.errors.EngineError` if nothing was recorded.
        """
        if self.log is None:
            raise EngineError("nothing was recorded: make the engine with record=True")
        check_log(self.log, self.machine)

    def note(self, action: Any) -> None:
        """Note when an action that has ended now was busy; a call only waits for others."""
        if type(action) is Transfer:
            lane = f"{action.path.source} to {action.path.target}"
            name = "access" if action.device else "transfer"
            self.noted.append((lane, name, action.begin_ns, action.end_ns))
        elif type(action) is _Do:
            self.noted.append((action.queue, action.category, action.begin_ns, action.end_ns))

    def record(self, action: Any) -> None:
        """Add an action that has ended now to the log and the timeline."""
        log, timeline = self.log, self.timeline
        begin_ns, end_ns = times = action.begin_ns, action.end_ns
        waited = [event for event in action.awaited if isinstance(event, Action)]
        after_ns = max((getattr(event, "end_ns", _NEVER) for event in waited), default=0)
        tracks = [f"queue {action.queue}"] if action.queue else []
        moved = {}
        if type(action) is Transfer:
            path, nbytes = action.path, action.nbytes
            moved = {"nbytes": nbytes, "from": path.source, "to": path.target}
            if log is not None:
                number, route = action.number, (nbytes, path.source, path.target)
                log.transferred.append(
                    Transferred(number, action.label, *route, *times, after_ns, action.device)
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
                work, moved_by = action.work, tuple(transfer.number for transfer in action.moved)
                cost = (work.launch_ns, work.duration_ns, work.flows)
                log.worked.append(Worked(action.queue, *times, *cost, moved_by))
        if timeline is not None:
            for track in tracks:
                timeline.track(track)
                timeline.add(track, action.label, begin_ns, end_ns, action.category, **moved)

    def _ended(self, transfer: Transfer) -> None:
        del self._pending[transfer]
        transfer.end_ns = self.now_ns
        self.note(transfer)
        if self.recording:
            self.record(transfer)

    def _stuck(self) -> list[str]:
        """Return descriptions of everything that still waits, and what for."""
        heads = [queue.head for queue in self.queues.values() if queue.head is not None]
        actions = [action for action in (*heads, *self._pending) if action.after]
        waiting = [
            f"{action.description} waits for {action.after[-1].description}" for action in actions
        ]
        waiting += [
            f"{process.description} waits for {process.waits_for.description}"
            for process in self._processes
        ]
        for account in self.memories.values():
            waiting += account.waiting()
        return waiting
