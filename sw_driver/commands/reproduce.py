"""``nearmem reproduce``: papers' claims, and the tables and figures of their systems."""

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
from .screen import print_prose, print_rows, print_table

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
    with all experiments, a page; with all papers, a page of all claims, too (default: none)"""


def run(paper: str, /, *experiments: str, options: Annotated[Options, FLAT] = Options()) -> int:
    """Make the tables and figures of a paper's system again.

    Simulates the system experiments of a paper and prints each figure with the paper's and the
    deviation from it, marked g for given, c for calibrated, unmarked if it is predicted. Exit
    status 1 if a claim of the paper's is missed. With --json all claims are printed. Of all papers,
    only how many claims each has of which verdict is printed, or, with --json, the claims, each
    experiment as PAPER/EXPERIMENT; the status is 0.

    Parameters
    ----------
    paper
        axdimm, hetero-pim, mc-dla, memferry or sentinel, or all
    experiments
        such as table6 (default: all of the paper)
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from sw_driver.device.errors import DeadlockError
    from sw_driver.system.errors import EngineError
    from sw_driver.system.reproduce import (
        ALL,
        COUNTS,
        claims,
        counts,
        reproduce,
        write_claims,
        write_files,
        write_page,
    )

    progress = progress_console(options)
    columns = (
        MofNCompleteColumn(),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    done: dict[str, dict[str, Experiment]] = {}
    shown: dict[str, Experiment] = {}
    took_s: dict[str, float] = {}
    files: list[Path] = []
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
        bar.update(task, total=sum(map(len, made.values())))
        out = options.out
        for of, makers in made.items():
            folder = output_folder(out / of, f"reproduce/{of}") if out is not None else None
            done[of], written, started = {}, {}, time.monotonic()
            for name, make in makers.items():
                began = time.monotonic()
                done[of][name] = make()
                if folder is not None:
                    written[name] = write_files(folder, name, done[of][name])
                bar.advance(task)
                label = f"{of}/{name}" if paper == ALL else name
                shown[label] = done[of][name]
                progress.print(f"{label}: {time.monotonic() - began:.1f} s")
            if out is not None:
                pages += write_page(of, out, done[of], written)
            files += chain(*written.values())
            took_s[of] = time.monotonic() - started
        if out is not None:
            pages += write_claims(out, done)
    if options.json:
        print(json.dumps(claims(shown), indent=2))
    elif not options.quiet:
        if paper == ALL:
            took_s[ALL] = sum(took_s.values())
            rows = [[of, *map(str, n), f"{took_s[of]:.1f}"] for of, n in counts(done).items()]
            print_rows("Claims", ["paper", *COUNTS, "s"], rows, 1)
        else:
            pages = [*files, *pages]
            for experiment in shown.values():
                _print(experiment)
        for file in pages:
            print(file)
    verdicts = [each.verdict for made in shown.values() for each in made.claims.values()]
    return int(paper != ALL and "missed" in verdicts)


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
