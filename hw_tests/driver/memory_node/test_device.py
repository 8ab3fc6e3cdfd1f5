"""Device-nodes: their addresses, allocations, copies, streams and events, on golden nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from sw_driver.device.errors import (
    AxdimmError,
    BusyError,
    DeadlockError,
    DeviceInUseError,
    InvalidArgumentError,
    OutOfMemoryError,
    PointerError,
    RangeError,
    RemoteMemoryError,
)
from sw_driver.memory_node import DeviceNode, Direction, Event, Placement
from sw_driver.memory_node.address_space import AddressSpace
from sw_driver.memory_node.backends.golden import GoldenNetwork
from sw_driver.memory_node.network import Side

from .node_doubles import LOCAL_BYTES, SHARE_BYTES, Recorded

PAGE_BYTES = 4096
OUT, BACK = Direction.LOCAL_TO_REMOTE, Direction.REMOTE_TO_LOCAL


def _device(network: GoldenNetwork | None = None, number: int = 0) -> DeviceNode:
    return DeviceNode(network or Recorded(), number, page_bytes=PAGE_BYTES)


@pytest.mark.parametrize("nbytes", [1, 64, 4096, 5000, 30_000])
@pytest.mark.parametrize("placement", Placement)
def test_what_was_copied_out_comes_back(nbytes: int, placement: Placement) -> None:
    device = _device()
    values = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    there, back = device.cuda_malloc(nbytes), device.cuda_malloc(nbytes)
    remote = device.cuda_malloc_remote(nbytes, placement=placement)
    device.write(there, values)
    device.cuda_memcpy_async(remote, there, nbytes, OUT)
    device.cuda_memcpy_async(back, remote, nbytes, BACK)
    device.synchronize()
    assert device.read(back, nbytes).tobytes() == values.tobytes()


def test_pages_go_to_both_nodes_in_turn_or_to_one() -> None:
    for placement, expected in (
        (Placement.BW_AWARE, [Side.LEFT, Side.RIGHT, Side.LEFT, Side.RIGHT]),
        (Placement.LOCAL, [Side.LEFT]),
    ):
        network = Recorded()
        device = _device(network)
        there = device.cuda_malloc(4 * PAGE_BYTES)
        remote = device.cuda_malloc_remote(4 * PAGE_BYTES, placement=placement)
        device.cuda_memcpy_async(remote, there, 4 * PAGE_BYTES, OUT)
        device.synchronize()
        pieces = [piece for _, piece in network.started]
        assert [piece.side for piece in pieces] == expected
        assert sum(piece.nbytes for piece in pieces) == 4 * PAGE_BYTES
        assert [piece.local for piece in pieces] == list(range(there, 4 * PAGE_BYTES, PAGE_BYTES))[
            : len(pieces)
        ]


def test_one_side_takes_what_the_other_has_no_room_for() -> None:
    device = _device()
    pages = SHARE_BYTES // PAGE_BYTES
    device.cuda_malloc_remote(pages * PAGE_BYTES, placement=Placement.LOCAL)
    rest = device.cuda_malloc_remote(pages * PAGE_BYTES, placement=Placement.BW_AWARE)
    with pytest.raises(
        OutOfMemoryError,
        match=rf"no room for 1 bytes.*; share_bytes of at least {SHARE_BYTES + PAGE_BYTES} would",
    ):
        device.cuda_malloc_remote(1)
    device.cuda_free_remote(rest)
    assert device.remote_memory.free_bytes == SHARE_BYTES


def test_addresses_have_the_devices_own_memory_below() -> None:
    device = _device()
    assert device.cuda_malloc(100) + 128 == device.cuda_malloc(100)
    assert device.cuda_malloc_remote(100) == LOCAL_BYTES
    assert device.cuda_malloc_remote(100) == LOCAL_BYTES + PAGE_BYTES


def test_random_allocations_never_share_a_byte() -> None:
    space = AddressSpace(local_bytes=LOCAL_BYTES, share_bytes=SHARE_BYTES, page_bytes=PAGE_BYTES)
    numbers = np.random.default_rng(7)
    owners: dict[tuple[Side | None, int], int] = {}
    mine: dict[int, list[tuple[Side | None, int]]] = {}
    for number in range(400):
        if mine and numbers.random() < 0.45:
            address = list(mine)[numbers.integers(len(mine))]
            space.free(address, remote=space.is_remote(address))
            for place in mine.pop(address):
                del owners[place]
            continue
        nbytes = int(numbers.integers(1, 20_000))
        try:
            if numbers.random() < 0.3:
                address = space.allocate(nbytes)
            else:
                address = space.allocate_remote(nbytes, numbers.choice(list(Placement)))
        except OutOfMemoryError:
            continue
        mine[address] = []
        own = [(None, address, nbytes)]
        remote = space.is_remote(address)
        for side, start, size in space.stretches(address, nbytes) if remote else own:
            for at in range(start, start + size):
                assert owners.setdefault((side, at), number) == number
                mine[address].append((side, at))
        assert len(mine[address]) == nbytes
    for address in list(mine):
        space.free(address, remote=space.is_remote(address))
    assert space.local.free_bytes == LOCAL_BYTES
    assert space.remote.free_bytes == 2 * SHARE_BYTES


def test_devices_do_not_see_each_others_memory() -> None:
    network = Recorded()
    devices = [DeviceNode(network, number, page_bytes=PAGE_BYTES) for number in range(2)]
    places = []
    for number, device in enumerate(devices):
        there, remote = device.cuda_malloc(8192), device.cuda_malloc_remote(8192)
        device.write(there, np.full(8192, number + 1, np.uint8))
        device.cuda_memcpy_async(remote, there, 8192, OUT)
        places.append((there, remote))
    for device, (there, remote) in zip(devices, places, strict=True):
        device.cuda_memcpy_async(there, remote, 8192, BACK)
        device.synchronize()
        assert set(device.read(there, 8192)) == {device.number + 1}


def test_memory_of_a_queued_copy_is_not_freed() -> None:
    """Or the next owner would get what the copy brings."""
    device = _device()
    there, back = device.cuda_malloc(64), device.cuda_malloc(64)
    remote = device.cuda_malloc_remote(64)
    device.write(there, np.full(64, 9, np.uint8))
    stream, other = device.stream(), device.stream()
    device.cuda_memcpy_async(remote, there, 64, OUT, stream)
    stream.wait_event(event := other.record())
    device.cuda_memcpy_async(back, remote, 64, BACK, stream)
    assert not event.over
    for address, free in (
        (there, device.cuda_free),
        (back, device.cuda_free),
        (remote, device.cuda_free_remote),
    ):
        with pytest.raises(BusyError, match=f"{address:#x} is in use by the copy of 64 bytes"):
            free(address)
    stream.synchronize()
    assert (device.read(back, 64) == 9).all()
    for address in (there, back):
        device.cuda_free(address)
    device.cuda_free_remote(remote)
    assert device.local_memory.allocations == device.remote_memory.allocations == 0


def test_a_device_has_one_owner() -> None:
    network = Recorded()
    with pytest.raises(InvalidArgumentError, match="page_bytes is 100: expected a multiple of 64"):
        DeviceNode(network, 1, page_bytes=100)
    device = _device(network, 1)
    with pytest.raises(DeviceInUseError, match="device 1 of the network already has a DeviceNode"):
        _device(network, 1)
    del device
    _device(network, 1)


def test_a_stream_keeps_its_order_and_events_order_streams() -> None:
    network = Recorded(held_cycles=1000)
    device = _device(network)
    there, remote = device.cuda_malloc(64), device.cuda_malloc_remote(64)
    other = device.stream()
    device.cuda_memcpy_async(remote, there, 64, OUT, other)
    written = other.record()
    third = device.stream()
    third.wait_event(written)
    device.cuda_memcpy_async(there, remote, 64, BACK, third)
    assert not written.happened
    assert len(network.started) == 1
    third.synchronize()
    assert written.cycles is not None
    assert 1000 <= written.cycles <= network.cycles() - 1000
    assert [piece.write for _, piece in network.started] == [True, False]
    assert other.idle
    assert third.idle


def test_streams_go_on_at_once() -> None:
    network = Recorded(held_cycles=1000)
    device = _device(network)
    for _ in range(5):
        there, remote = device.cuda_malloc(64), device.cuda_malloc_remote(64)
        device.cuda_memcpy_async(remote, there, 64, OUT, device.stream())
    last = device.stream()
    device.cuda_memcpy_async(remote, there, 64, OUT, last)
    last.synchronize()
    assert network.cycles() < 2000


def test_an_event_that_cannot_happen_is_told() -> None:
    network = GoldenNetwork(local_bytes=LOCAL_BYTES, share_bytes=SHARE_BYTES)
    stream = _device(network).stream()
    stream.wait_event(Event("an event that nobody recorded", network.domain))
    with pytest.raises(DeadlockError, match=r"stream 0\.1 waits for an event that nobody recorded"):
        stream.synchronize()


def test_a_refusal_of_a_node_is_told_once() -> None:
    network = Recorded(change=lambda piece: replace(piece, remote=piece.remote + SHARE_BYTES))
    device = _device(network)
    there, remote = device.cuda_malloc(64), device.cuda_malloc_remote(64)
    device.cuda_memcpy_async(remote, there, 64, OUT)
    with pytest.raises(RemoteMemoryError, match=r"memory-node 3 refused 64 bytes.*BOUNDS"):
        device.synchronize()
    device.synchronize()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda d, a, r: d.cuda_malloc(0), InvalidArgumentError, "is 0: expected an integer of 1"),
        (
            lambda d, a, r: d.cuda_malloc_remote(-1),
            InvalidArgumentError,
            "is -1: expected an integer of 1",
        ),
        (lambda d, a, r: d.cuda_malloc(1 << 20), OutOfMemoryError, "local_bytes of at least 10"),
        (lambda d, a, r: d.cuda_free(a + 64), PointerError, "start of a local one"),
        (lambda d, a, r: d.cuda_free(r), PointerError, "start of a local one"),
        (lambda d, a, r: d.cuda_free_remote(r + 8192), PointerError, "no remote allocation"),
        (lambda d, a, r: d.cuda_memcpy_async(r, a, 64, BACK), RangeError, "dst .* is remote"),
        (lambda d, a, r: d.cuda_memcpy_async(a, r, 64, OUT), RangeError, "dst .* is local"),
        (lambda d, a, r: d.cuda_memcpy_async(r, r, 64, OUT), RangeError, "src .* is remote"),
        (lambda d, a, r: d.cuda_memcpy_async(r, a, 5000, OUT), RangeError, "1 to 4096"),
        (lambda d, a, r: d.cuda_memcpy_async(r, a, 0, OUT), RangeError, "0 bytes"),
        (
            lambda d, a, r: d.cuda_memcpy_async(r + 1, a, 64, OUT),
            InvalidArgumentError,
            "multiple of 64",
        ),
        (lambda d, a, r: d.cuda_memcpy_async(r, a, 65, OUT), InvalidArgumentError, "65 bytes"),
        (lambda d, a, r: d.cuda_memcpy_async(r, a, 64, "up"), InvalidArgumentError, "'up'"),
        (lambda d, a, r: d.read(r, 64), InvalidArgumentError, "is remote"),
        (lambda d, a, r: d.write(a, np.zeros(5000, np.uint8)), RangeError, "1 to 4096"),
        (
            lambda d, a, r: d.stream().wait_event(_device().stream().record()),
            InvalidArgumentError,
            "no event of this network",
        ),
        (
            lambda d, a, r: d.write(a, None),
            InvalidArgumentError,
            "values are None: expected an array of numbers",
        ),
    ],
)
def test_refusals(
    call: Callable[[DeviceNode, int, int], object], error: type[AxdimmError], message: str
) -> None:
    network = Recorded()
    device = _device(network)
    there, remote = device.cuda_malloc(4096), device.cuda_malloc_remote(4096)
    before = device.local_memory.free_bytes, device.remote_memory.free_bytes
    with pytest.raises(error, match=message):
        call(device, there, remote)
    device.synchronize()
    assert not network.started
    assert (device.local_memory.free_bytes, device.remote_memory.free_bytes) == before


@pytest.mark.parametrize(
    "sizes",
    [
        {"local_bytes": 100, "share_bytes": 4096, "page_bytes": 4096},
        {"local_bytes": 4096, "share_bytes": 5000, "page_bytes": 4096},
    ],
)
def test_sizes_of_the_address_space(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected a multiple of"):
        AddressSpace(**sizes)
