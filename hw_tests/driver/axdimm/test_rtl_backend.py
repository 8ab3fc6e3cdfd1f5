"""What only the Verilated backend has: time, the shared link, traces and violations."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import signal
import time
import warnings
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pylibfst
import pytest
from filelock import FileLock
from numpy.typing import NDArray

from golden.dram_timing import check_trace
from hw.axdimm.config import configure
from hw.axdimm.registers import arbiter_map
from hw.csr.register_map import RegisterMap
from hw.kernel.registers import kernel_map
from hw_tests.driver.adam import ADAM, adam_constants, adam_step
from hw_tests.driver.trace_reader import assert_sound, read_trace
from sw_driver.axdimm.backends import BackendOptions, open_backend, rtl
from sw_driver.axdimm.backends.rtl import VerilatedTransport
from sw_driver.axdimm.transport import arbiter_window, kernel_window
from sw_driver.device.clock import Operation, Steps
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.device.timeline import Timeline
from sw_driver.device.transport import DeviceFault, DeviceTimeout
from sw_driver.simulator.buildcache import cached_build
from sw_driver.simulator.traces import is_whole_fst

CONFIG = configure("tiny")
LINE = 64
PARAMETERS = 1500

ARBITER = arbiter_map()
KERNEL = kernel_map(CONFIG.rules)


def test_files_may_be_named_by_strings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rtl, "VerilatedTransport", lambda **arguments: arguments)
    for files in ({"wave": "w.fst"}, {"dram_trace": "t.csv"}):
        arguments: Any = open_backend("rtl:tiny", BackendOptions(**files))
        assert {name: arguments[name] for name in files} == {
            name: Path(file) for name, file in files.items()
        }


class Program(Operation):
    """What one user of the module does; keeps what comes of it."""

    outcome: Any = None

    def finish(self, outcome: Any) -> None:
        self.outcome = outcome
        super().finish(outcome)


def carry_out(transport: VerilatedTransport, *programs: Steps) -> list[Program]:
    """Carries out all of them at once."""
    clock = transport.domain.clock
    begun = []
    for number, steps in enumerate(programs):
        program = Program(f"program {number}", transport.domain)
        program.steps = steps
        program.number = next(clock.numbers)
        clock.begin(program, clock.now)
        begun.append(program)
    for program in begun:
        clock.run(program)
        if isinstance(program.outcome, BaseException):
            raise program.outcome
    clock.now = max(program.time for program in begun)
    return begun


def address_of(transport: VerilatedTransport, registers: RegisterMap, name: str) -> int:
    """Byte address of a register in a channel."""
    window = kernel_window if registers is KERNEL else arbiter_window
    return window(transport.capacity_bytes) + registers[name].offset_bytes


def count_of(transport: VerilatedTransport, channel: int, name: str) -> int:
    """What a counter of the arbiter reads."""
    line = transport.read_lines(channel, address_of(transport, ARBITER, name), LINE)
    return int.from_bytes(line[:8].tobytes(), "little")


def write_register(
    transport: VerilatedTransport, channel: int, registers: RegisterMap, name: str, value: int
) -> Generator[None, None, None]:
    line = np.frombuffer(value.to_bytes(LINE, "little"), np.uint8)
    yield from transport.write_steps(channel, address_of(transport, registers, name), line)


def switch(transport: VerilatedTransport, channel: int, mode: int) -> Steps:
    yield from write_register(transport, channel, ARBITER, "mode", mode)
    fields = ARBITER["status"]
    yield from transport.poll_steps(
        channel,
        address_of(transport, ARBITER, "status"),
        fields["mode"].mask | fields["draining"].mask,
        mode << fields["mode"].lsb,
        interval_fabric_cycles=20,
        timeout_fabric_cycles=5000,
    )


def run_steps(
    transport: VerilatedTransport,
    channel: int,
    tensors: Mapping[str, NDArray[np.float32]],
    interval_fabric_cycles: int = 200,
) -> Steps:
    """A run of Adam on one channel, with copies before and after; returns the parameters."""
    parameters = tensors["p"].size
    nbytes = -(-4 * parameters // LINE) * LINE
    places = {name: index * nbytes for index, name in enumerate(tensors)}
    for name, values in tensors.items():
        data = np.zeros(nbytes, np.uint8)
        data[: values.nbytes] = values.view(np.uint8)
        yield from transport.write_steps(channel, places[name], data)
    yield from switch(transport, channel, 1)
    constants = adam_constants(**ADAM)
    settings = {
        "count": parameters,
        **{f"{name}_in": place for name, place in places.items()},
        **{f"{name}_out": places[name] for name in "pmv"},
        **{name: int(value.view(np.uint32)) for name, value in constants.items()},
        "rule": 0,
        "control": KERNEL["control"]["start"].mask,
    }
    for name, value in settings.items():
        yield from write_register(transport, channel, KERNEL, name, value)
    yield from transport.poll_steps(
        channel,
        address_of(transport, KERNEL, "status"),
        KERNEL["status"]["busy"].mask,
        0,
        interval_fabric_cycles=interval_fabric_cycles,
        timeout_fabric_cycles=10**6,
    )
    yield from switch(transport, channel, 0)
    found = yield from transport.read_steps(channel, places["p"], nbytes)
    return found.view(np.float32)[:parameters]


def adam_tensors(channel: int, parameters: int = PARAMETERS) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(7 + channel)
    return {name: rng.random(parameters, dtype=np.float32) for name in "pmvg"}


def run_adam(transport: VerilatedTransport) -> None:
    """A run on every channel at once, with copies before and after."""
    tensors = [adam_tensors(channel) for channel in range(transport.channels)]
    runs = [run_steps(transport, channel, each) for channel, each in enumerate(tensors)]
    for given, run in zip(tensors, carry_out(transport, *runs), strict=True):
        expected, _, _ = adam_step(**given, constants=adam_constants(**ADAM))
        assert run.outcome.tobytes() == expected.tobytes()


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
        for _ in range(times):
            for name in COUNTED:
                begin = transport.fabric_cycles(channel)
                count = count_of(transport, channel, name)
                end = transport.fabric_cycles(channel)
                readings.append(Reading(channel, name, begin, end, count))
    return readings


def let_time_pass(transport: VerilatedTransport, channel: int, fabric_cycles: int) -> None:
    with pytest.raises(DeviceTimeout):
        carry_out(transport, await_other_mode(transport, channel, fabric_cycles))


def await_other_mode(
    transport: VerilatedTransport, channel: int, fabric_cycles: int, interval: int = 200
) -> Steps:
    """Polls for the other mode, which never comes."""
    return transport.poll_steps(
        channel,
        address_of(transport, ARBITER, "status"),
        1,
        1,
        interval_fabric_cycles=interval,
        timeout_fabric_cycles=fabric_cycles,
    )


def test_dram_trace_keeps_the_standard(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    transport = VerilatedTransport(config=CONFIG, dram_trace=path)
    run_adam(transport)
    counts = []
    for channel in range(transport.channels):
        names = ("host_reads", "host_writes")
        counts.append({name: count_of(transport, channel, name) for name in names})
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
    begin = transport.now(0)
    assert transport.now(1) == begin
    carry_out(transport, *(transport.write_steps(i, 0, data[i]) for i in range(2)))
    end = max(transport.now(0), transport.now(1))
    # Alone, a copy takes two cycles a line; both together cannot be faster than the link.
    assert end - begin >= 2 * 2 * lines
    assert end - begin < 2.2 * 2 * lines
    for channel in range(2):
        assert (transport.backdoor_read(channel, 0, lines * LINE) == data[channel]).all()
    transport.close()


def test_calls_follow_each_other(transport: VerilatedTransport) -> None:
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
    assert count_of(transport, 0, "late_reads") == transport.late_reads[0]
    assert count_of(transport, 0, "overflows") == 0
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
    uses: list[list[NDArray[np.uint64]]] = [[] for _ in range(transport.channels)]

    def use(channel: int) -> Steps:
        yield from transport.write_steps(channel, 0, data)
        uses[channel].append(transport.link_uses(channel))
        yield from transport.read_steps(channel, 0, data.size)

    carry_out(transport, *(use(channel) for channel in range(transport.channels)))
    for channel in range(transport.channels):
        # Alone, with no pauses in which there could be a refresh.
        transport.read_lines(channel, 0, 2 * data.size)
        uses[channel].append(transport.link_uses(channel))
    assert all(transport.late_reads), "no read was repeated: the test is too short"
    for channel, (writing, reading) in enumerate(uses):
        assert np.diff(writing).sum() == 2 * lines
        assert np.diff(reading).sum() == 2 * (3 * lines + transport.late_reads[channel])
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
    """What is too far back to be remembered was in use, for who asks for an earlier time."""
    transport.record_link(True)
    transport.write_lines(1, 0, np.zeros(LINE, np.uint8))
    left = transport.domain.now
    let_time_pass(transport, 0, 300 * 200)
    transport.domain.now = left
    transport.write_lines(1, 0, np.zeros(4096 * LINE, np.uint8))
    ahead, behind = (transport.link_uses(channel) for channel in range(2))
    assert_disjoint([ahead, behind])
    # What is remembered leaves room between the polls.
    assert ((behind[0, 1] < ahead[:, 0]) & (ahead[:, 0] < behind[-1, 0])).sum() > 10
    transport.close()


def test_polling_ends(transport: VerilatedTransport) -> None:
    before = transport.fabric_cycles(0)
    steps = await_other_mode(transport, 0, 5000, interval=100)
    with pytest.raises(DeviceTimeout, match="after 5000 fabric cycles, awaited 0x1"):
        carry_out(transport, steps)
    assert transport.fabric_cycles(0) - before >= 5000
    transport.close()
    transport.close()


def test_nothing_simulated_depends_on_the_window(tmp_path: Path) -> None:
    """Two runs on two channels, copies before and after, and one while the other's run goes on."""

    def observed(window_fabric_cycles: int) -> tuple[Any, ...]:
        trace = tmp_path / f"{window_fabric_cycles}.csv"
        transport = VerilatedTransport(config=CONFIG, dram_trace=trace)
        transport.WINDOW_FABRIC_CYCLES = window_fabric_cycles
        transport.record_link(True)
        tensors = [adam_tensors(channel) for channel in range(2)]
        both = carry_out(
            transport,
            run_steps(transport, 0, tensors[0], interval_fabric_cycles=5000),
            run_steps(transport, 1, adam_tensors(1, 700), interval_fabric_cycles=130),
        )
        copied = np.random.default_rng(5).integers(0, 256, 1000 * LINE, np.uint8)

        def copy() -> Steps:
            yield from transport.write_steps(1, 0, copied)
            return (yield from transport.read_steps(1, 0, copied.size))

        one = carry_out(transport, run_steps(transport, 0, tensors[1]), copy())
        assert one[1].outcome.tobytes() == copied.tobytes()
        transport.rest(0, transport.now(0) + 3000)
        transport.rest(1, transport.now(1) + 20_000)
        bytes_in_dram = [transport.backdoor_read(i, 0, 1 << 18).tobytes() for i in range(2)]
        transport.rest(1, transport.now(1) + 1500)
        stamps = [(transport.now(i), transport.fabric_cycles(i)) for i in range(2)]
        uses = [transport.link_uses(i).tolist() for i in range(2)]
        ends = [(program.time, program.outcome.tobytes()) for program in (*both, *one)]
        late = [*transport.late_reads]
        transport.close()
        return ends, stamps, uses, late, bytes_in_dram, trace.read_text()

    first = observed(64)
    assert first == observed(1000)
    assert first == observed(4096)


def test_a_channel_that_sleeps_is_not_simulated_past_those_who_may_ask(
    transport: VerilatedTransport,
) -> None:
    """Though nobody polls it for long, and a second thread could go on with it."""
    status = address_of(transport, ARBITER, "status")

    def polls() -> Steps:
        with suppress(DeviceTimeout):
            yield from transport.poll_steps(
                1, status, 1, 1, interval_fabric_cycles=50_000, timeout_fabric_cycles=60_000
            )

    def copies_and_looks() -> Steps:
        yield from transport.write_steps(0, 0, np.zeros(3000 * LINE, np.uint8))
        before = transport.domain.now
        yield from transport.read_steps(1, status, LINE)
        return before, transport.domain.now

    _, looking = carry_out(transport, polls(), copies_and_looks())
    before, after = looking.outcome
    assert before > 6000
    assert after - before <= transport.config.read_latency_fabric_cycles + 8
    transport.close()


def test_time_passes_in_steps(transport: VerilatedTransport) -> None:
    """What rests long is simulated a window at a time, and has its logical time before that."""
    before = transport.now(0), transport.fabric_cycles(0)
    transport.rest(0, before[0] + 10 * transport.WINDOW_FABRIC_CYCLES)
    assert transport.now(0) - before[0] == 10 * transport.WINDOW_FABRIC_CYCLES
    assert transport.fabric_cycles(0) - before[1] == 10 * transport.WINDOW_FABRIC_CYCLES
    assert len(list(transport.catch_up(0))) == 10
    assert transport.domain.now == transport.now(0)
    assert list(transport.catch_up(0)) == []
    transport.close()


def test_a_call_that_is_given_up_leaves_nothing_behind(transport: VerilatedTransport) -> None:
    data = np.random.default_rng(3).integers(0, 256, 64 * LINE, np.uint8)
    transport.write_lines(0, 0, data)
    other = Program("another", transport.domain)
    other.steps = transport.write_steps(1, 0, data)
    clock = transport.domain.clock
    clock.begin(other, transport.domain.now)
    reading = transport.read_steps(0, 32 * LINE, 32 * LINE)
    next(reading)
    transport.domain.clock.horizon = transport.domain.now
    next(reading)  # sixteen lines are asked for, not answered
    reading.close()
    assert (transport.read_lines(0, 0, 16 * LINE) == data[: 16 * LINE]).all()
    clock.run(other)
    assert (transport.read_lines(1, 0, data.size) == data).all()
    transport.close()


def test_a_forked_process_goes_on_without_the_second_thread() -> None:
    transport = VerilatedTransport(config=CONFIG)
    run_adam(transport)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
        child = os.fork()
    if child == 0:
        try:
            run_adam(transport)
            transport.close()
            os._exit(0)
        finally:
            os._exit(1)
    run_adam(transport)
    transport.close()
    deadline = time.monotonic() + 60
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended == (0, 0):
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert ended == (child, 0)


@pytest.mark.soak
@pytest.mark.parametrize("window", [None, (550, 600)])
def test_waveform_opens_in_another_reader(tmp_path: Path, window: tuple[int, int] | None) -> None:
    wave = tmp_path / "wave.fst"
    transport = VerilatedTransport(config=CONFIG, wave=wave, wave_window=window, arithmetic=False)
    transport.write_lines(0, 0, np.full(64 * LINE, 0xA5, np.uint8))
    ends = [transport.now(channel) for channel in range(2)]
    assert all(path.name.startswith(".wave.ch") for path in tmp_path.iterdir())
    transport.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["wave.ch0.fst", "wave.ch1.fst"]
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


@pytest.mark.soak
def test_waveforms_are_written_as_for_use(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("NEARMEM_BUILD_PROFILE", "fast")  # several files, with a header before each
    wave = tmp_path / "wave.fst"
    VerilatedTransport(config=CONFIG, wave=wave, wave_window=(0, 9), arithmetic=False).close()
    assert all(is_whole_fst(tmp_path / f"wave.ch{channel}.fst") for channel in range(2))


def test_a_waveform_of_no_time_that_was_simulated_is_refused(tmp_path: Path) -> None:
    window = (10_000_000, 10_001_000)
    transport = VerilatedTransport(
        config=CONFIG, wave=tmp_path / "wave.fst", wave_window=window, arithmetic=False
    )
    said = "from fabric cycle 10000000 on would be empty, for the simulated time ended at 512"
    with pytest.raises(InvalidArgumentError, match=said):
        transport.close()
    assert not list(tmp_path.iterdir())


def test_a_waveform_for_which_the_disk_has_no_room_is_not_there(tmp_path: Path) -> None:
    transport = VerilatedTransport(config=CONFIG, wave=tmp_path / "wave.fst", arithmetic=False)
    transport.write_lines(0, 0, np.full(64 * LINE, 0xA5, np.uint8))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match=r"is the disk full\?: .*wave\.ch0\.fst"):
            transport.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not list(tmp_path.iterdir())


def test_a_waveform_that_is_cut_is_not_whole(tmp_path: Path) -> None:
    wave = tmp_path / "wave.fst"
    blocks = [(0, bytes(320)), (8, bytes(1000)), (3, b"geometry"), (6, b"names")]
    content = b"".join(
        bytes([kind]) + (len(data) + 8).to_bytes(8, "big") + data for kind, data in blocks
    )
    wave.write_bytes(content)
    assert is_whole_fst(wave)
    for length in (0, 5, 100, len(content) - 14, len(content) - 1):
        wave.write_bytes(content[:length])
        assert not is_whole_fst(wave)


@pytest.mark.parametrize(
    ("window", "wave"), [((5, 5), "w.fst"), ((-1, 5), "w.fst"), ((7, 5), "w.fst"), ((1, 2), None)]
)
def test_a_window_that_cannot_be_is_refused(window: tuple[int, int], wave: str | None) -> None:
    with pytest.raises(InvalidArgumentError, match="wave_window is"):
        open_backend("rtl:tiny", BackendOptions(wave=wave, wave_window=window))


def _build(_: int) -> str:
    def build(target: Path) -> None:
        with (target / "builds").open("a") as log:
            log.write("x")

    return (cached_build("kind", "key", build) / "builds").read_text()


def test_two_runs_build_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARMEM_CACHE_DIR", str(tmp_path))
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert pool.map(_build, range(8)) == ["x"] * 8


def test_who_waits_for_a_build_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARMEM_CACHE_DIR", str(tmp_path))
    (tmp_path / "kind").mkdir()
    other = FileLock(tmp_path / "kind" / "key.lock")
    other.acquire()
    said: list[str] = []

    def announce(text: str) -> None:
        said.append(text)
        other.release()

    cached_build("kind", "key", lambda target: None, "a thing", announce)
    assert said == ["waiting for another program, which is building a thing"]


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
    assert sorted(path.name for path in folder.iterdir()) == [".about", ".done", ".took", "whole"]
