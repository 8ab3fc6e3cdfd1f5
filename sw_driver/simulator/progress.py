"""Progress display of a build."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Stage", "build_progress"]

Stage = Callable[[str, int, int], None]
"""Function that takes a step's name, the finished files and all files; 0 of 0 for other steps."""


@contextmanager
def build_progress(about: str, announce: Callable[[str], None] | None) -> Iterator[Stage]:
    """Send ``announce`` a message when the build of ``about`` begins and ends.

    Without ``announce`` stderr shows the messages; a terminal also shows progress.
    """
    began = time.monotonic()
    beginning = f"building {about} (the first time with these sources and settings)"

    def end() -> str:
        return f"built in {time.monotonic() - began:.0f} s"

    if announce is None and sys.stderr.isatty():
        # Load rich only if there is something to show.
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
