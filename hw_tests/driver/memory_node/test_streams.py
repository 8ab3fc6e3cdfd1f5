"""Streams of device-nodes: when time passes, who waits for whom, and who is told what failed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from hw.memory_node.config import MEMORY_NODE_PRESETS
from sw_driver.device.clock import Clock, Steps
from sw_driver.device.errors import (
    ClosedError,
    DeadlockError,
    DeviceTimeoutError,
    InvalidArgumentError,
    RemoteMemoryError,
)
from sw_driver.device.streams import Handle
from sw_driver.memory_node import DeviceNode, Direction, Event, Stream
from sw_driver.memory_node.backends.golden import GoldenNetwork
from sw_driver.memory_node.backends.rtl import RtlNetwork
from sw_driver.memory_node.dma import DmaNetwork

from .node_doubles import SHARE_BYTES, Recorded

TINY = MEMORY_NODE_PRESETS["tiny"]
OUT, BACK = Direction.LOCAL_TO_REMOTE, Direction.REMOTE_TO_LOCAL
LOCAL_BYTES = 1 << 18
SIZE = 20_000


def _golden(clock: Clock | None = None) -> DmaNetwork:
    return GoldenNetwork(local_bytes=LOCAL_BYTES, share_bytes=1 << 20, clock=clock)


def _rtl(clock: Clock | None = None) -> DmaNetwork:
    return RtlNetwork(config=TINY, local_bytes=LOCAL_BYTES, clock=clock)


Make = Callable[..., DmaNetwork]
BOTH = pytest.mark.parametrize("make", [_golden, _rtl], ids=["golden", "rtl"])


@pytest.fixture
def network(make: Make) -> Iterator[DmaNetwork]:
    made = make()
    yield made
    made.close()


def _there_and_back(device: DeviceNode, stream: Stream | None = None) -> tuple[int, Handle[None]]:
    """Copies random bytes out and back; where they come to, and the last handle."""
    there, back = device.cuda_malloc(SIZE), device.cuda_malloc(SIZE)
    remote = device.cuda_malloc_remote(SIZE)
    device.write(there, np.random.default_rng(there).integers(0, 256, SIZE, np.uint8))
    device.cuda_memcpy_async(remote, there, SIZE, OUT, stream)
    return back, device.cuda_memcpy_async(back, remote, SIZE, BACK, stream)


def _traffic(network: DmaNetwork, pause: Callable[[], None]) -> tuple[list[object], list[bytes]]:
    """What all kinds of calls say of the time, and all memories at the end."""
    numbers = np.random.default_rng(3)
    said: list[object] = []
    devices = [DeviceNode(network, number, page_bytes=4096) for number in range(2)]
    streams = [(device, device.stream()) for device in devices for _ in range(3)]
    events: list[Event] = []
    for _ in range(20):
        device, stream = streams[numbers.integers(len(streams))]
        lines = 64 * int(numbers.integers(1, 200))
        local, remote = device.cuda_malloc(lines), device.cuda_malloc_remote(lines)
        pause()
        device.write(local, numbers.integers(0, 256, lines, np.uint8))
        if events and numbers.random() < 0.5:
            stream.wait_event(events[numbers.integers(len(events))])
        pause()
        handle = device.cuda_memcpy_async(remote, local, lines, OUT, stream)
        pause()
        device.cuda_memcpy_async(local, remote, lines, BACK, stream)
        events.append(stream.record())
        pause()
        ask = numbers.random()
        if ask < 0.2:
            handle.wait()
        elif ask < 0.4:
            said.append(events[numbers.integers(len(events))].happened)
        elif ask < 0.5:
            stream.synchronize()
        said.append((handle.done, stream.idle, network.cycles(), network.domain.program_now))
    for _, stream in streams:
        pause()
        stream.synchronize()
    said += [(event.cycles, network.cycles()) for event in events]
    return said, [network.local(number).tobytes() for number in range(2)]


@BOTH
def test_pauses_of_the_program_change_no_cycle(make: Make) -> None:
    found = []
    numbers = np.random.default_rng()
    for pause in (lambda: None, lambda: time.sleep(numbers.random() / 500)):
        network = make()
        found.append(_traffic(network, pause))
        network.close()
    assert found[0] == found[1]


@BOTH
def test_two_threads(network: DmaNetwork) -> None:
    def work(device: DeviceNode) -> None:
        stream = device.stream()
        for _ in range(5):
            back, handle = _there_and_back(device, stream)
            handle.wait()
            there = device.read(back - SIZE // 64 * 64 - 64, SIZE).tobytes()
            assert device.read(back, SIZE).tobytes() == there
            assert any(there)
            assert stream.idle

    devices = [DeviceNode(network, number, page_bytes=4096) for number in range(2)]
    with ThreadPoolExecutor() as threads:
        list(threads.map(work, devices, timeout=60))


@BOTH
def test_a_callback_may_queue_a_copy_but_not_wait(network: DmaNetwork) -> None:
    device = DeviceNode(network, page_bytes=4096)
    back, handle = _there_and_back(device)
    remote = device.cuda_malloc_remote(SIZE)
    made: list[Handle[None]] = []
    told: list[str] = []

    def callback() -> None:
        made.append(device.cuda_memcpy_async(remote, back, SIZE, OUT))
        for wait in (made[0].wait, device.synchronize, device.stream().record().synchronize):
            try:
                wait()
            except DeadlockError as error:
                told.append(str(error))

    handle.add_done_callback(callback)
    handle.wait()
    made[0].wait()
    assert made[0].began >= handle.ended
    assert len(told) == 3
    assert all("it may queue operations, not wait for them" in each for each in told)


def test_callbacks_of_two_threads_at_once() -> None:
    """The first begins first and ends first; then its thread waits for something else."""
    network = _golden()
    began, go_on, ended = (threading.Event() for _ in range(3))
    device, others = (DeviceNode(network, number, page_bytes=4096) for number in range(2))

    def other() -> None:
        began.wait()
        _, handle = _there_and_back(others)
        handle.add_done_callback(lambda: (go_on.set(), ended.wait()))
        handle.wait()

    with ThreadPoolExecutor() as threads:
        second = threads.submit(other)
        _, handle = _there_and_back(device)
        handle.add_done_callback(lambda: (began.set(), go_on.wait()))
        handle.wait()
        ended.set()
        second.result(60)
        _there_and_back(device)[1].wait()


def test_a_callback_may_leave_the_program() -> None:
    device = DeviceNode(_golden(), page_bytes=4096)
    _, handle = _there_and_back(device)
    handle.add_done_callback(sys.exit)
    with pytest.raises(SystemExit):
        device.synchronize()
    _there_and_back(device)[1].wait()


@BOTH
def test_streams_that_wait_for_each_others_later_events_are_told(network: DmaNetwork) -> None:
    device = DeviceNode(network)
    streams = [device.stream(), device.stream()]
    later = [Event(f"event {number}", network.domain) for number in range(2)]

    def nothing() -> Steps:
        yield from ()

    for number, stream in enumerate(streams):
        stream.wait_event(later[1 - number])
        stream.submit(later[number], nothing)
    before = network.cycles()
    for stream in streams:
        with pytest.raises(
            DeadlockError,
            match=r"cannot happen any more: stream 0.1 waits for event 1; stream 0.2 waits",
        ):
            stream.synchronize()
        assert stream.pending
    assert network.cycles() == before


@pytest.mark.parametrize(
    ("make", "way"),
    [(_golden, "callback"), (_rtl, "callback"), (_rtl, "timer")],
    ids=["golden-callback", "rtl-callback", "rtl-timer"],
)
def test_an_interrupt_leaves_what_is_queued(make: Make, way: str) -> None:
    found = []
    for interrupted in (False, True):
        network = make()
        device = DeviceNode(network, page_bytes=4096)
        stream = device.stream()
        _, handle = _there_and_back(device, stream)
        for _ in range(4):
            back, last = _there_and_back(device, stream)
        if interrupted:
            if way == "callback":
                handle.add_done_callback(lambda: signal.raise_signal(signal.SIGINT))
            else:
                timer = threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT))
                handle.add_done_callback(timer.start)
            with pytest.raises(KeyboardInterrupt):
                stream.synchronize()
            assert handle.over
            assert not last.over
            assert last in stream.pending
        event = stream.record()
        stream.synchronize()
        assert last.done
        found.append(
            (last.ended, event.cycles, network.cycles(), device.read(back, SIZE).tobytes())
        )
        network.close()
    assert found[0] == found[1]


@BOTH
def test_a_loop_that_asks_ends(make: Make, network: DmaNetwork) -> None:
    device = DeviceNode(network, page_bytes=4096)
    stream = device.stream()
    waiting = make()
    _, waited = _there_and_back(DeviceNode(waiting, page_bytes=4096))
    waited.wait()
    waiting.close()
    ends = []
    for question in (
        lambda handle, event: handle.done,
        lambda handle, event: event.happened,
        lambda handle, event: stream.idle,
    ):
        begun = network.cycles()
        _, handle = _there_and_back(device, stream)
        event = stream.record()
        asked = 0
        while not question(handle, event):
            asked += 1
        assert handle.over
        if network.timed:
            # A read of a register each, to the end and not beyond.
            cycles = network.domain.program_now - begun
            assert 0 < network.domain.question_cycles * asked <= cycles
            assert 0 <= network.domain.program_now - handle.ended < 32
        event.synchronize()
        assert event.cycles == handle.ended
        ends.append(handle.ended)
    assert ends[0] == waited.ended  # who asks changes nothing


def test_a_read_of_a_register_takes_the_time_of_a_question() -> None:
    network = RtlNetwork(config=TINY, local_bytes=LOCAL_BYTES)
    begun = network.cycles()
    network.ports.registers[0].node("dead")
    assert network.cycles() - begun == network.domain.question_cycles
    assert network.domain.program_now == network.cycles()
    device = DeviceNode(network, page_bytes=4096)
    _, handle = _there_and_back(device)
    while not network.ports.registers[0].link(0, "requests"):
        assert not handle.over
    device.synchronize()
    network.close()


def test_handles_can_be_awaited_and_tell_how_far_they_are() -> None:
    network = _rtl()
    device = DeviceNode(network, page_bytes=4096)
    back, handle = _there_and_back(device)
    seen = set()
    while not handle.done:
        seen.add(handle.progress.done)
    assert len(seen) > 2
    assert handle.progress.done == SIZE

    async def program() -> bytes:
        again, handle = _there_and_back(device)
        await handle
        return device.read(again, SIZE).tobytes()

    assert asyncio.run(program())
    assert any(device.read(back, SIZE))
    network.close()


@BOTH
def test_a_shared_clock(make: Make) -> None:
    """The cycles are those of a clock of one's own, in picoseconds; idle time passes in all."""
    own = make()
    _there_and_back(device := DeviceNode(own, page_bytes=4096))
    device.synchronize()
    clock = Clock()
    networks: list[DmaNetwork] = []
    devices: list[DeviceNode] = []
    cycle_ps = 4 * TINY.part.timing.tck_ps
    for _ in range(2):
        network = make(clock)
        networks.append(network)
        devices.append(device := DeviceNode(network, page_bytes=4096))
        begun = network.domain.program_now
        _there_and_back(device)
        device.synchronize()
        if not network.timed:
            continue
        assert clock.now == cycle_ps * network.domain.program_now
        assert network.cycles() == network.domain.program_now
        assert begun < network.cycles()
        if len(networks) == 1:
            assert network.cycles() == own.cycles()
    # Of two that have copies at once neither is ahead.
    handles = [_there_and_back(device)[1] for device in devices]
    for handle in handles:
        handle.wait()
        assert clock.now == handle.domain.ticks(handle.ended)
    assert abs(handles[0].ended - handles[1].ended) <= 64
    for network in (own, *networks):
        network.close()


def _refused() -> tuple[DeviceNode, Callable[[], Handle[None]]]:
    """A device, and a copy of a line, which is refused."""
    network = Recorded(
        change=lambda piece: piece if piece.nbytes > 64 else replace(piece, remote=SHARE_BYTES)
    )
    device = DeviceNode(network, page_bytes=4096)
    there, remote = device.cuda_malloc(64), device.cuda_malloc_remote(64)
    return device, lambda: device.cuda_memcpy_async(remote, there, 64, OUT)


def test_the_handle_of_a_refused_copy_tells_always_and_its_stream_goes_on() -> None:
    device, copy = _refused()
    handle = copy()
    _, later = _there_and_back(device)
    later.wait()
    for _ in range(2):
        with pytest.raises(RemoteMemoryError, match="BOUNDS"):
            handle.wait()
    with pytest.raises(RemoteMemoryError, match="BOUNDS"):
        device.synchronize()
    device.synchronize()


def test_what_is_behind_a_refused_copy_tells_once() -> None:
    device, copy = _refused()
    own, other = device._default, device.stream()
    waits: list[Callable[[], object]] = [device.synchronize]
    for first in range(3):
        before = own.record()
        copy()
        event = own.record()
        other.wait_event(event)
        waits = [own.synchronize, event.synchronize, other.synchronize]
        waits = waits[first:] + waits[:first]
        before.synchronize()
        with pytest.raises(RemoteMemoryError, match="BOUNDS"):
            waits[0]()
        for wait in waits:
            wait()
    copy()
    copy()
    for _ in range(2):
        with pytest.raises(RemoteMemoryError, match="BOUNDS"):
            own.wait()
    own.wait()


def test_a_copy_that_does_not_end_is_given_up() -> None:
    network = Recorded(held_cycles=20_000_000)
    device = DeviceNode(network, page_bytes=4096)
    there, remote = device.cuda_malloc(64), device.cuda_malloc_remote(64)
    handle = device.cuda_memcpy_async(remote, there, 64, OUT)
    with pytest.raises(DeviceTimeoutError, match=r"no answer came in 1000.... fabric cycles"):
        device.synchronize()
    assert handle.failed
    assert network.cycles() < 10_001_000
    network.held_cycles = 0
    device.cuda_memcpy_async(remote, there, 64, OUT)
    device.synchronize()


@BOTH
def test_closing_discards_what_is_queued(network: DmaNetwork) -> None:
    device = DeviceNode(network, page_bytes=4096)
    _, handle = _there_and_back(device)
    other = device.stream()
    event = other.record()
    assert not handle.done  # the first copy has begun
    told: list[bool] = []
    handle.add_done_callback(lambda: told.append(handle.failed))
    network.close()
    assert told == [True]
    network.close()
    with pytest.raises(ClosedError, match="the device was closed before the copy of 20000 bytes"):
        handle.wait()
    for call in (device.synchronize, lambda: _there_and_back(device), other.record, device.stream):
        with pytest.raises(ClosedError):
            call()
    assert event.over


def test_streams_of_another_network_are_refused() -> None:
    device, other = DeviceNode(_golden()), DeviceNode(_golden())
    there, remote = device.cuda_malloc(64), device.cuda_malloc_remote(64)
    with pytest.raises(InvalidArgumentError, match="no stream of this network"):
        device.cuda_memcpy_async(remote, there, 64, OUT, other.stream())
