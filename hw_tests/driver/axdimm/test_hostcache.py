"""The host's cache before the DRAM: stale loads, reads that never are, write combining, eviction.

The reference is a model of its own: one line at a time, in dictionaries, written from the contract.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from dataclasses import asdict

import numpy as np
import pytest
from numpy.typing import NDArray

from hw_tests.driver.transports import WatchedTransport
from sw_driver.axdimm.backends.golden import GoldenTransport
from sw_driver.axdimm.hostcache import HostCache, HostCacheConfig, HostCacheCounters
from sw_driver.axdimm.registers import arbiter_registers
from sw_driver.runtime.wrapper import TransportWrapper
from sw_driver.transport import DeviceFault, Transport, kernel_window

CAPACITY = 1 << 14
DRAM = kernel_window(CAPACITY)
TINY = HostCacheConfig(sets=4, ways=2, write_combining_buffers=2)
PAPER = HostCacheConfig()
DEADLINE_SECONDS = 30

Bytes = NDArray[np.uint8]


class RecordingTransport(TransportWrapper):
    """Notes each call for lines: read or written, the first line, how many."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.calls: list[tuple[str, int, int]] = []

    def taken(self) -> list[tuple[str, int, int]]:
        """The calls since the last time."""
        calls, self.calls = self.calls, []
        return calls

    def write_lines(self, channel: int, address: int, data: Bytes) -> None:
        self.calls.append(("write", address // 64, data.nbytes // 64))
        super().write_lines(channel, address, data)

    def read_lines(self, channel: int, address: int, nbytes: int) -> Bytes:
        self.calls.append(("read", address // 64, nbytes // 64))
        return super().read_lines(channel, address, nbytes)


def golden(capacity: int = CAPACITY) -> RecordingTransport:
    return RecordingTransport(GoldenTransport(channels=2, capacity_bytes=capacity))


def filled(value: int, nbytes: int) -> Bytes:
    return np.full(nbytes, value, dtype=np.uint8)


def device(transport: Transport, address: int, nbytes: int, channel: int = 0) -> list[int]:
    """What the DRAM holds, whatever the host thinks."""
    return transport.backdoor_read(channel, address, nbytes).tolist()


both = pytest.mark.parametrize("config", [TINY, PAPER], ids=["tiny", "paper"])


def test_defaults_are_the_papers_cpu() -> None:
    assert PAPER.capacity_bytes == 50 * 2**20
    assert PAPER.ways == 20
    assert PAPER.write_combining_buffers == 10


# What section 4.1 is about.


@both
def test_load_is_stale_after_the_device_changed_its_dram_and_read_is_not(
    config: HostCacheConfig,
) -> None:
    transport = golden()
    cache = HostCache(transport, 0, config)
    cache.write(128, filled(1, 64))
    assert cache.load(130, 4).tolist() == [1] * 4
    transport.backdoor_write(0, 128, filled(2, 64))
    transport.taken()
    assert cache.load(130, 4).tolist() == [1] * 4
    assert transport.taken() == []
    assert cache.read(130, 4).tolist() == [2] * 4
    assert transport.taken() == [("read", 2, 1)]
    # The lines that were read stay, so that the next change is missed as well.
    transport.backdoor_write(0, 128, filled(3, 64))
    assert cache.load(191, 1).tolist() == [2]
    cache.flush(191, 1)
    assert cache.load(191, 1).tolist() == [3]


@both
def test_store_reaches_the_device_when_it_is_flushed(config: HostCacheConfig) -> None:
    transport = golden()
    transport.backdoor_write(0, 0, filled(9, 256))
    cache = HostCache(transport, 0, config)
    cache.store(60, filled(1, 8))
    assert transport.taken() == [("read", 0, 2)]
    assert device(transport, 56, 16) == [9] * 16
    assert cache.load(56, 16).tolist() == [9] * 4 + [1] * 8 + [9] * 4
    cache.flush(0, 256)
    assert transport.taken() == [("write", 0, 2)]
    assert device(transport, 56, 16) == [9] * 4 + [1] * 8 + [9] * 4
    cache.flush(0, 256)
    assert transport.taken() == []
    assert cache.counters() == HostCacheCounters(hits=2, misses=2, writebacks=2, flushed_lines=8)


@both
def test_read_writes_back_what_was_stored_before_it(config: HostCacheConfig) -> None:
    transport = golden()
    cache = HostCache(transport, 0, config)
    cache.store(0, filled(1, 4))
    transport.backdoor_write(0, 0, filled(2, 64))
    # The line in the cache is a program's, and older: it wins, in the DRAM too.
    assert cache.read(0, 8).tolist() == [1] * 4 + [0] * 4
    assert device(transport, 0, 8) == [1] * 4 + [0] * 4


def test_the_least_recently_used_line_is_evicted_and_written_back() -> None:
    transport = golden()
    cache = HostCache(transport, 0, TINY)
    lines = [1, 5, 9]  # all in set 1, which has two ways
    cache.store(lines[0] * 64, filled(1, 64))
    cache.store(lines[1] * 64, filled(2, 64))
    cache.load(lines[0] * 64, 1)
    transport.taken()
    cache.load(lines[2] * 64, 1)
    assert sorted(transport.taken()) == [("read", 9, 1), ("write", 5, 1)]
    assert device(transport, lines[1] * 64, 64) == [2] * 64
    assert device(transport, lines[0] * 64, 64) == [0] * 64
    cache.load(lines[1] * 64, 1)
    assert sorted(transport.taken()) == [("read", 5, 1), ("write", 1, 1)]
    assert device(transport, lines[0] * 64, 64) == [1] * 64


def test_adjacent_lines_take_one_call() -> None:
    transport = golden()
    cache = HostCache(transport, 0, TINY)
    cache.load(2 * 64, 64)
    assert transport.taken() == [("read", 2, 1)]
    # Over the last set to the first, and around what is cached already.
    cache.load(1 * 64, 4 * 64)
    assert transport.taken() == [("read", 1, 1), ("read", 3, 2)]
    cache.store(3 * 64, filled(1, 128))
    cache.load(7 * 64, 128)
    transport.taken()
    cache.load(11 * 64, 128)
    assert sorted(transport.taken()) == [("read", 11, 2), ("write", 3, 2)]


# Write combining.


@both
def test_two_halves_combine_to_a_line(config: HostCacheConfig) -> None:
    transport = golden()
    cache = HostCache(transport, 0, config)
    cache.stream_store(64, filled(1, 32))
    assert transport.taken() == []
    assert device(transport, 64, 64) == [0] * 64
    cache.stream_store(96, filled(2, 32))
    assert transport.taken() == [("write", 1, 1)]
    assert device(transport, 64, 64) == [1] * 32 + [2] * 32
    cache.fence()
    assert transport.taken() == []
    assert cache.counters() == HostCacheCounters(fences=1)


@both
def test_a_long_store_goes_in_one_call_and_its_ends_wait_for_the_fence(
    config: HostCacheConfig,
) -> None:
    transport = golden()
    transport.backdoor_write(0, 0, filled(9, DRAM))
    cache = HostCache(transport, 0, config)
    data = np.arange(64 * 20, dtype=np.uint64).astype(np.uint8)
    cache.stream_store(100, data)
    assert transport.taken() == [("write", 2, 19)]
    assert device(transport, 127, 1) == [9]
    cache.fence()
    assert transport.taken() == [("read", 1, 1), ("write", 1, 1), ("read", 21, 1), ("write", 21, 1)]
    expected = filled(9, DRAM)
    expected[100 : 100 + data.size] = data
    assert device(transport, 0, DRAM) == expected.tolist()
    assert cache.counters() == HostCacheCounters(partial_writes=2, fences=1)


def test_write_takes_one_call_for_whole_lines() -> None:
    transport = golden()
    cache = HostCache(transport, 0, TINY)
    data = np.arange(1024, dtype=np.float32)
    cache.write(64, data.view(np.uint8))
    assert transport.taken() == [("write", 1, 64)]
    assert cache.read(64, 4096).view(np.float32).tolist() == data.tolist()


def test_the_buffer_opened_first_makes_room() -> None:
    transport = golden()
    cache = HostCache(transport, 0, TINY)
    cache.stream_store(5 * 64, filled(1, 4))
    cache.stream_store(3 * 64, filled(2, 4))
    cache.stream_store(5 * 64 + 4, filled(3, 4))
    assert transport.taken() == []
    cache.stream_store(7 * 64, filled(4, 4))
    assert transport.taken() == [("read", 5, 1), ("write", 5, 1)]
    assert device(transport, 5 * 64, 12) == [1] * 4 + [3] * 4 + [0] * 4
    # Whole lines need a buffer too, one for all of them.
    cache.stream_store(20 * 64, filled(5, 128))
    assert transport.taken() == [("read", 3, 1), ("write", 3, 1), ("write", 20, 2)]
    cache.stream_store(22 * 64, filled(6, 64))
    assert transport.taken() == [("write", 22, 1)]
    cache.fence()
    assert transport.taken() == [("read", 7, 1), ("write", 7, 1)]


@both
def test_non_temporal_store_evicts_the_cached_line(config: HostCacheConfig) -> None:
    transport = golden()
    cache = HostCache(transport, 0, config)
    cache.store(0, filled(1, 64))
    cache.load(64, 64)
    transport.taken()
    cache.stream_store(32, filled(2, 64))
    assert transport.taken() == [("write", 0, 1)]
    assert device(transport, 0, 64) == [1] * 64
    # A load of either line drains its buffer, and only that.
    assert cache.load(0, 64).tolist() == [1] * 32 + [2] * 32
    assert transport.taken() == [("read", 0, 1), ("write", 0, 1), ("read", 0, 1)]
    assert device(transport, 0, 128) == [1] * 32 + [2] * 32 + [0] * 64
    assert cache.load(64, 64).tolist() == [2] * 32 + [0] * 32
    assert device(transport, 64, 64) == [2] * 32 + [0] * 32


@both
def test_store_and_flush_drain_the_lines_buffer(config: HostCacheConfig) -> None:
    transport = golden()
    cache = HostCache(transport, 0, config)
    cache.stream_store(0, filled(1, 16))
    cache.stream_store(64, filled(2, 16))
    cache.store(8, filled(3, 16))
    assert device(transport, 0, 32) == [1] * 16 + [0] * 16
    cache.flush(64, 1)
    assert device(transport, 64, 32) == [2] * 16 + [0] * 16
    cache.flush(0, 1)
    assert device(transport, 0, 32) == [1] * 8 + [3] * 16 + [0] * 8


# Out of reach.


def test_what_leaves_for_a_channel_out_of_reach_is_lost() -> None:
    transport = golden()
    kernel_owns: set[int] = set()

    def cache_of(channel: int) -> HostCache:
        return HostCache(transport, channel, TINY, reachable=lambda: channel not in kernel_owns)

    caches = [cache_of(channel) for channel in range(2)]
    for cache in caches:
        cache.store(0, filled(1, 128))
        cache.stream_store(256, filled(2, 8))
    kernel_owns.add(0)
    transport.taken()
    for cache in caches:
        cache.flush(0, 128)
        cache.fence()
        cache.stream_store(512, filled(3, 64))
    kernel_owns.clear()
    caches[0].fence()
    assert device(transport, 0, DRAM, 0) == [0] * DRAM
    assert device(transport, 0, 128, 1) == [1] * 128
    assert device(transport, 256, 8, 1) == [2] * 8
    assert device(transport, 512, 64, 1) == [3] * 64
    assert transport.taken() == [
        ("write", 0, 2), ("read", 4, 1), ("write", 4, 1), ("write", 8, 1)
    ]  # fmt: skip
    assert caches[0].counters() == HostCacheCounters(
        misses=2, lost_writebacks=4, flushed_lines=2, fences=2
    )
    assert caches[1].counters() == HostCacheCounters(
        misses=2, writebacks=2, partial_writes=1, flushed_lines=2, fences=1
    )
    # Forgotten all the same.
    assert caches[0].load(0, 1).tolist() == [0]


def test_an_evicted_line_can_be_lost() -> None:
    transport = golden()
    reachable = True
    cache = HostCache(transport, 0, TINY, reachable=lambda: reachable)
    cache.store(0, filled(1, 64))
    reachable = False
    cache.load(4 * 64, 64)
    cache.load(8 * 64, 64)
    reachable = True
    assert cache.load(0, 1).tolist() == [0]
    assert cache.counters() == HostCacheCounters(misses=4, lost_writebacks=1)


def test_a_failed_read_changes_nothing() -> None:
    transport = golden()
    arbiter = arbiter_registers(transport, 0)
    codes = {name: arbiter["mode"]["mode"].code(name) for name in ("normal", "acceleration")}
    cache = HostCache(transport, 0, TINY)
    cache.store(0, filled(1, 64))
    cache.store(4 * 64, filled(2, 64))
    before = cache.counters()
    arbiter.write({"mode": codes["acceleration"]})
    with pytest.raises(DeviceFault):
        cache.load(8 * 64, 64)
    with pytest.raises(DeviceFault):
        cache.store(8 * 64, filled(3, 64))
    assert cache.load(0, 1).tolist() == [1]
    arbiter.write({"mode": codes["normal"]})
    cache.flush(0, DRAM)
    assert device(transport, 0, 64) == [1] * 64
    assert device(transport, 4 * 64, 64) == [2] * 64
    assert device(transport, 8 * 64, 64) == [0] * 64
    after = cache.counters()
    assert (after.misses, after.writebacks) == (before.misses, 2)


# Everything against the reference.


class Reference:
    """One channel, one line at a time."""

    def __init__(self, config: HostCacheConfig) -> None:
        self.config = config
        self.memory = bytearray(DRAM)
        self.sets: dict[int, OrderedDict[int, bytearray]] = {}
        self.dirty: set[int] = set()
        self.combining: OrderedDict[int, dict[int, int]] = OrderedDict()
        self.counts: Counter[str] = Counter()
        self.link_lines = 0
        self.reachable = True

    def load(self, address: int, nbytes: int) -> bytes:
        result = bytearray()
        for line, offsets in self._lines(address, nbytes):
            cached = self._cached(line)
            result += bytes(cached[offset] for offset in offsets)
        return bytes(result)

    def store(self, address: int, data: bytes) -> None:
        source = iter(data)
        for line, offsets in self._lines(address, len(data)):
            cached = self._cached(line)
            for offset in offsets:
                cached[offset] = next(source)
            self.dirty.add(line)

    def flush(self, address: int, nbytes: int) -> None:
        for line, _ in self._lines(address, nbytes):
            self.counts["flushed_lines"] += 1
            self._drain(line)
            self._evict(line)

    def stream_store(self, address: int, data: bytes) -> None:
        source = iter(data)
        for line, offsets in self._lines(address, len(data)):
            self._evict(line)
            if line not in self.combining:
                if len(self.combining) == self.config.write_combining_buffers:
                    self._drain(next(iter(self.combining)))
                self.combining[line] = {}
            for offset in offsets:
                self.combining[line][offset] = next(source)
            if len(self.combining[line]) == 64:
                self._drain(line)

    def fence(self) -> None:
        self.counts["fences"] += 1
        for line in list(self.combining):
            self._drain(line)

    def read(self, address: int, nbytes: int) -> bytes:
        self.flush(address, nbytes)
        return self.load(address, nbytes)

    def write(self, address: int, data: bytes) -> None:
        self.stream_store(address, data)
        self.fence()

    def _lines(self, address: int, nbytes: int) -> list[tuple[int, list[int]]]:
        found: dict[int, list[int]] = {}
        for place in range(address, address + nbytes):
            found.setdefault(place // 64, []).append(place % 64)
        return list(found.items())

    def _cached(self, line: int) -> bytearray:
        self._drain(line)
        ways = self.sets.setdefault(line % self.config.sets, OrderedDict())
        if line in ways:
            self.counts["hits"] += 1
        else:
            self.counts["misses"] += 1
            if len(ways) == self.config.ways:
                self._evict(next(iter(ways)))
            ways[line] = self.memory[line * 64 : line * 64 + 64]
            self.link_lines += 1
        ways.move_to_end(line)
        return ways[line]

    def _evict(self, line: int) -> None:
        content = self.sets.get(line % self.config.sets, OrderedDict()).pop(line, None)
        if line in self.dirty:
            assert content is not None
            self.dirty.remove(line)
            if self.reachable:
                self.memory[line * 64 : line * 64 + 64] = content
                self.counts["writebacks"] += 1
                self.link_lines += 1
            else:
                self.counts["lost_writebacks"] += 1

    def _drain(self, line: int) -> None:
        parts = self.combining.pop(line, None)
        if parts is None:
            return
        if not self.reachable:
            self.counts["lost_writebacks"] += 1
            return
        for offset, value in parts.items():
            self.memory[line * 64 + offset] = value
        self.link_lines += 1
        if len(parts) < 64:
            self.counts["partial_writes"] += 1
            self.link_lines += 1


CONFIGS = [
    HostCacheConfig(sets=1, ways=1, write_combining_buffers=1),
    HostCacheConfig(sets=3, ways=2, write_combining_buffers=2),
    HostCacheConfig(sets=8, ways=3, write_combining_buffers=4),
    PAPER,
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.sets}x{config.ways}")
def test_random_accesses_against_the_reference(config: HostCacheConfig) -> None:
    rng = random.Random(config.sets)
    transport = WatchedTransport(GoldenTransport(channels=2, capacity_bytes=CAPACITY))
    references = [Reference(config) for _ in range(2)]

    def cache_of(channel: int) -> HostCache:
        return HostCache(
            transport, channel, config, reachable=lambda: references[channel].reachable
        )

    caches = [cache_of(channel) for channel in range(2)]
    names = ["load", "store", "flush", "stream_store", "fence", "read", "write", "device"]
    seen: Counter[str] = Counter()
    for _ in range(4000):
        channel = rng.randrange(2)
        cache = caches[channel]
        reference = references[channel]
        reference.reachable = rng.random() < 0.9
        name = rng.choice(names)
        # Few lines, so that accesses meet; from single bytes to more lines than most sets.
        nbytes = rng.choice([0, 1, 16, 32, 64, 200, 1000])
        address = rng.randrange(48 * 64 - nbytes)
        if rng.random() < 0.5:
            address &= ~31
        data = rng.randbytes(nbytes)
        array = np.frombuffer(data, dtype=np.uint8)
        before = transport.backdoor_read(channel, 0, DRAM)
        if name == "device":
            transport.backdoor_write(channel, address, array)
            reference.memory[address : address + nbytes] = data
        elif name == "fence":
            cache.fence()
            reference.fence()
        elif name in ("store", "stream_store", "write"):
            getattr(cache, name)(address, array)
            getattr(reference, name)(address, data)
        else:
            result = getattr(cache, name)(address, nbytes)
            expected = getattr(reference, name)(address, nbytes)
            assert (None if result is None else result.tobytes()) == expected
            if name == "load" and before[address : address + nbytes].tobytes() != expected:
                seen["loads that differ from the DRAM"] += 1
            if name == "read":
                after = transport.backdoor_read(channel, address, nbytes)
                assert after.tobytes() == expected
        if name == "write" and reference.reachable:
            assert device(transport, address, nbytes, channel) == list(data)
        for number, other in enumerate(references):
            assert transport.backdoor_read(number, 0, DRAM).tobytes() == other.memory
            counts = asdict(caches[number].counters())
            assert counts == {**dict.fromkeys(counts, 0), **other.counts}
        assert transport.link_lines == sum(other.link_lines for other in references)
        seen[name] += nbytes
    assert all(seen[name] for name in names)
    assert seen["loads that differ from the DRAM"]
    for reference in references:
        assert all(reference.counts[name] for name in asdict(HostCacheCounters()))


def test_ranges_longer_than_the_cache() -> None:
    transport = golden(16 << 20)
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (6 << 20) + 100, dtype=np.uint8)
    lines = -(-(1000 + data.size) // 64) - 1000 // 64
    config = HostCacheConfig(ways=2)
    cache = HostCache(transport, 0, config)
    cache.write(1000, data)
    assert [call for call in transport.taken() if call[2] > 1] == [("write", 16, lines - 2)]
    assert (cache.read(1000, data.size) == data).all()
    assert transport.taken() == [
        ("read", 15, 40960), ("read", 15 + 40960, 40960), ("read", 15 + 81920, lines - 81920)
    ]  # fmt: skip
    cache.store(1000, data[::-1].copy())
    cache.flush(0, config.capacity_bytes * 2)
    assert (transport.backdoor_read(0, 1000, data.size) == data[::-1]).all()
    assert cache.counters().writebacks == lines
