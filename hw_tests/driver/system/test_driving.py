"""Training steps under a policy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest

from sw_driver.machine import MachineError
from sw_driver.machine.tiny import TINY
from sw_driver.system.clock import EngineEvent
from sw_driver.system.driving import Policy, Step, drive
from sw_driver.system.engine import Engine
from sw_driver.system.network import Transfer
from sw_driver.system.work import work_of
from sw_driver.workload.trace import KINDS, Op, Stage, Tensor, Trace

WEIGHTS, INPUT, ACTIVATION, GRADIENT = range(4)


def _trace(kinds: str, ops: Iterable[tuple[str, str, str, int]]) -> Trace:
    """Of tensors by their kinds' first letters, of 100 bytes; and of operations: phase, what they
    read and write by those tensors' numbers, and flops."""
    known = {kind[0]: kind for kind in KINDS}
    return Trace(
        name="test",
        tensors=tuple(
            Tensor(id=number, nbytes=100, kind=known[kind]) for number, kind in enumerate(kinds)
        ),
        ops=tuple(
            Op(
                id=number,
                kind=phase[:4],
                layer=0,
                stage=0,
                phase=phase,
                reads=tuple(map(int, reads)),
                writes=tuple(map(int, writes)),
                read_bytes=(0,) * len(reads),
                write_bytes=(0,) * len(writes),
                flops=flops,
            )
            for number, (phase, reads, writes, flops) in enumerate(ops)
        ),
        layers=("layer",),
        stages=(Stage(name="layer", phase="forward"),),
    )


TRACE = _trace(
    "piag",
    (
        ("forward", "01", "2", 90_000),
        ("backward", "20", "3", 190_000),
        ("update", "30", "0", 40_000),
    ),
)
"""On the tiny machine's GPU the operations take 100, 200 and 50 ns."""


def test_without_a_policy_operations_follow_each_other() -> None:
    engine = Engine(TINY, record=True)
    step = drive(engine, TRACE, Policy())
    ends_ns = {"forward": 100, "backward": 300, "update": 350}
    assert (step.begin_ns, step.step_end_ns, step.marks_ns) == (0, (350,), ends_ns)
    assert step.phase_ns == {"forward": 100, "backward": 200, "update": 50}
    assert engine.queue("gpu").busy_ns == step.step_ns == 350
    assert engine.log is not None
    assert [ran.label for ran in engine.log.ran] == ["layer forw", "layer back", "layer upda"]
    assert drive(engine, TRACE, Policy()).begin_ns == 350
    assert engine.now_ns == 700


class _Fetches(Policy):
    """Brings the weights before each operation, and has the update done by the processor."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.fetched: list[Transfer] = []
        self.done: list[tuple[int, int]] = []

    def place(self, op: Op) -> str:
        return "cpu" if op.phase == "update" else "gpu"

    def before(self, op: Op) -> Iterable[EngineEvent]:
        if op.phase == "update":
            return ()
        copy = self.engine.queue("copies").transfer(2000, "host", "gpu", f"for {op.id}")
        self.fetched.append(copy)
        return (copy,)

    def after(self, op: Op) -> None:
        self.done.append((op.id, self.engine.now_ns))


def test_a_policy_places_operations_and_lets_them_wait() -> None:
    engine = Engine(TINY, record=True)
    policy = _Fetches(engine)
    step = drive(engine, TRACE, policy)
    # The framework queues all at once, so the second copy, 1100 ns long, runs beside the first
    # operation; the processor has a tenth of the GPU's arithmetic and waits for the gradient.
    assert [copy.begin_ns for copy in policy.fetched] == [0, 1100]
    assert policy.done == [(0, 1200), (1, 2400), (2, 2800)]
    assert step.phase_ns == {"forward": 1200, "backward": 1200, "update": 400}
    engine.check()


def test_the_framework_runs_ahead_only_so_far() -> None:
    engine = Engine(TINY)
    policy = _Fetches(engine)
    drive(engine, TRACE, policy, ahead_ops=0)
    assert [copy.begin_ns for copy in policy.fetched] == [0, 1200]
    assert policy.done == [(0, 1200), (1, 2500), (2, 2900)]


def test_a_policy_may_leave_operations_to_itself_and_costs_may_be_others() -> None:
    class Forward(Policy):
        def place(self, op: Op) -> str | None:
            return "" if op.phase == "forward" else None

        def after(self, op: Op) -> None:
            engine.transfer(2000, "gpu", "host", "after")

    engine = Engine(TINY)
    step = drive(engine, TRACE, Forward(), device="cpu", cost=lambda op, device: len(device))
    end_ns = 3 + 1100
    assert (step.step_ns, step.step_end_ns, step.marks_ns) == (end_ns, (3,), {"forward": 3})


def test_an_unknown_place_is_refused() -> None:
    class Elsewhere(Policy):
        def place(self, op: Op) -> str:
            return "gpus"

    with pytest.raises(MachineError, match="device is 'gpus': did you mean gpu"):
        drive(Engine(TINY), TRACE, Elsewhere())


BRANCHES = _trace(
    "tttttt",
    (
        ("forward", "", "0", 10),
        ("forward", "0", "1", 30),
        ("forward", "1", "2", 20),
        ("forward", "0", "3", 5),
        ("forward", "0", "4", 5),
        ("forward", "3", "5", 10),
    ),
)


class _Placed(Policy):
    """Has some operations on the processor; notes when each is done."""

    def __init__(self, engine: Engine, on_cpu: Iterable[int], left_out: Iterable[int] = ()) -> None:
        self.engine, self.on_cpu, self.left_out = engine, set(on_cpu), set(left_out)
        self.placed: dict[int, int] = {}
        self.done: dict[int, int] = {}

    def place(self, op: Op) -> str | None:
        self.placed[op.id] = self.engine.now_ns
        if op.id in self.left_out:
            return None
        return "cpu" if op.id in self.on_cpu else "gpu"

    def after(self, op: Op) -> None:
        self.done[op.id] = self.engine.now_ns


def _done(
    trace: Trace, on_cpu: Iterable[int], left_out: Iterable[int] = ()
) -> tuple[_Placed, Step]:
    engine = Engine(TINY, record=True)
    policy = _Placed(engine, on_cpu, left_out)
    step = drive(engine, trace, policy, cost=lambda op, _: op.flops)
    engine.check()
    return policy, step


def test_operations_begin_in_program_order() -> None:
    policy, _ = _done(BRANCHES, (1, 5))
    assert policy.done == {0: 10, 1: 40, 2: 60, 3: 65, 4: 70, 5: 75}


def test_a_step_begins_before_the_one_before_it_is_done() -> None:
    policy, step = _done(BRANCHES.unrolled(2), (1, 5, 7, 11))
    assert policy.done[6] == 80
    assert step.step_end_ns == (75, 145)


def test_random_operations_wait_for_what_they_need_and_for_nothing_else() -> None:
    for seed in range(40):
        random = Random(seed)
        ops = []
        for number in range(10):
            before = "".join(map(str, range(number)))
            reads = "".join(random.sample(before, min(number, random.randint(0, 2))))
            also = random.choice(before) if number and random.random() < 0.3 else ""
            ops.append(("forward", reads, f"{number}{also}", random.randint(1, 50)))
        trace = _trace("".join(random.choices("pt", k=10)), ops).unrolled(2)
        on_cpu = {op.id for op in trace.ops if random.random() < 0.5}
        done = _done(trace, on_cpu)[0].done
        free_ns = {True: 0, False: 0}
        for op in trace.ops:
            ready_ns = max((done[needed] for needed in trace.dependencies[op.id]), default=0)
            place = op.id in on_cpu
            assert done[op.id] == max(ready_ns, free_ns[place]) + op.flops
            free_ns[place] = done[op.id]


def test_the_cost_is_by_where_tensors_are_when_the_operation_begins() -> None:
    """The second operation reads an activation that was brought while it waited for the first."""
    engine = Engine(TINY, record=True)
    places = {0: "host", 2: "gpu"}
    trace = replace(TRACE, ops=tuple(replace(op, **_whole(op)) for op in TRACE.ops))

    class Brings(Policy):
        def after(self, op: Op) -> None:
            places[0] = "gpu"

    step = drive(
        engine,
        trace,
        Brings(),
        cost=lambda op, device: work_of(
            TINY, op, device, lambda tensor_id: places.get(tensor_id, "")
        ),
    )
    # 200 bytes of the GPU's take 2 ns; 100 of the host's a latency and 50.
    assert step.marks_ns == {"forward": 10 + 2 + 150, "backward": 362, "update": 412}
    engine.check()


def _whole(op: Op) -> dict[str, tuple[int, ...]]:
    return {"read_bytes": (100,) * len(op.reads), "write_bytes": (100,) * len(op.writes)}
