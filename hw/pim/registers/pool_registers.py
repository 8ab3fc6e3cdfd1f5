"""The registers of the pools on AXI4-Lite."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from systemrdl.compiler import RDLCompiler

from hw.axi.bus import AXI4LiteSignature
from hw.csr.axi4_lite import AXI4LiteSubordinate
from hw.csr.bank import CSR_DATA_WIDTH, CsrBank
from hw.csr.register_map import load_registers
from hw.pim.config import COUNTINGS, PimConfig
from hw.pim.front.words import WordWriteSignature
from hw.pim.memory.host_memory import host_status_layout
from hw.pim.work.status import StatusSignature, work_record_layout

__all__ = [
    "PIM_RDL",
    "REGISTERS_ADDR_WIDTH",
    "SLOTS_OFFSET_BYTES",
    "SLOT_BYTES",
    "PoolRegisters",
    "busy_window",
    "descriptor_window",
    "kept_window",
]

PIM_RDL = Path(__file__).parent / "pim.rdl"

_SLOT_BITS = 7
_SLOTS_BITS = 12

REGISTERS_ADDR_WIDTH = _SLOTS_BITS + 1
SLOTS_OFFSET_BYTES = 1 << _SLOTS_BITS
"""Where the registers of slot 0 begin."""
SLOT_BYTES = 1 << _SLOT_BITS
"""From one slot's registers to those of the next."""


@lru_cache
def descriptor_window() -> range:
    """The addresses to which the words of a descriptor are written."""
    return _memory_window("descriptor")


@lru_cache
def busy_window() -> range:
    """The addresses of the cycles in which each bank was busy."""
    return _memory_window("busy")


@lru_cache
def kept_window() -> range:
    """The addresses of the registers of a slot as they were at the last snapshot."""
    start = _window("kept").address_offset
    return range(start, start + SLOT_BYTES)


def _memory_window(name: str) -> range:
    window = _window(name)
    return range(window.address_offset, window.address_offset + window.size)


def _window(name: str) -> Any:
    """What the pool's registers have of this name."""
    compiler = RDLCompiler()
    compiler.compile_file(str(PIM_RDL))
    return compiler.elaborate(top_def_name="pim_pool").top.get_child_by_name(name)


class PoolRegisters(wiring.Component):
    """The registers that ``pim.rdl`` describes: ``pim_pool`` at 0, ``pim_slot`` at
    :data:`SLOTS_OFFSET_BYTES` for each slot.

    Accesses where nothing is get SLVERR, and so do those to DESCRIPTOR and SUBMIT while ``busy``.

    Parameters
    ----------
    config
        The pool, for the geometry's registers.

    Members
    -------
    s_axi : In(AXI4-Lite, ``REGISTERS_ADDR_WIDTH``, 64 bits)
    descriptor_write : Out(:class:`~hw.pim.front.words.WordWriteSignature`)
    submit : Out(1)
        A pulse: the work in the descriptor is offered.
    busy : In(1)
        From the cycle after ``submit`` until ``status`` tells what became of the work.
    status : In(:class:`~hw.pim.work.status.StatusSignature`)
    host : In(:func:`~hw.pim.memory.host_memory.host_status_layout`)
    """

    s_axi: Any
    descriptor_write: Any
    submit: Any
    busy: Any
    status: Any
    host: Any

    def __init__(self, config: PimConfig) -> None:
        self._config = config
        axi = AXI4LiteSignature(addr_width=REGISTERS_ADDR_WIDTH, data_width=CSR_DATA_WIDTH)
        super().__init__(
            {
                "s_axi": In(axi),
                "descriptor_write": Out(WordWriteSignature()),
                "submit": Out(1),
                "busy": In(1),
                "status": In(StatusSignature(config)),
                "host": In(host_status_layout()),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.lite = lite = AXI4LiteSubordinate(addr_width=REGISTERS_ADDR_WIDTH)
        pool_map, slot_map = (load_registers(name, PIM_RDL) for name in ("pim_pool", "pim_slot"))
        m.submodules.pool = pool = CsrBank(pool_map, addr_width=_SLOTS_BITS)
        m.submodules.slot = slot = CsrBank(slot_map, addr_width=_SLOT_BITS)
        wiring.connect(m, wiring.flipped(self.s_axi), lite.s_axi)
        self._pool(m, pool)

        window, kept_at, busy_at = descriptor_window(), kept_window(), busy_window()
        write = self.descriptor_write
        submitting, snapping = (
            lite.address >> 3 == pool_map[name].offset_bytes >> 3 for name in ("submit", "snapshot")
        )
        number = lite.address[_SLOT_BITS:_SLOTS_BITS]
        of_slots = lite.address[_SLOTS_BITS]
        kept = Signal(work_record_layout(self._config))
        self._slot(m, slot, of_slots, kept)
        m.d.comb += [
            pool.address.eq(lite.address),
            slot.address.eq(lite.address),
            pool.write_data.eq(lite.write_data),
            write.index.eq((lite.address - window.start) >> 3),
            write.data.eq(lite.write_data),
            self.status.select.eq(Mux(snapping, lite.write_data, number)),
            self.status.bank.eq(lite.address[3:8]),
        ]
        with m.If(snapping & lite.write):
            m.d.sync += kept.eq(self.status.record)
        with m.If(of_slots):
            m.d.comb += [
                lite.hit.eq(slot.hit & (number < self._config.works)),
                lite.read_data.eq(slot.read_data),
            ]
        with m.Elif((lite.address >= window.start) & (lite.address < window.stop)):
            m.d.comb += [lite.hit.eq(~pool.status_busy), write.enable.eq(lite.write)]
        with m.Elif((lite.address >= kept_at.start) & (lite.address < kept_at.stop)):
            m.d.comb += [lite.hit.eq(slot.hit), lite.read_data.eq(slot.read_data)]
        with m.Elif((lite.address >= busy_at.start) & (lite.address < busy_at.stop)):
            m.d.comb += [
                lite.hit.eq(lite.address[3:8] < self._config.banks),
                lite.read_data.eq(self.status.busy),
            ]
        with m.Else():
            m.d.comb += [
                lite.hit.eq(pool.hit & ~(submitting & pool.status_busy)),
                lite.read_data.eq(pool.read_data),
                pool.write.eq(lite.write),
            ]
        return m

    def _pool(self, m: Any, pool: Any) -> None:
        config, status = self._config, self.status
        m.d.comb += [
            pool.geometry_rows.eq(config.rows),
            pool.geometry_columns.eq(config.columns),
            pool.geometry_works.eq(config.works),
            pool.geometry_counting.eq(COUNTINGS.index(config.counting)),
            pool.geometry_units.eq(config.units),
            pool.bank_memory_bytes.eq(config.bank_bytes),
            self.submit.eq(pool.submit_submit),
            pool.status_busy.eq(self.busy | pool.submit_submit),
            pool.cause_cause.eq(status.cause),
            pool.id_id.eq(status.id),
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
