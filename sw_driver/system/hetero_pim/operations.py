"""Operations of a training step by the names that TensorFlow has for them, and what can run them.

A convolution's gradients and batch normalisation are kernels of a core that have the pools do their
sums and products; a transposed convolution is, with its gradients, the same as another's gradient.
"""

from __future__ import annotations

from sw_driver.workload.products import has_products
from sw_driver.workload.trace import Op

__all__ = ["core_kernels", "on_pools", "operation_name", "plain_kind"]

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
"""By plain kind TensorFlow's name, and the kernels of a core that do it."""
_WHOLE = ("add", "mul", "sub", "sum", "sgd", "mm", "addmm", "bmm", "baddbmm")
_CONVOLUTIONS = ("Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput", "BiasAddGrad")
_BATCH_NORM = ("native_batch_norm", "native_batch_norm_backward")

_SIZES = 4
"""Of a batch of images: how many, channels, height, width."""
_COUNTER_BYTES = 8
"""Of what counts the steps, or is a single number: no work for a pool."""


def plain_kind(op: Op) -> str:
    """The operation's kind, whether or not its result is in an operand's place (``relu_``)."""
    return op.kind.removesuffix("_")


def operation_name(op: Op) -> str:
    """TensorFlow's name of the operation as in Table I of the paper, or else its kind."""
    kind = plain_kind(op)
    name = _KINDS.get(kind, ("",))[0] or kind
    return _TRANSPOSED.get(name, name) if op.geometry and op.geometry.transposed else name


def core_kernels(op: Op) -> list[str]:
    """The kernels that do the operation on a core: what is not known goes element by element; and
    none if of a product only the name is known."""
    if op.geometry is None and has_products(plain_kind(op)):
        return []
    return _KINDS.get(plain_kind(op), ("", "elements"))[1].split()


def on_pools(op: Op) -> str:
    """How the pools do the operation: ``whole``; in ``part``, from a kernel on a core; or ``no``.

    What is whole has only additions and multiplications, of FP32: a product, a sum, a rule without
    a root. Of convolutions these are the 2-D ones whose stride is that of rows and columns alike.
    """
    kind, name = plain_kind(op), operation_name(op)
    if max((*op.read_bytes, *op.write_bytes), default=0) <= _COUNTER_BYTES:
        return "no"
    if name in _CONVOLUTIONS and op.geometry is not None:
        steps = (op.geometry.stride, op.geometry.dilation)
        if len(op.geometry.operands[0]) != _SIZES or any(len(set(each)) > 1 for each in steps):
            return "no"
        return "whole" if name in ("Conv2D", "BiasAddGrad") else "part"
    if kind in _BATCH_NORM:
        return "part"
    return "whole" if kind in _WHOLE else "no"
