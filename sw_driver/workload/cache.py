"""Traffic of a step behind a processor's last-level cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from math import ceil, prod, sqrt

from sw_driver.numbers import check_integer

from .trace import Op, Trace, TraceError

__all__ = ["past_cache"]


def past_cache(trace: Trace, cache_bytes: int, *, write_allocate: bool = True) -> Trace:
    """Return the same step with only the bytes that miss a cache of this size.

    The cache starts empty, is fully associative, and evicts the least recently used tensors. All
    tensors of an operation become the most recent together. When room is lacking, all tensors last
    used by the least recent operation are evicted. So a sweep over slightly more than the cache
    never hits, and nothing stays of an operation that touches more than the cache holds. An access
    to a part of a tensor is taken to be to its first bytes.

    A read moves the bytes that miss. The cache is write-back: a write counts when it is evicted or
    at the end, and is added to the operation that wrote. It does not count if the whole tensor is
    written again before, or freed, since allocators reuse that memory at once.

    A product with no operand or result that fits reads at least the traffic of one in square
    blocks: flops / sqrt(n) elements for a cache of n elements, 2 M N K / sqrt(n) for matrices. A
    convolution is taken as the product that it unfolds to.

    Cache lines and sets, prefetching, higher cache levels, and cores that evict each other's data
    are not modelled. For hits on tensors of the step before, pass a trace of several steps
    (:meth:`~sw_driver.workload.trace.Trace.unrolled`).

    Raises :class:`~sw_driver.workload.trace.TraceError` for an invalid size.

    Parameters
    ----------
    cache_bytes: 0 for a processor without a cache; the trace is returned as it is.
    write_allocate: whether a write first fetches the bytes that miss, as an ordinary store of a CPU
        does. The fetch counts as written, too. GPUs write without it.
    """
    if not check_integer("cache_bytes", cache_bytes, 0, error=TraceError):
        return trace
    freed: dict[int, list[int]] = {}
    for tensor in trace.tensors:
        if tensor.freed is not None:
            freed.setdefault(tensor.freed, []).append(tensor.id)
    cache, moved = _Cache(cache_bytes), []
    for op in trace.ops:
        cache.drop(freed.get(op.id, ()))
        share = _blocked(op, cache_bytes)
        read = [
            max(nbytes - cache.held_bytes(tensor), ceil(share * nbytes))
            for tensor, nbytes in zip(op.reads, op.read_bytes, strict=True)
        ]
        written = [
            max(nbytes - cache.held_bytes(tensor), 0)
            if write_allocate and tensor not in op.reads
            else 0
            for tensor, nbytes in zip(op.writes, op.write_bytes, strict=True)
        ]
        moved.append((read, written))
        cache.touch(op, written, trace)
    cache.drop(freed.get(len(trace.ops), ()))
    cache.write_back(list(cache.dirty))
    return replace(
        trace,
        ops=tuple(
            replace(op, read_bytes=tuple(read), write_bytes=tuple(written))
            for op, (read, written) in zip(trace.ops, moved, strict=True)
        ),
    )


class _Cache:
    def __init__(self, nbytes: int) -> None:
        self._room = nbytes
        self._held: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """Bytes of each cached tensor and the operation that last used it, least recent first."""
        self.dirty: dict[int, tuple[int, list[int], int]] = {}
        """Bytes of each tensor to be written back, and the list and index where they count."""

    def held_bytes(self, tensor: int) -> int:
        """Return the cached bytes of a tensor."""
        return self._held[tensor][0] if tensor in self._held else 0

    def touch(self, op: Op, written: list[int], trace: Trace) -> None:
        """Make an operation's tensors the most recent; add its write-backs to ``written``."""
        touched = zip(op.reads + op.writes, op.read_bytes + op.write_bytes, strict=True)
        for tensor, nbytes in touched:
            before = self.held_bytes(tensor)
            self._room -= max(nbytes - before, 0)
            self._held[tensor] = max(nbytes, before), op.id
            self._held.move_to_end(tensor)
        for place, (tensor, nbytes) in enumerate(zip(op.writes, op.write_bytes, strict=True)):
            if nbytes < trace.tensors[tensor].nbytes:
                self.write_back([tensor])
            self.dirty[tensor] = nbytes, written, place
        last = -1
        while self._held:
            tensor, (_, user) = next(iter(self._held.items()))
            if self._room >= 0 and user != last:
                break
            last = user
            self.write_back([tensor])
            self.drop([tensor])

    def write_back(self, tensors: Iterable[int]) -> None:
        """Count the write-back of those tensors that are dirty."""
        for tensor in tensors:
            if tensor in self.dirty:
                nbytes, written, place = self.dirty.pop(tensor)
                written[place] += nbytes

    def drop(self, tensors: Iterable[int]) -> None:
        """Free the tensors' room; bytes not yet written back are discarded."""
        for tensor in tensors:
            self.dirty.pop(tensor, None)
            self._room += self._held.pop(tensor, (0, 0))[0]


def _blocked(op: Op, cache_bytes: int) -> float:
    """Return the least reads of a blocked product, as a multiple of its operands' bytes."""
    if op.geometry is None or not op.flops:
        return 0
    element_bytes = op.write_bytes[0] / prod(op.geometry.result)
    shapes = [shape for shape in op.geometry.operands if len(shape) > 1] + [op.geometry.result]
    if op.kind.endswith("bmm"):  # one after the other
        shapes = [shape[-2:] for shape in shapes]
    if min(map(prod, shapes)) * element_bytes <= cache_bytes:
        return 0
    least = op.flops * element_bytes / sqrt(cache_bytes / element_bytes)
    return least / sum(op.read_bytes)
