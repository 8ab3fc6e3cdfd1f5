"""``nearmem reproduce``: the tables and figures of a paper's systems, ours beside theirs."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from . import (
    FLAT,
    OutputFolder,
    OutputOptions,
    Refusal,
    Settings,
    output_folder,
    progress_console,
    turning,
)
from .screen import print_prose, print_table

if TYPE_CHECKING:
    from sw_driver.system.reproduction import Experiment

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(OutputOptions):
    """Options of the command."""

    set: Settings = ()
    """changes the machine, such as gpu.capacity_bytes=16GiB; may be given several times"""
    out: OutputFolder = None
    """folder for pictures and timelines and, with all experiments, a page (default: none)"""


def run(paper: str, /, *experiments: str, options: Annotated[Options, FLAT] = Options()) -> int:
    """Make the tables and figures of a paper's system again.

    Simulates the system experiments of a paper and prints each figure with the paper's and the
    deviation from it, marked g for given, c for calibrated, and unmarked if it is predicted. Exit
    status 1 if a figure is outside of its band.

    Parameters
    ----------
    paper
        axdimm or mc-dla
    experiments
        such as table6 (default: all of the paper)
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from sw_driver.device.errors import DeadlockError
    from sw_driver.system.errors import EngineError
    from sw_driver.system.reproduce import reproduce, write_page

    progress = progress_console(options)
    columns = (
        MofNCompleteColumn(),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    done: list[Experiment] = []
    files: list[Path] = []
    # Of names, settings, a machine that is too small.
    with (
        turning(ValueError, EngineError, DeadlockError, into=Refusal),
        Progress(
            *columns, console=progress, transient=True, disable=not progress.is_terminal
        ) as bar,
    ):
        task = bar.add_task("")
        made = reproduce(
            paper, experiments, options.set, lambda what: bar.update(task, description=what)
        )
        bar.update(task, total=len(made))
        folder = None
        if options.out is not None:
            folder = output_folder(options.out, f"reproduce/{paper}")
        for name, make in made.items():
            began = time.monotonic()
            experiment = make()
            done.append(experiment)
            if folder is not None and experiment.draw is not None:
                files += experiment.draw(folder)
            bar.advance(task)
            progress.print(f"{name}: {time.monotonic() - began:.1f} s")
        written = write_page(paper, done, files)
        files += [written] if written is not None else []
    if options.json:
        document = {
            "paper": paper,
            "experiments": [each.describe() for each in done],
            "files": [str(file) for file in files],
        }
        print(json.dumps(document, indent=2))
    elif not options.quiet:
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
        print_prose(note)
    for row, column in experiment.left:
        first = next(iter(row.values()))
        print(f"Outside of its band: {first}, {column}: {row[column]}")
    print()
