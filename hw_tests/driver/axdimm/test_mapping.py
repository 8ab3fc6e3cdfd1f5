"""A cached view of the module's memory goes stale, as in paper section 4.1; copies never do."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hw_tests.driver.adam import ADAM, adam_constants, adam_step
from hw_tests.driver.transports import WatchedTransport
from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.backends.golden import GoldenTransport
from sw_driver.device import errors

COUNT = 100
NBYTES = 4 * COUNT


def test_a_cached_view_is_stale_after_a_run_and_the_copies_are_not(
    device: Axdimm, watched: WatchedTransport
) -> None:
    before = np.ones(COUNT, np.float32)
    pointers = {name: device.MallocAxdimm(NBYTES, 0) for name in "pmvg"}
    for pointer in pointers.values():
        device.MemcpyHost2Axdimm(pointer, before, NBYTES)
    view = device.map(pointers["p"], NBYTES)
    assert np.array_equal(view.load(0, NBYTES).view(np.float32), before)
    device.SetArbiterAcc(0)
    device.RunAdamOnAxdimmAsync(**pointers, nparams=COUNT, **ADAM, channel=0).wait(60)
    lines = watched.link_lines
    assert np.array_equal(view.load(0, NBYTES).view(np.float32), before), "served by the cache"
    assert watched.link_lines == lines
    device.SetArbiterNormal(0)
    assert np.array_equal(view.load(0, NBYTES).view(np.float32), before), "stale in any mode"
    after, *_ = adam_step(*[before] * 4, adam_constants(**ADAM))
    assert not np.array_equal(after, before)
    read = np.empty(COUNT, np.float32)
    device.MemcpyAxdimm2Host(read, pointers["p"], NBYTES)
    assert np.array_equal(read, after), "the runtime's read flushes first"
    assert np.array_equal(view.load(0, NBYTES).view(np.float32), after)


def test_a_program_can_flush_for_itself(device: Axdimm) -> None:
    pointer = device.MallocAxdimm(256, 1)
    device.MemcpyHost2Axdimm(pointer, bytes(256), 256)
    view = device.map(pointer, 256)
    view.load(0, 256)
    device.MemcpyHost2Axdimm(pointer, b"\1" * 256, 256, backdoor=True)
    assert not view.load(64, 64).any()
    view.flush(64, 64)
    assert view.load(64, 64).all()
    assert not view.load(128, 64).any()


def test_cached_stores_reach_the_device_only_when_flushed(device: Axdimm) -> None:
    pointer = device.MallocAxdimm(256, 0)
    device.MemcpyHost2Axdimm(pointer, bytes(256), 256)
    view = device.map(pointer, 256)
    view.store(10, b"\7" * 20)
    memory = bytearray(256)
    device.MemcpyAxdimm2Host(memory, pointer, 256, backdoor=True)
    assert not any(memory)
    view.flush()
    device.MemcpyAxdimm2Host(memory, pointer, 256, backdoor=True)
    assert memory == bytes(10) + b"\7" * 20 + bytes(226)
    view.store(96, b"\4")
    view.stream_store(100, b"\5" * 8)
    view.fence()
    device.MemcpyAxdimm2Host(memory, pointer, 256, backdoor=True)
    assert memory[96:108] == b"\4\0\0\0" + b"\5" * 8
    # The runtime's copies are in the device when they return, whatever was cached.
    view.load(0, 256)
    device.MemcpyHost2Axdimm(pointer, b"\x09" * 256, 256)
    device.MemcpyAxdimm2Host(memory, pointer, 256, backdoor=True)
    assert memory == b"\x09" * 256
    assert (view.load(0, 256) == 9).all()


def test_what_is_not_cached_needs_the_dram(device: Axdimm) -> None:
    pointer = device.MallocAxdimm(256, 0)
    device.MemcpyHost2Axdimm(pointer, bytes(256), 256)
    view = device.map(pointer, 256)
    view.load(0, 64)
    device.SetArbiterAcc(0)
    view.load(0, 64)
    for access in (lambda: view.load(0, 65), lambda: view.store(64, b"1")):
        with pytest.raises(errors.WrongModeError):
            access()
    with pytest.raises(errors.WrongModeError):
        view.stream_store(0, b"1")
    # What is written back now is lost: the arbiter refuses it.
    view.store(0, b"\1" * 64)
    view.flush()
    device.SetArbiterNormal(0)
    assert not view.load(0, 64).any()


def test_views_are_checked(device: Axdimm) -> None:
    pointer = device.MallocAxdimm(100, 0)
    device.MemcpyHost2Axdimm(pointer, bytes(100), 100)
    with pytest.raises(errors.RangeError):
        device.map(pointer, 101)
    view = device.map(pointer + 10, 90)
    assert len(view) == 90
    for offset, nbytes in ((0, 91), (90, 1), (50, 50)):
        with pytest.raises(errors.RangeError, match=str(offset + nbytes)):
            view.load(offset, nbytes)
    with pytest.raises(errors.InvalidArgumentError):
        view.load(-1, 1)
    device.FreeAxdimm(pointer)
    with pytest.raises(errors.PointerError, match="was freed"):
        view.load(0, 1)


def test_random_accesses_to_views_that_overlap() -> None:
    """Against a model of one line at a time: views of one channel share the cache."""
    rng = random.Random(1)
    size = 16 * 64
    memory = bytearray(rng.randbytes(size))
    cached: dict[int, bytearray] = {}
    dirty: set[int] = set()
    stale = 0

    def cache(line: int) -> bytearray:
        return cached.setdefault(line, memory[line * 64 : line * 64 + 64])

    def flush(line: int) -> None:
        content = cached.pop(line, None)
        if line in dirty and content is not None:
            memory[line * 64 : line * 64 + 64] = content
        dirty.discard(line)

    with Axdimm(GoldenTransport(channels=1, capacity_bytes=1 << 14)) as device:
        pointer = device.MallocAxdimm(size, 0)
        device.MemcpyHost2Axdimm(pointer, memory, size)
        views = [(begin, device.map(pointer + begin, size - begin)) for begin in (0, 100)]
        for _ in range(3000):
            begin, view = rng.choice(views)
            nbytes = rng.choice((0, 1, 16, 64, 200))
            offset = rng.randrange(size - begin - nbytes)
            data = rng.randbytes(nbytes)
            places = range(begin + offset, begin + offset + nbytes)
            what = rng.choice(("load", "store", "flush", "stream_store", "in", "out", "kernel"))
            if what not in ("load", "store", "kernel"):
                for place in places:
                    flush(place // 64)
            if what == "load":
                expected = bytes(cache(place // 64)[place % 64] for place in places)
                assert view.load(offset, nbytes).tobytes() == expected
                stale += expected != memory[places.start : places.stop]
            elif what == "store":
                for place, value in zip(places, data, strict=True):
                    cache(place // 64)[place % 64] = value
                    dirty.add(place // 64)
                view.store(offset, data)
            elif what == "flush":
                view.flush(offset, nbytes)
            elif what == "out":
                found = bytearray(nbytes)
                device.MemcpyAxdimm2Host(found, pointer + begin + offset, nbytes)
                assert found == memory[places.start : places.stop]
            else:
                memory[places.start : places.stop] = data
                if what == "stream_store":
                    view.stream_store(offset, data)
                else:
                    device.MemcpyHost2Axdimm(
                        pointer + places.start, data, nbytes, backdoor=what == "kernel"
                    )
            device.MemcpyAxdimm2Host(found := bytearray(size), pointer, size, backdoor=True)
            assert found == memory
    assert stale > 50
