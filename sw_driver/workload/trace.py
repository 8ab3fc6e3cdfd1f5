"""A training step as data: tensors, operations in program order, and the layers they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

__all__ = ["KINDS", "PHASES", "Op", "Tensor", "Trace", "TraceError"]

KINDS = ("parameter", "gradient", "optimizer_state", "activation", "temporary", "input")
"""What a tensor is: an activation is saved in the forward pass for the backward pass."""

PHASES = ("forward", "backward", "update")


class TraceError(ValueError):
    """A trace that is not one; the message says where."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """A piece of memory: what views share counts once."""

    id: int
    """Its index in :attr:`Trace.tensors`."""
    nbytes: int
    kind: str
    """One of :data:`KINDS`."""
    name: str = ""
    """Of a parameter, and of what belongs to it: as the model names it."""
    parameter: int | None = None
    """The id of the parameter that a gradient or optimizer state belongs to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Op:
    """An operation: what it reads and writes, and how much work it is. Times are not in it."""

    id: int
    """Its index in :attr:`Trace.ops`."""
    kind: str
    """As the framework names it, such as ``mm``; for an update, the rule."""
    layer: int
    """Index in :attr:`Trace.layers`."""
    phase: str
    """One of :data:`PHASES`."""
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    flops: int
    nbytes: int
    """That it has to read and write at least, each tensor once."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A training step. Raises :class:`TraceError` if ids, kinds, phases or layers do not fit."""

    name: str
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    layers: tuple[str, ...]
    origin: Mapping[str, Any] = field(default_factory=dict)
    """How it was made: model, batch, versions."""

    def __post_init__(self) -> None:
        for number, tensor in enumerate(self.tensors):
            if tensor.id != number or tensor.kind not in KINDS or tensor.nbytes < 0:
                raise TraceError(f"{self.name}: tensor {number} is {tensor}")
        for number, op in enumerate(self.ops):
            known = all(0 <= each < len(self.tensors) for each in op.reads + op.writes)
            fits = known and op.phase in PHASES and 0 <= op.layer < len(self.layers)
            if op.id != number or not fits or min(op.flops, op.nbytes) < 0:
                raise TraceError(f"{self.name}: operation {number} is {op}")

    @cached_property
    def accesses(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor the ids of the operations that read or write it, in their order."""
        lists: list[list[int]] = [[] for _ in self.tensors]
        for op in self.ops:
            for tensor in dict.fromkeys(op.reads + op.writes):
                lists[tensor].append(op.id)
        return tuple(map(tuple, lists))

    @cached_property
    def dependencies(self) -> tuple[tuple[int, ...], ...]:
        """For each operation those that it has to wait for.

        The last writer of what it reads or writes, and the readers since of what it writes.
        """
        writer: dict[int, int] = {}
        readers: dict[int, list[int]] = {}
        found = []
        for op in self.ops:
            needed = {writer[each] for each in op.reads + op.writes if each in writer}
            for each in op.writes:
                needed.update(readers.pop(each, ()))
                writer[each] = op.id
            for each in op.reads:
                readers.setdefault(each, []).append(op.id)
            found.append(tuple(sorted(needed - {op.id})))
        return tuple(found)

    def lifetime(self, tensor: int) -> tuple[int, int] | None:
        """The first and the last operation that access it; None if none does.

        What outlives the step, such as a parameter, is there before and after, too.
        """
        accesses = self.accesses[tensor]
        return (accesses[0], accesses[-1]) if accesses else None
