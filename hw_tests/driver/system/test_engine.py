"""The engine: queues, transfers, memory, what it says when nothing can happen, and its timeline."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hw_tests.driver.trace_reader import assert_sound, read_trace
from sw_driver.device.errors import DeadlockError
from sw_driver.device.timeline import Timeline
from sw_driver.machine import MachineError, assumed
from sw_driver.machine.tiny import TINY
from sw_driver.system.clock import EngineClock, ProcessSteps
from sw_driver.system.engine import Engine
from sw_driver.system.errors import EngineError, NoRoomError
from sw_driver.system.work import DeviceWork, Flow

# Of the tiny machine: pcie 4 bytes a ns each way after 100 ns, ddr 2 either way, nvme 1 after 1000.


_AT_ONCE = {"pcie.latency_ns": "0", "nvme.latency_ns": "0"}


def _times(*actions: Any) -> list[tuple[int, int]]:
    return [(action.begin_ns, action.end_ns) for action in actions]


def test_a_queue_runs_its_entries_in_order_and_each_waits_for_what_it_must() -> None:
    engine = Engine(TINY, record=True)
    one, two = engine.queue("one"), engine.queue("two")
    a = one.execute(10, "a")
    b = two.execute(5, "b", after=[a])
    c = two.execute(1, "c")
    d = one.execute(10, "d", after=[c, a])
    e = one.execute(0, "e")
    assert engine.run() == engine.now_ns == 26
    assert _times(a, b, c, d, e) == [(0, 10), (10, 15), (15, 16), (16, 26), (26, 26)]
    assert (one.busy_ns, two.busy_ns) == (20, 6)
    assert engine.queue("one") is one
    engine.check()
    assert engine.log is not None
    awaited_ns = {ran.label: ran.after_ns for ran in engine.log.ran}
    assert awaited_ns == {"a": 0, "b": 10, "c": 0, "d": 16, "e": 0}
    late = one.execute(4, "late", after=[a])
    engine.run()
    assert _times(late) == [(26, 30)]


def test_a_compound_entry_holds_its_queue_until_it_returns() -> None:
    engine = Engine(TINY)
    queue, seen = engine.queue("one"), []

    def both() -> Generator[Any, Any, str]:
        yield engine.clock.timeout(7)
        yield engine.transfer(2000, "host", "gpu", "inner")
        return "done"

    def reader() -> Generator[Any, Any, None]:
        seen.append(((yield entry), engine.now_ns))

    before = queue.execute(3, "before")
    entry = queue.call(both, "both", after=[before])
    after = queue.execute(1, "after")
    engine.process(reader())
    engine.run()
    assert _times(entry, after) == [(3, 3 + 7 + 1100), (1110, 1111)]
    assert seen == [("done", 1110)]


def test_a_process_begins_before_what_else_is_due_then() -> None:
    clock, seen = EngineClock(), []

    def steps() -> ProcessSteps:
        seen.append("process")
        yield clock.timeout(0)

    clock.at(0, partial(seen.append, "due before"))
    clock.process(steps())
    clock.run()
    assert seen == ["process", "due before"]


def test_what_a_process_raises_ends_the_run() -> None:
    engine = Engine(TINY)

    def fails() -> Generator[Any, Any, None]:
        yield engine.clock.timeout(7)
        raise KeyError("lost")

    engine.queue("one").call(fails, "fails")
    with pytest.raises(KeyError, match="lost"):
        engine.run()


def test_one_moment_has_an_order_and_an_event_happens_once() -> None:
    clock, seen = EngineClock(), []
    for number, at_ns in enumerate((5, 0, 5)):
        clock.at(at_ns, partial(seen.append, number))
    clock.cancel(clock.at(9, partial(seen.append, "cancelled")))
    clock.at_end(partial(seen.append, "end of 0"))
    clock.run()
    assert (seen, clock.now_ns) == ([1, "end of 0", 0, 2], 5)
    event = clock.event()
    event.succeed()
    event.succeed()
    with pytest.raises(EngineError, match=r"\(EngineEvent\) that nothing triggers happened before"):
        clock.run()


def test_a_transfer_takes_its_latencies_once_and_the_pace_of_the_slowest_link() -> None:
    engine = Engine(TINY, record=True)
    copy = engine.transfer(1001, "disk", "gpu", "copy")
    nothing = engine.transfer(0, "host", "gpu", "nothing")
    engine.run()
    assert _times(copy, nothing) == [(0, 1100 + 1001), (0, 100)]
    engine = Engine(TINY, record=True)
    copy = engine.transfer(1001, "host", "gpu", "copy")
    engine.run()
    assert _times(copy) == [(0, 100 + 501)]  # a byte of the last nanosecond's two
    engine.check()


def test_both_directions_share_a_half_duplex_link_and_do_not_share_a_duplex_one() -> None:
    for sharing, end_ns in (("half", 100 + 2000), ("duplex", 100 + 1000)):
        engine = Engine(TINY.override({"ddr.sharing": sharing}))
        there = engine.transfer(2000, "host", "gpu", "there")
        back = engine.transfer(2000, "gpu", "host", "back")
        engine.run()
        assert _times(there, back) == [(0, end_ns)] * 2


def test_a_direction_of_a_half_duplex_link_counts_by_its_own_rate() -> None:
    engine = Engine(
        TINY.override({"ddr.read_gb_per_s": "3", "ddr.write_gb_per_s": "1", "pcie.latency_ns": "0"})
    )
    there = engine.transfer(300, "host", "gpu", "there")
    back = engine.transfer(300, "gpu", "host", "back")
    engine.run()  # 0.75 bytes a ns each: a quarter of the time for one, three for the other
    assert _times(there, back) == [(0, 400)] * 2


def test_who_is_bound_elsewhere_leaves_the_rest_to_the_others() -> None:
    engine = Engine(TINY.override(_AT_ONCE), record=True)
    slow = engine.transfer(1000, "disk", "gpu", "slow")
    fast = engine.transfer(1000, "host", "gpu", "fast")
    other = engine.transfer(300, "root", "gpu", "other")
    engine.run()  # of pcie's 4: 1 and twice 1.5, until the third is done; then ddr's 2 for one
    assert _times(slow, fast, other) == [(0, 1000), (0, 200 + 350), (0, 200)]
    engine.check()


def test_the_end_of_a_transfer_may_come_nearer_and_go_back_to_where_it_was() -> None:
    engine = Engine(TINY.override(_AT_ONCE), record=True)
    one = engine.transfer(200, "host", "gpu", "one")  # at 1 a ns: until 200
    other = engine.transfer(50, "host", "gpu", "other")  # from 50 on at 2: until 125
    pause = engine.clock.timeout(100)  # from 100 on at 0.5: until 200
    others = [engine.transfer(50, "host", "gpu", "more", after=[pause]) for _ in range(3)]
    last = engine.transfer(2, "host", "gpu", "last", after=[one])
    engine.run()
    assert _times(one, other, *others) == [(0, 200), (0, 50), *[(100, 200)] * 3]
    assert _times(last) == [(200, 201)]
    engine.check()


_READS = DeviceWork(100, [Flow(600, "host", "gpu"), Flow(200, "disk", "gpu")], 10)


@pytest.mark.parametrize(
    ("accesses", "end_ns", "other_end_ns"),
    [
        # From 10 on of pcie's 4: 2 for the host's bytes until 310, then 1 for the disk's until 510;
        # the rest is the other's, which has moved 40, 640 and, 87 ns later, its 900 bytes.
        ("in_turn", 510, 397),
        # From 10 on 1, 1.5 and 1.5; from 210 on without the disk's 2 and 2; from 360 on all.
        ("at_once", 360, 425),
    ],
)
def test_work_is_over_with_its_time_and_its_bytes_which_share_links(
    accesses: str, end_ns: int, other_end_ns: int
) -> None:
    engine = Engine(TINY.override(_AT_ONCE | {"gpu.accesses": accesses}), record=True)
    work = engine.queue("gpu").work(lambda: _READS, "reads")
    other = engine.transfer(900, "root", "gpu", "other")
    longer = engine.queue("gpu").work(
        lambda: DeviceWork(700, _READS.flows), "longer", after=[other]
    )
    engine.run()
    assert _times(work, other) == [(0, end_ns), (0, other_end_ns)]
    begin_ns = max(end_ns, other_end_ns)
    assert _times(longer) == [(begin_ns, begin_ns + 700)]
    assert engine.queue("gpu").busy_ns == end_ns + 700
    engine.check()


def test_work_waits_for_latencies_and_writes_go_the_other_way() -> None:
    """The processor's are at the host's memory: of ddr's 2 each has 1."""
    engine = Engine(TINY, record=True)
    flows = [Flow(200, "gpu", "host"), Flow(100, "host", "gpu")]
    work = engine.queue("cpu").work(lambda: DeviceWork(0, flows), "op")
    copy = engine.transfer(1000, "gpu", "host", "copy")
    engine.run()  # one from 100 to 300, one from 400 to 500; the copy has moved 200, 400 and 500
    assert _times(work, copy) == [(0, 500), (0, 750)]
    engine.check()


@pytest.mark.parametrize(
    ("transfers", "ends_ns"),
    [
        # Three have a byte a ns each, then the copy ddr's two.
        ("shared", (300, 300, 400)),
        # Two have 1.5 each, and the copy 2.
        ("apart", (200, 200, 250)),
    ],
)
def test_a_memory_has_a_rate_of_its_own(transfers: str, ends_ns: tuple[int, ...]) -> None:
    memory = replace(TINY.memory("host"), total_gb_per_s=assumed(3, "a test"), transfers=transfers)
    memories = tuple(memory if one.name == "host" else one for one in TINY.memories)
    second = replace(TINY.device("cpu"), name="second", gb_per_s=assumed(50, "a test"))
    machine = replace(TINY, memories=memories, devices=(*TINY.devices, second))
    engine = Engine(machine.override(_AT_ONCE), record=True)
    works = [
        engine.queue(device).work(lambda: DeviceWork(0, [Flow(300, "host", "host")]), "op")
        for device in ("cpu", "second")
    ]
    copy = engine.transfer(500, "host", "gpu", "copy")
    engine.run()
    assert tuple(action.end_ns for action in (*works, copy)) == ends_ns
    engine.check()


def test_what_work_takes_is_asked_when_it_begins() -> None:
    engine, begun = Engine(TINY), []

    def ask() -> int:
        begun.append(engine.now_ns)
        return 5

    queue = engine.queue("gpu")
    queue.work(ask, "one")
    queue.work(ask, "two", after=[engine.clock.timeout(20)])
    assert engine.run() == 25
    assert begun == [0, 20]


def test_memory_is_taken_given_and_counted() -> None:
    engine = Engine(TINY, record=True)
    gpu = engine.memory("gpu")
    gpu.take("weights", 6000)
    gpu.take(("activation", 1), 3000)
    assert gpu.holds("weights")
    assert (gpu.free_bytes, gpu.peak_bytes) == (1000, 9000)
    with pytest.raises(
        NoRoomError,
        match=r"memory 'gpu': 'more' takes 1001 bytes, but only 1000 of 10000 are free; "
        r"the largest holders are 'weights' \(6000\), \('activation', 1\) \(3000\)",
    ):
        gpu.take("more", 1001)
    with pytest.raises(EngineError, match="'weights' holds 6000 bytes already"):
        gpu.take("weights", 1)
    gpu.give("weights")
    with pytest.raises(EngineError, match="'weights' holds nothing"):
        gpu.give("weights")
    assert not gpu.holds("weights")
    assert gpu.held == {("activation", 1): 3000}
    assert gpu.free_bytes == 7000
    gpu.take("again", 5000)
    assert (gpu.free_bytes, gpu.peak_bytes) == (2000, 9000)
    with pytest.raises(NoRoomError, match="10001 bytes never fit into its 10000"):
        gpu.room(10001, "most")
    engine.check()


def test_room_is_given_in_the_order_in_which_it_was_asked_for() -> None:
    engine = Engine(TINY, record=True)
    gpu, got = engine.memory("gpu"), []
    gpu.take("first", 9000)

    def user(name: str, nbytes: int) -> Generator[Any, Any, None]:
        yield gpu.room(nbytes, name)
        got.append((name, engine.now_ns))
        yield engine.clock.timeout(10)
        gpu.give(name)

    def owner() -> Generator[Any, Any, None]:
        yield engine.clock.timeout(5)
        gpu.give("first")

    engine.process(user("large", 8000))
    engine.process(user("small", 500))  # there is room, but it came later
    engine.process(user("large too", 8000))
    engine.process(owner())
    engine.run()
    assert got == [("large", 5), ("small", 5), ("large too", 15)]
    assert gpu.free_bytes == 10000
    engine.check()


def test_a_deadlock_says_who_waits_for_what() -> None:
    engine = Engine(TINY)
    one, two, gpu = engine.queue("one"), engine.queue("two"), engine.memory("gpu")
    gpu.take("weights", 9999)
    never = engine.clock.event()

    def waits() -> Generator[Any, Any, None]:
        yield gpu.room(2, "more")

    def waits_for_both() -> Generator[Any, Any, None]:
        yield engine.clock.timeout(4)
        yield blocked

    blocked = one.execute(1, "blocked", after=[never])
    two.transfer(1, "gpu", "host", "behind", after=[blocked])
    engine.transfer(1, "gpu", "host", "alone", after=[blocked])
    engine.process(waits(), "waiter")
    engine.process(waits_for_both())

    with pytest.raises(DeadlockError) as raised:
        engine.run()
    assert str(raised.value).splitlines() == [
        "memory 'gpu' of 10000 bytes is too small, as 'more' needs 2 beside the 9999 that are "
        "held: free more, or raise gpu.capacity_bytes to at least 10001.",
        "deadlock at 4 ns:",
        "  'blocked' in queue 'one' waits for an event (EngineEvent) that nothing triggers",
        "  'behind' in queue 'two' waits for 'blocked' in queue 'one'",
        "  'alone' waits for 'blocked' in queue 'one'",
        "  process 'waiter' waits for room for 2 bytes in memory 'gpu'",
        "  process 'waits_for_both' waits for 'blocked' in queue 'one'",
        "  'more' waits for room for 2 bytes in memory 'gpu', with 1 free; the largest "
        "holders are 'weights' (9999)",
    ]
    gpu.give("weights")
    never.succeed()
    engine.run()
    assert blocked.happened


def test_what_cannot_be_is_refused() -> None:
    engine = Engine(TINY)
    queue = engine.queue("one")
    with pytest.raises(MachineError, match="is 'gpus': did you mean gpu"):
        queue.transfer(1, "gpus", "host", "copy")
    with pytest.raises(MachineError, match="is 'hots': did you mean host"):
        engine.memory("hots")
    with pytest.raises(EngineError, match="nothing was recorded: make the engine with record"):
        engine.check()
    with pytest.raises(EngineError, match="cycles of 200 MHz: expected 1000"):
        Engine(TINY, Timeline(backend="tiny", fabric_mhz=200))
    assert engine.run() == 0
    flows = [Flow(1, "host", "gpu")]
    with pytest.raises(MachineError, match="device is 'one': expected one of gpu, cpu"):
        _works("one", DeviceWork(0, flows))
    with pytest.raises(EngineError, match=r"'cpu' moves .* to 'disk': expected its memory, 'host'"):
        _works("cpu", DeviceWork(0, [Flow(1, "gpu", "disk")]))
    with pytest.raises(MachineError, match="is 'hots': did you mean host"):
        _works("gpu", DeviceWork(0, [Flow(1, "hots", "gpu")]))


def _works(queue: str, work: DeviceWork) -> None:
    engine = Engine(TINY)
    engine.queue(queue).work(lambda: work, "op")
    engine.run()


def test_the_timeline_has_how_full_memories_are(tmp_path: Path) -> None:
    timeline = Timeline(backend="tiny", fabric_mhz=1000)
    engine = Engine(TINY, timeline)
    gpu = engine.memory("gpu")
    gpu.take("first", 300)

    def holders():
        gpu.take("passing", 90)
        yield engine.queue("compute").execute(50, "op")
        gpu.give("passing")  # and taken in the same moment by who waits
        yield engine.queue("compute").execute(20, "op")
        gpu.give("first")

    def waits():
        yield gpu.room(gpu.capacity_bytes - 300, "rest")

    engine.process(holders())
    engine.process(waits())
    engine.run()
    timeline.write(tmp_path / "trace.json")
    trace = read_trace(tmp_path / "trace.json")
    assert_sound(trace)
    assert trace.counters == {
        "memory gpu, bytes": [
            (0, 390),
            (50, gpu.capacity_bytes),
            (70, gpu.capacity_bytes - 300),
        ]
    }


def test_the_timeline_has_every_action(tmp_path: Path) -> None:
    timeline = Timeline(backend="tiny", fabric_mhz=1000)
    engine = Engine(TINY, timeline)
    queue = engine.queue("compute")
    op = queue.execute(50, "op", category="forward")
    queue.transfer(1000, "host", "gpu", "in")
    engine.transfer(1000, "host", "gpu", "too", after=[op])
    engine.transfer(1000, "gpu", "host", "out")
    engine.run()
    engine.transfer(1000, "host", "gpu", "later")
    engine.run()
    timeline.write(tmp_path / "trace.json")
    trace = read_trace(tmp_path / "trace.json")
    assert_sound(trace)
    names_of = {
        name: [slice_made.name for slice_made in track] for name, track in trace.tracks.items()
    }
    assert names_of == {
        "queue compute": ["op", "in"],
        "link pcie write": ["in", "later"],
        "link pcie write 2": ["too"],
        "link pcie read": ["out"],
        "link ddr": ["out", "later"],
        "link ddr 2": ["in"],
        "link ddr 3": ["too"],
    }
    (_, copy) = trace.tracks["queue compute"]
    assert copy.arguments == {"nbytes": 1000, "from": "host", "to": "gpu"}
    assert (copy.category, copy.begin_ns) == ("transfer", 50)
    assert trace.tracks["queue compute"][0].category == "forward"
