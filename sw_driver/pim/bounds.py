"""Checks that the package's kernels stay within their tensors (``docs/pim-kernels.md``)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from sw_driver.device.errors import InvalidArgumentError, RangeError
from sw_driver.numbers import check_integer

from .descriptor import ELEMENT_BYTES
from .placing import PlacedTensor

__all__ = ["SIGNATURES", "check_bounds"]

_COPY = (
    "x:n0@s0,n1@s1,n2@s2,n3@s3 y:n0@t0,n1@t1,n2@t2,n3@t3 n0 n1 n2 n3 "
    "~s0 ~s1 ~s2 ~s3 ~t0 ~t1 ~t2 ~t3"
)
_FILL = "x:count count .bits"
_BIAS = "x:outer*channels*inner b:channels y:outer*channels*inner outer channels inner"
_RELU = "x:count y:count count"
_SHAPE = "planes height width rows columns window_height window_width stride pad_top pad_left"
_IN, _OUT = "planes*height*width", "planes*rows*columns"
_ALL = "outer*channels*inner"
_SIZES = "outer channels inner"

SIGNATURES = {
    "relu": _RELU,
    "relu_gradient": "y:count dy:count dx:count count",
    "fill": _FILL,
    "copy": _COPY,
    "bias": _BIAS,
    "bias_gradient": f"dy:{_ALL} db:channels {_SIZES}",
    "moments": f"x:{_ALL} mean:channels inverse:channels .eps {_SIZES}",
    "normalise": f"x:{_ALL} mean:channels inverse:channels gamma:channels beta:channels "
    f"y:{_ALL} {_SIZES}",
    "normalise_gradient": f"x:{_ALL} dy:{_ALL} mean:channels inverse:channels gamma:channels "
    f"dx:{_ALL} dgamma:channels dbeta:channels {_SIZES}",
    "max_pool": f"x:{_IN} y:{_OUT} {_SHAPE}",
    "max_pool_gradient": f"x:{_IN} dy:{_OUT} dx:{_IN} {_SHAPE}",
    "average_pool": f"x:{_IN} y:{_OUT} {_SHAPE}",
    "average_pool_gradient": f"dy:{_OUT} dx:{_IN} {_SHAPE}",
    "softmax_cross_entropy": "x:samples@s0,classes@s1 labels:samples losses:samples "
    "dx:samples@s0,classes@s1 samples classes ~s0 ~s1 .scale",
    "dropout": "x:count y:count count .key0 .key1 .offset .threshold .scale",
    "sgd": "p:count g:count count .lam .lr",
    "adam": "p:count g:count m:count v:count count"
    " .lam .beta1 .1-beta1 .beta2 .1-beta2 .inv_bc1 .inv_bc2 .eps .lr",
    "works": "",
    "compute": "slots:64*count count .offset",
    "conv2d_backprop_filter": f"{_COPY} | {_COPY} | {_COPY}",
    "conv2d_backprop_input": f"{_COPY} | {_FILL} | {_COPY}",
    "matmul_bias_relu": f"{_BIAS} | {_RELU}",
    "program": "commands:2*count count",
    "barrier": "place:8*cores cores",
    "lock": "place:8*cores cores",
    "unlock": "place:8",
}
"""Arguments of the package's kernels, by kernel; slots and work counts come before them.

``name:a,b`` is a tensor with the sizes of its indices. A tensor is dense unless its indices have
strides: ``size@stride``. A bare name is a size, ``~`` marks a stride, and ``.`` any other value.
Names are local to a part between bars. Of each command a program uses at least two words.
"""


def check_bounds(kernel: str, arguments: Sequence[Any], *, called: str = "") -> None:
    """Check that the sizes keep a kernel of the package within its tensors; ignore other kernels.

    ``called`` is the name for messages. With it, arguments that should be tensors have to be.

    Raises
    ------
    InvalidArgumentError: a size is not a number of elements, a tensor is missing, or its address
        is not a multiple of 4 bytes.
    RangeError: the kernel would use elements outside of a tensor.
    """
    parts = [part.split() for part in SIGNATURES.get(kernel, "").split("|")]
    if kernel not in SIGNATURES or sum(map(len, parts)) != len(arguments):
        return
    name = called or kernel
    for number, part in enumerate(parts):
        first = sum(map(len, parts[:number]))
        given = dict(zip(part, arguments[first : first + len(part)], strict=True))
        sizes = {"": 1}
        for token, value in given.items():
            if token[0] == "~":
                stride = check_integer(
                    f"{name}'s stride {token[1:]}", value, -(1 << 31), (1 << 32) - 1
                )
                sizes[token[1:]] = (stride + (1 << 31)) % (1 << 32) - (1 << 31)
            elif token[0] != "." and ":" not in token:
                sizes[token] = check_integer(f"{name}'s {token}", value, 0, (1 << 31) - 1)
        for token, value in given.items():
            if ":" in token:
                _check(name, token, value, sizes, needs_tensor=bool(called))


def _check(
    kernel: str, token: str, tensor: Any, sizes: dict[str, int], *, needs_tensor: bool
) -> None:
    """Raise an error if a kernel would use elements outside of a tensor."""
    name, _, text = token.partition(":")
    indices = [index.partition("@")[::2] for index in text.split(",")]
    factors = [extent.split("*") for extent, _ in indices]
    extents = [prod(int(n) if n.isdigit() else sizes[n] for n in names) for names in factors]
    if not all(extents):
        return
    if not isinstance(tensor, PlacedTensor):
        if needs_tensor:
            raise InvalidArgumentError(
                f"{kernel}'s {name} is {tensor!r}: expected a buffer, or a part of one"
            )
        return
    tensor.check()
    reaches = [
        sizes[stride] * (extent - 1) for (_, stride), extent in zip(indices, extents, strict=True)
    ]
    low = ELEMENT_BYTES * sum(min(0, reach) for reach in reaches)
    high = ELEMENT_BYTES * sum(max(0, reach) for reach in reaches)
    address, span = tensor.address_bytes, tensor.span
    if address % ELEMENT_BYTES:
        raise InvalidArgumentError(
            f"{kernel}'s {name} is at {address:#x}: expected a multiple of {ELEMENT_BYTES}"
        )
    if span.start <= address + low and address + high + ELEMENT_BYTES <= span.stop:
        return
    used = {size for extent, stride in indices for size in [*extent.split("*"), stride]}
    buffer = f" of the buffer {tensor.buffer.name!r}" if tensor.buffer is not None else ""
    values = ", ".join(f"{size} {sizes[size]}" for size in sizes if size in used - {""})
    raise RangeError(
        f"{kernel} uses bytes {low} to {high + ELEMENT_BYTES - 1} of {name}, which has "
        f"{len(span)}{buffer}, from {span.start - address} on (shape {tensor.shape}): give sizes "
        f"that fit, here {values}, or a larger buffer",
        kernel=kernel,
        tensor=name,
        bytes=len(span),
    )
