"""Steps in a fast and a slow memory: first touch, and lanes, by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from hw_tests.driver.system.sentinel.steps import a_machine, a_step
from sw_driver.system.clock import EngineEvent
from sw_driver.system.engine import Engine
from sw_driver.system.placing import FAST, SLOW, MoveQueue, Placing, run
from sw_driver.workload.trace import Op, Tensor, Trace

STEP = a_step(
    1,
    (0, "p > a"),
    (0, "a > b"),
    (1, "a b > c"),
    (1, "b c > p"),
    sizes={"p": 100, "a": 60, "b": 80, "c": 40},
)
P, A, B, C = range(4)


def test_first_touch_leaves_everything_where_it_had_room() -> None:
    """In 100 bytes there is room for a, not for b beside it, and for c when a is gone: that is
    after the operation that writes c."""
    outcome = run(a_machine(100), STEP, Placing, steps=2, record=True)
    assert outcome.steps_ns == (100 + 30 + 30 + 80 + 30 + 80 + 20 + 80 + 20 + 100,) * 2
    assert [sum(move.values()) for move in outcome.moves] == [0, 0]
    assert outcome.peak_bytes["fast"] == 100
    # With one byte less c is in slow memory, where it takes twice as long to write and read.
    less = run(a_machine(99), STEP, Placing, steps=2)
    assert less.step_ns == outcome.step_ns + 20 + 20
    lasts = replace(STEP, tensors=(*STEP.tensors[:C], replace(STEP.tensors[C], freed=None)))
    assert run(a_machine(100), lasts, Placing, steps=2).steps_ns == outcome.steps_ns
    everything = run(a_machine(1000), STEP, Placing)
    assert everything.step_ns == 100 + 30 + 30 + 40 + 30 + 40 + 20 + 40 + 20 + 100


def test_who_has_memory_in_no_operation_takes_none() -> None:
    behind = Tensor(id=C + 1, nbytes=9, kind="gradient", allocated=len(STEP.ops))
    never = replace(behind, id=C + 2, allocated=2, freed=2)
    step = replace(STEP, tensors=(*STEP.tensors, behind, never))
    outcome = run(a_machine(100), step, Placing)
    assert outcome.steps_ns == run(a_machine(100), STEP, Placing).steps_ns
    assert outcome.peak_bytes["fast"] == 100


def test_a_trace_of_two_steps_is_a_step() -> None:
    make = partial(_Asks, plan={0: lambda coming, _: coming.ask(P)})
    once = run(a_machine(1000), STEP, make, steps=2)
    twice = run(a_machine(1000), STEP.unrolled(2), make, steps=2)
    assert twice.steps_ns == (sum(once.steps_ns), 2 * once.step_ns)
    assert [sum(move.values()) for move in twice.moves] == [100, 0]


SIZES = {"p": 100, "pq": 140, "pr": 50, "ps": 10}
LASTS = a_step(1, (0, ">"), (0, ">"), (1, ">"), (1, "p pq pr ps >"), sizes=SIZES)
LASTS = replace(LASTS, ops=tuple(replace(op, flops=1000) for op in LASTS.ops))
"""Each of four operations takes 1000 ns, wherever the tensors are that the last needs."""
Q, R, S = 1, 2, 3

Plan = Mapping[int, Callable[[MoveQueue, MoveQueue], object]]
"""What is asked before operations of the lanes to fast and to slow memory."""


class _Asks(Placing):
    def __init__(
        self, engine: Engine, trace: Trace, step: Trace, plan: Plan, width: int = 1
    ) -> None:
        super().__init__(engine, trace, step)
        self.plan, self.lanes = plan, (MoveQueue(self, FAST, width), MoveQueue(self, SLOW))

    def begin(self, op: Op) -> Iterable[EngineEvent]:
        if op.id in self.plan:
            self.plan[op.id](*self.lanes)
        return ()


def _moves(plan: Plan, fast_bytes: int = 250, width: int = 1) -> list[tuple[int, str, int, int]]:
    """What was moved: the tensor, where to, and from when to when."""
    make = partial(_Asks, plan=plan, width=width)
    outcome = run(a_machine(fast_bytes), LASTS, make, steps=1, record=True)
    log = outcome.policy.engine.log
    assert log is not None
    moves = [transfer for transfer in log.transferred if not transfer.device]
    assert sum(outcome.moved_bytes.values()) == sum(move.nbytes for move in moves)
    return [(int(move.label.split()[1]), move.target, move.begin_ns, move.end_ns) for move in moves]


def _ask(lane: MoveQueue, *tensors: int) -> None:
    for tensor in tensors:
        lane.ask(tensor)


def test_lanes_move_in_order_and_bring_back_what_leaves() -> None:
    plan: Plan = {
        0: lambda coming, _: _ask(coming, P, Q, R, S),
        1: lambda _, leaving: _ask(leaving, Q),
        2: lambda coming, leaving: (_ask(leaving, P), _ask(coming, P)),
    }
    assert _moves(plan) == [
        (P, FAST, 0, 100),
        (Q, FAST, 100, 240),
        (Q, SLOW, 1000, 1140),
        (R, FAST, 1140, 1190),
        (S, FAST, 1190, 1200),  # there was room for it before, but it was behind r
        (P, SLOW, 2000, 2100),
        (P, FAST, 2100, 2200),
    ]


def test_a_wide_lane_moves_two_at_once() -> None:
    plan: Plan = {0: lambda coming, _: _ask(coming, P, Q)}
    assert _moves(plan, width=2) == [(P, FAST, 0, 200), (Q, FAST, 0, 240)]


def test_lanes_forget_what_has_not_begun_and_what_never_fits() -> None:
    plan: Plan = {
        0: lambda coming, _: (_ask(coming, P, Q, R, S), coming.forget(P), coming.forget(R)),
        1: lambda coming, _: (_ask(coming, R, S), coming.drop()),
        2: lambda coming, _: (_ask(coming, R, P, S), coming.drop()),
    }
    assert _moves(plan, 130) == [(P, FAST, 0, 100), (S, FAST, 100, 110)]
