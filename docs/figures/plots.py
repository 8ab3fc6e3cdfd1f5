"""The plots: points of sweeps and a timeline, measured here or read from ``measured.json``."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from hw.narrow.formats import MIXTURES
from sw_driver.axdimm.figures import PAPER_CPU_MPARAMS_PER_S, PAPER_MPARAMS_PER_S
from sw_driver.commands import OutputOptions
from sw_driver.commands.screen import Screen
from sw_driver.experiments.sweep import plots
from sw_driver.experiments.sweep.grid import Grid
from sw_driver.experiments.sweep.run import run_sweep
from sw_driver.experiments.training.precision import beside_fp32, train_digits, train_gpt
from sw_driver.files import write_picture, write_whole
from sw_driver.fpga.synthesis import RESOURCES
from sw_driver.simulator.buildcache import build_root

__all__ = ["write_plots"]

SUSTAINED = 4_194_304

LANES = "lanes=1,2,4,8,16"
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "double_buffering.py"

Rows = list[dict[str, Any]]


def write_plots(folder: Path, measured: Path, *, measure: Sequence[str]) -> Iterator[Path]:
    """Draws all plots into ``folder``; yields each file when it is there.

    ``measured`` has what takes minutes to find; what ``measure`` names is measured and written.
    """
    stored = json.loads(measured.read_text())
    if measure:
        stored |= {name: MEASURED[name]() for name in measure}
        write_whole(measured, json.dumps(stored, indent=2) + "\n")
        yield measured

    yield write_picture(folder / "result.svg", _result(stored["sustained"]))
    yield write_picture(folder / "precision.svg", _precision(stored["formats"], stored["losses"]))
    grid, rows = _sweep(
        f"count={1 << 20}",
        "block_bytes=1KiB,2KiB,4KiB,8KiB,16KiB,32KiB,64KiB",
        "stagger=true,false",
    )
    yield write_picture(folder / "blocks.svg", plots.throughput(grid, rows, "block_bytes"))
    grid, rows = _sweep(f"count={SUSTAINED}", LANES)
    rows = [row | stored["resources"][str(row["lanes"])] for row in rows]
    yield write_picture(folder / "area.svg", plots.area(grid, rows))

    path = folder / "timeline.svg"
    runpy.run_path(str(EXAMPLE))["main"]("cycles", path)
    yield path


def _sweep(
    fixed: str,
    *axes: str,
    backend: str = "cycles",
    config: str | None = None,
    resources: bool = False,
) -> Any:
    grid = Grid.parse(backend=backend, config=config, counts=None, fixed=[fixed], axes=axes)
    folder = build_root() / "figures"
    with Screen(OutputOptions()) as watch:
        return grid, run_sweep(grid, folder, resources=resources, watch=watch)


def _sustained() -> dict[str, Any]:
    """What both channels reach in RTL with 4 Mi parameters each, and whether it is bit-exact."""
    _, (row,) = _sweep(f"count={SUSTAINED}", backend="rtl")
    wanted = ("count", "mparams_per_s", "efficiency", "bit_exact")
    return {name: row[name] for name in wanted} | {
        "ceiling": row["ceiling_mparams_per_s"],
        "refresh_limit": row["refresh_limit"],
    }


def _resources() -> dict[str, dict[str, int]]:
    _, rows = _sweep(f"count={SUSTAINED}", LANES, resources=True)
    return {str(row["lanes"]): {name: row[name] for name in RESOURCES} for row in rows}


def _formats() -> dict[str, dict[str, Any]]:
    """What both channels reach in RTL in each mixture of formats, with 1 Mi parameters each."""
    axis = f"formats={','.join(MIXTURES)}"
    _, rows = _sweep(f"count={1 << 20}", axis, backend="rtl", config="axdimm_narrow")
    wanted = ("bytes_per_parameter", "ceiling_mparams_per_s", "mparams_per_s", "bit_exact")
    return {row["formats"]: {name: row[name] for name in wanted} for row in rows}


def _losses() -> dict[str, dict[str, list[float]]]:
    """The differences to FP32's loss in %, their mean and standard deviation over seeds, by what is
    trained and mixture. PyTorch has to be installed."""
    found = {}
    for name, train, seeds in (("digits", train_digits, 8), ("GPT", train_gpt, 5)):
        found[name] = {
            mixture: [float(percent.mean()), float(percent.std(ddof=1))]
            for mixture, _, percent in beside_fp32(train, MIXTURES, range(1, seeds + 1))
        }
    return found


MEASURED = {
    "sustained": _sustained,
    "resources": _resources,
    "formats": _formats,
    "losses": _losses,
}
"""What is stored, by its name, and who measures it."""


def _result(sustained: dict[str, Any]) -> Figure:
    """Throughput here and in the paper, beside what the DRAM could do."""
    ceiling = sustained["ceiling"]
    bars = [
        ("DRAM's peak bandwidth, 25.6 GB/s", ceiling, "#d5dbe1"),
        ("of that, what refresh leaves", ceiling * sustained["refresh_limit"], "#d5dbe1"),
        ("here, in RTL, 4 Mi parameters a channel", sustained["mparams_per_s"], "#4c78a8"),
        ("AXDIMM, measured in the paper", PAPER_MPARAMS_PER_S, "#f58518"),
        ("CPU of the paper, one core", PAPER_CPU_MPARAMS_PER_S, "#bab0ac"),
    ]
    figure = Figure(figsize=(8.6, 2.7), layout="constrained")
    axes = figure.subplots()
    for place, (_, speed, color) in enumerate(bars):
        axes.barh(place, speed, color=color, height=0.7)
        axes.text(speed + 8, place, f"{speed:.0f}", va="center", fontsize=9)
    axes.set_yticks(range(len(bars)), [name for name, *_ in bars], fontsize=9)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlim(0, 1000)
    axes.set_xlabel("Adam, million parameters a second (MP/s), two channels; the CPU has 6.4 GB/s")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


_TITLES = {
    "fp32": "FP32",
    "bf16_g": "BF16 g",
    "bf16_g_8bit": "BF16 g, 8-bit m, v",
    "bf16_gp_8bit": "BF16 g, p, 8-bit m, v",
}


def _precision(formats: dict[str, Any], losses: dict[str, Any]) -> Figure:
    """Throughput over the difference of the loss, of what is trained in a panel each."""
    figure = Figure(figsize=(8.6, 3.6), layout="constrained")
    panels = figure.subplots(1, len(losses), sharey=True)
    for axes, (trained, percent) in zip(panels, losses.items(), strict=True):
        axes.axvline(0, color="#d5dbe1", zorder=0)
        for mixture, row in formats.items():
            mean, deviation = percent[mixture]
            speed = row["mparams_per_s"]
            axes.errorbar(mean, speed, xerr=deviation, fmt="o", color="#4c78a8", capsize=3)
            label = f"{_TITLES[mixture]}: {row['bytes_per_parameter']:.4g} bytes"
            place = 0, -16 if mixture == "fp32" else 8
            axes.annotate(label, (mean, speed), place, textcoords="offset points", ha="center")
        axes.set_xlabel(f"{trained}: difference to FP32's loss, %")
        axes.margins(x=0.6, y=0.2)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel("Adam, MP/s, two channels")
    return figure
