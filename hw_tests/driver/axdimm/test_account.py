"""The account of a run: the RTL's counters against the DRAM commands that it gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from golden.dram_timing import check_trace
from hw.axdimm.config import configure
from hw.dram.timing import DramTiming
from hw_tests.driver.adam import ADAM
from hw_tests.driver.axdimm.dram_account import account_trace
from hw_tests.soak import for_soak
from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.backends.rtl import VerilatedTransport
from sw_driver.axdimm.registers import arbiter_registers
from sw_driver.axdimm.runs import DramActivity, RunResult

RUNS: Mapping[str, dict[str, Any]] = {
    "tiny": {"preset": "tiny", "capacity_bytes": 8 << 20},  # as built for the studies
    "tiny without refresh": {"preset": "tiny", "refresh": False},
    "one lane": {"preset": "tiny", "lanes": 1, "refresh_postpone": 1},
}
"""Configurations: the DRAM is the bottleneck, without refreshes, and the kernel is."""

COUNTS = (1, 5000, 16_000)


def _runs(
    settings: dict[str, Any], stagger: bool, path: Path
) -> tuple[VerilatedTransport, list[tuple[int, RunResult]]]:
    """The result of a run of each count, with the fabric cycle before START was written."""
    transport = VerilatedTransport(config=configure(**settings), dram_trace=path, arithmetic=False)
    results = []
    with Axdimm(transport, stagger=stagger) as device:
        device.SetArbiterAcc(0)
        for count in COUNTS:
            pointers = [device.MallocAxdimm(4 * count, 0) for _ in "pmvg"]
            before = transport.fabric_cycles(0)
            run = device.RunAdamOnAxdimmAsync(*pointers, count, *ADAM.values(), 0)
            results.append((before, run.wait()))
            for pointer in pointers:
                device.FreeAxdimm(pointer)
    return transport, results


def _found(
    activity: DramActivity, lines: list[str], before: int, fabric_cycles: int, timing: DramTiming
) -> bool:
    """Whether some stretch of the trace fits; when START arrived after ``before`` is not told."""
    first, last = 4 * (before - 2000), 4 * (before + fabric_cycles + 200)
    near = [line for line in lines[2:] if first <= int(line.split(",", 1)[0]) <= last]
    return any(
        _agrees(activity, near, 4 * begin, 4 * (begin + fabric_cycles), timing)
        for begin in range(before + 20, before + 120)
    )


def _agrees(
    activity: DramActivity, lines: list[str], begin: int, end: int, timing: DramTiming
) -> bool:
    """Whether the run that counted ``activity`` can have been these clocks of the trace."""
    # In steps of four clocks, and the first four are the data's own.
    spacing = -(-timing.write_to_read_l // 4) * 4 - 4
    trace = account_trace(
        lines,
        channel=0,
        begin_tck=begin,
        end_tck=end,
        t_rfc=timing.t_rfc,
        longest_spacing_tck=spacing,
    )
    names = ("data_tck", "activates", "precharges", "refreshes")
    return (
        all(getattr(activity, name) == getattr(trace, name) for name in names)
        and activity.bus_turns == trace.turns
        and trace.refresh_least_tck - 8 <= activity.refresh_tck <= trace.refresh_most_tck
        and activity.turn_around_tck <= trace.turn_around_most_tck
    )


@pytest.mark.parametrize("stagger", [True, False], ids=["staggered", "colliding"])
@pytest.mark.parametrize("name", [next(iter(RUNS)), *for_soak(*list(RUNS)[1:])])
def test_counters_agree_with_the_commands(name: str, stagger: bool, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    transport, results = _runs(RUNS[name], stagger, path)
    timing = transport.config.part.timing
    refresh = transport.config.controller.refresh
    longest_tck = arbiter_registers(transport, 0).read_field("longest_refresh_gap_tck", "count")
    transport.close()
    lines = path.read_text().splitlines()
    report = check_trace(lines, refresh=refresh)
    assert report.violations == []
    if refresh:
        # Read before the end of the trace, and in cycles of four clocks.
        assert longest_tck <= report.longest_refresh_gap + 4
        assert longest_tck <= 9 * timing.t_refi
    for before, result in results:
        activity = result.activity
        assert activity is not None
        assert activity.total_tck == 4 * result.fabric_cycles
        assert activity.data_tck == 4 * (result.beats_read + result.beats_written)
        assert refresh or activity.refreshes == activity.refresh_tck == 0
        assert _found(activity, lines, before, result.fabric_cycles, timing), activity


def test_the_comparison_can_fail(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    transport, results = _runs(RUNS["tiny"], True, path)
    transport.close()
    lines = path.read_text().splitlines()
    before, result = results[1]
    assert result.activity is not None
    timing = transport.config.part.timing
    at = next(
        at
        for at, line in enumerate(lines)
        if ",0,ACT," in line and int(line.split(",")[0]) > 4 * (before + 200)
    )
    cycles = result.fabric_cycles
    assert _found(result.activity, lines, before, cycles, timing)
    assert not _found(result.activity, lines[:at] + lines[at + 1 :], before, cycles, timing)
    more = replace(result.activity, turn_around_tck=result.activity.turn_around_tck + 400)
    assert not _found(more, lines, before, cycles, timing)
