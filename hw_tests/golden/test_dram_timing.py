"""The trace checker of ``golden``: each rule at its edge, its table against the presets."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from golden.dram_timing import PARTS, CommandChecker, DramTimingTable, check_trace
from hw.dram.presets import DDR4_1600_16GBIT_X8, DDR4_2400_8GBIT_X8
from hw.dram.presets import PARTS as HARDWARE_PARTS
from hw.dram.timing import DramTiming
from hw_tests.dram.probes import PROBE_TIMING, Command, Probe, act, probes
from hw_tests.golden.edges import broken_rules, check_edge, play

TIMINGS = {
    "distinct": PROBE_TIMING,
    "1600": DDR4_1600_16GBIT_X8.timing,
    "2400": DDR4_2400_8GBIT_X8.timing,
}


def _table(timing: DramTiming) -> DramTimingTable:
    values = asdict(timing)
    del values["tck_ps"]
    return DramTimingTable(bank_groups=4, banks_per_group=4, rows=8, columns=1024, **values)


@pytest.mark.parametrize(
    ("timing", "probe"),
    [
        pytest.param(timing, probe, id=f"{name}-{probe.name}")
        for name, timing in TIMINGS.items()
        for probe in probes(timing)
    ],
)
def test_rule_at_its_edge(timing: DramTiming, probe: Probe) -> None:
    check_edge(probe, lambda: CommandChecker(_table(timing)))


def test_data_bus_overlap() -> None:
    table = replace(_table(PROBE_TIMING), t_ccd_s=1, t_ccd_l=1)
    for distance, rules in ((3, ["data bus overlap"]), (4, [])):
        checker = CommandChecker(table)
        play(checker, act(20), Command(60, "RD"), Command(60 + distance, "RD"))
        assert broken_rules(checker) == rules


def test_other_row_and_order_of_time() -> None:
    checker = CommandChecker(_table(PROBE_TIMING))
    checker.command(20, "ACT", 1, 1, row=3)
    checker.command(60, "RD", 1, 1, row=2, column=0)
    checker.command(60, "RD", 1, 1, row=3, column=8)
    assert broken_rules(checker)[:2] == ["other row open", "order of time"]


def test_missing_refresh_at_the_end() -> None:
    timing = PROBE_TIMING
    for end, count in ((9 * timing.t_refi, 0), (9 * timing.t_refi + 1, 1)):
        checker = CommandChecker(_table(timing))
        checker.finish(end)
        assert len(checker.violations) == count
        unrefreshed = CommandChecker(_table(timing), refresh=False)
        unrefreshed.finish(end)
        assert unrefreshed.violations == []


@pytest.mark.parametrize("name", PARTS)
def test_presets_agree_with_the_standard(name: str) -> None:
    expected = PARTS[name]
    part = HARDWARE_PARTS[name]
    for key, value in asdict(part.geometry).items():
        assert value == getattr(expected, key), key
    for key, value in asdict(part.timing).items():
        if key == "t_refi":
            assert value <= expected.t_refi
        elif key != "tck_ps":
            assert value == getattr(expected, key), key
    assert set(PARTS) == set(HARDWARE_PARTS)


HEADER = [
    "# nearmem dram trace v1 preset=tiny tck_ns=1.25\n",
    "tck,channel,command,bank_group,bank,row,column\n",
]


def test_trace_with_two_channels() -> None:
    report = check_trace(
        [
            *HEADER,
            "4,0,ACT,1,2,3,\n",
            "5,1,ACT,1,2,3,\n",
            "16,0,RD,1,2,3,248\n",
            "20,1,WR,1,2,,0\n",
            "100,0,PREA,,,,\n",
            "112,0,REF,,,,\n",
        ]
    )
    assert report.violations == []
    assert report.counts == {"ACT": 2, "RD": 1, "WR": 1, "PREA": 1, "REF": 1}
    assert report.last_tck == 112
    assert report.longest_refresh_gap == 112


def test_channel_that_stood_still() -> None:
    """One channel stops early; only the other, which went on, owes refreshes."""
    end = 9 * PARTS["tiny"].t_refi + 1
    lines = [*HEADER, "4,0,ACT,0,0,1,\n", "5,1,ACT,0,0,1,\n"]
    refreshed = [
        f"{place * PARTS['tiny'].t_refi},0,{name},,,,\n"
        for name, place in (("PREA", 1), *(("REF", place) for place in range(2, 9)))
    ]
    late = f"{end},{{}},PREA,,,,\n"
    assert check_trace([*lines, *refreshed, late.format(0)]).violations == []
    report = check_trace([*lines, late.format(1)])
    assert [violation.rule for violation in report.violations] == ["tREFI"]


def test_geometry_of_the_header() -> None:
    header = HEADER[0].replace("tiny", "tiny bank_groups=2 banks_per_group=4 rows=32 columns=256")
    top = ["4,0,ACT,1,3,31,\n", "16,0,RD,1,3,31,248\n"]
    assert check_trace([header, HEADER[1], *top]).violations == []
    for spoiled, rule in (
        (["4,0,ACT,1,3,32,\n"], "row range"),
        ([top[0], top[1].replace("248", "256")], "column range"),
    ):
        report = check_trace([header, HEADER[1], *spoiled])
        assert [violation.rule for violation in report.violations] == [rule]
    with pytest.raises(ValueError, match="no bank"):
        check_trace([header, HEADER[1], "4,0,ACT,2,0,0,\n"])
    # Without them in the header, the preset's, which has fewer rows.
    assert PARTS["tiny"].rows < 31
    assert [violation.rule for violation in check_trace([*HEADER, top[0]]).violations] == [
        "row range"
    ]


FIGURES = {"bank_groups": 4, "banks_per_group": 4, "rows": 8, "columns": 1024}
FIGURES |= asdict(PROBE_TIMING)


def _head(preset: str, figures: dict[str, int]) -> list[str]:
    text = " ".join(f"{name}={value}" for name, value in figures.items())
    return [f"# nearmem dram trace v1 preset={preset} {text}\n", HEADER[1]]


@pytest.mark.parametrize("preset", ["ddr4_1600_16gbit_x8", "tiny", "tiny_changed"])
def test_timing_of_the_header(preset: str) -> None:
    """Whatever the part is called, each rule has its edge where the header says."""
    for probe in probes(PROBE_TIMING):
        for commands, accepted in probe.variants():
            lines = [
                f"{each.tck},0,{each.name},,,,\n"
                if each.name in ("PREA", "REF")
                else f"{each.tck},0,{each.name},{each.group},{each.bank},"
                f"{each.address if each.name == 'ACT' else ''},"
                f"{each.address if each.name in ('RD', 'WR') else ''}\n"
                for each in commands
            ]
            broken = check_trace([*_head(preset, FIGURES), *lines]).violations
            assert [each.rule for each in broken[:1]] == [probe.rule] * (not accepted)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["tck,channel\n"], "not a dram trace"),
        *(
            (_head("tiny", {n: v for n, v in FIGURES.items() if n != name}), f"lacks {name}")
            for name in asdict(PROBE_TIMING)
            if name != "tck_ps"
        ),
        (_head("tiny", {"t_rcd": 19}), "lacks cl, cwl, t_rp, .*give all of the timing"),
        (_head("mine", {n: v for n, v in FIGURES.items() if n != "columns"}), "lacks columns"),
        (_head("tiny", FIGURES | {"t_rcd": 0}), "t_rcd in the header .* got '0'"),
        ([HEADER[0].replace("tiny", "huge"), HEADER[1]], "known: ddr4"),
        ([HEADER[0].replace("tiny", "tiny rows=0"), HEADER[1]], "rows in the header .* got '0'"),
        ([HEADER[0].replace("tiny", "tiny rows=x"), HEADER[1]], "rows in the header .* got 'x'"),
        ([HEADER[0], "tck,command\n"], "column names"),
        ([*HEADER, "4,0,NAP,,,,\n"], "unknown command"),
        ([*HEADER, "4,0,ACT,0,0,1,\n", "5,0,PRE,0,0\n"], "line 4 is '5,0,PRE,0,0.*expected tck,"),
        ([*HEADER, "4,0,ACT,0,x,1,\n"], "line 3 is .*expected tck,"),
        ([*HEADER, "4,0,ACT,4,0,1,\n"], "no bank"),
        ([*HEADER, "4,0,ACT,0,0,,\n"], "without a row"),
        ([*HEADER, "4,0,RD,0,0,,\n"], "without a column"),
    ],
)
def test_malformed_traces(lines: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_trace(lines)
