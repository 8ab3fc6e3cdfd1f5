"""What all who place tensors in a fast and a slow memory have in common, and steps under them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from sw_driver.device.timeline import Timeline
from sw_driver.machine import Machine
from sw_driver.workload.trace import LASTING, Op, Tensor, Trace

from ..clock import Event
from ..driving import Policy, drive
from ..engine import Engine
from ..residency import Residency
from ..work import Work, work_of

__all__ = ["FAST", "SLOW", "Lane", "Outcome", "Placing", "run"]

FAST, SLOW = "fast", "slow"
"""The memories of every machine here."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Steps on end under a policy."""

    policy: Placing
    step_ns: tuple[int, ...]
    """What each step took; the last is the one that the first have led to."""
    moved_bytes: tuple[int, ...]
    """What was moved in each step, both ways together; a move counts in the step it begins in."""
    peak_fast_bytes: int


class Placing(Policy):
    """Keeps tensors where they are allocated: in the fast memory while there is room.

    Those that last are in :attr:`home` at first. Operations begin one after the other, and each is
    asked about when the one before is over.
    """

    home = SLOW

    def __init__(self, engine: Engine, trace: Trace, step: Trace) -> None:
        self.engine, self.trace, self.step = engine, trace, step
        """``trace`` is ``step``, several times."""
        self.fast = engine.memory(FAST)
        self.residency = Residency(
            engine, lambda key, _: trace.tensors[key].nbytes, name=lambda key: f"tensor {key}"
        )
        self.moved: list[int] = [0] * (trace.steps // step.steps)
        """Bytes, by step."""
        self.number = 0
        """Of the step that runs."""
        self._new = [each.id for each in step.tensors if each.kind not in LASTING]
        self._places = {tensor: place for place, tensor in enumerate(self._new)}
        self._born: dict[int, list[Tensor]] = {}
        self._dies: dict[int, list[Tensor]] = {}
        for each in trace.tensors:
            if each.kind in LASTING:
                self.residency.put(each.id, self.home)
                continue
            number = each.allocated // len(step.ops)
            freed = (number + 1) * len(step.ops) if each.freed is None else each.freed
            self._born.setdefault(each.allocated, []).append(each)
            self._dies.setdefault(freed - 1, []).append(each)

    def base(self, tensor: int) -> int:
        """The tensor of the one step that this is, or is again."""
        known = len(self.step.tensors)
        return tensor if tensor < known else self._new[(tensor - known) % len(self._new)]

    def now(self, tensor: int) -> int:
        """The tensor that one of the one step is in the step that runs."""
        if not self.number or tensor not in self._places:
            return tensor
        before = len(self.step.tensors) + (self.number - 1) * len(self._new)
        return before + self._places[tensor]

    # To be overridden

    def allocate(self, tensor: Tensor) -> str:
        """Where a tensor is that gets its memory now; an empty text if the policy sees to it."""
        return FAST if tensor.nbytes <= self.fast.free_bytes else SLOW

    def release(self, tensor: Tensor) -> None:
        """Called when its memory is given back."""
        self.residency.free(tensor.id)

    def where(self, tensor: int) -> str:
        return self.residency.where(tensor)

    def begin(self, op: Op) -> Iterable[Event]:
        """Called before an operation, whose new tensors are allocated then; what it waits for."""
        return ()

    # Of the policy of steps

    def before(self, op: Op) -> Iterable[Event]:
        self.number = op.id // len(self.step.ops)
        after = list(self.begin(op))
        for tensor in self._born.get(op.id, ()):
            if place := self.allocate(tensor):
                self.residency.put(tensor.id, place)
        return after

    def after(self, op: Op) -> None:
        for tensor in self._dies.get(op.id, ()):
            self.release(tensor)

    def cost(self, op: Op, device: str) -> Work | int:
        return work_of(self.engine.machine, op, device, self.where)


class Lane:
    """Moves tensors to a memory, as many at once as it is wide, in the order in which they were
    asked for; who does not fit waits, and those behind it."""

    def __init__(self, policy: Placing, target: str, width: int = 1) -> None:
        self.policy, self.target, self.width = policy, target, width
        self.waiting: deque[int] = deque()
        self.moving: dict[int, Event] = {}
        """What is on its way, with the event of its coming."""
        self._watching = False

    def ask(self, tensor: int) -> None:
        self.waiting.append(tensor)
        self._go()

    def drop(self) -> list[int]:
        """Forgets who has not begun, and returns them."""
        dropped = list(self.waiting)
        self.waiting.clear()
        return dropped

    def _go(self) -> None:
        policy, residency = self.policy, self.policy.residency
        account = policy.engine.memory(self.target)
        while self.waiting and len(self.moving) < self.width:
            tensor = self.waiting[0]
            nbytes = policy.trace.tensors[tensor].nbytes
            if residency.where(tensor) in ("", self.target):
                self.waiting.popleft()
            elif nbytes > account.free_bytes:
                if not self._watching and nbytes <= account.capacity_bytes:
                    self._watching = True
                    account.change(nbytes, tensor).callbacks.append(self._changed)
                return
            else:
                self.waiting.popleft()
                policy.moved[policy.number] += nbytes
                coming = self.moving[tensor] = residency.move(tensor, self.target)
                coming.callbacks.append(lambda _, tensor=tensor: self._came(tensor))

    def _changed(self, _: Event) -> None:
        self._watching = False
        self._go()

    def _came(self, tensor: int) -> None:
        del self.moving[tensor]
        self._go()


Make = Callable[[Engine, Trace, Trace], Placing]


def run(
    machine: Machine,
    step: Trace,
    make: Make,
    *,
    steps: int = 3,
    timeline: Timeline | None = None,
    record: bool = False,
) -> Outcome:
    """Runs so many steps on end on the first device of a machine, under the policy that ``make``
    makes of an engine, the steps, and the one step."""
    engine = Engine(machine, timeline, record=record)
    trace = step.unrolled(steps)
    policy = make(engine, trace, step)
    done = drive(engine, trace, policy, ahead_ops=0, cost=policy.cost)
    if record:
        engine.check()
    ends = (done.begin_ns, *done.step_end_ns)
    return Outcome(
        policy=policy,
        step_ns=tuple(end - begin for begin, end in pairwise(ends)),
        moved_bytes=tuple(policy.moved),
        peak_fast_bytes=policy.fast.peak_bytes,
    )
