"""What only the Verilated PIM has: time, works at once, reads while they run, limits, faults."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from golden.pim import Descriptor
from golden.pim.vault_timing import check_vault_trace
from hw.pim.config import PIM_PRESETS, configure
from hw.pim.vault.timing import vault_part
from hw_tests.pim.bank.bank_works import bank_works
from hw_tests.pim.overlapping_works import check_overlapping_works, random_floats, words_at
from hw_tests.soak import for_soak
from sw_driver.device.clock import Clock
from sw_driver.device.errors import ClosedError
from sw_driver.device.transport import DeviceFault, DeviceTimeout
from sw_driver.pim.backends.cycles import CyclesPim
from sw_driver.pim.backends.golden import GoldenPim
from sw_driver.pim.backends.rtl import RtlPim
from sw_driver.pim.descriptor import Opcode, StridedTensor, Work
from sw_driver.pim.device import Pim
from sw_driver.pim.planning import planned
from sw_driver.pim.registers import PoolRegisters
from sw_driver.pim.ring import ring_place
from sw_driver.pim.transport import PimTransport

SEED = int(os.environ.get("NEARMEM_TEST_SEED", "1"))
CONFIG = PIM_PRESETS["tiny"]
BANK = CONFIG.bank_bytes
ALL_IDLE = (1 << CONFIG.banks) - 1

Words = NDArray[np.uint32]


@pytest.fixture
def pim() -> Iterator[Pim]:
    """A small stack."""
    with Pim(RtlPim(CONFIG)) as device:
        yield device


def rtl(pim: Pim) -> RtlPim:
    assert isinstance(pim.transport, RtlPim)
    return pim.transport


def product(result: int, size: int, first: int = 0) -> Work:
    """A product of square matrices, the first of which is at ``first``, the second in bank 1."""
    a, b, ret = (
        StridedTensor(address_bytes=address, strides=(size, 1)) for address in (first, BANK, result)
    )
    return Work(opcode=Opcode.MATMUL, a=a, b=b, result=ret, rows=size, columns=size, length=size)


def test_threads_past_the_driver_are_one_at_a_time(pim: Pim) -> None:
    """One waits for a work, one has its values read, one reads a register and lets time pass."""
    size = 24
    values = np.arange(size * size, dtype=np.uint32).view(np.uint8)
    pim.write_memory(BANK, values)
    transport = rtl(pim)
    identity = transport.read_register(0)
    work_id = offer(pim, product(2 * BANK, size), [2])

    def reads() -> set[bytes]:
        return {transport.read_memory(BANK, values.size).tobytes() for _ in range(40)}

    def asks() -> set[int]:
        result = set()
        for _ in range(200):
            result.add(transport.read_register(0))
            transport.advance(10)
        return result

    with ThreadPoolExecutor(4) as threads:
        waiting = threads.submit(pim.wait, work_id)
        reading = [threads.submit(reads), threads.submit(reads), threads.submit(asks)]
        waiting.result(60)
        assert [reader.result(60) for reader in reading] == [{values.tobytes()}] * 2 + [{identity}]


def test_the_trace_has_every_command(tmp_path: Path) -> None:
    """Each column is a beat that the counters or the host know of, and no rule is broken."""
    trace = tmp_path / "trace.csv"
    size = 24
    with Pim(RtlPim(CONFIG, dram_trace=trace)) as pim:
        values = np.arange(size * size, dtype=np.uint32).view(np.uint8)
        host_beats = 0
        elsewhere = BANK // 2
        for first in (elsewhere, BANK):
            pim.transport.write_memory(first, values)
            host_beats += values.size // 32
        work = product(2 * BANK, size, first=elsewhere)
        work_id = offer(pim, work, [2])
        pim.wait(work_id)
        # A ring is cleared, then a descriptor, and what became of it, are written.
        host_beats += 8 * CONFIG.works + 6 + 1
        pim.transport.advance(5000)
        counters = pim.counters(work_id)
        cycles = pim.transport.cycles()
    report = check_vault_trace(trace.read_text().splitlines(keepends=True))
    assert not report.violations
    columns = {
        "WR": counters.bytes_written // 32 + host_beats,
        "RD": counters.bytes_read // 32 + 6,
    }
    for name, count in columns.items():
        assert report.counts[name] + report.counts[f"{name}A"] == count
    assert report.counts["ACT"] == report.counts["RDA"] + report.counts["WRA"]
    assert report.counts["REF"] >= CONFIG.banks * (4 * cycles // 9750 - 1)
    assert 4 * cycles - 2 * 9750 < report.last_tck < 4 * cycles
    lines = trace.read_text().splitlines()
    assert {line.split(",")[1] for line in lines[2:]} == {str(vault) for vault in range(6)}
    rows: dict[tuple[str, ...], str] = {}
    for line in lines[2:]:
        _, vault, name, layer, bank, row, _ = line.split(",")
        if name == "ACT":
            rows[vault, layer, bank] = row
        elif name != "REF":
            assert row == rows[vault, layer, bank]
    assert len(set(rows.values())) > 1
    # A column that is moved to its activate breaks a rule.
    number = next(n for n, line in enumerate(lines) if ",ACT," in line)
    early = lines[number].split(",")
    later = next(n for n in range(number + 1, len(lines)) if ",RD" in lines[n] or ",WR" in lines[n])
    lines[later] = ",".join([early[0], *lines[later].split(",")[1:]])
    assert check_vault_trace([f"{line}\n" for line in lines]).violations


def test_a_forked_process_writes_nothing_into_the_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    program = (
        "import os, pathlib, sys\n"
        "from hw.pim.config import PIM_PRESETS\n"
        "from sw_driver.pim.backends.rtl import RtlPim\n"
        "transport = RtlPim(PIM_PRESETS['tiny'], dram_trace=pathlib.Path(sys.argv[1]))\n"
        "transport.advance(20_000)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "transport.close()\n"
    )
    options = ["-W", "ignore::DeprecationWarning"]
    subprocess.run([sys.executable, *options, "-c", program, str(trace)], check=True)
    lines = trace.read_text().splitlines()
    assert len(lines) == len(set(lines)) > 2 + CONFIG.banks
    assert not check_vault_trace(f"{line}\n" for line in lines).violations


def test_a_trace_that_is_cut_off_is_reported(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    transport = RtlPim(CONFIG, dram_trace=tmp_path / "trace.csv")
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        transport.advance(20_000)
        with pytest.raises(OSError, match=r"not all of it could be written.*trace\.csv"):
            transport.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    transport.close()


def offer(pim: Pim, work: Work, banks: list[int]) -> int:
    return pim.pim_fix(banks, work, work.result, len(banks))


def test_works_that_overlap_are_as_one_after_the_other(pim: Pim) -> None:
    """Works of all kinds, offered as fast as the pool takes them: memory and all counters."""
    works = bank_works(CONFIG, random.Random(SEED))
    check_overlapping_works(pim, works, SEED)


def test_a_read_gives_all_or_nothing(pim: Pim, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads of a result, of 32 beats, before its work starts, while it starts and while it runs."""
    memory = random_floats(pim, SEED)
    size = 16
    first, second = product(3 * BANK, size), product(2 * BANK, size)
    # The second one waits for the bank, and starts when the first has completed: so long after both
    # have been offered.
    works = [offer(pim, work, [0]) for work in (first, second)]
    begin = pim.transport.cycles()
    pim.transport.advance(100_000)
    start = pim.transport.cycles() - begin
    pim.wait(works[1])
    transfers: list[object] = []
    transfer = rtl(pim)._transfer
    monkeypatch.setattr(
        rtl(pim),
        "_transfer",
        lambda *arguments, **options: (
            transfers.append(arguments) or transfer(*arguments, **options)
        ),
    )
    old = memory[2 * BANK // 4 :][: size * size]
    results: list[bool] = []
    repeated = 0
    for delay in [0, *range(start - 60, start, 4), start + 300]:
        pim.write_memory(2 * BANK, old)
        works = [offer(pim, work, [0]) for work in (first, second)]
        while delay > 0:
            before = pim.transport.cycles()
            pim.transport.advance(delay)
            delay -= pim.transport.cycles() - before
        transfers.clear()
        seen = words_at(pim, 2 * BANK, size * size)
        repeated += len(transfers) - 1
        for work in works:
            pim.wait(work)
        new = words_at(pim, 2 * BANK, size * size)
        assert (new != old).all()
        assert (seen == old).all() or (seen == new).all()
        results.append(bool((seen == new).all()))
    assert repeated > 0
    assert not results[0]
    assert results[-1]


def test_a_completion_comes_after_the_result(pim: Pim) -> None:
    """Whenever memory is looked at: a completion that is there is that of a work that registers
    call completed, and its number alone tells that it is there."""
    random_floats(pim, SEED)
    place = ring_place(CONFIG)
    pim.transport.write_memory(place.start, np.zeros(len(place), np.uint8))
    for turn in range(24):
        number = offer(pim, product((2 + turn % 3) * BANK, 4 + turn % 5), [turn % CONFIG.banks])
        slot = place.start + 256 * (turn % CONFIG.works)
        pim.transport.advance(turn)
        while True:
            words = pim.read_memory(slot + 192, 12).view("<u4").tolist()
            state = pim.state(number)
            if words[0] & 0xFFFF == turn + 1:
                break
            assert words[0] & 0xFFFF == max(0, turn + 1 - CONFIG.works)
        assert state == "completed"
        assert words == [turn + 1 | turn << 16, number, 0]
        assert pim.transport.read_register(0x820) == turn + 1 | 1 << 16 | number << 32
        pim.wait(number)


def test_reads_elsewhere_do_not_wait(pim: Pim) -> None:
    memory = random_floats(pim, SEED)
    number = offer(pim, product(2 * BANK, 24), [0])
    assert (words_at(pim, 0, 8) == memory[:8]).all()
    assert pim.state(number) == "running"
    before = pim.transport.cycles()
    words_at(pim, 2 * BANK, 1)
    assert pim.state(number) == "completed"
    assert pim.transport.cycles() - before > 500


def test_works_run_at_once_and_complete_in_any_order(pim: Pim) -> None:
    random_floats(pim, SEED)
    long = offer(pim, product(2 * BANK, 24), [0, 2])
    short = offer(pim, product(3 * BANK, 8), [4])
    assert pim.state(long) == pim.state(short) == "running"
    assert pim.work_info(long)[0] == [0, 2]
    assert pim.work_info(short)[0] == [4]
    assert pim.idle == ALL_IDLE & ~0b010101
    assert pim.wait_any([long, short]) == [short]
    assert pim.state(long) == "running"
    assert pim.idle == ALL_IDLE & ~0b000101
    pim.wait(long)
    assert pim.idle == ALL_IDLE


def test_a_second_work_takes_the_idle_banks(pim: Pim) -> None:
    """The paper's operation pipeline: two works take little longer than the longer of them."""
    random_floats(pim, SEED)

    def cycles(*works: Work) -> int:
        begin = pim.transport.cycles()
        numbers = [pim.pim_fix(None, work, work.result, CONFIG.units // 2) for work in works]
        for number in numbers:
            pim.wait(number)
        return pim.transport.cycles() - begin

    works = product(2 * BANK, 24), product(3 * BANK, 24, first=4 * BANK)
    alone = [cycles(work) for work in works]
    assert cycles(*works) < 0.75 * sum(alone)


def test_a_work_that_grows_computes_the_same(pim: Pim) -> None:
    """Banks join it when the other work has ended; they count as busy from then on."""
    works = (
        replace(product(2 * BANK, 24), banks=0b111110),
        replace(product(3 * BANK, 32), units=CONFIG.units),
    )
    given = [Descriptor.decode(planned(work, CONFIG).encode_bytes()) for work in works]
    check_overlapping_works(pim, given, SEED)
    registers = PoolRegisters(pim.transport)
    assert [registers.slots[slot].read_field("banks") for slot in (0, 1)] == [0b111110, ALL_IDLE]
    first, second = (registers.slots[slot].read_field("cycles") for slot in (0, 1))
    busy = pim.busy_cycles()
    assert busy == [second, *[busy[1]] * 5]
    assert 0 < busy[1] - first < second


def test_idle_bits_are_those_of_the_running_works(pim: Pim) -> None:
    random_floats(pim, SEED)
    works = [
        offer(pim, product(2 * BANK, 20), [0, 1]),
        offer(pim, product(3 * BANK, 16), [1, 2]),
        offer(pim, product(4 * BANK, 12), [5]),
    ]
    seen = set()
    while not all(pim.work_query(work) for work in works):
        before = pim.idle
        running = [work for work in works if pim.state(work) == "running"]
        busy = {bank for work in running for bank in pim.work_info(work)[0]}
        if before == pim.idle:
            assert before == ALL_IDLE & ~sum(1 << bank for bank in busy)
            seen.add(before)
        pim.transport.advance(40)
    assert len(seen) >= 3


def test_time_passes_until_a_work_completes(pim: Pim) -> None:
    transport = pim.transport
    begin = transport.cycles()
    transport.advance(1000)
    assert transport.cycles() == begin + 1000
    begin = transport.cycles()
    number = offer(pim, product(2 * BANK, 8), [0])
    transport.advance(10_000_000)
    assert pim.work_query(number)
    assert transport.cycles() - begin < 10_000
    assert 0 < (pim.counters(number).cycles or 0) <= transport.cycles() - begin


def test_a_read_that_waits_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with Pim(RtlPim(CONFIG, quiet_limit_cycles=500)) as pim:
        random_floats(pim, SEED)
        number = offer(pim, product(2 * BANK, 24), [0])
        with monkeypatch.context() as patch:
            patch.setattr(PoolRegisters, "progress", lambda *_: ())
            with pytest.raises(
                DeviceTimeout, match=r"reading 64 bytes at 0x8000: nothing .*is 500"
            ):
                pim.read_memory(2 * BANK, 64)
        assert pim.state(number) == "running"
        # What was asked for still comes, and is not taken for what is asked for next.
        seen = words_at(pim, 2 * BANK, 24 * 24)
        assert pim.state(number) == "completed"
        assert (words_at(pim, 2 * BANK, 24 * 24) == seen).all()


def test_counters_are_of_one_moment(pim: Pim) -> None:
    """What a snapshot keeps belongs together, however long its reader takes; what is read from the
    slot itself does not."""
    random_floats(pim, SEED)
    registers, rng = PoolRegisters(pim.transport), random.Random(SEED)
    amount, size = {"multiplications": 40**3, "additions": 40 * 40 * 39}, 40
    # The last waits for the first, and the second has the same banks as the others.
    works = [offer(pim, product(place * BANK, size), [0, 3]) for place in (2, 3, 2)]
    before = dict.fromkeys(works, (0, 0, 0))
    torn, states = 0, set()

    def differs(read: Callable[[str], int]) -> list[str]:
        """Of what done and left do not sum up, read in any order, with pauses."""
        names = [f"{kind}_{part}" for kind in amount for part in ("done", "left")]
        result = {}
        for name in rng.sample(names, len(names)):
            pim.transport.advance(rng.choice((0, 1, 30)))
            result[name] = read(name)
        return [
            kind
            for kind, total in amount.items()
            if result[f"{kind}_done"] + result[f"{kind}_left"] != total
        ]

    while not all(pim.work_query(work) for work in works):
        work = rng.choice(works)
        slot = work % CONFIG.works
        torn += bool(differs(lambda name, slot=slot: registers.slots[slot].read_field(name)))
        registers.pool.write("snapshot", rng.choice((slot, work)))
        state = registers.kept.read_field("state")
        states.add(state)
        assert not differs(registers.kept.read_field)
        assert registers.kept.read_field("id") == work
        done = (state == 3, registers.kept.read_field("multiplications_left") == 0)
        assert done in ((True, True), (False, False), (False, True))
        assert (registers.kept.read_field("cycles") > 0, registers.kept.read_field("banks")) == (
            (True, 0b1001) if state > 1 else (False, 0)
        )
        names = ("cycles", "bytes_read", "bytes_written")
        now = tuple(registers.kept.read_field(name) for name in names)
        assert all(old <= new for old, new in zip(before[work], now, strict=True))
        before[work] = now
        counters = pim.counters(work)
        assert counters.additions_done + counters.additions_left == amount["additions"]
    assert torn
    assert states == {1, 2, 3}


@pytest.mark.parametrize("columns", [*for_soak(3), 6])
def test_every_address_is_answered(columns: int) -> None:
    """Memory that no bank holds with an error, which the registers tell of and no bank notices:
    as the golden model does, whose map of addresses is its own."""
    # A lane in each bank: that is soon built.
    small = configure("tiny", rows=1, columns=columns, total=2 * columns)
    config = CONFIG if columns == CONFIG.banks else small
    with Pim(RtlPim(config)) as device, Pim(GoldenPim(config)) as golden:
        rng = np.random.default_rng(SEED)
        everything = config.stack_bytes
        held = [(0, config.local_bytes), (config.striped_start_bytes, everything)]
        for begin, end in held:
            values = rng.integers(0, 256, end - begin).astype(np.uint8)
            for machine in (device, golden):
                machine.transport.write_memory(begin, values)
        space = 1 << (everything - 1).bit_length()
        borders = (held[0][1], held[1][0], everything, space)
        for border in borders:
            for offset, nbytes in ((-64, 32), (-32, 64), (-3, 7), (0, 32), (32, 4), (64, 4096)):
                address = border + offset
                if address + nbytes > space:
                    continue
                values = rng.integers(0, 256, nbytes).astype(np.uint8)
                for use in (
                    lambda transport, a=address, n=nbytes: transport.read_memory(a, n).tolist(),
                    lambda transport, a=address, v=values: transport.write_memory(a, v),
                ):
                    assert outcome(device, use) == outcome(golden, use)
        assert PoolRegisters(device.transport).pool.read_field("host_errors") > 20
        for begin, end in held:
            seen, expected = (
                machine.transport.read_memory(begin, end - begin) for machine in (device, golden)
            )
            assert (seen == expected).all()
        random_floats(device, SEED)
        device.wait(offer(device, product(2 * BANK, 8), [0]))
        with pytest.raises(DeviceFault, match=f"reading 32 bytes at {space:#x}: .*no bank holds"):
            device.transport.read_memory(space, 32)


def outcome(device: Pim, use: Callable[[PimTransport], object]) -> object:
    """What came of an access to memory, and what the registers say then."""
    registers = PoolRegisters(device.transport)
    try:
        done = use(device.transport)
    except DeviceFault as fault:
        done = str(fault)
    where = registers.pool.read_fields("host_error", "address", "write", "cause")
    return done, registers.pool.read_field("host_errors"), where


def test_registers_that_are_none(pim: Pim) -> None:
    for offset in (0x018, 0x068, 0x0C0, 0x250, 0x830, 0x880, 0x1050, 0x1000 + 128 * CONFIG.works):
        with pytest.raises(DeviceFault, match=f"reading the register at {offset:#x}.*SLVERR"):
            pim.transport.read_register(offset)
    with pytest.raises(DeviceFault, match=r"writing the register at 0x68.*SLVERR"):
        pim.transport.write_register(0x068, 1)
    assert pim.idle == ALL_IDLE


def test_registers_that_do_not_answer(pim: Pim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sw_driver.pim.backends.rtl._REGISTER_LIMIT_CYCLES", 1)
    with pytest.raises(DeviceTimeout, match="has not answered for 1 cycles"):
        _ = pim.idle
    monkeypatch.undo()
    with pytest.raises(DeviceTimeout, match="open the device again"):
        _ = pim.idle


@pytest.mark.parametrize("backend", [GoldenPim, CyclesPim, RtlPim])
@pytest.mark.parametrize("by_itself", [False, True])
def test_a_closed_device(backend: Callable[..., PimTransport], *, by_itself: bool) -> None:
    """Nothing that it is asked for is answered, in a call of the clock neither."""
    device = Pim(backend(CONFIG))
    transport, beat = device.transport, np.zeros(32, np.uint8)
    for _ in range(2):
        (transport if by_itself else device).close()
    for use in (
        lambda: device.idle,
        lambda: device.read_memory(0, 4),
        lambda: Pim(transport),
        lambda: Pim(transport, Clock()),
        lambda: transport.read_register(0),
        lambda: transport.write_register(0, 0),
        lambda: transport.read_memory(0, 32),
        lambda: transport.write_memory(0, beat),
        lambda: transport.post_memory(0, beat),
        lambda: list(transport.read_steps(0, 32)),
        lambda: list(transport.write_steps(0, beat)),
        lambda: transport.advance(1),
        transport.cycles,
    ):
        with pytest.raises(ClosedError, match=r"was closed.* open it again"):
            use()
    with device.transport.domain.clock, pytest.raises(ClosedError):
        transport.read_register(0)
    device.close()


def test_bytes_of_any_number_at_any_place(pim: Pim) -> None:
    rng = np.random.default_rng(SEED)
    memory = np.zeros(512, np.uint8)
    for _ in range(100):
        first, end = sorted(int(place) for place in rng.integers(0, 513, 2))
        data = rng.integers(0, 256, end - first).astype(np.uint8)
        pim.transport.write_memory(first, data)
        memory[first:end] = data
        first, end = sorted(int(place) for place in rng.integers(0, 513, 2))
        assert (pim.transport.read_memory(first, end - first) == memory[first:end]).all()


def test_memory_has_many_requests_under_way(pim: Pim) -> None:
    """A vault moves a beat a cycle, the host's port 32 requests a latency."""
    begin = pim.transport.cycles()
    pim.write_memory(0, np.zeros(BANK, np.uint8))
    pim.read_memory(0, BANK)
    assert pim.transport.cycles() - begin < 1.6 * 2 * BANK // 32


def test_a_second_thread_changes_nothing() -> None:
    """Time passes in steps too short for a second thread, and in one long enough for it: the same
    counters at the same cycle, and the same memory."""
    seen = []
    for step in (200, 60_000):
        with Pim(RtlPim(CONFIG)) as device:
            random_floats(device, SEED)
            works = [offer(device, product((2 + n) * BANK, 40), [n, n + 3]) for n in range(3)]
            begin = device.transport.cycles()
            while device.transport.cycles() < begin + 60_000:
                device.transport.advance(min(step, begin + 60_000 - device.transport.cycles()))
            counters = [device.counters(work) for work in works]
            assert all(counter.multiplications_left == 0 for counter in counters)
            seen.append((counters, words_at(device, 0, CONFIG.local_bytes // 4).tobytes()))
    assert seen[0] == seen[1]


def test_a_forked_process_goes_on_without_the_second_thread(pim: Pim) -> None:
    transport = rtl(pim)
    transport.advance(2000)  # makes the thread
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
        child = os.fork()
    if child == 0:
        begin = transport.cycles()
        transport.advance(2000)
        transport.close()
        os._exit(0 if transport._stack is None and begin else 1)
    end = time.monotonic() + 60
    status = (0, 0)
    while status[0] == 0 and time.monotonic() < end:
        time.sleep(0.05)
        status = os.waitpid(child, os.WNOHANG)
    if status[0] == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert status == (child, 0)
    begin = transport.cycles()
    transport.advance(2000)
    assert transport.cycles() == begin + 2000


def test_no_output_depends_on_an_input_at_once(pim: Pim) -> None:
    """What moves between the parts of the simulation is what the whole would have."""
    random_floats(pim, SEED)
    works = [offer(pim, product((2 + n) * BANK, 60), [n, n + 3]) for n in range(3)]
    transport = rtl(pim)
    begin = transport.cycles()
    while not all(pim.work_query(work) for work in works):
        for _ in range(200):
            assert transport._library.nm_consistent(transport._stack)
    assert transport.cycles() - begin > 2000


@pytest.mark.soak
def test_violations_are_seen(capfd: pytest.CaptureFixture[str]) -> None:
    config = configure("tiny", rows=1, columns=1, total=2)
    part = vault_part("hmc2")
    slower = replace(part.timing, t_rcd=part.timing.t_rcd + 4)
    transport = RtlPim(config, part=part, memory_timing=slower)
    transport.advance(10)
    with pytest.raises(DeviceFault, match=r"a vault's timing was violated.*reading 4 bytes at 0x0"):
        transport.read_memory(0, 4)
    assert "vault_0" in capfd.readouterr().out
    with pytest.raises(DeviceFault, match="Do not trust the simulation"):
        transport.advance(1)
    transport.close()


def test_the_build_does_without_the_axdimm() -> None:
    """Its sources are not in the key of the build."""
    code = "import sys, hw.sim.pim_system; print([m for m in sys.modules if m.startswith('hw.a')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(eval(done.stdout)) == {"hw.axi", "hw.axi.bus"}
