"""AXI4-Lite subordinate and arbiter: an answer for each request, held, to the right manager."""

from hw.csr.axi4_lite import AXI4LiteSubordinate
from hw.csr.axi4_lite_arbiter import AXI4LiteArbiter
from hw_tests.formal import Proof, twin

SUBORDINATE = "hw/csr/axi4_lite.py"
ARBITER = "hw/csr/axi4_lite_arbiter.py"

PROOFS = [
    Proof(
        name="lite-subordinate",
        component=lambda: AXI4LiteSubordinate(addr_width=6),
        text="""
  wire aw = s_axi_awvalid && s_axi_awready, w = s_axi_wvalid && s_axi_wready;
  wire ar = s_axi_arvalid && s_axi_arready;
  wire b = s_axi_bvalid && s_axi_bready, r = s_axi_rvalid && s_axi_rready;
  reg [2:0] addresses = 0, beats = 0, reads = 0, waits = 0;
  reg held_b = 0, held_r = 0;
  reg [1:0] resp_b, resp_r;
  reg [63:0] data_r;
  reg [5:0] address;
  reg [7:0] strobes;
  reg [63:0] data;
  reg hit, written, right;
  always @(posedge clk) begin
    addresses <= addresses + aw - b;
    beats <= beats + w - b;
    reads <= reads + ar - r;
    held_b <= s_axi_bvalid && !s_axi_bready;
    held_r <= s_axi_rvalid && !s_axi_rready;
    resp_b <= s_axi_bresp;
    resp_r <= s_axi_rresp;
    data_r <= s_axi_rdata;
    if (aw) address <= s_axi_awaddr;
    if (w) {strobes, data} <= {s_axi_wstrb, s_axi_wdata};
    // The cycle before an answer decides it.
    hit <= bus_hit;
    written <= bus_write;
    right <= bus_address == address && bus_write_data == data;
    waits <= s_axi_bvalid || addresses == 0 || beats == 0 ? 0 : waits + 1;
  end
  wire answers = s_axi_bvalid && !held_b;
  asked: assert property (!s_axi_bvalid || (addresses != 0 && beats != 0));
  asked_read: assert property (!s_axi_rvalid || reads != 0);
  held: assert property (!held_b || (s_axi_bvalid && s_axi_bresp == resp_b));
  held_read: assert property (
      !held_r || (s_axi_rvalid && s_axi_rresp == resp_r && s_axi_rdata == data_r));
  prompt: assert property (waits < 2);
  written_once: assert property (!answers || written == (hit && strobes == 255));
  written_there: assert property (!(answers && written) || right);
  told: assert property (!answers || s_axi_bresp == (hit && (strobes == 0 || strobes == 255)
      ? 0 : 2));
  lemma: assert property (addresses <= 2 && beats <= 2 && reads <= 2);
  wrote: cover property (answers && written);
  read_waits: cover property (held_r && ar);
""",
        twins={
            "asked": twin(
                SUBORDINATE,
                "m.d.sync += whole_write.eq((aw_full | axi.awvalid) & (w_full | axi.wvalid) "
                "& ~writing)",
                "m.d.sync += whole_write.eq((aw_full | axi.awvalid) & ~writing)",
            ),
            "asked_read": twin(SUBORDINATE, "ar_full.eq(0),", "ar_full.eq(1),"),
            "held": twin(SUBORDINATE, "with m.If(axi.bready):", "with m.If(axi.bready | aw_full):"),
            "held_read": twin(SUBORDINATE, "with m.If(ar_full & ~r_valid):", "with m.If(ar_full):"),
            "prompt": twin(
                SUBORDINATE,
                "writing = whole_write & ~b_valid",
                "writing = whole_write & ~b_valid & ~ar_full",
            ),
            "written_once": twin(
                SUBORDINATE, "bus.write.eq(bus.hit & supported),", "bus.write.eq(bus.hit),"
            ),
            "written_there": twin(
                SUBORDINATE, "bus.address.eq(aw_address),", "bus.address.eq(ar_address),"
            ),
            "told": twin(
                SUBORDINATE,
                "with m.If(~bus.hit | (strobes.any() & ~supported)):",
                "with m.If(~bus.hit | ~supported):",
            ),
        },
    ),
    Proof(
        name="lite-arbiter",
        component=lambda: AXI4LiteArbiter(2, addr_width=2, data_width=32),
        text="""
  // The subordinate answers what it has taken (`asked_read`); a manager holds its request.
  wire taken = m_axi_arvalid && m_axi_arready, answered = m_axi_rvalid && m_axi_rready;
  wire r_0 = s_axi_0_rvalid && s_axi_0_rready, r_1 = s_axi_1_rvalid && s_axi_1_rready;
  reg [1:0] out = 0, of_0 = 0, of_1 = 0, passed = 0;
  reg waits_0 = 0;
  always @(posedge clk) begin
    out <= out + taken - answered;
    of_0 <= of_0 + (s_axi_0_arvalid && s_axi_0_arready) - r_0;
    of_1 <= of_1 + (s_axi_1_arvalid && s_axi_1_arready) - r_1;
    waits_0 <= s_axi_0_arvalid && !s_axi_0_arready;
    passed <= !s_axi_0_arvalid || of_0 != 0 ? 0 : passed + (r_1 && passed != 3);
  end
  a_answer: assume property (!m_axi_rvalid || out != 0);
  a_held: assume property (!waits_0 || s_axi_0_arvalid);
  one: assert property (out <= 1 && of_0 + of_1 == out);
  whose: assert property ((!s_axi_0_rvalid || of_0 != 0) && (!s_axi_1_rvalid || of_1 != 0));
  in_turn: assert property (passed <= 2);
  second: cover property (of_1 != 0 && waits_0);
  first: cover property (of_0 != 0);
""",
        twins={
            "one": twin(
                ARBITER,
                'm.d.comb += valid.eq(busy & ~given[channel] & chosen(f"{channel}valid"))',
                'm.d.comb += valid.eq(busy & chosen(f"{channel}valid"))',
            ),
            "whose": twin(ARBITER, "return busy & (last == number)", "return busy"),
            "in_turn": twin(
                "hw/logic/in_turn.py",
                "for step in range(len(asking), 0, -1):",
                "for step in range(len(asking) - 1, -1, -1):",
            ),
        },
        reductions="2 managers; addresses of 2 bits; reads (writes pass by the same code)",
    ),
]
