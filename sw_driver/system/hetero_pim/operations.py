"""Operations of a training step by TensorFlow's names, and the devices that can run them.

A convolution's gradients and batch normalisation are kernels of a core that have the pools do their
sums and products. A transposed convolution is the same as another convolution's gradient, and so
are its gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from sw_driver.predict.pim.core import kernel_cycles
from sw_driver.workload.products import has_products
from sw_driver.workload.trace import Op

__all__ = ["core_kernels", "cycles_of", "on_pools", "operation_name", "plain_kind"]


_TRANSPOSED = {"Conv2D": "Conv2DBackpropInput", "Conv2DBackpropInput": "Conv2D"}
_KINDS = {
    "convolution": ("Conv2D", "add_up"),
    "convolution_backward_filter": ("Conv2DBackpropFilter", "add_up"),
    "convolution_backward_input": ("Conv2DBackpropInput", "add_up"),
    "convolution_backward_bias": ("BiasAddGrad", "bias_gradient"),
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm"), ("MatMul", "add_up")),
    "relu": ("Relu", "relu"),
    "threshold_backward": ("ReluGrad", "relu_gradient"),
    "leaky_relu": ("LeakyRelu", "relu"),
    "leaky_relu_backward": ("LeakyReluGrad", "relu_gradient"),
    "max_pool2d_with_indices": ("MaxPool", "max_pool"),
    "max_pool2d_with_indices_backward": ("MaxPoolGrad", "max_pool_gradient"),
    "avg_pool2d": ("AvgPool", "average_pool"),
    "avg_pool2d_backward": ("AvgPoolGrad", "average_pool_gradient"),
    "native_batch_norm": ("FusedBatchNorm", "moments normalise"),
    "native_batch_norm_backward": ("FusedBatchNormGrad", "normalise_gradient"),
    "adam": ("ApplyAdam", "adam"),
    "sgd": ("ApplyGradientDescent", "sgd"),
    "momentum": ("ApplyMomentum", "sgd"),
    "mul": ("Mul", "elements"),
    "add": ("Add", "elements"),
    "sub": ("Sub", "elements"),
    "div": ("RealDiv", "elements"),
    "sum": ("Sum", "bias_gradient"),
    "mean": ("Mean", "bias_gradient"),
    "log": ("Log", "exponential"),
    "cat": ("ConcatV2", "copy"),
    "stack": ("Pack", "copy"),
    "sigmoid": ("Sigmoid", "exponential"),
    "sigmoid_backward": ("SigmoidGrad", "elements"),
    "tanh": ("Tanh", "exponential"),
    "tanh_backward": ("TanhGrad", "elements"),
    "_log_softmax": ("LogSoftmax", "softmax_cross_entropy"),
    "_log_softmax_backward_data": ("", "exponential"),
    "binary_cross_entropy_with_logits": ("", "exponential"),
    "nll_loss_backward": ("", "fill"),
    "embedding": ("Gather", "copy"),
    "embedding_dense_backward": ("UnsortedSegmentSum", "fill"),
    "bernoulli": ("RandomUniform", "dropout"),
    "native_dropout": ("", "dropout"),
    "full_like": ("Fill", "fill"),
    "ones_like": ("OnesLike", "fill"),
}
"""TensorFlow's name and a core's kernels, by plain kind."""
_WHOLE = ("add", "mul", "sub", "sum", "sgd", "mm", "addmm", "bmm", "baddbmm")
_CONVOLUTIONS = ("Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput", "BiasAddGrad")
_BATCH_NORM = ("native_batch_norm", "native_batch_norm_backward")

_SIZES = 4
"""Dimensions of a batch of images: samples, channels, height, width."""
_COUNTER_BYTES = 8
"""Bytes of a step counter or another single number: no work for a pool."""


def plain_kind(op: Op) -> str:
    """Return the operation's kind without the suffix of in-place ones (``relu_``)."""
    return op.kind.removesuffix("_")


def operation_name(op: Op) -> str:
    """Return TensorFlow's name as in Table I of the paper, or else the operation's kind."""
    kind = plain_kind(op)
    name = _KINDS.get(kind, ("",))[0] or kind
    return _TRANSPOSED.get(name, name) if op.geometry and op.geometry.transposed else name


def core_kernels(op: Op) -> list[str]:
    """Return the kernels that do the operation on a core.

    Unknown kinds go element by element. There are none for a product without a known geometry.
    """
    if op.geometry is None and has_products(plain_kind(op)):
        return []
    return _KINDS.get(plain_kind(op), ("", "elements"))[1].split()


def on_pools(op: Op) -> str:
    """Return how the pools do the operation: ``whole``, in ``part`` from a core, or ``no``.

    Whole operations have only additions and multiplications of FP32: a product, a sum, an update
    rule without a root. Convolutions must be 2-D, with one stride for rows and columns.
    """
    kind, name = plain_kind(op), operation_name(op)
    if max((*op.read_bytes, *op.write_bytes), default=0) <= _COUNTER_BYTES:
        return "no"
    if name in _CONVOLUTIONS and op.geometry is not None:
        steps = (op.geometry.stride, op.geometry.dilation)
        if len(op.geometry.operands[0]) != _SIZES or any(len(set(step)) > 1 for step in steps):
            return "no"
        return "whole" if name in ("Conv2D", "BiasAddGrad") else "part"
    if kind in _BATCH_NORM:
        return "part"
    return "whole" if kind in _WHOLE else "no"


_READ_CYCLES = 40
"""Cycles of a core's read of the stack's memory, as in the model's calibration."""
_LINE_ELEMENTS, _MISS_CYCLES = 8, 15 + _READ_CYCLES
_LONG = 6000
"""Largest number of elements for the model; longer kernels are extrapolated from half of it."""
_PLACES = [(place << 20) + 832 * place for place in range(1, 9)]
"""Addresses of tensors that do not evict each other from the cache."""
_A, _B, _C, _D, *_REST = _PLACES

_MEASURED = {"add_up": (16, 0), "elements": (20, 2), "exponential": (251, 1)}
"""Cycles of an element, and tensors that it reads, for kernels that the firmware lacks.

On RTL, with kernels in C beside the firmware's, a multiplication with its addition takes 15.3
cycles, four sums at a time (19.2 one by one). Lines that a blocked product misses add some 0.9. A
sum of two tensors takes 20.0. An exponential takes 210, without its addition and division.
"""

_SAMPLES: dict[str, Callable[[int, int], tuple[Any, ...]]] = {
    "relu": lambda n, _: (_A, _B, n),
    "relu_gradient": lambda n, _: (_A, _B, _C, n),
    "fill": lambda n, _: (_A, n, 0),
    "copy": lambda n, _: (_A, _B, 1, 1, 1, n, 0, 0, 0, 1, 0, 0, 0, 1),
    "dropout": lambda n, _: (_A, _B, n, 1, 1, 0, 1 << 31, 2.0),
    "bias_gradient": lambda n, _: (_A, _B, 1, 1, n),
    "moments": lambda n, _: (_A, _B, _C, 1e-5, 1, 1, n),
    "normalise": lambda n, _: (_A, _B, _C, _D, *_REST[:2], 1, 1, n),
    "normalise_gradient": lambda n, _: (*_PLACES, 1, 1, n),
    "softmax_cross_entropy": lambda n, _: (_A, _B, _C, _D, 1, n, n, 1, 1.0),
    "sgd": lambda n, _: (_A, _B, n, 0.0, 0.1),
    "adam": lambda n, _: (_A, _B, _C, _D, n, *[0.1] * 9),
    "max_pool": lambda n, w: (_A, _B, *_windows(n, w)),
    "max_pool_gradient": lambda n, w: (_A, _B, _C, *_windows(n, w)),
    "average_pool": lambda n, w: (_A, _B, *_windows(n, w)),
    "average_pool_gradient": lambda n, w: (_A, _B, *_windows(n, w)),
}
"""Arguments of a kernel for a number of elements, in square windows of a given size."""


def _windows(elements: int, size: int) -> tuple[int, ...]:
    """Return the arguments for one row of adjacent windows."""
    columns = max(1, elements // (size * size))
    return 1, size, columns * size, 1, columns, size, size, size, 0, 0


@lru_cache(maxsize=1 << 12)
def cycles_of(kernel: str, elements: int, window: int = 1) -> float:
    """Return the cycles of a kernel, of the firmware or another one, over ``elements`` elements."""
    if kernel in _MEASURED:
        cycles, read = _MEASURED[kernel]
        return elements * (cycles + read / _LINE_ELEMENTS * _MISS_CYCLES)
    if elements > _LONG:
        half, long = (cycles_of(kernel, length, window) for length in (_LONG // 2, _LONG))
        return long + (elements - _LONG) * (long - half) / (_LONG // 2)
    return kernel_cycles(kernel, _SAMPLES[kernel](elements, window), read_cycles=_READ_CYCLES)
