"""Stream FIFO: order, level, hold, room; what is inside comes out at once, so nothing is lost."""

from hw.stream.fifo import StreamFifo
from hw_tests.formal import Proof, twin

FILE = "hw/stream/fifo.py"

TEXT = """
  wire put = i_valid && i_ready && !flush;
  wire taken = o_valid && o_ready && !flush;
  // A payload that is put in at a free moment is watched; so many are ahead of it.
  wire choose;
  reg watching = 0;
  reg [4:0] ahead;
  reg [3:0] count = 0;
  reg watched;
  always @(posedge clk) begin
    count <= flush ? 0 : count + put - taken;
    if (flush) watching <= 0;
    else if (watching) begin
      if (taken) begin
        ahead <= ahead - 1;
        watching <= ahead != 0;
      end
    end else if (choose && put) begin
      watching <= 1;
      watched <= i_payload;
      ahead <= count - taken;
    end
  end
  reg held = 0, waited = 0, payload;
  reg [3:0] waits = 0;
  always @(posedge clk) begin
    held <= o_valid && !o_ready && !flush;
    payload <= o_payload;
    waits <= o_valid || count == 0 || flush ? 0 : waits + 1;
  end
  order: assert property (!(watching && ahead == 0 && o_valid) || o_payload == watched);
  level_true: assert property (level == count && count <= DEPTH);
  hold: assert property (!held || (o_valid && o_payload == payload));
  room: assert property (i_ready == (count != DEPTH));
  prompt: assert property (waits < 2);
  full: cover property (watching && ahead == DEPTH - 1 && watched);
  emptied: cover property (watching && ahead == 0 && taken && watched);
"""


def fifo(depth: int, early: bool) -> Proof:
    return Proof(
        name=f"fifo-{depth}{'-early' * early}",
        component=lambda: StreamFifo(shape=1, depth=depth, early=early),
        text=TEXT.replace("DEPTH", str(depth)),
        twins={
            "order": twin(FILE, "advance(write_address)", "pass"),
            "level_true": twin(
                FILE, "self.level.eq(stored + o_valid),", "self.level.eq(stored + o_valid - full),"
            ),
            "hold": twin(
                FILE,
                "read = some & (~o_valid | self.o.ready)",
                "read = some & (~o_valid | self.o.ready | full)",
            ),
            "room": twin(
                FILE,
                "m.d.sync += full.eq(self.level == self._depth - 1)",
                "m.d.sync += full.eq(self.level == self._depth - 2)",
            ),
            "prompt": twin(
                FILE, "m.d.sync += some.eq(stored != 1)", "m.d.sync += some.eq(stored > 2)"
            ),
        },
        reductions="payload of 1 bit",
    )


PROOFS = [fifo(4, False), fifo(5, True), fifo(8, False)]
