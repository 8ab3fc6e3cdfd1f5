"""The host CPU between a program and the mapped DRAM: its cache and write-combining buffers.

AXDIMM's memory is mapped write-back cached, and the module cannot tell the cache that its DRAM
changed (paper section 4.1). A program that uses the mapping as it is (``load`` and ``store`` of
:class:`HostCache`) therefore reads stale values, and what it writes does not arrive. The runtime's
``read`` flushes a line before it loads it, and its ``write`` stores around the cache: what they
return is what the DRAM holds, and what they write is in it when they return.

What the instructions do is in Intel's Software Developer's Manual: volume 1, "Caching of Temporal
vs. Non-Temporal Data"; volume 2, CLFLUSH, MOVNTDQ, SFENCE; volume 3, "Memory Cache Control" and
there "Buffering of Write Combining Memory Locations". Where it leaves a choice to the processor:

- A non-temporal store to a cached line evicts the line first. (Some older processors, Pentium M
  for one, updated it in place: Optimization Reference Manual, "Memory Type and Non-temporal
  Stores".)
- A write-combining buffer leaves as soon as all its 64 bytes are written. A new line that finds no
  free buffer takes the one that was opened first.
- Any other access to a line with bytes in a write-combining buffer drains that buffer first: a
  thread sees its own stores in program order. No line is in the cache and in a buffer at once.

Simplified: the levels of the cache are one, with strict LRU replacement, and a line's set is its
number modulo the sets. There are no prefetches, and nothing but the mapped memory is cached, so a
line stays until others of its channel push it out. Every channel has a cache and buffers of the
full size of its own, as if it were driven from another socket; on the real machine the channels
share the last-level cache, and the buffers are a core's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CopyRangeError
from ..memory.allocations import checked_channel, checked_size
from ..memory.hostbuffer import byte_view
from ..transport import LINE_BYTES, Transport, kernel_window

__all__ = ["HostCache", "HostCacheConfig", "HostCacheCounters"]

_LINE = np.dtype((np.void, LINE_BYTES))
_EMPTY = -1


@dataclass(frozen=True, kw_only=True)
class HostCacheConfig:
    """The host CPU's cache; the defaults are the paper's, a Xeon E5-2698 v4 (Broadwell).

    Raises ``ValueError`` for what is no integer of at least 1.
    """

    sets: int = 40960
    """With :attr:`ways` and lines of 64 bytes the 50 MB of the last-level cache."""

    ways: int = 20

    write_combining_buffers: int = 10
    """The line fill buffers of a core, which combine non-temporal stores."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{item.name} must be an integer of at least 1, got {value!r}")

    @property
    def capacity_bytes(self) -> int:
        """Bytes that the cache holds."""
        return self.sets * self.ways * LINE_BYTES


@dataclass(frozen=True, kw_only=True)
class HostCacheCounters:
    """What a channel's cache and write-combining buffers did, in lines unless said otherwise."""

    hits: int = 0
    """Loaded or stored, and found in the cache."""
    misses: int = 0
    """Loaded or stored, and read over the link first."""
    writebacks: int = 0
    """Dirty, and written to the module when they were evicted or flushed."""
    lost_writebacks: int = 0
    """Dirty or write-combined, and lost because the channel was out of reach when they left."""
    partial_writes: int = 0
    """Left a write-combining buffer that was not full: read, changed and written on the link."""
    flushed_lines: int = 0
    """CLFLUSH instructions."""
    fences: int = 0
    """SFENCE instructions."""


class HostCache:
    """The host's accesses to the DRAM of a module, through cache and write-combining buffers.

    Addresses are bytes of a channel below its register windows: registers are not cached. All
    methods take any address and number of bytes there; a range of lines takes one transport call
    where it can, split where the range is longer than the cache has sets. Calls for one channel
    must not overlap; calls for different channels share nothing and may be made from different
    threads at once. Nothing is locked.

    Whatever needs a line that is not cached reads it over the link and raises what the transport
    raises, :class:`~sw_driver.transport.DeviceFault` while the kernel owns the DRAM; the cache is
    then as before. Lines that leave for a channel out of reach are lost without a word, as the
    arbiter drops them: the runtime checks the mode before it calls :meth:`read` or :meth:`write`.

    Parameters
    ----------
    transport: the module.
    config: the CPU; by default the paper's.
    reachable: whether a channel takes the host's writes to its DRAM just now; asked whenever lines
        are to leave for it. By default it always does.

    Raises
    ------
    NoSuchChannelError, CopyRangeError, InvalidSizeError, HostBufferError: from every method, before
    anything changes.
    """

    def __init__(
        self,
        transport: Transport,
        config: HostCacheConfig | None = None,
        *,
        reachable: Callable[[int], bool] = lambda channel: True,
    ) -> None:
        self._config = config or HostCacheConfig()
        self._limit_bytes = kernel_window(transport.capacity_bytes)
        self._channels = [
            _ChannelCache(transport, number, self._config, reachable)
            for number in range(transport.channels)
        ]

    @property
    def config(self) -> HostCacheConfig:
        """The CPU's cache."""
        return self._config

    def read(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        """The runtime's read: CLFLUSH of each line, then loads. Always what the DRAM holds.

        The flush writes back what a program stored through the cached mapping, also over what the
        kernel wrote there since. The lines stay in the cache, clean.
        """
        self.flush(channel, address, nbytes)
        return self.load(channel, address, nbytes)

    def write(self, channel: int, address: int, data: NDArray[Any]) -> None:
        """The runtime's write: non-temporal stores, then SFENCE. In the DRAM when it returns.

        A first or last line that is written in part is read, changed and written; several writes
        that meet within lines need fewer of these as :meth:`stream_store` of each and one
        :meth:`fence`.
        """
        self.stream_store(channel, address, data)
        self.fence(channel)

    def load(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Ordinary loads: from the cache what is there, however old; the rest is read and kept."""
        cache = self._channel(channel)
        self._check_range(channel, address, checked_size("nbytes", nbytes))
        return cache.load(address, nbytes)

    def store(self, channel: int, address: int, data: NDArray[Any]) -> None:
        """Ordinary stores of the bytes of ``data``, any contiguous array.

        Lines that are not cached are read first, whole ones too. The module sees nothing until a
        line is evicted or flushed.
        """
        cache = self._channel(channel)
        self._check_range(channel, address, data.nbytes)
        cache.store(address, byte_view(data, data.nbytes, writable=False))

    def flush(self, channel: int, address: int, nbytes: int) -> None:
        """CLFLUSH of each line that holds any of the bytes: written back if dirty, then forgotten.

        Bytes of these lines in write-combining buffers are drained.
        """
        cache = self._channel(channel)
        self._check_range(channel, address, checked_size("nbytes", nbytes))
        cache.flush(address, nbytes)

    def stream_store(self, channel: int, address: int, data: NDArray[Any]) -> None:
        """Non-temporal stores (VMOVNTDQ) of the bytes of ``data``, any contiguous array.

        Whole lines leave at once. Parts of a line stay in a write-combining buffer until the line
        is whole, another access needs the line, another line needs the buffer, or :meth:`fence`.
        """
        cache = self._channel(channel)
        self._check_range(channel, address, data.nbytes)
        cache.stream_store(address, byte_view(data, data.nbytes, writable=False))

    def fence(self, channel: int) -> None:
        """SFENCE of whoever drives ``channel``: its write-combining buffers are drained."""
        self._channel(channel).fence()

    def holds(self, channel: int, address: int, nbytes: int) -> bool:
        """Whether loads and stores of the bytes find them all in the cache. Changes nothing."""
        cache = self._channel(channel)
        self._check_range(channel, address, checked_size("nbytes", nbytes))
        return cache.holds(address, nbytes)

    def counters(self, channel: int) -> HostCacheCounters:
        """What happened since the cache was made."""
        return HostCacheCounters(**self._channel(channel).counts)

    def _channel(self, channel: int) -> _ChannelCache:
        return self._channels[checked_channel(channel, len(self._channels))]

    def _check_range(self, channel: int, address: int, nbytes: int) -> None:
        if address < 0 or address + nbytes > self._limit_bytes:
            raise CopyRangeError(
                f"{nbytes} bytes at {address:#x} of channel {channel} are not within its "
                f"{self._limit_bytes} bytes of DRAM",
                channel=channel,
                address=address,
                nbytes=nbytes,
                limit_bytes=self._limit_bytes,
            )


class _WriteCombiningBuffer:
    def __init__(self) -> None:
        self.data = np.zeros(LINE_BYTES, dtype=np.uint8)
        self.written = np.zeros(LINE_BYTES, dtype=np.bool_)


class _ChannelCache:
    """A channel's cache and write-combining buffers.

    A slot holds a line; way ``w`` of set ``s`` is slot ``w * sets + s``. Consecutive lines are in
    consecutive sets, so that up to as many lines as there are sets, one batch, never compete for a
    slot and are handled together.
    """

    def __init__(
        self,
        transport: Transport,
        number: int,
        config: HostCacheConfig,
        reachable: Callable[[int], bool],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._transport = transport
        self._number = number
        self._reachable = reachable
        self._sets = config.sets
        slots = config.sets * config.ways
        self._tags = np.full(slots, _EMPTY, dtype=np.int64)
        """Number of the line in each slot."""
        self._ages = np.zeros(slots, dtype=np.int64)
        """Batch that used the slot last; 0 if it is empty, so that it is taken first."""
        self._dirty = np.zeros(slots, dtype=np.bool_)
        self._data = np.empty(slots, dtype=_LINE)
        self._batches_done = 0
        self._buffer_limit = config.write_combining_buffers
        self._buffers: dict[int, _WriteCombiningBuffer] = {}
        """By line, in the order in which they were opened."""

    def load(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        result = np.empty(nbytes, dtype=np.uint8)
        for first, count in self._batches(address, nbytes):
            lines = self._data.take(self._fill(first, count)).view(np.uint8)
            outer, inner = _overlap(address, nbytes, first, count)
            result[outer] = lines[inner]
        return result

    def store(self, address: int, data: NDArray[np.uint8]) -> None:
        for first, count in self._batches(address, data.size):
            slots = self._fill(first, count)
            lines = self._data.take(slots)
            outer, inner = _overlap(address, data.size, first, count)
            lines.view(np.uint8)[inner] = data[outer]
            self._data[slots] = lines
            self._dirty[slots] = True

    def flush(self, address: int, nbytes: int) -> None:
        for first, count in self._batches(address, nbytes):
            self._drain_within(first, count)
            self._evict(first, count)
            self.counts["flushed_lines"] += count

    def stream_store(self, address: int, data: NDArray[np.uint8]) -> None:
        for first, count in self._batches(address, data.size):
            self._evict(first, count)
        end = address + data.size
        whole = min(end, _round_up(address))
        rest = max(whole, end - end % LINE_BYTES)
        self._combine(address, data[: whole - address])
        self._burst(whole, data[whole - address : rest - address])
        self._combine(rest, data[rest - address :])

    def fence(self) -> None:
        for line in list(self._buffers):
            self._drain(line)
        self.counts["fences"] += 1

    def holds(self, address: int, nbytes: int) -> bool:
        return all(
            (self._find(first, count) != _EMPTY).all()
            for first, count in self._batches(address, nbytes)
        )

    # The cache.

    def _batches(self, address: int, nbytes: int) -> Iterator[tuple[int, int]]:
        """First line and number of lines of each batch of the lines that hold the bytes."""
        first, end = address // LINE_BYTES, _round_up(address + nbytes) // LINE_BYTES
        if nbytes:
            for start in range(first, end, self._sets):
                yield start, min(self._sets, end - start)

    def _fill(self, first: int, count: int) -> NDArray[np.int64]:
        """Sees to it that a batch is in the cache, as what was used last; returns its slots."""
        self._drain_within(first, count)
        slots = self._find(first, count)
        missing = np.flatnonzero(slots == _EMPTY)
        if missing.size:
            # Before anything is evicted: the read may fail.
            data = self._read(first + missing)
            taken = self._oldest(first, count)[missing]
            self._write_back(taken)
            self._tags[taken] = first + missing
            self._data[taken] = data
            slots[missing] = taken
        self._batches_done += 1
        self._ages[slots] = self._batches_done
        self.counts["hits"] += count - missing.size
        self.counts["misses"] += missing.size
        return slots

    def _evict(self, first: int, count: int) -> None:
        """Writes back what is dirty of a batch, and forgets all of it."""
        slots = self._find(first, count)
        slots = slots[slots != _EMPTY]
        self._write_back(slots)
        self._tags[slots] = _EMPTY
        self._ages[slots] = 0

    def _find(self, first: int, count: int) -> NDArray[np.int64]:
        """The slot of each line of a batch."""
        lines = np.arange(first, first + count)
        slots = np.full(count, _EMPTY)
        for start, stop, sets in self._set_ranges(first, count):
            equal = self._tags.reshape(-1, self._sets)[:, sets] == lines[start:stop]
            ways, offsets = np.divmod(np.flatnonzero(equal), stop - start)
            slots[start + offsets] = ways * self._sets + sets.start + offsets
        return slots

    def _oldest(self, first: int, count: int) -> NDArray[np.int64]:
        """The slot that each line of a batch is to take."""
        slots = np.empty(count, dtype=np.int64)
        for start, stop, sets in self._set_ranges(first, count):
            ways = self._ages.reshape(-1, self._sets)[:, sets].argmin(axis=0)
            slots[start:stop] = ways * self._sets + np.arange(sets.start, sets.stop)
        return slots

    def _set_ranges(self, first: int, count: int) -> Iterator[tuple[int, int, slice]]:
        """A batch's lines, counted from its first, up to the last set, and from set 0 on."""
        start = first % self._sets
        split = min(count, self._sets - start)
        yield 0, split, slice(start, start + split)
        if split < count:
            yield split, count, slice(0, count - split)

    def _read(self, lines: NDArray[np.int64]) -> NDArray[np.void]:
        data = np.empty(lines.size, dtype=_LINE)
        for start, stop in _runs(lines):
            data[start:stop] = self._transport.read_lines(
                self._number, int(lines[start]) * LINE_BYTES, (stop - start) * LINE_BYTES
            ).view(_LINE)
        return data

    def _write_back(self, slots: NDArray[np.int64]) -> None:
        """Those of the slots that are dirty."""
        slots = slots[self._dirty[slots]]
        lines = self._tags[slots]
        for start, stop in _runs(lines):
            run = slots[start:stop]
            if self._can_write(run.size):
                self._write(int(lines[start]), self._data.take(run).view(np.uint8))
                self.counts["writebacks"] += run.size
            self._dirty[run] = False

    # The write-combining buffers.

    def _combine(self, address: int, data: NDArray[np.uint8]) -> None:
        """Non-temporal stores of bytes of one line."""
        if not data.size:
            return
        line, offset = divmod(address, LINE_BYTES)
        buffer = self._buffers.get(line)
        if buffer is None:
            self._free_a_buffer()
            buffer = self._buffers[line] = _WriteCombiningBuffer()
        buffer.data[offset : offset + data.size] = data
        buffer.written[offset : offset + data.size] = True
        if buffer.written.all():
            self._burst(line * LINE_BYTES, buffer.data)

    def _burst(self, address: int, data: NDArray[np.uint8]) -> None:
        """Non-temporal stores of whole lines, one after another through one buffer."""
        if not data.size:
            return
        first, count = address // LINE_BYTES, data.size // LINE_BYTES
        if first not in self._buffers:
            self._free_a_buffer()
        for line in self._buffered(first, count):
            del self._buffers[line]
        if self._can_write(count):
            self._write(first, data)

    def _free_a_buffer(self) -> None:
        if len(self._buffers) == self._buffer_limit:
            self._drain(next(iter(self._buffers)))

    def _drain_within(self, first: int, count: int) -> None:
        for line in self._buffered(first, count):
            self._drain(line)

    def _buffered(self, first: int, count: int) -> list[int]:
        return [line for line in self._buffers if first <= line < first + count]

    def _drain(self, line: int) -> None:
        """A buffer that is not full leaves: DRAM with ECC takes whole lines only."""
        buffer = self._buffers[line]
        if self._can_write(1):
            held = self._transport.read_lines(self._number, line * LINE_BYTES, LINE_BYTES)
            self._write(line, np.where(buffer.written, buffer.data, held))
            self.counts["partial_writes"] += 1
        del self._buffers[line]

    # The link.

    def _can_write(self, lines: int) -> bool:
        """Whether the channel is in reach; the lines are counted as lost if not."""
        if self._reachable(self._number):
            return True
        self.counts["lost_writebacks"] += lines
        return False

    def _write(self, line: int, data: NDArray[np.uint8]) -> None:
        self._transport.write_lines(self._number, line * LINE_BYTES, data)


def _round_up(address: int) -> int:
    return -(-address // LINE_BYTES) * LINE_BYTES


def _overlap(address: int, nbytes: int, first: int, count: int) -> tuple[slice, slice]:
    """What lines have of a range of bytes: as bytes of the range, and as bytes of the lines."""
    begin = first * LINE_BYTES
    start = max(address, begin)
    stop = min(address + nbytes, begin + count * LINE_BYTES)
    return slice(start - address, stop - address), slice(start - begin, stop - begin)


def _runs(lines: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Start and stop of each run of consecutive numbers."""
    if lines.size:
        breaks = np.flatnonzero(np.diff(lines) != 1) + 1
        yield from pairwise([0, *breaks.tolist(), lines.size])
