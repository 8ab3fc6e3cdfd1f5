"""Placement of tensors in a fast and a slow memory: base policy, move queues, runs of steps."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from sw_driver.device.timeline import Timeline
from sw_driver.machine import Machine
from sw_driver.workload.trace import LASTING, Op, Tensor, Trace

from .clock import EngineEvent
from .driving import Policy, drive
from .engine import Engine
from .outcome import Outcome, spans_of
from .residency import Residency
from .work import DeviceWork, work_of

__all__ = ["FAST", "SLOW", "MoveQueue", "Placed", "Placing", "life", "run"]

FAST, SLOW = "fast", "slow"
"""Names of the two memories of every machine here."""


@dataclass(frozen=True, kw_only=True)
class Placed(Outcome):
    """The last of several consecutive steps under a policy; the earlier ones warm it up.

    ``moved_bytes`` is by tensor, both directions together. A move counts in the step in which it
    begins.
    """

    policy: Placing
    steps_ns: tuple[int, ...]
    """Duration of each step, in ns."""
    moves: tuple[Mapping[int, int], ...]
    """Bytes moved, by step and tensor."""


class Placing(Policy):
    """Keeps tensors where they are allocated: in the fast memory while there is room.

    :meth:`begins` places lasting tensors before the first step. Operations run one after the other;
    the policy is asked about each when the one before has ended.
    """

    def __init__(self, engine: Engine, trace: Trace, step: Trace) -> None:
        self.engine, self.trace, self.step = engine, trace, step
        """``trace`` is ``step``, repeated."""
        self.fast = engine.memory(FAST)
        self._device = engine.queue(engine.machine.devices[0].name)
        self.residency = Residency(
            engine, lambda key, _: self.nbytes(key), name=lambda key: f"tensor {key}"
        )
        self.begun: list[tuple[int, int, int]] = []
        """Moves that began: time in ns, tensor of the single step, and bytes."""
        self.number = 0
        """Index of the running step."""
        self.busy_ns = 0
        """Busy time of the device before the running step, in ns."""
        self.moving: dict[int, EngineEvent] = {}
        """Tensors that queues are moving, with the events of their arrival."""
        self._new = [tensor.id for tensor in step.tensors if tensor.kind not in LASTING]
        self._places = {tensor: place for place, tensor in enumerate(self._new)}
        self.base = (*range(len(step.tensors)), *self._new * trace.steps).__getitem__
        """Function that maps a tensor of the repeated trace to its tensor in the single step."""
        self.born: dict[int, list[Tensor]] = {}
        """Tensors allocated before each operation, by operation."""
        self._dies: dict[int, list[Tensor]] = {}
        for tensor in trace.tensors:
            if tensor.kind in LASTING:
                self.residency.put(tensor.id, self.begins(tensor))
                continue
            if not life(step, step.tensors[self.base(tensor.id)]):
                continue
            number = tensor.allocated // len(step.ops)
            freed = (number + 1) * len(step.ops) if tensor.freed is None else tensor.freed
            self.born.setdefault(tensor.allocated, []).append(tensor)
            self._dies.setdefault(freed - 1, []).append(tensor)

    def now(self, tensor: int) -> int:
        """Return the tensor of the running step that a tensor of the single step stands for."""
        if not self.number or tensor not in self._places:
            return tensor
        before = len(self.step.tensors) + (self.number - 1) * len(self._new)
        return before + self._places[tensor]

    # Methods for subclasses to override

    def begins(self, tensor: Tensor) -> str:
        """Return the memory of a lasting tensor before the first step."""
        return SLOW

    def allocate(self, tensor: Tensor) -> str:
        """Return the memory for a new tensor, or an empty text if the policy places it itself."""
        return FAST if self.nbytes(tensor.id) <= self.room(tensor.id) else SLOW

    def release(self, tensor: Tensor) -> None:
        """Free a tensor when its life ends."""
        self.residency.free(tensor.id)

    def nbytes(self, tensor: int) -> int:
        """Return the bytes that a tensor takes in a memory, and moves."""
        return self.trace.tensors[tensor].nbytes

    def room(self, tensor: int) -> int:
        """Return the bytes of fast memory that a tensor may take: those that are free."""
        return self.fast.free_bytes

    def where(self, tensor: int) -> str:
        """Return the memory that holds a tensor; empty if none does."""
        return self.residency.where(tensor)

    def begin(self, op: Op) -> Iterable[EngineEvent]:
        """Return the events that an operation waits for, before its new tensors are allocated."""
        return ()

    # Methods of Policy

    def before(self, op: Op) -> Iterable[EngineEvent]:
        self.number, first = divmod(op.id, len(self.step.ops))
        if not first:
            self.busy_ns = self._device.busy_ns
        return self.begin(op)

    def after(self, op: Op) -> None:
        for tensor in self._dies.get(op.id, ()):
            self.release(tensor)

    def cost(self, op: Op, device: str) -> DeviceWork | int:
        """Allocate an operation's new tensors and return its work where its tensors are."""
        for tensor in self.born.get(op.id, ()):
            if place := self.allocate(tensor):
                self.residency.put(tensor.id, place)
        return work_of(self.engine.machine, op, device, self.where)


class MoveQueue:
    """Moves tensors to a memory in the order of requests, at most ``width`` at once.

    A tensor that does not fit now waits, and so do those behind it.
    """

    def __init__(self, policy: Placing, target: str, width: int = 1) -> None:
        self.policy, self.target, self.width = policy, target, width
        self.waiting: deque[int] = deque()
        self.moving: dict[int, EngineEvent] = {}
        """Tensors on their way, with the events of their arrival."""
        self._watching = False

    def ask(self, tensor: int) -> None:
        """Queue a move of a tensor."""
        self.waiting.append(tensor)
        self._go()

    def drop(self) -> None:
        """Drop all moves that have not begun."""
        self.waiting.clear()

    def forget(self, tensor: int) -> None:
        """Drop the move of one tensor, if it has not begun."""
        if tensor in self.waiting:
            self.waiting.remove(tensor)

    def _go(self) -> None:
        policy, residency = self.policy, self.policy.residency
        account = policy.engine.memory(self.target)
        while self.waiting and len(self.moving) < self.width:
            tensor = self.waiting[0]
            nbytes = policy.nbytes(tensor)
            room = policy.room(tensor) if account is policy.fast else account.free_bytes
            moving = tensor in policy.moving
            never = not residency.where(tensor) or nbytes > account.capacity_bytes
            if not moving and (never or residency.has(tensor, self.target)):
                self.waiting.popleft()
            elif moving or nbytes > room:
                if not self._watching:
                    self._watching = True
                    change = policy.moving.get(tensor) or account.change(nbytes, tensor)
                    change.callbacks.append(self._changed)
                return
            else:
                self.waiting.popleft()
                policy.begun.append((policy.engine.now_ns, policy.base(tensor), nbytes))
                coming = residency.move(tensor, self.target)
                self.moving[tensor] = policy.moving[tensor] = coming
                coming.callbacks.append(lambda _, tensor=tensor: self._came(tensor))

    def _changed(self, _: EngineEvent) -> None:
        self._watching = False
        self._go()

    def _came(self, tensor: int) -> None:
        del self.moving[tensor], self.policy.moving[tensor]
        self._go()


def life(step: Trace, tensor: Tensor) -> range:
    """Return the operations during which a tensor has memory."""
    if tensor.kind in LASTING:
        return range(len(step.ops))
    return range(tensor.allocated, len(step.ops) if tensor.freed is None else tensor.freed)


Make = Callable[[Engine, Trace, Trace], Placing]


def run(
    machine: Machine,
    step: Trace,
    make: Make,
    *,
    steps: int = 3,
    timeline: Timeline | None = None,
    record: bool = False,
) -> Placed:
    """Run ``steps`` consecutive steps on the first device of a machine.

    ``make`` builds the policy from an engine, the repeated trace and the single step.
    """
    engine = Engine(machine, timeline, record=record)
    trace = step.unrolled(steps)
    policy = make(engine, trace, step)
    done = drive(engine, trace, policy, ahead_ops=0, cost=policy.cost)
    if record:
        engine.check()
    ends = done.step_end_ns[step.steps - 1 :: step.steps]
    moves = [Counter[int]() for _ in range(steps + 1)]  # the last is for moves after the steps
    for at_ns, tensor, nbytes in policy.begun:
        moves[bisect_right(ends, at_ns)][tensor] += nbytes
    steps_ns = tuple(end - begin for begin, end in pairwise((done.begin_ns, *ends)))
    device = machine.devices[0].name
    return Placed(
        policy=policy,
        step_ns=steps_ns[-1],
        steps_ns=steps_ns,
        busy_ns={device: engine.queue(device).busy_ns - policy.busy_ns},
        moves=tuple(moves[:steps]),
        moved_bytes=moves[steps - 1],
        peak_bytes={FAST: policy.fast.peak_bytes},
        spans=spans_of(engine, ends[-2] if steps > 1 else done.begin_ns, ends[-1]),
    )
