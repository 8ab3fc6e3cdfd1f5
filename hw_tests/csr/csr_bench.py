"""Register bank and AXI4-Lite subordinate, against a model of the register map."""

from __future__ import annotations

import logging
import random
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge
from cocotbext.axi import AxiLiteBus, AxiLiteMaster, AxiResp

from hw_tests.lite_master import LiteMaster
from hw_tests.stalls import STALLS, pauses

MASK = (1 << 64) - 1
ELEMENTS = range(0x400, 0x460, 0x20)
WRITABLE = {0x040: 0xFFFFFFFF_0000001C, 0x080: 0x2} | dict.fromkeys(ELEMENTS, 0xFF)
RESET = {0x040: 0x12345678_00000014, 0x080: 0x2, 0x240: 0x810} | dict.fromkeys(ELEMENTS, 0x5A)
# What hardware holds, and what it shows of the one that is addressed.
TOLD = (0x200, *(each + 0x10 for each in ELEMENTS))
VIEWS = range(0x600, 0x6C0, 0x40)
WORDS = range(0x800, 0x828, 8)
REGISTERS = (0x000, *RESET, *TOLD, *VIEWS, *(each + 8 for each in VIEWS), *WORDS)


class Model:
    """What the registers read as."""

    def __init__(self) -> None:
        self.kept = dict(RESET)
        self.state = 0
        self.told = dict.fromkeys(TOLD, 0)

    def read(self, address: int) -> tuple[int, int]:
        """Value and response."""
        word = address & ~7
        if word not in REGISTERS:
            return 0, 2
        if word == 0x000:
            return 0xCAFE | self.state << 20, 0
        number = word // 8
        if word in WORDS:
            return number | (~number & 0x1FF) << 9, 0
        if word in VIEWS:
            return number, 0
        if word - 8 in VIEWS:
            return number << 32 | 7, 0
        return (self.kept | self.told)[word], 0

    def write(self, address: int, value: int, strobes: int = 0xFF) -> int:
        """Takes a write and returns the response."""
        word = address & ~7
        if word not in REGISTERS:
            return 2
        mask = sum(0xFF << 8 * byte for byte in range(8) if strobes >> byte & 1)
        if word == 0x240:
            self.kept[word] &= ~(value & mask)
        elif word in self.kept:
            self.kept[word] = (self.kept[word] & ~mask | value & mask) & WRITABLE[word]
        return 0


class Bench:
    def __init__(self, dut: Any) -> None:
        self.dut = dut
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.model = Model()
        self.pulses = self.writes = 0
        dut.id_state.value = 0
        for signal in self.told():
            signal.value = 0
        dut.events_seen.value = dut.events_now.value = 0

    async def reset(self) -> None:
        self.dut.rst.value = 1
        cocotb.start_soon(Clock(self.dut.clk, 2, unit="ns").start())
        await ClockCycles(self.dut.clk, 3)
        self.dut.rst.value = 0
        await RisingEdge(self.dut.clk)
        cocotb.start_soon(self._watch())

    async def _watch(self) -> None:
        while True:
            await RisingEdge(self.dut.clk)
            self.pulses += int(self.dut.control_go.value)
            self.writes += int(self.dut.write.value)

    def told(self) -> list[Any]:
        """The ports of :data:`TOLD`."""
        names = ("counter_count", *(f"element_{number}_other_told" for number in range(3)))
        return [getattr(self.dut, name) for name in names]

    def change_inputs(self) -> None:
        self.model.state = self.rng.randrange(16)
        self.dut.id_state.value = self.model.state
        for place, signal in zip(TOLD, self.told(), strict=True):
            self.model.told[place] = self.rng.getrandbits(len(signal))
            signal.value = self.model.told[place]

    def check_outputs(self) -> None:
        dut, kept = self.dut, self.model.kept
        assert int(dut.setting_low.value) == kept[0x040] >> 2 & 7
        assert int(dut.setting_high.value) == kept[0x040] >> 32
        assert int(dut.control_kept.value) == kept[0x080] >> 1
        for number, place in enumerate(ELEMENTS):
            assert int(getattr(dut, f"element_{number}_own_kept").value) == kept[place]

    def address(self) -> int:
        """Mostly registers, but any word, and any byte of it, may be meant."""
        if self.rng.random() < 0.7:
            word = self.rng.choice((0x040, 0x080, 0x240, *self.rng.choices(REGISTERS, k=3)))
            return word + self.rng.choice((0, 0, 0, 4, 7, 8, 32))
        return self.rng.randrange(1 << 12)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def resets_and_lists(dut: Any) -> None:
    """Every address of the window after a reset."""
    bench = Bench(dut)
    master = LiteMaster(dut, "s_axi", dut.clk)
    await bench.reset()
    bench.check_outputs()
    for address in range(0, 1 << 12, 8):
        assert await master.read(address) == bench.model.read(address), hex(address)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def random_accesses(dut: Any) -> None:
    """Values, responses and ports, with address and data in any order and late answers."""
    bench = Bench(dut)
    master = LiteMaster(dut, "s_axi", dut.clk)
    await bench.reset()
    expected_pulses = expected_writes = 0
    for _ in range(1500):
        bench.change_inputs()
        master.data_delay = bench.rng.choice((0, 0, 0, 1, 3, -1, -4))
        master.ready_delay = bench.rng.choice((0, 0, 1, 5))
        address = bench.address()
        if bench.rng.random() < 0.5:
            assert await master.read(address) == bench.model.read(address), hex(address)
            continue
        value = bench.rng.getrandbits(64)
        strobes = bench.rng.choice((0xFF, 0xFF, 0x0F, 0xF0, bench.rng.randrange(256), 0))
        response = await master.write(address, value, strobes)
        assert response == bench.model.write(address, value, strobes), hex(address)
        await RisingEdge(dut.clk)
        bench.check_outputs()
        if response == 0 and strobes:
            expected_writes += 1
            expected_pulses += address & ~7 == 0x080 and value & strobes & 1
    await RisingEdge(dut.clk)
    assert bench.writes == expected_writes
    assert bench.pulses == expected_pulses
    assert expected_pulses > 5


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def accesses_in_a_row(dut: Any) -> None:
    bench = Bench(dut)
    await bench.reset()
    kept = {place: WRITABLE[place] for place in (0x040, *ELEMENTS)}
    reads = [*(place for place in REGISTERS if place not in WRITABLE), 0x048, 0xFF8]
    await LiteMaster(dut, "s_axi", dut.clk).in_a_row(reads, kept, seed=cocotb.RANDOM_SEED)


@cocotb.test(timeout_time=4, timeout_unit="ms")
@cocotb.parametrize(stalls=list(STALLS))
async def other_master(dut: Any, stalls: str) -> None:
    """Reads and writes at the same time, from a manager that is not ours."""
    logging.getLogger(f"cocotb.{dut._name}.s_axi").setLevel(logging.WARNING)
    bench = Bench(dut)
    master = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axi"), dut.clk, dut.rst)
    for side in (master.write_if, master.read_if):
        side.log.setLevel(logging.WARNING)
    await bench.reset()
    if STALLS[stalls]:
        channels = (
            master.write_if.aw_channel, master.write_if.w_channel, master.write_if.b_channel,
            master.read_if.ar_channel, master.read_if.r_channel,
        )  # fmt: skip
        for index, channel in enumerate(channels):
            channel.set_pause_generator(pauses(STALLS[stalls], index))
    for _ in range(60):
        value = bench.rng.getrandbits(64) & ~1
        bench.change_inputs()
        write = cocotb.start_soon(master.write(0x040, value.to_bytes(8, "little")))
        read = cocotb.start_soon(master.read(0x200, 8))
        assert (await write).resp == AxiResp.OKAY
        assert int.from_bytes((await read).data, "little") == bench.model.told[0x200]
        bench.model.write(0x040, value)
        got = await master.read(0x040, 8)
        assert (int.from_bytes(got.data, "little"), got.resp) == bench.model.read(0x040)
        bench.check_outputs()
    assert (await master.write(0x048, bytes(8))).resp == AxiResp.SLVERR
    assert (await master.read(0xFF8, 8)).resp == AxiResp.SLVERR


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def no_edge_is_lost(dut: Any) -> None:
    """Bits that hardware sets in the cycles around a write of ones: of as many pulses as come, each
    is seen, once it was cleared before."""
    bench = Bench(dut)
    master = LiteMaster(dut, "s_axi", dut.clk)
    await bench.reset()
    assert await master.read(0x240) == (0x810, 0)
    assert await master.write(0x240, 0x010) == 0
    assert await master.read(0x240) == (0x800, 0)
    dut.events_now.value = 9
    assert await master.read(0x240) == (0x9800, 0)
    assert await master.write(0x240, MASK) == 0
    assert await master.read(0x240) == (0x9000, 0)
    met = 0
    for delay in range(12):
        dut.events_seen.value = 0x42
        await RisingEdge(dut.clk)
        dut.events_seen.value = 0
        write = cocotb.start_soon(master.write(0x240, 0xFF0))
        kept = []
        for cycle in range(14):
            dut.events_seen.value = 0x02 if cycle == delay else 0
            await RisingEdge(dut.clk)
            kept.append(int(dut.events_seen_kept.value))
        assert await write == 0
        cleared = next(cycle for cycle, bits in enumerate(kept) if not bits & 0x40)
        # The pulse is seen from the cycle after it on, until a later write.
        met += cleared == delay + 1
        assert kept[0] == 0x42
        assert kept[-1] == (0x02 if delay + 1 >= cleared else 0), (delay, cleared)
        assert all(bits & 0x02 for bits in kept[delay + 1 : max(delay + 1, cleared)])
        assert await master.write(0x240, 0xFF0) == 0
    assert met == 1
