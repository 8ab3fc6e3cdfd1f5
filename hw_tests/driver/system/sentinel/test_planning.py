"""Sentinel's schedules: chains of tensors whose best step is worked by hand, and what no schedule
may do, from what the engine wrote down."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import replace
from functools import partial
from math import ceil
from random import Random

import pytest

from hw_tests.driver.system.sentinel.steps import a_machine, a_step
from sw_driver.machine import Machine
from sw_driver.machine.sentinel import TIERS
from sw_driver.system.placing import run
from sw_driver.system.sentinel.planning import (
    BelowBoundError,
    Planner,
    Settings,
    lower_bound_bytes,
    planned,
)
from sw_driver.system.sentinel.policy import Sentinel
from sw_driver.system.sentinel.profiling import StepProfile, profile_of
from sw_driver.workload import load_trace, peak_bytes
from sw_driver.workload.trace import LASTING, Trace

CHAIN = StepProfile(
    step=a_step(
        2,
        *((visit, f"p{visit} > p{visit} t{visit}") for visit in range(4)),
        sizes={f"{kind}{visit}": 100 for visit in range(4) for kind in "pt"},
    )
)
"""In each of four visits weights of 100 bytes are read and written, and a temporary is written: 150
ns from fast memory, 250 with the weights in slow memory; and it takes 100 ns to move them."""


def test_a_chain_with_room_for_three_weights_runs_as_in_fast_memory() -> None:
    plan = planned(CHAIN, a_machine(400))
    assert plan.step_ns == 4 * 150
    assert plan.outcome.steps_ns[-2] == plan.step_ns
    assert plan.interval_layers == 1
    assert plan.cases == (4, 0, 0)
    assert plan.moved_bytes == 2 * 4 * 100
    assert (plan.pool_bytes, plan.lower_bound_bytes) == (100, 200)


def test_weights_come_as_soon_as_those_before_have_left() -> None:
    """With room for two: p0 leaves from 150 to 250 of its visit, 75 after the next has begun, and
    only then p2 can come: a visit takes as long as 75 and 100. Without moves, two are in slow."""
    plan = planned(CHAIN, a_machine(300))
    assert plan.tried[4] == 2 * 150 + 2 * 250
    assert plan.step_ns == plan.tried[1] == 4 * 175
    assert plan.cases == (0, 0, 4)


def test_at_the_lower_bound_every_other_weight_stays_in_slow_memory() -> None:
    """There is no room for p1 until p0 has left, in the visit of p1: that reads 50 bytes alone, and
    50 while p2 comes over the same link, and takes 50 longer."""
    plan = planned(CHAIN, a_machine(200), lengths=[1])
    assert plan.step_ns == 2 * (150 + 300)
    assert plan.cases == (2, 2, 0)
    with pytest.raises(BelowBoundError, match=r"fast memory of 199 bytes .* take 200"):
        planned(CHAIN, a_machine(199))
    without = planned(CHAIN, a_machine(199), Settings(reserve=False))
    assert without.step_ns > plan.step_ns


def test_the_equations_leave_lengths_for_which_there_is_room_and_time() -> None:
    """An interval needs 100 bytes a visit, and the pool 100 of all; it takes 150 ns a visit. In the
    whole step nothing moves, which is always tried."""
    planner = Planner(CHAIN, Settings())

    def left(fast_bytes: int) -> list[int]:
        return planner.lengths_left(fast_bytes, 4 * 150, 10**9)

    assert left(350) == [2, 4]  # 200 < 250 < 300
    assert left(301) == [2, 4]
    assert left(300) == [1, 2, 4]  # 200 = 200, 150 < 200
    assert left(400) == [1, 2, 4]  # 300 = 300, 400 > 300
    with pytest.raises(ValueError, match="layers in an interval is 5: expected"):
        planned(CHAIN, a_machine(400), lengths=[5])
    with pytest.raises(ValueError, match="the number of lengths to try is 0: expected"):
        planned(CHAIN, a_machine(400), lengths=[])


def test_all_lengths_of_a_short_step_are_tried_and_those_near_halvings_of_a_long_one() -> None:
    def lengths(visits: int) -> list[int]:
        step = a_step(visits, *((visit, "p >") for visit in range(visits)), sizes={"p": 100})
        return Planner(StepProfile(step=step), Settings()).lengths()

    assert lengths(3) == [1, 2, 3]
    assert lengths(64) == [*range(1, 65)]
    around = {near for half in (65, 33, 17, 9, 5, 3, 2, 1) for near in (half - 1, half, half + 1)}
    assert lengths(65) == sorted(around - {0, 66})
    for fast_bytes in (200, 300, 400):
        assert [*planned(CHAIN, a_machine(fast_bytes)).tried] == [1, 2, 3, 4]


def test_a_length_between_halvings_may_be_the_best() -> None:
    random = Random(245)
    profile = StepProfile(step=_random_step(random))
    least = lower_bound_bytes(profile)
    plan = planned(profile, a_machine(random.randint(least, 2 * least)))
    halvings = [length for length in plan.tried if length in (1, 2, 4, len(profile.visits))]
    assert plan.step_ns < 0.93 * min(plan.tried[length] for length in halvings)


def _born_late(reads: int, leaves_bytes: int, idle_ns: int) -> StepProfile:
    """Return a step in which p0 leaves after the first visit, and a1 is new in the second."""
    step = a_step(
        2,
        *((0, "p0 >"), (1, ">"), (1, "> a1"), *((1, "a1 >"),) * reads, (2, "a1 >"), (3, ">")),
        sizes={"p0": leaves_bytes, "a1": 100},
    )
    times = {1: idle_ns, len(step.ops) - 1: 1000}
    ops = tuple(replace(op, flops=times.get(op.id, 0)) for op in step.ops)
    return StepProfile(step=replace(step, ops=ops))


@pytest.mark.parametrize(
    ("reads", "leaves_bytes", "idle_ns", "gb_per_s", "step_ns"),
    [
        (2, 100, 0, 2, 50 + 100 + 4 * 50 + 1000),
        (2, 100, 0, 4, 25 + 100 + 4 * 25 + 1000),
        (0, 100, 0, 2, 50 + 100 + 2 * 50 + 1000),
        # In slow memory it is written while p0 leaves over the same link, and read in 100 ns.
        (0, 101, 0, 2, 50.5 + 200 + 100 + 1000),
        (0, 101, 1, 2, 50.5 + 101 + 2 * 50 + 1000),  # 100 of its bytes are left
    ],
)
def test_a_new_tensor_waits_for_room_unless_slow_memory_is_faster(
    reads: int, leaves_bytes: int, idle_ns: int, gb_per_s: int, step_ns: float
) -> None:
    """There is no room for a1 until p0 has left; in slow memory each access takes 50 ns longer."""
    machine = a_machine(leaves_bytes).override({"cpu.gb_per_s": str(gb_per_s)})
    plan = planned(_born_late(reads, leaves_bytes, idle_ns), machine, lengths=[1])
    assert plan.step_ns == ceil(step_ns)


def test_a_schedule_is_no_slower_on_a_faster_gpu() -> None:
    """The logits of bert-base have no room while a table's moments leave before them."""
    profile = profile_of(load_trace("bert-base"), 0)
    took = [
        planned(profile, _v100(profile, 75, gpu=factor), UNTESTED, lengths=[28]).step_ns
        for factor in (1, 1.1, 1.5)
    ]
    assert took[1] <= took[0]
    assert took[2] <= took[1]


UNTESTED = Settings(trial=False)


def _v100(profile: StepProfile, percent: int, gpu: float = 1, link: float = 1) -> Machine:
    """Return a V100 with a share of the step's peak, its own rates and its link's changed."""
    machine = TIERS["pcie3"]
    device, (pcie,) = machine.devices[0], machine.links
    rates = {
        "gpu.tflop_per_s": gpu * device.tflop_per_s.value,
        "gpu.gb_per_s": gpu * device.gb_per_s.value,
        "fast.total_gb_per_s": gpu * device.gb_per_s.value,
        "pcie.read_gb_per_s": link * pcie.read_gb_per_s.value,
        "pcie.write_gb_per_s": link * pcie.write_gb_per_s.value,
    }
    changes = {key: f"{value:.6f}" for key, value in rates.items()}
    nbytes = peak_bytes(profile.step) * percent // 100
    return machine.override({**changes, "fast.capacity_bytes": str(nbytes)})


@pytest.mark.parametrize(
    ("network", "percent", "lengths"),
    [
        ("alexnet", 60, None),
        ("word2vec", 75, None),
        ("dcgan", 75, (1, 10, 29, 31)),
        *(
            pytest.param(network, percent, None, marks=pytest.mark.soak)
            for network in ("dcgan", "vgg-19", "mobilenet", "bert-base")
            for percent in (50, 75, 90)
        ),
    ],
)
def test_faster_parts_and_more_memory_are_no_slower(
    network: str, percent: int, lengths: tuple[int, ...] | None
) -> None:
    """By 5 % at most; the lengths of dcgan are the best ones of these machines."""
    profile = profile_of(load_trace(network), 0)

    def step_ns(percent: int = percent, **factors: float) -> int:
        machine = _v100(profile, percent, **factors)
        return planned(profile, machine, UNTESTED, lengths=lengths).step_ns

    most_ns = 1.05 * step_ns()
    for factor in (1.1, 2):
        assert step_ns(gpu=factor) <= most_ns
        assert step_ns(link=factor) <= most_ns
    assert step_ns(percent * 11 // 10) <= most_ns


def test_a_step_that_is_short_after_a_long_one_does_not_count() -> None:
    """With 31 layers in an interval, steps of dcgan take 19.8 and 9.0 ms in turn."""
    profile = profile_of(load_trace("dcgan"), 0)
    plan = planned(profile, _v100(profile, 75), UNTESTED, lengths=[1, 31])
    assert plan.interval_layers == 1
    assert plan.tried[31] > plan.step_ns


def test_what_comes_takes_the_room_of_what_is_freed_in_the_interval() -> None:
    """Beside p3, which stays, a temporary of 200 bytes is written from 0 to 100. Then p1 has room,
    and comes. When p0 would come there is none, for the temporary has to have some beside it: it is
    worked on in slow memory until 401, which with p2's byte on the same link is one more than from
    fast memory. What is used first is asked for first."""
    step = a_step(
        1,
        *((0, "> t"), (0, "p0 p3 > p0"), (1, "p1 p3 > p1"), (1, "p2 >")),
        sizes={"p3": 50, "p2": 1, "p1": 100, "p0": 100, "t": 200},
    )
    ops = [replace(op, flops=(0, 300, 0, 200)[op.id]) for op in step.ops]
    profile = StepProfile(step=replace(step, ops=tuple(ops)))
    plan = planned(profile, a_machine(301), lengths=[1])
    assert plan.schedule.prefetched == ((0, 2, 1), (0, 3))
    assert plan.cases == (1, 1, 0)
    assert plan.step_ns == 100 + 301 + 125 + 200


def test_what_waits_to_leave_stays_if_the_next_interval_needs_it() -> None:
    """From 200 to 600 pq leaves, and is there again at 1000. Both times p0 would be next to leave,
    at 250 and at 400."""
    step = a_step(
        2,
        *((0, "pq >"), (0, "p0 >"), (1, "> t1"), (2, "p0 >"), (3, "> t2")),
        sizes={"pq": 400, "p0": 100, "t1": 200, "t2": 200},
    )
    ops = [replace(op, flops=1000 * (op.id == 4)) for op in step.ops]
    profile = StepProfile(step=replace(step, ops=tuple(ops)))
    plan = planned(profile, a_machine(10_000), lengths=[1])
    assert plan.step_ns == 200 + 50 + 100 + 50 + 1000
    assert plan.moved_bytes == 2 * 400


def test_what_waits_to_leave_does_so_if_the_pool_needs_its_room() -> None:
    """p0 and p1 would leave behind pq when the third visit wants them, where the pool takes 500."""
    step = a_step(
        2,
        *((0, "pq >"), (0, "p0 p1 >"), (1, "> t1"), (2, "p0 p1 > t2"), (3, "> t3")),
        sizes={"pq": 200, "p0": 300, "p1": 300, "t1": 100, "t2": 500, "t3": 100},
    )
    ops = [replace(op, flops=2000 * (op.id == 4)) for op in step.ops]
    ops[1] = replace(ops[1], read_bytes=(10, 10))
    profile = StepProfile(step=replace(step, ops=tuple(ops)))
    plan = planned(profile, a_machine(900), lengths=[1])
    assert plan.outcome.moved_bytes == {0: 400, 1: 600, 2: 600}


def test_tensors_that_are_not_packed_move_with_their_pages() -> None:
    """All are in one page of what an allocator gives."""
    plan = planned(CHAIN, a_machine(100_000), Settings(pack=False), lengths=[1])
    assert plan.moved_bytes == 2 * 4 * 4096
    assert plan.step_ns > 4 * 150


def test_without_a_pool_what_lives_short_competes() -> None:
    """One weight is there, and room for a temporary, which has it first."""
    plan = planned(CHAIN, a_machine(250), Settings(reserve=False), lengths=[4])
    assert plan.pool_bytes == 0
    assert plan.step_ns == 150 + 3 * 250


def _late() -> StepProfile:
    step = a_step(
        2,
        *enumerate(("p0 > t0", "p1 > t1", "> t2", "p3 > t3")),
        sizes={"p0": 100, "p1": 400, "p3": 100, **{f"t{index}": 120 for index in range(4)}},
    )
    ops = list(step.ops)
    ops[1] = replace(ops[1], read_bytes=(40,))
    ops[3] = replace(ops[3], flops=1000)
    return StepProfile(step=replace(step, ops=tuple(ops)))


def test_each_late_interval_waits_or_not_as_is_better() -> None:
    """In fast memory visits take 110, 80, 60 and 1000. The second waits for p1 until 400, and the
    last for p3 until 580: 1580. With its 40 bytes from slow memory while p1 comes, the second takes
    60 + 80, and the last waits for p1 until 440, and p3 until 540: 1540. It need not: 1310."""
    profile, machine = _late(), a_machine(10_000)
    untested = planned(profile, machine, Settings(trial=False), lengths=[1])
    assert (untested.step_ns, untested.cases) == (1580, (2, 0, 2))
    plan = planned(profile, machine, lengths=[1])
    assert (plan.step_ns, plan.cases) == (1310, (2, 0, 2))
    assert plan.outcome.steps_ns[-2] == plan.step_ns
    assert plan.schedule.waits & {0, 1, 2, 3} == {0, 2}
    make = partial(Sentinel, schedule=untested.schedule, trial=1)
    assert run(machine, profile.step, make).steps_ns == (*untested.outcome.steps_ns[:2], 1540)


def _random_step(random: Random) -> Trace:
    layers = random.randint(1, 4)
    stages = sorted(random.randrange(2 * layers) for _ in range(random.randint(4, 24)))
    names = [f"{kind}{number}" for kind in "pat" for number in range(random.randint(1, 6))]
    ops = [[random.sample(names, random.randint(0, 2)) for _ in "rw"] for _ in stages]
    used = {name for sides in ops for side in sides for name in side}
    step = a_step(
        layers,
        *(
            (stage, f"{' '.join(reads)} > {' '.join(writes)}")
            for stage, (reads, writes) in zip(stages, ops, strict=True)
        ),
        sizes={name: random.randint(1, 400) for name in names if name in used},
    )
    return replace(step, ops=tuple(replace(op, flops=random.randint(1, 300)) for op in step.ops))


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("seed", range(50))
def test_what_no_schedule_does(seed: int, waits: bool) -> None:
    """That no capacity is exceeded, and that all bytes arrive, the engine checks."""
    random = Random(seed)
    profile = StepProfile(step=_random_step(random))
    step, tensors = profile.step, profile.step.tensors
    least = lower_bound_bytes(profile)
    machine = a_machine(random.randint(least, 2 * least) or 1)
    layers = random.randint(1, len(profile.visits))
    schedule = planned(profile, machine, lengths=[layers]).schedule
    if not waits:
        schedule = replace(schedule, waits=frozenset())
    policy = run(machine, step, partial(Sentinel, schedule=schedule), record=True).policy
    log = policy.engine.log
    assert log is not None

    def interval(op: int) -> int:
        count = -(-len(profile.visits) // layers)
        return op // len(step.ops) * count + profile.visit_of[op % len(step.ops)] // layers

    ops = [ran for ran in log.ran if ran.queue == "cpu"]
    begins = [ran.begin_ns for ran in ops]
    uses = step.unrolled(4).accesses
    for move in log.transferred:
        if move.device:
            continue
        tensor = int(move.label.split()[1])
        assert policy.base(tensor) not in profile.short_lived
        if move.target == "fast":
            now = interval(bisect_right(begins, move.begin_ns) - 1)
            assert now + 1 in map(interval, uses[tensor])
        else:
            op = bisect_left(begins, move.begin_ns) - 1
            behind = bisect_left(uses[tensor], op + (move.begin_ns >= ops[op].end_ns))
            before, after = map(interval, uses[tensor][behind - 1 : behind + 1])
            assert after > before + 1
    left = {key for memory in ("fast", "slow") for key in policy.engine.memory(memory).held}
    assert left - {"pool"} <= {lasting.id for lasting in tensors if lasting.kind in LASTING}
    pool = [(held.at_ns, held.nbytes) for held in log.held if held.key == "pool"]
    for number, begin in enumerate(begins):
        op = number % len(step.ops)
        there = [tensors[tensor_id] for tensor_id in profile.short_lived]
        taken = sum(short.nbytes for short in there if short.allocated <= op < (short.freed or 0))
        assert taken <= sum(nbytes for at_ns, nbytes in pool if at_ns <= begin)
