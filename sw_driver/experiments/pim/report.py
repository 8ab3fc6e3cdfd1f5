"""Tables of what a run on the PIM cost, and a map of its banks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from .validation import Comparison

__all__ = [
    "bank_map",
    "comparison_table",
    "core_table",
    "layer_table",
    "notes",
    "pair_table",
    "step_table",
]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


_UNTIMED = {
    "works": ("works", _count),
    "multiplications": ("multiplications", _count),
    "additions": ("additions", _count),
    "bytes_read": ("bytes read", _count),
    "bytes_written": ("bytes written", _count),
}
_TIMED = {
    "cycles": ("cycles", _count),
    "utilisation": ("utilisation of units", _share),
    "gflop_per_s": ("GFLOP/s", lambda value: "" if value is None else f"{value:.2f}"),
    "compute_bound_share": ("share of compute bound", _share),
    "memory_bound_share": ("share of memory bound", _share),
}


def layer_table(figures: Mapping[str, Any]) -> Table:
    """A column for each layer, and one for all together if there are several."""
    layers = figures["layers"]
    table = Table(title=f"Fixed-function PIMs, backend {figures['backend']}")
    table.add_column("")
    for layer in layers:
        table.add_column(f"{layer['layer']} {layer['pass']}", justify="right")
    several = len(layers) > 1
    if several:
        table.add_column("together", justify="right")
    table.add_row("sizes", *(layer["sizes"] for layer in layers))
    if any(layer["sizes"] != layer["published_sizes"] for layer in layers):
        table.add_row("scaled from", *(layer["published_sizes"] for layer in layers))
    shown = _UNTIMED if figures["cycles"] is None else _UNTIMED | _TIMED
    for key, (heading, form) in shown.items():
        cells = [form(layer[key]) for layer in layers]
        if several:
            whole = sum(layer[key] for layer in layers) if key in _UNTIMED else figures[key]
            cells.append(form(whole))
        table.add_row(heading, *cells)
    return table


def step_table(steps: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each step of training."""
    table = Table(title="Steps of training")
    for heading in ("step", "loss", "cycles"):
        table.add_column(heading, justify="right")
    for number, step in enumerate(steps):
        table.add_row(str(number), f"{step['loss']:.4f}", _count(step["cycles"]))
    return table


CORE_PARTS = ("computes", "waits for pools", "for memory", "for cores")
"""What a core does with its cycles."""


def core_cycles(steps: Sequence[Mapping[str, Any]]) -> Iterator[list[int]]:
    """For each core its cycles of all steps, by :data:`CORE_PARTS`."""
    for core in range(len(steps[0]["cores"])):
        names = "cycles", "pool_cycles", "memory_cycles", "barrier_cycles"
        whole, *waits = (sum(step["cores"][core][name] for step in steps) for name in names)
        yield [whole - sum(waits), *waits]


def core_table(steps: Sequence[Mapping[str, Any]]) -> Table:
    """Where the cycles of each core went in all steps."""
    table = Table(title="Cycles of cores, all steps")
    for heading in ("core", "cycles", *CORE_PARTS):
        table.add_column(heading, justify="right")
    for core, parts in enumerate(core_cycles(steps)):
        whole = sum(parts)
        table.add_row(str(core), _count(whole), *(_share(each / whole) for each in parts))
    return table


def schedule_table(
    ranking: Sequence[Mapping[str, Any]], operations: Sequence[Mapping[str, Any]]
) -> Table:
    """For each operation, those to offload first on top, its profile, and how often it ran where,
    with the cycles that it took there the last time."""
    table = Table(title="Operations by rank, and where they ran: times, cycles")
    for heading in ("operation", "ns on CPU", "accesses", "chosen", "ran on"):
        table.add_column(heading, justify="left" if heading.endswith("on") else "right")
    for row in ranking:
        mine = [each for each in operations if each["operation"] == row["operation"]]
        found: dict[str, list[int]] = {}
        for each in sorted(mine, key=lambda each: each["place"]):
            device = "cores" if each["place"].startswith("core ") else each["place"]
            found.setdefault(device, []).append(each["end_cycle"] - each["begin_cycle"])
        ran = ", ".join(f"{name} {len(of)}: {_count(of[-1])}" for name, of in found.items())
        chosen = "yes" if row["chosen"] else ""
        numbers = _count(int(row["time_ns"])), _count(row["accesses"])
        table.add_row(row["operation"], *numbers, chosen, ran)
    return table


def bank_map(figures: Mapping[str, Any]) -> Table | None:
    """The grid of banks: the number and units of each, and the share of the time in which it was
    busy, that is, had a work; None without a clock."""
    busy = figures["busy"]
    if busy is None:
        return None
    columns = figures["columns"]
    table = Table(title="Banks: number, units, share of the time busy", show_header=False)
    table.show_lines = True
    for _ in range(columns):
        table.add_column(justify="right")
    for start in range(0, figures["banks"], columns):
        cells = []
        for bank in range(start, start + columns):
            style = ("red", "yellow", "green")[min(2, int(3 * busy[bank]))]
            cells.append(
                f"{bank} [dim]({figures['bank_units'][bank]})[/dim]\n"
                f"[{style}]{busy[bank]:.0%}[/{style}]"
            )
        table.add_row(*cells)
    return table


def notes(figures: Mapping[str, Any]) -> list[str]:
    """What a reader of the tables has to know."""
    found = []
    if figures["cycles"] is None:
        found.append(
            f"The backend {figures['backend']} has no clock: cycles, utilisation, GFLOP/s, shares "
            "of the bounds and the map of the banks are left out, and bytes are the least that "
            "must move."
        )
    if figures["utilisation_together"] is not None:
        found.append(
            f"Utilisation of all units: {figures['utilisation_together']:.1%} until the first of "
            f"the layers was done, {figures['utilisation']:.1%} in the whole run."
        )
    if figures["cycles_to_seen"] is not None and not figures["shortened"]:
        found.append(
            f"Seen to have completed {figures['cycles_to_seen']:,} cycles after the first write of "
            "its descriptor."
        )
    if figures["shortened"]:
        found.append(
            "The sums are too long to be followed: two runs with parts of them were, and the costs "
            "are extrapolated from these."
        )
    speed = figures["simulated_cycles_per_host_second"]
    if speed is not None:
        found.append(f"Simulated {speed:,.0f} cycles a second of this machine.")
    if figures["wrong_results"] is not None:
        found.append(
            f"Compared with the golden model: {figures['wrong_results']} results differ."
            if figures["wrong_results"]
            else "All results are the golden model's, bit for bit."
        )
    return found


def pair_table(measured: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each pair of layers, from the figures of their runs."""
    table = Table(title="Two layers side by side: until the first is done, and the whole run")
    table.add_column("layers")
    for heading in ("cycles", "units held", "whole run", "utilisation", "whole run"):
        table.add_column(heading, justify="right")
    for figures in measured:
        first, second = figures["layers"]
        table.add_row(
            f"{first['layer']} and {second['layer'].split()[-1]} {first['pass']}",
            _count(figures["cycles"]),
            _share(figures["held_together"]),
            _share(figures["held"]),
            _share(figures["utilisation_together"]),
            _share(figures["utilisation"]),
        )
    return table


def comparison_table(compared: Sequence[Comparison]) -> Table:
    """A row for each that ran in RTL and in the cycle model."""
    table = Table(title="Cycles in RTL and in the cycle model")
    for heading in ("", "sizes"):
        table.add_column(heading)
    for heading in ("operations", "RTL", "model", "error", "error of bytes"):
        table.add_column(heading, justify="right")
    for each in compared:
        table.add_row(
            each.name,
            each.sizes,
            _count(each.rtl.multiplications + each.rtl.additions),
            _count(each.rtl.cycles),
            _count(each.model.cycles),
            f"{each.error:+.2%}",
            f"{each.bytes_error:+.2%}",
        )
    return table
