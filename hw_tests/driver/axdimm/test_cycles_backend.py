"""What only the backend ``cycles`` has: time that comes from the cycle model."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from hw.axdimm.config import configure
from hw_tests.driver.adam import ADAM
from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.backends import BackendOptions, open_backend
from sw_driver.axdimm.backends.cycles import CyclesTransport
from sw_driver.axdimm.channel import RUN_POLL_FABRIC_CYCLES
from sw_driver.axdimm.registers import arbiter_registers
from sw_driver.axdimm.runs import RunResult
from sw_driver.axdimm.transport import Transport, arbiter_window
from sw_driver.device.link import ReservedLink
from sw_driver.device.transport import DeviceTimeout

CONFIG = configure("tiny")
LINE = 64
COUNTS = (100, 3000, 999, 10_000, 5000)
STEPS = 3


@pytest.fixture
def transport() -> CyclesTransport:
    return CyclesTransport(CONFIG)


@pytest.mark.parametrize("count", [16, 3000, 40_000])
def test_the_end_of_a_run_is_seen_at_the_next_poll(transport: CyclesTransport, count: int) -> None:
    with Axdimm(transport) as device:
        pointers = {name: device.MallocAxdimm(4 * count, 0) for name in "pmvg"}
        device.SetArbiterAcc(0)
        run = device.RunAdamOnAxdimmAsync(
            **pointers, nparams=count, **ADAM, channel=0, stream=device.stream(0)
        )
        result = run.wait(timeout=60)
        seen = run.ended - run.kernel_began - result.fabric_cycles
    # A poll takes the latency of a read, and so do the counters that are read afterwards.
    reads = 20 * CONFIG.read_latency_fabric_cycles
    assert 0 < seen < RUN_POLL_FABRIC_CYCLES + reads


def run_steps(transport: Transport) -> tuple[list[RunResult], list[int], list[dict[str, int]]]:
    """Steps of several sizes on both channels: results, clocks and counts of commands."""
    results = []
    with Axdimm(transport, backdoor=True) as device:
        for count in COUNTS:
            for channel in range(device.channels):
                pointers = {name: device.MallocAxdimm(4 * count, channel) for name in "pmvg"}
                device.SetArbiterAcc(channel)
                for t in range(STEPS):
                    run = device.RunAdamOnAxdimmAsync(
                        **pointers, nparams=count, **{**ADAM, "t": t + 1}, channel=channel
                    )
                    results.append(run.wait(timeout=60))
                device.SetArbiterNormal(channel)
                for pointer in pointers.values():
                    device.FreeAxdimm(pointer)
        channels = range(device.channels)
        clocks = [transport.fabric_cycles(channel) for channel in channels]
        names = ["refreshes", "activates", "longest_refresh_gap_tck"]
        counts = [arbiter_registers(transport, channel).read_many(names) for channel in channels]
    return results, clocks, counts


def test_runs_take_what_they_take_on_the_rtl(transport: CyclesTransport) -> None:
    """The time between the runs counts, too: refreshes depend on it."""
    rtl = open_backend("rtl:tiny")
    found, clocks, counts = run_steps(rtl)
    rtl.close()
    predicted, predicted_clocks, predicted_counts = run_steps(transport)
    assert len(found) == len(COUNTS) * 2 * STEPS
    for one, other in zip(found, predicted, strict=True):
        assert other.fabric_cycles == pytest.approx(one.fabric_cycles, rel=0.01), one
        assert other.idle_fabric_cycles == pytest.approx(
            one.idle_fabric_cycles, abs=0.01 * one.fabric_cycles
        )
        assert (other.beats_read, other.beats_written) == (one.beats_read, one.beats_written)
        assert one.activity is not None
        assert other.activity is not None
        assert other.activity.total_tck == 4 * other.fabric_cycles
        for name, value in one.activity.times_tck.items():
            assert abs(other.activity.times_tck[name] - value) <= 0.04 * one.fabric_cycles, name
    assert predicted_clocks == pytest.approx(clocks, rel=0.01)
    for one, other in zip(counts, predicted_counts, strict=True):
        assert other == pytest.approx(one, rel=0.02)


def test_link_carries_a_line_in_two_fabric_cycles(transport: CyclesTransport) -> None:
    data = np.arange(512 * LINE, dtype=np.uint32).astype(np.uint8)
    before = transport.now(0)
    transport.write_lines(0, 0, data)
    assert transport.now(0) - before == 2 * 512
    before = transport.now(0)
    # Shorter than what is left of the refresh interval, so that nothing comes late.
    assert (transport.read_lines(0, 0, 16 * LINE) == data[: 16 * LINE]).all()
    assert transport.now(0) - before == 2 * 15 + CONFIG.read_latency_fabric_cycles
    assert arbiter_registers(transport, 0).read("late_reads") == 0


def test_one_threads_calls_follow_each_other(transport: CyclesTransport) -> None:
    transport.write_lines(0, 0, np.zeros(1000 * LINE, np.uint8))
    transport.write_lines(1, 0, np.zeros(LINE, np.uint8))
    assert transport.now(1) >= transport.now(0)
    # The second channel's clock stood still meanwhile.
    assert transport.fabric_cycles(1) < transport.fabric_cycles(0)


def test_polling_ends(transport: CyclesTransport) -> None:
    before = transport.fabric_cycles(0)
    with pytest.raises(DeviceTimeout, match="after 5000 fabric cycles, awaited 0x1"):
        transport.poll(
            0,
            arbiter_window(transport.capacity_bytes) + 0x80,
            1,
            1,
            interval_fabric_cycles=100,
            timeout_fabric_cycles=5000,
        )
    assert 5000 <= transport.fabric_cycles(0) - before < 5200


def test_channels_run_at_the_same_time(transport: CyclesTransport) -> None:
    count = 10_000
    with Axdimm(transport, backdoor=True) as device:
        runs = []
        for channel in range(2):
            pointers = {name: device.MallocAxdimm(4 * count, channel) for name in "pmvg"}
            device.SetArbiterAcc(channel)
            runs.append(
                device.RunAdamOnAxdimmAsync(**pointers, nparams=count, **ADAM, channel=channel)
            )
        begin = min(transport.now(channel) for channel in range(2))
        cycles = [run.wait(timeout=60).fabric_cycles for run in runs]
        end = max(transport.now(channel) for channel in range(2))
    assert end - begin < 1.5 * max(cycles)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (BackendOptions(wave=Path("x.fst")), "cycles backend .* waveform to 'x.fst'"),
        (BackendOptions(dram_trace=Path("x.csv")), "trace of DRAM commands to 'x.csv'"),
    ],
)
def test_what_only_the_rtl_can(options: BackendOptions, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_backend("cycles:tiny", options)


def test_time_without_arithmetic_needs_no_memory() -> None:
    count = 500_000_000
    options = BackendOptions(settings={"capacity_bytes": 16 << 30}, arithmetic=False)
    with Axdimm("cycles", options=options) as device:
        pointers = {name: device.MallocAxdimm(4 * count, 0) for name in "pmvg"}
        data = np.ones(16, np.float32)
        device.MemcpyHost2Axdimm(pointers["p"], data, data.nbytes)
        device.SetArbiterAcc(0)
        run = device.RunAdamOnAxdimmAsync(**pointers, nparams=count, **ADAM, channel=0)
        result = run.wait(timeout=60)
        device.SetArbiterNormal(0)
        device.MemcpyAxdimm2Host(data, pointers["p"], data.nbytes)
    assert not data.any()
    assert result.beats_read == count // 4
    assert 0.92 < 7 * count / 16 / result.fabric_cycles < 0.93


def test_the_link_is_never_used_twice() -> None:
    rng = random.Random(5)
    link = ReservedLink()
    used: list[tuple[int, int]] = []
    for _ in range(200):
        wanted, length = rng.randrange(2000), rng.randint(1, 20)
        start = link.reserve(wanted, length)
        assert start >= wanted
        used.append((start, start + length))
    used.sort()
    assert all(one[1] <= other[0] for one, other in pairwise(used))


def test_the_link_gives_the_first_gap_that_is_long_enough() -> None:
    link = ReservedLink()
    assert link.reserve(10, 10) == 10
    assert link.reserve(30, 10) == 30
    assert link.reserve(0, 10) == 0
    assert link.reserve(5, 10) == 20
    assert link.reserve(0, 1) == 40
