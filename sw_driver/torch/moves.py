"""Report of what a policy moved, as a table, and timeline of the last step's copies."""

from __future__ import annotations

import textwrap
import time
from collections import deque
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from sw_driver.device.timeline import Timeline, timeline_file

from .stores import Job, Store

__all__ = ["Moves", "Watched", "table"]

_COLUMNS = 80

_MOST = 1 << 16
"""Copies and waits of a step that are kept, at most."""

_UNITS = {"bytes": "bytes", "ms": "ms"}

_NS_MHZ = 1000
"""Clock in MHz with cycles of a nanosecond."""


def table(title: str, report: Mapping[str, Any]) -> str:
    """Return a policy's report as a table of at most 80 columns.

    A row for hits says of how many uses; what has parts of its own, such as layers, is left out.
    """
    rows, lines = [], []
    for key, value in report.items():
        if isinstance(value, Mapping):
            counts = [f"{count:,} {name}" for name, count in value.items() if count]
            words = f"{key}: {', '.join(counts) or 'none'}"
            lines += textwrap.wrap(words, _COLUMNS, subsequent_indent="  ")
        elif key == "hits":
            rows.append(("hits", f"{value:,}", f"of {value + report['misses']:,} uses"))
        elif key != "misses":
            name, _, unit = key.rpartition("_")
            shown = ("none", "") if value is None else (f"{value:,}", _UNITS.get(unit, ""))
            rows.append((name if unit in _UNITS else key, *shown))
    widths = [max(len(row[at]) for row in rows) for at in range(2)]
    for name, value, unit in rows:
        row = f"{name.replace('_', ' '):{widths[0]}}  {value:>{widths[1]}} {unit}"
        lines.append(row.rstrip()[:_COLUMNS])
    return "\n".join([title, *sorted(lines, key=lambda line: ": " in line)])


class Moves:
    """Copies of a step and waits for them, as they happen, and those of the last step.

    Marks of time are nanoseconds of ``time.perf_counter_ns()``, or events of a GPU, which count
    from the one that the step began with.

    Examples
    --------
    >>> from time import perf_counter_ns
    >>> moves = Moves()
    >>> moves.add("back", "a tensor", 4096, perf_counter_ns(), perf_counter_ns())
    >>> [span[:3] for span in moves.spans()]
    [('back', 'a tensor', 4096)]
    """

    def __init__(self) -> None:
        self._now: deque[tuple[str, str, int, Any, Any, Any]] = deque(maxlen=_MOST)
        self._last: list[tuple[str, str, int, int, int]] | None = None
        self._anchor: Any = None
        self._began_ns = time.perf_counter_ns()

    def turn(self, anchor: Any = None) -> None:
        """End a step and begin the next; work of a GPU has ended, and ``anchor`` is an event."""
        if self._now:
            self._last = self.spans()
            self._now.clear()
        self.restart(anchor)

    def restart(self, anchor: Any = None) -> None:
        """Forget what has happened since the last turn."""
        self._now.clear()
        self._anchor, self._began_ns = anchor, time.perf_counter_ns()

    def add(
        self, track: str, name: str, nbytes: int, began: Any, ended: Any = None, job: Any = None
    ) -> None:
        """Add a slice of ``"step"``, or a copy or a wait: of ``"out"``, ``"back"``, ``"waits"``.

        A job's own marks, ``began`` and ``ended``, come first.
        """
        self._now.append((track, name, nbytes, began, ended, job))

    def spans(self) -> list[tuple[str, str, int, int, int]]:
        """Return track, name, bytes, begin and end of this step's, in ns from its begin."""
        spans, now_ns = [], time.perf_counter_ns()
        for track, name, nbytes, began, ended, job in self._now:
            if job is not None:
                began, ended = job.began or began, job.ended
            begin_ns, end_ns = (self._ns(now_ns if at is None else at) for at in (began, ended))
            begin_ns = max(0, begin_ns)
            spans.append((track, name, nbytes, begin_ns, max(begin_ns, end_ns)))
        return spans

    def _ns(self, mark: Any) -> int:
        if isinstance(mark, int):
            return mark - self._began_ns
        return round(self._anchor.elapsed_time(mark) * 1e6)

    def write(self, path: Path | str, policy: str) -> Path:
        """Write the last step, or what there is of the first, for https://ui.perfetto.dev.

        A path that ends in ``.svg`` or ``.png`` gives a picture. Raises
        :class:`~sw_driver.device.errors.InvalidArgumentError` for a path that cannot be written.
        """
        path = timeline_file(path)
        timeline = Timeline(backend=policy, fabric_mhz=_NS_MHZ, time="measured")
        for track in ("step", "out", "back", "waits"):
            timeline.track(track)
        spans = self.spans() if self._last is None else self._last
        for track, name, nbytes, begin_ns, end_ns in sorted(spans, key=itemgetter(3)):
            lane = timeline.lane(track, begin_ns, end_ns)
            row = f"{track}, {lane + 1}" if lane else track
            timeline.track(row)
            words = name or f"{nbytes:,} bytes"
            timeline.add(
                row, words, begin_ns, end_ns, track, **{"nbytes": nbytes} if nbytes else {}
            )
        timeline.write(path)
        return path


class _WatchedJob(Job):
    def __init__(self, job: Job, moves: Moves, nbytes: int) -> None:
        self._job, self._moves, self._nbytes = job, moves, nbytes
        self._over: Any = None
        """When the copy was seen to have ended."""

    @property
    def began(self) -> Any:
        return getattr(self._job, "began", None)

    @property
    def ended(self) -> Any:
        return getattr(self._job, "ended", None) or self._over

    def done(self) -> bool:
        return self._job.done()

    def wait(self) -> None:
        began, done = time.perf_counter_ns(), self._job.done()
        try:
            self._job.wait()
        finally:
            self._over = time.perf_counter_ns()
            if not done:
                stall = getattr(self._job, "stall", None) or (began, self._over)
                self._moves.add("waits", "", self._nbytes, *stall)


class Watched(Store):
    """Store with its copies, and waits for them, in a :class:`Moves`."""

    def __init__(self, store: Store, moves: Moves) -> None:
        self._store, self._moves = store, moves

    def take(self, nbytes: int) -> Any:
        return self._store.take(nbytes)

    def give(self, place: Any, nbytes: int) -> None:
        self._store.give(place, nbytes)

    def write(self, place: Any, address: int, nbytes: int) -> Job:
        return self._move("out", self._store.write, place, address, nbytes)

    def read(self, place: Any, address: int, nbytes: int) -> Job:
        return self._move("back", self._store.read, place, address, nbytes)

    def _move(self, track: str, move: Any, place: Any, address: int, nbytes: int) -> Job:
        began_ns = time.perf_counter_ns()
        job = _WatchedJob(move(place, address, nbytes), self._moves, nbytes)
        self._moves.add(track, "", nbytes, began_ns, job=job)
        return job

    def close(self) -> None:
        self._store.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
