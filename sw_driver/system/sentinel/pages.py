"""Which pages of memory a step's tensors are in: as an allocator gives them, or packed."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, replace

import numpy as np

from sw_driver.workload.summary import peak_bytes
from sw_driver.workload.trace import Tensor, Trace

from .profiling import LINE_BYTES, StepProfile

__all__ = [
    "ACCESSES",
    "PAGE_BYTES",
    "Layout",
    "class_of",
    "in_pages",
    "original",
    "packed",
    "peak_in_pages",
]

PAGE_BYTES = 4096

ACCESSES = ("up to 10", "11 to 100", "more than 100")
"""Classes of how often something is accessed."""
_MOST = (10, 100)


def class_of(accesses: int) -> int:
    """Which of :data:`ACCESSES` it is."""
    return bisect_left(_MOST, accesses)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The pages that each tensor is in, in the course of a step."""

    pages: tuple[range, ...]
    together: tuple[tuple[int, ...], ...] = ()
    """For each tensor those that are in a page of its at the same time; empty if all are that are
    accessed in the same visits."""

    def classes(self, profile: StepProfile) -> tuple[list[int], int]:
        """How many pages are of each of :data:`ACCESSES`, and how many are of another class than
        one of the tensors in them: shared falsely. A page is accessed as often as all that are in
        it, at once or in turn."""
        counts = np.full(max(each.stop for each in self.pages), -1)
        for each in self.pages:
            counts[each.start : each.stop] = 0
        for each, accesses in zip(self.pages, profile.accesses, strict=True):
            counts[each.start : each.stop] += accesses
        classes = np.searchsorted(_MOST, counts)
        shared = np.zeros(len(classes), bool)
        for each, accesses in zip(self.pages, profile.accesses, strict=True):
            own = slice(each.start, each.stop)
            shared[own] |= classes[own] != class_of(accesses)
        found = [int((classes[counts >= 0] == each).sum()) for each in range(len(ACCESSES))]
        return found, int(shared.sum())

    def needed_apart(self, profile: StepProfile) -> int:
        """Pages in which there are tensors at the same time that are accessed in other visits."""
        found: set[int] = set()
        for tensor, others in enumerate(self.together):
            pages, visits = self.pages[tensor], profile.lines[tensor].keys()
            for other in others:
                if other > tensor and profile.lines[other].keys() != visits:
                    there = self.pages[other]
                    found.update(range(max(pages[0], there[0]), min(pages[-1], there[-1]) + 1))
        return len(found)


def original(step: Trace) -> Layout:
    """As an allocator gives memory that takes the first gap, at a multiple of a line, in which a
    tensor has room."""
    born: list[list[Tensor]] = [[] for _ in range(len(step.ops) + 1)]
    dies: list[list[int]] = [[] for _ in range(len(step.ops) + 1)]
    for each in step.tensors:
        born[each.allocated].append(each)
        if each.freed is not None and each.freed > each.allocated:
            dies[each.freed].append(each.id)
    taken: list[tuple[int, int, int]] = []  # beginnings, ends, and whose they are, by address
    places: dict[int, tuple[int, int, int]] = {}
    together: list[list[int]] = [[] for _ in step.tensors]
    for new, old in zip(born, dies, strict=True):
        for each in old:
            taken.remove(places[each])
        for tensor in new:
            begin, nbytes = 0, _in_lines(tensor)
            for low, high, _ in taken:
                if low - begin >= nbytes:
                    break
                begin = high
            pages = _pages(begin, begin + nbytes)
            for low, high, other in taken:
                if low < pages.stop * PAGE_BYTES and high > pages.start * PAGE_BYTES:
                    together[tensor.id].append(other)
                    together[other].append(tensor.id)
            places[tensor.id] = begin, begin + nbytes, tensor.id
            insort(taken, places[tensor.id])
    return Layout(
        pages=tuple(_pages(*places[each.id][:2]) for each in step.tensors),
        together=tuple(map(tuple, together)),
    )


def packed(profile: StepProfile) -> Layout:
    """As Sentinel gives it: what is accessed in the same visits is packed into pages of its own,
    the least accessed first; and so is what lives in one visit only, whose pages are a pool's."""
    groups: dict[tuple[bool, tuple[int, ...]], list[int]] = {}
    for each, lines in enumerate(profile.lines):
        groups.setdefault((each in profile.short_lived, tuple(lines)), []).append(each)
    pages: dict[int, range] = {}
    begin = 0
    for group in groups.values():
        for each in sorted(group, key=lambda tensor: profile.accesses[tensor]):
            end = begin + _in_lines(profile.step.tensors[each])
            pages[each], begin = _pages(begin, end), end
        begin = in_pages(begin)
    return Layout(pages=tuple(pages[each] for each in range(len(pages))))


def peak_in_pages(step: Trace) -> int:
    """Most memory that tensors have at the same time when each has pages of its own, as in the
    profiled step."""
    tensors = (replace(each, nbytes=in_pages(each.nbytes)) for each in step.tensors)
    return peak_bytes(replace(step, tensors=tuple(tensors)))


def in_pages(nbytes: int) -> int:
    """Bytes of the pages that so many take."""
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES


def _in_lines(tensor: Tensor) -> int:
    return -(-max(tensor.nbytes, 1) // LINE_BYTES) * LINE_BYTES


def _pages(begin: int, end: int) -> range:
    return range(begin // PAGE_BYTES, -(-end // PAGE_BYTES))
