"""Reads a trace of a program back and checks it, knowing nothing but the file's format."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

__all__ = ["Instant", "Slice", "Trace", "TraceError", "assert_sound", "overlap", "read_trace"]

METADATA = {
    "product": str,
    "version": str,
    "backend": str,
    "fabric_mhz": (int, Decimal),
    "time": str,
    "tracks": dict,
}
"""What a trace says of itself."""

_GZIP_MAGIC = b"\x1f\x8b"


class TraceError(AssertionError):
    """The trace is not what it should be."""


@dataclass(frozen=True, kw_only=True)
class Slice:
    """Something that took time."""

    begin_ns: Fraction
    end_ns: Fraction
    name: str
    category: str
    arguments: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Instant:
    """Something that took no time."""

    at_ns: Fraction
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A trace: tracks in the order in which they are shown, what is on them in order of time."""

    metadata: dict[str, Any]
    process: str
    tracks: dict[str, list[Slice]]
    instants: dict[str, list[Instant]]
    counters: dict[str, list[tuple[Fraction, int]]]
    """Times in ns, each with the value from then on, in the order of the file."""


def read_trace(path: Path) -> Trace:
    """Reads a trace. Raises :class:`TraceError` for what is not in the format, or incomplete."""
    data = path.read_bytes()
    if data.startswith(_GZIP_MAGIC):
        data = gzip.decompress(data)
    document = json.loads(data, parse_float=Decimal)
    _require(document.get("displayTimeUnit") == "ns", "times are not shown in nanoseconds", None)
    events = document["traceEvents"]
    names: dict[int, str] = {}
    places: dict[int, int] = {}
    processes: list[str] = []
    for event in events:
        _require({"ph", "pid", "tid", "name", "args"} <= event.keys(), "incomplete", event)
        if event["ph"] != "M":
            continue
        number, arguments = event["tid"], event["args"]
        if event["name"] == "process_name":
            processes.append(arguments["name"])
        elif event["name"] == "thread_name":
            _require(number not in names, "a second name for a track", event)
            names[number] = arguments["name"]
        elif event["name"] == "thread_sort_index":
            places[number] = arguments["sort_index"]
        else:
            raise TraceError(f"unknown metadata: {event}")
    _require(len(processes) == 1, "not one process", processes)
    _require(len(set(names.values())) == len(names), "tracks of one name", names)
    _require(names.keys() == places.keys(), "tracks without a place", names)
    _require(len(set(places.values())) == len(places), "tracks in one place", places)

    slices: dict[int, list[Slice]] = {
        number: [] for number in sorted(names, key=places.__getitem__)
    }
    instants: dict[int, list[Instant]] = {number: [] for number in slices}
    counters: dict[str, list[tuple[Fraction, int]]] = {}
    for event in events:
        if event["ph"] == "M":
            continue
        _require(isinstance(event["args"], dict), "arguments without names", event)
        _require(bool(event["name"]), "no name", event)
        _require("ts" in event, "no time", event)
        at, number = _ns(event["ts"]), event["tid"]
        if event["ph"] == "i":
            _require(event["s"] == "t" and number in names, "on no track", event)
            found = Instant(at_ns=at, name=event["name"], arguments=event["args"])
            instants[number].append(found)
            continue
        if event["ph"] == "C":
            counters.setdefault(event["name"], []).append((at, event["args"]["value"]))
            continue
        _require(
            event["ph"] == "X" and "dur" in event, "neither slice nor instant nor counter", event
        )
        _require(number in names, "on no track", event)
        _require(bool(event.get("cat")), "no category", event)
        slices[number].append(
            Slice(
                begin_ns=at,
                end_ns=at + _ns(event["dur"]),
                name=event["name"],
                category=event["cat"],
                arguments=event["args"],
            )
        )
    return Trace(
        metadata=document.get("otherData", {}),
        process=processes[0],
        tracks={names[number]: sorted(found, key=_time) for number, found in slices.items()},
        instants={
            names[number]: sorted(found, key=lambda instant: instant.at_ns)
            for number, found in instants.items()
        },
        counters=counters,
    )


def assert_sound(trace: Trace) -> None:
    """Raises :class:`TraceError` unless the trace is complete and could have happened.

    Nothing on a track overlaps; all times are moments of the fabric clock, from 0 on; channels come
    first; and the metadata say all of this.
    """
    metadata = trace.metadata
    for name, kind in METADATA.items():
        _require(isinstance(metadata.get(name), kind), f"metadata without {name}", metadata)
    _require(metadata["time"] == "simulated", "times not said to be simulated", metadata)
    _require("simulated" in trace.process, "times not said to be simulated", trace.process)
    _require(list(metadata["tracks"]) == list(trace.tracks), "other tracks", metadata["tracks"])
    are_channels = [name.startswith("channel ") for name in trace.tracks]
    _require(are_channels == sorted(are_channels, reverse=True), "channels are not first", None)
    period = 1000 / Fraction(metadata["fabric_mhz"])
    for name, slices in trace.tracks.items():
        moments = [moment for each in slices for moment in (each.begin_ns, each.end_ns)]
        moments += [instant.at_ns for instant in trace.instants[name]]
        for moment in moments:
            _require(moment >= 0, f"{name}: before the beginning", moment)
            _require(_on_grid(moment, period), f"{name}: between fabric cycles", moment)
        for each in slices:
            _require(each.begin_ns <= each.end_ns, f"{name}: ends before it begins", each)
        for before, after in pairwise(slices):
            _require(before.end_ns <= after.begin_ns, f"{name}: overlap", (before, after))
    for name, values in trace.counters.items():
        for moment, value in values:
            _require(moment >= 0 and value >= 0, f"{name}: negative", (moment, value))
            _require(_on_grid(moment, period), f"{name}: between fabric cycles", moment)
        for (before, _), (after, _) in pairwise(values):
            _require(before < after, f"{name}: two values of a time", after)


def overlap(
    trace: Trace,
    track: str,
    other: str,
    *,
    category: str | None = None,
    other_category: str | None = None,
) -> Fraction:
    """For how many ns two tracks were busy at once; with a category, busy with that."""
    ours = _busy(trace.tracks[track], category)
    theirs = _busy(trace.tracks[other], other_category)
    total = Fraction(0)
    position = 0
    for begin, end in ours:
        while position < len(theirs) and theirs[position][1] <= begin:
            position += 1
        for other_begin, other_end in theirs[position:]:
            if other_begin >= end:
                break
            total += min(end, other_end) - max(begin, other_begin)
    return total


def _busy(slices: Iterable[Slice], category: str | None) -> list[tuple[Fraction, Fraction]]:
    return [
        (each.begin_ns, each.end_ns)
        for each in slices
        if category is None or each.category == category
    ]


def _require(condition: bool, said: str, what: object) -> None:
    if not condition:
        raise TraceError(f"{said}: {what}")


def _ns(us: object) -> Fraction:
    """Nanoseconds of a number of microseconds."""
    _require(isinstance(us, int | Decimal), "not a time", us)
    return Fraction(us) * 1000  # type: ignore[arg-type]


def _on_grid(moment_ns: Fraction, period_ns: Fraction) -> bool:
    """Whether it is the beginning of a cycle, rounded down to a nanosecond as the format is."""
    if moment_ns.denominator != 1:
        return False
    cycle = -(-moment_ns // period_ns)
    return cycle * period_ns // 1 == moment_ns


def _time(each: Slice) -> tuple[Fraction, Fraction]:
    return each.begin_ns, each.end_ns
