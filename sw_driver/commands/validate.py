"""``nearmem validate``: the cycle model against RTL."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from . import FLAT, Failure, OutputOptions, integer, progress_console
from .screen import print_prose, print_table

if TYPE_CHECKING:
    from rich.table import Table

    from sw_driver.experiments.validation import Comparison

__all__ = ["Options", "run"]

MOST_ERROR = 0.01
"""What the model promises."""


@dataclass(frozen=True, kw_only=True)
class Options(OutputOptions):
    """Options of the command. Even ``quiet``, the summary is printed."""

    configurations: Annotated[int, integer(1)] = 64
    """how many"""
    seed: Annotated[int, integer(0, metavar="S")] = 1
    """of the drawing"""


def run(options: Annotated[Options, FLAT] = Options()) -> int:
    """Compare the cycle model with the RTL.

    Draws random configurations (update rule, lanes, block size, buffers, DRAM part and timing,
    controller, placement of the tensors, their formats, count, refresh), runs each in RTL and asks
    the cycle model for the same. Prints both and the errors. Every eight configurations share a
    build of the simulator, which takes some twenty seconds. The exit status is 1 if the model is
    off by 1 % or more.
    """
    from rich.progress import track

    from sw_driver.device.transport import DeviceTimeout
    from sw_driver.experiments.validation import compare, draw

    comparisons: list[Comparison] = []
    try:
        for group in track(
            draw(options.configurations, options.seed),
            description="comparing",
            console=progress_console(options),
        ):
            comparisons += compare(group, announce=lambda _: None)
    except (RuntimeError, DeviceTimeout) as error:
        raise Failure(f"the RTL failed: {error}") from error
    errors = [abs(each.error) for each in comparisons]
    figures = {
        "configurations": len(comparisons),
        "seed": options.seed,
        "exact": sum(error == 0 for error in errors),
        "median_error": statistics.median(errors),
        "max_error": max(errors),
        "max_account_error": max(each.account_error for each in comparisons),
    }
    if options.json:
        print(json.dumps({**figures, "runs": [_described(each) for each in comparisons]}))
    else:
        _summarize(figures, comparisons, quiet=options.quiet)
    if figures["max_error"] >= MOST_ERROR:
        raise Failure(f"the model is off by {figures['max_error']:.3%}, more than 1 %")
    return 0


def _summarize(figures: dict[str, Any], comparisons: list[Comparison], *, quiet: bool) -> None:
    if not quiet:
        print_table(_table(comparisons))
    print_prose(
        f"{figures['configurations']} configurations, seed {figures['seed']}: "
        f"{figures['exact']} exact, error of the fabric cycles: median "
        f"{figures['median_error']:.3%}, largest {figures['max_error']:.3%}; of a share of the "
        f"time: largest {figures['max_account_error']:.3%}"
    )


def _described(comparison: Comparison) -> dict[str, Any]:
    group, trial = comparison.group, comparison.trial
    return {
        "preset": group.preset,
        **group.settings,
        "placement": trial.placement,
        "formats": asdict(trial.formats),
        "addresses": trial.addresses,
        "count": trial.count,
        "rest_fabric_cycles": trial.rest_fabric_cycles,
        "rtl": comparison.rtl,
        "model": comparison.model,
        "error": comparison.error,
        "account_error": comparison.account_error,
    }


def _table(comparisons: list[Comparison]) -> Table:
    from rich.table import Table

    table = Table(title="Fabric cycles from START to DONE")
    for heading in ("configuration", "placement"):
        table.add_column(heading)
    for heading in ("parameters", "RTL", "model", "error", "shares"):
        table.add_column(heading, justify="right")
    before = None
    for each in comparisons:
        group = each.group
        shown = "" if group is before else _settings(group.preset, group.settings)
        before = group
        table.add_row(
            shown,
            each.trial.placement,
            f"{each.trial.count:,}",
            f"{each.rtl['cycles']:,}",
            f"{each.model['cycles']:,}",
            f"{each.error:+.3%}",
            f"{each.account_error:.3%}",
        )
    return table


def _settings(preset: str, settings: dict[str, Any]) -> str:
    hidden = ("channels", "capacity_bytes")
    return " ".join(
        [preset, *(f"{name}={value}" for name, value in settings.items() if name not in hidden)]
    )
