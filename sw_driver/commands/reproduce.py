"""``nearmem reproduce``: the tables and figures of a paper's systems, ours beside theirs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import (
    Refusal,
    add_output_options,
    output_folder,
    print_table,
    progress_console,
)

if TYPE_CHECKING:
    from sw_driver.system.reproduction import Experiment

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Describes the options."""
    parser = subparsers.add_parser(
        "reproduce",
        help="make the tables and figures of a paper's system again",
        description="Simulates the system experiments of a paper and prints each figure with the "
        "paper's and the deviation from it, marked g for given, c for calibrated, and unmarked if "
        "it is predicted. Exit status 1 if a figure is outside of its band.",
    )
    parser.add_argument("paper", metavar="PAPER", help="axdimm or mc-dla")
    parser.add_argument(
        "experiments",
        nargs="*",
        metavar="EXPERIMENT",
        help="such as table6 (default: all of the paper)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="changes the machine, such as gpu.capacity_bytes=16GiB; may be given several times",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for pictures and timelines and, with all experiments, a page (default: none)",
    )
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Simulates and prints."""
    from sw_driver.system.errors import EngineError
    from sw_driver.system.reproduce import reproduce, write_page

    progress = progress_console(arguments)
    done: list[Experiment] = []
    files: list[Path] = []
    try:
        with progress.status("simulating") as status:
            experiments = reproduce(
                arguments.paper, arguments.experiments, arguments.set, status.update
            )
            folder = None
            if arguments.out is not None:
                folder = output_folder(arguments.out, f"reproduce/{arguments.paper}")
            for experiment in experiments:
                done.append(experiment)
                if folder is not None and experiment.draw is not None:
                    files += experiment.draw(folder)
            written = write_page(arguments.paper, done, files)
            files += [written] if written is not None else []
    except (ValueError, EngineError) as error:  # of names, settings, a machine that is too small
        raise Refusal(str(error)) from error
    if arguments.json:
        document = {
            "paper": arguments.paper,
            "experiments": [each.describe() for each in done],
            "files": [str(file) for file in files],
        }
        print(json.dumps(document, indent=2))
    elif not arguments.quiet:
        for experiment in done:
            _print(experiment)
        for file in files:
            print(file)
    return int(any(experiment.left for experiment in done))


def _print(experiment: Experiment) -> None:
    from rich.table import Table

    columns = experiment.columns
    table = Table(title=experiment.title)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in experiment.rows:
        table.add_row(*(str(row.get(column, "")) for column in columns))
    print_table(table)
    for note in experiment.notes:
        print(note)
    for row, column in experiment.left:
        first = next(iter(row.values()))
        print(f"Outside of its band: {first}, {column}: {row[column]}")
    print()
