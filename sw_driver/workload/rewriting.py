"""Steps made from other steps: new operations among the old ones, with lifetimes that follow."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from .trace import DTYPES, LASTING, Op, Tensor, Trace

__all__ = ["COLLECTIVES", "Rewriting", "applied", "format_of", "reduces_in_place"]

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
"""Kinds of operations in which all GPUs take part.

An operation is one GPU's share. It does no arithmetic of the step and reads and writes whole
tensors: the larger side is the size of the message.
"""

_Life = tuple[int | None, int | None]
_Change = int | str | None
_FORMATS = {8: "fp64", 4: "fp32", 2: "bf16", 1: "fp8"}


def format_of(tensor: Tensor, near: Op) -> str:
    """Return the format of a tensor: that of an operation near it, if the element's size fits."""
    fits = near.dtype != "tf32" and DTYPES[near.dtype] == tensor.element_bytes
    return near.dtype if fits else _FORMATS.get(tensor.element_bytes, "fp32")


def reduces_in_place(op: Op, trace: Trace) -> bool:
    """Return whether an operation adds up gradients of all GPUs where they are."""
    gradients = all(trace.tensors[tensor].kind == "gradient" for tensor in op.writes)
    return op.kind in COLLECTIVES and op.writes == op.reads and gradients


def applied(trace: Trace, text: str) -> Trace:
    """Return the step with a transformation noted in ``origin["applied"]``."""
    texts = [*trace.origin.get("applied", ()), text]
    return replace(trace, origin={**trace.origin, "applied": texts})


class Rewriting:
    """A new step, made of the operations and tensors of ``trace`` and of others.

    A tensor of the old step lives from and until the same of its operations as before, and at least
    while it is used. A new tensor lives while it is used. Operations may be added in several
    passes, with tensors for each.

    Example
    -------
    >>> step = Rewriting(trace)
    >>> for op in trace.ops:
    ...     step.add(op, op.id)
    >>> step.finish("nothing")
    """

    def __init__(self, trace: Trace) -> None:
        self.source = trace
        self.tensors: list[Tensor] = list(trace.tensors)
        self.ops: list[Op] = []
        self._lives: list[_Life] = [(0, 0)] * len(self.tensors)
        self._last: dict[int, int] = {}
        self._places: list[dict[int, int]] = [{}]
        self._repeated: list[int] = []
        self._recomputed = frozenset(trace.origin.get("recomputed", ()))

    def tensor(self, like: Tensor, life: _Life = (None, None), **changes: _Change) -> int:
        """Add a tensor and return its id.

        ``life`` has the passes that it begins and ends in, at the same operations as the tensor
        that it is like; None if it begins or ends with its use.
        """
        self.tensors.append(replace(like, id=len(self.tensors), **changes))
        self._lives.append(life)
        return len(self.tensors) - 1

    def change(self, number: int, life: _Life | None = None, **changes: _Change) -> None:
        """Change the life of a tensor, unless it is None, and fields."""
        self.tensors[number] = replace(self.tensors[number], **changes)
        self._lives[number] = self._lives[number] if life is None else life

    def hold(self, number: int) -> None:
        """Let a tensor live at least until the latest operation has run."""
        self._last[number] = len(self.ops)

    def add(self, op: Op, *sources: int, **changes: object) -> int:
        """Append an operation that stands for the old ones ``sources``; return its id.

        It is a repeated one if all of these are.
        """
        number = len(self.ops)
        self._places[-1].update(dict.fromkeys(sources, number))
        if sources and self._recomputed.issuperset(sources):
            self._repeated.append(number)
        self.ops.append(replace(op, id=number, **changes))
        return number

    def begin_pass(self) -> None:
        """Begin another pass over operations of the old step."""
        self._places.append({})

    def finish(self, text: str, gone: Collection[int] = (), **origin: object) -> Trace:
        """Return the new step without the tensors ``gone``; ``text`` says how it was made."""
        first, last = dict[int, Op](), dict[int, Op]()
        for op in self.ops:
            for tensor in op.reads + op.writes:
                first.setdefault(tensor, op)
                last[tensor] = op
        ids = [number for number in range(len(self.tensors)) if number not in gone]
        new_ids = {number: place for place, number in enumerate(ids)}
        tensors = []
        for number in ids:
            tensor = self.tensors[number]
            begin, freed = self._life(number, first.get(number), last.get(number))
            kind = tensor.kind
            if kind in ("activation", "temporary") and number in first:
                phases = first[number].phase, last[number].phase
                kind = "activation" if phases == ("forward", "backward") else "temporary"
            owner = tensor.parameter if tensor.parameter is None else new_ids[tensor.parameter]
            life: dict[str, int | None] = {"allocated": begin, "freed": freed}
            tensors.append(replace(tensor, id=new_ids[number], kind=kind, parameter=owner, **life))
        ops = self.ops
        if gone:
            ops = [
                replace(
                    op,
                    reads=tuple(map(new_ids.__getitem__, op.reads)),
                    writes=tuple(map(new_ids.__getitem__, op.writes)),
                )
                for op in ops
            ]
        repeated = {"recomputed": self._repeated} if "recomputed" in self.source.origin else {}
        made = replace(
            self.source,
            tensors=tuple(tensors),
            ops=tuple(ops),
            origin={**self.source.origin, **repeated, **origin},
        )
        return applied(made, text)

    def _life(self, number: int, first: Op | None, last: Op | None) -> tuple[int, int | None]:
        """Return the operations before which a tensor is allocated and freed."""
        tensor, (begins, ends), end = self.tensors[number], self._lives[number], len(self.ops)
        if tensor.kind in LASTING and tensor.freed is None:
            return 0, None
        begin, freed = (first.id, last.id + 1) if first and last else (end, 0)
        freed = max(begin, freed, self._last.get(number, 0))
        if begins is not None:
            begin = min(begin, self._places[begins].get(tensor.allocated, begin))
        if ends is None or tensor.freed is None:
            return begin, None if ends is not None else freed
        places = self._places[ends]
        before = next((places[n] for n in range(tensor.freed - 1, -1, -1) if n in places), -1)
        at_end = tensor.freed == len(self.source.ops) and ends == len(self._places) - 1
        return begin, end if at_end else max(freed, before + 1)
