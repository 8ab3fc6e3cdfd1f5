"""Runs a training step on an engine: under a policy that decides as it goes, or by a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ..numbers import check_integer
from ..workload.trace import PHASES, Op, Tensor, Trace
from .action import Action
from .clock import Event, Steps
from .engine import Engine
from .errors import EngineError

__all__ = ["Cost", "Free", "Move", "Plan", "Policy", "Run", "Step", "drive", "replay"]

Cost = Callable[[Op, str], int]
"""How long an operation takes on the device of that name, in ns."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """When a step was done."""

    begin_ns: int
    end_ns: int
    """When nothing was left to do, transfers that the policy began included."""
    phase_end_ns: Mapping[str, int]
    """When the last operation of each phase was done; phases without operations are not in it."""

    @property
    def total_ns(self) -> int:
        return self.end_ns - self.begin_ns

    @property
    def phase_ns(self) -> dict[str, int]:
        """How long each phase took from the end of those before it; what overlaps them, counts for
        them."""
        before_ns, found = self.begin_ns, {}
        for phase, end_ns in self.phase_end_ns.items():
            found[phase] = max(end_ns - before_ns, 0)
            before_ns = max(end_ns, before_ns)
        return found


class Policy:
    """Decides for each operation; this one lets everything run on the default device at once."""

    def place(self, op: Op) -> str | None:
        """The device that runs it; an empty text is the default one. None if the policy sees to it
        itself, or leaves it out."""
        return ""

    def before(self, op: Op) -> Iterable[Event]:
        """What the operation waits for. Called when the framework queues it, which may be long
        before it runs."""
        return ()

    def after(self, op: Op) -> None:
        """Called when it is done."""


def drive(
    engine: Engine,
    trace: Trace,
    policy: Policy,
    *,
    device: str = "",
    ahead_ops: int | None = None,
    cost: Cost | None = None,
) -> Step:
    """Runs a step, as a framework does that queues the operations in program order.

    Each device runs its own in that order, in the queue of its name; one that needs what another
    device computed waits for it.

    Parameters
    ----------
    device: the default one; the machine's first if not given.
    ahead_ops: how many operations the framework queues ahead of the oldest that is not done;
        without it all at once.
    cost: such as a profile's ``ns``; by what the devices say if not given.
    """
    if ahead_ops is not None:
        check_integer("ahead_ops", ahead_ops, 0)
    check_integer("the number of devices", len(engine.machine.devices))
    default = device or engine.machine.devices[0].name
    ask = cost or _costs(engine)
    actions: dict[int, Action] = {}

    def host() -> Steps:
        for op in trace.ops:
            if ahead_ops is not None and op.id - ahead_ops - 1 in actions:
                yield actions[op.id - ahead_ops - 1]
            place = policy.place(op)
            after = list(policy.before(op))
            if place is None:
                continue
            place = place or default
            queue, duration_ns = engine.queue(place), ask(op, place)
            for needed in trace.dependencies[op.id]:
                if needed in actions and actions[needed].queue != place:
                    after.append(actions[needed])
            action = queue.execute(duration_ns, _label(trace, op), after, op.phase)
            action.callbacks.append(lambda _, op=op: policy.after(op))
            actions[op.id] = action

    begin_ns = engine.now_ns
    engine.process(host(), "framework")
    return _step(engine, trace, begin_ns, actions)


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Runs an operation in its device's queue. What it writes and has no place yet gets one."""

    op: int
    device: str
    after: tuple[int, ...] = ()
    """Numbers of actions of the plan before this one; the same for the others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """Takes room for a tensor, waiting for it, brings it there, and gives its old place back."""

    tensor: int
    source: str
    target: str
    after: tuple[int, ...] = ()
    keep: bool = False
    """Whether it stays in the old place, too."""
    queue: str = ""
    """In whose order it is; that of its two ends if not given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Free:
    """Gives back the place of a tensor."""

    tensor: int
    memory: str
    after: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to do, in the order in which each queue does it.

    Raises :class:`EngineError` for an action that waits for itself or a later one.
    """

    actions: tuple[Run | Move | Free, ...]
    placed: Mapping[int, str] = field(default_factory=dict)
    """In which memory a tensor is at the beginning."""

    def __post_init__(self) -> None:
        for number, action in enumerate(self.actions):
            for other in action.after:
                if type(other) is not int or not 0 <= other < number:
                    raise EngineError(
                        f"action {number}, {action}, waits for {other}, not before it"
                    )


def replay(engine: Engine, trace: Trace, plan: Plan, *, cost: Cost | None = None) -> Step:
    """Does what the plan says; tensors hold memory by their ids.

    Raises :class:`EngineError` for a tensor that is not where it is needed when it is,
    :class:`~sw_driver.system.errors.NoRoomError` if ``placed`` does not fit, and
    :class:`~sw_driver.device.errors.DeadlockError` if room never comes.
    """
    begin_ns, ask = engine.now_ns, cost or _costs(engine)
    for action in plan.actions:
        known = trace.ops if isinstance(action, Run) else trace.tensors
        number = action.op if isinstance(action, Run) else action.tensor
        if type(number) is not int or not 0 <= number < len(known):
            raise EngineError(
                f"{action}: the trace {trace.name} has {len(known)} of them, from 0 on"
            )
    for tensor, memory in plan.placed.items():
        if type(tensor) is not int or not 0 <= tensor < len(trace.tensors):
            raise EngineError(f"tensor {tensor} is placed: {trace.name} has {len(trace.tensors)}")
        engine.memory(memory).take(tensor, trace.tensors[tensor].nbytes)
    events: list[Event] = []
    runs: dict[int, Action] = {}
    for action in plan.actions:
        after = [events[number] for number in action.after]
        if isinstance(action, Run):
            if action.op in runs:
                raise EngineError(f"operation {action.op} runs twice")
            runs[action.op] = event = _run(engine, trace, action, after, ask)
        elif isinstance(action, Move):
            event = _move(engine, trace.tensors[action.tensor], action, after)
        else:
            event = engine.process(_free(engine, action, after), f"free tensor {action.tensor}")
        events.append(event)
    return _step(engine, trace, begin_ns, runs)


def _run(engine: Engine, trace: Trace, action: Run, after: list[Event], ask: Cost) -> Action:
    op, device = trace.ops[action.op], engine.machine.device(action.device)

    def run() -> Steps:
        here = engine.memory(device.memory)
        for tensor in op.reads:
            _expect(engine, tensor, here.name, f"operation {op.id}, {_label(trace, op)},")
        for tensor in op.writes:
            if not here.holds(tensor):
                yield here.room(trace.tensors[tensor].nbytes, tensor)
        yield engine.clock.timeout(ask(op, device.name))

    return engine.queue(device.name).call(run, _label(trace, op), after, op.phase)


def _move(engine: Engine, tensor: Tensor, action: Move, after: list[Event]) -> Action:
    source, target, label = action.source, action.target, f"tensor {tensor.id}"

    def move() -> Steps:
        _expect(engine, tensor.id, source, f"its move to {target}")
        yield engine.memory(target).room(tensor.nbytes, tensor.id)
        yield engine.transfer(tensor.nbytes, source, target, label)
        if not action.keep:
            engine.memory(source).give(tensor.id)

    queue = engine.queue(action.queue or f"{source} to {target}")
    return queue.call(move, label, after, "move")


def _free(engine: Engine, action: Free, after: list[Event]) -> Steps:
    yield from after
    engine.memory(action.memory).give(action.tensor)


def _costs(engine: Engine) -> Cost:
    return lambda op, device: engine.machine.device(device).cost(op)


def _label(trace: Trace, op: Op) -> str:
    return f"{trace.layers[op.layer]} {op.kind}"


def _step(engine: Engine, trace: Trace, begin_ns: int, actions: Mapping[int, Action]) -> Step:
    engine.run()
    ends: dict[str, int] = {}
    for phase in PHASES:
        found = [action.end_ns for op, action in actions.items() if trace.ops[op].phase == phase]
        if found:
            ends[phase] = max(found)
    return Step(begin_ns=begin_ns, end_ns=engine.now_ns, phase_end_ns=ends)


def _expect(engine: Engine, tensor: int, memory: str, who: str) -> None:
    if not engine.memory(memory).holds(tensor):
        places = [name for name, account in engine.memories.items() if account.holds(tensor)]
        raise EngineError(
            f"at {engine.now_ns} ns {who} needs tensor {tensor} in memory {memory!r}: it is "
            + (f"in {', '.join(places)}" if places else "nowhere")
        )
