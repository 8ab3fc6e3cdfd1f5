"""Burst generator and block writer: bursts within 4 KB, data after them, an honest `idle`."""

from hw.stream.block_writer import BlockWriter
from hw.stream.bursts import BurstGenerator
from hw.stream.rounds import RoundsLayout
from hw_tests.formal import Proof, twin

BURSTS = "hw/stream/bursts.py"
WRITER = "hw/stream/block_writer.py"
LAYOUT = RoundsLayout(block_beats=8, beats_width=6)
# The environment is what the members' documentation asks of the kernel.
RUN = """
  reg before = 0, stopped = 0;
  reg [RUN:0] run;
  always @(posedge clk) begin
    before <= 1;
    run <= {rounds, last_tensor};
    stopped <= stop && !(load && start);
  end
  a_run: assume property (!before || load || run == {rounds, last_tensor});
  a_load: assume property (!load || idle);
  a_stop: assume property (!stopped || stop || (load && start));
  a_tail: assume property (rounds[TAIL] >= 1 && rounds[TAIL] <= 8);
""".replace("RUN", str(LAYOUT.size)).replace("TAIL", f"{LAYOUT.size - 1}:3")

PROOFS = [
    Proof(
        name="bursts",
        component=lambda: BurstGenerator(layout=LAYOUT, tensors=2, addr_width=14),
        text=RUN
        + """
  wire [7:0] line = o_payload[7:0];
  wire [5:0] len = o_payload[13:8];
  reg held = 0, halted = 0;
  reg [13:0] burst;
  always @(posedge clk) begin
    held <= o_valid && !o_ready;
    burst <= o_payload;
    halted <= stop && !o_valid && !load;
  end
  page: assert property (!o_valid || line[5:0] + len < 64);
  block: assert property (!o_valid || len < 8);
  hold: assert property (!held || (o_valid && o_payload == burst));
  halt: assert property (!halted || !o_valid);
  done: assert property (!idle || !o_valid);
  sound: assert property (!upset);
  cut: cover property (o_valid && len == 2 && line[5:0] == 61);
  whole: cover property (o_valid && len == 7);
""",
        twins={
            "page": twin(
                BURSTS,
                "burst.len.eq(Mux(next_page, ~place, walker.left - 1)),",
                "burst.len.eq(walker.left - 1),",
            ),
            "block": twin(
                BURSTS,
                "burst.len.eq(Mux(next_page, ~place, walker.left - 1)),",
                "burst.len.eq(~place),",
            ),
            "hold": twin(BURSTS, "& (~valid | self.o.ready)", "& 1"),
            "halt": twin(BURSTS, "& ~(self.stop | self.load)", "& ~self.load"),
            "done": twin(
                BURSTS,
                "self.idle.eq(~valid & (~walker.active | self.stop)),",
                "self.idle.eq(~walker.active | self.stop),",
            ),
            "sound": twin(
                BURSTS,
                'held = lost_bit(m, "bursts", [burst, *lines], self.offered, self.load)',
                'held = lost_bit(m, "bursts", [burst, *lines], self.offered)',
            ),
        },
        reductions="2 tensors, blocks of 8 lines, addresses of 14 bits; a run's settings hold",
    ),
    Proof(
        name="block-writer",
        component=lambda: BlockWriter(layout=LAYOUT, tensors=2, addr_width=14, buffer_blocks=2),
        text=RUN
        + """
  wire aw = axi_awvalid && axi_awready, b = axi_bvalid && axi_bready;
  reg [4:0] unanswered = 0;
  always @(posedge clk) unanswered <= unanswered + aw - b;
  // The memory answers writes that it has taken.
  a_answers: assume property (!axi_bvalid || unanswered != 0);
  a_filled: assume property (!filled || dut.full_rounds != 2);
  idle_means: assert property (!idle || (unanswered == 0 && !axi_awvalid));
  wire [4:0] sent = unanswered + axi_awvalid;
  lemma: assert property (dut.unanswered == sent);
  under_way: cover property (unanswered == 2 && stop && !axi_awvalid);
""",
        twins={
            "idle_means": twin(
                WRITER,
                "self.idle.eq(bursts.idle & (unanswered == 0)),",
                "self.idle.eq(bursts.idle),",
            ),
        },
        reductions="as `bursts`; FIFOs of 2 blocks, counts modulo 32; an answer only to a write "
        "that was taken",
    ),
    Proof(
        name="block-writer-data",
        component=lambda: BlockWriter(layout=LAYOUT, tensors=2, addr_width=14, buffer_blocks=2),
        text=RUN
        + """
  wire w = axi_wvalid && axi_wready;
  reg offered = 0;
  reg [5:0] bursts = 0, taken = 0, done = 0, answered = 0;
  reg [7:0] beat = 0, length;
  (* anyconst *) reg [5:0] chosen;
  // A chosen burst has as many beats as its address told, the last of them marked.
  always @(posedge clk) begin
    offered <= axi_awvalid && !axi_awready;
    bursts <= bursts + (axi_awvalid && !offered);
    if (axi_awvalid && !offered && bursts == chosen) length <= axi_awlen;
    taken <= taken + (axi_awvalid && axi_awready);
    done <= done + (w && axi_wlast);
    answered <= answered + (axi_bvalid && axi_bready);
    if (w) beat <= axi_wlast ? 0 : beat + 1;
  end
  wire [7:0] told = axi_awvalid && !offered && bursts == chosen ? axi_awlen : length;
  a_filled: assume property (!filled || dut.full_rounds != 2);
  // The memory answers a write that it has taken with all its data.
  a_answers: assume property (!axi_bvalid || (answered != done && answered != taken));
  after_address: assert property (!axi_wvalid || done != bursts + (axi_awvalid && !offered));
  last_beat: assert property (!(w && done == chosen) || axi_wlast == (beat == told));
  three: cover property (done == 3);
""",
        twins={
            "after_address": twin(
                WRITER, "beat_valid.eq(i.valid & ~none_owed),", "beat_valid.eq(i.valid),"
            ),
            "last_beat": twin(
                WRITER,
                "burst_end.eq(departure.tensor_end | page_line.all()),",
                "burst_end.eq(departure.tensor_end),",
            ),
        },
        bound=9,
        reach=20,
        reductions="as `block-writer`",
    ),
]
