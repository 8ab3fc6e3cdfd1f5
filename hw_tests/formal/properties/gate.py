"""Gate before the kernel: never over its limits, and no data before its address."""

from hw.axdimm import memory_join
from hw.axi.bus import AXI4Signature
from hw_tests.formal import Proof, twin

GATE = "hw/axdimm/memory_join.py"


def gate() -> memory_join.KernelGate:
    memory_join.MOST_ADMITTED, memory_join.MOST_UNANSWERED = 15, 31  # in a process of its own
    return memory_join.KernelGate(AXI4Signature(addr_width=12, data_width=32))


PROOFS = [
    Proof(
        name="gate",
        component=gate,
        text="""
  reg [11:0] reads = 0, writes = 0, owed = 0;
  reg offered = 0, offered_read = 0, closed = 0;
  wire ar = memory_arvalid && memory_arready, aw = memory_awvalid && memory_awready;
  wire r = kernel_rvalid && kernel_rready && kernel_rlast, b = kernel_bvalid && kernel_bready;
  wire w = memory_wvalid && memory_wready && memory_wlast;
  wire offers = memory_awvalid && !offered;
  always @(posedge clk) begin
    reads <= reads + ar - r;
    writes <= writes + aw - b;
    owed <= owed + offers - w;
    offered <= memory_awvalid && !memory_awready;
    offered_read <= memory_arvalid && !memory_arready;
    closed <= idle && !open;
  end
  // The memory answers what it has taken; the kernel holds its offers.
  a_read: assume property (!memory_rvalid || reads != 0);
  a_write: assume property (!memory_bvalid || writes != 0);
  reg ar_waits = 0, aw_waits = 0;
  always @(posedge clk) begin
    ar_waits <= kernel_arvalid && !kernel_arready;
    aw_waits <= kernel_awvalid && !kernel_awready;
  end
  a_ar: assume property (!ar_waits || kernel_arvalid);
  a_aw: assume property (!aw_waits || kernel_awvalid);
  most_reads: assert property (reads <= 15);
  most_writes: assert property (writes <= 31);
  most_owed: assert property (owed <= 15);
  data_after: assert property (!memory_wvalid || owed != 0);
  held: assert property ((!offered || memory_awvalid) && (!offered_read || memory_arvalid));
  idle_means: assert property (
      !idle || (reads == 0 && writes == 0 && !memory_arvalid && !memory_awvalid));
  stays: assert property (!closed || idle);
  lemma_counts: assert property (dut.reads == reads && dut.unanswered == writes
      && dut.without_data == owed && dut.write_waits == offered);
  lemma_none: assert property (dut.no_reads == (reads == 0) && dut.no_unanswered == (writes == 0)
      && dut.no_without_data == (owed == 0));
  lemma_open: assert property (reads <= 14 + !dut.read_open
      && writes <= 30 + !dut.write_open
      && owed <= 14 + (!dut.write_open || offered));
  both: cover property (reads == 2 && writes == 1 && owed == 2);
  emptied: cover property (closed && open);
""",
        engine="ind -F 3",
        twins={
            "most_reads": twin(
                GATE,
                "m.d.sync += read_open.eq(self.open & (reads < MOST_ADMITTED - 1))",
                "m.d.sync += read_open.eq(self.open)",
            ),
            "most_writes": twin(
                GATE,
                "self.open & (without_data < MOST_ADMITTED - 1) & "
                "(unanswered < MOST_UNANSWERED - 1)",
                "self.open & (without_data < MOST_ADMITTED - 1)",
            ),
            "most_owed": twin(
                GATE,
                "self.open & (without_data < MOST_ADMITTED - 1) & "
                "(unanswered < MOST_UNANSWERED - 1)",
                "self.open & (unanswered < MOST_UNANSWERED - 1)",
            ),
            "data_after": twin(
                GATE,
                "begun=write_offered,",
                "begun=memory.awvalid & ~(write_waits & kernel.wlast),",
            ),
            "held": twin(
                GATE,
                "with m.If(~(read_open & kernel.arvalid) | memory.arready):",
                "with m.If(1):",
            ),
            "idle_means": twin(
                GATE,
                "m.d.comb += self.idle.eq(no_reads & all_answered & ~read_open & ~write_open)",
                "m.d.comb += self.idle.eq(no_reads & all_answered & ~read_open)",
            ),
            "stays": twin(
                GATE,
                "m.d.sync += read_open.eq(self.open & (reads < MOST_ADMITTED - 1))",
                "m.d.sync += read_open.eq(reads < MOST_ADMITTED - 1)",
            ),
        },
        reductions="limits of 15 and 31, data of 32 bits; the memory answers what it has taken, "
        "the kernel holds its offers",
    )
]
