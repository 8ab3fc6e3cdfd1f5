"""Files that appear whole or not at all."""

from __future__ import annotations

import atexit
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Unfinished",
    "drop_unfinished",
    "give_up_unfinished",
    "remove",
    "replacing",
    "write_picture",
    "write_whole",
]

_unfinished: dict[Path, int] = {}
"""Files and folders that are not whole yet, each with the process that writes it."""
_given_up: set[Path] = set()
"""Files and folders that are not kept, since the program was asked to end."""


class Unfinished:
    """A file or folder that has a temporary name, beside ``path``, until it is whole.

    What is no regular file, such as ``/dev/stdout``, is written itself.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        special = path.exists() and not path.is_file() and not path.is_dir()
        self.part = path if special else path.with_name(f".{path.name}.{uuid4().hex}")
        if not special:
            _unfinished[self.part] = os.getpid()

    @property
    def is_given_up(self) -> bool:
        """True if the file will not be kept, so that nothing more needs to be written."""
        return self.part in _given_up

    def keep(self) -> None:
        """Put it in the place of ``path``, unless it was given up."""
        if self.part in _unfinished and not self.is_given_up:
            os.replace(self.part, self.path)
            del _unfinished[self.part]

    def drop(self) -> None:
        """Remove it, unless it was kept; ``path`` is as it was."""
        if self.part in _unfinished:
            remove(self.part)
            del _unfinished[self.part]

    @contextmanager
    def named(self) -> Iterator[None]:
        """Raise an ``OSError`` that names the part or no file with the name of ``path``."""
        try:
            yield
        except OSError as error:
            if error.filename in (None, self.part, str(self.part)):
                text = error.strerror or str(error)
                raise OSError(error.errno, text, str(self.path)) from error
            raise


def give_up_unfinished() -> None:
    """Have none kept of those that there are; what is begun later is."""
    _given_up.update(_unfinished)


@atexit.register
def drop_unfinished() -> None:
    """Remove all that this process has not finished, as nothing goes on with it."""
    for part, process in list(_unfinished.items()):
        if process == os.getpid():
            with suppress(OSError):
                remove(part)
            _unfinished.pop(part, None)


def remove(path: Path) -> None:
    """Remove a file or folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give the name of a file to be written, which takes the place of ``path`` at the block's end.

    If the block raises, ``path`` is as it was. What is no regular file, such as ``/dev/stdout``, is
    written itself. An ``OSError`` that names no file is raised with the name of ``path``.
    """
    new = Unfinished(path)
    try:
        with new.named():
            yield new.part
            new.keep()
    finally:
        new.drop()


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes ``path``, whole or not at all. Raises ``OSError`` with its name."""
    with replacing(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def write_picture(path: Path, figure: Figure, dpi: int | str = "figure") -> Path:
    """Write a figure as SVG or PNG, by the ending, whole or not at all; return its file.

    The same figure gives the same bytes. Raises ``OSError`` with the name of ``path``.
    """
    from matplotlib import rc_context

    form = path.suffix.removeprefix(".")
    metadata = {"Date": None} if form == "svg" else {}
    # With the salt ids are the same each time.
    with rc_context({"svg.hashsalt": "nearmem"}), replacing(path) as part:
        figure.savefig(part, format=form, dpi=dpi, metadata=metadata)
    return path
