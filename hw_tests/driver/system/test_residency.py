"""Where tensors are: coming, staying, leaving, room that is made, and what cannot be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import permutations
from random import Random
from typing import Any

import pytest

from sw_driver.device.errors import DeadlockError
from sw_driver.machine import MachineError
from sw_driver.machine.presets import PRESETS
from sw_driver.machine.tiny import TINY
from sw_driver.system.clock import EngineEvent, ProcessSteps
from sw_driver.system.driving import Policy, drive
from sw_driver.system.engine import Engine
from sw_driver.system.errors import EngineError, NoRoomError
from sw_driver.system.residency import Residency
from sw_driver.system.work import work_of
from sw_driver.workload import load_trace
from sw_driver.workload.trace import LASTING, Op, Trace

SIZES = {"a": 4000, "b": 4000, "c": 6000, "d": 1000}
PLACES = ("gpu", "host", "disk")


def _size(key: str, place: str) -> int:
    return SIZES[key]


def _engine() -> Engine:
    return Engine(TINY, record=True)


def _moved(engine: Engine) -> list[tuple[str, int, int]]:
    """Label, begin and end of each transfer."""
    assert engine.log is not None
    return [
        (transfer.label, transfer.begin_ns, transfer.end_ns) for transfer in engine.log.transferred
    ]


def _settled(residency: Residency) -> None:
    """Memories hold what is there and nothing else, and no more than they have."""
    residency.engine.check()
    for place in PLACES:
        held = {key: SIZES[key] for key in residency.held(place)}
        assert dict(residency.engine.memory(place).held) == held


def _at(engine: Engine, at_ns: int, does: Callable[[], object]) -> None:
    engine.clock.at(at_ns, does)


def test_what_is_asked_for_twice_comes_once() -> None:
    """1000 bytes from the host's memory take 100 ns and 500."""
    engine = _engine()
    residency = Residency(engine, _size)
    residency.put("d", "host")
    first = residency.copy("d", "gpu", "copies")
    again: list[EngineEvent] = []
    _at(engine, 50, lambda: again.append(residency.copy("d", "gpu")))
    _at(engine, 599, lambda: again.append(residency.move("d", "gpu")))
    assert engine.run() == 600
    assert again == [first, first]
    assert residency.copy("d", "gpu") is first
    assert first.happened
    assert _moved(engine) == [("d to gpu", 0, 600)]
    assert residency.has("d", "host")
    assert residency.where("d") == "gpu"
    residency.free("d", "gpu")
    assert residency.where("d") == "host"
    _settled(residency)


def test_what_moves_is_where_it_was_until_it_is_there() -> None:
    """And goes on from there. 4000 bytes: 2100 ns to the GPU, and 1100 + 4000 to the disk."""
    engine = _engine()
    residency = Residency(engine, _size)
    residency.put("a", "host")
    residency.move("a", "gpu")
    residency.move("a", "disk")
    waits: list[tuple[str, bool]] = []
    for at_ns in (0, 2099, 2101, 7199):
        _at(engine, at_ns, lambda: waits.append((residency.where("a"), residency.has("a", "gpu"))))
    engine.run()
    # The second begins at once when the first is over.
    assert waits == [("host", False), ("host", False), ("gpu", False), ("gpu", False)]
    assert _moved(engine) == [("a to gpu", 0, 2100), ("a to disk", 2100, 7200)]
    assert residency.where("a") == "disk"
    _settled(residency)


def test_what_is_needed_again_comes_back_when_it_has_left() -> None:
    engine = _engine()
    residency = Residency(engine, _size)
    residency.put("a", "gpu")
    residency.move("a", "host")
    _at(engine, 1000, lambda: residency.move("a", "gpu"))
    engine.run()
    assert _moved(engine) == [("a to host", 0, 2100), ("a to gpu", 2100, 4200)]
    _settled(residency)


def test_what_is_in_use_does_not_leave() -> None:
    engine = _engine()
    residency = Residency(engine, _size)
    residency.put("d", "host")
    residency.pin("d", "host")
    residency.pin("d", "host")
    residency.move("d", "gpu")
    residency.copy("d", "disk")  # 1000 ns, 1 byte a ns; the source is in use so long
    _at(engine, 700, lambda: residency.unpin("d", "host"))
    _at(engine, 800, lambda: residency.unpin("d", "host"))
    engine.run()
    assert _moved(engine) == [("d to disk", 0, 2000), ("d to gpu", 2000, 2600)]
    assert (residency.has("d", "host"), residency.has("d", "disk")) == (False, True)
    with pytest.raises(EngineError, match="d is not pinned in 'host'"):
        residency.unpin("d", "host")
    _settled(residency)


@pytest.mark.parametrize(
    ("uses", "pins", "expected"),
    [
        ("", "", [("a to host", 0, 2100), ("c to gpu", 2100, 5200)]),
        ("a", "", [("b to host", 0, 2100), ("c to gpu", 2100, 5200)]),
        ("", "a", [("b to host", 0, 2100), ("c to gpu", 2100, 5200)]),
        # Nobody may leave before that is unpinned, 1000 ns later.
        ("", "ab", [("a to host", 1000, 3100), ("c to gpu", 3100, 6200)]),
    ],
)
def test_room_is_made_in_the_order_of_the_policy(
    uses: str, pins: str, expected: list[tuple[str, int, int]]
) -> None:
    """Of 10,000 bytes, two tensors have 8000 when one of 6000 comes."""
    engine = _engine()
    residency = Residency(
        engine, _size, leaves={"gpu": lambda: ((key, "host") for key in residency.held("gpu"))}
    )
    for key, place in {"a": "gpu", "b": "gpu", "c": "host"}.items():
        residency.put(key, place)
    for key in uses:
        residency.touch(key, "gpu")
    for key in pins:
        residency.pin(key, "gpu")
        _at(engine, 1000, lambda key=key: residency.unpin(key, "gpu"))
    residency.move("c", "gpu")
    engine.run()
    assert _moved(engine) == expected
    _settled(residency)


def test_what_is_where_it_would_leave_for_is_only_freed() -> None:
    engine = _engine()
    residency = Residency(engine, _size, leaves={"gpu": lambda: [("b", "host"), ("a", "host")]})
    for key, place in (("a", "gpu"), ("a", "host"), ("b", "gpu"), ("c", "host")):
        residency.put(key, place)
    residency.move("b", "host", "slow", [engine.clock.timeout(9000)])  # it is on its way there
    residency.room("d", "disk")
    residency.copy("c", "gpu")
    engine.run()
    assert _moved(engine)[0] == ("c to gpu", 0, 3100)
    assert [place for place in PLACES if residency.has("a", place)] == ["host"]
    _settled(residency)


def test_who_waits_for_room_hears_of_a_copy_elsewhere() -> None:
    residency = Residency(_engine(), _size, leaves={"gpu": lambda: [("a", "host")]})
    for key, place in {"a": "gpu", "c": "gpu", "b": "disk"}.items():
        residency.put(key, place)
    residency.copy("a", "host")  # until 2100, and only then it may leave
    residency.copy("b", "gpu")
    assert residency.engine.run() == 2100 + 1100 + 4000
    assert list(residency.held("gpu")) == ["c", "b"]
    _settled(residency)


def test_room_is_given_in_the_order_of_asking_or_to_who_finds_enough() -> None:
    """8000 of 10,000 bytes are held: 6000 are asked for, and then 1000."""
    for leaves, order in ((None, "cd"), ({"gpu": lambda: ()}, "dc")):
        engine = _engine()
        residency = Residency(engine, _size, leaves=leaves)
        residency.put("a", "gpu")
        residency.put("b", "gpu")
        came: list[str] = []
        for key in "cd":
            room = residency.room(key, "gpu")
            room.callbacks.append(lambda _, key=key, came=came: came.append(key))
        _at(engine, 10, lambda residency=residency: residency.free("a"))
        _at(engine, 20, lambda residency=residency: residency.free("b"))
        engine.run()
        assert came == list(order)
        _settled(residency)


def test_a_place_may_be_several_memories_and_a_tensor_smaller_there() -> None:
    """Of 4000 bytes, 2001 are kept: 1001 in the host's memory, 1000 on the disk."""
    engine = _engine()
    residency = Residency(
        engine,
        lambda key, place: 2001 if place == "both" else SIZES[key],
        spread={"both": ("host", "disk")},
    )
    residency.put("a", "gpu")
    residency.move("a", "both")
    engine.run()
    held = [dict(engine.memory(place).held) for place in PLACES]
    assert held == [{}, {"a": 1001}, {"a": 1000}]
    residency.move("a", "gpu")
    engine.run()
    assert engine.log is not None
    assert Counter(transfer.target for transfer in engine.log.transferred) == Counter(
        {"host": 1, "disk": 1, "gpu": 2}
    )
    assert sum(transfer.nbytes for transfer in engine.log.transferred) == 2 * 2001
    assert [dict(engine.memory(place).held) for place in PLACES] == [{"a": 4000}, {}, {}]
    engine.check()


def test_bytes_may_be_moved_otherwise() -> None:
    def carry(key: str, source: str, target: str) -> ProcessSteps:
        yield engine.queue("one").execute(50, f"{key}: {source} to {target}")

    engine = _engine()
    residency = Residency(engine, _size, carry=carry)
    residency.put("a", "host")
    residency.put("b", "host")
    residency.copy("a", "gpu")
    residency.copy("a", "disk")
    assert engine.run() == 100
    assert residency.where("a") == "gpu"
    assert list(residency.held("host")) == ["b", "a"]  # a was used last


def test_everything_is_freed_when_it_has_come() -> None:
    engine = _engine()
    residency = Residency(engine, _size)
    for key in "ad":
        residency.put(key, "host")
        residency.move(key, "gpu", "copies")
        residency.free(key)
    engine.run()
    assert len(_moved(engine)) == 2
    assert [residency.where(key) for key in "ad"] == ["", ""]
    _settled(residency)


def test_what_cannot_be_is_refused() -> None:
    engine = _engine()
    residency = Residency(engine, _size, name=lambda key: f"tensor {key}")
    with pytest.raises(EngineError, match="tensor a cannot come to 'gpu': it is nowhere: put it"):
        residency.copy("a", "gpu")
    with pytest.raises(EngineError, match="tensor a cannot be freed: it is nowhere"):
        residency.free("a")
    residency.put("a", "host")
    residency.pin("a", "host")
    with pytest.raises(EngineError, match="tensor a cannot be freed: it is pinned in host"):
        residency.free("a")
    residency.unpin("a", "host")
    with pytest.raises(EngineError, match="tensor a cannot be freed: it is in host"):
        residency.free("a", "gpu")
    with pytest.raises(EngineError, match="memory 'host': 'a' holds 4000 bytes already"):
        residency.put("a", "host")
    with pytest.raises(EngineError, match="tensor a has room in 'host' already"):
        residency.room("a", "host")
    residency.pin("b", "gpu")
    residency.put("b", "gpu")
    residency.move("b", "host")
    message = "process 'tensor b to host' waits for tensor b to be unpinned in 'gpu'"
    with pytest.raises(DeadlockError, match=message):
        engine.run()
    residency.unpin("b", "gpu")
    residency.move("a", "gpu")
    _at(engine, 50, lambda: residency.free("a", "gpu"))
    with pytest.raises(EngineError, match="tensor a cannot be freed: it is on its way to gpu"):
        engine.run()
    for call in (residency.put, residency.room, residency.move, residency.pin, residency.free):
        with pytest.raises(MachineError, match="place is 'gpus': did you mean gpu"):
            call("b", "gpus")
    with pytest.raises(MachineError, match="place is 'hots': did you mean host"):
        Residency(engine, _size, leaves={"hots": lambda: ()})
    residency = Residency(_engine(), _size, leaves={"gpu": lambda: [("a", "gpu")]})
    for key in "ac":
        residency.put(key, "gpu")
    residency.room("b", "gpu")
    with pytest.raises(EngineError, match="a is to leave 'gpu' for itself: name another"):
        residency.engine.run()


def test_room_that_never_comes_is_named() -> None:
    small = TINY.override({"gpu.capacity_bytes": "5000"})
    for leaves in ({"gpu": lambda: [("a", "host")]}, None):
        engine = Engine(small)
        residency = Residency(engine, _size, leaves=leaves)
        residency.put("a", "gpu")
        residency.pin("a", "gpu")
        residency.put("b", "host")
        residency.put("c", "host")
        residency.copy("b", "gpu")
        message = "memory 'gpu' of 5000 bytes .* 'b' needs 4000 .* 4000 .*raise gpu.capacity_bytes"
        with pytest.raises(DeadlockError, match=message):
            engine.run()
    message = r"'gpu': 6000 bytes never fit into its 5000: raise gpu\.capacity_bytes"
    with pytest.raises(NoRoomError, match=message):
        residency.copy("c", "gpu")


# Whatever comes when.


def _tight() -> Residency:
    """Room for some of the tensors in two memories, and for all on the disk, where they are."""
    residency = Residency(
        Engine(TINY.override({"host.capacity_bytes": "8000"}), record=True),
        _size,
        leaves={
            "gpu": lambda: ((key, "host") for key in residency.held("gpu")),
            "host": lambda: ((key, "disk") for key in residency.held("host")),
        },
    )
    for key in SIZES:
        residency.put(key, "disk")
    return residency


def test_all_orders_of_asking_end_well() -> None:
    asks = [
        lambda residency: residency.move("a", "gpu"),
        lambda residency: residency.copy("b", "gpu", "copies"),
        lambda residency: residency.move("c", "gpu", "copies"),
        lambda residency: residency.move("a", "host"),
        lambda residency: residency.move("d", "gpu"),
    ]
    for spacing_ns in (0, 700):
        for order in permutations(asks):
            residency = _tight()
            for number, ask in enumerate(order):
                _at(residency.engine, number * spacing_ns, lambda ask=ask, on=residency: ask(on))
            residency.engine.run()
            _settled(residency)
            assert all(map(residency.where, SIZES))
            assert residency.has("b", "disk")


def test_random_policies_lose_nothing() -> None:
    """Who uses two at once may wait forever; but what is there is counted, and in use it stays."""
    ended = 0
    for seed in range(100):
        random, residency = Random(seed), _tight()

        def use(random: Random = random, residency: Residency = residency) -> ProcessSteps:
            for _ in range(10):
                key, place = random.choice("abcd"), random.choice(PLACES)
                yield residency.engine.clock.timeout(random.randrange(3000))
                bring = random.choice((residency.copy, residency.move))
                yield bring(key, place, random.choice(("", "copies")))
                if residency.has(key, place):
                    residency.pin(key, place)
                    residency.touch(key, place)
                    yield residency.engine.clock.timeout(random.randrange(2000))
                    assert residency.has(key, place)
                    residency.unpin(key, place)

        for number in range(3):
            residency.engine.process(use(), f"user {number}")
        try:
            residency.engine.run()
        except DeadlockError:
            continue
        finally:
            residency.engine.check()
            assert all(map(residency.where, SIZES))
        _settled(residency)
        ended += 1
    assert ended > 90


class _Ferry(Policy):
    """Parameters come from the host's memory for each operation that reads them; but the smallest
    are read where they are. Gradients go there to be updated."""

    def __init__(self, engine: Engine, trace: Trace, read_there: int) -> None:
        self.engine, self.trace, self.read_there = engine, trace, read_there
        self.residency = Residency(engine, lambda tensor, _: trace.tensors[tensor].nbytes)
        self.allocated: dict[int, list[int]] = {}
        self.freed: dict[int, list[int]] = {}
        for tensor in trace.tensors:
            if tensor.kind in LASTING:
                self.residency.put(tensor.id, "host")
            else:
                last = len(trace.ops) if tensor.freed is None else tensor.freed
                self.allocated.setdefault(tensor.allocated, []).append(tensor.id)
                self.freed.setdefault(last - 1, []).append(tensor.id)

    def cost(self, op: Op, device: str) -> Any:
        return work_of(self.engine.machine, op, device, self.residency.where)

    def place(self, op: Op) -> str:
        return "cpu" if op.phase == "update" else "gpu"

    def fetched(self, op: Op) -> list[int]:
        kinds = ("gradient",) if op.phase == "update" else ("parameter", "input")
        kept = [number for number in op.reads if self.trace.tensors[number].kind in kinds]
        return [number for number in kept if self.trace.tensors[number].nbytes > self.read_there]

    def before(self, op: Op) -> Iterable[EngineEvent]:
        for tensor in self.allocated.get(op.id, ()):
            yield self.residency.room(tensor, "host" if op.phase == "update" else "gpu")
        for tensor in self.fetched(op):
            if op.phase == "update":
                yield self.residency.move(tensor, "host", "gradients")
            else:
                self.residency.pin(tensor, "gpu")
                yield self.residency.copy(tensor, "gpu", "parameters")

    def after(self, op: Op) -> None:
        for tensor in self.fetched(op):
            if op.phase != "update" and not self.residency.unpin(tensor, "gpu"):
                self.residency.free(tensor, "gpu")
        for tensor in self.freed.get(op.id, ()):
            self.residency.free(tensor)


def test_a_policy_for_a_training_step_is_short() -> None:
    trace = load_trace("gpt-tiny")
    engine = Engine(PRESETS["axdimm_platform"], record=True)
    policy = _Ferry(engine, trace, read_there=4096)
    drive(engine, trace, policy, ahead_ops=0, cost=policy.cost)
    engine.check()
    assert engine.log is not None
    moved, read = Counter[str](), Counter[str]()
    for transfer in engine.log.transferred:
        if transfer.source != transfer.target:  # but what a device reads of its own memory
            (read if transfer.device else moved)[transfer.target] += transfer.nbytes
    expected, expected_read = Counter[str](), Counter[str]()
    for op in trace.ops:
        home = "host" if op.phase == "update" else "gpu"
        fetched = policy.fetched(op)
        expected[home] += sum(trace.tensors[number].nbytes for number in fetched)
        for tensor, nbytes in zip(op.reads, op.read_bytes, strict=True):
            kind = trace.tensors[tensor].kind
            away = kind == "gradient" if home == "host" else kind in LASTING
            expected_read[home] += nbytes * (away and tensor not in fetched)
    assert moved == expected
    assert read == expected_read
    assert min(*moved.values(), *read.values()) > 0
    assert dict(engine.memory("gpu").held) == {}
