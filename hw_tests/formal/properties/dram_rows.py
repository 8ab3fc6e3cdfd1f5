"""Row scheduler of the DRAM controller: tRCD, tRP, tRAS, tWR, tRRD and tFAW at each bank."""

import re
from dataclasses import replace

from hw.dram import rows as row_scheduler
from hw.dram.fabric_timing import FabricTiming
from hw.dram.geometry import DramGeometry
from hw.dram.presets import part
from hw.dram.request import request_layout
from hw_tests.formal import Proof, twin

ROWS = "hw/dram/rows.py"
GEOMETRY = DramGeometry(bank_groups=2, banks_per_group=2, rows=2, columns=256)
# With distances that no other keeps.
TIMING = replace(
    FabricTiming.of(part("ddr4_1600_8gbit_x16").timing),
    activate_to_activate=2,
    activate_to_activate_same_group=3,
    four_activates=12,
)

# Cycles since the last event of each kind, at a bank, a group or all, up to 31.
MONITOR = """
  (* anyconst *) reg [1:0] bank;
  reg [4:0] activated = 31, written = 31, any = 31, in_group = 31;
  reg [4:0] second = 31, third = 31, fourth = 31;
  reg [4:0] wrote = 31;
  wire here = activate && activate_bank == bank;
  wire closes = precharge && precharge_bank == bank;
  wire column = column_issue && column_bank == bank;
  function [4:0] since(input now, input [4:0] cycles);
    since = now ? 1 : cycles == 31 ? 31 : cycles + 1;
  endfunction
  always @(posedge clk) begin
    activated <= since(here, activated);
    written <= since(column && column_write, written);
    any <= since(activate, any);
    second <= activate ? any == 31 ? 31 : any + 1 : since(0, second);
    third <= activate ? second == 31 ? 31 : second + 1 : since(0, third);
    fourth <= activate ? third == 31 ? 31 : third + 1 : since(0, fourth);
    in_group <= since(activate && activate_bank[1] == bank[1], in_group);
    wrote <= since(column_issue && column_write, wrote);
  end
  reg [4:0] time_now = 0;
  always @(posedge clk) time_now <= time_now + 1;
  a_now: assume property (now == time_now);
  // `flush_late` of the refresh scheduler.
  reg [3:0] held = 0;
  always @(posedge clk) held <= !hold ? 0 : held + (held != 8);
  a_flush: assume property (!flush || (hold && held == 8));
  // The queue numbers its requests, and those that are done have been prepared.
  wire finished;
  reg [11:0] planned = 0, ready = 0, done = 0;
  wire [11:0] to_plan = planned - done;
  reg plan_waits = 0;
  reg [PLAN:0] plan_before;
  always @(posedge clk) begin
    planned <= flush ? done : planned + plan_next;
    ready <= flush ? done : ready + prepared;
    done <= done + finished;
    plan_waits <= plan_valid && !plan_next && !flush;
    plan_before <= plan;
  end
  a_planned: assume property (plan_sequence == planned);
  a_done: assume property (column_sequence == done);
  a_finished: assume property (!finished || (done != ready && !hold));
  a_plan: assume property (!plan_waits || (plan_valid && plan == plan_before));
  a_depth: assume property (!plan_valid || to_plan < DEPTH);
  a_columns: assume property (!column_issue || (column_ready && !hold));
"""


REDUCTIONS = (
    "4 banks of 2 rows, DDR4-1600 x16 but tRRD of 2 and 3 and tFAW of 12 cycles, stamps of 5 bits"
)
EARLY = replace(TIMING, four_activates=2)  # the first precharge can come soon
# For tRP, whose proof needs many lemmas: few items and requests.
SMALL = replace(EARLY, activate_to_precharge=3)


def component(timing: FabricTiming) -> row_scheduler.RowScheduler:
    row_scheduler.TIME_BITS = 5  # in a process of its own
    if timing is SMALL:
        row_scheduler._ITEMS, row_scheduler.SEQUENCE_BITS = 4, 5
    return row_scheduler.RowScheduler(geometry=GEOMETRY, timing=timing)


def rows(
    name: str, claims: str, twins: dict, timing: FabricTiming = TIMING, more: str = "", **options
) -> Proof:
    text = re.sub(
        r"STAMP\((.*?)\)",
        lambda match: (
            "".join(f"bank == {n} ? {match[1]}[{n}] : " for n in range(3)) + f"{match[1]}[3]"
        ),
        MONITOR.replace("PLAN", str(request_layout(GEOMETRY).size - 1)) + claims,
    )
    small = timing is SMALL
    text = text.replace("DEPTH", "8" if small else "16")
    text = text.replace("[11:0]", "[4:0]") if small else text
    for field in FabricTiming.__dataclass_fields__:
        text = re.sub(rf"\b{field.upper()}\b", str(getattr(timing, field)), text)
    return Proof(
        name=f"rows-{name}",
        component=lambda: component(timing),
        text=text,
        twins=twins,
        reductions=f"as `rows-activates`, but {more}" if more else REDUCTIONS,
        **options,
    )


def items() -> str:
    """Return lemmas about the items between the stages, the next to be activated first."""
    words = ", ".join(f"dut.items[{place}]" for place in reversed(range(4)))
    text = f"""
  wire [19:0] items = {{{words}}};
  wire [2:0] inside = dut.item_tail - dut.item_head;
  wire [11:0] behind_0 = ready - done;
  wire [11:0] user = (STAMP(dut.last_user)) - done;
  lemma_inside: assert property (inside <= 4);
  lemma_planned: assert property (behind_0 <= to_plan && to_plan <= 8);
  lemma_lasts: assert property (behind_4 == to_plan);
  lemma_open: assert property (dut.planned[bank] || closed >= PRECHARGE_TO_ACTIVATE);
  lemma_held: assert property (closed >= held && closed != 0);
  lemma_second: assert property (!dut.second || plan_waits);
"""
    for place in range(4):
        text += f"""
  wire [1:0] at_{place} = dut.item_head + {place};
  wire [4:0] item_{place} = items >> ({{3'd0, at_{place}}} * 5);
  wire in_{place} = inside > {place};
  wire here_{place} = in_{place} && item_{place}[0] && item_{place}[3:2] == bank;
  wire [11:0] behind_{place + 1} = behind_{place} + (in_{place} && item_{place}[1]);
  // The bank's last user is the item's request or a later one that was planned, all or half.
  lemma_user_{place}: assert property (!here_{place} || (user >= behind_{place}
      && (user < to_plan || (user == to_plan && dut.second && plan_valid
      && bank == {{plan[1], plan[7]}}))));
  lemma_slot_{place}: assert property (!here_{place} || closed >= PRECHARGE_TO_ACTIVATE
      || (closed == 1 ? dut.precharged_1_ago : dut.precharged_2_ago) == {{1'b1, at_{place}}});
"""
    return text


PROOFS = [
    rows(
        "activates",
        """
  t_rcd: assert property (!(column_ready && column_bank == bank)
      || activated >= ACTIVATE_TO_COLUMN);
  t_rrd_s: assert property (!activate || any >= ACTIVATE_TO_ACTIVATE);
  t_rrd_l: assert property (!(activate && activate_bank[1] == bank[1])
      || in_group >= ACTIVATE_TO_ACTIVATE_SAME_GROUP);
  two: cover property (activate && any < 10 && activated < 10 && column_issue);
""",
        {
            "t_rcd": twin(ROWS, "for age in range(1, cycles):", "for age in range(1, cycles - 1):"),
            "t_rrd_s": twin(
                ROWS,
                "m.d.sync += [oldest.eq(oldest + 1), spacing.eq(timing.activate_to_activate - 1)]",
                "m.d.sync += [oldest.eq(oldest + 1)]",
            ),
            "t_rrd_l": twin(ROWS, "& ~group_activated(group)", "& 1"),
        },
    ),
    rows(
        "precharges",
        """
  t_ras: assert property (!closes || activated >= ACTIVATE_TO_PRECHARGE);
  t_wr: assert property (!closes || written >= WRITE_TO_PRECHARGE);
  // The stamps and the recovery are those of the monitor.
  wire [4:0] stamp = STAMP(dut.activated), until = STAMP(dut.released);
  wire [4:0] age = now - stamp, left = until - now;
  lemma_activated: assert property (activated == 31 || age == activated);
  lemma_recovery: assert property (dut.write_recovery <= WRITE_TO_PRECHARGE - 1
      && (wrote >= WRITE_TO_PRECHARGE || dut.write_recovery == WRITE_TO_PRECHARGE - wrote));
  lemma_released: assert property (written >= WRITE_TO_PRECHARGE
      || (left >= WRITE_TO_PRECHARGE - written && left <= WRITE_TO_PRECHARGE));
  lemma_wrote: assert property (wrote <= written);
  written_first: cover property (closes && written < 12 && activated < 20);
""",
        {
            "t_ras": twin(
                ROWS,
                "(self._since(get_activated.data) >= timing.activate_to_precharge)",
                "(self._since(get_activated.data) >= timing.activate_to_precharge - 1)",
            ),
            "t_wr": twin(
                ROWS,
                "self.now + Mux(self.column_write, timing.write_to_precharge, after_read)",
                "self.now + after_read",
            ),
        },
        timing=EARLY,
        more="tFAW of 2 cycles",
    ),
    rows(
        "closed",
        """
  reg [4:0] closed = 31;
  always @(posedge clk) closed <= since(closes, closed);
  t_rp: assert property (!here || closed >= PRECHARGE_TO_ACTIVATE);
  soon: cover property (here && closed == PRECHARGE_TO_ACTIVATE);
"""
        + items(),
        {
            "t_rp": twin(ROWS, "~precharging(items.get.addr)", "~precharging(items.put.addr)"),
        },
        timing=SMALL,
        more="tFAW of 2 and tRAS of 3 cycles; 4 items, 8 requests, numbers of 5 bits",
        engine="ind -F 2",
    ),
    rows(
        "four",
        """
  t_faw: assert property (!activate || fourth >= FOUR_ACTIVATES);
  // The four stamps are those of the monitor, the oldest first.
  wire [1:0] o = dut.oldest;
  wire [19:0] stamps = {dut.recent_activates[3], dut.recent_activates[2],
      dut.recent_activates[1], dut.recent_activates[0]};
  wire [4:0] s1 = stamps >> 5 * o, s2 = stamps >> 5 * ((o + 1) % 4);
  wire [4:0] s3 = stamps >> 5 * ((o + 2) % 4), s4 = stamps >> 5 * ((o + 3) % 4);
  wire [4:0] a1 = now - s1, a2 = now - s2, a3 = now - s3, a4 = now - s4;
  lemma: assert property ((fourth == 31 || a1 == fourth) && (third == 31 || a2 == third)
      && (second == 31 || a3 == second) && (any == 31 || a4 == any));
  five: cover property (activate && fourth < 20);
""",
        {
            "t_faw": twin(
                ROWS,
                "& (self._since(get_recent.data) >= timing.four_activates)",
                "& (self._since(get_recent.data) >= timing.four_activates - 1)",
            ),
        },
        engine="ind -F 2",
    ),
]
