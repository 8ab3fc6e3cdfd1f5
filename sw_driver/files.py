"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

__all__ = ["replacing", "write_whole"]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to be written, which takes the place of ``path`` at the end of the block.

    If the block raises, ``path`` is as it was. What is no regular file, such as ``/dev/stdout``, is
    written itself. An ``OSError`` that names no file is raised with the name of ``path``.
    """
    special = path.exists() and not path.is_file()
    part = path if special else path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        yield part
        if not special:
            os.replace(part, path)
    except BaseException as error:
        if not special:
            part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, part, str(part)):
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes ``path``, whole or not at all. Raises ``OSError`` with its name."""
    with replacing(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
