"""Burst generator and block writer: bursts within 4 KB, data after them, an honest `idle`."""

from hw.stream.block_writer import BlockWriter
from hw.stream.bursts import BurstGenerator
from hw.stream.rounds import RoundsLayout
from hw_tests.formal import Proof, twin

BURSTS = "hw/stream/bursts.py"
WRITER = "hw/stream/block_writer.py"
LAYOUT = RoundsLayout(block_beats=8, beats_width=6)
SHORT = RoundsLayout(block_beats=4, beats_width=4)


def run_holds(layout: RoundsLayout) -> str:
    """Return what the members' documentation asks of the kernel."""
    last, tail = layout.size - 1, layout["tail_beats"]
    return f"""
  reg before = 0, stopped = 0;
  reg [{last + 1}:0] run;
  wire [{tail.width - 1}:0] tail = rounds[{last}:{tail.offset}];
  always @(posedge clk) begin
    before <= 1;
    run <= {{rounds, last_tensor}};
    stopped <= stop && !(load && start);
  end
  a_run: assume property (!before || load || run == {{rounds, last_tensor}});
  a_load: assume property (!load || idle);
  a_stop: assume property (!stopped || stop || (load && start));
  a_tail: assume property (tail >= 1 && tail <= {layout.block_beats});
"""


RUN = run_holds(LAYOUT)

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
        component=lambda: BlockWriter(layout=SHORT, tensors=2, addr_width=13, buffer_blocks=2),
        text=run_holds(SHORT)
        + """
  // The lengths of the bursts whose address was offered, without all their data.
  wire w = axi_wvalid && axi_wready;
  reg offered = 0;
  reg [1:0] beat = 0;
  reg [3:0] queued = 0;
  reg [15:0] lengths = 0;
  wire put = axi_awvalid && !offered, got = w && axi_wlast;
  wire [3:0] owed = queued + put;
  wire [15:0] all = put ? lengths & ~(16'hffff << 2 * queued) | axi_awlen[1:0] << 2 * queued
      : lengths;
  always @(posedge clk) begin
    offered <= axi_awvalid && !axi_awready;
    if (w) beat <= axi_wlast ? 0 : beat + 1;
    queued <= owed - got;
    lengths <= got ? all >> 2 : all;
  end
  // The FIFOs hold two rounds.
  reg [1:0] rounds_in = 0;
  always @(posedge clk) rounds_in <= load ? 0 : rounds_in + filled - stored;
  a_filled: assume property (!filled || (rounds_in != 2 && !load));
  // The memory answers a write that it has taken with all its data.
  a_answers: assume property (!axi_bvalid || (dut.unanswered > owed
      && dut.unanswered > axi_awvalid));
  after_address: assert property (!axi_wvalid || owed != 0);
  last_beat: assert property (!w || axi_wlast == (beat == all[1:0]));
  four: cover property (owed == 4 && beat == 2);
  // From the beat that departs, the bursts with those lengths lead to where the generator is. A
  // place is the line of both tensors in their pages, rounds after this one, lines left of the
  // block, and the tensor.
  function [2:0] beats(input [19:0] at);
    reg [6:0] room;
    begin
      room = 64 - (at[0] ? at[19:14] : at[13:8]);
      beats = at[3:1] < room ? at[3:1] : room;
    end
  endfunction
  function [19:0] after(input [19:0] at, input last, input [2:0] tail);
    reg [2:0] left;
    reg [3:0] rounds;
    begin
      left = at[3:1] - beats(at);
      rounds = at[7:4] - (left == 0 && at[0] == last);
      after = {at[0] ? at[19:14] + beats(at) : at[19:14],
          at[0] ? at[13:8] : at[13:8] + beats(at), rounds,
          left != 0 ? left : rounds[1:0] == 0 ? tail : 3'd4,
          left != 0 ? at[0] : !at[0] && last};
    end
  endfunction
  wire [19:0] made = {dut.bursts.line_1[5:0], dut.bursts.line_0[5:0],
      at_8[7:6], dut.bursts.walker.rounds_after, dut.bursts.walker.left, dut.bursts.walker.tensor};
  wire [19:0] at_0 = {dut.page_line_1, dut.page_line_0,
      2'd2, dut.departure.rounds_after, dut.departure.left, dut.departure.tensor};
  wire [2:0] kept = run[TAIL], first = all[1:0] - beat + 1;
  lemma_first: assert property (owed == 0 ? beat == 0 : beat <= all[1:0] && beats(at_0) == first);
""".replace("TAIL", f"{SHORT.size}:{SHORT.size - 2}")
        + "".join(
            f"""
  wire [19:0] at_{place + 1} = owed > {place} ? after(at_{place}, run[0], kept) : at_{place};
"""
            + (place > 0)
            * f"""
  lemma_{place}: assert property (owed <= {place}
      || beats(at_{place}) == 1 + all[{2 * place + 1}:{2 * place}]);
"""
            for place in range(8)
        )
        + """
  lemma_same: assert property (at_8 == made);
  wire fresh = dut.bursts.walker.fresh, second = dut.bursts.walker.tensor;
  wire [2:0] left = dut.bursts.walker.left;
  wire [2:0] size = dut.bursts.walker.rounds_after == 0 ? kept : 4;
  wire whole = left == size;
  reg loaded = 0;
  always @(posedge clk) loaded <= loaded || load;
  lemma_loaded: assert property (loaded ? before && kept >= 1 && kept <= 4
      : !dut.bursts.walker.active && !axi_awvalid && dut.unanswered == 0);
  lemma_fresh: assert property (!loaded || (fresh == (!second && whole) && left != 0 && left <= size
      && (whole || (second ? made[19:14] : made[13:8]) == 0)
      && dut.departure.left <= (dut.departure.rounds_after == 0 ? kept : 4)
      && second <= run[0] && dut.departure.tensor <= run[0]));
  wire [3:0] begun = at_0[7:4] - at_8[7:4] + !fresh;
  lemma_rounds: assert property (rounds_in <= 2 && dut.full_rounds <= rounds_in
      && (!loaded || rounds_in == dut.full_rounds + begun));
  lemma_count: assert property (owed <= 8 && dut.without_data == owed
      && dut.no_without_data == (owed == 0));
  lemma_answers: assert property (dut.unanswered >= owed && dut.unanswered >= axi_awvalid
      && dut.unanswered <= (fresh ? 19 : !second ? 16 : whole ? 17 : 18));
  lemma_held: assert property (!offered || axi_awvalid);
""",
        twins={
            "after_address": twin(
                WRITER, "beat_valid.eq(i.valid & ~none_owed),", "beat_valid.eq(i.valid),"
            ),
            "last_beat": twin(
                WRITER,
                "burst_end.eq(departure.tensor_end | page_line.all()),",
                "burst_end.eq(departure.tensor_end | page_line[1:].all()),",
            ),
        },
        engine="ind -F 2",
        reach=20,
        reductions="2 tensors, blocks of 4 lines, 4 rounds, addresses of 13 bits; FIFOs of 2 "
        "blocks; an answer only to a write that was taken with its data",
    ),
]
