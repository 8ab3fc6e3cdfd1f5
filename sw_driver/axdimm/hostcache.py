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
share the last-level cache, and the buffers are a core's. A channel's cache begins empty when a
program first maps some of its memory: what the runtime does before leaves nothing in it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from ..transport import LINE_BYTES, Transport

__all__ = ["HostCache", "HostCacheConfig", "HostCacheCounters"]


@dataclass(frozen=True, kw_only=True)
class HostCacheConfig:
    """The host CPU's cache; the defaults are the paper's, a Xeon E5-2698 v4 (Broadwell)."""

    sets: int = 40960
    """With :attr:`ways` and lines of 64 bytes the 50 MB of the last-level cache."""

    ways: int = 20

    write_combining_buffers: int = 10
    """The line fill buffers of a core, which combine non-temporal stores."""

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
    """The host's accesses to the DRAM of a channel, through cache and write-combining buffers.

    Addresses are bytes of the channel below its register windows: registers are not cached, and
    who calls has checked that. A range of lines takes one transport call where it can, split where
    the range is longer than the cache has sets. One caller at a time.

    Whatever needs a line that is not cached reads it over the link and raises what the transport
    raises, :class:`~sw_driver.transport.DeviceFault` while the kernel owns the DRAM; the cache is
    then as before. Lines that leave for a channel out of reach are lost without a word, as the
    arbiter drops them: the runtime checks the mode before it calls :meth:`read` or :meth:`write`.

    Parameters
    ----------
    transport, channel: the module, and which channel of it.
    config: the CPU; by default the paper's.
    reachable: whether the channel takes the host's writes to its DRAM just now; asked whenever
        lines are to leave for it. By default it always does.
    """

    def __init__(
        self,
        transport: Transport,
        channel: int,
        config: HostCacheConfig | None = None,
        *,
        reachable: Callable[[], bool] = lambda: True,
    ) -> None:
        self._transport = transport
        self._number = channel
        self._config = config or HostCacheConfig()
        self._reachable = reachable
        self._counts: Counter[str] = Counter()
        self._sets: defaultdict[int, OrderedDict[int, NDArray[np.uint8]]] = defaultdict(OrderedDict)
        """Lines by their numbers, in each set the one first that was not used for longest."""
        self._dirty: set[int] = set()
        self._combining: dict[int, dict[int, int]] = {}
        """The write-combining buffers in the order in which they were opened: bytes by their
        offsets in the line of that number."""

    def read(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """The runtime's read: CLFLUSH of each line, then loads. Always what the DRAM holds.

        The flush writes back what a program stored through the cached mapping, also over what the
        kernel wrote there since. The lines stay in the cache, clean.
        """
        self.flush(address, nbytes)
        return self.load(address, nbytes)

    def write(self, address: int, data: NDArray[np.uint8]) -> None:
        """The runtime's write: non-temporal stores, then SFENCE. In the DRAM when it returns."""
        self.stream_store(address, data)
        self.fence()

    def load(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Ordinary loads: from the cache what is there, however old; the rest is read and kept."""
        found = [line for batch in self._batches(address, nbytes) for line in self._fill(batch)]
        start = address % LINE_BYTES
        return np.concatenate([np.empty(0, np.uint8), *found])[start : start + nbytes]

    def store(self, address: int, data: NDArray[np.uint8]) -> None:
        """Ordinary stores.

        Lines that are not cached are read first, whole ones too. The module sees nothing until a
        line is evicted or flushed.
        """
        for batch in self._batches(address, data.size):
            for number, line in zip(batch, self._fill(batch), strict=True):
                offset = number * LINE_BYTES - address
                part = data[max(offset, 0) : offset + LINE_BYTES]
                begin = max(-offset, 0)
                line[begin : begin + part.size] = part
                self._dirty.add(number)

    def flush(self, address: int, nbytes: int) -> None:
        """CLFLUSH of each line that holds any of the bytes: written back if dirty, then forgotten.

        Bytes of these lines in write-combining buffers are drained.
        """
        for batch in self._batches(address, nbytes):
            self._drain_within(batch)
            self._evict(batch)
            self._counts["flushed_lines"] += len(batch)

    def stream_store(self, address: int, data: NDArray[np.uint8]) -> None:
        """Non-temporal stores (VMOVNTDQ).

        Whole lines leave at once. Parts of a line stay in a write-combining buffer until the line
        is whole, another access needs the line, another line needs the buffer, or :meth:`fence`.
        """
        for batch in self._batches(address, data.size):
            self._evict(batch)
        end = address + data.size
        whole = min(end, -(-address // LINE_BYTES) * LINE_BYTES)
        rest = max(whole, end - end % LINE_BYTES)
        self._combine(address, data[: whole - address])
        self._burst(whole, data[whole - address : rest - address])
        self._combine(rest, data[rest - address :])

    def fence(self) -> None:
        """SFENCE of whoever drives the channel: its write-combining buffers are drained."""
        for line in list(self._combining):
            self._drain(line)
        self._counts["fences"] += 1

    def holds(self, address: int, nbytes: int) -> bool:
        """Whether loads and stores of the bytes find them all in the cache. Changes nothing."""
        return all(
            line in self._set(line) for batch in self._batches(address, nbytes) for line in batch
        )

    def counters(self) -> HostCacheCounters:
        """What happened since the cache was made."""
        return HostCacheCounters(**self._counts)

    # The cache.

    def _batches(self, address: int, nbytes: int) -> Iterator[range]:
        """The lines that hold the bytes, so many at a time that none is in another's set."""
        end = -(-(address + nbytes) // LINE_BYTES) if nbytes else 0
        for first in range(address // LINE_BYTES, end, self._config.sets):
            yield range(first, min(first + self._config.sets, end))

    def _set(self, line: int) -> OrderedDict[int, NDArray[np.uint8]]:
        return self._sets[line % self._config.sets]

    def _fill(self, batch: range) -> list[NDArray[np.uint8]]:
        """Sees to it that a batch is in the cache, as what was used last; returns its lines."""
        self._drain_within(batch)
        missing = [line for line in batch if line not in self._set(line)]
        # Before anything is evicted: the read may fail.
        read: dict[int, NDArray[np.uint8]] = {}
        for run in _runs(missing):
            data = self._transport.read_lines(
                self._number, run[0] * LINE_BYTES, len(run) * LINE_BYTES
            )
            read.update(zip(run, data.reshape(-1, LINE_BYTES).copy(), strict=True))
        evicted: dict[int, NDArray[np.uint8]] = {}
        for line in missing:
            ways = self._set(line)
            if len(ways) == self._config.ways:
                evicted.update([ways.popitem(last=False)])
            ways[line] = read[line]
        self._write_back(evicted)
        for line in batch:
            self._set(line).move_to_end(line)
        self._counts["hits"] += len(batch) - len(missing)
        self._counts["misses"] += len(missing)
        return [self._set(line)[line] for line in batch]

    def _evict(self, batch: range) -> None:
        """Writes back what is dirty of a batch, and forgets all of it."""
        cached = [line for line in batch if line in self._set(line)]
        self._write_back({line: self._set(line).pop(line) for line in cached})

    def _write_back(self, evicted: dict[int, NDArray[np.uint8]]) -> None:
        """Those of the lines that are dirty."""
        for run in _runs(line for line in evicted if line in self._dirty):
            if self._can_write(len(run)):
                data = np.concatenate([evicted[line] for line in run])
                self._transport.write_lines(self._number, run[0] * LINE_BYTES, data)
                self._counts["writebacks"] += len(run)
            self._dirty.difference_update(run)

    # The write-combining buffers.

    def _combine(self, address: int, data: NDArray[np.uint8]) -> None:
        """Non-temporal stores of bytes of one line."""
        if not data.size:
            return
        line, offset = divmod(address, LINE_BYTES)
        if line not in self._combining:
            self._free_a_buffer()
        written = self._combining.setdefault(line, {})
        written.update(enumerate(data.tolist(), offset))
        if len(written) == LINE_BYTES:
            whole = np.array([written[place] for place in range(LINE_BYTES)], dtype=np.uint8)
            self._burst(line * LINE_BYTES, whole)

    def _burst(self, address: int, data: NDArray[np.uint8]) -> None:
        """Non-temporal stores of whole lines, one after another through one buffer."""
        if not data.size:
            return
        first, count = address // LINE_BYTES, data.size // LINE_BYTES
        if first not in self._combining:
            self._free_a_buffer()
        for line in self._combined(range(first, first + count)):
            del self._combining[line]
        if self._can_write(count):
            self._transport.write_lines(self._number, address, data)

    def _free_a_buffer(self) -> None:
        if len(self._combining) == self._config.write_combining_buffers:
            self._drain(next(iter(self._combining)))

    def _combined(self, batch: range) -> list[int]:
        return [line for line in self._combining if line in batch]

    def _drain_within(self, batch: range) -> None:
        for line in self._combined(batch):
            self._drain(line)

    def _drain(self, line: int) -> None:
        """A buffer that is not full leaves: DRAM with ECC takes whole lines only."""
        if self._can_write(1):
            held = self._transport.read_lines(self._number, line * LINE_BYTES, LINE_BYTES).copy()
            written = self._combining[line]
            held[list(written)] = list(written.values())
            self._transport.write_lines(self._number, line * LINE_BYTES, held)
            self._counts["partial_writes"] += 1
        del self._combining[line]

    def _can_write(self, lines: int) -> bool:
        """Whether the channel is in reach; the lines are counted as lost if not."""
        if self._reachable():
            return True
        self._counts["lost_writebacks"] += lines
        return False


def _runs(lines: Iterable[int]) -> Iterator[list[int]]:
    """The stretches of consecutive numbers."""
    for _, run in groupby(enumerate(lines), lambda pair: pair[1] - pair[0]):
        yield [line for _, line in run]
