"""The host's requests in the cycle model: cases worked out by hand, and its shortcut."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from hw.axdimm.config import ModuleConfig, configure
from sw_driver.predict.axdimm import (
    ChannelState,
    HostTraffic,
    HostTransfer,
    RefreshState,
    TensorAddresses,
    predict,
)

PAPER = configure()
WITHOUT_REFRESH = configure(refresh=False)
TWO_GROUPS = configure(part="ddr4_1600_8gbit_x16")

# In fabric cycles. A read leaves the port's queue, is offered to the controller, admitted, planned
# and prepared; its data take CL 11 and four tCK, are in the port two cycles later and are answered
# after another two.
QUEUED = 2
OFFERED = 2
PREPARED = 3
DATA = 4
BACK = 2
ANSWERED = 2
OPEN_ROW = QUEUED + OFFERED + PREPARED + DATA + BACK + ANSWERED
CLOSED_ROW = OPEN_ROW + 2
"""tRCD is three cycles, one of which is taken anyway."""


def fresh(config: ModuleConfig, read_latency: int, elapsed: int = 0) -> HostTraffic:
    """All banks closed, and nothing owed."""
    state = ChannelState(refresh=RefreshState(owed=0, elapsed_fabric_cycles=elapsed))
    config = replace(config, read_latency_fabric_cycles=read_latency)
    return HostTraffic(config, state, begin=0)


@pytest.mark.parametrize("write", [False, True])
def test_a_read_is_late_if_its_data_take_longer_than_the_latency(write: bool) -> None:
    for first, more in ((CLOSED_ROW, 0), (CLOSED_ROW - 1, 1)):
        traffic = fresh(WITHOUT_REFRESH, first)
        late = [] if write or not more else [(0, 2)]
        assert traffic.transfer(write=write, line=0, lines=20, cycle=100) == (138, late)
    traffic = fresh(WITHOUT_REFRESH, OPEN_ROW)
    traffic.transfer(write=False, line=0, lines=20, cycle=100)
    assert traffic.transfer(write=False, line=20, lines=20, cycle=140) == HostTransfer(178, [])
    traffic = fresh(WITHOUT_REFRESH, OPEN_ROW - 1)
    assert traffic.transfer(write=False, line=0, lines=20, cycle=100) == HostTransfer(
        138, [(0, 20)]
    )


def test_what_comes_during_a_refresh_is_late() -> None:
    """All that is asked for until 41 cycles before it is over, and half as much behind it."""
    interval, refresh = 1560, 110
    latency = 48
    traffic = fresh(PAPER, latency)
    last, late = traffic.transfer(write=False, line=0, lines=256, cycle=interval - 256)
    assert last == interval - 256 + 2 * 255
    # Due in the last cycle of the interval, owed in the next: columns up to then are given. Then
    # precharge, tRP, refresh, tRFC, and the row is opened as if it had been asked for just then.
    last_column = interval
    decided = interval
    opened = decided + 1 + 3 + refresh
    column = opened + 1 + 3
    first = (last_column - (OPEN_ROW - DATA - BACK - ANSWERED)) // 2 * 2 + 2
    waits = column - first
    # One column a cycle from there on, and one line every other.
    in_time = latency - ANSWERED - BACK - DATA
    assert late == [((first - (interval - 256)) // 2, waits - in_time)]
    assert sum(lines for _, lines in late) > 70


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("config", [PAPER, TWO_GROUPS])
def test_lines_of_an_open_row_may_be_served_together(
    monkeypatch: pytest.MonkeyPatch, config: ModuleConfig, write: bool
) -> None:
    def outcome(line: int, elapsed: int) -> tuple[list[HostTransfer], ChannelState, object]:
        traffic = fresh(config, 48, elapsed)
        transfers = []
        cycle = 0
        for lines in (5000, 1, 300, 3000):
            transfers.append(traffic.transfer(write=write, line=line, lines=lines, cycle=cycle))
            line += lines + 200
            cycle = transfers[-1].last_cycle + 2
        return transfers, traffic.state(cycle + 100), traffic.tally

    starts = [(line, elapsed) for line in (0, 77, 250) for elapsed in (0, 601, 1203)]
    together = [outcome(*start) for start in starts]
    monkeypatch.setattr(HostTraffic, "_is_open", lambda *_: False)
    for start, expected in zip(starts, together, strict=True):
        assert outcome(*start) == expected, start


def test_the_host_waits_when_each_line_needs_another_row_of_a_bank() -> None:
    traffic = fresh(WITHOUT_REFRESH, 48)
    rows = PAPER.part.geometry.bursts_per_row * PAPER.part.geometry.banks
    cycle = 0
    asked = []
    for number in range(400):
        cycle = traffic.transfer(write=True, line=number * rows, lines=1, cycle=cycle).last_cycle
        asked.append(cycle)
        cycle += 2
    # Until the queues are full at the link's pace, then as fast as a row is opened and closed: from
    # a write to the precharge (tWR), tRP and tRCD.
    assert asked[100] == 200
    assert asked[-1] - asked[-2] == 6 + 3 + 3


def test_a_rest_after_a_run_may_be_interrupted_anywhere() -> None:
    """Also while refreshes are given in a row and an interval ends; the host begins there, too."""
    rng = random.Random(3)
    addresses = [index << 20 for index in range(7)]
    placement = TensorAddresses(inputs=tuple(addresses[:4]), outputs=tuple(addresses[4:]))
    ahead = 0
    for _ in range(60):
        refresh = RefreshState(owed=0, elapsed_fabric_cycles=rng.randrange(1560))
        start = ChannelState(refresh=refresh)
        count = rng.randint(1, 20_000)
        after = predict(PAPER, placement, count, start, unit_latency=77).state
        for first in rng.sample(range(1200), 40):
            second = rng.randrange(400)
            between = after.after_rest(PAPER, first)
            ahead += between.refresh.elapsed_fabric_cycles < 0
            whole = after.after_rest(PAPER, first + second)
            assert between.after_rest(PAPER, second) == whole, (first, second)
            HostTraffic(PAPER, between, begin=first).idle_from(first)
    assert ahead > 0
