"""Layers of a captured step, and the stage of each operation."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence

from .trace import Op, Stage, Trace

__all__ = ["OUTSIDE", "Layering", "block_of", "blocks_of"]

OUTSIDE = "(model)"
"""Layer of the loss and of everything that the model runs outside its modules."""


_Part = tuple[int, int]


def blocks_of(trace: Trace) -> frozenset[str]:
    """Return the repeated blocks of a model, such as ``layers.3``.

    A block is the first numbered module in a name, if other modules are inside.
    """
    return frozenset(_numbered(name) for name in trace.layers if _numbered(name) != name) - {""}


def block_of(name: str, blocks: Collection[str]) -> str:
    """Return which of the blocks a module or parameter is in; empty if it is in none."""
    block = _numbered(name)
    return block if block in blocks else ""


def _numbered(name: str) -> str:
    """Return a name up to its first number; empty if it has none."""
    parts = name.split(".")
    ends = [place for place, part in enumerate(parts, 1) if part.isdecimal()]
    return ".".join(parts[: ends[0]]) if ends else ""


class Layering:
    """Beginnings of layers while a step runs; see :class:`~sw_driver.workload.trace.Stage`."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._names: list[str] = []
        self._ends: list[int] = []  # ends set by `end`
        self._used = frozenset[_Part]()
        # Weights used by the previous time step, if this layer repeats its module.
        self._before: frozenset[_Part] | None = None
        self._parameters: set[int] = set()
        self._made_of: dict[int, frozenset[_Part]] = {}

    def parameter(self, tensor: int) -> None:
        """Record that a tensor is a parameter."""
        self._parameters.add(tensor)

    def run(
        self,
        op: int,
        module: tuple[str, int],
        factors: Iterable[_Part],
        reads: Iterable[_Part],
        writes: Iterable[int],
    ) -> None:
        """Record an operation of the forward pass.

        ``module`` is the name of the running module and the operation it began with. ``factors``
        are the operands of a product, or the table of a look-up. A part is a tensor and the element
        of its memory where the operand begins: one parameter may hold the weights of several
        products.
        """
        if self._ends:
            return
        none = frozenset[_Part]()
        if not factors:  # tensors made of parameters only, such as by a cast, stand for them
            read = [self._weights(part) for part in reads]
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
        """End a layer before operation ``op``. From then on only such ends separate layers."""
        if op not in [0, *self._ends]:
            self._ends.append(op)
            self._starts = [0, *self._ends[:-1]]
            self._names = [f"layer {number}" for number in range(len(self._starts))]

    def _weights(self, part: _Part) -> frozenset[_Part]:
        tensor, _ = part
        parameter = tensor in self._parameters
        return frozenset((part,)) if parameter else self._made_of.get(tensor, frozenset())

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages of all layers; a network without layers counts as one."""
        names = self._names or [OUTSIDE]
        return (
            *(Stage(name=name, phase="forward") for name in names),
            *(Stage(name=name, phase="backward") for name in reversed(names)),
        )

    def stage_of(self, trace: Trace, sources: Sequence[int | None]) -> list[int]:
        """Return the stage of each operation.

        ``sources`` has for each operation the one that it differentiates: in the forward pass
        itself, and None for an operation that is recomputed.
        """
        last = max(len(self._names), 1) - 1
        forward_ops = _forward_ops(trace, sources)
        layers = [max(bisect_right(self._starts, op) - 1, 0) for op in forward_ops]
        return [
            layer if op.phase == "forward" else 2 * last + 1 - layer
            for op, layer in zip(trace.ops, layers, strict=True)
        ]


def _forward_ops(trace: Trace, sources: Sequence[int | None]) -> list[int]:
    """Return, for each operation, an operation of the forward pass in the same layer."""
    matches: list[int] = []
    ran: dict[tuple[int, str], list[int]] = {}
    reached = 0  # earliest forward operation that the backward pass has reached
    for op, source in zip(trace.ops, sources, strict=True):
        if op.id < len(matches):
            continue
        if op.phase == "forward":
            ran.setdefault((op.layer, op.kind), []).append(op.id)
            reached = op.id + 1
            matches.append(op.id)
        elif op.phase == "update":
            parameter = next(n for n in op.reads if trace.tensors[n].kind == "parameter")
            matches.append(matches[trace.accesses[parameter][0]])
        elif source is None:
            end = next(n for n in range(op.id, len(sources)) if sources[n] is not None)
            matches += _again(trace.ops[op.id : end], ran, reached)
        else:
            matches.append(matches[min(source, op.id - 1)] if matches else 0)
            reached = min(reached, matches[-1])
    return matches


def _again(
    ops: Sequence[Op], ran: Mapping[tuple[int, str], Sequence[int]], reached: int
) -> list[int]:
    """Return the forward operations that recomputed ones repeat.

    Match from the last to the first, each with the latest equal operation before ``reached``.
    """
    matches = []
    for op in reversed(ops):
        alike = ran.get((op.layer, op.kind), (reached,))
        reached = alike[bisect_left(alike, reached) - 1]  # if none is before, the last of all
        matches.append(reached)
    return matches[::-1]
