"""Reports: what programs, pages and people see of the same figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sw_driver.commands import OutputOptions
from sw_driver.commands.screen import Screen, show
from sw_driver.report import Report, Table, Watch, count, engineering, milliseconds, share

TABLE = Table.of(
    "Steps",
    [("one", 1_500_000), ("two [/b]", 2_000)],
    {"system": lambda row: row[0], "a step": lambda row: milliseconds(row[1])},
)
REPORT = Report(
    title="Two systems",
    results={"one_ns": 1_500_000},
    parts=[TABLE, "The first is slower."],
    notes=["A note."],
    assumptions=["One GPU.", "No gaps."],
    machine={"name": "v100"},
    workload={"name": "gpt"},
    files=[Path("a.svg")],
)


def test_programs_get_the_same_keys_always(capsys: pytest.CaptureFixture[str]) -> None:
    assert show(REPORT, OutputOptions(json=True)) == 0
    assert json.loads(capsys.readouterr().out) == {
        "results": {"one_ns": 1_500_000},
        "assumptions": ["One GPU.", "No gaps."],
        "machine": {"name": "v100"},
        "workload": {"name": "gpt"},
        "files": ["a.svg"],
    }
    assert [*Report(results=[]).describe()] == [*REPORT.describe()]


def test_people_get_all_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert show(REPORT, OutputOptions()) == 0
    shown = " ".join(capsys.readouterr().out.replace("─", " ").split())
    assert shown == (
        "Two systems Steps system a step one 1.500 ms two [/b] 0.002 ms The first is slower. "
        "A note. Assumed: 1. One GPU. 2. No gaps. Written: a.svg"
    )


def test_a_page_has_a_section_and_what_is_assumed() -> None:
    assert REPORT.markdown == (
        "## Two systems\n\n|system|a step|\n|---|--:|\n|one|1.500 ms|\n|two [/b]|0.002 ms|\n\n"
        "The first is slower.\n\nA note.\n\n## What is assumed\n\n1. One GPU.\n2. No gaps.\n"
    )


def test_complaints_are_seen_though_all_else_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    bad = Report(results=1, complaints=["a differs"], is_good=False)
    assert show(bad, OutputOptions(quiet=True)) == 1
    assert capsys.readouterr() == ("", "nearmem: a differs\n")
    assert show(bad, OutputOptions(json=True)) == 1
    output = capsys.readouterr()
    assert json.loads(output.out)["results"] == 1
    assert output.err == "nearmem: a differs\n"


def test_lines_part_rows_and_grids_have_no_headings(capsys: pytest.CaptureFixture[str]) -> None:
    parted = Table(headings=["", "n"], rows=[["a", "1"], [], ["b", "2"]])
    assert parted.markdown == "||n|\n|---|--:|\n|a|1|\n|b|2|"
    grid = Table(headings=["left", "right"], rows=[["a", "1"]], is_grid=True)
    show(Report(results=None, parts=[parted, grid]), OutputOptions())
    shown = capsys.readouterr().out
    assert "left" not in shown
    first, second = (shown.index(f"  {row}  ") for row in ("a", "b"))
    assert shown[first:second].count("\n") == 2


@pytest.mark.parametrize("quiet", [False, True])
def test_what_is_watched_comes_whole_and_leaves_nothing_on_stdout(
    quiet: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with Screen(OutputOptions(quiet=quiet)) as watch:
        for each in (watch, Watch()):
            each.say("begins")
            assert [*each.track(iter("abc"), "letters", total=3)] == ["a", "b", "c"]
            each.log("[done]")
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == ("" if quiet else "[done]\n")


def test_numbers_have_units() -> None:
    assert (count(1234.4), count(None)) == ("1,234", "")
    assert (share(0.1234), share(0.1234, 2), share(None)) == ("12.3%", "12.34%", "")
    assert engineering(1.5e9, "B") == "1.5 GB"
