"""The recorded timeline: exact times, nothing lost or half written, and a reader that refuses."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hw_tests.driver.trace_reader import Trace, TraceError, assert_sound, overlap, read_trace
from sw_driver.device.timeline import Timeline, merge_uses
from sw_driver.files import write_picture

LINK = "host link"
GAP = 32
Uses = NDArray[np.uint64]


def a_timeline(**settings: Any) -> Timeline:
    timeline = Timeline(**{"backend": "rtl", "fabric_mhz": 200.0, **settings})
    timeline.track("channel 0")
    timeline.track("channel 1")
    timeline.track(LINK)
    timeline.track("nvme0")
    timeline.track("GPU 0 stand-in", "host memory in place of a GPU")
    return timeline


def written(timeline: Timeline, tmp_path: Path, name: str = "trace.json") -> Trace:
    timeline.write(tmp_path / name)
    return read_trace(tmp_path / name)


def uses(*stretches: tuple[int, int]) -> Uses:
    return np.array(stretches, dtype=np.uint64).reshape(-1, 2)


def test_what_is_recorded_is_read_back(tmp_path: Path) -> None:
    timeline = a_timeline()
    timeline.add("channel 0", "Adam", 7, 1_234_567, "kernel", parameters=np.int64(1000), t=1)
    timeline.add("channel 0", "to normal mode", 1_234_567, 1_234_575, "mode")
    timeline.add("nvme0", 'read "g"', 3, 4, "copy", bytes=4096, direction="Nvme2Axdimm")
    timeline.instant("channel 1", "backdoor copy", 11, bytes=64)
    for name in ("trace.json", "trace.json.gz"):
        trace = written(timeline, tmp_path, name)
        assert_sound(trace)
        assert list(trace.tracks) == ["channel 0", "channel 1", LINK, "nvme0", "GPU 0 stand-in"]
        kernel, mode = trace.tracks["channel 0"]
        assert (kernel.begin_ns, kernel.end_ns) == (35, 6_172_835)
        assert (mode.begin_ns, mode.end_ns) == (6_172_835, 6_172_875)
        assert (kernel.name, kernel.category) == ("Adam", "kernel")
        assert kernel.arguments == {"parameters": 1000, "t": 1}
        (read,) = trace.tracks["nvme0"]
        assert (read.name, read.arguments["direction"]) == ('read "g"', "Nvme2Axdimm")
        (copy,) = trace.instants["channel 1"]
        assert (copy.at_ns, copy.name, copy.arguments) == (55, "backdoor copy", {"bytes": 64})
        assert trace.metadata["backend"] == "rtl"
        assert trace.metadata["tracks"]["GPU 0 stand-in"] == "host memory in place of a GPU"
    # Uncompressed and compressed, by the name.
    assert (tmp_path / "trace.json").read_bytes().startswith(b"{")
    # Neither a file's name nor its time is in there.
    assert (tmp_path / "trace.json.gz").read_bytes().startswith(b"\x1f\x8b\x08" + bytes(5))


def test_the_last_value_of_a_counter_at_a_time_stays(tmp_path: Path) -> None:
    timeline = a_timeline()
    for value, cycle in ((9, 4), (2, 4), (5, 1)):
        timeline.count("bytes", value, cycle)
    assert written(timeline, tmp_path).counters == {"bytes": [(5, 5), (20, 2)]}


def test_an_empty_timeline_is_a_sound_trace(tmp_path: Path) -> None:
    assert_sound(written(a_timeline(), tmp_path))


@pytest.mark.parametrize("fabric_mhz", [200.0, 300.0, 1600 / 7])
def test_neighbours_touch_at_any_clock(tmp_path: Path, fabric_mhz: float) -> None:
    rng = np.random.default_rng(5)
    # Up to some minutes of simulated time, more than any simulation takes.
    moments = np.concatenate(([0], np.cumsum(rng.integers(1, 10**8, 2000)))).tolist()
    timeline = a_timeline(fabric_mhz=fabric_mhz)
    for begin, end in pairwise(moments):
        timeline.add("channel 0", "step", begin, end, "kernel")
    trace = written(timeline, tmp_path)
    assert_sound(trace)
    found = trace.tracks["channel 0"]
    assert [each.end_ns for each in found[:-1]] == [each.begin_ns for each in found[1:]]
    for cycle, each in zip(moments, found, strict=False):
        exact = cycle * 1000 / Fraction(fabric_mhz)
        assert 0 <= exact - each.begin_ns < 1
        assert fabric_mhz != 200 or exact == each.begin_ns


def test_what_cannot_be_is_refused() -> None:
    timeline = a_timeline()
    with pytest.raises(ValueError, match="from fabric cycle 20 to 10: times begin at 0"):
        timeline.add("channel 0", "copy", 20, 10, "copy")
    with pytest.raises(ValueError, match="from fabric cycle -1 to 10"):
        timeline.add("channel 0", "copy", -1, 10, "copy")
    with pytest.raises(ValueError, match="from fabric cycle 20 to 10"):
        timeline.add_uses(LINK, "copy", uses((0, 10), (20, 10)), "copy")
    with pytest.raises(ValueError, match="there is no track 'channel 2', only channel 0"):
        timeline.instant("channel 2", "backdoor copy", 0)
    with pytest.raises(TypeError, match="cannot be a object"):
        timeline.add("channel 0", "copy", 0, 10, "copy", what=object())
    with pytest.raises(TypeError):
        timeline.add("channel 0", "copy", 0.5, 10, "copy")  # type: ignore[arg-type]


def test_a_trace_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline = a_timeline()
    timeline.add("channel 0", "copy", 0, 10, "copy")
    path = tmp_path / "trace.json"
    timeline.write(path)
    before = path.read_bytes()
    timeline.add("channel 0", "copy", 10, 20, "copy")

    def fail(fabric_cycle: int) -> int:
        # The old file is there while the new one is written.
        assert path.read_bytes() == before
        assert len(list(tmp_path.iterdir())) == 2
        if fabric_cycle == 20:
            raise OSError("no space left")
        return 5 * fabric_cycle

    monkeypatch.setattr(timeline, "_ns", fail)
    with pytest.raises(OSError, match="no space left"):
        timeline.write(path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before
    monkeypatch.undo()
    timeline.write(path)
    assert len(read_trace(path).tracks["channel 0"]) == 2
    with pytest.raises(FileNotFoundError):
        timeline.write(tmp_path / "nowhere" / "trace.json")


def test_a_picture_shows_every_slice_and_is_the_same_again(tmp_path: Path) -> None:
    timeline = a_timeline()
    timeline.add("channel 0", "Adam", 0, 200_000, "kernel")
    timeline.add("nvme0", "read", 0, 40_000, "copy")
    timeline.add("nvme0", "read", 50_000, 60_000, "copy")
    timeline.add_uses(LINK, "Host2Axdimm", uses((0, 100), (1_000, 1_100)), "link", bytes=64)
    for name in ("one.svg", "two.svg", "one.png"):
        timeline.write(tmp_path / name)
    picture = (tmp_path / "one.svg").read_text()
    assert picture == (tmp_path / "two.svg").read_text()
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    bars = re.findall(r'<path [^>]*style="[^"]*stroke: #ffffff', picture)  # their rim is white
    assert len(bars) == 5
    assert "<!-- nvme0 -->" in picture
    assert "<!-- rtl: when each copy, mode switch and run was -->" in picture
    timeline.write(tmp_path / "trace.json")
    assert sum(map(len, read_trace(tmp_path / "trace.json").tracks.values())) == 5


# Uses of the link.


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_picture_goes_into_a_pipe(tmp_path: Path, suffix: str) -> None:
    pipe = tmp_path / f"pipe{suffix}"
    os.mkfifo(pipe)
    # Opened for both directions, so that no open waits; the picture is shorter than the pipe.
    reader = os.open(pipe, os.O_RDWR)
    try:
        written_file = write_picture(pipe, Figure(figsize=(1, 1)), dpi=20)
        data = os.read(reader, 1 << 16)
    finally:
        os.close(reader)
    assert written_file.is_fifo()
    assert data.startswith({".svg": b"<?xml", ".png": b"\x89PNG"}[suffix])


def test_short_gaps_are_closed_where_nobody_else_was() -> None:
    ours = uses((0, 10), (12, 20), (51, 60), (92, 100))
    (merged,) = merge_uses([ours], GAP)
    # 32 cycles are what another user's chunk takes; less is closed.
    assert merged.tolist() == [[0, 60], [92, 100]]
    theirs = uses((10, 12), (60, 92))
    merged = merge_uses([ours, theirs], GAP)
    assert [each.tolist() for each in merged] == [
        [[0, 10], [12, 60], [92, 100]],
        [[10, 12], [60, 92]],
    ]
    assert [each.tolist() for each in merge_uses([uses(), ours, uses()], GAP)] == [
        [],
        [[0, 60], [92, 100]],
        [],
    ]
    assert merge_uses([], GAP) == []
    assert [each.tolist() for each in merge_uses([uses()], GAP)] == [[]]


def test_disjoint_uses_stay_disjoint() -> None:
    rng = np.random.default_rng(11)
    for operations in (1, 2, 5):
        lengths = 2 * rng.integers(1, 17, 4000)
        pauses = rng.choice([0, 0, 2, 31, 32, 33], 4000)
        begins = np.cumsum(lengths + pauses) - lengths
        every = np.column_stack((begins, begins + lengths)).astype(np.uint64)
        owners = rng.integers(operations, size=len(every))
        own = [every[owners == number] for number in range(operations)]
        merged = merge_uses(own, GAP)

        cover = np.full(int(every.max()), -1)
        for number, stretches in enumerate(merged):
            for begin, end in stretches.tolist():
                assert (cover[begin:end] == -1).all(), "two operations at once"
                cover[begin:end] = number
        edges = 0
        for number, stretches in enumerate(own):
            for begin, end in stretches.tolist():
                assert (cover[begin:end] == number).all(), "a use is not shown"
        # And no gap that could have been closed is left, nor another one closed.
        together = sorted((*stretch, i) for i, found in enumerate(merged) for stretch in found)
        for (_, end, owner), (begin, _, following) in pairwise(together):
            assert owner != following or begin - end >= GAP
            edges += 1
        assert edges > 500
        assert (cover == -1).sum() == sum(
            int(b[0] - a[1])
            for i, (a, b) in enumerate(pairwise(every))
            if owners[i] != owners[i + 1] or b[0] - a[1] >= GAP
        ) + int(every[0, 0])


def test_uses_are_shown_as_merged_slices(tmp_path: Path) -> None:
    timeline = a_timeline()
    # Backends may log what touches in parts.
    ours = uses((0, 16), (16, 32), (34, 66), (98, 130))
    timeline.add_uses(LINK, "copy a", ours, "copy", bytes=64)
    ours[:] = 0
    timeline.add_uses(LINK, "copy b", uses((66, 98), (130, 140)), "copy", bytes=32)
    timeline.add_uses(LINK, "nothing", uses(), "copy")
    trace = written(timeline, tmp_path)
    assert_sound(trace)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["ts"] for event in events if event["ph"] == "X"] == [0, 0.33, 0.49, 0.65]
    found = [(each.name, each.begin_ns / 5, each.end_ns / 5) for each in trace.tracks[LINK]]
    assert found == [
        ("copy a", 0, 66), ("copy b", 66, 98), ("copy a", 98, 130), ("copy b", 130, 140)
    ]  # fmt: skip
    assert trace.tracks[LINK][0].arguments == {"bytes": 64, "used_fabric_cycles": 96}


def test_uses_that_overlap_are_not_hidden(tmp_path: Path) -> None:
    for ours, theirs in [
        (uses((0, 32)), uses((31, 40))),
        (uses((0, 100)), uses((10, 12))),
        (uses((0, 32), (10, 40)), uses()),
    ]:
        timeline = a_timeline()
        timeline.add_uses(LINK, "copy a", ours, "copy")
        timeline.add_uses(LINK, "copy b", theirs, "copy")
        with pytest.raises(TraceError, match="overlap"):
            assert_sound(written(timeline, tmp_path))


# The reader.


def a_document(tmp_path: Path) -> dict[str, Any]:
    timeline = a_timeline()
    timeline.add("channel 0", "Adam", 100, 200, "kernel")
    timeline.add("channel 0", "copy", 200, 300, "copy")
    timeline.instant("channel 1", "backdoor copy", 11)
    timeline.write(tmp_path / "whole.json")
    return json.loads((tmp_path / "whole.json").read_text())


def _event(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(event for event in document["traceEvents"] if event["name"] == name)


SPOILT: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "partial overlap": ("overlap", lambda d: _event(d, "copy").update(ts=0.995)),
    "nested": ("overlap", lambda d: _event(d, "copy").update(ts=0.6, dur=0.1)),
    "negative time": ("before the beginning", lambda d: _event(d, "Adam").update(ts=-0.005)),
    "off the grid": ("between fabric cycles", lambda d: _event(d, "Adam").update(ts=0.496)),
    "no category": ("no category", lambda d: _event(d, "Adam").pop("cat")),
    "unknown event": ("neither slice nor instant", lambda d: _event(d, "Adam").update(ph="B")),
    "unknown track": ("on no track", lambda d: _event(d, "Adam").update(tid=9)),
    "another order": (
        "other tracks",
        lambda d: d["traceEvents"][6]["args"].update(sort_index=-1),
    ),
    "host time": ("simulated", lambda d: d["otherData"].update(time="host")),
}


@pytest.mark.parametrize("fault", SPOILT)
def test_the_reader_refuses(tmp_path: Path, fault: str) -> None:
    said, spoil = SPOILT[fault]
    document = a_document(tmp_path)
    path = tmp_path / "spoilt.json"
    path.write_text(json.dumps(document))
    assert_sound(read_trace(path))
    spoil(document)
    path.write_text(json.dumps(document))
    with pytest.raises(TraceError, match=said):
        assert_sound(read_trace(path))


def test_channels_have_to_come_first(tmp_path: Path) -> None:
    timeline = Timeline(backend="rtl", fabric_mhz=200)
    timeline.track(LINK)
    timeline.track("channel 0")
    with pytest.raises(TraceError, match="channels are not first"):
        assert_sound(written(timeline, tmp_path))


def test_overlap_of_tracks(tmp_path: Path) -> None:
    timeline = a_timeline()
    for begin, end, category in [(0, 10, "kernel"), (20, 60, "kernel"), (60, 70, "mode")]:
        timeline.add("channel 0", category, begin, end, category)
    for begin, end, category in [(5, 25, "copy"), (30, 35, "copy"), (35, 65, "kernel")]:
        timeline.add("channel 1", category, begin, end, category)
    trace = written(timeline, tmp_path)
    assert overlap(trace, "channel 0", "channel 1") == 5 * (5 + 5 + 5 + 30)
    assert overlap(trace, "channel 1", "channel 0") == 5 * (5 + 5 + 5 + 30)
    assert overlap(trace, "channel 0", "channel 1", category="kernel") == 5 * (5 + 5 + 5 + 25)
    assert overlap(
        trace, "channel 0", "channel 1", category="kernel", other_category="copy"
    ) == 5 * (5 + 5 + 5)
    assert overlap(trace, "channel 0", "nvme0") == 0
