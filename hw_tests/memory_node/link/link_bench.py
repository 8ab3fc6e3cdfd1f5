"""Two link ports over wires of all kinds; one of them with a golden peer."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import cocotb
import pytest
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from golden.memory_node.packet import Operation, Packet
from hw.memory_node.flit import CHANNELS
from hw.memory_node.flit import Flit as PassedFlit
from hw.memory_node.link.config import LINK_PRESETS
from hw_tests.bench import bench_parameters
from hw_tests.memory_node.link.checker import LinkRules, PortChecker
from hw_tests.memory_node.link.flit import Flit
from hw_tests.memory_node.link.formula import fabric_cycles
from hw_tests.memory_node.link.noise import NOISES, NoisyWire
from hw_tests.memory_node.link.peer import Habits, LinkPeer
from hw_tests.memory_node.link.phits import Phit, phits_of
from hw_tests.stalls import STALLS
from hw_tests.streams import StreamSink, StreamSource, pack, unpack, value_of
from sw_driver.predict.memory_node import LinkCycles

PARAMETERS = bench_parameters()
CONFIG = replace(LINK_PRESETS[PARAMETERS["preset"]], **PARAMETERS["options"])
DELAY: int = PARAMETERS["delay"]
FLITS: int = PARAMETERS["flits"]
"""About so many are sent on each virtual channel."""

TURN_CYCLES = 14
RULES = LinkRules(
    phit_bytes=CONFIG.phit_bytes,
    buffer_flits=CONFIG.buffer_flits,
    replay_flits=CONFIG.replay_flits,
    retry_cycles=CONFIG.retry_cycles,
    keepalive_cycles=CONFIG.keepalive_cycles,
)
COUNTERS = ("sent", "sent_again", "taken", "discarded")

Message = tuple[bool, bool, bytes]


class Port:
    """One of the two ports, its users, and who checks it."""

    def __init__(self, dut: Any, name: str, *, give: float, take: float) -> None:
        self._dut, self._name = dut, name
        self.sources = [
            StreamSource(dut, f"{name}_transmit_{channel}", dut.clk, pause=give)
            for channel in range(CHANNELS)
        ]
        self.sinks = [
            StreamSink(dut, f"{name}_receive_{channel}", dut.clk, pause=take)
            for channel in range(CHANNELS)
        ]
        self.checker = PortChecker(name, RULES, turn_cycles=TURN_CYCLES)
        self.arrives: Phit | None = None
        self._seen = [0] * CHANNELS
        self._dead = self.signal("dead")
        self._out = {each: self.signal(f"wire_out_{each}") for each in ("valid", "first", "data")}
        self._in = {each: self.signal(f"wire_in_{each}") for each in ("valid", "first", "data")}
        self.drive(None)

    def signal(self, name: str) -> Any:
        return getattr(self._dut, f"{self._name}_{name}")

    @property
    def dead(self) -> bool:
        return bool(value_of(self._dead))

    @property
    def taken(self) -> list[list[Message]]:
        return [[message_of(payload) for payload in sink.taken] for sink in self.sinks]

    @property
    def taken_count(self) -> int:
        return sum(len(sink.taken) for sink in self.sinks)

    @property
    def waiting(self) -> int:
        return sum(len(source.queue) for source in self.sources)

    def give(self, messages: Sequence[Sequence[Message]]) -> None:
        for source, of_channel in zip(self.sources, messages, strict=True):
            source.queue.extend(payload_of(message) for message in of_channel)

    def drive(self, phit: Phit | None) -> None:
        """What comes to the port in the cycle that begins."""
        if phit is not None:
            self._in["data"].value = int.from_bytes(phit.data, "little")
            self._in["first"].value = int(phit.first)
        if (phit is None) != (self.arrives is None) or self.arrives is None:
            self._in["valid"].value = int(phit is not None)
        self.arrives = phit

    def step(self) -> Phit | None:
        """Checks the cycle that ends; returns what the port sent in it."""
        sent = None
        if value_of(self._out["valid"]):
            data = value_of(self._out["data"])
            first = bool(value_of(self._out["first"]))
            sent = Phit(first, data.to_bytes(CONFIG.phit_bytes, "little"))
        took = []
        for channel, sink in enumerate(self.sinks):
            took += [channel] * (len(sink.taken) - self._seen[channel])
            self._seen[channel] = len(sink.taken)
        if not self.dead:
            self.checker.step(sent=sent, received=self.arrives, taken=took)
        return sent

    def check_counters(self) -> None:
        """Against what the checker saw on the wires."""
        for name in COUNTERS:
            count = int(self.signal(name).value)
            assert count == getattr(self.checker, name), f"{self._name}: {name} is {count}"


def payload_of(message: Message) -> int:
    head, tail, data = message
    return pack(PassedFlit, head=head, tail=tail, payload=int.from_bytes(data, "little"))


def message_of(payload: int) -> Message:
    fields = unpack(PassedFlit, payload)
    return bool(fields["head"]), bool(fields["tail"]), fields["payload"].to_bytes(64, "little")


def packets(chance: random.Random, flits: int) -> list[list[Message]]:
    """For each virtual channel the flits of some packets."""
    messages: list[list[Message]] = [[] for _ in range(CHANNELS)]
    for of_channel in messages:
        while len(of_channel) < flits:
            lines = chance.choice((0, 0, 1, 2, 7))
            payloads = Packet(
                destination=chance.randrange(256),
                source=chance.randrange(256),
                operation=Operation.MESSAGE,
                tag=len(of_channel),
                lines=lines,
                data=chance.randbytes(64 * lines),
            ).payloads
            last = len(payloads) - 1
            of_channel += [(n == 0, n == last, data) for n, data in enumerate(payloads)]
    return messages


class CountedWire(NoisyWire):
    """Corrupts certain filled flits, the first sending of each."""

    lost: set[int]
    """Which of the wire's filled flits, from 0 on; those that are sent again count, too."""

    def carry(self, phit: Phit | None) -> Phit | None:
        if phit is not None and phit.first and phit.data[0] & 1:
            self._filled += 1
            if self._filled - 1 in self.lost:
                phit = phit._replace(data=phit.data[:-1] + bytes([phit.data[-1] ^ 1]))
        return super().carry(phit)

    _filled = 0


class Bench:
    """Both ports, out of reset, and the wires from ``a`` to ``b`` and back."""

    def __init__(self, dut: Any, noise: str = "none", *, give: float = 0, take: float = 0) -> None:
        self._dut = dut
        self._shares = {"give": give, "take": take}
        self.chance = random.Random(f"{noise} {give} {take}")
        self.wires = [
            NoisyWire(noise, CONFIG.phit_bytes, delay=DELAY, seed=f"{name} {take}") for name in "ab"
        ]
        self.cycle = 0

    async def reset(self) -> list[Port]:
        cocotb.start_soon(Clock(self._dut.clk, 2, "ns").start())
        self._dut.rst.value = 1
        await ClockCycles(self._dut.clk, 3)
        # Not before: what a test before this one has left is gone now.
        self.ports = [Port(self._dut, name, **self._shares) for name in "ab"]
        await ClockCycles(self._dut.clk, 2)
        self._dut.rst.value = 0
        await RisingEdge(self._dut.clk)
        return self.ports

    async def run(self, cycles: int, until: Callable[[], bool] = lambda: False) -> bool:
        """Returns whether ``until`` was true before ``cycles`` were over."""
        edge = RisingEdge(self._dut.clk)
        a, b = self.ports
        for _ in range(cycles):
            await edge
            self.cycle += 1
            from_a, from_b = a.step(), b.step()
            b.drive(self.wires[0].carry(from_a))
            a.drive(self.wires[1].carry(from_b))
            if until():
                return True
        return False

    async def wake(self) -> None:
        """Until the ports have heard each other and neither is within a flit."""
        wire = self._dut.a_wire_out_valid
        await self.run(CONFIG.keepalive_cycles + 4 * DELAY)
        await self.run(CONFIG.keepalive_cycles + 1, lambda: bool(value_of(wire)))
        await self.run(CONFIG.phits + 1)

    def silence(self) -> None:
        """No more noise."""
        for wire in self.wires:
            wire.calm()


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(noise=list(NOISES), stalls=list(STALLS))
async def every_flit_once_and_in_order(dut: Any, noise: str, stalls: str) -> None:
    give = {"none": 0.0, "random": 0.6, "heavy": 0.2}[stalls]
    bench = Bench(dut, noise, give=give, take=STALLS[stalls])
    a, b = await bench.reset()
    given = [packets(bench.chance, FLITS) for _ in range(2)]
    a.give(given[0])
    b.give(given[1])
    counts = [sum(map(len, messages)) for messages in given]

    def all_there() -> bool:
        return [b.taken_count, a.taken_count] == counts

    assert await bench.run(100_000, all_there), f"{b.taken_count} and {a.taken_count} of {counts}"
    bench.silence()
    # What is still repeated, comes; nothing more comes out.
    await bench.run(3 * CONFIG.retry_cycles)
    assert b.taken == given[0]
    assert a.taken == given[1]
    for port in bench.ports:
        port.check_counters()
        assert not port.dead
    harmed = [wire.harmed for wire in bench.wires]
    assert (sum(harmed) > 0) == (noise != "none")
    assert (a.checker.sent_again + b.checker.sent_again > 0) == (noise != "none")
    dut._log.info(f"{bench.cycle} cycles, {harmed} harmed")


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(noise=["none", "random"])
async def a_channel_that_is_not_taken_hinders_no_other(dut: Any, noise: str) -> None:
    """Its buffer fills and no more is sent."""
    bench = Bench(dut, noise)
    a, b = await bench.reset()
    flits = CONFIG.buffer_flits + 10
    given = packets(bench.chance, flits)
    for sink in b.sinks[1:]:
        sink.pause = 1.0
    a.give(given)
    all_of_it = len(given[0])
    assert await bench.run(40_000, lambda: len(b.sinks[0].taken) == all_of_it)
    await bench.run(CHANNELS * CONFIG.buffer_flits * CONFIG.phits + 2 * CONFIG.retry_cycles)
    assert [len(sink.taken) for sink in b.sinks[1:]] == [0] * (CHANNELS - 1)
    assert b.checker.taken == all_of_it + (CHANNELS - 1) * CONFIG.buffer_flits
    assert a.checker.sent == b.checker.taken
    for sink in b.sinks[1:]:
        sink.pause = 0.0
    counts = sum(map(len, given))
    assert await bench.run(40_000, lambda: b.taken_count == counts)
    assert b.taken == given


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def what_has_come_is_not_sent_again(dut: Any) -> None:
    """A sender that goes back as no acknowledgement came, goes on where the next one says."""
    bench = Bench(dut)
    bench.wires = [NoisyWire("none", CONFIG.phit_bytes, delay=1, seed=0) for _ in range(2)]
    a, b = await bench.reset()
    await bench.wake()
    kept = min(CONFIG.replay_flits, CHANNELS * CONFIG.buffer_flits)
    given = packets(bench.chance, kept)
    a.give(given)
    bench.wires[1].cut = True
    assert await bench.run(
        2 * (CONFIG.retry_cycles + kept * CONFIG.phits), lambda: a.checker.sent_again == 1
    )
    assert a.checker.sent == kept
    bench.wires[1].cut = False
    counts = sum(map(len, given))
    assert await bench.run(20_000, lambda: b.taken_count == counts)
    assert b.taken == given
    # Those that begin on the way there and back.
    assert a.checker.sent_again <= 3 + 24 // CONFIG.phits


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(channels=[1, 4])
async def full_rate(dut: Any, channels: int) -> None:
    """In both directions at once, as long as buffers are as deep as the way there and back."""
    bench = Bench(dut)
    a, b = await bench.reset()
    cycles = 600 * CONFIG.phits
    warm = 4 * (DELAY + 20)
    message = payload_of((True, True, bench.chance.randbytes(64)))
    for port in (a, b):
        for source in port.sources[:channels]:
            source.queue = deque([message] * (cycles + warm))
    await bench.run(warm)
    before = a.taken_count, b.taken_count
    await bench.run(cycles)
    shares = [
        (port.taken_count - at) * CONFIG.phits / cycles
        for port, at in zip((a, b), before, strict=True)
    ]
    dut._log.info(f"{channels} channels: {shares} of a flit in {CONFIG.phits} cycles")
    if channels > 1 or PARAMETERS["full_rate"]:
        assert min(shares) >= 0.98
    counts = [len(sink.taken) for sink in b.sinks[:channels]]
    assert max(counts) - min(counts) <= 1, f"channels had {counts}"


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def latency_of_a_flit(dut: Any) -> None:
    bench = Bench(dut)
    a, _ = await bench.reset()
    await bench.wake()
    ready = dut.a_transmit_1_ready
    messages = [(True, True, bytes([1] * 64))]
    a.give([[], messages, [], []])
    assert await bench.run(10, lambda: value_of(dut.a_transmit_1_valid) and value_of(ready))
    started = bench.cycle
    assert await bench.run(300, lambda: bool(value_of(dut.b_receive_1_valid)))
    cycles = bench.cycle - started
    dut._log.info(f"LATENCY {cycles} cycles, {DELAY} of them on the wire")
    assert cycles == DELAY + PARAMETERS["latency"]


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(
    (("delay", "lost"), [(1, 0), (1, 3), (DELAY, 0), (DELAY, 3), (2 * DELAY, 0)]), channels=[1, 4]
)
async def cycles_are_those_of_the_model(dut: Any, delay: int, channels: int, lost: int) -> None:
    bench = Bench(dut)
    wire = bench.wires[0] = CountedWire("none", CONFIG.phit_bytes, delay=delay, seed=0)
    bench.wires[1] = NoisyWire("none", CONFIG.phit_bytes, delay=delay, seed=0)
    a, b = await bench.reset()
    await bench.wake()
    packets, lines = (20, 63) if CONFIG.phits == 1 else (20, 9)
    flits = packets * (lines + 1)
    wire.lost = {flits * (2 * n + 1) // (2 * lost) for n in range(lost)}
    message = payload_of((True, True, bench.chance.randbytes(64)))
    for source in a.sources[:channels]:
        source.queue = deque([message] * (flits // channels))
    started = bench.cycle + 1  # a source offers in the cycle after
    assert await bench.run(100_000, lambda: b.taken_count == flits)
    model = LinkCycles(CONFIG, wire_cycles=delay)
    predicted = fabric_cycles(model, packets=packets, lines=lines, channels=channels, lost=lost)
    measured = bench.cycle - 1 - started
    dut._log.info(f"MODEL {flits} flits: {measured} cycles, predicted {predicted}")
    assert measured == pytest.approx(predicted, rel=0.01)


@cocotb.test(timeout_time=1, timeout_unit="ms", skip=CONFIG.dead_cycles > 5000)
@cocotb.parametrize(which=["both", "a_to_b"])
async def a_cut_link_is_dead(dut: Any, which: str) -> None:
    """Both ports say so, send nothing and take what they are given; what came, stays."""
    bench = Bench(dut, take=0.5)
    a, b = await bench.reset()
    given = [packets(bench.chance, 3 * FLITS) for _ in range(2)]
    a.give(given[0])
    b.give(given[1])
    await bench.run(40 * CONFIG.phits)
    for wire in bench.wires if which == "both" else bench.wires[:1]:
        wire.cut = True
    limit = CONFIG.dead_cycles + CONFIG.dead_retries * (CONFIG.retry_cycles + 40) + 200
    assert await bench.run(limit, lambda: a.dead and b.dead)
    await bench.run(20 * CONFIG.phits)
    for wire in bench.wires:
        wire.cut = False
    # Also a wire that works again brings nothing back.
    for _ in range(200):
        await bench.run(1)
        assert not value_of(dut.a_wire_out_valid)
        assert not value_of(dut.b_wire_out_valid)
    assert await bench.run(2000, lambda: a.waiting + b.waiting == 0)
    assert a.dead
    assert b.dead
    for port, messages in ((a, given[1]), (b, given[0])):
        assert 0 < port.taken_count < sum(map(len, messages))
        for got, all_of_it in zip(port.taken, messages, strict=True):
            assert got == all_of_it[: len(got)]
        assert value_of(port.signal("taken")) == port.taken_count


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def an_idle_link_lives(dut: Any) -> None:
    bench = Bench(dut)
    await bench.reset()
    await bench.run(min(CONFIG.dead_cycles, 3000) + 100)
    for port in bench.ports:
        assert not port.dead
        assert port.checker.flits_out > 10
        assert port.checker.sent == 0


@cocotb.test(timeout_time=1, timeout_unit="ms", skip=CONFIG.dead_cycles > 5000)
async def an_acknowledgement_of_what_was_never_sent_is_not_used(dut: Any) -> None:
    """As from a port that was reset alone: nothing is taken for sent, and the link is dead."""
    bench = Bench(dut)
    a, _ = await bench.reset()
    flit = Flit(sequence=0, acknowledge=200, retry=True).encode()
    phits: deque[Phit | None] = deque()
    a.give([[(True, True, bytes(64))] * 2 * CONFIG.replay_flits] + [[]] * 3)
    edge = RisingEdge(dut.clk)
    for _ in range(2 * CONFIG.dead_retries * CONFIG.retry_cycles):
        await edge
        a.step()
        if a.dead:
            break
        if not phits:
            phits.extend([*phits_of(flit, CONFIG.phit_bytes), *[None] * 8])
        a.drive(phits.popleft())
    assert a.dead
    # No more went out than may be kept, and all of that again and again.
    kept = min(CONFIG.replay_flits, CONFIG.buffer_flits)
    assert a.checker.sent == kept
    assert a.checker.sent_again == pytest.approx((CONFIG.dead_retries - 1) * kept, abs=kept)


class Moments:
    """When the port ``a``, whose peer is what :meth:`run` is given, did what. In cycles."""

    def __init__(self, dut: Any, port: Port) -> None:
        self.cycle = 0
        self.flits: list[tuple[int, Flit]] = []
        """Those on its wire, by their first phits."""
        self.counted: dict[str, list[int]] = {name: [] for name in ("sent", "sent_again", "taken")}
        """The moments in which each counter moved."""
        self.dead: int | None = None
        self._edge, self._port, self._data = RisingEdge(dut.clk), port, b""
        self._counts = dict.fromkeys(self.counted, 0)

    async def run(self, cycles: int, *flits: Flit) -> None:
        """Lets time pass, while ``flits`` come."""
        phits = deque(phit for flit in flits for phit in phits_of(flit.encode(), CONFIG.phit_bytes))
        for _ in range(cycles):
            await self._edge
            self.cycle += 1
            sent = self._port.step()
            self._port.drive(phits.popleft() if phits else None)
            if sent is not None:
                if sent.first:
                    self._began, self._data = self.cycle, b""
                self._data += sent.data
                if len(self._data) == CONFIG.phits * CONFIG.phit_bytes:
                    flit = Flit.decode(self._data)
                    assert flit is not None
                    self.flits.append((self._began, flit))
            for name, times in self.counted.items():
                count = value_of(self._port.signal(name))
                times += [self.cycle] * (count - self._counts[name])
                self._counts[name] = count
            if self.dead is None and self._port.dead:
                self.dead = self.cycle

    def free(self, due: int, later: int = 0) -> int:
        """When a flit begins that may from ``due`` on, since only one at a time does: they are on
        the wire ``later``."""
        begun = [at - later for at, _ in self.flits]
        return max([due, *(at + CONFIG.phits for at in begun if at < due < at + CONFIG.phits)])


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def delays_are_as_long_as_they_say(dut: Any) -> None:
    """Neither a cycle shorter nor longer: keepalive, going back, asking again, death by silence."""
    bench = Bench(dut)
    a, _ = await bench.reset()
    now = Moments(dut, a)
    retry = CONFIG.retry_cycles
    # Nothing to send.
    await now.run(8 * CONFIG.keepalive_cycles, Flit(sequence=0))
    begun = [at for at, _ in now.flits]
    gaps = [after - before for before, after in pairwise(begun)]
    assert len(gaps) > 5
    assert gaps == [CONFIG.keepalive_cycles] * len(gaps)
    # A flit that is never acknowledged is sent again after each ``retry_cycles`` without progress.
    message = (True, True, bytes(64))
    a.give([[message], [], [], []])
    await now.run(3 * retry + retry // 2)
    (first,) = now.counted["sent"]
    later = next(at for at, flit in now.flits if flit.filled) - first
    due = [now.free(first + n * retry + 1, later) for n in (1, 2, 3)]
    assert now.counted["sent_again"] == due
    # So is the next, but from when the first was acknowledged; here by a flit that is counted.
    a.give([[message], [], [], []])
    await now.run(retry // 3)
    told = Flit(filled=True, sequence=0, acknowledge=1, head=True, tail=True)
    await now.run(2 * retry + retry // 2, told)
    (heard,) = now.counted["taken"]
    again = [at for at in now.counted["sent_again"] if at > heard]
    assert again == [now.free(heard + n * retry + 1, later) for n in (1, 2)]
    # A flit is missing: it is asked for, and again.
    await now.run(retry // 3, Flit(sequence=1, acknowledge=2))
    ahead = now.cycle
    await now.run(4 * retry, Flit(sequence=3, acknowledge=2))
    asked = [at for at, flit in now.flits if flit.retry and at > ahead]
    assert len(asked) >= 3
    assert asked[1:] == [now.free(before + retry) for before in asked[:-1]]
    # Silence.
    if CONFIG.dead_cycles < 5000:
        await now.run(40, replace(told, sequence=1, acknowledge=2))
        heard = now.counted["taken"][-1]
        await now.run(CONFIG.dead_cycles + 40)
        assert now.dead == heard + CONFIG.dead_cycles


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def a_flit_without_room_is_not_taken(dut: Any) -> None:
    """It has to come again; what was taken before is not harmed."""
    bench = Bench(dut)
    a, _ = await bench.reset()
    most = CONFIG.buffer_flits
    messages: list[Message] = [(True, True, bytes([n] * 64)) for n in range(most + 1)]
    flits = [
        Flit(filled=True, sequence=n, head=True, tail=True, payload=data)
        for n, (_, _, data) in enumerate(messages)
    ]
    edge = RisingEdge(dut.clk)

    async def send(flits: Sequence[Flit]) -> None:
        quiet: list[Phit | None] = [None] * 20
        coming = [phit for flit in flits for phit in phits_of(flit.encode(), CONFIG.phit_bytes)]
        for phit in [*coming, *quiet]:
            await edge
            a.step()
            a.drive(phit)

    a.sinks[0].pause = 1.0
    await send(flits)
    assert a.checker.taken == most
    a.check_counters()
    a.sinks[0].pause = 0.0
    await send([Flit(sequence=most + 1)] * most)
    await send(flits[-1:])
    assert a.taken[0] == messages


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(
    habits=["eager", "slow", "nervous", "asleep"],
    noise=["none", "heavy"],
)
async def with_a_peer_of_other_habits(dut: Any, habits: str, noise: str) -> None:
    """It pauses within flits, tells late, asks and goes back without a reason, or is reset late."""
    peer = LinkPeer(
        RULES,
        {
            "eager": Habits(),
            "slow": Habits(pause=0.3, hold=0.6, late_cycles=CONFIG.retry_cycles // 3),
            "nervous": Habits(go_back=0.02, ask=0.02, idle_flit=0.3, pause=0.05),
            "asleep": Habits(),
        }[habits],
        f"{habits} {noise}",
    )
    asleep = min(CONFIG.dead_cycles * 3 // 4, 3000) if habits == "asleep" else 0
    bench = Bench(dut, noise, take=0.3)
    port, _ = await bench.reset()
    given = [packets(bench.chance, FLITS) for _ in range(2)]
    port.give(given[0])
    for queue, messages in zip(peer.queues, given[1], strict=True):
        queue.extend(messages)
    counts = [sum(map(len, messages)) for messages in given]
    arrives = None
    edge = RisingEdge(dut.clk)
    for cycle in range(60_000):
        await edge
        arrives, came = bench.wires[0].carry(port.step()), arrives
        awake = cycle >= asleep
        port.drive(bench.wires[1].carry(peer.step(came)) if awake else None)
        if [sum(map(len, peer.taken)), port.taken_count] == counts:
            break
    assert peer.taken == given[0]
    assert port.taken == given[1]
    assert not port.dead
