"""Profile of a training step for Sentinel: lifetimes of tensors, and accesses of memory."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from sw_driver.workload.cache import past_cache
from sw_driver.workload.stages import OUTSIDE
from sw_driver.workload.trace import LASTING, Op, Tensor, Trace, TraceError

__all__ = ["LINE_BYTES", "PAGE_BYTES", "StepProfile", "original", "profile_of"]


LINE_BYTES = 64
"""Bytes of an access to main memory."""


@dataclass(frozen=True, kw_only=True)
class StepProfile:
    """A step, with the lifetime and the accesses of each of its tensors by id.

    Raises :class:`~sw_driver.workload.trace.TraceError` for a step without operations or layers.

    Examples
    --------
    >>> from sw_driver.workload import load_trace
    >>> profile = StepProfile(step=load_trace("gpt-tiny"))
    >>> len(profile.visits), len(profile.short_lived), profile.lifetime[0]
    (31, 46, range(0, 31))
    """

    step: Trace
    """Step whose accesses have the bytes past the cache, and whose updates run early."""

    def __post_init__(self) -> None:
        if not self.step.ops:
            raise TraceError(f"{self.step.name} has no operation: capture it again")
        if all(stage.name == OUTSIDE for stage in self.step.stages):
            raise TraceError(
                f"{self.step.name} has no layer: let its modules have the weights of its products, "
                "or call add_layer() at the end of each layer"
            )

    @cached_property
    def visits(self) -> tuple[range, ...]:
        """Consecutive operations of one stage, in order: the paper's layers.

        A network of n layers has 2 n visits in a step.
        """
        runs = [[*run] for _, run in groupby(self.step.ops, key=lambda op: op.stage)]
        return tuple(range(run[0].id, run[-1].id + 1) for run in runs)

    @cached_property
    def visit_of(self) -> tuple[int, ...]:
        """Visit of each operation."""
        return tuple(number for number, ops in enumerate(self.visits) for _ in ops)

    @cached_property
    def lifetime(self) -> tuple[range, ...]:
        """Visits in which each tensor has memory."""
        return tuple(map(self._lifetime, self.step.tensors))

    def _lifetime(self, tensor: Tensor) -> range:
        last = len(self.step.ops) - 1
        first = min(tensor.allocated, last)
        if tensor.freed is not None:
            last = max(tensor.freed - 1, first)
        return range(self.visit_of[first], self.visit_of[last] + 1)

    @cached_property
    def lines(self) -> tuple[Mapping[int, int], ...]:
        """Lines of :data:`LINE_BYTES` of main memory that each tensor accesses, by visit."""
        lines_of: list[dict[int, int]] = [{} for _ in self.step.tensors]
        for op in self.step.ops:
            visit = self.visit_of[op.id]
            accesses = zip(op.reads + op.writes, op.read_bytes + op.write_bytes, strict=True)
            for tensor, nbytes in accesses:
                if nbytes:
                    lines = lines_of[tensor].get(visit, 0) + -(-nbytes // LINE_BYTES)
                    lines_of[tensor][visit] = lines
        return tuple(lines_of)

    @cached_property
    def short_lived(self) -> frozenset[int]:
        """Tensors that are allocated and freed in one visit."""
        return frozenset(
            tensor.id
            for tensor in self.step.tensors
            if tensor.kind not in LASTING and len(self.lifetime[tensor.id]) == 1
        )


def profile_of(trace: Trace, cache_bytes: int) -> StepProfile:
    """Return the profile of one step behind a cache of ``cache_bytes``, empty at first.

    See :mod:`~sw_driver.workload.cache`. An update runs at the end of its stage, as in frameworks
    that apply each gradient once it is ready. The gradient is freed after it.

    Raises :class:`~sw_driver.workload.trace.TraceError` for a trace without operations or layers,
    and for an invalid size.
    """
    return StepProfile(step=past_cache(_updated_early(trace), cache_bytes))


def _updated_early(trace: Trace) -> Trace:
    """Return the trace with each update moved forward.

    An update goes behind the visit in which its stage, and the other uses of its tensors, end. It
    gets the stage of that visit.
    """
    behind: dict[int, int] = {}  # operation that each update goes behind
    end_of: dict[int, int] = {}  # last operation of the visit, by stage
    used: dict[int, int] = {}  # last operation of the visit, by tensor
    for (stage, updates), run in groupby(trace.ops, key=lambda op: (op.stage, _updates(op))):
        ops = [*run]
        for op in ops:
            accessed = set(op.reads + op.writes)
            end = ops[-1].id
            if updates:
                ends = [used[tensor] for tensor in accessed if tensor in used]
                behind[op.id] = end = max([end_of.get(stage, 0), *ends])
            else:
                end_of[stage] = end
            used.update(dict.fromkeys(accessed, end))
    order = sorted(trace.ops, key=lambda op: (behind.get(op.id, op.id), op.id))
    new = {op.id: number for number, op in enumerate(order)}
    ops = tuple(
        replace(op, id=number, stage=trace.ops[behind.get(op.id, op.id)].stage)
        for number, op in enumerate(order)
    )
    return replace(
        trace, ops=ops, tensors=tuple(_moved(trace, tensor, new) for tensor in trace.tensors)
    )


def _moved(trace: Trace, tensor: Tensor, new: Mapping[int, int]) -> Tensor:
    """Return a tensor with its lifetime in the new order.

    It covers all accesses, and ends after the last one if that is an update.
    """
    accesses = trace.accesses[tensor.id]
    if not accesses or tensor.kind in LASTING:
        return tensor
    places = [new[op] for op in accesses]
    freed = tensor.freed
    if freed is not None and (freed < len(trace.ops) or _updates(trace.ops[accesses[-1]])):
        before = places if _updates(trace.ops[freed - 1]) else [*places, new[freed - 1]]
        freed = max(before) + 1
    return replace(tensor, allocated=min(new[tensor.allocated], *places), freed=freed)


def _updates(op: Op) -> bool:
    return op.phase == "update"


PAGE_BYTES = 4096


def original(step: Trace) -> tuple[range, ...]:
    """Return the pages of each tensor, from a first-fit allocator.

    A tensor gets the first gap with room, at a multiple of a line.
    """
    born: list[list[Tensor]] = [[] for _ in range(len(step.ops) + 1)]
    dies: list[list[int]] = [[] for _ in range(len(step.ops) + 1)]
    for tensor in step.tensors:
        born[tensor.allocated].append(tensor)
        if tensor.freed is not None and tensor.freed > tensor.allocated:
            dies[tensor.freed].append(tensor.id)
    taken: list[tuple[int, int, int]] = []  # begin, end and tensor, by address
    places: dict[int, tuple[int, int, int]] = {}
    for new, old in zip(born, dies, strict=True):
        for tensor in old:
            taken.remove(places[tensor])
        for tensor in new:
            begin, nbytes = 0, -(-max(tensor.nbytes, 1) // LINE_BYTES) * LINE_BYTES
            for low, high, _ in taken:
                if low - begin >= nbytes:
                    break
                begin = high
            places[tensor.id] = begin, begin + nbytes, tensor.id
            insort(taken, places[tensor.id])
    ends = (places[tensor.id] for tensor in step.tensors)
    return tuple(range(begin // PAGE_BYTES, -(-end // PAGE_BYTES)) for begin, end, _ in ends)
