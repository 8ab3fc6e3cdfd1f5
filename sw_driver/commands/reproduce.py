"""``nearmem reproduce``: a paper's claims, and the tables and figures of its systems."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from itertools import chain
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
    """folder for all figures, pictures and timelines, each paper's in a folder of its name, and,
    with all experiments, a page (default: none)"""


def run(paper: str, /, *experiments: str, options: Annotated[Options, FLAT] = Options()) -> int:
    """Make the tables and figures of a paper's system again.

    Simulates the system experiments of a paper and prints each figure with the paper's and the
    deviation from it, marked g for given, c for calibrated, unmarked if it is predicted, and e if
    it is excluded from what is judged. Exit status 1 if a claim of the paper's is missed. With
    --json all claims are printed.

    Parameters
    ----------
    paper
        axdimm, hetero-pim, mc-dla, memferry or sentinel
    experiments
        such as table6 (default: all of the paper)
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from sw_driver.device.errors import DeadlockError
    from sw_driver.system.errors import EngineError
    from sw_driver.system.reproduce import claims, reproduce, write_files, write_page

    progress = progress_console(options)
    columns = (
        MofNCompleteColumn(),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    done: dict[str, Experiment] = {}
    files: dict[str, list[Path]] = {}
    pages: list[Path] = []
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
        out = options.out
        folder = output_folder(out / paper, f"reproduce/{paper}") if out is not None else None
        for name, make in made.items():
            began = time.monotonic()
            done[name] = make()
            if folder is not None:
                files[name] = write_files(folder, name, done[name])
            bar.advance(task)
            progress.print(f"{name}: {time.monotonic() - began:.1f} s")
        if out is not None:
            pages = write_page(paper, out, done, files)
    verdicts = [each.verdict for experiment in done.values() for each in experiment.claims.values()]
    if options.json:
        print(json.dumps(claims(done), indent=2))
    elif not options.quiet:
        for experiment in done.values():
            _print(experiment)
        for file in [*chain(*files.values()), *pages]:
            print(file)
    return int("missed" in verdicts)


def _print(experiment: Experiment) -> None:
    from rich.table import Table

    print_prose(experiment.title)
    for block in experiment.blocks:
        if isinstance(block, str):
            print_prose(block)
            continue
        table = Table()
        for number, column in enumerate(block[0]):
            table.add_column(column, justify="right" if number else "left")
        for row in block[1:]:
            table.add_row(*row)
        print_table(table)
    print()
