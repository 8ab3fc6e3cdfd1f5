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
"""Unfinished files and folders, with the process that writes each."""
_given_up: set[Path] = set()
"""Unfinished files and folders that are not kept, because the program was asked to end."""


class Unfinished:
    """A file or folder that has a temporary name beside ``path`` until it is complete.

    A special file, such as ``/dev/stdout``, is written directly.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        special = path.exists() and not path.is_file() and not path.is_dir()
        self.part = path if special else path.with_name(f".{path.name}.{uuid4().hex}")
        if not special:
            _unfinished[self.part] = os.getpid()

    @property
    def is_given_up(self) -> bool:
        """True if the file will not be kept: nothing more needs to be written."""
        return self.part in _given_up

    def keep(self) -> None:
        """Move the file or folder to ``path``, unless it was given up."""
        if self.part in _unfinished and not self.is_given_up:
            os.replace(self.part, self.path)
            del _unfinished[self.part]

    def drop(self) -> None:
        """Remove the file or folder, unless it was kept; ``path`` stays as it was."""
        if self.part in _unfinished:
            remove(self.part)
            del _unfinished[self.part]

    @contextmanager
    def named(self) -> Iterator[None]:
        """Name ``path`` in an ``OSError`` that names the temporary file or no file."""
        try:
            yield
        except OSError as error:
            if error.filename in (None, self.part, str(self.part)):
                text = error.strerror or str(error)
                raise OSError(error.errno, text, str(self.path)) from error
            raise


def give_up_unfinished() -> None:
    """Mark the present unfinished files to be dropped; later ones are kept."""
    _given_up.update(_unfinished)


@atexit.register
def drop_unfinished() -> None:
    """Remove the unfinished files of this process."""
    for part, process in list(_unfinished.items()):
        if process == os.getpid():
            with suppress(OSError):
                remove(part)
            _unfinished.pop(part, None)


def remove(path: Path) -> None:
    """Remove a file or folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the name of a file to write; it replaces ``path`` at the end of the block.

    If the block raises, ``path`` stays as it was. A special file, such as ``/dev/stdout``, is
    written directly. An ``OSError`` without a file name gets the name of ``path``.
    """
    new = Unfinished(path)
    try:
        with new.named():
            yield new.part
            new.keep()
    finally:
        new.drop()


def write_whole(path: Path, content: str | bytes) -> None:
    """Write ``path`` completely or not at all; raise ``OSError`` with its name."""
    with replacing(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def write_picture(path: Path, figure: Figure, dpi: int | str = "figure") -> Path:
    """Write a figure as SVG or PNG, by the suffix, completely or not at all; return its file.

    The same figure gives the same bytes. Raises ``OSError`` with the name of ``path``.
    """
    from matplotlib import rc_context

    form = path.suffix.removeprefix(".")
    metadata = {"Date": None} if form == "svg" else {}
    # The salt gives the same ids each time. Pillow cannot open a pipe by its name.
    with (
        rc_context({"svg.hashsalt": "nearmem"}),
        replacing(path) as part,
        part.open("wb") as file,
    ):
        figure.savefig(file, format=form, dpi=dpi, metadata=metadata)
    return path
