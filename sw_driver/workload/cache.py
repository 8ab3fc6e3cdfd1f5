"""What of a step's bytes goes past a processor's last level of cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from math import ceil, prod, sqrt

from sw_driver.numbers import check_integer

from .trace import Op, Trace, TraceError

__all__ = ["past_cache"]


def past_cache(trace: Trace, cache_bytes: int, *, write_allocate: bool = True) -> Trace:
    """The same step, in which accesses have only the bytes that go past a cache of that size.

    The cache is empty at first, fully associative, and evicts what was used least recently. What an
    operation touches is the most recent then, all alike; for more than there is room, what was
    touched last by the least recent operation goes, all of it. So a sweep over a bit more than the
    cache finds nothing again, and of an operation that touches more than the cache nothing stays.
    Of a tensor that is touched in parts, each part is its first bytes.

    A read moves what it does not find. A write is written back: it counts, at the operation that
    wrote, when it leaves the cache or at the end, unless before that all of the tensor is written
    again, or the tensor is freed, whose place allocators hand out again at once.

    A product of which neither an operand nor the result fits reads at least what one in square
    blocks does: flops / sqrt(n) elements if the cache holds n, 2 M N K / sqrt(n) for matrices. A
    convolution is taken as the product to which it unfolds.

    It is no model of lines and sets, of prefetching, of levels above the last, or of cores that
    evict what others need. What a step finds of the one before, a trace of several shows
    (:meth:`~sw_driver.workload.trace.Trace.unrolled`).

    Raises :class:`~sw_driver.workload.trace.TraceError` for a size that is none.

    Parameters
    ----------
    cache_bytes: 0 for a processor without a cache: the trace as it is.
    write_allocate: whether a write fetches first what is not in the cache, as an ordinary store of
        a CPU does; that counts as written, too. GPUs write without.
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
            max(nbytes - cache.found(tensor), ceil(share * nbytes))
            for tensor, nbytes in zip(op.reads, op.read_bytes, strict=True)
        ]
        written = [
            max(nbytes - cache.found(tensor), 0) if write_allocate and tensor not in op.reads else 0
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
        """For each tensor, the least recent first, its bytes and the operation that used it."""
        self.dirty: dict[int, tuple[int, list[int], int]] = {}
        """For each tensor that is to be written back the bytes, and where they count."""

    def found(self, tensor: int) -> int:
        """The bytes of a tensor that are there."""
        return self._held[tensor][0] if tensor in self._held else 0

    def touch(self, op: Op, written: list[int], trace: Trace) -> None:
        """Makes tensors the most recent; ``written`` counts what is written back of its writes."""
        touched = zip(op.reads + op.writes, op.read_bytes + op.write_bytes, strict=True)
        for tensor, nbytes in touched:
            before = self.found(tensor)
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
        for tensor in tensors:
            if tensor in self.dirty:
                nbytes, written, place = self.dirty.pop(tensor)
                written[place] += nbytes

    def drop(self, tensors: Iterable[int]) -> None:
        """Makes their room free; what was not written back is lost."""
        for tensor in tensors:
            self.dirty.pop(tensor, None)
            self._room += self._held.pop(tensor, (0, 0))[0]


def _blocked(op: Op, cache_bytes: int) -> float:
    """How often a product reads at least what it is given."""
    if op.geometry is None or not op.flops:
        return 0
    element_bytes = op.write_bytes[0] / prod(op.geometry.result)
    shapes = [each for each in op.geometry.operands if len(each) > 1] + [op.geometry.result]
    if op.kind.endswith("bmm"):  # one after the other
        shapes = [each[-2:] for each in shapes]
    if min(map(prod, shapes)) * element_bytes <= cache_bytes:
        return 0
    least = op.flops * element_bytes / sqrt(cache_bytes / element_bytes)
    return least / sum(op.read_bytes)
