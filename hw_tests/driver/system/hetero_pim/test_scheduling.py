"""Who runs what when: conservation on random steps, and small schedules by hand."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import pytest

from hw.pim.config import PIM_PRESETS
from hw_tests.driver.system.sentinel.random_steps import random_step
from hw_tests.driver.system.sentinel.steps import a_step
from sw_driver.machine.hetero_pim import HETERO_PIM
from sw_driver.system.errors import EngineError
from sw_driver.system.hetero_pim.configurations import (
    CONFIGURATIONS,
    CPU,
    FIXED,
    HEADLINE,
    HETERO,
    PRINCIPLES,
    PROGR,
    STRICT,
    Configuration,
    Readings,
)
from sw_driver.system.hetero_pim.scheduling import Schedule, schedule
from sw_driver.workload.trace import Op, Trace

BANKS = 32
HOST, CORE = 30, 7
"""What a launch takes."""


class Made(NamedTuple):
    """A phase: so much for one bank, and so many are of use."""

    device: str
    work: int
    most: int = 1


class MadeCosts:
    """By the ids of operations; what is not there, a device cannot do."""

    machine, config = HETERO_PIM, PIM_PRESETS["paper"]
    launch_host_ns, launch_core_ns = HOST, CORE

    def __init__(self, *, readings: Readings = STRICT, **by_device: dict[int, Any]) -> None:
        self.readings, self.by_device = readings, by_device

    def of(self, device: str, op: Op) -> Any:
        return self.by_device.get(device, {}).get(op.id)

    def cpu(self, op: Op) -> Any:
        return self.of("cpu", op) or (9000, 20, 5)

    def gpu(self, op: Op) -> Any:
        return self.of("gpu", op) or (10, 30, 5)

    def core(self, op: Op) -> Any:
        return self.of("core", op)

    def phases(self, op: Op) -> tuple[Made, ...]:
        return self.of("phases", op) or ()

    def pools_ns(self, phase: Made, banks: int) -> int:
        return -(-phase.work // min(banks, phase.most))

    def most_banks(self, phase: Made) -> int:
        return phase.most

    def core_ns(self, phase: Made) -> int:
        return phase.work

    def cpu_ns(self, phase: Made) -> int:
        return 2 * phase.work


def made(trace: Trace, costs: MadeCosts, configuration: Configuration, **options: Any) -> Schedule:
    options = {"chosen": range(len(trace.ops)), **options}
    return schedule(trace, costs, configuration, **options)  # pyright: ignore[reportArgumentType]


def rows(schedule: Schedule) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in sorted(schedule.rows, key=lambda row: (row.begin_ns, row.op))]


def random_costs(random: Random, ops: int, readings: Readings) -> MadeCosts:
    def phase() -> Made:
        if random.random() < 0.3:
            return Made("core", random.randrange(1, 200))
        return Made("pools", random.randrange(1, 20_000), random.randrange(1, BANKS + 1))

    kernels = {}
    for op in range(ops):
        phases = [phase() for _ in range(random.choice((0, 1, 1, 3)))]
        kernels[op] = (
            tuple(phases) if any(work_phase.device == "pools" for work_phase in phases) else ()
        )
    return MadeCosts(
        readings=readings,
        phases=kernels,
        cpu={op: (random.randrange(1, 2000), random.randrange(50), 5) for op in range(ops)},
        core={op: (random.randrange(1, 4000), 0, 0) for op in range(ops)},
    )


@pytest.mark.parametrize("principle", PRINCIPLES)
@pytest.mark.parametrize(
    "configuration", CONFIGURATIONS, ids=lambda configuration: configuration.name
)
def test_random_steps_are_conserved(configuration: Configuration, principle: str) -> None:
    random = Random(configuration.name)
    for _ in range(30):
        step = random_step(random, 20, 25)
        costs = random_costs(random, len(step.ops), random.choice((STRICT, HEADLINE)))
        flags = {flag: random.random() < 0.5 for flag in ("recursive", "pipeline")}
        configuration = replace(configuration, principle=principle, **flags)
        run = made(step, costs, configuration, steps=3)
        assert run == made(step, costs, configuration, steps=3)
        check_conserved(step, costs, configuration, run)


def check_conserved(
    step: Trace, costs: MadeCosts, configuration: Configuration, run: Schedule
) -> None:
    whole = step.unrolled(len(run.ends_ns))
    begins, ends = defaultdict(list), defaultdict(list)
    for row in run.rows:
        assert row.begin_ns < row.end_ns
        begins[row.op].append(row.begin_ns)
        ends[row.op].append(row.end_ns)
    assert sorted(begins) == list(range(len(whole.ops)))
    path: list[int] = []
    for op, needed in zip(whole.ops, whole.dependencies, strict=True):
        if costs.readings is HEADLINE and not configuration.ordered:  # steps may be stale
            needed = [number for number in needed if number >= op.id - op.id % len(step.ops)]
            if op.id >= 2 * len(step.ops):  # no third step in flight
                oldest = op.id - op.id % len(step.ops) - len(step.ops)
                assert max(
                    max(ends[number]) for number in range(oldest - len(step.ops), oldest)
                ) <= min(begins[op.id])
        for dependency in needed:
            assert max(ends[dependency]) <= min(begins[op.id])
        took = sum(row.end_ns - row.begin_ns for row in run.rows if row.op == op.id)
        path.append(took + max((path[dependency] for dependency in needed), default=0))
    assert max(path) <= run.total_ns == max(map(max, ends.values())) == run.ends_ns[-1]
    if configuration.ordered:
        assert sum(row.end_ns - row.begin_ns for row in run.rows) == run.total_ns
    for op, place in run.places.items():
        if place == "pools" or "+" in place:
            last = op + len(step.ops) * (len(run.ends_ns) - 1)
            check_work(costs.phases(step.ops[op]), last, run)
    if not configuration.pipeline:  # a kernel has the pools until it is over
        first = {row.op: row.begin_ns for row in reversed(run.rows) if row.device == "pools"}
        kernels = sorted((begin, max(ends[op])) for op, begin in first.items())
        assert all(before[1] <= after[0] for before, after in pairwise(kernels))
    capacity = {"cpu": 1, "gpu": 1, "core": 1, "pools": BANKS}
    for device, most in capacity.items():
        changes: dict[int, int] = defaultdict(int)
        work = 0
        for row in run.rows:
            if row.device == device:
                changes[row.begin_ns] += row.banks
                changes[row.end_ns] -= row.banks
                work += row.banks * (row.end_ns - row.begin_ns)
        held = 0
        for at in sorted(changes):
            held += changes[at]
            assert 0 <= held <= most, f"{held} of {device} at {at}"
        assert work <= most * run.total_ns
    assert sum(run.breakdown_ns.values()) == run.step_ns
    assert 0 <= run.utilisation <= 1


def check_work(phases: tuple[Made, ...], op: int, run: Schedule) -> None:
    """What the banks did of an operation is its work, but for rounding."""
    of_pools = [row for row in run.rows if (row.op, row.device) == (op, "pools")]
    pieces = [row for row in of_pools if row.part == "compute"]
    work = sum(phase_made.work for phase_made in phases if phase_made.device == "pools")
    done = sum(row.banks * (row.end_ns - row.begin_ns) for row in pieces)
    assert work <= done <= work + 2 * BANKS * len(pieces)


def test_a_phase_grows_when_banks_become_free() -> None:
    """Of 32 banks the first has 24 for 100 ns. The second, which could use 16, has 8 until then;
    of its 3,200 bank-ns 800 are done, and 16 do the rest in 150 ns."""
    step = a_step(1, (0, "i1>a1"), (0, "i2>a2"), sizes=dict.fromkeys(("i1", "i2", "a1", "a2"), 4))
    kernels = {0: (Made("pools", 2400, 24),), 1: (Made("pools", 3200, 16),)}
    run = made(step, MadeCosts(phases=kernels), HETERO, steps=1)
    assert rows(run) == [
        (0, "pools", 24, 0, HOST, "launch"),
        (1, "pools", 8, 0, HOST, "launch"),
        (0, "pools", 24, HOST, HOST + 100, "compute"),
        (1, "pools", 8, HOST, HOST + 100, "compute"),
        (1, "pools", 16, HOST + 100, HOST + 250, "compute"),
    ]
    assert run.step_ns == HOST + 250
    assert run.utilisation == pytest.approx(5600 / 32 / (HOST + 250))
    alone = made(step, MadeCosts(phases=kernels), replace(HETERO, pipeline=False), steps=1)
    assert alone.step_ns == HOST + 100 + HOST + 200


def test_recursion_saves_the_host_launches() -> None:
    """Core, pools, core: each phase costs a launch by the host, or only the first."""
    step = a_step(1, (0, "i1>a1"), sizes={"i1": 4, "a1": 4})
    kernel = (Made("core", 11), Made("pools", 3200, 32), Made("core", 13))
    costs = MadeCosts(phases={0: kernel})
    alone = 11 + 100 + 13
    assert made(step, costs, HETERO, steps=1).step_ns == alone + HOST + 2 * CORE
    without = made(step, costs, replace(HETERO, recursive=False), steps=1)
    assert without.step_ns == alone + 3 * HOST
    assert [*without.breakdown_ns.values()] == [100, 11 + 13, 0, 3 * HOST, 0]
    assert [*made(step, costs, HETERO, steps=1).breakdown_ns.values()] == [
        100,
        24,
        0,
        HOST,
        2 * CORE,
    ]
    assert without.places == {0: "core+pools"}
    assert made(step, costs, FIXED).step_ns == 2 * 11 + HOST + 100 + 2 * 13
    assert [*made(step, costs, CPU).breakdown_ns.values()] == [9000, 0, 20, 0, 5]
    assert made(step, costs, CPU).lost_ns == 25


def test_without_recursion_what_needs_a_core_stays_off_the_pools() -> None:
    """By the headline readings a core or the CPU does all of it, whichever ends first."""
    step = a_step(1, (0, "i1>a1"), sizes={"i1": 4, "a1": 4})
    kernel = {0: (Made("core", 11), Made("pools", 3200, 32))}
    costs = MadeCosts(readings=HEADLINE, phases=kernel, core={0: (800, 0, 0)}, cpu={0: (900, 0, 0)})
    without = replace(HETERO, recursive=False)
    assert made(step, costs, HETERO, steps=1).places == {0: "core+pools"}
    assert made(step, costs, without, steps=1).step_ns == HOST + 800
    assert made(step, costs, FIXED).step_ns == 900
    slow = MadeCosts(readings=HEADLINE, phases=kernel, core={0: (871, 0, 0)}, cpu={0: (900, 0, 0)})
    assert made(step, slow, without, steps=1).reasons == {0: "PIMs slower"}


def test_why_the_cpu_runs_an_operation() -> None:
    sizes = dict.fromkeys(("i1", "a1", "a2", "a3"), 4)
    step = a_step(1, (0, "i1>a1"), (0, "i1>a2"), (0, "i1>a3"), sizes=sizes)
    kernels = {op: (Made("pools", 3200, 32),) for op in (0, 1)}
    costs = MadeCosts(phases=kernels, cpu=dict.fromkeys(range(3), (180, 0, 0)))
    assert made(step, costs, HETERO, steps=1).reasons == {1: "PIMs busy", 2: "no kernel"}
    run = made(step, costs, HETERO, steps=1, chosen=[0])
    assert run.reasons == {1: "not offered", 2: "not offered"}


def test_a_stale_step_begins_before_the_update() -> None:
    """The CPU updates for 400 ns what the pools read for 100: one step stale, each waits for its
    own device only, and a step for the last but one."""
    sizes = dict.fromkeys(("p1", "i1", "a1"), 4)
    step = a_step(1, (0, "p1 i1>a1"), (-1, "p1 a1>p1"), sizes=sizes)
    costs: dict[str, Any] = {
        "phases": {0: (Made("pools", 3200, 32),)},
        "cpu": {0: (9000, 0, 0), 1: (400, 0, 0)},
    }
    strict, stale = (made(step, MadeCosts(readings=x, **costs), HETERO) for x in (STRICT, HEADLINE))
    assert strict.step_ns == HOST + 100 + 400
    assert stale.step_ns == 400


def test_a_later_step_overwrites_a_copy_of_its_own() -> None:
    """The CPU reads for 400 ns what lasts and the pools write in 100, such as running statistics:
    the next step's write does not wait for it, and one step is in flight beside it."""
    step = a_step(1, (0, "i1>p1"), (0, "p1>b1"), sizes=dict.fromkeys(("i1", "p1", "b1"), 4))
    costs: dict[str, Any] = {
        "phases": {0: (Made("pools", 3200, 32),)},
        "cpu": {0: (9000, 0, 0), 1: (400, 0, 0)},
    }
    strict, stale = (made(step, MadeCosts(readings=x, **costs), HETERO) for x in (STRICT, HEADLINE))
    assert strict.step_ns == HOST + 100 + 400
    assert stale.step_ns == 400


def test_principles() -> None:
    """Two operations want all banks for 100 ns, beside a CPU that takes 1,000. By the words of the
    paper the second goes there; who asks where it ends first, waits if that is sooner. A core does
    not do what the pools can."""
    sizes = dict.fromkeys(("i1", "a1", "a2"), 4)
    step = a_step(1, (0, "i1>a1"), (0, "i1>a2"), sizes=sizes)
    kernels = {op: (Made("pools", 3200, 32),) for op in (0, 1)}
    both = {"phases": kernels, "core": dict.fromkeys((0, 1), (1, 0, 0))}
    costs = MadeCosts(**both, cpu=dict.fromkeys((0, 1), (1000, 0, 0)))
    literal = made(step, costs, replace(HETERO, principle="literal"), steps=1)
    assert literal.places == {0: "pools", 1: "cpu"}
    assert literal.step_ns == 1000
    earliest = made(step, costs, HETERO, steps=1)
    assert earliest.places == {0: "pools", 1: "pools"}
    assert earliest.step_ns == 2 * (HOST + 100)
    assert made(step, costs, HETERO, steps=1, chosen=[1]).places == {0: "cpu", 1: "pools"}
    faster = MadeCosts(**both, cpu=dict.fromkeys((0, 1), (200, 0, 0)))
    assert made(step, faster, HETERO, steps=1).places == {0: "pools", 1: "cpu"}


def test_the_next_step_fills_idle_banks() -> None:
    """Half a step needs what the one before it updates, half does not: with the pipeline the next
    step's free half is done beside."""
    sizes = dict.fromkeys(("p1", "i1", "a1"), 4)
    step = a_step(1, (0, "i1>a1"), (-1, "p1 a1>p1"), sizes=sizes)
    kernels = {op: (Made("pools", 1600, 16),) for op in (0, 1)}
    costs = MadeCosts(phases=kernels)
    assert made(step, costs, HETERO).step_ns == HOST + 100
    assert made(step, costs, replace(HETERO, pipeline=False)).step_ns == 2 * (HOST + 100)


def test_steps_that_end_together() -> None:
    """Nothing of a step needs the one before, and a quarter of the banks is enough for each."""
    step = a_step(1, (0, "i1>a1"), sizes={"i1": 4, "a1": 4})
    costs = MadeCosts(phases={0: (Made("pools", 1600, 8),)})
    run = made(step, costs, HETERO, steps=4)
    assert run.ends_ns == (HOST + 200,) * 4
    assert run.step_ns == (HOST + 200) // 4
    assert run.utilisation == pytest.approx(200 / (HOST + 200))


def test_another_network_has_what_is_idle() -> None:
    step = a_step(1, (0, "i1>a1"), sizes={"i1": 4, "a1": 4})
    kernels = {0: (Made("pools", 16_000, 16),)}
    costs = MadeCosts(phases=kernels, cpu=dict.fromkeys(range(4), (100, 20, 5)))
    literal = replace(HETERO, principle="literal")
    both = made(step, costs, literal, steps=1, beside=step.unrolled(4))
    assert (*both.ends_ns, both.total_ns) == (HOST + 1000, HOST + 1000)
    assert [row.device for row in both.rows if row.part == "movement"] == ["cpu"] * 4


def test_the_cpu_moves_what_goes_past_its_cache() -> None:
    """Of what is written, then read and written again, only the last goes to memory."""

    class ByBytes(MadeCosts):
        def cpu(self, op: Op) -> Any:
            return (0, op.nbytes, 0)

    step = a_step(1, (0, ">a1"), (0, "a1>a1"), sizes={"a1": 4000})
    assert made(step, ByBytes(), CPU).step_ns < 12_000


def test_refusals() -> None:
    step = a_step(1, (0, "i1>a1"), sizes={"i1": 4, "a1": 4})
    with pytest.raises(EngineError, match=r"operation 0, mm, has no kernel for core"):
        made(step, MadeCosts(), PROGR)
    with pytest.raises(EngineError, match=r"operation 7 is chosen: expected 0 to 0"):
        made(step, MadeCosts(), HETERO, chosen=[7])
    with pytest.raises(ValueError, match="principle"):
        replace(HETERO, principle="best")


def test_the_timeline_has_everything_once() -> None:
    step = a_step(1, (0, "i1>a1"), (0, "i1>a2"), sizes=dict.fromkeys(("i1", "a1", "a2"), 4))
    kernels = {op: (Made("pools", 1600, 16),) for op in (0, 1)}
    timeline = made(step, MadeCosts(phases=kernels), HETERO, steps=1).timeline
    slices = [json.loads(line) for line in timeline._events_of()]
    shown = [(drawn["tid"], drawn["ts"], drawn["dur"]) for drawn in slices if drawn["ph"] == "X"]
    assert sorted(shown) == [
        (thread, *span) for thread in (101, 102) for span in ((0, 0.03), (0.03, 0.1))
    ]
