"""Refresh scheduler: how many are owed, how far apart they are, and when all is flushed."""

from dataclasses import replace

from hw.dram.fabric_timing import FabricTiming
from hw.dram.presets import TINY
from hw.dram.refresh import RefreshScheduler
from hw_tests.formal import Proof, twin

REFRESH = "hw/dram/refresh.py"
TIMING = replace(FabricTiming.of(TINY.timing), refresh_interval=16, refresh_to_activate=8)

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
    )
]
