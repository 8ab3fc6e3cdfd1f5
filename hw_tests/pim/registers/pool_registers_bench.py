"""cocotb tests of the pool's registers: every address, rings, cores, interrupts, snapshots."""

from __future__ import annotations

import logging
import random
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, ReadWrite, RisingEdge
from cocotbext.axi import AxiLiteBus, AxiLiteMaster, AxiResp

from hw.pim.config import configure
from hw.pim.core.layouts import core_control_layout, core_status_layout
from hw.pim.memory.host_memory import host_status_layout
from hw.pim.rings.layouts import ring_control_layout, ring_status_layout
from hw.pim.work.status import work_counts_layout, work_record_layout
from hw_tests.lite_master import LiteMaster
from hw_tests.streams import pack, unpack, value_of

CONFIG = configure("tiny", rings=3, cores=2)
RECORD, COUNTS = work_record_layout(CONFIG), work_counts_layout()
NAMES = ("id", "state", "banks", *(str(name) for name, _ in COUNTS))
SNAPSHOT, KEPT, BUSY, RINGS = 0x048, 0x200, 0x300, 0x800
BASE, SIZE, HEAD, TAIL, COMPLETIONS, INTERRUPT = range(0, 0x30, 8)
RING_BYTES, PENDING = 0x40, 1 << 16
CONTROLS = {BASE: ("base", 32), SIZE: ("size", 4), HEAD: ("head", 16)}
CORES, CORE_BYTES = 0xC00, 0x80
CORE_CONTROLS = {
    0: ("run", 1),
    8: ("base", 32),
    16: ("size", 32),
    24: ("limit", 32),
    32: ("head", 16),
}
CORE_TAIL, CORE_INTERRUPT, CORE_STATUS = 0x28, 0x30, 0x38
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
            for name, bits in (("idle", CONFIG.banks), ("completed", CONFIG.works))
        }
        self.rings = [
            {str(name): self.rng.getrandbits(field.width) for name, field in ring_status_layout()}
            for _ in range(CONFIG.rings)
        ]
        self.cores = [
            {"running": 1, "idle": core, "tail": 77 + core, "cause": 3 + core, "reason": 200 + core}
            | {"address": self.rng.getrandbits(32)}
            for core in range(CONFIG.cores)
        ]
        self.host = {
            "starts": self.rng.getrandbits(32),
            "errors": self.rng.getrandbits(32),
            "address": self.rng.getrandbits(48),
            "write": 1,
            "cause": 1,
        }
        self.busy = [self.rng.getrandbits(64) for _ in range(CONFIG.banks)]
        self.records = [self._record() for _ in range(CONFIG.works)]

    def _record(self) -> dict[str, int]:
        rng = self.rng
        counts = {str(name): rng.getrandbits(field.width) for name, field in COUNTS}
        banks = rng.getrandbits(CONFIG.banks)
        return {"id": rng.getrandbits(31), "state": rng.randrange(4), "banks": banks, **counts}

    async def reset(self) -> None:
        dut = self.dut
        cocotb.start_soon(Clock(dut.clk, 3200, unit="ps").start())
        dut.rst.value = 1
        dut.notice.value = 0
        rings = [pack(ring_status_layout(), **ring) for ring in self.rings]
        size = ring_status_layout().size
        dut.ring_status.value = sum(ring << size * index for index, ring in enumerate(rings))
        for index, core in enumerate(self.cores):
            getattr(dut, f"core_{index}_status").value = pack(core_status_layout(), **core)
        for name, value in self.values.items():
            getattr(dut, f"status_{name}").value = value
        dut.host.value = pack(host_status_layout(), **self.host)
        await ClockCycles(dut.clk, 4)
        dut.rst.value = 0
        cocotb.start_soon(self._run())

    async def _run(self) -> None:
        """Shows the bank that is selected."""
        dut = self.dut
        while True:
            await RisingEdge(dut.clk)
            # The bank that is selected in the cycle that begins.
            await ReadWrite()
            dut.status_busy.value = self.busy[value_of(dut.status_bank) % CONFIG.banks]

    async def show(self, slot: int) -> None:
        """Has ``status`` show a slot's record."""
        self.dut.status_record.value = packed(self.records[slot])
        await RisingEdge(self.dut.clk)

    def expected(self) -> dict[int, int]:
        """What every register reads as, by address."""
        values, config, host = self.values, CONFIG, self.host
        geometry = config.rows | config.columns << 8 | config.works << 16
        geometry |= config.units << 32 | config.rings << 48 | config.cores << 51
        pool = [int.from_bytes(b"HPIM", "little") | 5 << 32, geometry, config.bank_bytes]
        table = {8 * place: value for place, value in enumerate(pool)}
        idle = values["idle"] | 2 << config.banks
        pool = [idle, values["completed"], 0, host["starts"], host["errors"]]
        pool += [host["address"] | host["write"] << 48 | host["cause"] << 56]
        table |= {0x38 + 8 * place: value for place, value in enumerate(pool)}
        for index, ring in enumerate(self.rings):
            told = ring["tail"] | ring["cause"] << 16 | ring["id"] << 32
            ends = ring["completions"] | ring["completed_id"] << 32
            contents = (0, 0, 0, told, ends, 0)
            place = RINGS + RING_BYTES * index
            table |= {place + 8 * register: value for register, value in enumerate(contents)}
        for index, core in enumerate(self.cores):
            status = core["running"] | core["idle"] << 1 | core["cause"] << 4 | core["reason"] << 8
            contents = (0, 0, 0, 0, 0, core["tail"], 0, status | core["address"] << 32)
            place = CORES + CORE_BYTES * index
            table |= {place + 8 * register: value for register, value in enumerate(contents)}
        table |= {KEPT + 8 * place: 0 for place in range(len(NAMES))}
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
        assert value_of(dut.status_select) == slot
        await ClockCycles(dut.clk, 3)
        dut.s_axi_rready.value = 0


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def a_ring_of_a_core_is_empty_until_its_head_is_written(dut: Any) -> None:
    """That is, its head is its tail, from each reset of the core on; the host's keeps its head."""
    tb = TB(dut)
    await tb.reset()
    head = RINGS + HEAD
    tails = [ring["tail"] for ring in tb.rings]
    for ring in range(CONFIG.rings):
        assert await tb.master.write(head + RING_BYTES * ring, 1000 + ring) == 0
    await ClockCycles(dut.clk, 2)
    assert [control(tb, ring, "head") for ring in range(CONFIG.rings)] == [1000, 1001, 1002]
    for core in range(CONFIG.cores):
        held = pack(core_status_layout(), **tb.cores[core] | {"running": 0})
        getattr(dut, f"core_{core}_status").value = held
        await ClockCycles(dut.clk, 2)
        # What the core wrote before it was held may come late.
        assert await tb.master.write(head + RING_BYTES * (core + 1), 77) == 0
        assert control(tb, core + 1, "head") == tails[core + 1]
        getattr(dut, f"core_{core}_status").value = pack(core_status_layout(), **tb.cores[core])
        await ClockCycles(dut.clk, 2)
        assert control(tb, core + 1, "head") == tails[core + 1]
        assert await tb.master.write(head + RING_BYTES * (core + 1), 55) == 0
        await ClockCycles(dut.clk, 2)
        assert control(tb, core + 1, "head") == 55
    assert control(tb, 0, "head") == 1000


def control(tb: TB, ring: int, name: str) -> int:
    layout = ring_control_layout()
    return unpack(layout, value_of(tb.dut.ring_control) >> layout.size * ring)[name]


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def rings_are_written(dut: Any) -> None:
    """Each by itself, with all strobes or those of the lower half."""
    tb = TB(dut)
    await tb.reset()
    written = {(ring, name): 0 for ring in range(CONFIG.rings) for name, _ in CONTROLS.values()}
    # That of a core's ring is the tail until it is written.
    written |= {(ring, "head"): tb.rings[ring]["tail"] for ring in range(1, 1 + CONFIG.cores)}
    for turn in range(40):
        ring = tb.rng.randrange(CONFIG.rings)
        register, (name, bits) = tb.rng.choice(list(CONTROLS.items()))
        address = RINGS + RING_BYTES * ring + register
        value = tb.rng.getrandbits(64)
        for strobes in (0xF0, 0x07, 0x01, 0xF7):
            assert await tb.master.write(address, ~value & (1 << 64) - 1, strobes) == SLVERR
        assert await tb.master.write(address, value, (0x0F, 0xFF, 0x8F)[turn % 3]) == 0
        written[ring, name] = value % (1 << bits)
        await ClockCycles(dut.clk, 2)
        for key, kept in written.items():
            assert control(tb, *key) == kept
        assert await tb.master.read(address) == (written[ring, name], 0)
    for ring in range(CONFIG.rings, 4):
        for register in range(0, RING_BYTES, 8):
            address = RINGS + RING_BYTES * ring + register
            assert await tb.master.write(address, 1) == SLVERR
            assert await tb.master.read(address) == (0, SLVERR)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def cores_are_controlled(dut: Any) -> None:
    """Each by itself."""
    tb = TB(dut)
    await tb.reset()
    written = [dict.fromkeys((name for name, _ in CORE_CONTROLS.values()), 0) for _ in tb.cores]
    for _ in range(40):
        core, (register, (name, bits)) = (
            tb.rng.randrange(2),
            tb.rng.choice([*CORE_CONTROLS.items()]),
        )
        value = tb.rng.getrandbits(32)
        address = CORES + CORE_BYTES * core + register
        assert await tb.master.write(address, value, 0x0F) == 0
        written[core][name] = value % (1 << bits)
        assert await tb.master.read(address) == (written[core][name], 0)
        for index, values in enumerate(written):
            shown = value_of(getattr(dut, f"core_{index}_control"))
            assert unpack(core_control_layout(), shown) == values


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def accesses_in_a_row(dut: Any) -> None:
    tb = TB(dut)
    await tb.reset()
    kept = {
        RINGS + RING_BYTES * ring + register: (1 << bits) - 1
        for ring in range(CONFIG.rings)
        for register, (_, bits) in CONTROLS.items()
    }
    reads = [place for place in tb.expected() if place not in kept]
    await tb.master.in_a_row([*reads, SLOTS - 8], kept, seed=1)


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def a_manager_of_32_bits(dut: Any) -> None:
    """It writes what can be written in one access, and reads any half."""
    tb = TB(dut)
    for name in ("write_if", "read_if"):
        logging.getLogger(f"cocotb.{dut._name}.s_axi.{name}").setLevel(logging.WARNING)
    await tb.reset()
    master = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axi"), dut.clk, dut.rst)
    for name, (register, bits) in {
        "base": (BASE, 32),
        "size": (SIZE, 4),
        "head": (HEAD, 16),
    }.items():
        for ring in range(CONFIG.rings):
            value = tb.rng.getrandbits(32)
            await master.write_dword(RINGS + RING_BYTES * ring + register, value)
            await ClockCycles(dut.clk, 2)
            assert control(tb, ring, name) == value % (1 << bits)
    dut.status_record.value = packed(tb.records[1])
    await master.write_dword(SNAPSHOT, 1)
    dut.status_record.value = packed(tb.records[2])
    for place, name in enumerate(NAMES):
        low, high = [await master.read_dword(KEPT + 8 * place + half) for half in (0, 4)]
        assert low | high << 32 == tb.records[1][name]
    refused = await master.write(BASE + RINGS + 4, b"1234")
    assert refused.resp == AxiResp.SLVERR


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def no_interrupt_is_lost(dut: Any) -> None:
    """In whatever cycle a completion meets the write that clears, it is pending afterwards unless
    it came before the write."""
    tb = TB(dut)
    await tb.reset()
    assert value_of(dut.irq) == 0
    rings = [RINGS + RING_BYTES * ring for ring in range(CONFIG.rings)]
    cores = [CORES + CORE_BYTES * core for core in range(CONFIG.cores)]
    places = [(each + COMPLETIONS, each + INTERRUPT) for each in rings]
    places += [(each + CORE_TAIL, each + CORE_INTERRUPT) for each in cores]
    counts = [ring["completions"] for ring in tb.rings] + [core["tail"] for core in tb.cores]
    for ring, (completions, interrupt) in enumerate(places):
        others = 0
        for delay in range(12):
            enable = delay % 3 != 2
            assert await tb.master.write(interrupt, enable) == 0
            dut.notice.value = 1 << ring
            await RisingEdge(dut.clk)
            dut.notice.value = 0
            await ClockCycles(dut.clk, 2)
            assert value_of(dut.irq) == enable << ring
            clear = cocotb.start_soon(tb.master.write(completions, PENDING))
            lines = []
            for cycle in range(14):
                dut.notice.value = int(cycle == delay) << ring
                await RisingEdge(dut.clk)
                lines.append(value_of(dut.irq))
            assert await clear == 0
            value, _ = await tb.master.read(completions)
            assert value & 0xFFFF == counts[ring]
            if enable:
                cleared = next((cycle for cycle, line in enumerate(lines) if not line), None)
                # A pulse in the cycle of the clearing write keeps the line high.
                assert bool(value & PENDING) == (cleared is None or delay >= cleared - 1)
                others += cleared is None
                assert lines[-1] == (value & PENDING) >> 16 << ring
            assert await tb.master.write(completions, PENDING) == 0
            assert await tb.master.read(completions) == (value & ~PENDING, 0)
        assert others == 1
    assert value_of(dut.irq) == 0


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def nothing_else_is_written(dut: Any) -> None:
    tb = TB(dut)
    await tb.reset()
    table = tb.expected()
    for address in [*range(0, 0x1000, 8), *range(SLOTS, SLOTS + 2 * SLOT_BYTES, 8)]:
        ring, register = divmod(address - RINGS, RING_BYTES)
        writable = 0 <= ring < CONFIG.rings and register in (*CONTROLS, INTERRUPT)
        core, register = divmod(address - CORES, CORE_BYTES)
        writable |= 0 <= core < CONFIG.cores and register in (*CORE_CONTROLS, CORE_INTERRUPT)
        if address != SNAPSHOT and not writable:
            known = address in table or (address >= SLOTS and address % SLOT_BYTES < 0x50)
            response = await tb.master.write(address, (1 << 64) - 1)
            assert response == (0 if known else SLVERR), hex(address)
    await ClockCycles(dut.clk, 3)
    for ring in range(CONFIG.rings):
        head = tb.rings[ring]["tail"] if 1 <= ring <= CONFIG.cores else 0
        values = {name: control(tb, ring, name) for name, _ in CONTROLS.values()}
        assert values == {"base": 0, "size": 0, "head": head}
    for address, value in table.items():
        assert await tb.master.read(address) == (value, 0)


async def moving(tb: TB, moments: list[dict[int, dict[str, int]]]) -> None:
    """Other counts in each slot in each cycle; ``moments`` has those of all cycles."""
    while True:
        await RisingEdge(tb.dut.clk)
        moments.append({slot: tb._record() for slot in range(CONFIG.works)})
        # The slot that is selected in the cycle that begins.
        await ReadWrite()
        tb.dut.status_record.value = packed(moments[-1][value_of(tb.dut.status_select)])


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
