"""The pages of memory that a step's tensors are in, as an allocator gives them."""

from __future__ import annotations

from bisect import insort

from sw_driver.workload.trace import Tensor, Trace

from .profiling import LINE_BYTES

__all__ = ["PAGE_BYTES", "original"]

PAGE_BYTES = 4096


def original(step: Trace) -> tuple[range, ...]:
    """Return the pages of each tensor, from an allocator that takes the first gap, at a multiple of
    a line, in which the tensor has room."""
    born: list[list[Tensor]] = [[] for _ in range(len(step.ops) + 1)]
    dies: list[list[int]] = [[] for _ in range(len(step.ops) + 1)]
    for each in step.tensors:
        born[each.allocated].append(each)
        if each.freed is not None and each.freed > each.allocated:
            dies[each.freed].append(each.id)
    taken: list[tuple[int, int, int]] = []  # beginnings, ends, and whose they are, by address
    places: dict[int, tuple[int, int, int]] = {}
    for new, old in zip(born, dies, strict=True):
        for each in old:
            taken.remove(places[each])
        for tensor in new:
            begin, nbytes = 0, -(-max(tensor.nbytes, 1) // LINE_BYTES) * LINE_BYTES
            for low, high, _ in taken:
                if low - begin >= nbytes:
                    break
                begin = high
            places[tensor.id] = begin, begin + nbytes, tensor.id
            insort(taken, places[tensor.id])
    ends = (places[each.id] for each in step.tensors)
    return tuple(range(begin // PAGE_BYTES, -(-end // PAGE_BYTES)) for begin, end, _ in ends)
