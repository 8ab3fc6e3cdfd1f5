"""The time of copies and of whole programs, on the backend ``cycles`` and on the RTL."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import pytest

from hw_tests.driver.adam import ADAM
from hw_tests.soak import for_soak
from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.backends import BackendOptions, open_backend
from sw_driver.axdimm.registers import arbiter_registers
from sw_driver.axdimm.transport import (
    LINE_BYTES,
    LINK_CHUNK_LINES,
    LINK_FABRIC_CYCLES_PER_LINE,
    Transport,
    arbiter_window,
)
from sw_driver.device.streams import Handle
from sw_driver.device.transport import DeviceFault
from sw_driver.predict.axdimm import HostTraffic

PRESETS = ["tiny", *for_soak("axdimm")]
COUNTERS = ("late_reads", "host_reads", "host_writes", "refreshes", "activates", "precharges")
SLACK_FABRIC_CYCLES = 4
"""By which an operation may differ that is too short for 1 % to mean anything."""


@pytest.fixture(params=PRESETS)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Transport, Transport]]:
    """The RTL and the model of it, from reset."""
    rtl, cycles = (open_backend(f"{name}:{request.param}") for name in ("rtl", "cycles"))
    yield rtl, cycles
    rtl.close()


def counters(transport: Transport, channel: int) -> dict[str, int]:
    return arbiter_registers(transport, channel).read_many(COUNTERS)


class Copy(NamedTuple):
    write: bool
    address: int
    nbytes: int
    pause: int
    """Fabric cycles before it in which registers are read; about as many."""


def copies(capacity_bytes: int, most_bytes: int, count: int) -> list[Copy]:
    """Copies of all sizes from a line on, at any place and any moment of the refresh interval."""
    rng = random.Random(7)
    limit = arbiter_window(capacity_bytes) // 2
    drawn = []
    for _ in range(count):
        lines = int(2 ** rng.uniform(0, math.log2(most_bytes // LINE_BYTES)))
        line = rng.randrange(limit // LINE_BYTES - lines)
        pause = rng.choice((0, 0, 0, 100, 500, 5000))
        drawn.append(Copy(rng.random() < 0.4, line * LINE_BYTES, lines * LINE_BYTES, pause))
    # Of one line each: rows of one bank, faster than it can open them.
    stride = limit // 8
    drawn += [Copy(True, n % 8 * stride, LINE_BYTES, 0) for n in range(300)]
    # Long ones, of which each meets refreshes anywhere in its rows.
    long = min(limit, 1 << 23) // LINE_BYTES * LINE_BYTES
    drawn += [Copy(False, 0, long, 0), Copy(False, 17 * LINE_BYTES, long, 0)]
    return [*drawn, Copy(True, LINE_BYTES, 1 << 17, 0), Copy(False, 0, 1 << 12, 0)]


def copy_times(transport: Transport, todo: list[Copy]) -> list[int]:
    """Fabric cycles of each copy, its pause included."""
    times = []
    for write, address, nbytes, pause in todo:
        begin = transport.now(0)
        for _ in range(pause // 48):
            transport.read_lines(0, arbiter_window(transport.capacity_bytes), LINE_BYTES)
        if write:
            transport.write_lines(0, address, np.zeros(nbytes, np.uint8))
        else:
            transport.read_lines(0, address, nbytes)
        times.append(transport.now(0) - begin)
    return times


def test_copies_take_what_they_take_on_the_rtl(pair: tuple[Transport, Transport]) -> None:
    """To the cycle, with the same reads late and the same rows opened, but for long ones: the RTL
    takes a write 65,536 fabric cycles ago for one just now, the model does not."""
    rtl, cycles = pair
    most_bytes = 1 << 18 if rtl.capacity_bytes <= 1 << 20 else 1 << 21
    todo = copies(rtl.capacity_bytes, most_bytes, 60)
    expected = copy_times(rtl, todo)
    assert copy_times(cycles, todo) == pytest.approx(expected, rel=1e-4)
    found = counters(rtl, 0)
    assert counters(cycles, 0) == pytest.approx(found, rel=5e-3)
    assert found["late_reads"] > 100


class Operation(NamedTuple):
    name: str
    fabric_cycles: int


def run_program(
    transport: Transport, seed: int, *, most_bytes: int, most_parameters: int
) -> tuple[list[Operation], list[int], list[dict[str, int]]]:
    """A random program on both channels: its operations, each channel's time and counters."""
    rng = random.Random(seed)
    done: list[Operation] = []

    def size(most: int) -> int:
        return int(2 ** rng.uniform(0, math.log2(most)))

    @contextmanager
    def timed(name: str, channel: int) -> Iterator[None]:
        begin = transport.now(channel)
        yield
        done.append(Operation(f"{name} on {channel}", transport.now(channel) - begin))

    with Axdimm(transport) as device:
        held = [
            [device.MallocAxdimm(size(most_bytes), channel) for _ in range(3)]
            for channel in range(device.channels)
        ]
        for _ in range(50):
            channel = rng.randrange(device.channels)
            kind = rng.choice(("in", "out", "out", "small in", "small out", "malloc", "run"))
            if kind == "malloc":
                device.FreeAxdimm(held[channel].pop(rng.randrange(3)))
                held[channel].append(device.MallocAxdimm(size(most_bytes), channel))
            elif kind == "run":
                count = size(most_parameters)
                tensors = {name: device.MallocAxdimm(4 * count, channel) for name in "pmvg"}
                with timed("acceleration", channel):
                    device.SetArbiterAcc(channel)
                for _ in range(rng.randint(1, 2)):
                    with timed(f"run of {count}", channel):
                        device.RunAdamOnAxdimmAsync(
                            **tensors, nparams=count, **ADAM, channel=channel
                        ).wait(timeout=60)
                with timed("normal", channel):
                    device.SetArbiterNormal(channel)
                for tensor in tensors.values():
                    device.FreeAxdimm(tensor)
            else:
                pointer = rng.choice(held[channel])
                offset = rng.randrange(pointer.nbytes)
                nbytes = rng.randint(1, pointer.nbytes - offset)
                if kind.startswith("small"):
                    nbytes = min(nbytes, LINE_BYTES)
                data = np.zeros(nbytes, np.uint8)
                with timed(f"{nbytes} bytes {kind}", channel):
                    if kind.endswith("in"):
                        device.MemcpyHost2Axdimm(pointer + offset, data, nbytes)
                    else:
                        device.MemcpyAxdimm2Host(data, pointer + offset, nbytes)
        channels = range(device.channels)
        times = [transport.now(channel) for channel in channels]
        return done, times, [counters(transport, channel) for channel in channels]


@pytest.mark.parametrize(
    ("preset", "seed", "most_bytes", "most_parameters"),
    [
        ("tiny", 0, 1 << 16, 8000),
        ("tiny", 1, 1 << 16, 8000),
        ("tiny", 2, 1 << 16, 8000),
        ("tiny", 3, 1 << 16, 8000),
        ("axdimm", 4, 1 << 20, 100_000),
    ],
)
def test_programs_take_what_they_take_on_the_rtl(
    preset: str, seed: int, most_bytes: int, most_parameters: int
) -> None:
    outcomes = []
    for name in ("rtl", "cycles"):
        transport = open_backend(f"{name}:{preset}")
        outcomes.append(
            run_program(transport, seed, most_bytes=most_bytes, most_parameters=most_parameters)
        )
        transport.close()
    (expected, expected_times, expected_counts), (found, times, counts) = outcomes
    assert [each.name for each in found] == [each.name for each in expected]
    assert [each.fabric_cycles for each in found] == pytest.approx(
        [each.fabric_cycles for each in expected], rel=0.01, abs=SLACK_FABRIC_CYCLES
    )
    assert times == pytest.approx(expected_times, rel=0.003)
    for one, other in zip(expected_counts, counts, strict=True):
        assert other == pytest.approx(one, rel=0.02, abs=1)


def run_and_copy(
    transport: Transport, parameters: list[int], passing: list[int]
) -> list[tuple[int, int, int, int]]:
    """Runs, each followed by ``passing`` reads of a register, a switch of mode and a copy.

    For each, the fabric cycles of the run and the copy, and refreshes and their longest gap.
    """
    done: list[tuple[int, int, int, int]] = []
    registers = arbiter_registers(transport, 0)
    with Axdimm(transport, modes="wait") as device:
        tensors = [device.MallocAxdimm(4 * max(parameters), 0) for _ in range(4)]
        for count, reads in zip(parameters, passing, strict=True):
            begin = transport.now(0)
            device.RunAdamOnAxdimmAsync(*tensors, count, *ADAM.values(), 0).wait()
            ran = transport.now(0)
            for _ in range(reads):
                registers.read("refreshes")
            before = transport.now(0)
            device.MemcpyAxdimm2Host(bytearray(64), tensors[0], 64)
            copied = transport.now(0)
            refreshing = registers.read_many(("refreshes", "longest_refresh_gap_tck"))
            done.append((ran - begin, copied - before, *refreshing.values()))
    return done


def test_refreshes_in_a_row_go_on_while_the_mode_is_switched() -> None:
    """Also when an interval ends between the switch and a refresh that was decided on before."""
    rng = random.Random(16)
    parameters = [rng.randint(1, 6000) for _ in range(200)]
    passing = [rng.choice((0, 0, rng.randint(1, 40))) for _ in parameters]
    outcomes = []
    for name in ("rtl:tiny", "cycles:tiny"):
        transport = open_backend(name)
        outcomes.append(run_and_copy(transport, parameters, passing))
        transport.close()
    assert outcomes[1] == outcomes[0]


@pytest.mark.parametrize("parameters", [18533, 18541])
def test_an_interval_may_end_before_a_refresh_that_was_decided_on(parameters: int) -> None:
    """From reset, the first run ends so that the switch comes between that and the refresh."""
    outcomes = []
    for name in ("rtl", "cycles"):
        transport = open_backend(name)
        outcomes.append(run_and_copy(transport, [parameters], [0]))
        transport.close()
    assert outcomes[1] == outcomes[0]


def copy_at_once(
    transport: Transport, begin: int, writes: tuple[bool, bool], nbytes: int
) -> list[int]:
    """Copies on both channels from ``begin`` on; when each is over."""
    domain, data = transport.domain, np.zeros(nbytes, np.uint8)
    copies: list[Handle[None]] = [Handle(f"copy on channel {each}", domain) for each in range(2)]
    with domain.clock as clock:
        clock.now = begin
        for channel, write in enumerate(writes):
            steps = (
                transport.write_steps(channel, 0, data)
                if write
                else transport.read_steps(channel, 0, nbytes)
            )
            clock.begin_now(copies[channel], steps)
        for each in copies:
            clock.run(each)
            each.outcome()
    return [each.ended for each in copies]


@pytest.mark.parametrize("writes", [(False, False), (False, True), (True, True)])
def test_copies_of_both_channels_share_the_link(
    pair: tuple[Transport, Transport], writes: tuple[bool, bool]
) -> None:
    nbytes = 1 << 18 if pair[0].capacity_bytes <= 1 << 20 else 1 << 21
    totals = []
    for transport in pair:
        begin = max(transport.now(channel) for channel in range(2))
        totals.append(max(copy_at_once(transport, begin, writes, nbytes)) - begin)
    assert totals[1] == pytest.approx(totals[0], rel=0.01)
    assert totals[1] >= 2 * 2 * nbytes // LINE_BYTES


def test_channels_take_turns_at_the_link() -> None:
    transport = open_backend("cycles:tiny")
    begin = max(transport.now(channel) for channel in range(2))
    nbytes = 1 << 12
    transport.record_link(True)
    first, second = copy_at_once(transport, begin, (True, True), nbytes)
    whole = 2 * 2 * nbytes // LINE_BYTES
    turn = LINK_FABRIC_CYCLES_PER_LINE * LINK_CHUNK_LINES
    assert second - begin == whole
    assert first - begin == whole - turn
    uses = transport.link_uses(0).tolist()
    assert uses == [[at, at + turn] for at in range(begin, first, 2 * turn)]


def test_uses_of_the_link_are_recorded_and_disjoint() -> None:
    transport = open_backend("cycles:tiny")
    transport.read_lines(0, 0, 1 << 12)
    transport.record_link(True)
    begin = transport.now(0)
    transport.read_lines(0, 0, 1 << 14)
    transport.write_lines(1, 0, np.zeros(1 << 14, np.uint8))
    transport.record_link(False)
    transport.read_lines(0, 0, 1 << 12)
    uses = np.concatenate([transport.link_uses(channel) for channel in range(2)])
    uses = uses[np.argsort(uses[:, 0])].astype(np.int64)
    assert uses[0, 0] == begin
    assert (uses[1:, 0] >= uses[:-1, 1]).all()
    lines = (uses[:, 1] - uses[:, 0]).sum() // 2
    late = counters(transport, 0)["late_reads"]
    assert 2 * (1 << 14) // LINE_BYTES <= lines <= 2 * (1 << 14) // LINE_BYTES + late
    assert transport.link_uses(0).shape == (0, 2)


def test_reads_that_stay_late_are_given_up() -> None:
    """A latency that no access to the DRAM can keep."""
    options = BackendOptions(settings={"read_latency_fabric_cycles": 10})
    transport = open_backend("cycles:tiny", options)
    with pytest.raises(DeviceFault, match="host reads stayed late while reading 128 bytes at 0x40"):
        transport.read_lines(0, 64, 128)
    assert counters(transport, 0)["late_reads"] == 64 * 2


def test_the_effort_goes_with_the_rows_and_not_with_the_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = 0
    serve = HostTraffic._serve  # pyright: ignore[reportPrivateUsage]

    def counted(self: HostTraffic, write: bool, line: int, cycle: int, *, more: bool) -> int:
        nonlocal served
        served += 1
        return serve(self, write, line, cycle, more=more)

    monkeypatch.setattr(HostTraffic, "_serve", counted)
    transport = open_backend("cycles", BackendOptions(arithmetic=False))
    lines = (32 << 20) // LINE_BYTES
    transport.write_lines(0, 0, np.broadcast_to(np.zeros(1, np.uint8), 32 << 20))
    assert 0 < served < lines / 50
