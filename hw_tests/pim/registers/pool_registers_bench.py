"""cocotb tests of the pool's registers: every address, the descriptor's window, refusals."""

from __future__ import annotations

import random
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, ReadWrite, RisingEdge

from hw.pim.config import COUNTINGS, PIM_PRESETS
from hw.pim.memory.host_memory import host_status_layout
from hw.pim.work.status import work_counts_layout, work_record_layout
from hw_tests.lite_master import LiteMaster
from hw_tests.streams import pack

CONFIG = PIM_PRESETS["tiny"]
RECORD, COUNTS = work_record_layout(CONFIG), work_counts_layout()
NAMES = ("id", "state", "banks", *(str(name) for name, _ in COUNTS))
SUBMIT, STATUS, SNAPSHOT, DESCRIPTOR, KEPT, BUSY = 0x018, 0x020, 0x048, 0x100, 0x200, 0x300
SLOTS, SLOT_BYTES = 0x1000, 0x80
SLVERR = 2


class TB:
    """The registers after reset, with values in place of the scheduler's and the front's."""

    def __init__(self, dut: Any) -> None:
        self.dut = dut
        self.rng = random.Random(1)
        self.master = LiteMaster(dut, "s_axi", dut.clk)
        self.values = {
            name: self.rng.getrandbits(bits)
            for name, bits in (("cause", 4), ("id", 31), ("idle", CONFIG.banks))
        }
        self.values["completed"] = self.rng.getrandbits(CONFIG.works)
        self.host = {
            "starts": self.rng.getrandbits(32),
            "errors": self.rng.getrandbits(32),
            "address": self.rng.getrandbits(48),
            "write": 1,
            "cause": 1,
        }
        self.busy = [self.rng.getrandbits(64) for _ in range(CONFIG.banks)]
        self.records = [self._record() for _ in range(CONFIG.works)]
        self.written: list[tuple[int, int]] = []
        self.submits = 0

    def _record(self) -> dict[str, int]:
        rng = self.rng
        counts = {str(name): rng.getrandbits(field.width) for name, field in COUNTS}
        banks = rng.getrandbits(CONFIG.banks)
        return {"id": rng.getrandbits(31), "state": rng.randrange(4), "banks": banks, **counts}

    async def reset(self) -> None:
        dut = self.dut
        cocotb.start_soon(Clock(dut.clk, 3200, unit="ps").start())
        dut.rst.value = 1
        dut.busy.value = 0
        for name, value in self.values.items():
            getattr(dut, f"status_{name}").value = value
        dut.host.value = pack(host_status_layout(), **self.host)
        await ClockCycles(dut.clk, 4)
        dut.rst.value = 0
        cocotb.start_soon(self._run())

    async def _run(self) -> None:
        """Shows the bank that is selected, and keeps what is written."""
        dut = self.dut
        while True:
            await RisingEdge(dut.clk)
            self.submits += int(dut.submit.value)
            if int(dut.descriptor_write_enable.value):
                place = int(dut.descriptor_write_index.value)
                self.written.append((place, int(dut.descriptor_write_data.value)))
            # The bank that is selected in the cycle that begins.
            await ReadWrite()
            dut.status_busy.value = self.busy[int(dut.status_bank.value) % CONFIG.banks]

    async def show(self, slot: int) -> None:
        """Has ``status`` show a slot's record."""
        self.dut.status_record.value = packed(self.records[slot])
        await RisingEdge(self.dut.clk)

    def expected(self) -> dict[int, int]:
        """What every register reads as, by address."""
        values, config, host = self.values, CONFIG, self.host
        geometry = config.rows | config.columns << 8 | config.works << 16
        geometry |= COUNTINGS.index(config.counting) << 24 | config.units << 32
        pool = [int.from_bytes(b"HPIM", "little") | 3 << 32, geometry, config.bank_bytes, 0, 0]
        pool += [values[name] for name in ("cause", "id", "idle", "completed")]
        pool += [0, host["starts"], host["errors"]]
        pool += [host["address"] | host["write"] << 48 | host["cause"] << 56]
        table = {8 * place: value for place, value in enumerate(pool)}
        table |= {KEPT + 8 * place: 0 for place in range(len(NAMES))}
        table |= {DESCRIPTOR + 8 * place: 0 for place in range(24)}
        table |= {BUSY + 8 * bank: cycles for bank, cycles in enumerate(self.busy)}
        return table


def packed(record: dict[str, int]) -> int:
    counts = pack(COUNTS, **{str(name): record[str(name)] for name, _ in COUNTS})
    named = {name: record[name] for name in ("id", "state", "banks")}
    return pack(RECORD, counts=counts, **named)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def every_address(dut: Any) -> None:
    tb = TB(dut)
    await tb.reset()
    table = tb.expected()
    for address in range(0, SLOTS, 8):
        value, response = await tb.master.read(address)
        expected = (table[address], 0) if address in table else (0, SLVERR)
        assert (value, response) == expected, hex(address)
    for slot in range(8):
        if slot < CONFIG.works:
            await tb.show(slot)
        for offset in range(0, SLOT_BYTES, 8):
            value, response = await tb.master.read(SLOTS + slot * SLOT_BYTES + offset)
            if slot < CONFIG.works and offset // 8 < len(NAMES):
                assert (value, response) == (tb.records[slot][NAMES[offset // 8]], 0)
            else:
                assert (value, response) == (0, SLVERR)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def slots_are_selected(dut: Any) -> None:
    """A read is of the slot whose address it has."""
    tb = TB(dut)
    await tb.reset()
    for slot in (2, 0, 3, 1):
        dut.s_axi_araddr.value = SLOTS + slot * SLOT_BYTES
        dut.s_axi_arvalid.value = 1
        await ClockCycles(dut.clk, 1)
        dut.s_axi_arvalid.value = 0
        await ClockCycles(dut.clk, 1)
        dut.s_axi_rready.value = 1
        await RisingEdge(dut.clk)
        assert int(dut.status_select.value) == slot
        await ClockCycles(dut.clk, 3)
        dut.s_axi_rready.value = 0


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def works_are_offered(dut: Any) -> None:
    tb = TB(dut)
    await tb.reset()
    words = [tb.rng.getrandbits(64) for _ in range(24)]
    for place, word in enumerate(words):
        assert await tb.master.write(DESCRIPTOR + 8 * place, word) == 0
    assert tb.written == list(enumerate(words))
    assert tb.submits == 0
    for register in (DESCRIPTOR, SUBMIT, SNAPSHOT):
        for strobes in (0x0F, 0xF0, 0x01):
            assert await tb.master.write(register, tb.rng.getrandbits(64) | 1, strobes) == SLVERR
    await ClockCycles(dut.clk, 3)
    assert (len(tb.written), tb.submits) == (24, 0)
    assert await tb.master.write(SUBMIT, 0) == 0
    assert tb.submits == 0
    assert await tb.master.write(SUBMIT, 1) == 0
    await ClockCycles(dut.clk, 3)
    assert tb.submits == 1

    dut.busy.value = 1
    await RisingEdge(dut.clk)
    assert await tb.master.read(STATUS) == (1, 0)
    assert await tb.master.write(DESCRIPTOR, 1) == SLVERR
    assert await tb.master.write(DESCRIPTOR + 8 * 23, 1) == SLVERR
    assert await tb.master.write(SUBMIT, 1) == SLVERR
    assert await tb.master.read(0x028) == (tb.values["cause"], 0)
    await ClockCycles(dut.clk, 3)
    assert (len(tb.written), tb.submits) == (24, 1)
    dut.busy.value = 0
    await RisingEdge(dut.clk)
    assert await tb.master.write(SUBMIT, 1) == 0
    await ClockCycles(dut.clk, 3)
    assert tb.submits == 2


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def busy_from_the_start(dut: Any) -> None:
    """A submission is seen as busy before the front says so."""
    tb = TB(dut)
    await tb.reset()
    dut.s_axi_awaddr.value = dut.s_axi_araddr.value = SUBMIT
    dut.s_axi_wdata.value, dut.s_axi_wstrb.value = 1, 0xFF
    dut.s_axi_awvalid.value = dut.s_axi_wvalid.value = 1
    await RisingEdge(dut.clk)
    dut.s_axi_awvalid.value = dut.s_axi_wvalid.value = 0
    dut.s_axi_araddr.value = STATUS
    dut.s_axi_arvalid.value = 1
    await RisingEdge(dut.clk)
    dut.s_axi_arvalid.value = 0
    dut.s_axi_rready.value = dut.s_axi_bready.value = 1
    await RisingEdge(dut.clk)
    assert int(dut.submit.value)
    await RisingEdge(dut.clk)
    assert int(dut.s_axi_rvalid.value)
    assert int(dut.s_axi_rdata.value) == 1
    await ClockCycles(dut.clk, 2)
    assert not int(dut.s_axi_rvalid.value)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def nothing_else_is_written(dut: Any) -> None:
    tb = TB(dut)
    await tb.reset()
    table = tb.expected()
    for address in [*range(0, 0x400, 8), *range(SLOTS, SLOTS + 2 * SLOT_BYTES, 8)]:
        if address not in (SUBMIT, SNAPSHOT) and not DESCRIPTOR <= address < DESCRIPTOR + 192:
            known = address in table or (address >= SLOTS and address % SLOT_BYTES < 0x50)
            response = await tb.master.write(address, (1 << 64) - 1)
            assert response == (0 if known else SLVERR), hex(address)
    await ClockCycles(dut.clk, 3)
    assert (tb.written, tb.submits) == ([], 0)
    for address, value in table.items():
        assert await tb.master.read(address) == (value, 0)


async def moving(tb: TB, moments: list[dict[int, dict[str, int]]]) -> None:
    """Other counts in each slot in each cycle; ``moments`` has those of all cycles."""
    while True:
        await RisingEdge(tb.dut.clk)
        moments.append({slot: tb._record() for slot in range(CONFIG.works)})
        # The slot that is selected in the cycle that begins.
        await ReadWrite()
        tb.dut.status_record.value = packed(moments[-1][int(tb.dut.status_select.value)])


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def a_snapshot_is_of_one_cycle(dut: Any) -> None:
    """Whatever time a reader takes, and with a slot's number or an id of it."""
    tb = TB(dut)
    await tb.reset()
    dut.status_record.value = 0
    moments: list[dict[int, dict[str, int]]] = []
    cocotb.start_soon(moving(tb, moments))
    await RisingEdge(dut.clk)
    for turn in range(40):
        slot = tb.rng.randrange(CONFIG.works)
        tb.master.ready_delay, tb.master.data_delay = tb.rng.choice((0, 0, 7)), turn % 5 - 2
        before = len(moments)
        work = slot + CONFIG.works * tb.rng.choice((0, 1, 12345))
        assert await tb.master.write(SNAPSHOT, work) == 0
        after = len(moments)
        read = {}
        for name in tb.rng.sample(NAMES, len(NAMES)):
            await ClockCycles(dut.clk, tb.rng.choice((1, 1, 50)))
            read[name], response = await tb.master.read(KEPT + 8 * NAMES.index(name))
            assert response == 0
        assert read in [moment[slot] for moment in moments[before:after]]
        # The slots themselves go on.
        live = await tb.master.read(SLOTS + slot * SLOT_BYTES + 8 * NAMES.index("cycles"))
        assert live[0] != read["cycles"]
