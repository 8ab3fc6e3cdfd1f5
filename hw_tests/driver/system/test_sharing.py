"""Shares of links on random machines, against a reference that counts every nanosecond."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import dataclass
from fractions import Fraction
from math import floor

import pytest

from sw_driver.machine import Link, Machine, Memory, assumed
from sw_driver.system.conservation import ConservationError, check_log
from sw_driver.system.engine import Engine
from sw_driver.system.log import Held, Log, Ran, Segment

_WHY = "by chance"
_GIGA = 10**9


@dataclass(frozen=True)
class _Wanted:
    at_ns: int
    nbytes: int
    source: str
    target: str


def _machine(chance: random.Random) -> Machine:
    """Memories around one or two junctions, and a way past them."""
    names = [f"m{number}" for number in range(chance.randint(2, 5))]
    junctions = ("x", "y")[: chance.randint(1, 2)]
    ends = [(chance.choice(junctions), name) for name in names]
    ends += [("x", "y")] * (len(junctions) - 1) + [(names[0], names[1])] * chance.randint(0, 1)
    return Machine(
        name="chance",
        memories=tuple(Memory(name=name, capacity_bytes=assumed(1, _WHY)) for name in names),
        devices=(),
        links=tuple(
            Link(
                name=f"l{number}",
                a=a,
                b=b,
                read_gb_per_s=assumed(chance.randint(2 * 10**8, 4 * _GIGA) / _GIGA, _WHY),
                write_gb_per_s=assumed(chance.randint(2 * 10**8, 4 * _GIGA) / _GIGA, _WHY),
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
    return [
        _Wanted(
            chance.choice((0, 100, chance.randint(0, latest_ns))),
            chance.choice((0, 1, chance.randint(1, 3000))),
            *(chance.choice(ways) if ways else chance.sample(names, 2)),
        )
        for _ in range(chance.randint(1, most))
    ]


def _fair(machine: Machine, routes: dict[int, tuple[tuple[Link, bool], ...]]) -> dict[int, int]:
    """All rise together; who is on a link that is full, stays there, in whole bytes a second."""
    fixed: dict[int, int] = {}

    def used(link: Link, writing: bool, rates: dict[int, Fraction | int]) -> Fraction:
        """Of the time of a link, or of one direction of it."""
        parts = [
            Fraction(rates[number]) / link.rate(writing=way)
            for number, route in routes.items()
            for other, way in route
            if other is link and (link.sharing == "half" or way == writing) and number in rates
        ]
        return sum(parts, Fraction(0))

    while len(fixed) < len(routes):
        rising = {number: 1 for number in routes if number not in fixed}
        levels = {
            (link.name, writing): (1 - used(link, writing, fixed)) / used(link, writing, rising)
            for link in machine.links
            for writing in (False, True)
            if used(link, writing, rising)
        }
        level = min(levels.values())
        for number in rising:
            for link, writing in routes[number]:
                if levels[link.name, writing] == level:
                    fixed[number] = floor(level)
    return fixed


def _reference(machine: Machine, wanted: list[_Wanted]) -> list[int]:
    """When each ends."""
    routes = {number: machine.route(each.source, each.target) for number, each in enumerate(wanted)}
    begins = {
        number: wanted[number].at_ns + sum(int(link.latency_ns.value) for link, _ in route)
        for number, route in routes.items()
    }
    left = {number: each.nbytes * _GIGA for number, each in enumerate(wanted)}
    ends = {number: begins[number] for number in left if not left[number]}
    now_ns, known, rates = 0, None, {}
    while len(ends) < len(wanted):
        active = [n for n in routes if n not in ends and begins[n] <= now_ns]
        if active != known:
            known, rates = active, _fair(machine, {number: routes[number] for number in active})
        now_ns += 1
        for number in active:
            left[number] -= rates[number]
            if left[number] <= 0:
                ends[number] = now_ns
    return [ends[number] for number in routes]


def _run(engine: Engine, wanted: list[_Wanted]) -> list[int]:
    """When each ended, from now on."""
    begin_ns = engine.now_ns
    transfers = [
        engine.transfer(
            each.nbytes, each.source, each.target, "t", after=[engine.clock.timeout(each.at_ns)]
        )
        for each in wanted
    ]
    engine.run()
    return [transfer.end_ns - begin_ns for transfer in transfers]


@pytest.mark.parametrize("seed", range(80))
def test_shares_are_the_references(seed: int) -> None:
    chance = random.Random(seed)
    machine = _machine(chance)
    wanted = _wanted(chance, machine)
    reference = _reference(machine, wanted)
    engine = Engine(machine, record=True)
    for _ in range(2):  # the second time with what it knows from the first
        assert _run(engine, wanted) == reference
    engine.check()


def _log(seed: int) -> tuple[Log, Machine]:
    chance = random.Random(seed)
    machine = _machine(chance)
    engine = Engine(machine, record=True)
    _run(engine, [_Wanted(0, 2000, "m0", "m1"), _Wanted(50, 900, "m1", "m0")])
    engine.memory("m0").take("all", 1)
    engine.memory("m0").give("all")
    for _ in range(2):
        engine.queue("q").execute(5, "op")
    engine.run()
    assert engine.log is not None
    check_log(engine.log, machine)
    return engine.log, machine


def test_a_log_of_what_cannot_be_is_refused() -> None:
    def refused(said: str) -> None:
        with pytest.raises(ConservationError, match=said):
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
    refused("bytes until")
    log.segments.append(segment)
    log.segments.append(Segment(7, 0, 1, 1))
    refused("moved for no transfer")

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
    refused("more than there is")
    log.held[0] = Held(0, "m0", "all", 0)
    refused("not what was taken")
    del log.held[0]
    refused("given, not taken")

    log, machine = _log(5)
    log.ran[1] = Ran("q", "op", log.ran[0].end_ns - 1, log.ran[0].end_ns + 4)
    refused("two at once")
    log.ran[1] = Ran("q", "op", 5, 4)
    refused("ended before it began")


def test_a_directions_share_of_a_half_duplex_link_is_checked_by_both_rates() -> None:
    _, machine = _log(6)
    halves = machine.override({f"{link.name}.sharing": "half" for link in machine.links})
    duplex = machine.override({f"{link.name}.sharing": "duplex" for link in machine.links})
    for recorded, allowed in ((halves, duplex), (duplex, halves)):
        engine = Engine(recorded, record=True)
        _run(engine, [_Wanted(0, 2000, "m0", "m1"), _Wanted(0, 2000, "m1", "m0")])
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
