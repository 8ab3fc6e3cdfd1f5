"""``nearmem reproduce``: what it prints, writes and refuses, and how its figures are marked."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf, nan
from pathlib import Path
from types import ModuleType
from typing import IO, Any, ClassVar

import pytest
from matplotlib.figure import Figure

from hw_tests.driver.refusals import assert_refused
from sw_driver.cli import main
from sw_driver.system import plotting, reproduce
from sw_driver.system.reproduce import COUNTS
from sw_driver.system.reproduction import (
    LEGEND,
    Changes,
    Claim,
    Datum,
    Experiment,
    Progress,
    Row,
    calibrated,
    data,
    given,
    page,
    predicted,
)
from sw_driver.system.runs import Case


def _reproduce(*arguments: str) -> int:
    return main(["reproduce", "axdimm", *arguments])


# Claims.


@pytest.mark.parametrize(
    ("value", "ours", "band", "verdict"),
    [
        # A quarter of 4 either way.
        (4, 5, 0.25, "met"),
        (4, 5.001, 0.25, "missed"),
        (4, 3, 0.25, "met"),
        (4, 2.999, 0.25, "missed"),
        (-4, -5, 0.25, "met"),
        (-4, -5.001, 0.25, "missed"),
        (0, 0, 0.25, "met"),
        (0, 1e-9, 0.25, "missed"),
        # Ends of their own.
        (8, 0, (-inf, 8), "met"),
        (8, 8.1, (-inf, 8), "missed"),
        (3, 2.9, (3, inf), "missed"),
        (3, 900, (3, inf), "met"),
        (3, 4, (1, 4), "met"),
    ],
)
def test_a_band_ends_where_it_says(value: float, ours: float, band: Any, verdict: str) -> None:
    claim = predicted(ours, value, section="1", band=band)
    assert claim.verdict == verdict
    assert given(ours, value, section="1", band=band).verdict == verdict
    assert predicted(ours, band=band).verdict == ""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Claim(ours=1, mark="measured"), "mark is 'measured': did you mean assumed"),
        (lambda: predicted(1, 4, section="1"), "claim 4 is not judged: give a band, or make it"),
        (lambda: given(1, 4, section="1"), "claim 4 is not judged"),
        (lambda: predicted(1, 4, band=0.1), "claim 4 has no section"),
        (lambda: predicted(1, 4, section=" ", band=0.1), "claim 4 has no section"),
        (lambda: predicted(None), "ours is None: expected a number"),  # type: ignore[arg-type]
        (lambda: predicted(1, 4, section="1", band=(4, 3)), r"band is \(4, 3\): expected the lea"),
        (lambda: predicted(1, 4, section="1", band=(nan, 3)), "expected the least, then the most"),
        (lambda: predicted(1, 4, section="1", band=(-inf, inf)), "not both infinite"),
        (lambda: predicted(nan, 4, section="1", band=0.1), "ours is nan: expected a number"),
        (lambda: predicted(inf, 4, section="1", band=(4, inf)), "ours is inf: expected a number"),
        (lambda: predicted(1, nan, section="1", band=0.1), "value is nan: expected a number"),
    ],
)
def test_a_claim_that_is_not_judged_or_is_nowhere_is_refused(
    make: Callable[[], Claim], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("lacks", ["section", "why", "name"])
def test_a_figure_that_is_not_judged_says_where_it_is_and_why(lacks: str) -> None:
    figure = {"name": "host", "section": "3.1", "value": 32, "why": "It is an input."}
    with pytest.raises(ValueError, match=f"the figure 32 has no {lacks}"):
        Datum(**{**figure, lacks: " "})


def test_a_figure_says_the_papers_and_its_marks() -> None:
    assert str(predicted(1234.5)) == "1,234.50"
    assert str(calibrated(1.1, 1, section="1", band=1, digits=1)) == "1.1 (1.0, +10.0%) c"
    assert str(given(1, 2, section="1", band=1)) == "1.00 (2.00, -50.0%) g"
    assert str(predicted(1, 2, section="1", band=0)) == "1.00 (2.00, -50.0%) MISSED"


def _experiment(**changes: Any) -> Experiment:
    row: Row = {"a": "y", "b": given(1), "c": calibrated(2, 4, section="2.1", unit="s", band=0.5)}
    quoted = {
        "at most 3": predicted(2, 3, section="2.2", unit="x", band=(-inf, 3)),
        "ours alone": predicted(5),
    }
    fields = {"title": "One", "rows": [{"a": "x"}, row], "quoted": quoted, "notes": ["Note."]}
    return Experiment(**{**fields, **changes})


def test_a_page_has_all_rows_claims_reasons_and_pictures() -> None:
    two = Experiment(title="Two", rows=[{"c": "z"}])
    figures = data("1", "GB", "It is an input.", {"host": 32})
    made = page("# Page\n", {"one": _experiment(), "two": two}, {"two": ["p/two.svg"]}, figures)
    assert made == (
        f"# Page\n\n{LEGEND}\n**2 claims:** 2 met. 1 figures are not judged, [each "
        "for a reason](claims.md#not-judged).\n\n## One\n\n"
        "|a|b|c|\n|---|--:|--:|\n|x|||\n|y|1.00 g|2.00 (4.00, -50.0%) c|\n\nNote.\n\n"
        "|claim|section|paper|here|deviation|band|verdict|\n|---|--:|--:|--:|--:|--:|--:|\n"
        "|at most 3|2.2|3.00 x|2.00 x|-33.3%|-inf to 3|met|\n"
        "|ours alone|||5.00||||\n\n"
        "Claims (2.1, 2.2): 2 met.\n\n"
        "## Two\n\n|c|\n|---|\n|z|\n\n![Two](p/two.svg)\n"
    )


def test_why_claims_are_missed_is_shown_while_one_is() -> None:
    def page_of(ours: float) -> str:
        claim = predicted(ours, 4, section="1", band=0)
        return _experiment(quoted={"q": claim}, why_missed="2 + 2 is 4.").report.markdown

    assert "\nMissed: 2 + 2 is 4.\n" in page_of(5)
    assert "Missed" not in page_of(4)


def test_no_claim_hides_behind_another() -> None:
    claim = predicted(9, 4, section="1", band=0)
    rows: list[Row] = [{"a": "x", "b": cell, "c": claim} for cell in ("1", "2")]
    assert list(_experiment(rows=rows, quoted={}).claims) == ["a x, b 1, c", "a x, b 2, c"]
    for twice in ({"rows": [rows[0], rows[0]]}, {"rows": rows, "quoted": {"a x, b 1, c": claim}}):
        with pytest.raises(ValueError, match="One: two claims are named 'a x, b 1, c': rename one"):
            _ = _experiment(**twice).claims


# A paper of one's own.


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> dict[str, Experiment]:
    """What a paper named ``toy`` makes, by the experiment's name."""
    made: dict[str, Experiment] = {"one": _experiment()}

    def experiment(name: str, changes: Changes, progress: Progress) -> Experiment:
        return made[name]

    module = ModuleType("toy")
    names = ("one", "two", "drawn", "timed")
    module.EXPERIMENTS = {name: partial(experiment, name) for name in names}  # type: ignore[attr-defined]
    module.INTRODUCTION = "# Toy"  # type: ignore[attr-defined]
    module.DATA = (  # type: ignore[attr-defined]
        *data("3.1", "GB", "It is an input.", {"host": 32, "GPU": 16}, digits=0),
        *data("3.2", "GB", "It is an input.", {"drive": 4096.5}),
    )
    monkeypatch.setitem(sys.modules, "toy", module)
    monkeypatch.setitem(reproduce.PAPERS, "toy", "toy")
    return made


def test_json_is_the_list_of_claims(
    paper: dict[str, Experiment], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "toy", "one", "--json"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    names = ("experiment", "claim", "section", "paper", "ours", "unit", "mark", "band", "verdict")
    assert [tuple(row) for row in json.loads(output.out)["results"]] == 2 * [names]
    assert [tuple(row.values()) for row in json.loads(output.out)["results"]] == [
        ("one", "a y, c", "2.1", 4, 2, "s", "calibrated", 0.5, "met"),
        ("one", "at most 3", "2.2", 3, 2, "x", "predicted", [None, 3], "met"),
    ]


def test_a_claim_that_is_missed_fails(
    paper: dict[str, Experiment], capsys: pytest.CaptureFixture[str]
) -> None:
    paper["two"] = _experiment(rows=[{"a": "y", "c": predicted(6, 4, section="3", band=0.25)}])
    for names in (["two"], ["one", "two"]):
        assert main(["reproduce", "toy", *names]) == 1
        shown = capsys.readouterr().out
        assert "6.00 (4.00, +50.0%) MISSED" in shown
    assert main(["reproduce", "toy", "two", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["results"][0]["verdict"] == "missed"
    assert main(["reproduce", "toy", "two", "--quiet"]) == 1
    assert capsys.readouterr() == ("", "")
    paper["two"] = _experiment(rows=[{"a": "y", "c": predicted(5, 4, section="3", band=0.25)}])
    assert main(["reproduce", "toy", "two", "--quiet"]) == 0


def test_each_experiment_has_its_files_and_all_together_a_page(
    paper: dict[str, Experiment], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def draw(*endings: str) -> Any:
        def to(path: Path) -> list[Path]:
            files = [path.with_suffix(ending) for ending in endings]
            for file in files:
                file.touch()
            return files

        return to

    paper["two"] = _experiment(title="Two")
    paper["drawn"] = _experiment(title="Drawn", draw=draw(".svg"))
    paper["timed"] = _experiment(title="Timed", draw=draw(".json.gz", ".svg"))
    assert main(["reproduce", "toy", "drawn", "two", "timed", "--out", str(tmp_path)]) == 0
    assert sorted(written.name for written in tmp_path.rglob("*")) == [
        *("drawn.json", "drawn.svg", "timed.json", "timed.json.gz", "timed.svg"),
        *("toy", "two.json"),
    ]
    figures = json.loads((tmp_path / "toy" / "two.json").read_text())
    assert (figures["name"], figures["title"], figures["notes"]) == ("two", "Two", ["Note."])
    assert figures["rows"][0] == {"a": "x"}
    assert figures["rows"][1]["b"]["ours"] == 1
    assert figures["quoted"]["at most 3"]["paper"] == 3
    assert main(["reproduce", "toy", "all", "--out", str(tmp_path / "named")]) == 0
    assert (tmp_path / "named" / "toy.md").exists()
    capsys.readouterr()
    assert main(["reproduce", "toy", "--out", str(tmp_path)]) == 0
    assert str(tmp_path / "toy.md") in capsys.readouterr().out
    text = (tmp_path / "toy.md").read_text()
    assert text.startswith("# Toy\n")
    assert [line for line in text.splitlines() if line.startswith("![")] == [
        "![Drawn](toy/drawn.svg)",
        "![Timed](toy/timed.svg)",
    ]


# All papers.


@pytest.fixture
def two(paper: dict[str, Experiment], monkeypatch: pytest.MonkeyPatch) -> dict[str, Experiment]:
    """Two papers, of which ``other`` has an experiment with a claim that is missed, ``two``."""
    module = ModuleType("other")
    module.EXPERIMENTS = {"two": lambda changes, progress: paper["two"]}  # type: ignore[attr-defined]
    module.INTRODUCTION = "# Other: its systems\n\nWords."  # type: ignore[attr-defined]
    module.DATA = ()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "other", module)
    toy = sys.modules["toy"]
    toy.EXPERIMENTS = {"one": toy.EXPERIMENTS["one"]}  # type: ignore[attr-defined]
    monkeypatch.setattr(reproduce, "PAPERS", {"toy": "toy", "other": "other"})
    far = {"name": "y", "c": calibrated(6, 4, section="3", unit="s", band=0.25)}
    rows: list[Row] = [far, {"name": "z", "c": given(1)}]
    paper["two"] = Experiment(title="Table 2 (b): x, %", rows=rows, why_missed="It is far.")
    return paper


def test_all_papers_have_a_page_of_all_claims(
    two: dict[str, Experiment], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "toy", "--out", str(tmp_path)]) == 0
    assert not (tmp_path / "claims.md").exists()
    capsys.readouterr()
    assert main(["reproduce", "all", "--out", str(tmp_path)]) == 0
    output = capsys.readouterr()
    shown = [line.split() for line in output.out.splitlines()]
    assert ["toy", "2", "2", "0", "1"] in [line[:-1] for line in shown]
    assert ["all", "3", "2", "1", "1"] in [line[:-1] for line in shown]
    pages = [str(tmp_path / f"{name}.md") for name in ("toy", "other", "claims")]
    assert output.out.split()[-3:] == pages
    assert "other/two: " in output.err
    text = (tmp_path / "claims.md").read_text()
    assert text.partition("follow, with the reason.\n\n")[2] == (
        "|paper|claims|met|missed|met as calibrated|\n|---|--:|--:|--:|--:|\n"
        "|[Toy](toy.md)|2|2|0|1|\n|[Other](other.md)|1|0|1|0|\n|all|3|2|1|1|\n\n"
        "## Judged\n\n|table or figure|claims|bands|\n|---|--:|--:|\n"
        "|Toy, [One](toy.md#one)|2 met|50 %; -inf to 3|\n"
        "|Other, [Table 2 (b)](other.md#table-2-b-x-)|1 missed|25 %|\n\n"
        "## Missed\n\n|claim|section|paper|here|deviation|band|\n"
        "|---|--:|--:|--:|--:|--:|\n"
        "|**Other, [Table 2 (b)](other.md#table-2-b-x-)**: It is far.||||||\n"
        "|name y, c|3|4.00 s|6.00 s c MISSED|+50.0%|25 %|\n\n"
        "## Not judged\n\n|paper|section|the paper's figures|reason|\n"
        "|---|--:|--:|--:|\n"
        "|Toy|3.1|host: 32 GB; GPU: 16 GB|It is an input.|\n"
        "|Toy|3.2|drive: 4,096.50 GB|It is an input.|\n"
    )
    assert main(["reproduce", "all", "--quiet", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "claims.md").read_text() == text
    assert capsys.readouterr() == ("", "")


def test_json_of_all_papers_names_theirs(
    two: dict[str, Experiment], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "all", "--json"]) == 0
    claims = json.loads(capsys.readouterr().out)["results"]
    assert [claim["experiment"] for claim in claims] == [*2 * ["toy/one"], "other/two"]
    assert claims[-1]["verdict"] == "missed"


def test_the_pages_of_the_papers_have_as_many_claims_as_that_of_all() -> None:
    folder = Path(__file__).parents[3] / "docs" / "papers"
    text = (folder / "claims.md").read_text()
    for paper in reproduce.PAPERS:
        row = text.partition(f"]({paper}.md)|")[2].partition("|\n")[0]
        counts = dict(zip(COUNTS[:-1], map(int, row.split("|")), strict=False))
        page_text = (folder / f"{paper}.md").read_text()
        (line,) = re.findall(r"^\*\*(.* claims:[^.]*)\.", page_text, re.M)
        shown_counts = [part.split() for part in line.replace(":** ", ", ").split(", ")]
        assert {name: int(count) for count, name in shown_counts} == {
            name: count for name, count in counts.items() if count
        }, f"{paper}: run `make reproduce ARGS='--out docs/papers'`"


# Runs.


@dataclass(frozen=True, kw_only=True)
class Variant(Case[int]):
    """Settings of a run."""

    done: ClassVar[list[Variant]] = []

    network: str = "one"
    channels: int
    own_rate: bool = False

    def simulate(self) -> int:
        self.done.append(self)
        if self.channels == 3:
            raise RuntimeError("three")
        return self.channels


def test_equal_cases_are_simulated_once() -> None:
    progress: list[str] = []
    done = Variant.done
    some = {"a.b": "1", "c.d": "2"}
    for changes in (some, dict(reversed(some.items())), some):
        assert Variant(channels=2, changes=changes).result(progress.append) == 2
    assert len(done) == len(progress) == 1
    assert progress == [str(done[0])]
    assert Variant(channels=4, changes=some).result(progress.append) == 4
    assert Variant(channels=2, changes={**some, "c.d": "3"}).result(progress.append) == 2
    assert Variant(channels=2, changes=some, own_rate=True).result(progress.append) == 2
    for _ in range(2):
        with pytest.raises(RuntimeError, match="three"):
            Variant(channels=3).result(progress.append)
    assert len(done) == len(progress) == 6


# Pictures.

PANELS = {"s": ["one", "two"], "x": ["two"]}


def _rows() -> list[Row]:
    """As different as can be: 90 beside 100, and 0.5."""
    one = predicted(90, 100, section="1", band=1)
    return [{"": f"row {number}", "one": one, "two": predicted(0.5)} for number in range(9)]


def test_pictures_are_the_same_each_time(tmp_path: Path) -> None:
    texts = []
    for name in ("one", "other"):
        (path,) = plotting.draw_bars(_rows(), PANELS, tmp_path / name)
        assert path == tmp_path / f"{name}.svg"
        texts.append(path.read_text())
    assert texts[0] == texts[1]


def test_pictures_join_no_models_cut_no_bars_and_hide_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(
        plotting, "write_picture", lambda path, figure: drawn.append(figure) or path
    )
    plotting.draw_bars(_rows(), PANELS, tmp_path)
    plotting.draw_bars(_rows(), PANELS, tmp_path, stacked=True)
    plotting.draw_bars(_rows(), PANELS, tmp_path, stacked=True, shares=True)
    lines: list[Row] = [{"n": str(2**n), "one": given(n), "two": given(n)} for n in range(5)]
    plotting.draw_lines(lines, {"one": "1", "two": "2"}, "x", tmp_path)
    for figure in drawn:
        figure.canvas.draw()
        for axes in figure.axes:
            legend = axes.get_legend()
            assert legend is not None
            box = legend.get_window_extent()
            assert not any(box.overlaps(bar.get_window_extent()) for bar in axes.patches)
            assert not any(box.overlaps(line.get_window_extent()) for line in axes.lines)
            assert axes.get_yscale() == "linear"
            assert axes.get_ylim()[0] == 0
    beside, stacked, shares, _ = drawn
    (papers,) = beside.axes[0].lines
    assert papers.get_linestyle() == "None"
    assert list(papers.get_ydata()) == 9 * [100]  # type: ignore[arg-type]
    assert [bar.get_y() for bar in stacked.axes[0].patches] == 9 * [0] + 9 * [90]  # type: ignore[attr-defined]
    heights = [bar.get_height() for bar in shares.axes[0].patches]  # type: ignore[attr-defined]
    assert heights == pytest.approx(9 * [90 / 0.905] + 9 * [0.5 / 0.905])


def test_pictures_leave_out_what_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(
        plotting, "write_picture", lambda path, figure: drawn.append(figure) or path
    )
    claim = predicted(0, 3, section="1", band=1)
    rows: list[Row] = [{"n": "1", "a": given(2)}, {"n": "2", "a": claim}, {"n": "4"}]
    plotting.draw_bars(rows, {"s": ["a"]}, tmp_path)
    plotting.draw_bars(rows, {"s": ["a"]}, tmp_path, stacked=True, shares=True)
    plotting.draw_lines(rows, {"a": "a"}, "s", tmp_path)
    plotting.draw_bars(rows, {"s": list("abcdefgh")}, tmp_path)
    beside, shares, lines, many = (shown.axes[0] for shown in drawn)
    assert len(many.patches) == 8 * len(rows)
    assert [bar.get_height() for bar in beside.patches] == [2, 0, 0]  # type: ignore[attr-defined]
    assert [bar.get_height() for bar in shares.patches] == [100, 0, 0]  # type: ignore[attr-defined]
    assert [str(value) for value in lines.lines[0].get_ydata()] == ["2.0", "0.0", "nan"]  # type: ignore[union-attr]
    assert [list(axes.lines[-1].get_ydata()) for axes in (beside, lines)] == [[3], [3]]  # type: ignore[arg-type]


# The command.


@pytest.mark.parametrize(
    ("arguments", "phrases"),
    [
        (["axdim"], ["paper is 'axdim': did you mean axdimm?"]),
        (["axdimm", "tabel6"], ["experiment is 'tabel6': did you mean table6"]),
        (["hetero-pim", "figure10"], ["experiment is 'figure10'", "Neurocube", "is not public"]),
        (["all", "table6"], ["'table6' is given, and the paper is 'all'", "PAPER=axdimm"]),
        (
            ["all", "--set", "gpu.tflop_per_s=1"],
            ["'gpu.tflop_per_s=1' is given", "mc-dla, memferry"],
        ),
        (["axdimm", "table5", "--set", "gpu"], ["--set is 'gpu': expected KEY=VALUE"]),
        (["axdimm", "table5", "--set", "gpu.flop=1"], ["'gpu.flop': did you mean gpu.tflop_per_s"]),
        (["axdimm", "table5", "--set", "module.read_gb_per_s=x"], ["is 'x': expected a number"]),
        (["axdimm", "table4", "--set", "gpu.flop=1"], ["'gpu.flop'"]),
        (["axdimm", "table6", "--set", "host.capacity_bytes=1"], ["on which nothing depends"]),
        (["mc-dla", "figure14", "--set", "node.accesses=at_once"], ["on which nothing depends"]),
        (
            ["axdimm", "table6", "--set", "gpu.capacity_bytes=100MiB"],
            ["'gpu'", "never fit into its 104857600"],
        ),
        (["axdimm", "table6", "--set", "gpu.capacity_bytes=1GiB"], ["waits for room", "'gpu'"]),
        (
            ["axdimm", "table6", "--set", "module0.capacity_bytes=500MiB"],
            ["memory 'module0' of 524288000 bytes", "embedding.word_embeddings.weight"],
        ),
    ],
)
def test_what_is_not_there_or_cannot_be_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], phrases: list[str]
) -> None:
    assert_refused(capsys, ["reproduce", *arguments, "--json"], phrases)


def test_a_wrong_name_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for names in (["axdim"], ["axdimm", "tabel6"]):
        assert_refused(capsys, ["reproduce", *names, "--out", str(tmp_path / "new")], ["did you"])
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").touch()
    out = str(tmp_path / "file" / "new")
    assert_refused(capsys, ["reproduce", "axdimm", "--out", out], ["cannot write", "file'"])


def test_the_table_is_printed_with_notes(capsys: pytest.CaptureFixture[str]) -> None:
    assert _reproduce("table5", "table5") == 0
    output = capsys.readouterr().out
    assert output.count("Table 5: Adam") == 1
    assert "140.32 g" in output
    assert "The paper's module has another controller." in output
    assert "Claims (Table 5, 6.2): 3 met." in output


def test_a_picture_that_cannot_be_written_leaves_no_part(
    paper: dict[str, Experiment],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(self: Figure, file: IO[bytes], **options: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    paper["drawn"] = _experiment(draw=partial(plotting.draw_bars, _rows(), PANELS))
    monkeypatch.setattr(Figure, "savefig", fail)
    phrases = ["drawn.svg", "No space left on device"]
    assert_refused(capsys, ["reproduce", "toy", "drawn", "--out", str(tmp_path)], phrases)
    assert [path.name for path in (tmp_path / "toy").iterdir()] == ["drawn.json"]
