"""What only the Verilated backend has: time, the shared link, traces and violations."""

from __future__ import annotations

import errno
import multiprocessing
import threading
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pylibfst
import pytest
from numpy.typing import NDArray

from golden.dram_timing import check_trace
from hw.axdimm.config import configure
from hw_tests.driver.adam import ADAM
from hw_tests.driver.trace_reader import assert_sound, read_trace
from hw_tests.driver.transports import WatchedTransport
from sw_driver.axdimm import Axdimm, BackendOptions, open_backend
from sw_driver.axdimm.backends import rtl
from sw_driver.axdimm.backends.rtl import VerilatedTransport
from sw_driver.axdimm.registers import arbiter_registers
from sw_driver.device.timeline import Timeline
from sw_driver.device.transport import DeviceFault, DeviceTimeout
from sw_driver.simulator.buildcache import cached_build

CONFIG = configure("tiny")
LINE = 64
PARAMETERS = 1500


def test_files_may_be_named_by_strings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rtl, "VerilatedTransport", lambda **arguments: arguments)
    for files in ({"wave": "w.fst"}, {"dram_trace": "t.csv"}):
        arguments: Any = open_backend("rtl:tiny", BackendOptions(**files))
        assert {name: arguments[name] for name in files} == {
            name: Path(file) for name, file in files.items()
        }


def run_adam(transport: VerilatedTransport) -> None:
    """A run on every channel at once, with copies before and after."""
    rng = np.random.default_rng(7)
    with Axdimm(transport) as device:
        runs = []
        for channel in range(device.channels):
            pointers = [device.MallocAxdimm(4 * PARAMETERS, channel) for _ in "pmvg"]
            for pointer in pointers:
                values = rng.random(PARAMETERS, dtype=np.float32)
                device.MemcpyHost2Axdimm(pointer, values, values.nbytes)
            device.SetArbiterAcc(channel)
            runs.append(device.RunAdamOnAxdimmAsync(*pointers, PARAMETERS, *ADAM.values(), channel))
        for run in runs:
            run.wait(timeout=60)
        for channel in range(device.channels):
            device.SetArbiterNormal(channel)


COUNTED = {"refreshes": ("REF",), "activates": ("ACT",), "precharges": ("PRE", "PREA")}
"""Counters of the arbiter by the commands that they count."""


@dataclass(frozen=True)
class Reading:
    """A counter, which was read between two moments of its channel (fabric cycles)."""

    channel: int
    name: str
    begin: int
    end: int
    count: int


def read_counters(transport: VerilatedTransport, times: int) -> list[Reading]:
    """Reads the counters of commands again and again while nothing but refreshes happens."""
    readings = []
    for channel in range(transport.channels):
        registers = arbiter_registers(transport, channel)
        for _ in range(times):
            for name in COUNTED:
                begin = transport.fabric_cycles(channel)
                count = registers.read_field(name, "count")
                end = transport.fabric_cycles(channel)
                readings.append(Reading(channel, name, begin, end, count))
    return readings


def let_time_pass(transport: VerilatedTransport, channel: int, fabric_cycles: int) -> None:
    """Polls for the other mode, which never comes."""
    with pytest.raises(DeviceTimeout):
        transport.poll(
            channel,
            transport.capacity_bytes - 4096 + 0x80,
            1,
            1,
            interval_fabric_cycles=200,
            timeout_fabric_cycles=fabric_cycles,
        )


def test_dram_trace_keeps_the_standard(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    transport = VerilatedTransport(config=CONFIG, dram_trace=path)
    run_adam(transport)
    counts = []
    for channel in range(transport.channels):
        registers = arbiter_registers(transport, channel)
        names = ("host_reads", "host_writes")
        counts.append({name: registers.read_field(name, "count") for name in names})
    readings = read_counters(transport, times=8)
    transport.close()

    lines = path.read_text().splitlines()
    assert lines[0].startswith("# nearmem dram trace v1 preset=tiny ")
    assert lines[1] == "tck,channel,command,bank_group,bank,row,column"
    times = [int(line.split(",")[0]) for line in lines[2:]]
    assert times == sorted(times)
    report = check_trace(lines)
    assert report.violations == []
    beats = -(-PARAMETERS // 16)
    for channel, count in enumerate(counts):
        seen = Counter(
            line.split(",")[2] for line in lines[2:] if line.split(",")[1] == str(channel)
        )
        assert seen["RD"] == count["host_reads"] + 4 * beats
        assert seen["WR"] == count["host_writes"] + 3 * beats

    # A counter is what it counts, up to the moment of reading; a command within a few cycles of
    # this may or may not be in it.
    exact = Counter()
    for reading in readings:
        moments = [
            int(line.split(",")[0]) // 4
            for line in lines[2:]
            if line.split(",")[1] == str(reading.channel)
            and line.split(",")[2] in COUNTED[reading.name]
        ]
        least = sum(moment < reading.begin - 4 for moment in moments)
        most = sum(moment <= reading.end + 4 for moment in moments)
        assert least <= reading.count <= most, reading
        exact[reading.channel, reading.name] += least == most
    assert min(exact.values()) >= 4, f"too few readings without a command beside them: {exact}"


def test_a_spoiled_trace_is_found_out(tmp_path: Path) -> None:
    """The checker of the test above can fail: one command too early, refreshes left out."""
    path = tmp_path / "trace.csv"
    transport = VerilatedTransport(config=CONFIG, dram_trace=path)
    run_adam(transport)
    let_time_pass(transport, 0, 40 * CONFIG.part.timing.t_refi // 4)
    transport.close()
    lines = path.read_text().splitlines()
    place = next(i for i, line in enumerate(lines) if ",0,ACT," in line)
    column = next(
        i
        for i, line in enumerate(lines)
        if (i > place and ",0,RD," in line) or (i > place and ",0,WR," in line)
    )
    tck, rest = lines[column].split(",", 1)
    early = [*lines[:column], f"{int(tck) - 1},{rest}", *lines[column + 1 :]]
    assert check_trace(lines).violations == []
    assert {violation.rule for violation in check_trace(early).violations} == {"tRCD"}
    refreshes = [i for i, line in enumerate(lines) if ",0,REF," in line]
    assert len(refreshes) >= 40
    # Eight may be owed, and as many may have been given in advance.
    missing = refreshes[10:27]
    starved = [line for i, line in enumerate(lines) if i not in missing]
    assert {violation.rule for violation in check_trace(starved).violations} == {"tREFI"}


def test_a_violation_stops_the_simulation() -> None:
    strict = replace(CONFIG.part.timing, t_rcd=CONFIG.part.timing.t_rcd + 4)
    transport = VerilatedTransport(config=CONFIG, memory_timing=strict, arithmetic=False)
    data = np.zeros(100 * LINE, np.uint8)
    with pytest.raises(DeviceFault, match=r"T_RCD broken at tCK \d+, while writing 6400 bytes"):
        transport.write_lines(0, 0, data)
    transport.close()


@pytest.fixture
def transport() -> VerilatedTransport:
    return VerilatedTransport(config=CONFIG)


def test_link_carries_a_line_in_two_fabric_cycles(transport: VerilatedTransport) -> None:
    data = np.arange(512 * LINE, dtype=np.uint32).astype(np.uint8)
    before = transport.now(0)
    transport.write_lines(0, 0, data)
    assert transport.now(0) - before == 2 * 512
    transport.close()


def test_link_is_shared_by_channels_that_copy_at_once(transport: VerilatedTransport) -> None:
    lines = 2048
    data = [np.random.default_rng(i).integers(0, 256, lines * LINE, np.uint8) for i in range(2)]
    start = threading.Barrier(2)
    begin = max(transport.now(0), transport.now(1))

    def copy(channel: int) -> None:
        # The same moment for both, so that their copies compete.
        transport.poll(
            channel,
            transport.capacity_bytes - 4096,
            0,
            0,
            interval_fabric_cycles=1,
            timeout_fabric_cycles=1000,
        )
        start.wait()
        transport.write_lines(channel, 0, data[channel])

    threads = [threading.Thread(target=copy, args=(channel,)) for channel in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    end = max(transport.now(0), transport.now(1))
    # Alone, a copy takes two cycles a line; both together cannot be faster than the link.
    assert end - begin >= 2 * 2 * lines
    assert end - begin < 2.2 * 2 * lines
    for channel in range(2):
        assert (transport.backdoor_read(channel, 0, lines * LINE) == data[channel]).all()
    transport.close()


def test_one_threads_calls_follow_each_other(transport: VerilatedTransport) -> None:
    transport.write_lines(0, 0, np.zeros(1000 * LINE, np.uint8))
    transport.write_lines(1, 0, np.zeros(LINE, np.uint8))
    assert transport.now(1) >= transport.now(0)
    # The second channel's clock stood still meanwhile.
    assert transport.fabric_cycles(1) < transport.fabric_cycles(0)
    transport.close()


def test_late_reads_are_repeated(transport: VerilatedTransport) -> None:
    data = np.random.default_rng(3).integers(0, 256, 4096 * LINE, np.uint8)
    transport.write_lines(0, 0, data)
    assert (transport.read_lines(0, 0, data.size) == data).all()
    assert transport.late_reads[0] > 0, "no refresh met a read: the test is too short"
    registers = arbiter_registers(transport, 0)
    assert registers.read_field("late_reads", "count") == transport.late_reads[0]
    assert registers.read_field("overflows", "count") == 0
    transport.close()


def assert_disjoint(uses: list[NDArray[np.uint64]]) -> None:
    """Uses of the link, of each channel: in order, and never two at once."""
    for own in uses:
        assert (own[:, 0] < own[:, 1]).all()
        assert (own[1:, 0] >= own[:-1, 1]).all(), "not in order"
    together = np.concatenate(uses)
    together = together[np.argsort(together[:, 0])]
    assert (together[1:, 0] >= together[:-1, 1]).all(), "two uses at once"


def test_uses_of_the_link_are_logged(transport: VerilatedTransport, tmp_path: Path) -> None:
    lines = 2048
    data = np.random.default_rng(5).integers(0, 256, lines * LINE, np.uint8)
    transport.write_lines(0, 0, data)
    assert transport.link_uses(0).shape == (0, 2), "logged unasked"
    transport.record_link(True)
    # As many watchers as threads: they count for themselves.
    watched = [WatchedTransport(transport) for _ in range(transport.channels)]
    start = threading.Barrier(transport.channels)
    uses: list[list[NDArray[np.uint64]]] = [[] for _ in watched]

    def use(channel: int) -> None:
        registers = arbiter_registers(watched[channel], channel)
        start.wait()
        watched[channel].write_lines(channel, 0, data)
        uses[channel].append(transport.link_uses(channel))
        for _ in range(100):
            registers.read_field("refreshes", "count")
            watched[channel].read_lines(channel, 0, lines * LINE // 4)
            if transport.late_reads[channel]:
                break
        uses[channel].append(transport.link_uses(channel))

    threads = [threading.Thread(target=use, args=(channel,)) for channel in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(transport.late_reads), "no read was repeated: the test is too short"
    for channel, (writing, reading) in enumerate(uses):
        assert np.diff(writing).sum() == 2 * lines
        for taken in (writing, reading):
            assert (taken[1:, 0] > taken[:-1, 1]).all(), "not joined"
        moved = watched[channel].link_lines + transport.late_reads[channel]
        assert np.diff(writing).sum() + np.diff(reading).sum() == 2 * moved
        assert reading[:, 1].max() <= transport.now(channel)
    assert_disjoint([np.concatenate(own) for own in uses])

    timeline = Timeline(backend=transport.name, fabric_mhz=transport.fabric_mhz)
    timeline.track("host link")
    for channel, (writing, reading) in enumerate(uses):
        timeline.add_uses("host link", "write", writing, "copy", channel=channel)
        timeline.add_uses("host link", "read", reading, "copy", channel=channel)
    timeline.write(tmp_path / "trace.json")
    trace = read_trace(tmp_path / "trace.json")
    assert_sound(trace)
    shown = {
        (each.name, each.arguments["channel"], each.arguments["used_fabric_cycles"])
        for each in trace.tracks["host link"]
    }
    assert shown == {
        (name, channel, np.diff(taken).sum())
        for channel, own in enumerate(uses)
        for name, taken in zip(("write", "read"), own, strict=True)
    }
    assert transport.link_uses(0).shape == (0, 2), "taken, and still there"
    transport.record_link(False)
    transport.read_lines(0, 0, LINE)
    assert transport.link_uses(0).shape == (0, 2)
    transport.close()


def test_each_poll_uses_the_link_for_a_line(transport: VerilatedTransport) -> None:
    transport.record_link(True)
    let_time_pass(transport, 1, 20_000)
    uses = transport.link_uses(1)
    assert (np.diff(uses) == 2).all()
    period = 200 + CONFIG.read_latency_fabric_cycles
    assert set(np.diff(uses[:, 0]).tolist()) == {period}
    assert len(uses) == 1 + -(-(20_000 - CONFIG.read_latency_fabric_cycles) // period)
    transport.close()


def test_a_channel_left_behind_does_not_use_the_link_twice(transport: VerilatedTransport) -> None:
    """What is too far back to be remembered was in use, for a thread whose time is still then."""
    transport.record_link(True)
    begin, resume = threading.Event(), threading.Event()

    def lag() -> None:
        transport.write_lines(1, 0, np.zeros(LINE, np.uint8))
        begin.set()
        assert resume.wait(60)
        transport.write_lines(1, 0, np.zeros(4096 * LINE, np.uint8))

    thread = threading.Thread(target=lag)
    thread.start()
    assert begin.wait(60)
    for _ in range(20):
        let_time_pass(transport, 0, 1)
        transport.write_lines(0, 0, np.zeros(16 * LINE, np.uint8))
    let_time_pass(transport, 0, 300 * 200)
    resume.set()
    thread.join()
    ahead, behind = (transport.link_uses(channel) for channel in range(2))
    assert_disjoint([ahead, behind])
    # What is remembered leaves room between the polls.
    assert ((behind[0, 1] < ahead[:, 0]) & (ahead[:, 0] < behind[-1, 0])).sum() > 10
    transport.close()


def test_polling_ends(transport: VerilatedTransport) -> None:
    before = transport.fabric_cycles(0)
    with pytest.raises(DeviceTimeout, match="after 5000 fabric cycles, awaited 0x1"):
        transport.poll(
            0,
            transport.capacity_bytes - 4096 + 0x80,
            1,
            1,
            interval_fabric_cycles=100,
            timeout_fabric_cycles=5000,
        )
    assert transport.fabric_cycles(0) - before >= 5000
    transport.close()
    transport.close()


@pytest.mark.parametrize("window", [None, (550, 600)])
def test_waveform_opens_in_another_reader(tmp_path: Path, window: tuple[int, int] | None) -> None:
    wave = tmp_path / "wave.fst"
    transport = VerilatedTransport(config=CONFIG, wave=wave, wave_window=window, arithmetic=False)
    transport.write_lines(0, 0, np.full(64 * LINE, 0xA5, np.uint8))
    ends = [transport.now(channel) for channel in range(2)]
    transport.close()
    half_cycle_ps = 2500
    for channel, end in enumerate(ends):
        reader = pylibfst.lib.fstReaderOpen(str(tmp_path / f"wave.ch{channel}.fst").encode())
        assert reader != pylibfst.ffi.NULL
        _, signals = pylibfst.get_scopes_signals2(reader)
        assert "channel.link_req_valid" in signals.by_name
        # The inside of one unit stands for that of all.
        inside = [name.partition(".lanes.unit_")[2] for name in signals.by_name]
        units = {name.partition(".")[0] for name in inside if name}
        assert units == {"0"}
        last = pylibfst.lib.fstReaderGetEndTime(reader) // half_cycle_ps
        if window is None:
            assert last == 2 * end - 1
        elif channel == 0:
            assert pylibfst.lib.fstReaderGetStartTime(reader) == 2 * 550 * half_cycle_ps
            assert last == 2 * 600 - 1
        pylibfst.lib.fstReaderClose(reader)


def _build(_: int) -> str:
    def build(target: Path) -> None:
        with (target / "builds").open("a") as log:
            log.write("x")

    return (cached_build("kind", "key", build) / "builds").read_text()


def test_two_runs_build_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARMEM_CACHE_DIR", str(tmp_path))
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert pool.map(_build, range(8)) == ["x"] * 8


def test_a_failed_build_is_not_taken_for_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARMEM_CACHE_DIR", str(tmp_path))

    def fail(target: Path) -> None:
        (target / "half").touch()
        raise OSError(errno.ENOSPC, "no space")

    def needs_another(target: Path) -> None:
        cached_build("other", "key", fail)

    for build, kind in ((fail, "kind"), (needs_another, "other")):
        with pytest.raises(OSError, match=r"no space: builds.* NEARMEM_CACHE_DIR: .*key") as caught:
            cached_build("kind", "key", build)
        assert caught.value.filename == str(tmp_path / kind / "key")
        assert str(caught.value).count("NEARMEM_CACHE_DIR") == 1
        assert not (tmp_path / "kind" / "key").exists()
    folder = cached_build("kind", "key", lambda target: (target / "whole").touch())
    assert sorted(path.name for path in folder.iterdir()) == [".about", ".done", "whole"]
