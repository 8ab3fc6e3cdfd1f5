"""What benches are said to reach: points by their place in the source, and gaps that are argued."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from hw.stream.fifo import StreamFifo
from hw_tests.bench import run_bench
from hw_tests.coverage import __main__ as command
from hw_tests.coverage.points import FOLDER, Points, merged, points_of, watch_builds
from hw_tests.coverage.table import Gap, check_gaps, hardware_lines, load_gaps, reached

FIFO = "hw/stream/fifo.py"

TEXT = """\
module sample (
  (* src = "hw/a.py:1" *)
  reg q;
  wire [1:0] w;
  assign w = q ? 2'd1 : 2'd2;  // src = "hw/a.py:2"
  always @(posedge clk)
    if (q) (* src = "hw/a.py:3" *) begin
      (* src = "hw/a.py:4" *) q <= 1'b0;
    end
endmodule
"""


def test_points_have_their_places(tmp_path: Path) -> None:
    points = [
        ({"l": "3", "t": "toggle", "o": "q:0->1"}, 5),
        ({"l": "4", "t": "toggle", "o": "w[1]:1->0"}, 6),  # without a place
        ({"l": "5", "t": "branch", "o": "cond_then", "S": "5"}, 0),
        ({"l": "7", "t": "branch", "o": "if", "S": "7-8"}, 2),
        ({"l": "7", "t": "branch", "o": "else"}, 1),
    ]
    lines = ["# SystemC::Coverage-3"]
    for fields, count in points:
        joined = "".join(f"\x01{key}\x02{value}" for key, value in fields.items())
        lines.append(f"C '{joined}' {count}")
    file = tmp_path / "coverage.dat"
    file.write_text("\n".join(lines))
    assert points_of(TEXT, file) == {
        "lines": {"hw/a.py:2": 0, "hw/a.py:3": 2, "hw/a.py:4": 2},
        "branches": {
            "hw/a.py:2 first value": 0, "hw/a.py:3 taken": 2, "hw/a.py:3 not taken": 1,
        },
        "toggles": {"hw/a.py:1 :0->1": 5},
    }  # fmt: skip


def test_a_bench_reaches_its_component_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with watch_builds():
        run_bench(
            StreamFifo(shape=12, depth=3),
            top="fifo",
            module="hw_tests.stream.fifo_bench",
            parameters={"depth": 3},
        )
    table = reached(merged(tmp_path))
    fifo, other = table[FIFO], table["hw/stream/bursts.py"]
    assert len(fifo["lines"].hit) > 8
    conditions = [number for number, name in hardware_lines(Path(FIFO).read_text()) if name == "If"]
    assert any({(n, "taken"), (n, "not taken")} <= fifo["branches"].hit for n in conditions)
    assert fifo["toggles"].hit
    assert not other["lines"].hit
    assert not other["branches"].hit
    assert fifo["lines"].missed  # what early FIFOs have besides


def test_lines_that_describe_hardware() -> None:
    text = "with m.If(a):\n    m.d.comb += [\n        b.eq(\n            c\n        )]\nx.If(d)\n"
    assert sorted(hardware_lines(text)) == [(1, "If"), (3, "eq")]


def test_gaps_are_argued_until_they_are_closed() -> None:
    lines = Path(FIFO).read_text().splitlines()
    number, line = next((n, text.strip()) for n, text in enumerate(lines, 1) if ".eq(" in text)
    gap = Gap(file=FIFO, line=line, why="of this test")
    nothing: Points = {name: Counter() for name in ("lines", "branches", "toggles", "built")}
    argued, errors = check_gaps(reached(nothing), [gap])
    assert (FIFO, number) in argued
    assert errors == []
    everywhere = {f"{FIFO}:{n}": 1 for n, text in enumerate(lines, 1) if text.strip() == line}
    closed = nothing | {"built": Counter(everywhere)}
    assert check_gaps(reached(closed), [gap])[1] == [
        f"stale gap, {line!r} of {FIFO} is reached: take it out"
    ]
    gone = Gap(file=FIFO, line="m.d.comb += nothing.eq(0)", why="of this test")
    assert "is not there: take it out" in check_gaps(reached(nothing), [gone])[1][0]


def test_gaps_of_the_list_are_there_and_argued() -> None:
    for gap in load_gaps(command.GAPS):
        lines = [line.strip() for line in (command.ROOT / gap.file).read_text().splitlines()]
        assert gap.line in lines, gap
        assert len(gap.why) > 20, gap


def test_missed_goals_and_stale_gaps_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "PLACE", tmp_path)
    gaps = tmp_path / "gaps.toml"
    gaps.write_text(f'[[gap]]\nfile = "{FIFO}"\nline = "gone"\nwhy = "of this test"\n')
    monkeypatch.setattr(command, "GAPS", gaps)
    assert command.main(["--again"]) == 1
    errors = capsys.readouterr().err
    assert f"stale gap, 'gone' of {FIFO} is not there" in errors
    assert "lines miss their goal" in errors
    assert "branches miss their goal" in errors
    page = (tmp_path / "index.html").read_text()
    assert f'<a href="#{FIFO}">{FIFO}</a>' in page
