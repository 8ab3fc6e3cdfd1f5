"""Which layer each operation of a captured step belongs to."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence

from .trace import Op, Stage, Trace

__all__ = ["OUTSIDE", "Layering"]

OUTSIDE = "(model)"
"""The layer of what the model does in no module of it, and of the loss."""


_Part = tuple[int, int]


class Layering:
    """Notes where layers begin while a step runs; see :class:`~sw_driver.workload.trace.Stage`."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._names: list[str] = []
        self._ends: list[int] = []  # by hand
        self._used = frozenset[_Part]()
        self._before: frozenset[_Part] | None = None  # used by the time step before, if it is one
        self._parameters: set[int] = set()
        self._made_of: dict[int, frozenset[_Part]] = {}

    def parameter(self, tensor: int) -> None:
        """Notes that a tensor is a parameter."""
        self._parameters.add(tensor)

    def run(
        self,
        op: int,
        module: tuple[str, int],
        factors: Iterable[_Part],
        reads: Iterable[_Part],
        writes: Iterable[int],
    ) -> None:
        """Notes an operation of the forward pass, in a module that began with operation
        ``module[1]``. ``factors`` are what a product reads, or the table that is looked up. What it
        reads is a tensor and the element at which that begins in its memory: a parameter may have
        the weights of several products."""
        if self._ends:
            return
        none = frozenset[_Part]()
        if not factors:  # what is made of parameters only, such as by a cast, stands for them
            read = [self._weights(each) for each in reads]
            if read and all(read):
                self._made_of.update(dict.fromkeys(writes, none.union(*read)))
            return
        weights = none.union(*map(self._weights, factors))
        name, entered = module
        here = self._names[-1:] == [name]
        again = weights & self._used
        other = self._before is not None and not weights & self._before
        if weights and (not here or again or other):
            outside = self._starts and entered <= self._starts[-1]
            self._starts.append(op if outside else entered)
            self._names.append(name)
            self._before = self._used if here and again else None
            self._used = none
        self._used |= weights

    def end(self, op: int) -> None:
        """Ends a layer by hand before that operation: then these are all layers."""
        if op not in [0, *self._ends]:
            self._ends.append(op)
            self._starts = [0, *self._ends[:-1]]
            self._names = [f"layer {each}" for each in range(len(self._starts))]

    def _weights(self, part: _Part) -> frozenset[_Part]:
        tensor, _ = part
        parameter = tensor in self._parameters
        return frozenset((part,)) if parameter else self._made_of.get(tensor, frozenset())

    def stages(self) -> tuple[Stage, ...]:
        """Those of all layers; a network without any is one."""
        names = self._names or [OUTSIDE]
        return (
            *(Stage(name=name, phase="forward") for name in names),
            *(Stage(name=name, phase="backward") for name in reversed(names)),
        )

    def stage_of(self, trace: Trace, sources: Sequence[int | None]) -> list[int]:
        """The stage of each operation. ``sources`` are the operations that they differentiate,
        in the forward pass themselves; None for one that runs again."""
        last = max(len(self._names), 1) - 1
        found = _of_forward(trace, sources)
        layers = [max(bisect_right(self._starts, each) - 1, 0) for each in found]
        return [
            layer if op.phase == "forward" else 2 * last + 1 - layer
            for op, layer in zip(trace.ops, layers, strict=True)
        ]


def _of_forward(trace: Trace, sources: Sequence[int | None]) -> list[int]:
    """For each operation one of the forward pass whose layer it has."""
    found: list[int] = []
    ran: dict[tuple[int, str], list[int]] = {}
    reached = 0  # by the backward pass, from the end on
    for op, source in zip(trace.ops, sources, strict=True):
        if op.id < len(found):
            continue
        if op.phase == "forward":
            ran.setdefault((op.layer, op.kind), []).append(op.id)
            reached = op.id + 1
            found.append(op.id)
        elif op.phase == "update":
            parameter = next(each for each in op.reads if trace.tensors[each].kind == "parameter")
            found.append(found[trace.accesses[parameter][0]])
        elif source is None:
            end = next(n for n in range(op.id, len(sources)) if sources[n] is not None)
            found += _again(trace.ops[op.id : end], ran, reached)
        else:
            found.append(found[min(source, op.id - 1)] if found else 0)
            reached = min(reached, found[-1])
    return found


def _again(
    ops: Sequence[Op], ran: Mapping[tuple[int, str], Sequence[int]], reached: int
) -> list[int]:
    """What operations repeat: from the last on the latest that are alike, in the same order."""
    found = []
    for op in reversed(ops):
        alike = ran.get((op.layer, op.kind), (reached,))
        reached = alike[bisect_left(alike, reached) - 1]  # if none is before, the last of all
        found.append(reached)
    return found[::-1]
