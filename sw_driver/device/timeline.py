"""The recorded timeline of a program, written as a trace that Perfetto shows, or as a picture.

The trace is in the JSON trace event format, which https://ui.perfetto.dev opens: each track is a
thread of one process, what took time is a complete event ("X") and what took none an instant ("i");
counters are the process's ("C"). Times are simulated. The format's unit is the microsecond, and
Perfetto keeps nanoseconds; fabric cycles are written as whole nanoseconds, exact for clocks like
the 200 MHz of the paper's module. With other clocks a time is rounded down, begins and ends alike,
so that what touched still touches and nothing overlaps.
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
"""Pauses of a copy on the link that are shorter, in fabric cycles, are not shown: another channel's
accesses to registers.

As long as the link carries a channel's lines before another may have it.
"""

_PROCESS = 1
_FIRST_TRACK = 101
"""Number of the first track: one with the number of its process would be shown as the main one."""


def merge_uses(
    uses: Sequence[NDArray[np.integer]], gap_fabric_cycles: int
) -> list[NDArray[np.int64]]:
    """Closes gaps shorter than ``gap_fabric_cycles`` within the uses of each operation.

    ``uses`` has, for each of the operations that shared something, its uses of it: begins and ends,
    shape (n, 2). The result is of the same form. A gap in which another of the operations had a use
    stays, so disjoint uses give disjoint results.
    """
    if not uses:
        return []
    together = np.concatenate(uses).astype(np.int64)
    owners = np.repeat(np.arange(len(uses)), [len(own) for own in uses])
    order = np.lexsort((together[:, 1], together[:, 0]))
    (begins, ends), owners = together[order].T, owners[order]
    # An overlap is no gap, and is kept for the reader to see.
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
    """Begin and end of each slice, and the rest of its event, as JSON."""
    instants: list[tuple[int, str]] = field(default_factory=list)
    """Time of each instant, and the rest of its event, as JSON."""
    uses: list[tuple[NDArray[np.int64], str]] = field(default_factory=list)

    def all_slices(self) -> list[tuple[int, int, str]]:
        """The slices and, merged, the uses, in the order of time."""
        merged = merge_uses([uses for uses, _ in self.uses], MERGED_GAP_FABRIC_CYCLES)
        of_uses = [
            (begin, end, label)
            for uses, (_, label) in zip(merged, self.uses, strict=True)
            for begin, end in uses.tolist()
        ]
        return sorted([*self.slices, *of_uses])


class Timeline:
    """Records what happened when. Calls must not overlap; times are fabric cycles from 0 on.

    Parameters
    ----------
    backend: what was driven, as in reports.
    fabric_mhz: the clock in whose cycles all times are.
    """

    def __init__(self, *, backend: str, fabric_mhz: float) -> None:
        self.backend = backend
        self.fabric_mhz = fabric_mhz
        self._cycle_ns = 1000 / Fraction(fabric_mhz)
        self._tracks: dict[str, _Track] = {}
        self._lanes: dict[str, list[int]] = {}
        """Of each name when the last on each lane ended."""
        self._values: dict[str, list[tuple[int, int]]] = {}
        """Values of each counter, each with the time from which on it holds."""

    def track(self, name: str, description: str = "") -> None:
        """Adds a track below those that there are; one that is there already stays as it is.

        ``description`` goes into the metadata, for example that the track is of a stand-in.
        """
        number = _FIRST_TRACK + len(self._tracks)
        self._tracks.setdefault(name, _Track(number, description))

    def lane(self, name: str, begin_fabric_cycle: int, end_fabric_cycle: int) -> int:
        """Returns which of the lanes of that name, from 0 on, is the first that is free from
        ``begin_fabric_cycle`` on, and has it taken from then to the end."""
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
        """Records that something took that time.

        ``arguments`` are shown beside it: numbers, strings, or what JSON makes of lists and
        mappings of these. Raises ``ValueError`` for a track that there is not, and for times that
        are negative or the wrong way round.
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
        """Records what one operation used of something that it shares with others.

        ``uses`` are begins and ends, shape (n, 2), as from
        :meth:`sw_driver.axdimm.transport.Transport.link_uses`. They are shown as slices, all with
        the same arguments and ``used_fabric_cycles``, the sum; see :func:`merge_uses`. Raises as
        :meth:`add` does.
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
        """Records what took no simulated time. Raises as :meth:`add` does."""
        at, _ = _times(name, at_fabric_cycle, at_fabric_cycle)
        event = (at, _label(name, "instant", arguments))
        self._find(track).instants.append(event)

    def count(self, counter: str, value: int, at_fabric_cycle: int) -> None:
        """Records what a counter is from that time on; the last value of a time stays.

        A counter has a name, not a track. Raises ``ValueError`` for a negative time.
        """
        at, _ = _times(counter, at_fabric_cycle, at_fabric_cycle)
        self._values.setdefault(counter, []).append((at, index(value)))

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes what has been recorded so far: a picture, without names, arguments, instants and
        counters, if the name ends in ``.svg`` or ``.png``, else the trace, with gzip if it ends in
        ``.gz``.

        The file appears when it is complete, in place of one that was there: a program killed
        meanwhile leaves no half trace, only a file of another name that begins with a dot. Raises
        ``OSError`` if it cannot be written.
        """
        path = Path(path)
        if path.suffix in PICTURES:
            write_picture(path, self._figure(), dpi=150)
            return
        with replacing(path) as part:
            events = self._events_of()
            with part.open("wb") as raw:
                # Without a name and a time, so that the same timeline is the same file.
                packs = path.suffix == ".gz"
                packed = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if packs else raw
                with TextIOWrapper(packed, "utf-8") as file:
                    file.write('{"displayTimeUnit":"ns","otherData":')
                    file.write(json.dumps(self._metadata()))
                    file.write(f',"traceEvents":[\n{next(events)}')
                    file.writelines(f",\n{event}" for event in events)
                    file.write("\n]}\n")

    def write_all(self, path: Path) -> list[Path]:
        """Writes the trace and both pictures, to ``path`` with their endings; returns the files."""
        files = [path.with_name(path.name + ending) for ending in (".json.gz", *PICTURES)]
        for file in files:
            self.write(file)
        return files

    # For the owner of the lock.

    def _figure(self) -> Figure:
        drawn = {
            name: [
                (self._ns(begin), self._ns(end), json.loads(f"{{{label}}}")["cat"])
                for begin, end, label in track.all_slices()
            ]
            for name, track in self._tracks.items()
        }
        return _drawn(f"{self.backend}: when each copy, mode switch and run was", drawn)

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
            "time": "simulated",
            "tracks": {name: track.description for name, track in self._tracks.items()},
        }

    def _events_of(self) -> Iterator[str]:
        """The events in JSON, those of a track or counter in the order of time."""
        yield _describe(
            "process_name", _FIRST_TRACK, name=f"nearmem {self.backend}, simulated time"
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
        for name, found in self._values.items():
            for at, value in dict(sorted(found, key=itemgetter(0))).items():
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
    """A part of the inside of an event, made when it is recorded.

    It takes a fraction of the memory of what it is made of, and what cannot be written is found
    where it comes from.
    """
    shown = json.dumps(arguments, default=_plain, allow_nan=False, separators=(",", ":"))
    return f'"name":{json.dumps(name)},"cat":{json.dumps(category)},"args":{shown}'


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"an argument of an event cannot be a {type(value).__name__}: {value!r}")


def _describe(what: str, number: int, **arguments: object) -> str:
    record = {"ph": "M", "pid": _PROCESS, "tid": number, "name": what, "args": arguments}
    return json.dumps(record, separators=(",", ":"))


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def timeline_file(timeline: Any) -> Path:
    """Where the timeline goes. Raises :class:`InvalidArgumentError` if it cannot be written."""
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
"""How the names of pictures end."""

_COLORS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#b279a2", "#bab0ac")
_HEIGHT = 0.7


def _drawn(title: str, tracks: Mapping[str, Sequence[tuple[int, int, str]]]) -> Figure:
    """A row for each track, with a bar for each of its slices: from begin to end in nanoseconds, in
    the colour of its kind."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(10, 1.6 + 0.45 * max(len(tracks), 1)), layout="constrained")
    axes = figure.subplots()
    kinds = sorted({kind for slices in tracks.values() for *_, kind in slices})
    colors = {kind: _COLORS[number % len(_COLORS)] for number, kind in enumerate(kinds)}
    for row, slices in enumerate(tracks.values()):
        for kind, color in colors.items():
            bars = [(begin / 1e6, (end - begin) / 1e6) for begin, end, of in slices if of == kind]
            place = (row - _HEIGHT / 2, _HEIGHT)
            if bars:  # with a white rim, which keeps apart what touches
                axes.broken_barh(bars, place, color=color, edgecolor="white", linewidth=0.3)
    axes.set_yticks(range(len(tracks)), list(tracks))
    axes.set_ylim(len(tracks) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("simulated time (ms)")
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
