"""What Sentinel finds of a training step: when each tensor lives, and when memory is accessed."""

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
"""Of main memory, for an access."""


@dataclass(frozen=True, kw_only=True)
class StepProfile:
    """A step, and for each of its tensors by id where it lives and how often it is accessed. Raises
    :class:`~sw_driver.workload.trace.TraceError` for a step without operations or layers."""

    step: Trace
    """Its accesses have the bytes that go past the cache, and updates run with what is before."""

    def __post_init__(self) -> None:
        if not self.step.ops:
            raise TraceError(f"{self.step.name} has no operation: capture it again")
        if all(each.name == OUTSIDE for each in self.step.stages):
            raise TraceError(
                f"{self.step.name} has no layer: let its modules have the weights of its products, "
                "or call add_layer() at the end of each layer"
            )

    @cached_property
    def visits(self) -> tuple[range, ...]:
        """Operations of one stage on end, in their order: the paper's layers, of which a network
        of n has 2 n in a step."""
        runs = [[*run] for _, run in groupby(self.step.ops, key=lambda op: op.stage)]
        return tuple(range(run[0].id, run[-1].id + 1) for run in runs)

    @cached_property
    def visit_of(self) -> tuple[int, ...]:
        """The visit of each operation."""
        return tuple(number for number, ops in enumerate(self.visits) for _ in ops)

    @cached_property
    def lifetime(self) -> tuple[range, ...]:
        """The visits in which each tensor has memory."""
        return tuple(map(self._lifetime, self.step.tensors))

    def _lifetime(self, tensor: Tensor) -> range:
        last = len(self.step.ops) - 1
        first = min(tensor.allocated, last)
        if tensor.freed is not None:
            last = max(tensor.freed - 1, first)
        return range(self.visit_of[first], self.visit_of[last] + 1)

    @cached_property
    def lines(self) -> tuple[Mapping[int, int], ...]:
        """Lines of :data:`LINE_BYTES` of main memory that are accessed, by visit, if any."""
        found: list[dict[int, int]] = [{} for _ in self.step.tensors]
        for op in self.step.ops:
            visit = self.visit_of[op.id]
            accesses = zip(op.reads + op.writes, op.read_bytes + op.write_bytes, strict=True)
            for tensor, nbytes in accesses:
                if nbytes:
                    lines = found[tensor].get(visit, 0) + -(-nbytes // LINE_BYTES)
                    found[tensor][visit] = lines
        return tuple(found)

    @cached_property
    def short_lived(self) -> frozenset[int]:
        """Those that get their memory and give it back in one visit."""
        return frozenset(
            each.id
            for each in self.step.tensors
            if each.kind not in LASTING and len(self.lifetime[each.id]) == 1
        )


def profile_of(trace: Trace, cache_bytes: int) -> StepProfile:
    """What one step shows behind a cache of that size (:mod:`~sw_driver.workload.cache`), which is
    empty at first. An update runs at the end of its stage, as frameworks do that apply a gradient
    when it is there, and the gradient is freed behind it.

    Raises :class:`~sw_driver.workload.trace.TraceError` for a trace without operations or layers,
    and for a size that is none.
    """
    return StepProfile(step=past_cache(_updated_early(trace), cache_bytes))


def _updated_early(trace: Trace) -> Trace:
    """With each update behind the visit in which its stage, and the other uses of its tensors, end.
    It has the stage of that visit."""
    behind: dict[int, int] = {}  # the operation that each goes behind; by default itself
    end_of: dict[int, int] = {}  # of a stage: the last operation of its visit
    used: dict[int, int] = {}  # the same of a tensor
    for (stage, updates), run in groupby(trace.ops, key=lambda op: (op.stage, _updates(op))):
        ops = [*run]
        for op in ops:
            accessed = set(op.reads + op.writes)
            end = ops[-1].id
            if updates:
                ends = [used[each] for each in accessed if each in used]
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
        trace, ops=ops, tensors=tuple(_moved(trace, each, new) for each in trace.tensors)
    )


def _moved(trace: Trace, tensor: Tensor, new: Mapping[int, int]) -> Tensor:
    """With its memory at least for its accesses, and no longer if an update is the last of them."""
    accesses = trace.accesses[tensor.id]
    if not accesses or tensor.kind in LASTING:
        return tensor
    places = [new[each] for each in accesses]
    freed = tensor.freed
    if freed is not None and (freed < len(trace.ops) or _updates(trace.ops[accesses[-1]])):
        before = places if _updates(trace.ops[freed - 1]) else [*places, new[freed - 1]]
        freed = max(before) + 1
    return replace(tensor, allocated=min(new[tensor.allocated], *places), freed=freed)


def _updates(op: Op) -> bool:
    return op.phase == "update"


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
