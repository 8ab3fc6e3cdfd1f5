"""The Adam kernel: from registers to tensors in memory."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axdimm.registers import WINDOW_ADDR_WIDTH, kernel_map
from hw.axi.bus import AXI4LiteSignature, AXI4Signature
from hw.csr.axi4_lite import AXI4LiteSubordinate
from hw.csr.bank import CSR_DATA_WIDTH, CsrBank
from hw.kernel.config import KernelConfig
from hw.kernel.lanes import AdamLanes
from hw.kernel.settings import CHECK_CYCLES, TENSORS, RunSettings
from hw.kernel.unit import AdamUnit
from hw.line import LINE_BITS
from hw.rules.adam import CONSTANTS, INPUTS, OUTPUTS
from hw.stream.axi_port import connect_axi
from hw.stream.block_loader import BlockLoader
from hw.stream.block_writer import BlockWriter
from hw.stream.fifo import StreamFifo

__all__ = ["AdamKernel"]


class AdamKernel(wiring.Component):
    """Updates parameters and optimizer state in memory (paper 3.3).

    Loading of round k+1, computing of round k and storing of round k-1 overlap; a round is one
    block of each tensor. The registers, and what they do, are those of ``axdimm_kernel`` in
    ``channel.rdl``. Beyond what is said there:

    - A START that is refused leaves ``done`` and the counters as they were.
    - ``busy`` covers the check of the settings; ``cycles`` counts the cycles of ``busy``.
    - The cause ``start_while_busy`` gives way to an error of the memory in the same run.
    - After an error of the memory no burst is issued any more; those issued are completed (data
      that was loaded with an error is not computed on), then ``busy`` falls and ``done`` rises.
    - The memory range of a tensor extends to the end of its last line of 64 bytes, which is read
      as a whole; bytes beyond the tensor are not written.

    Parameters
    ----------
    config
        What to build.
    unit
        The functional unit, by default Adam's; another update rule takes another unit, see
        :class:`~hw.kernel.lanes.AdamLanes`.

    Members
    -------
    s_axi : In(:class:`~hw.axi.bus.AXI4LiteSignature`)
        The registers: 64 bits, a window of 4 KB.
    m_axi : Out(:class:`~hw.axi.bus.AXI4Signature`)
        The memory: 512 bits, ``config.address_width`` address bits, one ID.
    busy : Out(1)
        A run is in progress.
    begins : Out(1)
        Pulse in the last cycle of a check that was passed.
    running : Out(1)
        The check is over and the run is not.
    """

    def __init__(self, config: KernelConfig, *, unit: Any = None) -> None:
        self._config = config
        self._unit = AdamUnit() if unit is None else unit
        super().__init__(
            {
                "s_axi": In(
                    AXI4LiteSignature(addr_width=WINDOW_ADDR_WIDTH, data_width=CSR_DATA_WIDTH)
                ),
                "m_axi": Out(AXI4Signature(addr_width=config.address_width, data_width=LINE_BITS)),
                "busy": Out(1),
                "begins": Out(1),
                "running": Out(1),
            }
        )

    @property
    def config(self) -> KernelConfig:
        """What the kernel was built for."""
        return self._config

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        config = self._config
        layout: dict[str, Any] = {
            "layout": config.rounds,
            "buffer_blocks": config.buffer_blocks,
            "addr_width": config.address_width,
        }
        csr = self._registers(m)
        m.submodules.settings = settings = RunSettings(config)
        m.submodules.loader = loader = BlockLoader(tensors=len(INPUTS), **layout)
        m.submodules.lanes = lanes = AdamLanes(config, unit=self._unit)
        m.submodules.writer = writer = BlockWriter(tensors=len(OUTPUTS), **layout)
        flush = Signal()
        for index, name in enumerate(INPUTS):
            self._fifo(m, f"{name}_in", loader.o[index], getattr(lanes.i, name), flush)
        for index, name in enumerate(OUTPUTS):
            self._fifo(m, f"{name}_out", getattr(lanes.o, name), writer.i[index], flush)
        connect_axi(m, self.m_axi, loader, writer)

        wiring.connect(m, settings.kept, lanes.constants)
        m.d.comb += [
            settings.count.eq(csr.count_count),
            *(
                address.eq(getattr(csr, f"{name}_address"))
                for name, address in zip(TENSORS, settings.addresses, strict=True)
            ),
            *(
                getattr(settings.constants, name).eq(getattr(csr, f"{name}_value"))
                for name in CONSTANTS
            ),
            *(
                target.eq(line)
                for target, line in zip((*loader.lines, *writer.lines), settings.lines, strict=True)
            ),
            writer.last_strobes.eq(settings.last_strobes),
            lanes.loaded.eq(loader.loaded),
            loader.freed.eq(lanes.consumed),
            writer.filled.eq(lanes.filled),
            lanes.stored.eq(writer.stored),
        ]
        self._run(m, csr, settings, loader, lanes, writer, flush)
        return m

    def _registers(self, m: Any) -> Any:
        m.submodules.csr = csr = CsrBank(kernel_map(), addr_width=WINDOW_ADDR_WIDTH)
        m.submodules.lite = lite = AXI4LiteSubordinate(addr_width=WINDOW_ADDR_WIDTH)
        wiring.connect(m, wiring.flipped(self.s_axi), lite.s_axi)
        m.d.comb += [
            csr.address.eq(lite.address),
            csr.write.eq(lite.write),
            csr.write_data.eq(lite.write_data),
            lite.read_data.eq(csr.read_data),
            lite.hit.eq(csr.hit),
        ]
        return csr

    def _fifo(self, m: Any, name: str, source: Any, target: Any, flush: Signal) -> None:
        fifo = StreamFifo(shape=LINE_BITS, depth=self._config.fifo_beats)
        m.submodules[f"fifo_{name}"] = fifo
        wiring.connect(m, source, fifo.i)
        wiring.connect(m, fifo.o, target)
        m.d.comb += fifo.flush.eq(flush)

    def _run(
        self, m: Any, csr: Any, settings: Any, loader: Any, lanes: Any, writer: Any, flush: Signal
    ) -> None:
        """From START to ``done``, and what the registers tell of it."""
        cause_of = kernel_map()["status"]["cause"].code
        axi = self.m_axi
        cause = Signal.like(csr.status_cause)
        done = Signal()
        failed = Signal()
        counters = cycles, beats_read, beats_written, idle_cycles = tuple(
            Signal.like(getattr(csr, f"{name}_count"), name=name)
            for name in ("cycles", "beats_read", "beats_written", "idle_cycles")
        )
        m.d.comb += [
            csr.status_busy.eq(self.busy),
            csr.status_done.eq(done),
            csr.status_cause.eq(cause),
            csr.status_error.eq(cause != cause_of("none")),
            *(getattr(csr, f"{counter.name}_count").eq(counter) for counter in counters),
        ]
        for part in (loader, lanes, writer):
            m.d.comb += [
                part.start.eq(self.begins),
                part.rounds.eq(settings.rounds),
                part.stop.eq(failed),
            ]

        read_beat = axi.rvalid & axi.rready
        write_beat = axi.wvalid & axi.wready
        with m.FSM(name="state") as fsm:
            m.d.comb += [
                self.busy.eq(~fsm.ongoing("IDLE")),
                self.running.eq(fsm.ongoing("RUN")),
            ]
            with m.State("IDLE"), m.If(csr.control_start):
                m.d.comb += settings.take.eq(1)
                m.d.sync += cause.eq(cause_of("none"))
                m.next = "CHECK"
            with m.State("CHECK"):
                m.d.comb += settings.check.eq(1)
                with m.If(csr.control_start):
                    m.d.sync += cause.eq(cause_of("start_while_busy"))
                with m.If(settings.fault != cause_of("none")):
                    m.d.sync += cause.eq(settings.fault)
                    m.next = "IDLE"
                with m.Elif(settings.last):
                    m.d.comb += self.begins.eq(1)
                    m.d.sync += [
                        failed.eq(0),
                        done.eq(0),
                        cycles.eq(CHECK_CYCLES),
                        idle_cycles.eq(CHECK_CYCLES),
                        beats_read.eq(0),
                        beats_written.eq(0),
                    ]
                    m.next = "RUN"
            with m.State("RUN"):
                m.d.sync += [
                    cycles.eq(cycles + 1),
                    beats_read.eq(beats_read + read_beat),
                    beats_written.eq(beats_written + write_beat),
                    idle_cycles.eq(idle_cycles + ~(read_beat | write_beat)),
                ]
                with m.If(csr.control_start & ~failed):
                    m.d.sync += cause.eq(cause_of("start_while_busy"))
                with m.If((loader.error | writer.error) & ~failed):
                    m.d.sync += [
                        failed.eq(1),
                        cause.eq(
                            Mux(loader.error, cause_of("read_error"), cause_of("write_error"))
                        ),
                    ]
                with m.If(loader.idle & lanes.idle & writer.idle):
                    m.d.comb += flush.eq(1)
                    m.d.sync += done.eq(1)
                    m.next = "IDLE"
