"""``nearmem reproduce``: what it prints, writes and refuses, and how its figures are marked."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from hw_tests.driver.refusals import assert_refused
from hw_tests.driver.trace_reader import assert_sound, read_trace
from sw_driver.cli import main
from sw_driver.system.axdimm import experiments, plots
from sw_driver.system.reproduction import MARKS, Cell, Experiment, page


def _reproduce(*arguments: str) -> int:
    return main(["reproduce", "axdimm", *arguments])


def test_a_mark_is_one_of_three() -> None:
    for mark in MARKS:
        assert Cell(ours=1, mark=mark).mark == mark
    with pytest.raises(ValueError, match="mark is 'measured': expected one of given, calibrated"):
        Cell(ours=1, mark="measured")


@pytest.mark.parametrize(
    ("ours", "kept"),
    [(5, True), (5.001, False), (3, True), (2.999, False), (float("nan"), False)],
)
def test_a_band_ends_where_it_says(ours: float, kept: bool) -> None:
    cell = Cell(ours=ours, paper=4, band=0.25, mark="predicted")
    assert cell.kept is kept
    row = {"": "row", "column": cell}
    found = Experiment(name="test", title="Test", rows=[row]).left
    assert found == ([] if kept else [(row, "column")])
    for unjudged in (Cell(ours=ours, paper=4, mark="given"), Cell(ours=9, mark="given", band=0)):
        assert unjudged.kept


def test_a_cell_says_the_papers_figure_and_its_mark() -> None:
    assert str(Cell(ours=1234.5, mark="predicted")) == "1,234.50"
    assert str(Cell(ours=1.1, paper=1, mark="calibrated", digits=1)) == "1.1 (1.0, +10.0%) c"
    assert str(Cell(ours=1, paper=2, mark="given")) == "1.00 (2.00, -50.0%) g"


def test_a_page_has_all_rows_and_notes_and_each_experiment_its_pictures() -> None:
    one = Experiment(
        name="one",
        title="One",
        rows=[{"a": "x"}, {"a": "y", "b": Cell(ours=1, mark="given")}],
        notes=["Note."],
    )
    two = Experiment(name="two", title="Two", rows=[{"c": "z"}])
    assert page("# Page\n", [one, two], [Path("any/two.svg"), Path("one.more.svg")]) == (
        "# Page\n\n## One\n\n|a|b|\n|---|--:|\n|x||\n|y|1.00 g|\n\nNote.\n\n"
        "![One](one.more.svg)\n\n## Two\n\n|c|\n|---|\n|z|\n\n![Two](two.svg)\n"
    )


def _table6_rows() -> list[dict[str, Any]]:
    one = Cell(ours=90, paper=100, mark="predicted")
    names = [f"{part}: total, s" for part in ("baseline", "module")]
    names += [f"speedup, {what}" for what in ("backward", "total")]
    return [{"": name, "gpt3-a": one, "gpt3-b": one} for name in names]


def test_pictures_are_the_same_each_time(tmp_path: Path) -> None:
    texts = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (path,) = plots.draw_table6(_table6_rows(), tmp_path / name)
        texts.append(path.read_text())
    assert texts[0] == texts[1]


def test_pictures_join_no_models_cut_no_bars_and_hide_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(plots, "save", lambda figure, path: drawn.append(figure) or path)
    plots.draw_table6(_table6_rows(), tmp_path)
    one = Cell(ours=90, mark="predicted")
    busy = [f"{part} busy, %" for part in "abcd"]
    plots.draw_bars([{"variant": "x", "total, s": one} | dict.fromkeys(busy, one)] * 9, tmp_path)
    for figure in drawn:
        figure.canvas.draw()
        legends = [each for axes in figure.axes if (each := axes.get_legend())] + figure.legends
        for axes in figure.axes:
            assert all(line.get_linestyle() == "None" for line in axes.lines)
            linear = (axes.get_xscale(), axes.get_yscale()) == ("linear", "linear")
            assert linear or not axes.patches
            for legend in legends:
                box = legend.get_window_extent()
                assert not any(box.overlaps(bar.get_window_extent()) for bar in axes.patches)
                assert not any(box.overlaps(line.get_window_extent()) for line in axes.lines)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["axdim"], ["paper is 'axdim': did you mean axdimm?"]),
        (["axdimm", "tabel6"], ["experiment is 'tabel6': did you mean table6", "calibration, all"]),
        (["axdimm", "table5", "--set", "gpu"], ["--set is 'gpu': expected KEY=VALUE"]),
        (["axdimm", "table5", "--set", "gpu.flop=1"], ["'gpu.flop': did you mean gpu.tflop_per_s"]),
        (["axdimm", "table5", "--set", "module.read_gb_per_s=x"], ["is 'x': expected a number"]),
        (["axdimm", "calibration", "--set", "gpu.flop=1"], ["'gpu.flop'"]),
        (["axdimm", "table4", "--set", "gpu.flop=1"], ["'gpu.flop'"]),
        (["axdimm", "table6", "--set", "host.capacity_bytes=1"], ["on which nothing depends"]),
        (["axdimm", "figure4", "--set", "gpu.capacity_bytes=100MiB"], ["'gpu'", "104857600 bytes"]),
        (["axdimm", "figure4", "--set", "gpu.capacity_bytes=1GiB"], ["waits for room", "'gpu'"]),
        (
            ["axdimm", "figure4", "--set", "module0.capacity_bytes=500MiB"],
            ["memory 'module0' of 524288000 bytes", "embedding.word_embeddings.weight"],
        ),
    ],
)
def test_what_is_not_there_or_cannot_be_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: list[str]
) -> None:
    assert_refused(capsys, ["reproduce", *arguments, "--json"], said)


def test_a_wrong_name_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for names in (["axdim"], ["axdimm", "tabel6"]):
        assert_refused(capsys, ["reproduce", *names, "--out", str(tmp_path / "new")], ["did you"])
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").touch()
    assert_refused(
        capsys, ["reproduce", "axdimm", "--out", str(tmp_path / "file")], ["cannot create"]
    )


def test_json_has_every_figure_with_its_mark(capsys: pytest.CaptureFixture[str]) -> None:
    assert _reproduce("table5", "--json") == 0
    output = capsys.readouterr()
    assert output.err == ""
    document = json.loads(output.out)
    assert document["paper"] == "axdimm"
    assert document["files"] == []
    (experiment,) = document["experiments"]
    assert experiment["name"] == "table5"
    cells = [each for row in experiment["rows"] for each in row.values() if isinstance(each, dict)]
    assert len(cells) == 6
    assert [each["mark"] for each in cells] == 4 * ["given"] + 2 * ["predicted"]
    for each in cells:
        assert set(each) == {"ours", "paper", "deviation", "mark", "band", "kept"}
        assert each["deviation"] == pytest.approx(each["ours"] / each["paper"] - 1)
    module = experiment["rows"][1]["measured, MP/s"]
    assert module["paper"] == 789.38


def test_the_table_is_printed_with_notes(capsys: pytest.CaptureFixture[str]) -> None:
    assert _reproduce("table5", "table5") == 0
    output = capsys.readouterr().out
    assert output.count("Table 5: Adam") == 1
    assert "140.32 (140.32, +0.0%) g" in output
    assert "No band: another controller." in output


def test_a_figure_outside_of_its_band_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(ours: float) -> Any:
        row = {"": "forward, s", "model": Cell(ours=ours, paper=4, band=0.25, mark="predicted")}
        made = Experiment(name="table6", title="Table 6", rows=[row])
        return lambda changes, progress: made

    monkeypatch.setitem(experiments.EXPERIMENTS, "table6", made(6))
    assert _reproduce("table6") == 1
    assert "Outside of its band: forward, s, model: 6.00 (4.00, +50.0%)" in capsys.readouterr().out
    assert _reproduce("table6", "--json") == 1
    (experiment,) = json.loads(capsys.readouterr().out)["experiments"]
    assert experiment["rows"][0]["model"]["kept"] is False
    assert _reproduce("table6", "--quiet") == 1
    assert capsys.readouterr() == ("", "")
    monkeypatch.setitem(experiments.EXPERIMENTS, "table6", made(5))
    assert _reproduce("table6", "--quiet") == 0


def test_pictures_and_the_timeline_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _reproduce("figure4", "--out", str(tmp_path / "new")) == 0
    files = sorted((tmp_path / "new").iterdir())
    assert [each.name for each in files] == ["figure4.json.gz", "figure4.png", "figure4.svg"]
    output = capsys.readouterr().out
    assert all(str(file) in output for file in files)
    assert files[1].read_bytes().startswith(b"\x89PNG")
    assert files[2].read_text().rstrip().endswith("</svg>")
    trace = read_trace(files[0])
    assert_sound(trace)
    slices = {name: len(found) for name, found in trace.tracks.items()}
    assert slices["queue kernel 0"] + slices["queue kernel 1"] == 292
    assert slices["queue gpu"] == 1416 - 292


def test_with_all_experiments_there_is_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def draw(name: str, *endings: str) -> Any:
        def to(folder: Path) -> list[Path]:
            files = [folder / f"{name}.{ending}" for ending in endings]
            for file in files:
                file.touch()
            return files

        return to

    def experiment(name: str, *endings: str) -> Any:
        drawing = draw(name, *endings) if endings else None
        row = {name: Cell(ours=1, mark="given")}
        made = Experiment(name=name, title=name.title(), rows=[row], draw=drawing)
        return lambda changes, progress: made

    some = {
        "plain": experiment("plain"),
        "drawn": experiment("drawn", "svg"),
        "timed": experiment("timed", "json.gz", "svg", "png"),
    }
    monkeypatch.setattr(experiments, "EXPERIMENTS", some)
    assert _reproduce("drawn", "plain", "timed", "--out", str(tmp_path)) == 0
    assert not (tmp_path / "axdimm.md").exists()
    assert _reproduce("all", "--out", str(tmp_path / "named")) == 0
    assert (tmp_path / "named" / "axdimm.md").exists()
    assert _reproduce("--out", str(tmp_path), "--json") == 0
    text = (tmp_path / "axdimm.md").read_text()
    assert text.startswith(experiments.INTRODUCTION.strip())
    assert [line for line in text.splitlines() if line.startswith("![")] == [
        "![Drawn](drawn.svg)",
        "![Timed](timed.png)",
    ]
    assert str(tmp_path / "axdimm.md") in capsys.readouterr().out


def test_a_picture_that_cannot_be_written_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: Figure, path: Path, **options: Any) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    drawing = partial(plots.draw_table6, _table6_rows())
    made = Experiment(name="table6", title="Table 6", rows=[], draw=drawing)
    monkeypatch.setitem(experiments.EXPERIMENTS, "table6", lambda changes, progress: made)
    monkeypatch.setattr(Figure, "savefig", fail)
    said = ["table6.svg", "No space left on device"]
    assert_refused(capsys, ["reproduce", "axdimm", "table6", "--out", str(tmp_path)], said)
    assert list(tmp_path.iterdir()) == []
