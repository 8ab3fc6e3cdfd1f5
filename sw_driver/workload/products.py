"""Operations of PyTorch by name: which are products, and the work of these from their shapes.

A multiplication with its addition counts as two. Terms added to a product, such as a bias, do not
count; zeros that a convolution pads with do.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from .trace import Geometry

__all__ = [
    "BAGS",
    "GATHERS",
    "GRADIENTS",
    "geometry_of",
    "has_products",
    "product_flops",
]

_FACTORS = {
    "mm": ("self", "mat2"),
    "bmm": ("self", "mat2"),
    "_int_mm": ("self", "mat2"),
    "_scaled_mm": ("self", "mat2"),
    "addmm": ("mat1", "mat2"),
    "_addmm_activation": ("mat1", "mat2"),
    "addbmm": ("batch1", "batch2"),
    "baddbmm": ("batch1", "batch2"),
    "mv": ("self", "vec"),
    "addmv": ("mat", "vec"),
    "dot": ("self", "tensor"),
    "vdot": ("self", "other"),
}
"""Products of two arguments, by name. The sum is over the last dimension of the first argument."""
_CONVOLUTIONS = ("convolution", "_convolution", "convolution_overrideable")
_DISTANCES = ("_cdist_forward", "_cdist_backward", "_euclidean_dist")
_PRODUCTS = frozenset((*_FACTORS, *_CONVOLUTIONS, *_DISTANCES, "addr", "conv_tbc", "_trilinear"))
GRADIENTS = {
    "convolution_backward_input": ("grad_output", "weight"),
    "convolution_backward_filter": ("grad_output", "input"),
    "convolution_backward_bias": ("grad_output",),
}
"""Parts of a convolution's backward pass, and the tensors that each reads."""
BAGS = ("_embedding_bag", "_embedding_bag_forward_only")
"""Kinds of operations that add up rows of a table."""
GATHERS = ("embedding", "index_select", "gather", "index", "take", *BAGS)
"""Kinds of operations that read only as much of their first argument as they return or add up."""
_OF_BAGS = "_embedding_bag_per_sample_weights_backward"

_WORDS = frozenset(
    ("mm", "addmm", "bmm", "hspmm", "sspaddmm", "mv", "matmul", "linear", "attention",
     "transformer", "rnn", "conv", "conv2d", "conv3d", "convolution", "linalg", "c2c", "c2r", "r2c",
     "pdist", "solve", "spsolve", "cholesky", "geqrf", "ormqr")
)  # fmt: skip
_ELEMENTWISE = ("linalg_vector_norm", "linalg__powsum", "linalg_cross", "_linalg_check_errors")


def has_products(kind: str) -> bool:
    """Return whether an operation's name says that it does more than elementwise work."""
    kind = kind.removesuffix("_")
    return kind in _PRODUCTS or not (kind in _ELEMENTWISE or _WORDS.isdisjoint(kind.split("_")))


def geometry_of(
    kind: str, operands: list[Any], result: Any, given: Mapping[str, Any]
) -> Geometry | None:
    """Return the shapes of a product, or None for another operation."""
    if not has_products(kind):
        return None
    steps = ("stride", "padding", "dilation") if "convolution" in kind else ()
    return Geometry(
        operands=tuple(tuple(tensor.shape) for tensor in operands),
        result=tuple(result.shape),
        **{name: tuple(given[name]) for name in steps},
        **({"groups": given["groups"], "transposed": given["transposed"]} if steps else {}),
        causal=bool(given.get("is_causal")),
    )


def product_flops(kind: str, given: Mapping[str, Any], result: Any) -> int | None:
    """Return the additions and multiplications of an operation; None for an unknown kind.

    ``given`` has the arguments by name. Arguments and result are tensors or objects with shapes.
    """
    kind = kind.removesuffix("_")
    if kind in _FACTORS:
        one, other = (given[name].shape for name in _FACTORS[kind])
        return 2 * prod(one) * (other[-1] if len(other) > 1 else 1)
    if kind == "addr":
        return 2 * prod(given["vec1"].shape) * prod(given["vec2"].shape)
    if kind in _CONVOLUTIONS:
        return _convolution_flops(given, result)
    if kind in GRADIENTS:
        output = given["grad_output"]
        biases = kind.endswith("bias")
        return prod(output.shape) if biases else _convolution_flops(given, output)
    if kind == "conv_tbc":
        return 2 * prod(result.shape[:2]) * prod(given["weight"].shape)
    if kind == "_trilinear":
        return 2 * prod(map(max, *(_expanded(number, given) for number in "123")))
    if kind in _DISTANCES:  # a difference, its power and their sum; or one product
        pairs = prod((given["grad"] if kind == "_cdist_backward" else result).shape)
        depth = given["x1"].shape[-1]
        return pairs * (2 * (depth + 2) if kind == "_euclidean_dist" else 3 * depth)
    if kind in (*BAGS, _OF_BAGS):
        elements = prod(given["indices"].shape) * given["weight"].shape[1]
        weighted = kind == _OF_BAGS or given.get("per_sample_weights") is not None
        return elements * (2 if weighted else 1)
    return None


def _convolution_flops(given: Mapping[str, Any], output: Any) -> int:
    """Return the operations of a convolution.

    Each weight meets each place of the smaller side: the output, or the input if transposed.
    A group's weights connect only that group's inputs.
    """
    batch, _, *places = (given["input"] if given["transposed"] else output).shape
    return 2 * batch * prod(places) * prod(given["weight"].shape)


def _expanded(number: str, given: Mapping[str, Any]) -> list[int]:
    """Return the shape of a factor of three, with dimensions of 1 where it is expanded."""
    shape = list(given[f"i{number}"].shape)
    for place in sorted(given[f"expand{number}"]):
        shape.insert(place, 1)
    return shape
