"""Pictures of a comparison: what is hollow, cut off, missing, named; the same bytes each time."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from hw_tests.driver.system.compare.test_comparison import GB
from sw_driver.system.compare import figures
from sw_driver.system.compare.comparison import Row
from sw_driver.system.compare.figures import PICTURES, draw
from sw_driver.system.compare.system import System
from sw_driver.system.outcome import Outcome

NOTHING = Outcome(step_ns=0, parts_ns={}, peak_bytes={})
NAMES = ("one", "two", "three", "four")
SYSTEMS = tuple(
    System(name=name, mark="predicted", needs=lambda *_: {}, run=lambda *_: NOTHING)
    for name in NAMES
)


def a_row(number: int, step_ns: int, gpu_bytes: int, reason: str = "") -> Row:
    """Of a step of which half is computed; cannot run if it takes no time."""
    made = Outcome(
        step_ns=step_ns, parts_ns={"computing": step_ns // 2}, peak_bytes={"gpu": gpu_bytes}
    )
    return Row(
        system=SYSTEMS[number],
        needs={},
        outcome=made if step_ns else None,
        reason=reason,
        energy_j=None,
        largest_parameters=None,
    )


HERE = [
    a_row(0, 0, 0, "needs at least 20.0 GB of gpu, which has 9.0"),
    a_row(1, 10**9, 8 * GB),
    a_row(2, 11 * 10**8, 4 * GB),
    a_row(3, 20 * 10**9, 0),
]
MORE = [a_row(0, 5 * 10**8, 20 * GB), a_row(1, 8 * 10**8, 16 * GB), *HERE[2:]]
LESS, MUCH = ([row.outcome for row in rows] for rows in (HERE, MORE))
CASES = {
    "memory": {9 * GB: LESS, 18 * GB: MUCH},
    "links": {0.5: LESS, 1: LESS, 2: MUCH, 4: MUCH},
    "batch": {0.5: MUCH, 1: LESS, 2: LESS, 4: [None] * 4},
}


@pytest.fixture(autouse=True)
def _families(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FAMILIES", {"ours": SYSTEMS[:1], "theirs": SYSTEMS[1:]})
    monkeypatch.setattr(figures, "DRAWN", ("one", "two", "four"))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Figure]:
    figures_by_name: dict[str, Figure] = {}

    def keep(path: Path, figure: Figure) -> Path:
        figures_by_name[path.stem] = figure
        return path

    monkeypatch.setattr(figures, "write_picture", keep)
    draw("net on v100", HERE, CASES, 9 * GB, tmp_path)
    return figures_by_name


def test_hollow_is_what_takes_more_than_there_is(drawn: dict[str, Figure]) -> None:
    (axes,) = drawn["pareto"].axes
    faces: dict[tuple[float, float], bool] = {}
    for line in axes.lines[:-1]:
        hollow = line.get_markerfacecolor() == "white"
        faces |= {(float(x), float(y)): hollow for x, y in np.asarray(line.get_xydata())}
    assert faces == {(20, 0.5): True, (8, 1): False, (16, 0.8): True}
    assert [text.get_text() for text in axes.texts] == ["this GPU, 9.0 GiB", "two", "one"]


def test_bars_are_cut_off_or_say_why_there_is_none(drawn: dict[str, Figure]) -> None:
    (axes,) = drawn["parts"].axes
    assert [text.get_text() for text in axes.texts] == [
        "cannot: needs at least 20.0 GB of gpu, which has 9.0", "1.0 s", "1.1 s", "20.0 s →",
    ]  # fmt: skip
    assert axes.get_xlim() == (0, pytest.approx(1.1 * 3 * 1.1))
    widths = [patch.get_width() for patch in axes.patches]
    assert widths == pytest.approx([0.5, 0, 0, 0.5, 0.55, 0, 0, 0.55, 10, 0, 0, 10])


def test_lines_have_gaps_and_their_names_are_apart(drawn: dict[str, Figure]) -> None:
    memory, links, batch = drawn["sensitivity"].axes
    assert [text.get_text() for text in batch.texts] == ["four", "two", "one"]
    heights = sorted(text.xyann[1] for text in batch.texts)
    assert min(b - a for a, b in pairwise(heights)) >= 0.0449
    assert heights[-1] <= 1
    one = links.lines[0]
    assert [*one.get_xdata()] == [0.5, 1, 2, 4]
    assert str([*map(float, one.get_ydata())]) == "[nan, nan, 0.5, 0.5]"
    assert str([*map(float, memory.lines[0].get_ydata())]) == "[nan, 0.5]"


def test_names_make_room_for_each_other_below_the_top() -> None:
    heights = dict(figures._apart({"a": 0.5, "b": 0.5, "c": 0.99, "d": 0.99}))
    assert heights == pytest.approx({"a": 0.5, "b": 0.545, "c": 0.955, "d": 1})


def test_pictures_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        folder.mkdir()
        files = draw("net on v100", HERE, CASES, 9 * GB, folder)
        assert [file.name for file in files] == [f"{name}.svg" for name in PICTURES]
    for name in PICTURES:
        first, second = ((folder / f"{name}.svg").read_bytes() for folder in folders)
        assert first == second
        assert b": net on v100" in first
