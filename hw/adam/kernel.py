"""The Adam kernel: from registers to tensors in memory."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.adam.config import COUNT_WIDTH, PARAMETERS_PER_BEAT, KernelConfig
from hw.adam.lanes import AdamLanes
from hw.adam.rule import CONSTANTS, INPUTS, OUTPUTS
from hw.adam.unit import AdamUnit
from hw.axdimm.registers import kernel_map
from hw.axi.bus import BURST_INCR, AXI4LiteSignature, AXI4Signature
from hw.csr.axi4_lite import AXI4LiteSubordinate
from hw.csr.bank import CSR_DATA_WIDTH, CsrBank
from hw.line import LINE_BITS, LINE_BYTE_BITS, LINE_BYTES, line_width
from hw.stream.block_loader import BlockLoader
from hw.stream.block_writer import BlockWriter
from hw.stream.fifo import StreamFifo

__all__ = ["CHECK_CYCLES", "CSR_ADDR_WIDTH", "AdamKernel"]

CSR_ADDR_WIDTH = 12
"""Width of the register addresses in bits: a window of 4 KB."""

LINE_BYTE_BITS = LINE_BYTE_BITS
_TENSORS = (*(f"{name}_in" for name in INPUTS), *(f"{name}_out" for name in OUTPUTS))


def _pairs_to_check() -> list[tuple[int, int, bool]]:
    """Each output with each input and each other output: two indices of ``_TENSORS``, and
    whether they may be the same tensor."""
    inputs = [(index, name) for index, name in enumerate(_TENSORS) if name.endswith("_in")]
    outputs = [(index, name) for index, name in enumerate(_TENSORS) if name.endswith("_out")]
    pairs = [
        (output, source, output_name.split("_")[0] == source_name.split("_")[0])
        for output, output_name in outputs
        for source, source_name in inputs
    ]
    pairs += [(first, second, False) for (first, _), (second, _) in combinations(outputs, 2)]
    return pairs


_PAIRS = _pairs_to_check()

CHECK_CYCLES = len(_TENSORS) + len(_PAIRS)
"""Fabric cycles that the check of the settings takes: one for each tensor and each pair."""


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
    config:
        What to build.
    unit:
        The functional unit, by default the Adam unit; see :class:`hw.adam.lanes.AdamLanes`.
    unit_name:
        Name of the unit's Verilog module.

    Members
    -------
    s_axi: AXI4-Lite, 64 bits, ``CSR_ADDR_WIDTH`` address bits: the registers, In
    m_axi: AXI4, 512 bits, ``config.address_width`` address bits, one ID: the memory, Out
    busy: a run is in progress, Out
    begins: pulse in the last cycle of a check that was passed, Out
    running: the check is over and the run is not, Out
    """

    def __init__(
        self, config: KernelConfig, *, unit: Any = None, unit_name: str = "adam_unit"
    ) -> None:
        self._config = config
        self._unit = AdamUnit() if unit is None else unit
        self._unit_name = unit_name
        super().__init__(
            {
                "s_axi": In(
                    AXI4LiteSignature(addr_width=CSR_ADDR_WIDTH, data_width=CSR_DATA_WIDTH)
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
        m = Module()
        config = self._config
        registers = kernel_map()
        cause_of = registers["status"]["cause"].code
        csr: Any = CsrBank(registers, addr_width=CSR_ADDR_WIDTH)
        m.submodules.csr = csr
        m.submodules.lite = lite = AXI4LiteSubordinate(addr_width=CSR_ADDR_WIDTH)
        wiring.connect(m, wiring.flipped(self.s_axi), lite.s_axi)
        m.d.comb += [
            csr.address.eq(lite.address),
            csr.write.eq(lite.write),
            csr.write_data.eq(lite.write_data),
            lite.read_data.eq(csr.read_data),
            lite.hit.eq(csr.hit),
        ]

        # The settings of the run, taken over at START. Addresses are line numbers from here on.
        full_line = Signal(COUNT_WIDTH - LINE_BYTE_BITS)
        lines = Array(
            Signal.like(full_line, name=f"line_{name}", reset_less=True) for name in _TENSORS
        )
        count = Signal(COUNT_WIDTH, reset_less=True)
        unaligned = Signal()
        constants = {name: Signal(32, name=name, reset_less=True) for name in CONSTANTS}
        beats = Signal(range((1 << COUNT_WIDTH) // PARAMETERS_PER_BEAT + 1))
        beats_before_last = Signal.like(beats)
        block_bits = config.block_beats.bit_length() - 1
        part_bits = PARAMETERS_PER_BEAT.bit_length() - 1
        rounds = Signal(config.rounds)
        last_strobes = Signal(LINE_BYTES)
        m.d.comb += [
            beats_before_last.eq((count - 1) >> part_bits),
            beats.eq(beats_before_last + 1),
            rounds.last_round.eq(beats_before_last >> block_bits),
            rounds.tail_beats.eq(beats_before_last[:block_bits] + 1),
            *(
                last_strobes.word_select(index, 4).eq(
                    Mux((count - 1)[:part_bits] >= index, 0b1111, 0)
                )
                for index in range(PARAMETERS_PER_BEAT)
            ),
        ]

        loader = BlockLoader(
            layout=config.rounds,
            tensors=len(INPUTS),
            buffer_blocks=config.buffer_blocks,
            addr_width=config.address_width,
        )
        writer = BlockWriter(
            layout=config.rounds,
            tensors=len(OUTPUTS),
            buffer_blocks=config.buffer_blocks,
            addr_width=config.address_width,
        )
        lanes = AdamLanes(config, unit=self._unit, unit_name=self._unit_name)
        m.submodules.loader = loader
        m.submodules.lanes = lanes
        m.submodules.writer = writer

        start_run, stop, flush = Signal(), Signal(), Signal()
        for index, name in enumerate(INPUTS):
            m.submodules[f"fifo_{name}_in"] = fifo = StreamFifo(
                shape=LINE_BITS, depth=config.fifo_beats
            )
            wiring.connect(m, loader.o[index], fifo.i)
            wiring.connect(m, fifo.o, getattr(lanes.i, name))
            m.d.comb += fifo.flush.eq(flush)
        for index, name in enumerate(OUTPUTS):
            m.submodules[f"fifo_{name}_out"] = fifo = StreamFifo(
                shape=LINE_BITS, depth=config.fifo_beats
            )
            wiring.connect(m, getattr(lanes.o, name), fifo.i)
            wiring.connect(m, fifo.o, writer.i[index])
            m.d.comb += fifo.flush.eq(flush)
        for part in (loader, lanes, writer):
            m.d.comb += [
                part.start.eq(start_run),
                part.rounds.eq(rounds),
                part.stop.eq(stop),
            ]
        memory_lines = line_width(config.address_width)
        m.d.comb += [
            *(loader.lines[index].eq(lines[index][:memory_lines]) for index in range(len(INPUTS))),
            *(
                writer.lines[index].eq(lines[len(INPUTS) + index][:memory_lines])
                for index in range(len(OUTPUTS))
            ),
            *(getattr(lanes.constants, name).eq(kept) for name, kept in constants.items()),
            writer.last_strobes.eq(last_strobes),
            lanes.loaded.eq(loader.loaded),
            loader.freed.eq(lanes.consumed),
            writer.filled.eq(lanes.filled),
            lanes.stored.eq(writer.stored),
        ]

        axi = self.m_axi
        size = LINE_BYTE_BITS
        m.d.comb += [
            axi.araddr.eq(loader.ar.payload.line << LINE_BYTE_BITS),
            axi.arlen.eq(loader.ar.payload.len),
            axi.arsize.eq(size),
            axi.arburst.eq(BURST_INCR),
            axi.arvalid.eq(loader.ar.valid),
            loader.ar.ready.eq(axi.arready),
            loader.r.payload.data.eq(axi.rdata),
            loader.r.payload.resp.eq(axi.rresp),
            loader.r.payload.last.eq(axi.rlast),
            loader.r.valid.eq(axi.rvalid),
            axi.rready.eq(loader.r.ready),
            axi.awaddr.eq(writer.aw.payload.line << LINE_BYTE_BITS),
            axi.awlen.eq(writer.aw.payload.len),
            axi.awsize.eq(size),
            axi.awburst.eq(BURST_INCR),
            axi.awvalid.eq(writer.aw.valid),
            writer.aw.ready.eq(axi.awready),
            axi.wdata.eq(writer.w.payload.data),
            axi.wstrb.eq(writer.w.payload.strb),
            axi.wlast.eq(writer.w.payload.last),
            axi.wvalid.eq(writer.w.valid),
            writer.w.ready.eq(axi.wready),
            writer.b.payload.eq(axi.bresp),
            writer.b.valid.eq(axi.bvalid),
            axi.bready.eq(writer.b.ready),
        ]

        # The check looks at one tensor, or at one pair, a cycle.
        step = Signal(range(CHECK_CYCLES))
        first, second = Signal.like(full_line), Signal.like(full_line)
        may_be_same, is_range_check = Signal(), Signal()
        with m.Switch(step):
            for index in range(len(_TENSORS)):
                with m.Case(index):
                    m.d.comb += [is_range_check.eq(1), first.eq(lines[index])]
            for index, (one, other, same) in enumerate(_PAIRS, len(_TENSORS)):
                with m.Case(index):
                    m.d.comb += [
                        first.eq(lines[one]),
                        second.eq(lines[other]),
                        may_be_same.eq(same),
                    ]
        out_of_range = first + beats > config.memory_bytes // LINE_BYTES
        overlap = (
            (first < second + beats) & (second < first + beats) & ~(may_be_same & (first == second))
        )

        cause = Signal(registers["status"]["cause"].width)
        done = Signal()
        failed = Signal()
        cycles, beats_read, beats_written, idle_cycles = (
            Signal(registers[name]["count"].width, name=name)
            for name in ("cycles", "beats_read", "beats_written", "idle_cycles")
        )
        m.d.comb += [
            csr.status_busy.eq(self.busy),
            csr.status_done.eq(done),
            csr.status_cause.eq(cause),
            csr.status_error.eq(cause != cause_of("none")),
            csr.cycles_count.eq(cycles),
            csr.beats_read_count.eq(beats_read),
            csr.beats_written_count.eq(beats_written),
            csr.idle_cycles_count.eq(idle_cycles),
            stop.eq(failed),
        ]

        read_beat = axi.rvalid & axi.rready
        write_beat = axi.wvalid & axi.wready
        with m.FSM(name="state") as fsm:
            m.d.comb += [
                self.busy.eq(~fsm.ongoing("IDLE")),
                self.running.eq(fsm.ongoing("RUN")),
                self.begins.eq(start_run),
            ]
            with m.State("IDLE"), m.If(csr.control_start):
                m.d.sync += [
                    *(
                        line.eq(getattr(csr, f"{name}_address")[LINE_BYTE_BITS:])
                        for name, line in zip(_TENSORS, lines, strict=True)
                    ),
                    *(kept.eq(getattr(csr, f"{name}_value")) for name, kept in constants.items()),
                    count.eq(csr.count_count),
                    unaligned.eq(
                        Cat(
                            getattr(csr, f"{name}_address")[:LINE_BYTE_BITS] for name in _TENSORS
                        ).any()
                    ),
                    cause.eq(cause_of("none")),
                    step.eq(0),
                ]
                m.next = "CHECK"
            with m.State("CHECK"):
                m.d.sync += step.eq(step + 1)
                with m.If(csr.control_start):
                    m.d.sync += cause.eq(cause_of("start_while_busy"))
                with m.If(count == 0):
                    m.d.sync += cause.eq(cause_of("zero_count"))
                    m.next = "IDLE"
                with m.Elif(unaligned):
                    m.d.sync += cause.eq(cause_of("unaligned"))
                    m.next = "IDLE"
                with m.Elif(is_range_check & out_of_range):
                    m.d.sync += cause.eq(cause_of("out_of_range"))
                    m.next = "IDLE"
                with m.Elif(~is_range_check & overlap):
                    m.d.sync += cause.eq(cause_of("overlap"))
                    m.next = "IDLE"
                with m.Elif(step == CHECK_CYCLES - 1):
                    m.d.comb += start_run.eq(1)
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
        return m
