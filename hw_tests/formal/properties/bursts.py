"""Burst generator, block loader and writer: bursts within 4 KB, data with them, `idle`."""

from hw.stream.block_loader import BlockLoader
from hw.stream.block_writer import BlockWriter
from hw.stream.bursts import BurstGenerator
from hw.stream.rounds import RoundsLayout
from hw_tests.formal import Proof, twin

BURSTS = "hw/stream/bursts.py"
LOADER = "hw/stream/block_loader.py"
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


def chain(walker: str, bits: int, counter: str) -> str:
    """Return lemmas: from the beat ``walker`` is at, the bursts owed lead to the generator.

    A place is the line of tensor 1 and of tensor 0, the rounds after this one, the lines left of
    the block, and the tensor.
    """
    line_0, line_1, top = f"{7 + bits}:8", f"{7 + 2 * bits}:{8 + bits}", 7 + 2 * bits
    return (
        f"""
  function [2:0] beats(input [{top}:0] at);
    reg [6:0] room;
    begin
      room = 64 - (at[0] ? at[{13 + bits}:{8 + bits}] : at[13:8]);
      beats = at[3:1] < room ? at[3:1] : room;
    end
  endfunction
  function [{top}:0] after(input [{top}:0] at, input last, input [2:0] tail);
    reg [2:0] left;
    reg [3:0] rounds;
    begin
      left = at[3:1] - beats(at);
      rounds = at[7:4] - (left == 0 && at[0] == last);
      after = {{at[0] ? at[{line_1}] + beats(at) : at[{line_1}],
          at[0] ? at[{line_0}] : at[{line_0}] + beats(at), rounds,
          left != 0 ? left : rounds[1:0] == 0 ? tail : 3'd4,
          left != 0 ? at[0] : !at[0] && last}};
    end
  endfunction
  wire [{top}:0] made = {{dut.bursts.line_1[{bits - 1}:0], dut.bursts.line_0[{bits - 1}:0],
      at_8[7:6], dut.bursts.walker.rounds_after, dut.bursts.walker.left, dut.bursts.walker.tensor}};
  wire [{top}:0] at_0 = {{line_1, line_0,
      2'd2, dut.{walker}.rounds_after, dut.{walker}.left, dut.{walker}.tensor}};
  wire [2:0] kept = run[{SHORT.size}:{SHORT.size - 2}], first = all[1:0] - beat + 1;
  lemma_first: assert property (owed == 0 ? beat == 0 : beat <= all[1:0] && beats(at_0) == first);
"""
        + "".join(
            f"""
  wire [{top}:0] at_{place + 1} = owed > {place} ? after(at_{place}, run[0], kept) : at_{place};
"""
            + (place > 0)
            * f"""
  lemma_{place}: assert property (owed <= {place}
      || beats(at_{place}) == 1 + all[{2 * place + 1}:{2 * place}]);
"""
            for place in range(8)
        )
        + f"""
  lemma_same: assert property (at_8 == made);
  wire fresh = dut.bursts.walker.fresh, second = dut.bursts.walker.tensor;
  wire [2:0] left = dut.bursts.walker.left;
  wire [2:0] size = dut.bursts.walker.rounds_after == 0 ? kept : 4;
  wire [2:0] size_0 = dut.{walker}.rounds_after == 0 ? kept : 4;
  wire whole = left == size;
  reg was_loaded = 0;
  always @(posedge clk) was_loaded <= was_loaded || load;
  lemma_loaded: assert property (was_loaded ? before && kept >= 1 && kept <= 4
      : !dut.bursts.walker.active && !dut.bursts.o_valid && dut.{counter} == 0);
  lemma_fresh: assert property (!was_loaded || (fresh == (!second && whole)
      && left != 0 && left <= size
      && (whole || (second ? made[{13 + bits}:{8 + bits}] : made[13:8]) == 0)
      && at_0[3:1] <= size_0 && second <= run[0] && at_0[0] <= run[0]));
  wire [3:0] begun = at_0[7:4] - at_8[7:4] + !fresh;
"""
    )


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
  wire [5:0] line_1 = dut.page_line_1, line_0 = dut.page_line_0;
"""
        + chain("departure", 6, "unanswered")
        + """
  lemma_rounds: assert property (rounds_in <= 2 && dut.full_rounds <= rounds_in
      && (!was_loaded || rounds_in == dut.full_rounds + begun));
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
    Proof(
        name="block-loader",
        component=lambda: BlockLoader(layout=SHORT, tensors=2, addr_width=13, buffer_blocks=2),
        text=run_holds(SHORT)
        + """
  // The lengths and lines of the bursts whose address was offered, without all their data.
  reg offered = 0;
  reg [1:0] beat = 0;
  reg [3:0] queued = 0;
  reg [15:0] lengths = 0;
  reg [55:0] starts = 0;
  wire put = axi_arvalid && !offered, got = axi_rvalid && axi_rlast;
  wire [3:0] owed = queued + put;
  wire [15:0] all = put ? lengths & ~(16'hffff << 2 * queued) | axi_arlen[1:0] << 2 * queued
      : lengths;
  wire [55:0] from = put ? starts & ~({56{1'b1}} << 7 * queued) | axi_araddr[12:6] << 7 * queued
      : starts;
  wire [6:0] line = from[6:0] + beat;
  // Next line of each tensor, and how many its FIFO holds and is to lose of the rounds freed.
  reg [6:0] line_1 = 0, line_0 = 0;
  reg [3:0] level_1 = 0, level_0 = 0, leaves_1 = 0, leaves_0 = 0;
  reg [1:0] full = 0;
  wire ended = was_loaded && !dut.arrival.active;
  wire [2:0] freed_lines = !freed ? 0 : ended && full == 1 ? kept : 4;
  always @(posedge clk) begin
    offered <= axi_arvalid && !axi_arready;
    if (axi_rvalid) beat <= axi_rlast ? 0 : beat + 1;
    queued <= owed - got;
    lengths <= got ? all >> 2 : all;
    starts <= got ? from >> 7 : from;
    line_0 <= load ? lines_0 : line_0 + o_0_valid;
    line_1 <= load ? lines_1 : line_1 + o_1_valid;
    level_0 <= load ? 0 : level_0 + o_0_valid - (leaves_0 != 0);
    level_1 <= load ? 0 : level_1 + o_1_valid - (leaves_1 != 0);
    leaves_0 <= load ? 0 : leaves_0 + freed_lines - (leaves_0 != 0);
    leaves_1 <= load ? 0 : leaves_1 + (run[0] ? freed_lines : 0) - (leaves_1 != 0);
    full <= load ? 0 : full + loaded - freed;
  end
  a_freed: assume property (!freed || (full != 0 && !load && leaves_0 <= 1 && leaves_1 <= 1));
  // The memory answers a read that it has taken.
  a_answers: assume property (!axi_rvalid || owed > axi_arvalid);
  a_last: assume property (axi_rlast == (beat == all[1:0]));
  once: assert property (axi_rvalid ? o_0_valid != o_1_valid : !o_0_valid && !o_1_valid);
  in_order: assert property (!axi_rvalid || line == (o_1_valid ? line_1 : line_0));
  room: assert property (level_0 <= 8 && level_1 <= 8);
  idle_means: assert property (!idle || owed == 0);
  both: cover property (level_0 == 8 && level_1 == 7 && axi_rvalid);
"""
        + chain("arrival", 7, "in_flight")
        + "".join(
            f"""
  lemma_line_{place}: assert property (owed <= {place} || from[{7 * place + 6}:{7 * place}]
      == (at_{place}[0] ? at_{place}[21:15] : at_{place}[14:8]){" - beat" * (place == 0)});
"""
            for place in range(8)
        )
        + "".join(
            f"""
  wire [2:0] came_{n} = at_0[0] == {n} ? size_0 - at_0[3:1] : at_0[0] > {n}
      ? size_0 : 0;
  lemma_level_{n}: assert property (level_{n} == (!was_loaded || {n} > run[0] ? 0 :
      4 * full - (ended && full != 0 ? 4 - kept : 0) + came_{n} + leaves_{n}));
  lemma_leaves_{n}: assert property (leaves_{n} <= (!was_loaded || {n} > run[0] ? 0 : 4));
"""
            for n in range(2)
        )
        + """
  lemma_rounds: assert property (was_loaded ? full <= 2 && dut.free_rounds + full + begun == 2
      : full == 0);
  // The generator is not beyond the last round, and done with it if it is at its end.
  lemma_end: assert property (dut.arrival.active
      ? at_8[7:4] >= 7 && dut.bursts.walker.active == (at_8[7:4] != 7)
          && (dut.bursts.walker.active || fresh)
      : owed == 0 && !dut.bursts.walker.active);
  lemma_count: assert property (owed <= 8 && dut.in_flight == owed);
  lemma_held: assert property (!offered || axi_arvalid);
""",
        twins={
            "once": twin(
                LOADER, "selected = arrival.tensor == index", "selected = arrival.tensor <= index"
            ),
            "in_order": twin(
                LOADER,
                "arrival.step.eq(axi.rvalid),",
                "arrival.step.eq(axi.rvalid & ~bursts.begun),",
            ),
            "room": twin(
                LOADER,
                "m.d.sync += free_rounds.eq(self._buffer_blocks)",
                "m.d.sync += free_rounds.eq(self._buffer_blocks + 1)",
            ),
            "idle_means": twin(
                LOADER,
                "self.idle.eq(bursts.idle & (in_flight == 0)),",
                "self.idle.eq(bursts.idle & (in_flight <= 1)),",
            ),
        },
        limit_s=120,
        engine="ind -F 2",
        reach=40,
        reductions="as `block-writer-data`; a round leaves a FIFO with one line a cycle, and the "
        "next after it",
    ),
]
