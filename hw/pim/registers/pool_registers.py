"""Registers of the pools on AXI4-Lite."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hw.axi.bus import AXI4LiteSignature
from hw.csr.axi4_lite import AXI4LiteSubordinate
from hw.csr.bank import CSR_DATA_WIDTH, CsrBank
from hw.csr.register_map import unrolled_registers
from hw.pim.config import PimConfig
from hw.pim.core.layouts import core_control_layout, core_status_layout
from hw.pim.memory.host_memory import host_status_layout
from hw.pim.rings.layouts import ring_control_layout, ring_status_layout
from hw.pim.work.status import StatusSignature, work_record_layout

__all__ = [
    "CORES_OFFSET_BYTES",
    "CORE_BYTES",
    "PIM_RDL",
    "REGISTERS_ADDR_WIDTH",
    "RINGS_OFFSET_BYTES",
    "RING_BYTES",
    "SLOTS_OFFSET_BYTES",
    "SLOT_BYTES",
    "PoolRegisters",
    "busy_window",
    "kept_window",
    "pool_text",
]

PIM_RDL = Path(__file__).parent / "pim.rdl"

REGISTERS_ADDR_WIDTH = 13
RINGS_OFFSET_BYTES = 0x800
"""Byte offset of the registers of ring 0."""
RING_BYTES = 64
"""Bytes from one ring's registers to those of the next."""
_HEAD = 0x10
"""Byte offset of a ring's register ``head``."""
CORES_OFFSET_BYTES = 0xC00
"""Byte offset of the registers of core 0."""
CORE_BYTES = 128
"""Bytes from one core's registers to those of the next."""
SLOTS_OFFSET_BYTES = 0x1000
"""Byte offset of the registers of slot 0."""
SLOT_BYTES = 128
"""Bytes from one slot's registers to those of the next."""


def pool_text(config: PimConfig) -> str:
    """Return the SystemRDL description of a pool's registers; its top is ``registers``."""
    cores = f"pim_core core[{config.cores}] @ {CORES_OFFSET_BYTES:#x} += {CORE_BYTES:#x};"
    return f"""{PIM_RDL.read_text()}
addrmap registers {{
    name = "Registers";
    pim_pool #(.BANKS({config.banks})) pool @ 0x0;
    pim_ring ring[{config.rings}] @ {RINGS_OFFSET_BYTES:#x} += {RING_BYTES:#x};
    {cores if config.cores else ""}
    pim_slot slot[{config.works}] @ {SLOTS_OFFSET_BYTES:#x} += {SLOT_BYTES:#x};
}};
"""


@lru_cache
def busy_window() -> range:
    """Return the byte addresses of the banks' busy cycles."""
    words = unrolled_registers("pim_pool", PIM_RDL.read_text())["busy"].places
    return range(words[0], words[-1] + 8)


@lru_cache
def kept_window() -> range:
    """Return the byte addresses of the last snapshot of a slot's registers."""
    start = unrolled_registers("pim_pool", PIM_RDL.read_text())["kept_id"].offset_bytes
    return range(start, start + SLOT_BYTES)


class PoolRegisters(wiring.Component):
    """Registers of ``pim.rdl``.

    ``pim_pool`` is at 0. There is a ``pim_ring`` for each ring from :data:`RINGS_OFFSET_BYTES` on,
    a ``pim_core`` for each core from :data:`CORES_OFFSET_BYTES` on, and a ``pim_slot`` for each
    slot from :data:`SLOTS_OFFSET_BYTES` on.

    Accesses to other addresses get SLVERR. A write sets the lower half of a register, with or
    without the upper half, so that 32-bit managers work on the 64-bit bus.

    Parameters
    ----------
    config
        The pool, for the geometry registers.

    Members
    -------
    s_axi : In(AXI4-Lite, ``REGISTERS_ADDR_WIDTH``, 64 bits)
    ring_control : Out(array of :func:`~hw.pim.rings.layouts.ring_control_layout`)
        The head of a core's ring equals its tail until the running core has written it.
    ring_status : In(array of :func:`~hw.pim.rings.layouts.ring_status_layout`)
    core_0_control, core_1_control, ... : Out(:func:`~hw.pim.core.layouts.core_control_layout`)
    core_0_status, core_1_status, ... : In(:func:`~hw.pim.core.layouts.core_status_layout`)
    notice : In(config.rings + config.cores)
        Pulse for each ring and each core: its interrupt becomes pending.
    irq : Out(config.rings + config.cores)
        The interrupts that are pending and enabled.
    status : In(:class:`~hw.pim.work.status.StatusSignature`)
    host : In(:func:`~hw.pim.memory.host_memory.host_status_layout`)
    """

    def __init__(self, config: PimConfig) -> None:
        self._config = config
        axi = AXI4LiteSignature(addr_width=REGISTERS_ADDR_WIDTH, data_width=CSR_DATA_WIDTH)
        cores: dict[str, Any] = {}
        for number in range(config.cores):
            cores[f"core_{number}_control"] = Out(core_control_layout())
            cores[f"core_{number}_status"] = In(core_status_layout())
        super().__init__(
            {
                "s_axi": In(axi),
                "ring_control": Out(data.ArrayLayout(ring_control_layout(), config.rings)),
                "ring_status": In(data.ArrayLayout(ring_status_layout(), config.rings)),
                **cores,
                "notice": In(config.rings + config.cores),
                "irq": Out(config.rings + config.cores),
                "status": In(StatusSignature(config)),
                "host": In(host_status_layout()),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        registers = unrolled_registers("registers", pool_text(self._config), selected="slot")
        m.submodules.lite = lite = AXI4LiteSubordinate(addr_width=REGISTERS_ADDR_WIDTH, lower=True)
        m.submodules.bank = bank = CsrBank(registers, addr_width=REGISTERS_ADDR_WIDTH)
        wiring.connect(m, wiring.flipped(self.s_axi), lite.s_axi)
        wiring.connect(m, lite.bus, bank.bus)
        self._connect_pool(m, bank)
        for number in range(self._config.rings):
            self._connect_ring(m, bank, number)
        for number in range(self._config.cores):
            self._connect_core(m, bank, number)

        # The address selects a slot, or the bank whose busy cycles are read.
        address, status = lite.bus.address, self.status
        snapping = address >> 3 == registers["pool_snapshot"].offset_bytes >> 3
        slot = address >> exact_log2(SLOT_BYTES)
        kept = Signal(work_record_layout(self._config))
        m.d.comb += [
            status.select.eq(Mux(snapping, lite.bus.write_data, slot)),
            status.bank.eq(address >> 3),
            bank.pool_busy_data.eq(status.busy),
        ]
        with m.If(snapping & lite.bus.write):
            m.d.sync += kept.eq(status.record)
        self._connect_slot(m, bank, "slot", status.record)
        self._connect_slot(m, bank, "pool_kept", kept)
        return m

    def _connect_pool(self, m: Any, bank: Any) -> None:
        config, status, host = self._config, self.status, self.host
        cores = [getattr(self, f"core_{number}_status") for number in range(config.cores)]
        idle_cores = Cat(core.running & core.idle for core in cores)
        m.d.comb += [
            bank.pool_geometry_rows.eq(config.rows),
            bank.pool_geometry_columns.eq(config.columns),
            bank.pool_geometry_works.eq(config.works),
            bank.pool_geometry_units.eq(config.units),
            bank.pool_geometry_rings.eq(config.rings),
            bank.pool_geometry_cores.eq(config.cores),
            bank.pool_bank_memory_bytes.eq(config.bank_bytes),
            bank.pool_idle_idle.eq(Cat(status.idle, idle_cores)),
            bank.pool_completed_completed.eq(status.completed),
            bank.pool_starts_count.eq(host.starts),
            bank.pool_host_errors_count.eq(host.errors),
            bank.pool_host_error_address.eq(host.address),
            bank.pool_host_error_write.eq(host.write),
            bank.pool_host_error_cause.eq(host.cause),
        ]

    def _connect_ring(self, m: Any, bank: Any, number: int) -> None:
        control, status = self.ring_control[number], self.ring_status[number]
        field = self._fields(m, bank, f"ring_{number}", "completions", number)
        # A core's reset empties its ring, until the core writes its head.
        is_filled: Any = Const(1)
        if 1 <= number <= self._config.cores:
            running = getattr(self, f"core_{number - 1}_status").running
            written = Signal(name=f"ring_{number}_written")
            place = RINGS_OFFSET_BYTES + RING_BYTES * number + _HEAD
            writes = bank.bus.write & (bank.bus.address >> 3 == place >> 3)
            m.d.sync += written.eq((written | writes) & running)
            is_filled = written & running
        m.d.comb += [
            control.base.eq(field("base_slot")),
            control.size.eq(field("size_log2")),
            control.head.eq(Mux(is_filled, field("head_count"), status.tail)),
            field("tail_count").eq(status.tail),
            field("tail_cause").eq(status.cause),
            field("tail_id").eq(status.id),
            field("completions_count").eq(status.completions),
            field("completions_id").eq(status.completed_id),
        ]

    def _connect_core(self, m: Any, bank: Any, number: int) -> None:
        control, status = (getattr(self, f"core_{number}_{name}") for name in ("control", "status"))
        field = self._fields(m, bank, f"core_{number}", "tail", self._config.rings + number)
        m.d.comb += [
            control.run.eq(field("control_run")),
            control.base.eq(field("window_base_beat")),
            control.size.eq(field("window_size_beats")),
            control.limit.eq(field("limit_cycles")),
            control.head.eq(field("head_count")),
            field("tail_count").eq(status.tail),
            *(
                field(f"status_{name}").eq(getattr(status, name))
                for name in ("running", "idle", "cause", "reason", "address")
            ),
        ]

    def _fields(self, m: Any, bank: Any, place: str, pending: str, line: int) -> Any:
        """Connect the interrupt of the registers at ``place``; return a getter of their fields."""

        def field(name: str) -> Any:
            return getattr(bank, f"{place}_{name}")

        m.d.comb += [
            field(f"{pending}_pending").eq(self.notice[line]),
            self.irq[line].eq(field(f"{pending}_pending_kept") & field("interrupt_enable")),
        ]
        return field

    @staticmethod
    def _connect_slot(m: Any, bank: Any, place: str, record: Any) -> None:
        """Connect the registers of a slot at ``place`` to ``record``."""
        for name in ("id", "state", "banks"):
            m.d.comb += getattr(bank, f"{place}_{name}_{name}").eq(record[name])
        for name, _ in record.counts.shape():
            m.d.comb += getattr(bank, f"{place}_{name}_count").eq(record.counts[name])
