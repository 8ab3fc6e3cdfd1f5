"""Who has what share on random machines, against a reference that counts every nanosecond."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import floor
from typing import Any

import pytest

from sw_driver.machine import Device, Figure, Link, Machine, Memory, assumed
from sw_driver.machine.tiny import TINY
from sw_driver.system.engine import Engine
from sw_driver.system.log import ConservationError, Held, Log, Ran, Segment, check_log
from sw_driver.system.work import DeviceWork, Flow

_WHY = "by chance"
_GIGA = 10**9


@dataclass(frozen=True)
class _Wanted:
    """A transfer; or, if there is a device, its work."""

    at_ns: int
    device: str
    flows: tuple[Flow, ...]
    duration_ns: int = 0
    launch_ns: int = 0


def _rate(chance: random.Random) -> Figure:
    return assumed(chance.randint(2 * 10**8, 4 * _GIGA) / _GIGA, _WHY)


def _machine(chance: random.Random) -> Machine:
    """Memories around one or two junctions, and a way past them."""
    names = [f"m{number}" for number in range(chance.randint(2, 5))]
    junctions = ("x", "y")[: chance.randint(1, 2)]
    ends = [(chance.choice(junctions), name) for name in names]
    ends += [("x", "y")] * (len(junctions) - 1) + [(names[0], names[1])] * chance.randint(0, 1)
    return Machine(
        name="chance",
        memories=tuple(
            Memory(
                name=name,
                capacity_bytes=assumed(1, _WHY),
                total_gb_per_s=chance.choice((None, _rate(chance))),
                transfers=chance.choice(("shared", "apart")),
            )
            for name in names
        ),
        devices=tuple(
            Device(
                name=f"d{number}",
                memory=chance.choice(names),
                tflop_per_s=assumed(1, _WHY),
                gb_per_s=_rate(chance),
                launch_ns=assumed(0, _WHY),
                accesses=chance.choice(("in_turn", "at_once")),
            )
            for number in range(3)
        ),
        links=tuple(
            Link(
                name=f"l{number}",
                a=a,
                b=b,
                read_gb_per_s=_rate(chance),
                write_gb_per_s=_rate(chance),
                latency_ns=assumed(chance.choice((0, 0, chance.randint(1, 300))), _WHY),
                sharing=chance.choice(("duplex", "half")),
            )
            for number, (a, b) in enumerate(ends)
        ),
        junctions=junctions,
    )


def _wanted(chance: random.Random, machine: Machine) -> list[_Wanted]:
    """A few on any ways, or many on few; all at once, or with pauses."""
    names = [memory.name for memory in machine.memories]
    few = [chance.sample(names, 2) for _ in range(chance.randint(1, 3))]
    most, ways = chance.choice(((9, None), (25, few)))
    latest_ns = chance.choice((1500, 10_000))
    wanted = []
    for _ in range(chance.randint(1, most)):
        at_ns = chance.choice((0, 100, chance.randint(0, latest_ns)))
        nbytes = [chance.choice((0, 1, chance.randint(1, 3000))) for _ in range(3)]
        device, flows = None, [Flow(nbytes[0], *(chance.choice(ways or [chance.sample(names, 2)])))]
        if chance.random() < 1 / 3:
            device = chance.choice(machine.devices)
            others = [chance.choice([(device.memory, name)] * 2) for name in names]
            flows = [
                Flow(size, *chance.sample(chance.choice(others), 2))
                for size in nbytes[: chance.randint(0, 3)]
            ]
        wanted.append(
            _Wanted(
                at_ns,
                device.name if device else "",
                tuple(flows),
                chance.choice((0, chance.randint(0, 2000))),
                chance.choice((0, 10)),
            )
        )
    return wanted


def _uses(machine: Machine, flow: Flow, device: str) -> tuple[dict[str, Fraction], int]:
    """Of a second of each that the bytes use, how much for each byte; and the latency."""
    rates, latency_ns, memories = {}, 0, {flow.source, flow.target}
    if device:
        does = machine.device(device)
        memories.discard(does.memory)
        if not memories:
            memories = {does.memory}
            rates[f"device {device}"] = Fraction(1, _bytes_per_s(does.gb_per_s))
    if flow.source != flow.target:
        for link, writing in machine.route(flow.source, flow.target):
            way = "" if link.sharing == "half" else str(writing)
            rates[f"link {link.name} {way}"] = Fraction(1, link.rate(writing=writing))
            latency_ns += int(link.latency_ns.value)
    for name in memories:
        memory = machine.memory(name)
        if memory.total_gb_per_s:
            who = device and "work" if memory.transfers == "apart" else ""
            rates[f"memory {name} {who}"] = Fraction(1, _bytes_per_s(memory.total_gb_per_s))
    return rates, latency_ns


def _bytes_per_s(figure: Figure) -> int:
    return round(figure.value * _GIGA)


@dataclass(eq=False)
class _Moving:
    uses: dict[str, Fraction]
    left: int


def _fair(active: list[_Moving]) -> dict[_Moving, int]:
    """All rise together; who uses what is full, stays there, in whole bytes a second."""
    rates: dict[_Moving, int] = {}
    while len(rates) < len(active):
        free: dict[str, Fraction] = {}
        rising: dict[str, Fraction] = {}
        for flow in active:
            for name, share in flow.uses.items():
                free[name] = free.get(name, Fraction(1)) - share * rates.get(flow, 0)
                rising[name] = rising.get(name, Fraction(0)) + share * (flow not in rates)
        levels = {name: free[name] / rising[name] for name in free if rising[name]}
        level = min(levels.values())
        for flow in active:
            if flow not in rates and any(levels[name] == level for name in flow.uses):
                rates[flow] = floor(level)
    return rates


class _Reference:
    """Counts every nanosecond."""

    def __init__(self, machine: Machine, wanted: list[_Wanted]) -> None:
        self.machine = machine
        self.now_ns = 0
        self.ends: dict[int, int] = {}
        self.active: list[_Moving] = []
        self.going: list[tuple[Generator, Callable[[], bool]]] = []
        self.timers = {0}
        queues: dict[str, list[int]] = {}
        for number, work in enumerate(wanted):
            queues.setdefault(work.device or str(number), []).append(number)
        for numbers in queues.values():
            self.begin(self.queue([(number, wanted[number]) for number in numbers]))
        rates: dict[_Moving, int] = {}
        while self.going:
            if self.now_ns in self.timers or any(flow.left <= 0 for flow in self.active):
                while any(self.go_on(*process) for process in list(self.going)):
                    pass
                self.active = [flow for flow in self.active if flow.left > 0]
                rates = _fair(self.active)
            self.now_ns += 1
            for flow in self.active:
                flow.left -= rates[flow]

    def begin(self, steps: Generator[Callable[[], bool]]) -> None:
        for waits in steps:
            self.going.append((steps, waits))
            return

    def go_on(self, steps: Generator[Callable[[], bool]], waits: Callable[[], bool]) -> bool:
        if not waits():
            return False
        self.going.remove((steps, waits))
        self.begin(steps)
        return True

    def until(self, at_ns: int) -> Callable[[], bool]:
        self.timers.add(at_ns)
        return lambda: self.now_ns >= at_ns

    def queue(self, entries: list[tuple[int, _Wanted]]) -> Generator[Callable[[], bool]]:
        for number, work in entries:
            yield self.until(work.at_ns)
            if work.device:
                yield self.until(self.now_ns + work.launch_ns)
            over_ns = self.now_ns + work.duration_ns * bool(work.device)
            if work.device and self.machine.device(work.device).accesses == "at_once":
                done: list[Flow] = []
                for flow in work.flows:
                    self.begin(self.noted(flow, work.device, done))
                yield lambda done=done, work=work: len(done) == len(work.flows)
            else:
                for flow in work.flows:
                    yield from self.moved(flow, work.device)
            yield self.until(over_ns)
            self.ends[number] = self.now_ns

    def noted(self, flow: Flow, device: str, done: list[Flow]) -> Generator[Callable[[], bool]]:
        yield from self.moved(flow, device)
        done.append(flow)

    def moved(self, flow: Flow, device: str) -> Generator[Callable[[], bool]]:
        uses, latency_ns = _uses(self.machine, flow, device)
        yield self.until(self.now_ns + latency_ns)
        moving = _Moving(uses, flow.nbytes * _GIGA)
        self.active.append(moving)
        yield lambda: moving.left <= 0


def _run(engine: Engine, wanted: list[_Wanted]) -> list[int]:
    """When each ended, from now on."""
    begin_ns = engine.now_ns
    actions = []
    for flow in wanted:
        after = [engine.clock.timeout(flow.at_ns)]
        if flow.device:
            work = DeviceWork(flow.duration_ns, flow.flows, flow.launch_ns)
            actions.append(engine.queue(flow.device).work(partial(DeviceWork, *work), "w", after))
        else:
            actions.append(engine.transfer(*flow.flows[0], "t", after))
    engine.run()
    return [action.end_ns - begin_ns for action in actions]


@pytest.mark.parametrize("seed", range(80))
def test_shares_are_the_references(seed: int) -> None:
    chance = random.Random(seed)
    machine = _machine(chance)
    wanted = _wanted(chance, machine)
    ends_ns = _Reference(machine, wanted).ends
    reference = [ends_ns[number] for number in range(len(wanted))]
    engine = Engine(machine, record=True)
    for _ in range(2):  # the second time with what it knows from the first
        assert _run(engine, wanted) == reference
    engine.check()


def _there_and_back(at_ns: int, nbytes: int) -> list[_Wanted]:
    there, back = Flow(2000, "m0", "m1"), Flow(nbytes, "m1", "m0")
    return [_Wanted(0, "", (there,)), _Wanted(at_ns, "", (back,))]


def _log(seed: int) -> tuple[Log, Machine]:
    chance = random.Random(seed)
    machine = _machine(chance)
    engine = Engine(machine, record=True)
    _run(engine, _there_and_back(50, 900))
    engine.memory("m0").take("all", 1)
    engine.memory("m0").give("all")
    for _ in range(2):
        engine.queue("q").execute(5, "op")
    engine.run()
    assert engine.log is not None
    check_log(engine.log, machine)
    return engine.log, machine


def test_a_log_of_what_cannot_be_is_refused() -> None:
    def refused(message: str) -> None:
        with pytest.raises(ConservationError, match=message):
            check_log(log, machine)

    log, machine = _log(1)
    segment = log.segments[-1]
    log.segments[-1] = segment._replace(bytes_per_s=segment.bytes_per_s // 2)
    refused("bytes fit into the time")
    log.segments[-1] = segment._replace(bytes_per_s=segment.bytes_per_s * 2)
    refused("bytes fit into the time")
    log.segments[-1] = segment._replace(begin_ns=segment.begin_ns + 1)
    refused("a gap or overlap")
    log.segments.pop()
    refused("segments end at")
    log.segments.append(segment)
    log.segments.append(Segment(7, 0, 1, 1))
    refused("segments of no transfer")

    log, machine = _log(2)
    log.transferred[0] = log.transferred[0]._replace(nbytes=log.transferred[0].nbytes + 1)
    refused("bytes fit into the time")

    log, machine = _log(3)
    slower = {
        f"{link.name}.{way}_gb_per_s": f"{0.99 * link.rate(writing=way == 'write') / 1e9:.6f}"
        for link in machine.links
        for way in ("read", "write")
    }
    machine = machine.override(slower)
    refused("above the rate of link")

    log, machine = _log(4)
    log.held[0] = Held(0, "m0", "all", 2)
    refused("above the capacity")
    log.held[0] = Held(0, "m0", "all", 0)
    refused("freed another number of bytes than taken")
    del log.held[0]
    refused("freed without being taken")

    log, machine = _log(5)
    log.ran[1] = Ran("q", "op", log.ran[0].end_ns - 1, log.ran[0].end_ns + 4)
    refused("two at once")
    log.ran[1] = Ran("q", "op", 5, 4)
    refused("ended before it began")

    log, machine = _log(7)
    log.worked[1] = log.worked[1]._replace(duration_ns=6)
    refused("work that is over at")


def test_a_log_of_work_that_cannot_be_is_refused() -> None:
    def refused(message: str, on: Machine = TINY) -> None:
        with pytest.raises(ConservationError, match=message):
            check_log(log, on)

    memories = tuple(
        replace(memory, total_gb_per_s=assumed(3, "a test")) for memory in TINY.memories[:2]
    )
    machine = replace(TINY, memories=(*memories, TINY.memories[2]))
    engine = Engine(machine, record=True)
    flows = [Flow(200, "gpu", "gpu"), Flow(100, "host", "gpu")]
    first = engine.transfer(900, "host", "gpu", "first")
    engine.queue("gpu").work(lambda: DeviceWork(50, flows, 10), "op", after=[first])
    engine.transfer(100, "gpu", "host", "copy", after=[first])
    engine.queue("cpu").work(
        lambda: DeviceWork(0, [Flow(300, "host", "host")]), "op", after=[first]
    )
    engine.run()
    log = engine.log
    assert log is not None
    check_log(log, machine)
    slower = {"gpu": ("gpu.total_gb_per_s", "2.9"), "host": ("host.total_gb_per_s", "2.9")}
    for name, change in slower.items():
        refused(f"above the rate of memory {name}:", machine.override(dict([change])))
    refused("above the rate of device cpu", machine.override({"cpu.gb_per_s": "1"}))
    refused("bytes moved out of turn", machine.override({"gpu.accesses": "at_once"}))
    check_log(log, machine.override({"host.transfers": "apart"}))

    def changed(number: int, message: str, **changes: Any) -> None:
        kept = log.worked[number]
        log.worked[number] = kept._replace(**changes)
        refused(message, machine)
        log.worked[number] = kept

    of_gpu = next(n for n, record in enumerate(log.worked) if record.device == "gpu")
    worked = log.worked[of_gpu]
    changed(of_gpu, "transfers other than the flows of the work", flows=flows[::-1])
    changed(of_gpu, "bytes moved out of turn", launch_ns=9)
    changed(of_gpu, "work that is over at", duration_ns=5000)
    changed(of_gpu, "work that is over at", end_ns=worked.end_ns + 1)
    changed(of_gpu, "transfers of no work, or of two", moved=worked.moved[:1])
    for entries, label in ((log.ran, "op"), (log.transferred, "copy")):
        number = next(n for n, record in enumerate(entries) if record.label == label)
        kept = entries[number]
        assert kept.after_ns == first.end_ns
        entries[number] = kept._replace(after_ns=kept.begin_ns + 1)
        refused("began before what it waits for", machine)
        entries[number] = kept


def test_a_directions_share_of_a_half_duplex_link_is_checked_by_both_rates() -> None:
    _, machine = _log(6)
    memories = tuple(replace(memory, total_gb_per_s=None) for memory in machine.memories)
    machine = replace(machine, memories=memories)
    halves = machine.override({f"{link.name}.sharing": "half" for link in machine.links})
    duplex = machine.override({f"{link.name}.sharing": "duplex" for link in machine.links})
    for recorded, allowed in ((halves, duplex), (duplex, halves)):
        engine = Engine(recorded, record=True)
        _run(engine, _there_and_back(0, 2000))
        assert engine.log is not None
        if allowed is duplex:
            check_log(engine.log, allowed)
        else:
            with pytest.raises(ConservationError, match="above the rate of link"):
                check_log(engine.log, allowed)


_PROGRAM = """
import random
from hw_tests.driver.system.test_sharing import Engine, _machine, _run, _wanted
for seed in range(20):
    chance = random.Random(seed)
    machine = _machine(chance)
    engine = Engine(machine, record=True)
    _run(engine, _wanted(chance, machine))
    print(engine.log)
"""


def test_the_same_happens_again_whatever_the_order_of_hashes() -> None:
    logs = {
        subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(logs) == 1
    assert len(logs.pop()) > 1000
