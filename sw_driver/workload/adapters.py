"""Traces with few trainable parameters: frozen weights with adapters of low rank (LoRA).

A linear layer of n outputs and k inputs gets ``A`` of r by k and ``B`` of n by r, as in PEFT,
without dropout. It adds ``scale * (x A^T) B^T`` to its result. All other parameters are frozen:
they have no gradient, update or state. What only they needed is not computed in the backward pass,
and not kept for it.
"""

from __future__ import annotations

from dataclasses import replace

from sw_driver.numbers import check_integer

from .edits import derived, marked, rebuilt
from .loss import output_product
from .trace import LASTING, Geometry, Op, Tensor, Trace, TraceError

__all__ = ["ADAPTERS", "TRAINABLE", "UNPACKED", "frozen"]

TRAINABLE = ("all", "lora:RANK", "qlora:RANK", "lora:RANK:NAME,NAME", "qlora:RANK:NAME,NAME")
"""Forms of the trainable parameters; NAME is a part of a module's name, such as ``q_proj``."""

ADAPTERS = ("lora_A.weight", "lora_B.weight")
"""Ends of the names of an adapter's two matrices, in the order of their products."""
UNPACKED = "dequantize"
"""Kind of the operations that unpack weights."""
_LINEAR = ("mm", "addmm")
_FP32_BYTES = 4
_BLOCK, _BLOCKS = 64, 256
"""Weights in 4 bits that share a scale of 8 bits, and scales that share one in FP32. Given: QLoRA
(Dettmers et al. 2023), NF4 with double quantization, 4.127 bits a weight."""


def frozen(trace: Trace, trainable: str, *, base_bits: int | None = None) -> Trace:
    """Return the step of a model of which only adapters are trained.

    ``trainable`` has a form of :data:`TRAINABLE`. ``all`` is the step as it is. Without names
    every linear layer gets an adapter, except the output layer and layers whose weight is used
    twice. The frozen weights of these layers may have 8 bits, with a scale in FP32 for each row, or
    4 bits: ``base_bits``, 4 for ``qlora``. They are unpacked before each product that reads them.
    Other frozen parameters have 16 bits if the precision applied later computes in 16 bits.

    Apply it before all else, since casts, repeated operations and updates follow what is trained.

    Raises :class:`~sw_driver.workload.trace.TraceError` for another form, for names that no linear
    layer has, and after any other transformation.
    """
    method, *fields = trainable.split(":")
    names = fields[1].split(",") if len(fields) > 1 else []
    if (
        "" in names
        or method not in ("all", "lora", "qlora")
        or len(fields) not in ((1, 2), (0,))[method == "all"]
    ):
        raise TraceError(f"trainable is {trainable!r}: expected one of {', '.join(TRAINABLE)}")
    bits = 4 if method == "qlora" and base_bits is None else base_bits
    if bits not in (None, 4, 8) or (bits and method == "all"):
        raise TraceError(
            f"base_bits is {bits!r} with trainable {trainable!r}: expected 4 or 8 with frozen "
            f"weights, or none for the format of the precision"
        )
    described = f"{trainable}, weights of {base_bits} bits" if base_bits else trainable
    origin = marked(trace, "trainable", described, ())
    if method == "all":
        return trace
    number = int(fields[0]) if fields[0].isdecimal() else fields[0]
    rank = check_integer("rank", number, error=TraceError)
    linear = _linear_layers(trace)
    output = output_product(trace)
    common = {weight: ops for weight, ops in linear.items() if ops[0] is not output}
    matching = {
        weight: ops
        for weight, ops in (linear if names else common).items()
        if not names or any(name in _module(trace, weight) for name in names)
    }
    if not matching:
        ends = sorted({_module(trace, weight).rpartition(".")[2] for weight in linear})
        action = f"give parts of the names {', '.join(ends)}" if ends else "train all of it"
        raise TraceError(
            f"trainable is {trainable!r}, but no linear layer of {trace.name} matches: {action}"
        )
    adapting = _Adapting(trace, rank)
    for weight, ops in matching.items():
        adapting.adapt(weight, *ops)
    adapting.prune()
    if bits:
        for weight, (product, *_) in common.items():
            adapting.pack(weight, _sides(product)[2], bits)
    return rebuilt(trace, adapting.groups, adapting.tensors, origin)


def _module(trace: Trace, weight: int) -> str:
    return trace.tensors[weight].name.rpartition(".")[0]


def _linear_layers(trace: Trace) -> dict[int, tuple[Op, Op, Op | None]]:
    """Return the products of trained weights that the forward pass uses once, by weight.

    These are the forward product, and in the backward pass those for the gradient of the weight
    and, if there is one, for that of the layer's input.
    """
    layers = {}
    for tensor in trace.tensors:
        if tensor.kind != "gradient" or tensor.parameter is None:
            continue
        weight = tensor.parameter
        products = [trace.ops[use] for use in trace.accesses[weight] if trace.ops[use].geometry]
        forward = [op for op in products if op.phase == "forward"]
        made = trace.ops[trace.accesses[tensor.id][0]]
        if len(forward) != 1 or forward[0].kind not in _LINEAR or forward[0].reads[-1] != weight:
            continue
        if made.geometry and forward[0].reads[-2] in made.reads:
            backward = [op for op in products if op.phase == "backward"]
            layers[weight] = forward[0], made, next(iter(backward), None)
    return layers


def _sides(product: Op) -> tuple[int, int, int]:
    """Return the rows, inputs and outputs of a linear layer."""
    assert product.geometry is not None
    (rows, inputs), (_, outputs) = product.geometry.operands[-2:]
    return rows, inputs, outputs


class _Adapting:
    """A step that becomes one of adapters, as groups of operations in place of its own."""

    def __init__(self, trace: Trace, rank: int) -> None:
        self.trace, self.rank = trace, rank
        self.tensors = list(trace.tensors)
        self.groups = [[op] if op.phase != "update" else [] for op in trace.ops]
        self._wanted = set[int]()  # gradients of adapters

    def adapt(self, weight: int, product: Op, of_weight: Op, of_values: Op | None) -> None:
        """Add an adapter to a linear layer."""
        rows, inputs, outputs = _sides(product)
        rank, values, result = self.rank, product.reads[-2], product.writes[0]
        name = _module(self.trace, weight)
        down = self._parameter(f"{name}.{ADAPTERS[0]}", (rank, inputs), weight)
        up = self._parameter(f"{name}.{ADAPTERS[1]}", (outputs, rank), weight)
        plain, hidden, added, scaled = (
            self._new(rows * width) for width in (outputs, rank, outputs, outputs)
        )
        self.groups[product.id] = [
            replace(product, writes=(plain,)),
            self._product(product, (values, down), hidden, (rows, inputs, rank)),
            self._product(product, (hidden, up), added, (rows, rank, outputs)),
            self._elementwise(product, "mul", (added,), scaled),
            self._elementwise(product, "add", (plain, scaled), result),
        ]
        gradient = next(read for read in of_weight.reads if read != values)
        upper, lower, partial = (self._new(rows * width) for width in (outputs, rank, inputs))
        of_up, of_down = (self._gradient(number) for number in (up, down))
        first = min(of_weight, of_values or of_weight, key=lambda op: op.id)
        self.groups[first.id][:0] = [
            self._elementwise(first, "mul", (gradient,), upper),
            self._product(first, (upper, hidden), of_up, (outputs, rows, rank)),
            self._product(first, (upper, up), lower, (rows, outputs, rank)),
            self._product(first, (lower, values), of_down, (rank, rows, inputs)),
            self._product(first, (lower, down), partial, (rows, rank, inputs)),
        ]
        if of_values is not None:
            group, other = self.groups[of_values.id], self._new(rows * inputs)
            group[-1] = replace(of_values, writes=(other,))
            group.append(self._elementwise(of_values, "add", (partial, other), of_values.writes[0]))

    def prune(self) -> None:
        """Remove operations of the backward pass that no adapter's gradient depends on."""
        needed = set(self._wanted)
        for group in reversed(self.groups):
            for place in reversed(range(len(group))):
                op = group[place]
                if op.phase != "backward":
                    continue
                writes = {
                    tensor: nbytes
                    for tensor, nbytes in zip(op.writes, op.write_bytes, strict=True)
                    if tensor in needed or self.tensors[tensor].kind in LASTING
                }
                if not writes:
                    del group[place]
                    continue
                needed.update(op.reads)
                group[place] = replace(op, writes=tuple(writes), write_bytes=tuple(writes.values()))

    def pack(self, weight: int, rows: int, bits: int) -> None:
        """Store a weight in few bits, and unpack it before each product that reads it."""
        source = self.tensors[weight]
        elements = source.elements
        if bits == 8:
            scales = _FP32_BYTES * rows
        else:
            blocks = -(-elements // _BLOCK)
            scales = blocks + _FP32_BYTES * -(-blocks // _BLOCKS)
        packed = -(-elements * bits // 8)
        self.tensors[weight] = replace(source, nbytes=packed, element_bytes=bits / 8)
        constants = len(self.tensors)
        self.tensors.append(
            Tensor(id=constants, nbytes=scales, kind="input", name=f"{source.name}.scales")
        )
        for group in self.groups:
            for op in [op for op in group if weight in op.reads]:
                place = group.index(op)
                unpacked = self._new(elements)
                reads = {weight: packed, constants: scales}
                whole = {unpacked: self.tensors[unpacked].nbytes}
                ids = tuple(unpacked if read == weight else read for read in op.reads)
                group[place : place + 1] = [
                    derived(op, UNPACKED, reads, whole, elements),
                    replace(op, reads=ids),
                ]

    def _parameter(self, name: str, shape: tuple[int, int], weight: int) -> int:
        """Add a parameter of an adapter, with its gradient, states and update."""
        size = _FP32_BYTES * shape[0] * shape[1]
        source = self.trace.tensors[weight]
        number = len(self.tensors)
        self.tensors.append(replace(source, id=number, name=name, nbytes=size))
        ids = {weight: number}
        update = self.trace.ops[self.trace.accesses[weight][-1]]
        for own in dict.fromkeys(update.reads + update.writes):
            if own != weight:
                ids[own] = len(self.tensors)
                fields = {"id": len(self.tensors), "parameter": number, "freed": None}
                self.tensors.append(
                    replace(self.trace.tensors[own], name=name, nbytes=size, **fields)
                )
        reads, writes = (
            dict.fromkeys((ids[own] for own in accessed), size)
            for accessed in (update.reads, update.writes)
        )
        work = update.flops * size // source.nbytes
        self.groups[update.id].append(derived(update, update.kind, reads, writes, work))
        return number

    def _gradient(self, parameter: int) -> int:
        number = next(
            one.id
            for one in self.tensors[parameter:]
            if one.kind == "gradient" and one.parameter == parameter
        )
        self._wanted.add(number)
        return number

    def _new(self, elements: int) -> int:
        number = len(self.tensors)
        nbytes = _FP32_BYTES * elements
        self.tensors.append(Tensor(id=number, nbytes=nbytes, kind="temporary"))
        return number

    def _elementwise(self, like: Op, kind: str, reads: tuple[int, ...], result: int) -> Op:
        nbytes = self.tensors[result].nbytes
        moved = dict.fromkeys(reads, nbytes)
        return derived(like, kind, moved, {result: nbytes}, nbytes // _FP32_BYTES)

    def _product(
        self, like: Op, factors: tuple[int, int], result: int, sides: tuple[int, int, int]
    ) -> Op:
        """Return the product of two matrices, m by k and k by n."""
        m, k, n = sides
        one, other = factors
        reads = {one: _FP32_BYTES * m * k, other: _FP32_BYTES * k * n}
        shapes = Geometry(operands=((m, k), (k, n)), result=(m, n))
        return derived(like, "mm", reads, {result: _FP32_BYTES * m * n}, 2 * m * k * n, shapes)
