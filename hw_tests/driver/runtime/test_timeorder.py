"""What streams share goes by simulated time: order, pace of every kind of copy, and no overlap."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hw_tests.driver.trace_reader import assert_sound, read_trace
from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.backends.golden import GoldenTransport
from sw_driver.device import errors
from sw_driver.runtime.timeorder import TimeOrder
from sw_driver.runtime.watchdog import Watchdog

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


class _Link(GoldenTransport):
    """Knows which channels the link waits for, and until when."""

    def __init__(self) -> None:
        super().__init__()
        self.engaged: dict[int, int] = {}

    def engage(self, channel: int, fabric_cycle: int) -> None:
        self.engaged[channel] = fabric_cycle

    def disengage(self, channel: int) -> None:
        self.engaged.pop(channel, None)


@pytest.fixture
def link() -> _Link:
    return _Link()


@pytest.fixture
def order(link: _Link) -> TimeOrder:
    return TimeOrder(link, Watchdog(SECONDS, lambda: "no state", lambda: None))


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


def test_the_link_waits_for_the_earliest_of_those_at_work(order: TimeOrder, link: _Link) -> None:
    order.enter(0, 1, 30)
    order.enter(1, 1, 20)
    order.enter(2, None, 5)
    assert link.engaged == {1: 20}
    order.adopt(1)
    order.reach(40)
    assert link.engaged == {1: 30}
    order.turn_to(1, 0)
    assert link.engaged == {0: 40, 1: 30}
    with order.blocked():
        assert link.engaged == {1: 30}
    order.leave(0)
    assert link.engaged == {0: 40}


def test_the_link_does_not_wait_for_who_waits_for_a_turn(order: TimeOrder, link: _Link) -> None:
    order.adopt(0)
    order.enter(0, 0, 0)
    order.enter(1, 1, 0)
    order.enter(2, 1, 0)
    other = _Turn(order, 1, 100)
    assert other.waits
    third = _Turn(order, 2, 100)
    assert third.waits
    assert link.engaged == {0: 0}
    for stream in (0, 1, 2):
        order.leave(stream)
    assert not other.waits
    assert not third.waits


def test_whose_turn_has_come_is_at_work_before_its_thread_wakes(
    order: TimeOrder, link: _Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    order.adopt(0)
    order.enter(0, 0, 0)
    order.enter(1, 1, 0)
    waiting = _Turn(order, 1, 100)
    assert waiting.waits
    with monkeypatch.context() as patch:
        patch.setattr(order._changed, "notify_all", lambda: None)
        order.reach(101)
        assert link.engaged == {0: 101, 1: 100}
    order.reach(102)
    assert not waiting.waits


def test_who_waits_for_an_end_is_at_work_when_it_is_told(order: TimeOrder, link: _Link) -> None:
    order.adopt(0)
    order.enter(0, 0, 10)
    with order.blocked(on=link):
        order.over(order, 50)
        assert link.engaged == {}
        order.over(link, 50)
        assert link.engaged == {0: 50}
    assert link.engaged == {0: 50}


def test_waiting_for_a_turn_ends() -> None:
    order = TimeOrder(GoldenTransport(), Watchdog(0.1, lambda: "no state", lambda: None))
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


@pytest.mark.parametrize("backend", ["cycles:tiny", "rtl:tiny"])
def test_nobody_waits_for_what_a_block_of_queueing_holds(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link would wait for a channel that is engaged until it is found to do nothing."""
    with Axdimm(backend) as device:
        pointers = [device.MallocAxdimm(8192, channel) for channel in range(2)]
        stream = device.new_stream("held")
        engaged = []
        engage = device.transport.engage

        def spy(channel: int, fabric_cycle: int) -> None:
            engaged.append(channel)
            engage(channel, fabric_cycle)

        monkeypatch.setattr(device.transport, "engage", spy)
        with device.queueing():
            for _ in range(2):
                device.MemcpyHost2Axdimm(pointers[0], bytes(8192), 8192, stream=stream)
            other = threading.Thread(
                target=device.MemcpyHost2Axdimm, args=(pointers[1], bytes(8192), 8192)
            )
            other.start()
            other.join(SECONDS)
            assert not other.is_alive()
            assert not engaged
        stream.wait(SECONDS)
        assert set(engaged) == {0}
