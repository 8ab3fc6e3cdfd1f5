"""Arbiter of a channel: host and kernel are never both under way, and a switch ends."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axdimm.arbiter import Arbiter
from hw.axdimm.host_port import HostRequest, HostResult
from hw.axdimm.memory_join import ExclusiveJoin
from hw.logic.line import line_width
from hw_tests.formal import Proof, twin

WIDTH = 16


class FreePort(wiring.Component):
    """Port whose requests are free, in the place of that of the link or of AXI."""

    side = "host"
    read_latency = 48
    address_width = WIDTH

    def __init__(self, *, in_order: bool) -> None:
        self.in_order = in_order
        request = stream.Signature(HostRequest(line_width=line_width(WIDTH)))
        order = {"written": In(1), "write_ok": In(1)} if in_order else {}
        super().__init__(
            {
                "host": In(request),
                "o": Out(request),
                "i_valid": In(1),
                "i": In(HostResult()),
                "late": Out(1),
                "overflow": Out(1),
                "empty": Out(1),
                "tags_upset": Out(1),
                "request_upset": Out(1),
                **order,
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.d.comb += [
            self.o.valid.eq(self.host.valid),
            self.o.payload.eq(self.host.payload),
            self.host.ready.eq(self.o.ready),
            self.empty.eq(~self.host.valid),
        ]
        return m


def arbiter(in_order: bool = False) -> Arbiter:
    return Arbiter(
        join=ExclusiveJoin(addr_width=WIDTH),
        port=FreePort(in_order=in_order),
        lanes=1,
        block_bytes=4096,
        rules=(1,),
    )


ENVIRONMENT = """
  // Bursts at the memory, and those of them that are the kernel's.
  reg [10:0] reads = 0, kernel_reads = 0, writes = 0, kernel_writes = 0;
  wire read_begins = memory_axi_arvalid && memory_axi_arready;
  wire read_ends = memory_axi_rvalid && memory_axi_rready && memory_axi_rlast;
  wire write_begins = memory_axi_awvalid && memory_axi_awready;
  wire write_ends = memory_axi_bvalid && memory_axi_bready;
  always @(posedge clk) begin
    reads <= reads + read_begins - read_ends;
    writes <= writes + write_begins - write_ends;
    kernel_reads <= kernel_reads + (kernel_arvalid && kernel_arready)
        - (kernel_rvalid && kernel_rready && kernel_rlast);
    kernel_writes <= kernel_writes + (kernel_awvalid && kernel_awready)
        - (kernel_bvalid && kernel_bready);
  end
  // The memory answers what has begun, and is idle only if nothing is under way.
  a_read: assume property (!memory_axi_rvalid || reads != 0);
  a_write: assume property (!memory_axi_bvalid || writes != 0);
  // It gives as many beats as are asked for, of the host one each.
  a_beats: assume property (!memory_axi_rvalid || kernel_reads != 0 || memory_axi_rlast);
  // A manager holds an offer.
  reg ar_waits = 0, aw_waits = 0, w_waits = 0;
  always @(posedge clk) begin
    ar_waits <= kernel_arvalid && !kernel_arready;
    aw_waits <= kernel_awvalid && !kernel_awready;
    w_waits <= kernel_wvalid && !kernel_wready;
  end
  a_ar: assume property (!ar_waits || kernel_arvalid);
  a_aw: assume property (!aw_waits || kernel_awvalid);
"""
CLAIMS = """
  exclusive: assert property (
      !((kernel_reads != 0 || kernel_writes != 0)
        && (reads != kernel_reads || writes != kernel_writes)));
  // With nothing under way and nothing on offer, a requested switch takes effect.
  reg [1:0] waits = 0;
  reg mode_before = 0;
  always @(posedge clk) mode_before <= dut.mode_mode;
  always @(posedge clk)
    if (dut.draining && dut.mode_mode == mode_before && memory_idle && reads == 0
        && writes == 0 && dut.kernel_registers.idle
        && !memory_axi_arvalid && !memory_axi_awvalid) waits <= waits + 1;
    else waits <= 0;
  switch_ends: assert property (waits < 3);
  both: cover property (kernel_reads != 0 && kernel_writes != 0);
  host: cover property (reads != 0 && kernel_reads == 0 && writes == 0);
  back: cover property (dut.mode && dut.draining && kernel_reads != 0);
  // What the counters hold.
  lemma_reads: assert property (kernel_reads == dut.gate.reads
      && dut.gate.no_reads == (dut.gate.reads == 0));
  lemma_writes: assert property (kernel_writes == dut.gate.unanswered
      && dut.gate.no_unanswered == (dut.gate.unanswered == 0));
  lemma_host_reads: assert property (reads + dut.dram.axi_arvalid == kernel_reads + dut.dram.reads
      && dut.dram.no_reads == (dut.dram.reads == 0));
  lemma_host_writes: assert property (
      writes + dut.dram.axi_awvalid == kernel_writes + dut.dram.writes
      && dut.dram.no_writes == (dut.dram.writes == 0));
  lemma_most: assert property (dut.gate.reads <= 254 + !dut.gate.read_open
      && dut.gate.unanswered <= 1022 + !dut.gate.write_open
      && dut.dram.reads <= 64 && dut.dram.writes <= 64);
  lemma_offers: assert property ((!dut.dram.axi_arvalid || dut.dram.reads != 0)
      && (!dut.dram.axi_awvalid || dut.dram.writes != 0));
  lemma_owner: assert property (dut.mode ? dut.dram.idle
      : (kernel_reads == 0 && kernel_writes == 0 && !dut.gate.read_open && !dut.gate.write_open));
  lemma_waits: assert property (waits == 0 || (dut.dram.idle && !dut.gate.read_open
      && !dut.gate.write_open && kernel_reads == 0 && kernel_writes == 0));
  lemma_two: assert property (waits < 2 || !dut.draining || dut.mode_mode != mode_before);
"""
GATE = "hw/axdimm/memory_join.py"
ARBITER = "hw/axdimm/arbiter.py"
TAKES_EFFECT = "with m.If(draining & memory.idle & host_idle & gate.idle):"

PROOFS = [
    Proof(
        name=f"arbiter{'-axi' * in_order}",
        component=lambda in_order=in_order: arbiter(in_order),
        text=ENVIRONMENT + CLAIMS,
        twins={
            "exclusive": twin(ARBITER, TAKES_EFFECT, TAKES_EFFECT.replace(" & gate.idle", "")),
            "switch_ends": twin(
                GATE,
                "m.d.sync += read_open.eq(self.open & (reads < MOST_ADMITTED - 1))",
                "m.d.sync += read_open.eq(reads < MOST_ADMITTED - 1)",
            ),
        },
        reductions="requests of the host are free; addresses of 16 bits; the memory answers only "
        "what it has taken, the kernel holds its offers; its `idle` is free",
    )
    for in_order in (False, True)
]
