"""Steps whose operations are taken apart, into those that TensorFlow 1.14 has."""

from __future__ import annotations

from dataclasses import replace

from sw_driver.workload.trace import Op, Tensor, Trace

__all__ = ["taken_apart"]

_RECIPES = {
    "native_batch_norm": """x gamma beta rm rv > rm rv y mean inv;
        Mean x > mean; SquaredDifference x mean > x1; Mean x1 > mean1; Add mean1 > inv;
        Rsqrt inv > inv; Mul inv gamma > mean2; Mul x mean2 > y; Mul mean mean2 > mean3;
        Sub beta mean3 > mean3; Add y mean3 > y; Sub rm mean > mean4; Mul mean4 > mean4;
        AssignSub rm mean4 > rm; Sub rv mean1 > mean5; Mul mean5 > mean5; AssignSub rv mean5 > rv
        """,
    "native_batch_norm_backward": """dy x gamma rm rv mean inv > dx dgamma dbeta;
        Sum dy > dbeta; Mul inv gamma > mean1; Mul dy x > x1; Sum x1 > mean2; Neg dbeta > mean3;
        Mul mean3 mean > mean4; AddN mean2 mean4 > mean2; Mul mean2 inv > dgamma;
        Mul mean2 gamma > mean2; RsqrtGrad inv mean2 > mean2; Mul mean3 mean1 > mean3;
        Tile mean2 > x2; Sub x mean > x3; Mul x2 x3 > x2; Tile mean3 > x4; Mul dy mean1 > dx;
        AddN dx x2 x4 > dx""",
    "convolution": "x w b > y; Conv2D x w > y; BiasAdd y b > y",
    "addmm": "b x w > y; MatMul x w > y; BiasAdd y b > y",
    "leaky_relu": "x > y; Mul x > y; Maximum x y > y",
    "native_dropout": """x > y mask; RandomUniform > x1; GreaterEqual x1 > mask; Mul x > y;
        Cast mask > x2; Mul y x2 > y""",
    "native_dropout_backward": "dy mask > dx; Cast mask > dx1; Mul dy dx1 > dx1; Mul dx1 > dx",
}
"""Of what PyTorch does in one: what is read and written, then the parts. Numbered tensors are
temporaries, as large as what they are named after. An elementwise operation writes over a temporary
that it is the last to read, as TensorFlow's do; updates are one operation there, too. Batch norm is
``tf.nn.moments`` and ``batch_normalization``, which the paper's ResNet-32 calls (its reference 6,
``resnet.py``)."""


def taken_apart(trace: Trace) -> Trace:
    """With batch norm, dropout, biases and leaky ReLU in their parts, each of which reads and
    writes all that it is given. Constants, vectors of shapes, and what TensorFlow keeps for the
    backward pass beyond what PyTorch does are not in it."""
    starts: list[int] = []
    ops: list[Op] = []
    made: list[Tensor] = []
    for op in trace.ops:
        starts.append(len(ops))
        sides, *parts = map(_sides, _RECIPES.get(op.kind, ">").split(";"))
        if [*map(len, sides)] != [len(op.reads), len(op.writes)]:
            ops.append(replace(op, id=len(ops)))
            continue
        names = [*sides[0], *sides[1]]
        accessed = zip(op.reads + op.writes, op.read_bytes + op.write_bytes, strict=True)
        known = dict(zip(names, accessed, strict=True))
        for (kind, *reads), writes in parts:
            for name in [*reads, *writes]:
                if name not in known:
                    known[name] = len(trace.tensors) + len(made), known[name.rstrip("12345")][1]
                    number, nbytes = known[name]
                    made.append(
                        Tensor(id=number, nbytes=nbytes, kind="temporary", allocated=len(ops))
                    )
                if (place := known[name][0] - len(trace.tensors)) >= 0:
                    made[place] = replace(made[place], freed=len(ops) + 1)
            first = len(ops) == starts[-1]
            moved = [known[name][1] for name in [*reads, *writes]]
            ops.append(
                replace(
                    op,
                    id=len(ops),
                    kind=kind,
                    reads=tuple(known[each][0] for each in reads),
                    writes=tuple(known[each][0] for each in writes),
                    read_bytes=tuple(moved[: len(reads)]),
                    write_bytes=tuple(moved[len(reads) :]),
                    flops=op.flops if first else max(moved) // 4,
                    geometry=op.geometry if first else None,
                )
            )
    starts.append(len(ops))
    tensors = (
        replace(
            each,
            allocated=starts[each.allocated],
            freed=None if each.freed is None else starts[each.freed],
        )
        for each in trace.tensors
    )
    return replace(trace, tensors=(*tensors, *made), ops=tuple(ops))


def _sides(line: str) -> tuple[list[str], list[str]]:
    reads, writes = line.split(">")
    return reads.split(), writes.split()
