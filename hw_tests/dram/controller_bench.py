"""cocotb tests of controller and device: data, address map, command timing, refresh, latency.

The design holds a :class:`~hw_tests.dram.system.DramSystem` for each part of the parameters, under
the part's name, and a :class:`~hw_tests.dram.system.StreamSystem` called ``stream``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from golden.command_trace import TraceReport
from golden.dram_map import DramAddressMap
from golden.dram_timing import PARTS, check_trace
from hw_tests.axi_manager import ALL
from hw_tests.axi_manager import AxiManager as PipelinedManager
from hw_tests.bench import bench_parameters
from hw_tests.dram.manager import (
    DECERR,
    MANAGER_HABITS,
    OKAY,
    AxiManager,
    Burst,
    random_burst,
)
from hw_tests.stalls import STALLS
from hw_tests.streams import value_of

TINY = "tiny"
TIGHT = "tight"
"""With the shortest tREFI that is accepted."""
MAPS = {name: DramAddressMap(**values) for name, values in bench_parameters()["maps"].items()}
# What a reset leaves as it is, and so carries over from one test to the next.
MEMORIES = {name: np.zeros(each.capacity_bytes, np.uint8) for name, each in MAPS.items()}
COUNTED = {
    "refreshes": ("REF",),
    "activates": ("ACT",),
    "precharges": ("PRE", "PREA"),
    "reads": ("RD",),
    "writes": ("WR",),
}


class TB:
    """One of the systems after reset, with a manager and the record of its commands."""

    def __init__(
        self, dut: Any, name: str, *, stalls: str = "none", habit: str = MANAGER_HABITS[0]
    ) -> None:
        self.dut = dut
        self.name = name
        self.map = MAPS.get(name)
        if self.map is not None:
            self.manager = AxiManager(
                dut,
                f"{name}_s_axi",
                MEMORIES[name],
                stall=STALLS[stalls],
                seed=7,
                habit=habit,
            )

    def port(self, name: str) -> Any:
        return getattr(self.dut, f"{self.name}_{name}")

    async def reset(self) -> None:
        cocotb.start_soon(Clock(self.dut.clk, 5, unit="ns").start())
        self.dut.rst.value = 1
        self.dut.stream_start.value = 0
        if self.map is not None:
            self.port("prompt").value = 0
        self.port("flush").value = 0
        await ClockCycles(self.dut.clk, 4)
        self.dut.rst.value = 0

    async def check_answers(self) -> None:
        """A write is answered in the cycle after that of its last column, not before nor later."""
        due = answered = 0
        while True:
            await RisingEdge(self.dut.clk)
            valid = value_of(self.port("s_axi_bvalid"))
            offered = self.manager.accepted["aw"]
            if answered == len(offered):
                assert not valid
                continue
            burst = offered[answered]
            if burst.response == OKAY:
                # This counts the columns, too, in the same cycle.
                columns = value_of(self.port("writes"))
                assert valid == (columns >= due + burst.beats), f"write {answered}"
            if valid and value_of(self.port("s_axi_bready")):
                answered += 1
                due += burst.beats if burst.response == OKAY else 0

    async def check_record(self) -> tuple[TraceReport, list[str]]:
        """Replays the commands up to now through the checker and compares the counters."""
        while not int(self.port("idle").value):
            await RisingEdge(self.dut.clk)
        assert not int(self.port("violation").value)
        # A counter moves one cycle before the command shows, and the flush one cycle after this.
        counters = {name: self.port(name).value.to_unsigned() for name in COUNTED}
        self.port("flush").value = 1
        await RisingEdge(self.dut.clk)
        self.port("flush").value = 0
        await RisingEdge(self.dut.clk)
        lines = Path(f"{self.name}.csv").read_text().splitlines()
        report = check_trace(lines)
        assert report.violations == []
        for counter, names in COUNTED.items():
            assert counters[counter] == sum(report.counts[name] for name in names), counter
        return report, lines

    def check_places(self, lines: list[str]) -> None:
        """Each line of each burst, in order, is where the decoder of ``golden`` says."""
        assert self.map is not None
        recorded: dict[str, list[tuple[int, ...]]] = {"RD": [], "WR": []}
        rows: dict[tuple[str, str], str] = {}
        for line in lines[2:]:
            _, _, name, group, bank, row, column = line.split(",")
            if name == "ACT":
                rows[group, bank] = row
            elif name in recorded:
                place = (group, bank, rows[group, bank], column)
                recorded[name].append(tuple(map(int, place)))
        for name, channel in (("RD", "ar"), ("WR", "aw")):
            expected = [
                tuple(self.map.decode(burst.address // 64 * 64 + 64 * beat))
                for burst in self.manager.accepted[channel]
                if burst.response == OKAY
                for beat in range(burst.beats)
            ]
            assert recorded[name] == expected


def _fill(rng: random.Random, pages: range) -> Iterator[Burst]:
    for page in pages:
        lines = [rng.getrandbits(512) for _ in range(64)]
        yield Burst(True, 4096 * page, 64, lines=lines, strobes=[(1 << 64) - 1] * 64)


@cocotb.test(timeout_time=20, timeout_unit="ms")
@cocotb.parametrize(
    (
        ("name", "stalls", "habit"),
        [
            *((TINY, stalls, MANAGER_HABITS[0]) for stalls in STALLS),
            *(
                (TINY, stalls, habit)
                for stalls in ("none", "random")
                for habit in MANAGER_HABITS[1:]
            ),
            *((name, "random", MANAGER_HABITS[0]) for name in MAPS if name not in (TINY, TIGHT)),
        ],
    )
)
async def random_traffic(dut: Any, name: str, stalls: str, habit: str) -> None:
    tb = TB(dut, name, stalls=stalls, habit=habit)
    assert tb.map is not None
    await tb.reset()
    cocotb.start_soon(tb.check_answers())
    rng = random.Random(f"{name} {stalls}")
    pages = range(min(32, tb.map.capacity_bytes // 4096))
    await tb.manager.run(_fill(rng, pages))
    bursts = [
        random_burst(rng, len(pages) * 4096, errors=0.0)
        if name != TINY
        else random_burst(rng, tb.map.capacity_bytes, errors=0.1)
        for _ in range(200)
    ]
    await tb.manager.run(bursts)
    await tb.manager.run([Burst(False, 4096 * page, 64) for page in pages])
    assert tb.manager.finished == 2 * len(pages) + len(bursts)
    report, lines = await tb.check_record()
    tb.check_places(lines)
    assert report.counts["REF"] > 1
    await ClockCycles(dut.clk, 4)
    assert int(tb.port("idle").value)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def bursts_beyond_the_top_address(dut: Any) -> None:
    """The highest line answers, the next does not, neither do those of higher address bits."""
    tb = TB(dut, TINY)
    assert tb.map is not None
    await tb.reset()
    top = tb.map.capacity_bytes
    last = Burst(True, top - 64, 1, lines=[1 << 511], strobes=[(1 << 64) - 1])
    await tb.manager.run([last, Burst(False, top - 64, 1)])
    for address in (top, 2 * top, 1 << 33, (1 << 34) - 64):
        write = Burst(True, address, 1, lines=[3], strobes=[255], response=DECERR)
        await tb.manager.run([write, Burst(False, address, 1, response=DECERR)])
    await tb.manager.run([Burst(False, top - 64, 1), Burst(False, 0, 64)])
    report, _ = await tb.check_record()
    assert report.counts["WR"] == 1
    assert report.counts["RD"] == 1 + 1 + 64


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def read_latency(dut: Any) -> None:
    """Fabric cycles from the AR handshake to the first RVALID; the memory is otherwise idle."""
    limits_of = {TINY: (13, 11, 15), "ddr4_2400_8gbit_x8": (16, 12, 19)}
    for name in sorted(limits_of.keys() & MAPS):
        tb = TB(dut, name)
        assert tb.map is not None
        await tb.reset()
        await ClockCycles(dut.clk, 20)
        other_row = tb.map.capacity_bytes // 2
        latencies = []
        for address in (0, 128, other_row):
            await tb.manager.run([Burst(False, address, 1)])
            latencies.append(tb.manager.read_latencies[-1])
            await ClockCycles(dut.clk, 10)
        dut._log.info("%s: closed bank %d, open row %d, other row open %d cycles", name, *latencies)
        assert tuple(latencies) == limits_of[name]


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def withheld_write_data_do_not_block_reads(dut: Any) -> None:
    tb = TB(dut, TINY)
    await tb.reset()
    rng = random.Random(11)
    manager = tb.manager
    manager.hold_write_data = True
    for burst in _fill(rng, range(8)):
        assert manager._launch(burst)
    for _ in range(100):
        await manager.step()
    for page in range(8, 32):
        assert manager._launch(Burst(False, 4096 * page, 64))
    while manager.finished < 24:
        await manager.step()
        assert manager.cycle < 5000
    assert not int(tb.port("idle").value)
    manager.hold_write_data = False
    await manager.run([Burst(False, 4096 * page, 64) for page in range(8)])
    await tb.check_record()


def _lines(rng: random.Random, count: int) -> list[tuple[int, int]]:
    return [(rng.getrandbits(512), ALL) for _ in range(count)]


async def _read_all(manager: PipelinedManager) -> list[int]:
    """The lines of the tiny memory, which the tests to come are told of."""
    memory = MEMORIES[TINY]
    manager.stalls = {}
    reads = [manager.read(page, 64) for page in range(0, memory.size, 4096)]
    await reads[-1].ended.wait()
    lines = [line for read in reads for line, _ in read.beats]
    memory[:] = np.frombuffer(b"".join(line.to_bytes(64, "little") for line in lines), np.uint8)
    return lines


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(
    (
        ("stalls", "length", "outstanding", "buffer"),
        [
            *(("none", 64, reads, lines) for reads in (4, 16) for lines in (1, 300)),
            *(("none", length, 40, 2) for length in (1, 16, 33)),
            ("random", 64, 16, 3),
            ("heavy", 64, 12, 1),
        ],
    )
)
async def copies_with_a_small_buffer(
    dut: Any, stalls: str, length: int, outstanding: int, buffer: int
) -> None:
    """By a manager that takes read data only as it gets rid of write data."""
    tb = TB(dut, TINY)
    await tb.reset()
    share = dict.fromkeys(("ar", "r", "aw", "w", "b"), STALLS[stalls])
    manager = PipelinedManager(dut, f"{TINY}_s_axi", dut.clk, reset=dut.rst, stalls=share)
    half = MEMORIES[TINY].size // 2
    rng = random.Random(f"{stalls} {length} {outstanding} {buffer}")
    data = [_lines(rng, 64) for _ in range(half // 4096)]
    filled = [manager.write(4096 * page, lines) for page, lines in enumerate(data)]
    for write in filled:
        await write.ended.wait()
    # In pages, of which a burst is a part; some more than once.
    pairs = [(4096 * (n % 16), half + 4096 * (n % 16)) for n in range(20)]
    await manager.copy(pairs, length=length, outstanding=outstanding, buffer=buffer)
    content = await _read_all(manager)
    for (_, target), lines in zip(pairs[:16], data, strict=True):
        assert content[target // 64 :][:length] == [line for line, _ in lines[:length]]
    await tb.check_record()


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(held=["r", "b"])
async def one_direction_waits_for_the_other(dut: Any, held: str) -> None:
    """Read data are taken when all writes are answered, and answers when all data are read."""
    tb = TB(dut, TINY)
    await tb.reset()
    manager = PipelinedManager(dut, f"{TINY}_s_axi", dut.clk, reset=dut.rst, stalls={held: 1.0})
    rng = random.Random(held)
    reads = [manager.read(4096 * (n % 16), 64) for n in range(24)]
    writes = [manager.write(4096 * (16 + n % 16), _lines(rng, 64)) for n in range(24)]
    first, then = (writes, reads) if held == "r" else (reads, writes)
    for transfer in first:
        await transfer.ended.wait()
    assert not any(transfer.ended.is_set() for transfer in then)
    manager.stalls = {}
    for transfer in then:
        await transfer.ended.wait()
    await _read_all(manager)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def refresh_goes_on_while_read_data_are_refused(dut: Any) -> None:
    tb = TB(dut, TINY)
    await tb.reset()
    manager = tb.manager
    await manager.run(_fill(random.Random(12), range(4)))
    manager.hold_reads = True
    for page in range(4):
        assert manager._launch(Burst(False, 4096 * page, 64))
    cycles = 30 * PARTS[TINY].t_refi // 4
    for _ in range(50):
        await manager.step()
    await ClockCycles(dut.clk, cycles)
    manager.hold_reads = False
    await manager.run([])
    report, _ = await tb.check_record()
    assert report.counts["REF"] >= 30 - 8


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def refresh_when_idle(dut: Any) -> None:
    tb = TB(dut, TINY)
    await tb.reset()
    refi = PARTS[TINY].t_refi
    await ClockCycles(dut.clk, 100 * refi // 4)
    report, lines = await tb.check_record()
    # Eight are given in advance, then one falls due every tREFI.
    assert 106 <= report.counts["REF"] <= 109
    times = [int(line.split(",")[0]) for line in lines[40:]]
    gaps = np.diff(times)
    assert gaps.max() <= refi + 4
    assert report.counts["PREA"] == 0


@cocotb.test(timeout_time=20, timeout_unit="ms")
@cocotb.parametrize(prompt=[0, 1])
async def refresh_under_load(dut: Any, prompt: int) -> None:
    tb = TB(dut, TINY)
    await tb.reset()
    tb.port("prompt").value = prompt
    refi = PARTS[TINY].t_refi
    await tb.manager.run(Burst(False, 4096 * (count % 32), 64) for count in range(200))
    report, lines = await tb.check_record()
    times = [int(line.split(",")[0]) for line in lines[2:] if ",REF," in line]
    assert len(times) >= report.last_tck // refi - 8
    gaps = np.diff(times)
    if prompt:
        assert gaps.max() < refi + 400
        assert gaps.min() > 4 * PARTS[TINY].t_rfc // 4 + 100
    else:
        assert 7 * refi < report.longest_refresh_gap < 9 * refi
        # Given in rows of eight.
        assert np.sum(gaps < PARTS[TINY].t_rfc + 4) >= 6 * (len(times) // 8)


@cocotb.test(timeout_time=20, timeout_unit="ms")
@cocotb.parametrize(prompt=[0, 1])
async def work_goes_on_at_the_shortest_refresh_interval(dut: Any, prompt: int) -> None:
    """Bursts in many rows, with every refresh on time, which the device checks."""
    tb = TB(dut, TIGHT)
    assert tb.map is not None
    await tb.reset()
    tb.port("prompt").value = prompt
    rng = random.Random(prompt)
    bursts = [random_burst(rng, tb.map.capacity_bytes) for _ in range(300)]
    await tb.manager.run(bursts, limit=100_000)
    await ClockCycles(dut.clk, 10_000)
    assert not int(tb.port("violation").value)
    assert int(tb.port("refreshes").value) > 100


async def _stream(dut: Any, rounds: int, spread: int) -> tuple[TB, float]:
    tb = TB(dut, "stream")
    await tb.reset()
    dut.stream_rounds.value = rounds
    for tensor in range(4):
        getattr(dut, f"stream_base_{tensor}").value = tensor * ((1 << 22) + spread)
    dut.stream_start.value = 1
    await RisingEdge(dut.clk)
    dut.stream_start.value = 0
    await RisingEdge(dut.stream_done)
    cycles = dut.stream_cycles.value.to_unsigned()
    assert dut.stream_mismatches.value.to_unsigned() == 0
    share = rounds * 28 * 64 / cycles
    dut._log.info("%d rounds in %d fabric cycles: %.4f of the peak", rounds, cycles, share)
    return tb, share


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def throughput(dut: Any) -> None:
    """16 KB blocks of four tensors read, of three written, in different banks; with refresh.

    Refresh alone leaves 1 - tRFC / tREFI = 92.95 %.
    """
    tb, share = await _stream(dut, rounds=120, spread=32768)
    assert share >= 0.925
    report, _ = await tb.check_record()
    assert report.counts["RD"] == 120 * 16 * 64
    part = PARTS[report.preset]
    expected = report.last_tck // part.t_refi
    assert expected - 8 <= report.counts["REF"] <= expected + 8
    assert report.longest_refresh_gap <= 9 * part.t_refi


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def throughput_with_bank_conflicts(dut: Any) -> None:
    """All four tensors in the same banks: every block needs its rows after the one before."""
    tb, share = await _stream(dut, rounds=60, spread=0)
    assert share >= 0.90
    await tb.check_record()
