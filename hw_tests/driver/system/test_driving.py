"""A training step under a policy, and by a plan."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from sw_driver.device.errors import DeadlockError
from sw_driver.machine import MachineError
from sw_driver.machine.tiny import TINY
from sw_driver.system.clock import Event
from sw_driver.system.driving import Free, Move, Plan, Policy, Run, Step, drive, replay
from sw_driver.system.engine import Engine
from sw_driver.system.errors import EngineError, NoRoomError
from sw_driver.system.network import Transfer
from sw_driver.workload.trace import Op, Tensor, Trace

WEIGHTS, INPUT, ACTIVATION, GRADIENT = range(4)
SIZES = (2000, 1000, 4000, 2000)


def _op(number: int, phase: str, reads: Iterable[int], writes: Iterable[int], ns: int) -> Op:
    return Op(
        id=number,
        kind=phase[:4],
        layer=0,
        phase=phase,
        reads=tuple(reads),
        writes=tuple(writes),
        flops=1000 * (ns - 10),
        nbytes=0,
    )


TRACE = Trace(
    name="test",
    tensors=tuple(
        Tensor(id=number, nbytes=nbytes, kind=kind)
        for number, (nbytes, kind) in enumerate(
            zip(SIZES, ("parameter", "input", "activation", "gradient"), strict=True)
        )
    ),
    ops=(
        _op(0, "forward", (WEIGHTS, INPUT), (ACTIVATION,), 100),
        _op(1, "backward", (ACTIVATION, WEIGHTS), (GRADIENT,), 200),
        _op(2, "update", (GRADIENT, WEIGHTS), (WEIGHTS,), 50),
    ),
    layers=("layer",),
)
"""On the tiny machine's GPU the operations take 100, 200 and 50 ns."""


def test_without_a_policy_operations_follow_each_other() -> None:
    engine = Engine(TINY, record=True)
    step = drive(engine, TRACE, Policy())
    assert step == Step(
        begin_ns=0, end_ns=350, phase_end_ns={"forward": 100, "backward": 300, "update": 350}
    )
    assert step.phase_ns == {"forward": 100, "backward": 200, "update": 50}
    assert engine.queue("gpu").busy_ns == step.total_ns == 350
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

    def before(self, op: Op) -> Iterable[Event]:
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
    assert step == Step(begin_ns=0, end_ns=3 + 1100, phase_end_ns={"forward": 3})


def test_an_unknown_place_is_refused() -> None:
    class Elsewhere(Policy):
        def place(self, op: Op) -> str:
            return "gpus"

    with pytest.raises(MachineError, match="device is 'gpus': did you mean gpu"):
        drive(Engine(TINY), TRACE, Elsewhere())


PLACED = {WEIGHTS: "host", INPUT: "gpu"}
ACTIONS = (
    Move(tensor=WEIGHTS, source="host", target="gpu", keep=True),
    Run(op=0, device="gpu", after=(0,)),
    Free(tensor=INPUT, memory="gpu", after=(1,)),
    Move(tensor=ACTIVATION, source="gpu", target="host", after=(1,)),
    Move(tensor=ACTIVATION, source="host", target="gpu", after=(3,)),
    Run(op=1, device="gpu", after=(4,)),
    Free(tensor=ACTIVATION, memory="gpu", after=(5,)),
    Run(op=2, device="gpu"),
)


def test_a_plan_is_replayed() -> None:
    engine = Engine(TINY, record=True)
    step = replay(engine, TRACE, Plan(actions=ACTIONS, placed=PLACED))
    moved = 1100 + 100 + 2100 + 2100
    assert step.phase_end_ns == {
        "forward": 1200,
        "backward": moved + 200,
        "update": moved + 250,
    }
    gpu, host = engine.memory("gpu"), engine.memory("host")
    assert gpu.held == {WEIGHTS: 2000, GRADIENT: 2000}
    assert gpu.peak_bytes == 2000 + 4000 + 2000
    assert host.held == {WEIGHTS: 2000}
    engine.check()


def test_a_plan_waits_for_room() -> None:
    """There is room for the activation once the input is on the disk: 1000 ns and its bytes."""
    machine = TINY.override({"gpu.capacity_bytes": "6_500"})
    fetch = Move(tensor=WEIGHTS, source="host", target="gpu")
    evict = Move(tensor=INPUT, source="gpu", target="disk", after=(0,))
    run = Run(op=0, device="gpu", after=(0,))
    with pytest.raises(DeadlockError) as raised:
        replay(Engine(machine), TRACE, Plan(actions=(fetch, run), placed=PLACED))
    said = "process 'layer forw' waits for room for 4000 bytes in memory 'gpu'"
    assert said in str(raised.value)
    engine = Engine(machine, record=True)
    step = replay(engine, TRACE, Plan(actions=(fetch, run, evict), placed=PLACED))
    assert step.phase_end_ns == {"forward": 1100 + 1100 + 1000 + 100}
    engine.check()


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        ((Run(op=0, device="gpu"),), "operation 0, layer forw, needs tensor 0 .*: it is in host"),
        (ACTIONS[:2] * 2, "operation 0 runs twice"),
        (
            (Move(tensor=GRADIENT, source="gpu", target="host"),),
            "its move to host needs tensor 3 in memory 'gpu': it is nowhere",
        ),
        ((Free(tensor=0, memory="gpu", after=(0,)),), "waits for 0, not before it"),
        ((Run(op=3, device="gpu"),), "op=3.*: the trace test has 3 of them"),
        ((Free(tensor=-1, memory="gpu"),), "tensor=-1.*: the trace test has 4 of them"),
        ((Free(tensor=0, memory="gpu"),), "memory 'gpu': 0 holds nothing to give back"),
    ],
)
def test_plans_that_cannot_be_are_refused(actions: tuple, said: str) -> None:
    with pytest.raises(EngineError, match=said):
        replay(Engine(TINY), TRACE, Plan(actions=actions, placed=PLACED))


def test_what_is_placed_has_to_be_and_to_fit() -> None:
    with pytest.raises(EngineError, match="tensor 4 is placed: test has 4"):
        replay(Engine(TINY), TRACE, Plan(actions=(), placed={4: "gpu"}))
    with pytest.raises(NoRoomError, match="2 takes 4000 bytes, of 3000"):
        replay(
            Engine(TINY.override({"gpu.capacity_bytes": "3000"})),
            TRACE,
            Plan(actions=(), placed={ACTIVATION: "gpu"}),
        )
