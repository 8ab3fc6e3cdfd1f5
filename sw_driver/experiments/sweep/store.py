"""Database of a folder's sweep results; it survives interruptions."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sw_driver.device.errors import InvalidArgumentError

__all__ = ["ResultStore"]


class ResultStore:
    """File ``results.sqlite`` of a folder, with a row for each measured point, by key.

    A result is on disk when :meth:`add` returns. While the file is open, no other process can open
    it. Raise :class:`InvalidArgumentError` if the folder cannot be written or is in use, or if the
    file is not such a database.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "results.sqlite"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(self.path, timeout=0, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise self._unusable(error) from error
        try:
            self._database.executescript(
                "PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE;"
                "CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, row TEXT NOT NULL);"
                "COMMIT"
            )
        except sqlite3.Error as error:
            self._database.close()
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                raise InvalidArgumentError(
                    f"another sweep writes to {str(folder)!r}: wait for it, or give another --out"
                ) from error
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"cannot keep results in {str(self.path)!r} ({error}): give another folder with --out, "
            "or move that file away"
        )

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the result of a point, failed or not; None if it was not measured."""
        row = self._database.execute("SELECT row FROM results WHERE key = ?", (key,)).fetchone()
        return None if row is None else json.loads(row[0])

    def add(self, key: str, row: Mapping[str, Any]) -> None:
        """Store a result in place of an earlier one.

        Raise :class:`InvalidArgumentError` if it cannot be written.
        """
        try:
            self._database.execute(
                "INSERT OR REPLACE INTO results VALUES (?, ?)", (key, json.dumps(row))
            )
        except sqlite3.Error as error:  # the disk is full
            raise self._unusable(error) from error

    def __enter__(self) -> ResultStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
