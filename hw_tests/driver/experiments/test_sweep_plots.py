"""Plots of sweeps: they show every figure, and nothing covers anything else."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.lines import Line2D

from sw_driver.axdimm.figures import PAPER_MPARAMS_PER_S
from sw_driver.axdimm.measure import FIGURES
from sw_driver.experiments.sweep.grid import Grid
from sw_driver.experiments.sweep.plots import area, throughput, write_plots

GRIDS = {
    "lanes and blocks": ["lanes=1,2,4,8,16", "block_bytes=1KiB,2KiB,4KiB,8KiB,16KiB,32KiB,64KiB"],
    "presets": ["preset=axdimm,axdimm_8gbit_x16,axdimm_ddr4_2400", "refresh=true,false"],
    "counts": ["count=1000,10000,100000,1000000,10000000,100000000", "t_rfc=440,560"],
    "many": ["lanes=1,2,4,8,16", "queue_depth=8,16,32,64,128", "stagger=true,false"],
    "rules": ["rules=adam,sgd,fill", "lanes=4,16"],
    "a point": [],
}


def sweep(name: str) -> tuple[Grid, list[dict[str, Any]]]:
    """The grid called ``name`` with invented figures."""
    axes = GRIDS[name]
    counts = None if any(axis.startswith("count") for axis in axes) else "1000000"
    grid = Grid.parse(backend="rtl", config=None, counts=counts, fixed=[], axes=axes)
    rng = np.random.default_rng(1)
    rows = []
    for point in grid.points():
        config = point.config()
        rule = config.kernel.update_rules[0]
        ceiling = config.channels * config.fabric_mhz * 64 / rule.bytes_per_parameter
        rows.append(
            {
                **dict.fromkeys(FIGURES),
                **point.settings,
                "mparams_per_s": ceiling * rng.uniform(0.5, 1),
                "ceiling_mparams_per_s": ceiling,
                "onchip_bytes": config.onchip_bytes,
            }
        )
    return grid, rows


def draw(figure: Figure) -> Any:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas.get_renderer()


def heights(line: Line2D) -> Any:
    return np.asarray(line.get_ydata())


@pytest.mark.parametrize("name", GRIDS)
def test_nothing_overlaps(name: str) -> None:
    grid, rows = sweep(name)
    figures = [throughput(grid, rows, axis) for axis in grid.axes]
    figures += [area(grid, rows)]
    for figure in figures:
        renderer = draw(figure)
        (axes,) = figure.axes
        (legend,) = figure.legends
        frame = legend.get_window_extent(renderer)
        page = figure.bbox
        assert frame.x0 >= 0
        assert frame.y0 >= 0
        assert frame.x1 <= page.x1
        assert not frame.overlaps(axes.get_tightbbox(renderer))
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            labels = [
                label
                for label, place in zip(axis.get_ticklabels(), axis.get_ticklocs(), strict=True)
                if low <= place <= high
            ]
            assert labels
            boxes = [label.get_window_extent(renderer) for label in labels]
            for box in boxes:
                assert page.x0 <= box.x0
                assert box.x1 <= page.x1
            if not any(label.get_rotation() for label in labels):
                assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_throughput_has_a_line_a_combination_and_the_references() -> None:
    grid, rows = sweep("lanes and blocks")
    (axes,) = throughput(grid, rows, "block_bytes").axes
    assert axes.get_xscale() == "log"
    lines = {str(line.get_label()): line for line in axes.get_lines()}
    for lanes in (1, 2, 4, 8, 16):
        line = lines[f"lanes {lanes}"]
        expected = [row["mparams_per_s"] for row in rows if row["lanes"] == lanes]
        assert list(heights(line)) == expected
        assert list(line.get_xdata()) == [1 << power for power in range(10, 17)]
    levels = [heights(line)[0] for line in lines.values() if line.get_linestyle() in ("--", ":")]
    assert levels == pytest.approx([914.2857, PAPER_MPARAMS_PER_S])
    assert len(lines) == 7


def test_a_ceiling_that_moves_is_drawn_as_it_moves() -> None:
    grid, rows = sweep("presets")
    (axes,) = throughput(grid, rows, "preset").axes
    (marks,) = [line for line in axes.get_lines() if line.get_marker() == "_"]
    assert list(heights(marks)) == pytest.approx([914.2857, 914.2857, 1371.977], abs=1e-3)
    (axes,) = throughput(*sweep("rules"), "lanes").axes
    (marks,) = [line for line in axes.get_lines() if line.get_marker() == "_"]
    assert len(heights(marks)) == 6


def test_names_and_switches_are_not_joined() -> None:
    grid, rows = sweep("presets")
    for axis in grid.axes:
        (axes,) = throughput(grid, rows, axis).axes
        marks = [line for line in axes.get_lines() if line.get_marker() == "o"]
        assert sum(len(heights(line)) for line in marks) == len(rows)
        assert {line.get_linestyle() for line in marks} == {"None"}
        places = [place for line in marks for place in line.get_xdata()]
        assert len(set(places)) == len(places)
    (axes,) = throughput(*sweep("lanes and blocks"), "lanes").axes
    assert {line.get_linestyle() for line in axes.get_lines() if line.get_marker() == "o"} == {"-"}


def test_an_axis_that_does_not_begin_at_zero_says_so() -> None:
    grid, rows = sweep("counts")
    for speeds, begins in ((range(800, 812), "begins at 700"), (range(100, 112), "")):
        for row, speed in zip(rows, speeds, strict=True):
            row["mparams_per_s"] = speed
        (axes,) = throughput(grid, rows, "count").axes
        assert begins in axes.get_ylabel()
        assert ("begins" in axes.get_ylabel()) == (axes.get_ylim()[0] != 0)
        assert axes.get_xlabel() == "count (parameters of each channel)"


def filled(figure: Figure) -> list[float]:
    (axes,) = figure.axes
    marks = [line for line in axes.get_lines() if line.get_marker() == "o"]
    return [
        np.asarray(mark.get_xdata())[0] for mark in marks if mark.get_markerfacecolor() != "none"
    ]


def test_what_costs_more_and_does_no_more_is_hollow() -> None:
    grid, rows = sweep("lanes and blocks")
    speeds = {1: 400, 2: 800, 4: 850, 8: 850, 16: 840}
    rows = [row | {"mparams_per_s": speeds[row["lanes"]]} for row in rows]
    by_lanes = [row for row in rows if row["block_bytes"] == 4096]
    figure = area(grid, [row | {"luts": 1000 * row["lanes"]} for row in by_lanes])
    assert filled(figure) == [1000, 2000, 4000]
    assert "lookup tables" in figure.axes[0].get_xlabel()
    by_block = [row for row in rows if row["lanes"] == 4]
    figure = area(grid, by_block)
    assert filled(figure) == [by_block[0]["onchip_bytes"] / 1024]
    assert "KiB" in figure.axes[0].get_xlabel()


def test_files_are_written_and_show_something(tmp_path: Path) -> None:
    grid, rows = sweep("presets")
    rows[0] |= dict.fromkeys(FIGURES)
    paths = write_plots(tmp_path, grid, rows)
    assert [path.name for path in paths] == ["throughput_preset.png", "throughput_refresh.png"]
    for path in paths:
        pixels = imread(path)[:, :, :3].reshape(-1, 3)
        inked = np.any(pixels < 0.9, axis=1).mean()
        assert 0.01 < inked < 0.7
        assert len(np.unique(pixels.round(1), axis=0)) > 20


def test_points_that_differ_in_area_have_a_plot_of_it(tmp_path: Path) -> None:
    grid, rows = sweep("many")
    rows = [row | {"luts": 10_000 * row["lanes"]} for row in rows]
    assert "area.png" in [path.name for path in write_plots(tmp_path, grid, rows)]


def test_without_figures_there_is_nothing_to_draw(tmp_path: Path) -> None:
    grid, rows = sweep("counts")
    assert write_plots(tmp_path, grid, [row | dict.fromkeys(FIGURES) for row in rows]) == []
    assert write_plots(tmp_path, grid, []) == []
