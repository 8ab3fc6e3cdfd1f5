"""AXI front end of the DRAM controller: an answer for each request, held, with its beats."""

from hw.dram import frontend
from hw.dram.geometry import DramGeometry
from hw_tests.formal import Proof, twin

FRONTEND = "hw/dram/frontend.py"
GEOMETRY = DramGeometry(bank_groups=2, banks_per_group=2, rows=2, columns=256)


def component() -> frontend.AxiFrontEnd:
    # In a process of its own.
    frontend._ADDRESSES, frontend._READS, frontend._WRITES = 2, 2, 2
    return frontend.AxiFrontEnd(
        geometry=GEOMETRY,
        addr_width=15,
        id_width=1,
        write_buffer_lines=2,
        read_buffer_lines=2,
        run_length=2,
        queue_depth=1,
        reserve=False,
    )


ENVIRONMENT = """
  wire aw = axi_awvalid && axi_awready, w = axi_wvalid && axi_wready, b = axi_bvalid && axi_bready;
  wire ar = axi_arvalid && axi_arready, r = axi_rvalid && axi_rready;
  // A manager asks for one or two lines.
  a_short: assume property (axi_awlen <= 1 && axi_arlen <= 1);
  // The schedulers issue what was pushed, and read data come after their issue.
  reg [4:0] to_write = 0, to_read = 0, reading = 0, writes = 0;
  wire [1:0] lines = push ? request[5:0] + 1 : 0;
  always @(posedge clk) begin
    to_write <= to_write + (request[0] ? lines : 0) - write_next;
    to_read <= to_read + (request[0] ? 0 : lines) - read_issue;
    reading <= reading + read_issue - read_valid;
    writes <= writes + (push && request[0]) - written;
  end
  a_next: assume property (!write_next || to_write != 0);
  a_written: assume property (!written || writes != 0);
  a_issue: assume property (!read_issue || (read_room && to_read != 0));
  a_valid: assume property (!read_valid || reading != 0);
  a_room: assume property (!room || to_write + to_read < 8);
  function [1:0] response(input [14:0] addr, input [7:0] len, input [2:0] size, input [1:0] burst);
    response = addr[14] ? 3 : size != 6 || burst != 1 || addr[11:6] + len > 63 ? 2 : 0;
  endfunction
  // A request that is taken at a free moment is watched; so many are ahead of it.
  wire choose;
  reg watching = 0;
  reg [3:0] ahead;
  reg id;
  reg [1:0] resp;
  reg [7:0] len;
"""
WRITES = """
  reg [3:0] asked = 0, done = 0;
  // Beats that are due, of all writes and up to the last of the watched one.
  reg [4:0] due = 0, due_here = 0;
  reg held = 0, was_id;
  reg [1:0] was_resp;
  wire [4:0] due_next = due - w;
  always @(posedge clk) begin
    asked <= asked + aw - b;
    done <= done + written - (b && axi_bresp == 0);
    due <= due_next + (aw ? axi_awlen + 1 : 0);
    due_here <= due_here - (w && due_here != 0);
    held <= axi_bvalid && !axi_bready;
    was_id <= axi_bid;
    was_resp <= axi_bresp;
    if (watching) begin
      if (b) begin
        ahead <= ahead - 1;
        watching <= ahead != 0;
      end
    end else if (choose && aw) begin
      watching <= 1;
      ahead <= asked - b;
      id <= axi_awid;
      due_here <= due_next + axi_awlen + 1;
      resp <= response(axi_awaddr, axi_awlen, axi_awsize, axi_awburst);
    end
  end
  asked_for: assert property (!axi_bvalid || asked != 0);
  in_order: assert property (!(watching && ahead == 0 && axi_bvalid)
      || (axi_bid == id && axi_bresp == resp));
  hold: assert property (!held || (axi_bvalid && axi_bid == was_id && axi_bresp == was_resp));
  data_first: assert property (!(watching && ahead == 0 && axi_bvalid) || due_here == 0);
  written_first: assert property (!(axi_bvalid && axi_bresp == 0) || done != 0);
  idle_means: assert property (!idle || asked == 0);
  // Beats are due to the writes whose address is still queued.
  wire [3:0] complete = dut.responses_level + dut.write_bursts_level;
  wire [18:0] oldest = dut.write_addresses_r_port__addr ? dut.storage[1] : dut.storage[0];
  wire [18:0] newest = dut.write_addresses_r_port__addr ? dut.storage[0] : dut.storage[1];
  wire [7:0] length = oldest[16:9], next_length = newest[16:9];
  wire [4:0] due_first = dut.write_addresses_level != 0 ? length + 1 - dut.beat : 0;
  lemma_levels: assert property (dut.write_addresses_level <= 2 && dut.write_bursts_level <= 2
      && dut.responses_level <= 2 && asked == complete + dut.write_addresses_level);
  lemma_due: assert property (length <= 1 && next_length <= 1
      && dut.beat <= (dut.write_addresses_level != 0 ? length : 0)
      && due == due_first + (dut.write_addresses_level == 2 ? next_length + 1 : 0));
  lemma_due_here: assert property (!watching || (ahead < asked && due_here
      == (ahead < complete ? 0 : ahead == complete ? due_first : due)));
  second: cover property (watching && ahead == 1 && b && resp == 0 && axi_bresp == 0);
"""
READS = """
  reg [3:0] asked = 0, stored = 0;
  reg [7:0] beat = 0;
  reg held = 0, was_id, was_last;
  reg [1:0] was_resp;
  wire got = r && axi_rlast;
  always @(posedge clk) begin
    asked <= asked + ar - got;
    stored <= stored + read_valid - (r && axi_rresp == 0);
    if (r) beat <= axi_rlast ? 0 : beat + 1;
    held <= axi_rvalid && !axi_rready;
    was_id <= axi_rid;
    was_last <= axi_rlast;
    was_resp <= axi_rresp;
    if (watching) begin
      if (got) begin
        ahead <= ahead - 1;
        watching <= ahead != 0;
      end
    end else if (choose && ar) begin
      watching <= 1;
      ahead <= asked - got;
      id <= axi_arid;
      len <= axi_arlen;
      resp <= response(axi_araddr, axi_arlen, axi_arsize, axi_arburst);
    end
  end
  asked_for: assert property (!axi_rvalid || asked != 0);
  in_order: assert property (!(watching && ahead == 0 && axi_rvalid)
      || (axi_rid == id && axi_rresp == resp && axi_rlast == (beat == len)));
  hold: assert property (!held || (axi_rvalid && axi_rid == was_id && axi_rresp == was_resp
      && axi_rlast == was_last));
  room_kept: assert property (stored <= 2);
  idle_means: assert property (!idle || asked == 0);
  second: cover property (watching && ahead == 1 && got && resp == 0 && axi_rresp == 0);
"""
BVALID = "axi.bvalid.eq(responses.r_rdy & (answer_refused | (written != 0))),"
RVALID = "axi.rvalid.eq(read_bursts.r_rdy & (line_valid | (axi.rresp != Response.OKAY))),"


def front(name: str, claims: str, **twins: tuple[str, str]) -> Proof:
    return Proof(
        name=f"front-{name}",
        component=component,
        text=ENVIRONMENT + claims,
        twins={claim: twin(FRONTEND, line, becomes) for claim, (line, becomes) in twins.items()},
        limit_s=120,
        reductions="queues and buffers of 2, a request queue of 1; bursts of 1 and 2 lines; no "
        "`reserve`; the schedulers issue what was pushed",
    )


PROOFS = [
    front(
        "writes",
        WRITES,
        asked_for=(BVALID, BVALID.replace("responses.r_rdy & ", "")),
        in_order=(
            "responses.w_data.eq(Cat(write_burst.id, write_burst.response)),",
            "responses.w_data.eq(Cat(read_burst.id, write_burst.response)),",
        ),
        hold=(BVALID, BVALID.replace(")),", ") & ~self.low),")),
        data_first=(
            "last.eq(accept & (beat == receiving.length)),",
            "last.eq(accept & (beat + 1 >= receiving.length)),",
        ),
        written_first=(BVALID, "axi.bvalid.eq(responses.r_rdy),"),
        idle_means=("| responses.r_rdy", "| 0"),
    ),
    front(
        "reads",
        READS,
        asked_for=(RVALID, RVALID.replace("read_bursts.r_rdy & ", "")),
        in_order=("axi.rlast.eq(read_beat == length),", "axi.rlast.eq(1),"),
        hold=(RVALID, RVALID.replace(")),", ") & ~self.low),")),
        room_kept=("m.d.comb += self.read_room.eq(free != 0)", "m.d.comb += self.read_room.eq(1)"),
        idle_means=("| read_bursts.r_rdy", "| 0"),
    ),
]
