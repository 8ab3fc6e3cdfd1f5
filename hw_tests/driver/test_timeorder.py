"""What streams share goes by simulated time: order, pace of every kind of copy, and no overlap."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hw_tests.driver.trace_reader import assert_sound, read_trace
from sw_driver import errors
from sw_driver.axdimm import Axdimm
from sw_driver.backends.golden import GoldenTransport
from sw_driver.timeorder import TimeOrder
from sw_driver.watchdog import Watchdog

SECONDS = 60
NBYTES = 200_000


class _Turn(threading.Thread):
    """A stream's thread that wants something at a time."""

    def __init__(self, order: TimeOrder, stream: int, fabric_cycle: int) -> None:
        super().__init__(daemon=True)
        self._order, self._stream, self._cycle = order, stream, fabric_cycle
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        self._order.adopt(self._stream)
        try:
            self._order.turn(self._cycle, "something")
        except errors.DeviceTimeoutError as error:
            self.error = error

    @property
    def waits(self) -> bool:
        self.join(0.05)
        return self.is_alive()


@pytest.fixture
def order() -> TimeOrder:
    return TimeOrder(GoldenTransport(), Watchdog(SECONDS, lambda: "no state"))


def test_who_is_later_waits_for_who_is_earlier(order: TimeOrder) -> None:
    order.adopt(0)
    order.enter(0, None, 10)
    order.enter(1, None, 0)
    later = _Turn(order, 1, 100)
    assert later.waits
    order.reach(99)
    assert later.waits
    order.reach(101)
    assert not later.waits


def test_among_equals_the_first_stream_is_first(order: TimeOrder) -> None:
    order.adopt(0)
    order.enter(0, None, 100)
    order.enter(1, None, 100)
    order.turn(100, "the first")
    second = _Turn(order, 1, 100)
    assert second.waits
    order.leave(0)
    assert not second.waits


def test_who_waits_for_another_is_not_waited_for(order: TimeOrder) -> None:
    order.adopt(0)
    order.enter(0, None, 0)
    order.enter(1, None, 0)
    with order.blocked():
        order.enter(0, None, 0)  # something more is queued meanwhile
        assert not _Turn(order, 1, 100).waits
    other = _Turn(order, 1, 200)
    assert other.waits
    order.leave(0)
    assert not other.waits


def test_waiting_for_a_turn_ends() -> None:
    order = TimeOrder(GoldenTransport(), Watchdog(0.1, lambda: "no state"))
    order.enter(0, None, 0)
    waiting = _Turn(order, 1, 1)
    waiting.join(SECONDS)
    assert "turn of something" in str(waiting.error)


@pytest.mark.parametrize("backend", ["cycles:tiny", "rtl:tiny"])
def test_copies_go_at_the_pace_of_the_slower_end(backend: str, tmp_path: Path) -> None:
    with Axdimm(backend) as device:
        device.RegisterStorage(tmp_path / "storage", capacity_bytes=1 << 20)
        pointers = {
            "Host": device.MallocHost(NBYTES),
            "Axdimm": device.MallocAxdimm(NBYTES, 0),
            "Gpu": device.MallocGpu(NBYTES),
            "Nvme": device.MallocNvme(NBYTES),
        }
        # The link: two fabric cycles of 5 ns for 64 bytes. The others: latency and bandwidth.
        least_ns = {"Host": 0.0, "Axdimm": NBYTES / 6.4, "Gpu": 7_000 + NBYTES / 12}
        least_ns["Nvme"] = 70_000 + NBYTES / 3.45
        for one in least_ns:
            for other in least_ns:
                if one == other:
                    continue
                copy = getattr(device, f"Memcpy{one}2{other}")
                handle = copy(pointers[other], pointers[one], NBYTES)
                took_ns = 5 * (handle.ended - handle.began)
                slowest_ns = max(least_ns[one], least_ns[other])
                # Reads over the link that meet a refresh are repeated.
                most = 1.4 if slowest_ns == least_ns["Axdimm"] else 1.02
                assert slowest_ns * 0.999 <= took_ns <= slowest_ns * most + 1000, (one, other)


@pytest.mark.parametrize("backend", ["cycles:tiny", "rtl:tiny"])
@pytest.mark.parametrize("slow", ["Nvme", "Gpu"])
def test_copies_of_two_streams_on_one_channel_do_not_overlap(
    backend: str, slow: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    with Axdimm(backend, timeline=path) as device:
        device.RegisterStorage(tmp_path / "storage", capacity_bytes=1 << 20)
        there = getattr(device, f"Malloc{slow}")(8192)
        pointer = device.MallocAxdimm(8192, 0)
        streams = [device.new_stream(name) for name in ("slow", "fast")]
        with device.queueing():
            for _ in range(3):
                copy = getattr(device, f"Memcpy{slow}2Axdimm")
                copy(pointer, there, 8192, stream=streams[0])
                device.MemcpyHost2Axdimm(pointer, bytes(128), 128, stream=streams[1])
        for stream in streams:
            stream.wait(SECONDS)
    trace = read_trace(path)
    assert_sound(trace)
    assert len(trace.tracks["channel 0"]) == 6
