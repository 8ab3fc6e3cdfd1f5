"""Refresh scheduler: how many are owed, how far apart they are, and when all is flushed."""

from dataclasses import replace

from hw.dram.fabric_timing import FabricTiming
from hw.dram.presets import TINY
from hw.dram.refresh import RefreshScheduler
from hw_tests.formal import Proof, twin

REFRESH = "hw/dram/refresh.py"
TIMING = replace(FabricTiming.of(TINY.timing), refresh_interval=16, refresh_to_activate=8)
FORCED = "(owed >= Mux(promptly, 1, self._postpone)) | (periods >= MAX_POSTPONED_REFRESHES)"

PROOFS = [
    Proof(
        name="refresh",
        component=lambda: RefreshScheduler(
            timing=TIMING, enabled=True, postpone=2, pull_in=1, idle_cycles=4, reset_cycles=4
        ),
        text="""
  reg [3:0] held = 0, since_refresh = 15, since_all = 15;
  reg refreshed = 0;
  always @(posedge clk) begin
    held <= !hold ? 0 : held + (held != 8);
    since_refresh <= refresh ? 1 : since_refresh + (since_refresh != 15);
    since_all <= precharge_all ? 1 : since_all + (since_all != 15);
    refreshed <= !hold ? 0 : refreshed || refresh;
  end
  a_held: assume property (!hold || !(activate || read || write));
  flush_late: assert property (!flush || (hold && held == 8 && refreshed));
  t_rfc: assert property (!(refresh || flush) || since_refresh >= 8 - 3 * flush);
  t_rp: assert property (!refresh || since_all >= T_RP);
  held_still: assert property (!(refresh || precharge_all) || hold);
  batch: cover property (refresh && since_refresh == 8);
  closes: cover property (refresh && since_all == T_RP);
""".replace("T_RP", str(TIMING.precharge_to_activate)),
        twins={
            "flush_late": twin(
                REFRESH, "m.d.comb += self.refresh.eq(1)", "m.d.comb += self.refresh.eq(owed > 1)"
            ),
            "t_rfc": twin(
                REFRESH,
                "m.d.sync += wait.eq(timing.refresh_to_activate - 1)",
                "m.d.sync += wait.eq(timing.refresh_to_activate - 2)",
            ),
            "t_rp": twin(
                REFRESH,
                "m.d.sync += wait.eq(timing.precharge_to_activate - 1)",
                "m.d.sync += wait.eq(timing.precharge_to_activate - 2)",
            ),
            "held_still": twin(
                REFRESH, "m.d.comb += self.hold.eq(~running)", "m.d.comb += self.hold.eq(wait != 0)"
            ),
        },
        reach=120,
        reductions="tREFI of 16 cycles, tRFC of 8, 2 postponed; nothing is issued in a hold",
    ),
    Proof(
        name="refresh-debt",
        component=lambda: RefreshScheduler(
            timing=replace(TIMING, refresh_interval=32),
            enabled=True,
            postpone=8,
            pull_in=2,
            idle_cycles=4,
            reset_cycles=4,
        ),
        text="""
  reg [4:0] elapsed = 0;
  reg signed [5:0] owed = 0;
  reg [8:0] since = 0;
  always @(posedge clk) begin
    elapsed <= elapsed + 1;
    owed <= owed + $signed({1'b0, elapsed == 31}) - $signed({1'b0, refresh});
    since <= refresh ? 1 : since + (since != 511);
  end
  a_held: assume property (!hold || !(activate || read || write));
  postponed: assert property (owed <= 8);
  in_advance: assert property (owed >= -2);
  gap: assert property (since <= 9 * 32);
  long: cover property (refresh && since > 8 * 32);
  early: cover property (owed == -2);
  // The next refresh comes within so many cycles if it is forced.
  reg [5:0] ahead;
  always @*
    case (dut.fsm_state)
      0: ahead = dut.wait_ + 12;
      1: ahead = 11;
      2: ahead = dut.unsettled + 3;
      3: ahead = dut.wait_;
      4: ahead = dut.wait_ + 13;
      default: ahead = dut.wait_ + 12;
    endcase
  wire settles = dut.fsm_state == 2 || dut.fsm_state == 3;
  lemma_state: assert property (dut.fsm_state <= 5 && dut.running == (dut.fsm_state == 1)
      && dut.wait_ <= 8 && (dut.wait_ == 0 || (dut.fsm_state != 1 && dut.fsm_state != 2)));
  lemma_same: assert property (dut.owed == owed && dut.elapsed == elapsed);
  lemma_periods: assert property (since <= 32 * dut.periods + elapsed + 1 && dut.periods <= 8
      && owed >= $signed({1'b0, dut.periods}) - 2 && (!settles || owed > -2));
  lemma_ahead: assert property ((owed < 8 && dut.periods < 8) || elapsed + ahead < 32);
""",
        twins={
            "postponed": twin(
                REFRESH,
                "m.d.sync += unsettled.eq(Mux(events > remaining, events, remaining))",
                "m.d.sync += unsettled.eq(Mux(events > remaining, events, unsettled))",
            ),
            "in_advance": twin(
                REFRESH,
                "elective.eq(idle & ((owed > 0) | ((owed > -self._pull_in) & (allowance != 0)))),",
                "elective.eq(idle & ((owed > 0) | ((owed >= -self._pull_in) & (allowance != 0)))),",
            ),
            "gap": twin(
                REFRESH,
                FORCED,
                FORCED.replace("periods >=", "periods >"),
            ),
        },
        engine="ind -F 2",
        reach=400,
        reductions="tREFI of 32 cycles, tRFC of 8, 8 postponed, 2 in advance; nothing is issued in "
        "a hold",
    ),
]
