"""Placing of tensors in a fast and a slow memory: what all such policies share, and their steps."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from sw_driver.device.timeline import Timeline
from sw_driver.machine import Machine
from sw_driver.workload.trace import LASTING, Op, Tensor, Trace

from .clock import Event
from .driving import Policy, drive
from .engine import Engine
from .outcome import Outcome
from .residency import Residency
from .work import Work, work_of

__all__ = ["FAST", "SLOW", "Lane", "Placed", "Placing", "life", "run"]

FAST, SLOW = "fast", "slow"
"""The memories of every machine here."""


@dataclass(frozen=True, kw_only=True)
class Placed(Outcome):
    """The last of some steps on end under a policy, to which the first have led. Bytes are moved of
    tensors, both ways together; a move counts in the step it begins in."""

    policy: Placing
    steps_ns: tuple[int, ...]
    """What each step took."""
    moves: tuple[Mapping[int, int], ...]
    """Bytes that were moved, by step and tensor."""


class Placing(Policy):
    """Keeps tensors where they are allocated: in the fast memory while there is room.

    Those that last are where :meth:`begins` says at first. Operations begin one after the other,
    and each is asked about when the one before is over.
    """

    def __init__(self, engine: Engine, trace: Trace, step: Trace) -> None:
        self.engine, self.trace, self.step = engine, trace, step
        """``trace`` is ``step``, several times."""
        self.fast = engine.memory(FAST)
        self._device = engine.queue(engine.machine.devices[0].name)
        self.residency = Residency(
            engine, lambda key, _: self.nbytes(key), name=lambda key: f"tensor {key}"
        )
        self.begun: list[tuple[int, int, int]] = []
        """When moves began, of which tensor of the one step, and of how many bytes."""
        self.number = 0
        """Of the step that runs."""
        self.busy_ns = 0
        """Of the device, before that step."""
        self.moving: dict[int, Event] = {}
        """What lanes have on its way, with the event of its coming."""
        self._new = [each.id for each in step.tensors if each.kind not in LASTING]
        self._places = {tensor: place for place, tensor in enumerate(self._new)}
        self.base = (*range(len(step.tensors)), *self._new * trace.steps).__getitem__
        """The tensor of the one step that one is, or is again."""
        self.born: dict[int, list[Tensor]] = {}
        """By operation who gets its memory before it."""
        self._dies: dict[int, list[Tensor]] = {}
        for each in trace.tensors:
            if each.kind in LASTING:
                self.residency.put(each.id, self.begins(each))
                continue
            if not life(step, step.tensors[self.base(each.id)]):
                continue
            number = each.allocated // len(step.ops)
            freed = (number + 1) * len(step.ops) if each.freed is None else each.freed
            self.born.setdefault(each.allocated, []).append(each)
            self._dies.setdefault(freed - 1, []).append(each)

    def now(self, tensor: int) -> int:
        """The tensor that one of the one step is in the step that runs."""
        if not self.number or tensor not in self._places:
            return tensor
        before = len(self.step.tensors) + (self.number - 1) * len(self._new)
        return before + self._places[tensor]

    # To be overridden

    def begins(self, tensor: Tensor) -> str:
        """Where a tensor that lasts is before the first step."""
        return SLOW

    def allocate(self, tensor: Tensor) -> str:
        """Where a tensor is that gets its memory now; an empty text if the policy sees to it."""
        return FAST if self.nbytes(tensor.id) <= self.room(tensor.id) else SLOW

    def release(self, tensor: Tensor) -> None:
        """Called when its memory is given back."""
        self.residency.free(tensor.id)

    def nbytes(self, tensor: int) -> int:
        """What it takes in a memory, and moves."""
        return self.trace.tensors[tensor].nbytes

    def room(self, tensor: int) -> int:
        """How many bytes of fast memory it may have: those that are free."""
        return self.fast.free_bytes

    def where(self, tensor: int) -> str:
        return self.residency.where(tensor)

    def begin(self, op: Op) -> Iterable[Event]:
        """Called before an operation; what it waits for. Its new tensors are allocated then."""
        return ()

    # Of the policy of steps

    def before(self, op: Op) -> Iterable[Event]:
        self.number, first = divmod(op.id, len(self.step.ops))
        if not first:
            self.busy_ns = self._device.busy_ns
        return self.begin(op)

    def after(self, op: Op) -> None:
        for tensor in self._dies.get(op.id, ()):
            self.release(tensor)

    def cost(self, op: Op, device: str) -> Work | int:
        for tensor in self.born.get(op.id, ()):
            if place := self.allocate(tensor):
                self.residency.put(tensor.id, place)
        return work_of(self.engine.machine, op, device, self.where)


class Lane:
    """Moves tensors to a memory, as many at once as it is wide, in the order in which they were
    asked for; who does not fit now waits, and those behind it."""

    def __init__(self, policy: Placing, target: str, width: int = 1) -> None:
        self.policy, self.target, self.width = policy, target, width
        self.waiting: deque[int] = deque()
        self.moving: dict[int, Event] = {}
        """What is on its way, with the event of its coming."""
        self._watching = False

    def ask(self, tensor: int) -> None:
        self.waiting.append(tensor)
        self._go()

    def drop(self) -> None:
        """Forgets who has not begun."""
        self.waiting.clear()

    def forget(self, tensor: int) -> None:
        """Forgets one, if it has not begun."""
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

    def _changed(self, _: Event) -> None:
        self._watching = False
        self._go()

    def _came(self, tensor: int) -> None:
        del self.moving[tensor], self.policy.moving[tensor]
        self._go()


def life(step: Trace, tensor: Tensor) -> range:
    """The operations in which a tensor has memory."""
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
    """Runs so many steps on end on the first device of a machine, under the policy that ``make``
    makes of an engine, the steps, and the one step."""
    engine = Engine(machine, timeline, record=record)
    trace = step.unrolled(steps)
    policy = make(engine, trace, step)
    done = drive(engine, trace, policy, ahead_ops=0, cost=policy.cost)
    if record:
        engine.check()
    ends = done.step_end_ns[step.steps - 1 :: step.steps]
    moves = [Counter[int]() for _ in range(steps + 1)]  # the last, of what begins behind the steps
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
    )
