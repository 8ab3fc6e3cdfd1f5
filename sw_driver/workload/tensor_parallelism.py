"""Tensor parallelism: one GPU's share of a step with every block of layers split by width.

As in Shoeybi et al., Megatron-LM, 2019, section 3. Linear layers of a block take turns: one with a
whole input splits its outputs, one with a split input adds up partial sums of them. Everything
between the two is split, such as attention by heads and activation functions. Everything else is
whole on every GPU, such as norms, residual connections, embeddings and logits.

Adapters are split as in PEFT: of a layer that splits its outputs B is split and A whole, of a layer
with a split input A is split and B whole. The result of rank r between the two is whole. In the
backward pass every such layer adds up the gradient of its own input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from sw_driver.numbers import check_integer

from .adapters import ADAPTERS, UNPACKED
from .batches import MANY, MATRICES, factors_of
from .collectives import format_of
from .edits import derived, marked, rebuilt
from .stages import block_of, blocks_of
from .trace import Geometry, Op, Trace, TraceError

__all__ = ["tensor_parallel"]

_HEADS = ("n_heads", "n_kv_heads")
"""Numbers of attention heads in a trace's origin."""
_ATTENTION = "scaled_dot_product"
_SUMS = ("add", "add_")


def tensor_parallel(trace: Trace, width: int) -> Trace:
    """Return one GPU's share of a step of which ``width`` GPUs split every block.

    Products with split weights and in attention do 1/width of the work. Weights of split layers,
    with their gradients and optimizer states, and activations between two such layers take 1/width
    of the bytes. Partial sums are added by an ``all_reduce`` before their first use but an
    addition: twice in each pass of a transformer's block. A bias belongs to its layer, and is whole
    after an all-reduce.

    The rule knows no dimensions but those of products: it takes every other operation on a split
    tensor to work on the parts independently.

    ``origin`` has the width as ``tensor_parallel``. Raises
    :class:`~sw_driver.workload.trace.TraceError` for a width that does not divide the heads or a
    split side, and for a block that is no sequence of linear layers and attention.
    """
    check_integer("tensor_parallel", width, error=TraceError)
    if width == 1:
        return trace
    for name in _HEADS:
        heads = trace.origin.get(name, width)
        if heads % width:
            raise TraceError(
                f"tensor_parallel is {width}, but {trace.name} has {heads} heads ({name}): "
                f"expected a divisor of {heads}"
            )
    split = _Split(trace, width)
    for op in trace.ops:
        split.follow(op)
    return split.share()


class _Split:
    """Tensors of a step that are split, followed along the data's flow."""

    def __init__(self, trace: Trace, width: int) -> None:
        self._trace, self._width = trace, width
        blocks = blocks_of(trace)
        self._blocks = [block_of(name, blocks) for name in trace.layers]
        self._made_in: dict[int, str] = {}  # blocks of tensors made in the forward pass
        self._weights = {one.id: one.id for one in trace.tensors if one.kind == "parameter"}
        self._split: set[int] = set()
        self._partial: set[int] = set()
        self._sums: dict[int, list[int]] = {}  # partial sums to add before an operation
        self._sides: dict[int, str] = {}  # dimension that a product is split along
        self._owned: dict[int, list[int]] = {}
        for tensor in trace.tensors:
            if tensor.parameter is not None:
                self._owned.setdefault(tensor.parameter, []).append(tensor.id)

    def follow(self, op: Op) -> None:
        """Find out what an operation makes of split tensors."""
        written = [one for one in op.writes if self._trace.tensors[one].kind != "parameter"]
        data = [one for one in op.reads if one not in self._weights]
        roots = {self._weights[one] for one in op.reads if one in self._weights}
        copies = not data or op.kind == UNPACKED
        if op.phase != "update" and op.geometry is None and len(roots) == 1 and copies:
            (root,) = roots
            self._weights.update(dict.fromkeys(written, root))  # a copy, such as a cast
            self._owned.setdefault(root, []).extend(data)  # scales of packed weights
            return
        if op.phase == "update":
            self._add_up(op, data)
            return
        block = self._blocks[op.layer]
        if op.phase == "forward":
            if any(self._made_in[one] != block for one in self._split.intersection(data)):
                self._refuse(op, "reads a tensor that another block leaves split")
            self._made_in.update(dict.fromkeys(written, block))
        if op.geometry is not None:
            self._multiply(op, written)
            return
        summed = op.kind in _SUMS and self._partial.issuperset(data)
        if not summed:
            self._add_up(op, data)
        parts = self._split.intersection(data)
        if parts:
            largest = max(self._trace.tensors[one].elements for one in parts)
            for one in data:
                if (
                    one not in parts
                    and self._trace.tensors[one].elements == largest
                    and one not in op.writes
                ):
                    self._refuse(op, "mixes whole and split tensors")
        for place, one in enumerate(written):
            summary = place > 0 and op.phase == "backward" and "norm" in op.kind
            self._mark(one, bool(parts) and not summary, partial=summed and bool(data))

    def _multiply(self, op: Op, written: Sequence[int]) -> None:
        """Find out along which dimension a product is split."""
        if op.kind not in MATRICES:
            self._add_up(op, op.reads)
            parts = self._split.intersection(op.reads)
            if parts and _ATTENTION not in op.kind:
                self._refuse(op, "is no product of matrices, but reads a split tensor")
            self._sides[op.id] = "h" if parts else ""
            for one in written:
                self._mark(one, bool(parts))
            return
        factors = factors_of(op)
        weights = [one for one in factors if one in self._weights]
        data = [one for one in factors if one not in self._weights]
        if len(weights) == 1 and op.phase == "forward" and self._blocks[op.layer]:
            root = self._weights[weights[0]]
            down, up = (end in self._trace.tensors[root].name for end in ADAPTERS)
            whole = (down and self._split.isdisjoint(data)) or (up and {*data} <= self._partial)
            if not whole:
                self._take(root)
        self._add_up(op, op.reads)
        parts = [one in self._split or self._weights.get(one) in self._split for one in factors]
        side = ""
        if all(parts):
            side = "g" if op.kind in MANY else "k"
            if not weights and side == "k":
                self._refuse(op, "multiplies two split tensors")
        elif any(parts):
            if op.kind in MANY or (weights and self._split.intersection(data)):
                self._refuse(op, "multiplies a split tensor by a whole one")
            side = "m" if parts[0] else "n"
        self._sides[op.id] = side
        for one in written:
            self._mark(one, side not in ("", "k"), partial=side == "k")
        if side not in ("", "k"):
            for one in op.reads[:-2]:  # a bias
                if one in self._weights:
                    self._take(self._weights[one])

    def _add_up(self, op: Op, tensors: Sequence[int]) -> None:
        """Add up partial sums before an operation needs their values."""
        for one in sorted(self._partial.intersection(tensors)):
            self._sums.setdefault(op.id, []).append(one)
            self._partial.discard(one)

    def _mark(self, number: int, split: bool, partial: bool = False) -> None:
        (self._split.add if split else self._split.discard)(number)
        (self._partial.add if partial else self._partial.discard)(number)
        owner = self._trace.tensors[number].parameter
        if split and owner is not None:
            self._take(owner)

    def _take(self, parameter: int) -> None:
        """Split a parameter, with its gradient and optimizer states."""
        self._split.update((parameter, *self._owned.get(parameter, ())))

    def _refuse(self, op: Op, reason: str) -> NoReturn:
        raise TraceError(
            f"tensor_parallel is {self._width}, but operation {op.id} of {self._trace.name}, "
            f"{op.kind} of layer {self._trace.layers[op.layer]!r}, {reason}: expected blocks of "
            f"linear layers and attention; take 1, and share the step in another way"
        )

    def share(self) -> Trace:
        """Return the step with split tensors divided."""
        width = self._width
        origin = marked(self._trace, "tensor_parallel", str(width))
        copies = {one for one, root in self._weights.items() if root in self._split}
        divided = self._split | copies
        if not divided:
            raise TraceError(
                f"tensor_parallel is {width}, but {self._trace.name} has no linear layer in a "
                f"numbered block, such as layers.3: take 1, and share the step in another way"
            )
        tensors = [
            replace(one, nbytes=-(-one.nbytes // width)) if one.id in divided else one
            for one in self._trace.tensors
        ]
        groups = []
        for op in self._trace.ops:
            sums = [tensors[number] for number in self._sums.get(op.id, ())]
            reduced = [
                derived(
                    op, "all_reduce", {one.id: one.nbytes}, {one.id: one.nbytes},
                    dtype=format_of(one, op),
                )
                for one in sums
            ]  # fmt: skip
            groups.append([*reduced, self._divide(op, divided)])
        origin |= {"tensor_parallel": width, "gpus": width}
        return rebuilt(self._trace, groups, tensors, origin)

    def _divide(self, op: Op, divided: set[int]) -> Op:
        if divided.isdisjoint(op.reads + op.writes):
            return op
        read, written = (
            tuple(
                -(-nbytes // self._width) if one in divided else nbytes
                for one, nbytes in zip(ids, sizes, strict=True)
            )
            for ids, sizes in ((op.reads, op.read_bytes), (op.writes, op.write_bytes))
        )
        return replace(
            op,
            read_bytes=read,
            write_bytes=written,
            flops=-(-op.flops // self._width),
            geometry=op.geometry and self._shapes(op.geometry, self._sides.get(op.id, "")),
        )

    def _shapes(self, shapes: Geometry, side: str) -> Geometry:
        """Return the shapes with one dimension divided: one of g, m, k and n, or heads."""
        every = [*shapes.operands, shapes.result]
        names = [*["gmn"] * (len(every) - 3), "gmk", "gkn", "gmn"]
        axes = [name[-len(shape) :] for name, shape in zip(names, every, strict=True)]
        if side == "h":  # samples, heads, rows, columns; a bias may have no samples
            pairs = shapes.result[:2]
            axes = ["bhmn" if one[:2] == pairs else "bhmn"[-len(one) :] for one in every]
        *operands, result = (
            tuple(
                self._divided(size, f"{side} of {shape}")
                if name == side and (size > 1 or side != "h")  # a bias may be that of all heads
                else size
                for name, size in zip(some, shape, strict=False)
            )
            for some, shape in zip(axes, every, strict=True)
        )
        return replace(shapes, operands=tuple(operands), result=result)

    def _divided(self, number: int, title: str) -> int:
        if number % self._width:
            raise TraceError(
                f"tensor_parallel is {self._width}, which does not divide {number} ({title}) of "
                f"{self._trace.name}: expected a divisor of its heads and widths"
            )
        return number // self._width
