"""The registers of the pools on AXI4-Lite."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from systemrdl.compiler import RDLCompiler

from hw.axi.bus import AXI4LiteSignature
from hw.csr.axi4_lite import AXI4LiteSubordinate
from hw.csr.bank import CSR_DATA_WIDTH, CsrBank
from hw.csr.register_map import load_registers
from hw.pim.config import COUNTINGS, PimConfig
from hw.pim.memory.host_memory import host_status_layout
from hw.pim.rings.layouts import ring_control_layout, ring_status_layout
from hw.pim.work.status import StatusSignature, work_record_layout

__all__ = [
    "PIM_RDL",
    "REGISTERS_ADDR_WIDTH",
    "RINGS_OFFSET_BYTES",
    "RING_BYTES",
    "SLOTS_OFFSET_BYTES",
    "SLOT_BYTES",
    "PoolRegisters",
    "busy_window",
    "kept_window",
]

PIM_RDL = Path(__file__).parent / "pim.rdl"

_RING_BITS = 6
_SLOT_BITS = 7
_SLOTS_BITS = 12

REGISTERS_ADDR_WIDTH = _SLOTS_BITS + 1
RINGS_OFFSET_BYTES = 0x800
"""Where the registers of ring 0 begin."""
RING_BYTES = 1 << _RING_BITS
"""From one ring's registers to those of the next."""
SLOTS_OFFSET_BYTES = 1 << _SLOTS_BITS
"""Where the registers of slot 0 begin."""
SLOT_BYTES = 1 << _SLOT_BITS
"""From one slot's registers to those of the next."""


@lru_cache
def busy_window() -> range:
    """The addresses of the cycles in which each bank was busy."""
    window = _window("busy")
    return range(window.address_offset, window.address_offset + window.size)


@lru_cache
def kept_window() -> range:
    """The addresses of the registers of a slot as they were at the last snapshot."""
    start = _window("kept").address_offset
    return range(start, start + SLOT_BYTES)


def _window(name: str) -> Any:
    """What the pool's registers have of this name."""
    compiler = RDLCompiler()
    compiler.compile_file(str(PIM_RDL))
    return compiler.elaborate(top_def_name="pim_pool").top.get_child_by_name(name)


class PoolRegisters(wiring.Component):
    """The registers that ``pim.rdl`` describes: ``pim_pool`` at 0, ``pim_ring`` at
    :data:`RINGS_OFFSET_BYTES` for each ring, ``pim_slot`` at :data:`SLOTS_OFFSET_BYTES` for each
    slot.

    Accesses where nothing is get SLVERR. What is written are lower halves of registers, with or
    without the upper ones, so that managers of 32 bits need no more than a bus of 64.

    Parameters
    ----------
    config
        The pool, for the geometry's registers.

    Members
    -------
    s_axi : In(AXI4-Lite, ``REGISTERS_ADDR_WIDTH``, 64 bits)
    ring_control : Out(array of :func:`~hw.pim.rings.layouts.ring_control_layout`)
    ring_status : In(array of :func:`~hw.pim.rings.layouts.ring_status_layout`)
    notice : In(config.rings)
        A pulse for each ring: its interrupt becomes pending.
    irq : Out(config.rings)
        Which are pending and enabled.
    status : In(:class:`~hw.pim.work.status.StatusSignature`)
    host : In(:func:`~hw.pim.memory.host_memory.host_status_layout`)
    """

    def __init__(self, config: PimConfig) -> None:
        self._config = config
        axi = AXI4LiteSignature(addr_width=REGISTERS_ADDR_WIDTH, data_width=CSR_DATA_WIDTH)
        super().__init__(
            {
                "s_axi": In(axi),
                "ring_control": Out(data.ArrayLayout(ring_control_layout(), config.rings)),
                "ring_status": In(data.ArrayLayout(ring_status_layout(), config.rings)),
                "notice": In(config.rings),
                "irq": Out(config.rings),
                "status": In(StatusSignature(config)),
                "host": In(host_status_layout()),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.lite = lite = AXI4LiteSubordinate(addr_width=REGISTERS_ADDR_WIDTH, lower=True)
        pool_map, slot_map = (load_registers(name, PIM_RDL) for name in ("pim_pool", "pim_slot"))
        m.submodules.pool = pool = CsrBank(pool_map, addr_width=_SLOTS_BITS)
        m.submodules.slot = slot = CsrBank(slot_map, addr_width=_SLOT_BITS)
        wiring.connect(m, wiring.flipped(self.s_axi), lite.s_axi)
        self._pool(m, pool)

        kept_at, busy_at = kept_window(), busy_window()
        snapping = lite.address >> 3 == pool_map["snapshot"].offset_bytes >> 3
        number = lite.address[_SLOT_BITS:_SLOTS_BITS]
        of_slots = lite.address[_SLOTS_BITS]
        kept = Signal(work_record_layout(self._config))
        self._slot(m, slot, of_slots, kept)
        m.d.comb += [
            pool.address.eq(lite.address),
            slot.address.eq(lite.address),
            pool.write_data.eq(lite.write_data),
            self.status.select.eq(Mux(snapping, lite.write_data, number)),
            self.status.bank.eq(lite.address[3:8]),
        ]
        with m.If(snapping & lite.write):
            m.d.sync += kept.eq(self.status.record)
        with m.If(of_slots), m.If(number < self._config.works):
            m.d.comb += [lite.hit.eq(slot.hit), lite.read_data.eq(slot.read_data)]
        with m.Elif((lite.address >= kept_at.start) & (lite.address < kept_at.stop)):
            m.d.comb += [lite.hit.eq(slot.hit), lite.read_data.eq(slot.read_data)]
        with (
            m.Elif((lite.address >= busy_at.start) & (lite.address < busy_at.stop)),
            m.If(lite.address[3:8] < self._config.banks),
        ):
            m.d.comb += [lite.hit.eq(1), lite.read_data.eq(self.status.busy)]
        with m.Else():
            m.d.comb += [
                lite.hit.eq(pool.hit),
                lite.read_data.eq(pool.read_data),
                pool.write.eq(lite.write),
            ]
        for index in range(self._config.rings):
            self._ring(m, index, lite)
        return m

    def _ring(self, m: Any, number: int, lite: Any) -> None:
        ring_map = load_registers("pim_ring", PIM_RDL)
        m.submodules[f"ring_{number}"] = ring = CsrBank(ring_map, addr_width=_RING_BITS)
        bank: Any = ring
        control, status = self.ring_control[number], self.ring_status[number]
        m.d.comb += [
            bank.address.eq(lite.address),
            bank.write_data.eq(lite.write_data),
            control.base.eq(bank.base_slot),
            control.size.eq(bank.size_log2),
            control.head.eq(bank.head_count),
            bank.tail_count.eq(status.tail),
            bank.tail_cause.eq(status.cause),
            bank.tail_id.eq(status.id),
            bank.completions_count.eq(status.completions),
            bank.completions_id.eq(status.completed_id),
            bank.completions_pending.eq(self.notice[number]),
            self.irq[number].eq(bank.completions_pending_kept & bank.interrupt_enable),
        ]
        place = RINGS_OFFSET_BYTES + number * RING_BYTES >> _RING_BITS
        with m.If(lite.address >> _RING_BITS == place):
            m.d.comb += [
                lite.hit.eq(bank.hit),
                lite.read_data.eq(bank.read_data),
                bank.write.eq(lite.write),
            ]

    def _pool(self, m: Any, pool: Any) -> None:
        config, status = self._config, self.status
        m.d.comb += [
            pool.geometry_rows.eq(config.rows),
            pool.geometry_columns.eq(config.columns),
            pool.geometry_works.eq(config.works),
            pool.geometry_counting.eq(COUNTINGS.index(config.counting)),
            pool.geometry_units.eq(config.units),
            pool.geometry_rings.eq(config.rings),
            pool.bank_memory_bytes.eq(config.bank_bytes),
            pool.idle_idle.eq(status.idle),
            pool.completed_completed.eq(status.completed),
            pool.starts_count.eq(self.host.starts),
            pool.host_errors_count.eq(self.host.errors),
            pool.host_error_address.eq(self.host.address),
            pool.host_error_write.eq(self.host.write),
            pool.host_error_cause.eq(self.host.cause),
        ]

    def _slot(self, m: Any, slot: Any, now: Any, kept: Any) -> None:
        """What a slot's registers read as: its state ``now``, or what was ``kept``."""
        record = Signal(kept.shape())
        m.d.comb += [
            record.eq(Mux(now, self.status.record, kept)),
            slot.id_id.eq(record.id),
            slot.state_state.eq(record.state),
            slot.banks_banks.eq(record.banks),
            *(
                getattr(slot, f"{name}_count").eq(record.counts[name])
                for name, _ in record.counts.shape()
            ),
        ]
