"""Traces in other formats of numbers, as PyTorch's mixed and pure precisions have them.

Mixed precision is ``torch.autocast`` for GPUs around forward pass and loss. Parameters, gradients
and optimizer states stay in FP32. A product reads copies in 16 bits. That of a parameter is made
once a step, others once a layer, and the backward pass uses them again. The kinds of :data:`WIDE`
compute in FP32. Other operations compute in the widest format of their operands. Gradients have the
format of what they are gradients of, so that a parameter's is computed in 16 bits and cast to FP32.
Frozen parameters, which have no gradient, need no master: they are stored in 16 bits.

The scaling of the loss with FP16 reads and writes every gradient once more; it is left out. On a
CPU autocast keeps layer norms and softmax in 16 bits, unlike here.
"""

from __future__ import annotations

from dataclasses import replace

from sw_driver.numbers import check_name

from .adapters import UNPACKED
from .edits import derived, marked, rebuilt
from .products import GATHERS
from .trace import DTYPES, Op, Tensor, Trace, TraceError

__all__ = ["PRECISIONS", "WIDE", "in_precision"]

PRECISIONS = {
    "fp32": ("fp32", "fp32", "fp32"),
    "tf32": ("fp32", "fp32", "tf32"),
    "bf16-mixed": ("fp32", "bf16", "bf16"),
    "fp16-mixed": ("fp32", "fp16", "fp16"),
    "bf16": ("bf16", "bf16", "bf16"),
    "fp16": ("fp16", "fp16", "fp16"),
    "fp8-mixed": ("fp32", "bf16", "fp8"),
}
"""Formats of parameters, of results and of the operands of products, by name."""

WIDE = frozenset(
    ("_softmax", "_log_softmax", "native_layer_norm", "native_group_norm", "nll_loss_forward",
     "nll_loss2d_forward", "mse_loss", "smooth_l1_loss", "huber_loss", "kl_div",
     "binary_cross_entropy", "binary_cross_entropy_with_logits", "sum", "prod", "cumsum",
     "cumprod", "logsumexp", "linalg_vector_norm", "norm", "exp", "expm1", "log", "log10", "log1p",
     "log2", "pow", "reciprocal", "rsqrt", "softplus", "sinh", "cosh", "tan", "acos", "asin",
     "erfinv", "dist", "renorm")
)  # fmt: skip
"""Kinds of operations of the forward pass that autocast runs in FP32 on GPUs.

Given: PyTorch's reference of CUDA operations that autocast to float32, as names below autograd.
"""
_DIRECT = {"fp16": ("_softmax", "_log_softmax", "sum", "prod"), "bf16": ("sum", "prod")}
"""Kinds of :data:`WIDE` that read 16 bits and write FP32 on GPUs, without a cast between.

Given: ``log_softmax`` and ``softmax`` with a dtype, and reductions, in PyTorch's ATen. The backward
operations write the 16 bits, too.
"""
_ALWAYS_WIDE = frozenset(("_log_softmax", "nll_loss_forward", "pow", "rsqrt"))
"""Kinds of operations in FP32 even in pure 16 bits: parts of RMSNorm, and the loss.

Given: PyTorch's ``rms_norm`` computes in FP32; the codes of Llama, in Transformers and torchtune,
cast logits to FP32.
"""
_TABLES = ("embedding_dense_backward", "index_put", "index_add")
"""Kinds of operations that write the gradient of a table, in its own format."""
_INTEGERS = {
    "native_dropout": (1,), "max_pool2d_with_indices": (1,), "max_pool3d_with_indices": (1,),
    "max": (1,), "min": (1,), "sort": (1,), "topk": (1,), "kthvalue": (1,), "median": (1,),
    **dict.fromkeys(
        ("arange", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not",
         "logical_xor", "bitwise_and", "bitwise_or", "bitwise_not", "isnan", "isinf", "isfinite",
         "argmax", "argmin", "argsort", "randint", "randperm", "nonzero"),
        (0,),
    ),
}  # fmt: skip
"""Places of results that are no floating-point numbers, by kind of operation."""
_EIGHTS = 16
"""Divisor that the sides of a matrix in FP8 must have, for cuBLAS."""


def in_precision(trace: Trace, precision: str) -> Trace:
    """Return the step captured in FP32 as it would run in a precision of :data:`PRECISIONS`.

    - ``fp32`` is the step as it is; ``tf32`` rounds the operands of products alone.
    - ``bf16-mixed`` and ``fp16-mixed`` are autocast's, as the module says.
    - ``bf16`` and ``fp16`` have everything in that format, as after ``model.bfloat16()``, but for
      the statistics of norms, the inside of RMSNorm, and the loss.
    - ``fp8-mixed`` is ``bf16-mixed``, but linear layers read copies in FP8 and write BF16. Layers
      with a side that 16 does not divide stay in BF16. Scales are those of steps before, so that a
      cast reads its tensor once.

    Tensors of kind ``input`` keep their bytes. Apply it after trainable parameters are chosen: only
    those have a master in FP32. Apply it before all else: chunks of the loss, repeated operations
    and micro-batches repeat its casts, and states follow the parameters' format.

    Raises :class:`~sw_driver.workload.trace.TraceError` for another name, for a step captured in
    other formats, and after any other transformation.
    """
    check_name("precision", precision, PRECISIONS, TraceError)
    origin = marked(trace, "precision", precision, ("trainable",))
    other = next((op.dtype for op in trace.ops if op.dtype != "fp32"), None)
    if other is not None:
        raise TraceError(
            f"precision is {precision!r}, but {trace.name} is captured in {other} already: "
            f"capture it in FP32, without autocast"
        )
    if precision == "fp32":
        return trace
    if precision == "tf32":
        ops = (op if op.geometry is None else replace(op, dtype="tf32") for op in trace.ops)
        return replace(trace, ops=tuple(ops), origin=origin)
    casting = _Casting(trace, *PRECISIONS[precision])
    for op in trace.ops:
        casting.run(op)
    return rebuilt(trace, casting.groups, casting.tensors, origin)


def _differentiated(op: Op) -> str:
    """Return the kind of operation that a backward one differentiates, or nothing."""
    kind = op.kind.removesuffix("_data")
    return kind.removesuffix("_backward") if kind.endswith("_backward") else ""


class _Casting:
    """A pass over a step that gives a format to every tensor, and inserts casts."""

    def __init__(self, trace: Trace, stored: str, computed: str, factors: str) -> None:
        self.stored, self.computed, self.factors = stored, computed, factors
        self.groups: list[list[Op]] = []
        self.tensors = list(trace.tensors)
        self._backward = next((op.id for op in trace.ops if op.phase != "forward"), 0)
        trained = {one.parameter for one in trace.tensors if one.kind == "gradient"}
        operands = {read for op in trace.ops if op.geometry is not None for read in op.reads}
        self._forms: dict[int, str | None] = {}
        self._made: dict[int, str] = {}  # formats of the forward operations that made tensors
        self._later: set[int] = set()  # tensors made in the backward pass
        self._copies: dict[int, dict[tuple[str, int], int]] = {}
        self._narrowed: dict[tuple[str, int], str | None] = {}
        for tensor in trace.tensors:
            if tensor.kind == "input":
                self._forms[tensor.id] = "fp32" if tensor.id in operands else None
            elif tensor.kind == "parameter" and tensor.element_bytes != DTYPES["fp32"]:
                self._forms[tensor.id] = None
            elif tensor.kind not in ("activation", "temporary"):
                frozen = tensor.kind == "parameter" and tensor.id not in trained
                self._set(tensor.id, computed if frozen else stored)

    def run(self, op: Op) -> None:
        """Append the operation in its format, with casts before and after it."""
        self.groups.append([])
        for tensor in op.reads:
            if tensor not in op.writes:
                self._forms.setdefault(tensor, None)  # no operation wrote it
        form = self._form(op)
        eights = self._eights(op)
        reads = {}
        for place, (tensor, nbytes) in enumerate(zip(op.reads, op.read_bytes, strict=True)):
            is_factor = eights and place >= len(op.reads) - 2
            copy = self._operand(op, tensor, "fp8" if is_factor else form)
            reads[copy] = self._scaled(nbytes, self._forms[copy])
        writes, casts = {}, []
        results = [one for one in op.writes if self.tensors[one].kind != "input"]
        for tensor, nbytes in zip(op.writes, op.write_bytes, strict=True):
            place = results.index(tensor) if tensor in results else -1
            wanted = self._result(op, place, tensor, form)
            direct = self._is_direct(op) or self._is_statistic(op, place)
            made = form if wanted and not direct else wanted
            if tensor not in self._forms:
                self._set(tensor, wanted)
                if op.phase == "forward":
                    self._made[tensor] = form
                else:
                    self._later.add(tensor)
            self._copies.pop(tensor, None)
            target = tensor
            if wanted != made and tensor not in op.reads:
                target = self._new(tensor, made)
                casts.append(self._cast(op, target, tensor))
            writes[target] = self._scaled(nbytes, self._forms[target])
            if self._is_wide(op) and op.phase == "forward" and op.reads:
                self._narrowed[op.kind, tensor] = self._forms[op.reads[0]]
        dtype = "fp8" if eights else form
        self.groups[-1].append(
            derived(op, op.kind, reads, writes, op.flops, op.geometry, dtype=dtype)
        )
        self.groups[-1] += casts

    def _form(self, op: Op) -> str:
        """Return the format that an operation computes in."""
        if op.phase == "update":
            return self.stored
        if 0 in _INTEGERS.get(op.kind, ()):
            return "fp32"  # as captured
        if op.geometry is not None or op.kind == UNPACKED:
            return self.computed
        if self._is_wide(op):
            return "fp32"
        if op.kind in _TABLES:
            return self.stored
        read = [self._forms.get(tensor) for tensor in op.reads]
        if op.kind in GATHERS or "batch_norm" in op.kind:
            read = read[:1]
        if op.phase == "backward":
            saved = [self._made[one] for one in op.reads if one in self._made]
            read = saved[:1] or read
        floats = [form for form in read if form]
        return max(floats, key=DTYPES.__getitem__, default=self.computed)

    def _result(self, op: Op, place: int, tensor: int, form: str) -> str | None:
        """Return the format that a result is kept in; None if it is no floating-point number."""
        if tensor in self._forms:
            return self._forms[tensor]
        if place in _INTEGERS.get(op.kind.removesuffix("_"), ()):
            return None
        if self._is_statistic(op, place):
            return "fp32" if op.phase == "forward" else self.stored
        if place == 0 and op.phase == "backward":
            narrowed = [self._narrowed.get((_differentiated(op), read)) for read in op.reads]
            return next((other for other in narrowed if other), form)
        return form

    def _is_wide(self, op: Op) -> bool:
        """Return whether an operation, or that which it differentiates, runs in FP32."""
        kind = op.kind if op.phase == "forward" else _differentiated(op)
        return kind in (_ALWAYS_WIDE if self.stored == self.computed else WIDE)

    def _is_direct(self, op: Op) -> bool:
        """Return whether an operation that computes in FP32 reads or writes 16 bits itself."""
        kind = op.kind if op.phase == "forward" else _differentiated(op)
        mixed = self.stored != self.computed
        return mixed and self._is_wide(op) and kind in _DIRECT.get(self.computed, ())

    @staticmethod
    def _is_statistic(op: Op, place: int) -> bool:
        """Return whether a norm writes a result in FP32 or in the format of its parameters."""
        return place > 0 and "norm" in op.kind

    def _eights(self, op: Op) -> bool:
        if self.factors != "fp8" or op.geometry is None or op.kind not in ("mm", "addmm"):
            return False
        sides = [side for shape in op.geometry.operands[-2:] for side in shape]
        return len(op.reads) > 1 and not any(side % _EIGHTS for side in sides)

    def _operand(self, op: Op, tensor: int, form: str) -> int:
        """Return the tensor, or its copy in a format that the operation needs."""
        own, kind = self._forms.get(tensor), self.tensors[tensor].kind
        if own in (None, form) or tensor in op.writes or op.phase == "update":
            return tensor
        if own == self.computed and op.phase == "forward" and self._is_direct(op):
            return tensor
        copies = self._copies.setdefault(tensor, {})
        key = form, -1 if kind == "parameter" else op.layer
        if key not in copies:
            if not (op.geometry or self._is_wide(op) or tensor in self._later):
                return tensor
            copies[key] = copy = self._new(tensor, form)
            if kind == "parameter" and op.phase == "forward":  # autocast's cache
                self.tensors[copy] = replace(self.tensors[copy], freed=self._backward)
            self.groups[-1].append(self._cast(op, tensor, copy))
        return copies[key]

    def _cast(self, op: Op, source: int, copy: int) -> Op:
        sizes = {number: self.tensors[number].nbytes for number in (source, copy)}
        dtype = self._forms[copy] or ""
        return derived(op, "_to_copy", {source: sizes[source]}, {copy: sizes[copy]}, dtype=dtype)

    def _new(self, like: int, form: str | None) -> int:
        """Add a temporary with the elements of a tensor in another format."""
        source, number = self.tensors[like], len(self.tensors)
        width = DTYPES[self._forms[like] or "fp32"]
        self.tensors.append(
            Tensor(id=number, nbytes=source.nbytes * 4 // width, kind="temporary", name=source.name)
        )
        self._set(number, form)
        return number

    def _set(self, number: int, form: str | None) -> None:
        self._forms[number] = form
        tensor = self.tensors[number]
        if form is not None:
            self.tensors[number] = replace(
                tensor, nbytes=self._scaled(tensor.nbytes, form), element_bytes=DTYPES[form]
            )

    @staticmethod
    def _scaled(nbytes: int, form: str | None) -> int:
        """Return the bytes, given in FP32, in a format."""
        return nbytes if form is None else nbytes * DTYPES[form] // 4
