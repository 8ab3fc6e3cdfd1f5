"""Timeline of a program, written as a trace for Perfetto or as a picture.

The trace is in the JSON trace event format, which https://ui.perfetto.dev opens. Each track is a
thread of one process. An operation with a duration is a complete event ("X"), one without an
instant ("i"), and counters ("C") belong to the process. Times are simulated. The format's unit is
the microsecond, and Perfetto keeps nanoseconds. Fabric cycles are written as whole nanoseconds,
exact for clocks such as the 200 MHz of the paper's module. With other clocks, starts and ends are
rounded down alike: touching slices still touch and none overlap.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from importlib.metadata import version
from io import TextIOWrapper
from operator import index, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.files import replacing, write_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "MERGED_GAP_FABRIC_CYCLES",
    "PICTURES",
    "Timeline",
    "merge_uses",
    "timeline_file",
]

MERGED_GAP_FABRIC_CYCLES = 32
"""Pauses of a copy on the link below this many fabric cycles are not shown.

In such a pause another channel accesses its registers. The limit is the time for which the link
carries lines of one channel before another may use it.
"""

_PROCESS = 1
_FIRST_TRACK = 101
"""Number of the first track. Perfetto shows a track with the process's number as the main one."""


def merge_uses(
    uses: Sequence[NDArray[np.integer]], gap_fabric_cycles: int
) -> list[NDArray[np.int64]]:
    """Close gaps shorter than ``gap_fabric_cycles`` within the uses of each operation.

    ``uses`` has an array for each operation: starts and ends of its uses of a shared resource,
    shape (n, 2). The result has the same form. A gap in which another operation used the resource
    stays open, so disjoint uses give disjoint results.
    """
    if not uses:
        return []
    together = np.concatenate(uses).astype(np.int64)
    owners = np.repeat(np.arange(len(uses)), [len(own) for own in uses])
    order = np.lexsort((together[:, 1], together[:, 0]))
    (begins, ends), owners = together[order].T, owners[order]
    # An overlap is no gap and stays visible.
    gaps = begins[1:] - ends[:-1]
    apart = (owners[1:] != owners[:-1]) | (gaps < 0) | (gaps >= gap_fabric_cycles)
    first, last = np.ones((2, len(owners)), dtype=np.bool_)
    first[1:] = last[:-1] = apart
    merged, owners = np.column_stack((begins[first], ends[last])), owners[first]
    order = np.argsort(owners, kind="stable")
    return np.split(merged[order], np.searchsorted(owners[order], np.arange(1, len(uses))))


@dataclass
class _Track:
    number: int
    description: str
    slices: list[tuple[int, int, str]] = field(default_factory=list)
    """Start and end of each slice in fabric cycles, and the rest of its event as JSON."""
    instants: list[tuple[int, str]] = field(default_factory=list)
    """Time of each instant in fabric cycles, and the rest of its event as JSON."""
    uses: list[tuple[NDArray[np.int64], str]] = field(default_factory=list)

    def all_slices(self) -> list[tuple[int, int, str]]:
        """Return the slices and the merged uses in order of time."""
        merged = merge_uses([uses for uses, _ in self.uses], MERGED_GAP_FABRIC_CYCLES)
        merged_slices = [
            (begin, end, label)
            for uses, (_, label) in zip(merged, self.uses, strict=True)
            for begin, end in uses.tolist()
        ]
        return sorted([*self.slices, *merged_slices])


class Timeline:
    """Recorded events. Calls must not overlap; times are fabric cycles from 0 on.

    Parameters
    ----------
    backend: name of the simulated device in reports.
    fabric_mhz: clock frequency of the fabric cycles, in MHz.
    time: kind of the times, simulated or measured, for readers.

    Examples
    --------
    >>> timeline = Timeline(backend="cycles", fabric_mhz=200)
    >>> timeline.track("channel 0", "its kernel")
    >>> timeline.add("channel 0", "adam", 100, 350, "run", parameters=4000)
    >>> timeline.add("channel 1", "adam", 100, 350, "run")
    Traceback (most recent call last):
        ...
    ValueError: there is no track 'channel 1', only channel 0: add it
    """

    def __init__(self, *, backend: str, fabric_mhz: float, time: str = "simulated") -> None:
        self.backend = backend
        self.time = time
        self.fabric_mhz = fabric_mhz
        self._cycle_ns = 1000 / Fraction(fabric_mhz)
        self._tracks: dict[str, _Track] = {}
        self._lanes: dict[str, list[int]] = {}
        """Fabric cycle in which the last slice of each lane ended, by name."""
        self._values: dict[str, list[tuple[int, int]]] = {}
        """Values of each counter, with the fabric cycle from which each holds."""

    def track(self, name: str, description: str = "") -> None:
        """Add a track below the others, unless it exists.

        ``description`` goes into the metadata, for example that the track is of a stand-in.
        """
        number = _FIRST_TRACK + len(self._tracks)
        self._tracks.setdefault(name, _Track(number, description))

    def lane(self, name: str, begin_fabric_cycle: int, end_fabric_cycle: int) -> int:
        """Reserve the first free lane of a name for an interval; return its number, from 0."""
        ends = self._lanes.setdefault(name, [])
        free = (number for number, end in enumerate(ends) if end <= begin_fabric_cycle)
        number = next(free, len(ends))
        ends[number : number + 1] = [end_fabric_cycle]
        return number

    def add(
        self,
        track: str,
        name: str,
        begin_fabric_cycle: int,
        end_fabric_cycle: int,
        category: str,
        **arguments: object,
    ) -> None:
        """Record an operation with its start and end.

        ``arguments`` are shown beside it: numbers, strings, or lists and mappings of these that
        JSON can write. Raises ``ValueError`` for an unknown track, a negative time, or an end
        before the start.
        """
        begin, end = _times(name, begin_fabric_cycle, end_fabric_cycle)
        label = _label(name, category, arguments)
        self._find(track).slices.append((begin, end, label))

    def add_uses(
        self,
        track: str,
        name: str,
        uses: NDArray[np.integer],
        category: str,
        **arguments: object,
    ) -> None:
        """Record when one operation used a shared resource.

        ``uses`` are starts and ends, shape (n, 2), as from
        :meth:`sw_driver.axdimm.transport.Transport.link_uses`. They are shown as slices with the
        same arguments and their sum ``used_fabric_cycles``; see :func:`merge_uses`. Raises as
        :meth:`add`.
        """
        if not len(uses):
            return
        for backwards in uses[uses[:, 1] < uses[:, 0]][:1]:
            _times(name, *backwards)
        (joined,) = merge_uses([uses], 1)
        used = int((joined[:, 1] - joined[:, 0]).sum())
        label = _label(name, category, {**arguments, "used_fabric_cycles": used})
        self._find(track).uses.append((joined, label))

    def instant(self, track: str, name: str, at_fabric_cycle: int, **arguments: object) -> None:
        """Record an event without a duration; raise as :meth:`add`."""
        at, _ = _times(name, at_fabric_cycle, at_fabric_cycle)
        event = (at, _label(name, "instant", arguments))
        self._find(track).instants.append(event)

    def count(self, counter: str, value: int, at_fabric_cycle: int) -> None:
        """Record the value of a counter from a time on; the last value of a time counts.

        A counter has a name, not a track. Raises ``ValueError`` for a negative time.
        """
        at, _ = _times(counter, at_fabric_cycle, at_fabric_cycle)
        self._values.setdefault(counter, []).append((at, index(value)))

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the recorded events as a trace or a picture.

        A name that ends in ``.svg`` or ``.png`` gives a picture, without names, arguments, instants
        and counters. Any other name gives the trace, compressed with gzip if it ends in ``.gz``.

        The file replaces an older one when it is complete. A program killed meanwhile leaves no
        partial trace, only a file with a name that begins with a dot. Raises ``OSError`` if the
        file cannot be written.
        """
        path = Path(path)
        if path.suffix in PICTURES:
            write_picture(path, self._figure(), dpi=150)
            return
        with replacing(path) as part:
            events = self._events_of()
            with part.open("wb") as raw:
                # gzip gets no name and time, so that the same timeline gives the same file.
                packs = path.suffix == ".gz"
                packed = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if packs else raw
                with TextIOWrapper(packed, "utf-8") as file:
                    file.write('{"displayTimeUnit":"ns","otherData":')
                    file.write(json.dumps(self._metadata()))
                    file.write(f',"traceEvents":[\n{next(events)}')
                    file.writelines(f",\n{event}" for event in events)
                    file.write("\n]}\n")

    def write_all(self, path: Path) -> list[Path]:
        """Write the trace and both pictures to ``path`` with their endings; return the files."""
        files = [path.with_name(path.name + ending) for ending in (".json.gz", *PICTURES)]
        for file in files:
            self.write(file)
        return files

    def _figure(self) -> Figure:
        drawn = {
            name: [
                (self._ns(begin), self._ns(end), json.loads(f"{{{label}}}")["cat"])
                for begin, end, label in track.all_slices()
            ]
            for name, track in self._tracks.items()
        }
        return _drawn(f"{self.backend}: when each copy, mode switch and run was", drawn, self.time)

    def _find(self, track: str) -> _Track:
        if track not in self._tracks:
            raise ValueError(f"there is no track {track!r}, only {', '.join(self._tracks)}: add it")
        return self._tracks[track]

    def _metadata(self) -> dict[str, object]:
        return {
            "product": "nearmem",
            "version": version("nearmem"),
            "backend": self.backend,
            "fabric_mhz": self.fabric_mhz,
            "time": self.time,
            "tracks": {name: track.description for name, track in self._tracks.items()},
        }

    def _events_of(self) -> Iterator[str]:
        """Yield the events as JSON, in order of time within a track or counter."""
        yield _describe(
            "process_name", _FIRST_TRACK, name=f"nearmem {self.backend}, {self.time} time"
        )
        for name, track in self._tracks.items():
            yield _describe("thread_name", track.number, name=name)
            yield _describe("thread_sort_index", track.number, sort_index=track.number)
        for track in self._tracks.values():
            for begin, end, label in track.all_slices():
                begin_ns, end_ns = self._ns(begin), self._ns(end)
                yield (
                    f'{{"ph":"X","pid":{_PROCESS},"tid":{track.number},"ts":{_us(begin_ns)},'
                    f'"dur":{_us(end_ns - begin_ns)},{label}}}'
                )
            for at, label in sorted(track.instants):
                yield (
                    f'{{"ph":"i","s":"t","pid":{_PROCESS},"tid":{track.number},'
                    f'"ts":{_us(self._ns(at))},{label}}}'
                )
        for name, values in self._values.items():
            for at, value in dict(sorted(values, key=itemgetter(0))).items():
                yield (
                    f'{{"ph":"C","pid":{_PROCESS},"tid":{_FIRST_TRACK},"ts":{_us(self._ns(at))},'
                    f'"name":{json.dumps(name)},"args":{{"value":{value}}}}}'
                )

    def _ns(self, fabric_cycle: int) -> int:
        return fabric_cycle * self._cycle_ns.numerator // self._cycle_ns.denominator


def _times(name: str, begin: int, end: int) -> tuple[int, int]:
    begin, end = index(begin), index(end)
    if not 0 <= begin <= end:
        raise ValueError(
            f"{name!r} cannot be from fabric cycle {begin} to {end}: times begin at 0 and do not "
            "run backwards"
        )
    return begin, end


def _label(name: str, category: str, arguments: dict[str, object]) -> str:
    """Return part of an event as JSON, made when the event is recorded.

    JSON takes a fraction of the memory of the arguments, and a value that cannot be written raises
    in the call that records it.
    """
    shown = json.dumps(arguments, default=_plain, allow_nan=False, separators=(",", ":"))
    return f'"name":{json.dumps(name)},"cat":{json.dumps(category)},"args":{shown}'


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"an argument of an event cannot be a {type(value).__name__}: {value!r}")


def _describe(kind: str, number: int, **arguments: object) -> str:
    record = {"ph": "M", "pid": _PROCESS, "tid": number, "name": kind, "args": arguments}
    return json.dumps(record, separators=(",", ":"))


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def timeline_file(timeline: Any) -> Path:
    """Return the timeline's path; raise :class:`InvalidArgumentError` if it cannot be written."""
    if not isinstance(timeline, str | os.PathLike) or not str(timeline):
        raise InvalidArgumentError(
            f"timeline is {timeline!r}: expected the name of a file", timeline=repr(timeline)
        )
    path = Path(timeline).absolute()
    problem = None
    if path.is_dir():
        problem = "is a folder: add a name"
    elif not path.parent.is_dir():
        problem = f"is in {str(path.parent)!r}, which is not a folder: create it"
    elif not os.access(path.parent, os.W_OK):
        problem = f"is in {str(path.parent)!r}, which cannot be written: choose another"
    if problem is not None:
        raise InvalidArgumentError(
            f"the timeline {str(timeline)!r} {problem}", timeline=str(timeline)
        )
    return path


PICTURES = (".svg", ".png")
"""Suffixes of picture files."""

_COLORS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#b279a2", "#bab0ac")
_HEIGHT = 0.7


def _drawn(
    title: str, tracks: Mapping[str, Sequence[tuple[int, int, str]]], time: str = "simulated"
) -> Figure:
    """Draw a row for each track, with a bar for each of its slices.

    ``tracks`` have start and end of each slice in nanoseconds, and its kind, which decides the
    colour.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(10, 1.6 + 0.45 * max(len(tracks), 1)), layout="constrained")
    axes = figure.subplots()
    kinds = sorted({kind for slices in tracks.values() for *_, kind in slices})
    colors = {kind: _COLORS[number % len(_COLORS)] for number, kind in enumerate(kinds)}
    for row, slices in enumerate(tracks.values()):
        for kind, color in colors.items():
            bars = [
                (begin / 1e6, (end - begin) / 1e6)
                for begin, end, of_kind in slices
                if of_kind == kind
            ]
            place = (row - _HEIGHT / 2, _HEIGHT)
            if bars:  # a white rim separates touching bars
                axes.broken_barh(bars, place, color=color, edgecolor="white", linewidth=0.3)
    axes.set_yticks(range(len(tracks)), list(tracks))
    axes.set_ylim(len(tracks) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"{time} time (ms)")
    axes.set_title(title)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(
        handles=[Patch(color=color, label=kind) for kind, color in colors.items()],
        loc="outside lower center",
        ncols=max(len(kinds), 1),
        frameon=False,
    )
    return figure
