"""Crossbar of streams: the payloads of one flow, from an input to an output, stay in order."""

from hw.pim.memory.crossbar import Crossbar
from hw_tests.formal import Proof, twin

FILE = "hw/pim/memory/crossbar.py"
SIDE = """
  wire [7:0] kept_N = {dut.output_N.storage[3], dut.output_N.storage[2],
      dut.output_N.storage[1], dut.output_N.storage[0]};
  wire [7:0] waits_N = {dut.input_N.storage[1], dut.input_N.storage[0]};
  wire [2:0] level_N = dut.output_N.queue_level;
  wire [1:0] head_N = dut.output_N.queue_r_port__addr, waiting_N = dut.input_N.queue_level;
  wire first_N = dut.input_N.queue_r_port__addr, moves_N = dut.output_N.w_en;
  wire [1:0] tail_N = dut.output_N.queue_w_port__addr - head_N;
  wire mover_N = dut.output_N.mover;
  wire [1:0] moved_N = mover_N ? dut.moving[1] : dut.moving[0];
  lemma_room_N: assert property (level_N <= 4 && dut.output_N.room + level_N + moves_N == 4
      && tail_N == level_N[1:0]);
  lemma_ends_N: assert property (waiting_N <= 2
      && (dut.input_N.queue_w_port__addr ^ first_N) == waiting_N[0]);
  lemma_move_N: assert property (!moves_N || (moved_N[1] == (mover_N == from)
      && (!moved_N[0] || (moved_N[1] && into == N))));
"""
PLACES = {
    # Words of an output's and of an input's queue.
    "level": ("kept", "head", 2, 4, "!w[0] || (w[1] && into == N)"),
    "waiting": ("waits", "first", 4, 2, "w[1] == (from == N) && (!w[0] || (w[1] && w[2] == into))"),
}
for level, (words, head, bits, depth, holds) in PLACES.items():
    for place in range(depth):
        word = f"w_{words}_{place}_N"
        SIDE += f"""
  wire {"[1:0]" * (depth == 4)} at_{word} = {head}_N + {place};
  wire [{bits - 1}:0] {word} = {words}_N >> ({{2'd0, at_{word}}} * {bits});
  lemma_{words}_{place}_N: assert property ({level}_N <= {place} || ({holds}));
""".replace("w[", f"{word}[")
TEXT = """
  // The crossbar does not look at payloads. Bit 1 tells those of the flow's input, and bit 0 marks
  // two of the flow, one after the other: if they come out so, and in no other way, none is lost,
  // doubled or overtaken (Wolper 1986).
  (* anyconst *) reg from, into;
SIDES  wire [3:0] given = from ? i_1_payload : i_0_payload;
  wire [1:0] taken = into ? o_1_payload : o_0_payload;
  wire put = (from ? i_1_valid && i_1_ready : i_0_valid && i_0_ready) && given[2] == into;
  wire get = (into ? o_1_valid && o_1_ready : o_0_valid && o_0_ready) && taken[1];
  reg [1:0] marks = 0, seen = 0;
  // State 0: no mark was there; 1: one; 2: both; 3: not as given.
  function [1:0] after(input [1:0] state, input present, input mark);
    after = !present || state == 3 ? state : mark ? state + 1 : state == 1 ? 3 : state;
  endfunction
  always @(posedge clk) begin
    marks <= after(marks, put, given[0]);
    seen <= after(seen, get, taken[0]);
  end
  a_from: assume property (i_0_payload[1] == !from && i_1_payload[1] == from);
  a_marks: assume property (after(marks, put, given[0]) != 3);
  a_others: assume property ((put || !given[0]) && !(from ? i_0_payload[0] : i_1_payload[0]));
  order: assert property (after(seen, get, taken[0]) != 3);
  whose: assert property (!(into ? o_0_valid && o_0_payload[0] : o_1_valid && o_1_payload[0]));
  idle_means: assert property (!idle || seen == marks);
  both: cover property (seen == 2 && o_0_valid && o_1_valid);
  full: cover property (marks == 2 && seen == 0 && !i_0_ready && !i_1_ready);
  // The flow's payloads inside, the next to leave first, lead from one state to the other.
  lemma_one: assert property (!(moves_0 && moves_1 && mover_0 == mover_1));
  wire [1:0] k0 = into ? w_kept_0_1 : w_kept_0_0;
  wire [1:0] k1 = into ? w_kept_1_1 : w_kept_1_0;
  wire [1:0] k2 = into ? w_kept_2_1 : w_kept_2_0;
  wire [1:0] k3 = into ? w_kept_3_1 : w_kept_3_0;
  wire [3:0] w0 = from ? w_waits_0_1 : w_waits_0_0;
  wire [3:0] w1 = from ? w_waits_1_1 : w_waits_1_0;
  wire [2:0] in_queue = into ? level_1 : level_0;
  wire [1:0] at_input = from ? waiting_1 : waiting_0, moved = into ? moved_1 : moved_0;
  wire moves = into ? moves_1 && mover_1 == from : moves_0 && mover_0 == from;
  wire [1:0] s0 = after(seen, in_queue > 0 && k0[1], k0[0]);
  wire [1:0] s1 = after(s0, in_queue > 1 && k1[1], k1[0]);
  wire [1:0] s2 = after(s1, in_queue > 2 && k2[1], k2[0]);
  wire [1:0] s3 = after(s2, in_queue > 3 && k3[1], k3[0]);
  wire [1:0] s4 = after(s3, moves, moved[0]);
  wire [1:0] s5 = after(s4, at_input > 0 && w0[2] == into, w0[0]);
  wire [1:0] s6 = after(s5, at_input > 1 && w1[2] == into, w1[0]);
  lemma_flow: assert property (marks != 3 && s6 == marks);
"""
PROOFS = [
    Proof(
        name="crossbar",
        component=lambda: Crossbar(shape=2, inputs=2, outputs=2, name="crossbar"),
        text=TEXT.replace("SIDES", SIDE.replace("N", "0") + SIDE.replace("N", "1")),
        twins={
            "order": twin(
                FILE,
                "self.grant.eq(Mux(room != 0, pick & -pick, 0)),",
                "self.grant.eq(pick & -pick),",
            ),
            "whose": twin(FILE, "m.d.comb += half.eq(group & side)", "m.d.comb += half.eq(group)"),
            "idle_means": twin(
                FILE, "self.busy.eq(moving | self.o.valid),", "self.busy.eq(self.o.valid),"
            ),
        },
        engine="ind -F 2",
        reductions="2 inputs, 2 outputs; payloads of 2 bits; `follows` is free",
    )
]
