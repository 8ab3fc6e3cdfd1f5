"""What is seen of a build while it goes on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Stage", "build_progress"]

Stage = Callable[[str, int, int], None]
"""Is told what is being done, and how many of how many files are; 0 of 0 if it is not of files."""


@contextmanager
def build_progress(what: str, announce: Callable[[str], None] | None) -> Iterator[Stage]:
    """Tells ``announce`` when the build of ``what`` begins and when it is over.

    Without ``announce`` stderr shows this; on a terminal, also how far it is.
    """
    began = time.monotonic()
    beginning = f"building {what} (the first time with these sources and settings)"

    def end() -> str:
        return f"built in {time.monotonic() - began:.0f} s"

    if announce is None and sys.stderr.isatty():
        # Only loaded when there is something to show.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True, highlight=False)
        console.print(beginning)
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=None)

            def show(stage: str, done: int, total: int) -> None:
                text = f"{stage}, {done} of {total} files" if total else stage
                bar.update(task, description=text, completed=done, total=total or None)

            yield show
        console.print(end())
        return
    tell = announce or (lambda text: print(f"nearmem: {text}", file=sys.stderr, flush=True))
    tell(beginning)
    yield lambda stage, done, total: None
    tell(end())
