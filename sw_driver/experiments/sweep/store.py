"""Results of sweeps on disk: JSON lines that survive an interruption, and a table of them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from sw_driver.experiments.settings import SweepError, plain

__all__ = ["ResultStore", "write_csv"]


_BEGINNING = b'{"key": "'


class ResultStore:
    """The file ``results.jsonl`` of a folder: a line a measured point, found again by its key.

    A line is written at once and whole, or else cut: a process that is killed while it writes
    leaves a last line without an end, which is dropped when the file is opened. Of lines with
    the same key the last counts. While it is open no other process can open it.

    Attributes
    ----------
    note: what had to be dropped, in words; None if nothing.

    Raises :class:`SweepError` if the folder cannot be written, is in use, or holds something else.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "results.jsonl"
        self.note: str | None = None
        self._rows: dict[str, dict[str, Any]] = {}
        self._lock = FileLock(folder / "results.lock")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(blocking=False)
            self._file = self.path.open("a+b")
        except Timeout as error:
            raise SweepError(
                f"another sweep writes to {str(folder)!r}: wait for it, or give another --out"
            ) from error
        except OSError as error:
            raise SweepError(
                f"cannot write to the folder {str(folder)!r} ({error.strerror}): give another with "
                "--out"
            ) from error
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def _read(self) -> None:
        self._file.seek(0)
        whole, newline, torn = self._file.read().rpartition(b"\n")
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                row = json.loads(line)
                self._rows[row["key"]] = row
            except (ValueError, KeyError, TypeError) as error:
                raise self._foreign(number) from error
        if torn:
            if not torn.startswith(_BEGINNING[: len(torn)]):
                raise self._foreign(whole.count(b"\n") + len(newline) + 1)
            self._file.truncate(len(whole) + len(newline))
            self.note = (
                f"the last line of {self.path} was torn, by an interruption while it was written: "
                "dropped"
            )

    def _foreign(self, number: int) -> SweepError:
        return SweepError(
            f"line {number} of {str(self.path)!r} is not a result of a sweep: move the file away, "
            "or give another folder with --out"
        )

    def find(self, key: str) -> dict[str, Any] | None:
        """The result of a point that was measured without an error."""
        row = self._rows.get(key)
        return None if row is None or row.get("error") else row

    def get(self, key: str) -> dict[str, Any] | None:
        """The result of a point, whether it failed or not."""
        return self._rows.get(key)

    def add(self, key: str, row: Mapping[str, Any]) -> None:
        """Stores a result."""
        self._rows[key] = {"key": key, **row}
        self._file.write(json.dumps(self._rows[key]).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Lets others write."""
        self._file.close()
        self._lock.release()

    def __enter__(self) -> ResultStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a table: ``true`` and ``false`` as the options have them, nothing for None."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow(["" if row[name] is None else plain(row[name]) for name in columns])
