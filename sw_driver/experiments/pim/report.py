"""Reports of layers on the fixed-function PIMs: cycles, rates, bounds, a map of the banks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sw_driver.report import Report, Table, Watch, count, share

from ...pim.backends import open_pim
from ...pim.device import Pim
from . import measure, networks
from .shortening import run_shortened, worth_shortening

if TYPE_CHECKING:
    from hw.pim.config import PimConfig

    from .networks import Scaled

__all__ = ["pairs", "report"]

Figures = Mapping[str, Any]

_UNTIMED: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "works": ("works", count),
    "multiplications": ("multiplications", count),
    "additions": ("additions", count),
    "bytes_read": ("bytes read", count),
    "bytes_written": ("bytes written", count),
}
_TIMED: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "cycles": ("cycles", count),
    "utilisation": ("utilisation of units", share),
    "gflop_per_s": ("GFLOP/s", lambda value: "" if value is None else f"{value:.2f}"),
    "compute_bound_share": ("share of compute bound", share),
    "memory_bound_share": ("share of memory bound", share),
}


def report(
    layers: Sequence[Scaled], pass_name: str, config: PimConfig, *, seed: int = 1, **options: Any
) -> Report:
    """Run a pass of layers side by side; report its cost by layer and by bank.

    The report is not good if a result differs from the golden model's. ``options``: ``backend``,
    ``dram_trace`` and ``watch``. Errors are those of
    :func:`~sw_driver.experiments.pim.measure.place_jobs`.
    """
    stack, figures = _measured(layers, pass_name, config, seed=seed, **options)
    grid = _bank_map(figures)
    trace = options.get("dram_trace")
    return _checked(
        figures["wrong_results"],
        results=figures,
        parts=[_layer_table(figures), *([grid] if grid else [])],
        notes=_notes(figures),
        machine=asdict(stack),
        workload={
            "layers": [f"{name}, {layer.describe()}" for name, layer, _ in layers],
            "pass": pass_name,
            "seed": seed,
        },
        files=[trace] if trace else [],
    )


def pairs(
    config: PimConfig, *, images: int, most_products: int, seed: int = 1, **options: Any
) -> Report:
    """Run pairs of layers of AlexNet and VGG-19 and report them; else as :func:`report`."""
    measured = [
        _measured(
            networks.scaled(network, names, images, most_products),
            pass_name,
            config,
            seed=seed,
            **options,
        )[1]
        for network, *names, pass_name in networks.PAIRS
    ]
    columns: dict[str, Callable[[Figures], str]] = {
        "layers": lambda figures: _pair_name(*figures["layers"]),
        "cycles": lambda figures: count(figures["cycles"]),
        "units held": lambda figures: share(figures["held_together"]),
        "whole run": lambda figures: share(figures["held"]),
        "utilisation": lambda figures: share(figures["utilisation_together"]),
        "utilisation, whole run": lambda figures: share(figures["utilisation"]),
    }
    title = "Two layers side by side: until the first one ends, and over the whole run"
    return _checked(
        sum(figures["wrong_results"] or 0 for figures in measured),
        results=measured,
        parts=[Table.of(title, measured, columns)],
        machine=asdict(config),
        workload={"pairs": [*networks.PAIRS], "images": images, "seed": seed},
    )


def _checked(wrong_results: int | None, **parts: Any) -> Report:
    complaint = f"{wrong_results} results differ from the golden model's"
    return Report(**parts, complaints=[complaint] * bool(wrong_results), is_good=not wrong_results)


def _measured(
    layers: Sequence[Scaled],
    pass_name: str,
    config: PimConfig,
    *,
    backend: str = "golden",
    seed: int,
    dram_trace: Path | None = None,
    watch: Watch = Watch(),
) -> tuple[PimConfig, dict[str, Any]]:
    """Return the stack and the figures of a pass of layers, on its own device.

    Results are compared with the golden model if the backend computes and has a clock.
    """
    stack, jobs = measure.place_jobs(layers, pass_name, config)
    with Pim(open_pim(backend, stack, announce=watch.log, dram_trace=dram_trace)) as device:
        is_long = worth_shortening(device.transport, jobs)
        works = sum(len(job.program.works) for job in jobs) << is_long
        # The first item marks the beginning, each of the others a completed work.
        ticks = watch.track(range(works), "works")
        next(ticks, None)
        if is_long:
            done = run_shortened(stack, jobs[0], completed=lambda: next(ticks, None))
        else:
            done = measure.run_jobs(device, jobs, seed=seed, completed=lambda: next(ticks, None))
        figures = measure.figures(device, jobs, done)
        figures["wrong_results"] = None
        if device.transport.timed and device.transport.computes:
            watch.say("golden model")
            figures["wrong_results"] = measure.check_bits(device, jobs, seed=seed)
    return stack, figures


def _layer_table(figures: Figures) -> Table:
    """Return a table with a column for each layer, and one for all if there are several."""
    layers = figures["layers"]
    several = len(layers) > 1
    headings = ["", *(f"{layer['layer']} {layer['pass']}" for layer in layers)]
    rows = [["sizes", *(layer["sizes"] for layer in layers)]]
    if any(layer["sizes"] != layer["published_sizes"] for layer in layers):
        rows.append(["scaled from", *(layer["published_sizes"] for layer in layers)])
    rows = [[*row, *[""] * several] for row in rows]
    shown = _UNTIMED if figures["cycles"] is None else _UNTIMED | _TIMED
    for key, (heading, form) in shown.items():
        values = [layer[key] for layer in layers]
        whole = [sum(values) if key in _UNTIMED else figures[key]] * several
        rows.append([heading, *map(form, [*values, *whole])])
    return Table(
        title=f"Fixed-function PIMs, backend {figures['backend']}",
        headings=headings + ["together"] * several,
        rows=rows,
    )


def _bank_map(figures: Figures) -> Table | None:
    """Return the grid of banks, with number, units and share of time busy; None without a clock.

    A bank is busy while it has a work.
    """
    busy, columns = figures["busy"], figures["columns"]
    if busy is None:
        return None
    cells = [
        f"{bank} ({units})\n{part:.0%}"
        for bank, (units, part) in enumerate(zip(figures["bank_units"], busy, strict=True))
    ]
    return Table(
        title="Banks: number, units, share of the time busy",
        headings=[""] * columns,
        rows=[cells[start : start + columns] for start in range(0, len(cells), columns)],
        words=(),
        is_grid=True,
    )


def _notes(figures: Figures) -> list[str]:
    """Return the notes below the tables."""
    notes = []
    if figures["cycles"] is None:
        notes.append(
            f"The backend {figures['backend']} has no clock: cycles, utilisation, GFLOP/s, shares "
            "of the bounds and the map of the banks are left out; bytes are the least that must "
            "move."
        )
    if figures["utilisation_together"] is not None:
        notes.append(
            f"Utilisation of all units: {figures['utilisation_together']:.1%} until the first "
            f"layer ended, {figures['utilisation']:.1%} in the whole run."
        )
    if figures["cycles_to_seen"] is not None and not figures["shortened"]:
        notes.append(
            f"The host saw completion {figures['cycles_to_seen']:,} cycles after the first write "
            "of the descriptor."
        )
    if figures["shortened"]:
        notes.append(
            "The sums are too long to simulate: costs are extrapolated from two runs with parts of "
            "them."
        )
    speed = figures["simulated_cycles_per_host_second"]
    if speed is not None:
        notes.append(f"Simulated {speed:,.0f} cycles per second of host time.")
    if figures["wrong_results"] == 0:
        notes.append("All results equal the golden model's, bit for bit.")
    return notes


def _pair_name(first: Figures, second: Figures) -> str:
    return f"{first['layer']} and {second['layer'].split()[-1]} {first['pass']}"
