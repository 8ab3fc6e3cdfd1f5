"""Training steps on an engine, under a policy that decides for each operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

from ..numbers import check_integer
from ..workload.trace import PHASES, Op, Trace
from .clock import Action, EngineEvent, ProcessSteps
from .engine import Engine
from .outcome import Outcome, outcome_of
from .work import DeviceWork

__all__ = ["Cost", "Policy", "Step", "drive"]

Cost = Callable[[Op, str], DeviceWork | int]
"""Cost of an operation on the named device: ns, or work that moves bytes."""


@dataclass(frozen=True, kw_only=True)
class Step(Outcome):
    """One training step or several consecutive ones, until nothing is left to do.

    Transfers that the policy began are included. ``marks_ns`` has the end of each phase that has
    operations.
    """

    begin_ns: int = field(compare=False)
    step_end_ns: tuple[int, ...] = field(compare=False)
    """End of the last operation of each step and those before it, in ns."""

    @property
    def phase_ns(self) -> dict[str, int]:
        """Duration in ns of each phase of the last step, from the end of the phase before it.

        Other work that overlaps a phase counts towards it.
        """
        before_ns, phases_ns = (self.begin_ns, *self.step_end_ns)[-2] - self.begin_ns, {}
        for phase, end_ns in self.marks_ns.items():
            phases_ns[phase] = max(end_ns - before_ns, 0)
            before_ns = max(end_ns, before_ns)
        return phases_ns


class Policy:
    """A policy that runs every operation on the default device at once; others override it.

    Examples
    --------
    >>> from sw_driver.machine.presets import PRESETS
    >>> from sw_driver.system.engine import Engine
    >>> from sw_driver.workload import load_trace
    >>> outcome = drive(Engine(PRESETS["axdimm_platform"]), load_trace("gpt-tiny"), Policy())
    >>> outcome.phase_ns
    {'forward': 230804, 'backward': 331416, 'update': 140940}
    """

    def place(self, op: Op) -> str | None:
        """Return the device that runs an operation; an empty text is the default device.

        Return None if the policy runs the operation itself, or leaves it out.
        """
        return ""

    def before(self, op: Op) -> Iterable[EngineEvent]:
        """Return the events that an operation waits for.

        Called when the framework queues the operation, possibly long before it runs.
        """
        return ()

    def after(self, op: Op) -> None:
        """Handle the end of an operation; called only for operations that were placed."""


def drive(
    engine: Engine,
    trace: Trace,
    policy: Policy,
    *,
    device: str = "",
    ahead_ops: int | None = None,
    cost: Cost | None = None,
) -> Step:
    """Run a step, or the steps of an unrolled trace.

    Operations are queued in program order, as a framework does. Each device runs its own in the
    queue of its name, and steps of an unrolled trace may overlap. An operation waits for the
    results of other devices that it needs.

    Parameters
    ----------
    device: default device; the machine's first if not given.
    ahead_ops: operations that a framework queues ahead of the oldest one not done; all at once if
        not given.
    cost: cost of an operation, computed when it begins, such as a profile's ``ns``, or
        :func:`~sw_driver.system.work.work_of` by where the tensors are. The devices' figures if not
        given.
    """
    if ahead_ops is not None:
        check_integer("ahead_ops", ahead_ops, 0)
    check_integer("the number of devices", len(engine.machine.devices))
    run = _Run(engine, trace, policy, device or engine.machine.devices[0].name, cost)
    before = outcome_of(engine)
    engine.process(run.in_program_order(ahead_ops), "framework")
    engine.run()
    return run.step(before)


class _Run:
    """State of a trace that runs."""

    def __init__(
        self, engine: Engine, trace: Trace, policy: Policy, default: str, cost: Cost | None
    ) -> None:
        self.engine, self.trace, self.policy, self.default = engine, trace, policy, default
        devices = engine.machine.device
        self.cost: Cost = cost or (lambda op, device: devices(device).cost(op))
        self.actions: dict[int, Action] = {}
        """Operations that are queued and not done."""
        self.phase_end_ns: dict[str, int] = {}
        self.step_end_ns = [engine.now_ns] * trace.steps

    def in_program_order(self, ahead_ops: int | None) -> ProcessSteps:
        actions, policy = self.actions, self.policy
        for op in self.trace.ops:
            if ahead_ops is not None and op.id - ahead_ops - 1 in actions:
                yield actions[op.id - ahead_ops - 1]
            place = policy.place(op)
            after = list(policy.before(op))
            if place is not None:
                self.queue(op, place or self.default, after)

    def queue(self, op: Op, place: str, after: list[EngineEvent]) -> Action:
        actions = self.actions
        for needed in self.trace.dependencies[op.id]:
            if needed in actions and actions[needed].queue != place:
                after.append(actions[needed])
        label = _label(self.trace, op)
        queue = self.engine.queue(place)
        action = actions[op.id] = queue.work(partial(self.cost, op, place), label, after, op.phase)
        action.callbacks.append(partial(self.done, op))
        return action

    def done(self, op: Op, _: EngineEvent) -> None:
        del self.actions[op.id]
        self.phase_end_ns[op.phase] = now_ns = self.engine.now_ns
        self.step_end_ns[op.id * self.trace.steps // len(self.trace.ops)] = now_ns
        self.policy.after(op)

    def step(self, before: Outcome) -> Step:
        begin_ns, ends = before.step_ns, self.phase_end_ns
        marks_ns = {phase: ends[phase] - begin_ns for phase in PHASES if phase in ends}
        made = outcome_of(self.engine, before, marks_ns=marks_ns)
        ends_ns = tuple(accumulate(self.step_end_ns, max))
        return Step(**vars(made), begin_ns=begin_ns, step_end_ns=ends_ns)


def _label(trace: Trace, op: Op) -> str:
    return f"{trace.layers[op.layer]} {op.kind}"
