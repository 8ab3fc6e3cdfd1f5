"""Choices of a training run that change its step, and the one order to apply them in."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.numbers import check_fields, check_name

from .accumulation import accumulated
from .adapters import TRAINABLE, frozen
from .fusion import compiled
from .loss import chunked_loss, fused_loss
from .masters import widened, with_masters
from .optimizers import OPTIMIZERS, with_optimizer
from .precision import PRECISIONS, in_precision
from .recomputation import check_policy, checkpointed
from .sharding import SCHEMES, sharded
from .summary import parameters_of
from .tensor_parallelism import tensor_parallel
from .trace import Trace

__all__ = ["Training"]

_NAMES = "the name of a machine says how many GPUs it has, as h100x8"


@dataclass(frozen=True, kw_only=True)
class Training:
    """A way to run a training step; without arguments, that of the capture.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for an unknown value, and for
    choices that do not fit together.

    Examples
    --------
    >>> from sw_driver.workload import load_trace
    >>> training = Training(precision="bf16-mixed", checkpoint="full", shard="zero3", gpus=8)
    >>> training.apply(load_trace("gpt-tiny")).origin["applied"]
    ['precision=bf16-mixed', 'checkpoint=full', 'shard=zero3']
    """

    trainable: str = "all"
    """Parameters that are trained, in a form of :data:`~sw_driver.workload.adapters.TRAINABLE`."""
    precision: str = ""
    """One of :data:`~sw_driver.workload.precision.PRECISIONS`; empty for the captured formats."""
    fused_loss: bool = False
    """True if the cross entropy is one operation in each pass, in the logits' format."""
    loss_chunks: int = 1
    """Chunks of tokens that the output layer and the loss are computed in."""
    checkpoint: str = "none"
    """Policy of :data:`~sw_driver.workload.recomputation.POLICIES`."""
    optimizer: str = ""
    """Optimizer of :data:`~sw_driver.workload.optimizers.OPTIMIZERS`; empty for the captured."""
    in_backward: bool = False
    """True if a parameter is updated once its gradient is complete."""
    has_masters: bool = False
    """True if the GPU has parameters in 16 bits, and the optimizer has those in FP32."""
    tensor_parallel: int = 1
    """GPUs that split every block of layers."""
    compiled: bool = False
    """True if a compiler fuses element-wise operations."""
    shard: str = ""
    """Data parallelism: none, or one of :data:`~sw_driver.workload.sharding.SCHEMES`.

    Empty is ``zero3`` for several replicas, and none for one.
    """
    is_streamed: bool = False
    """True if parameters are gathered unit by unit on one GPU, too."""
    gpus: int = 1
    """All GPUs: those of data parallelism, times ``tensor_parallel``."""
    accumulate: int = 1
    """Micro-batches of a step."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.precision:
            check_name("precision", self.precision, PRECISIONS)
        if self.shard:
            check_name("shard", self.shard, ("none", *SCHEMES))
        if self.optimizer:
            check_name("optimizer", self.optimizer, OPTIMIZERS)
        check_policy(self.checkpoint, InvalidArgumentError)
        if self.trainable.partition(":")[0] not in {form.partition(":")[0] for form in TRAINABLE}:
            raise InvalidArgumentError(
                f"trainable is {self.trainable!r}: expected one of {', '.join(TRAINABLE)}"
            )
        if self.in_backward and self.accumulate > 1:
            raise InvalidArgumentError(
                f"in_backward with accumulate {self.accumulate}: an update in the backward pass "
                f"needs a whole gradient; take accumulate 1, or leave out in_backward"
            )
        if self.in_backward and not self.optimizer:
            raise InvalidArgumentError(
                f"in_backward without an optimizer: expected one of {', '.join(OPTIMIZERS)}"
            )
        if self.gpus % self.tensor_parallel:
            raise InvalidArgumentError(
                f"gpus is {self.gpus}, with tensor_parallel {self.tensor_parallel}: expected a "
                f"multiple of {self.tensor_parallel}; {_NAMES}"
            )
        if (self.scheme == "none") != (self.replicas == 1):
            wanted = (
                f"gpus of {2 * self.tensor_parallel} or more, or shard none"
                if self.replicas == 1
                else f"shard as one of {', '.join(SCHEMES)}, or gpus of {self.tensor_parallel}"
            )
            raise InvalidArgumentError(
                f"shard is {self.shard!r} with {self.gpus} GPUs and tensor_parallel "
                f"{self.tensor_parallel}: expected {wanted}; {_NAMES}"
            )

    @property
    def replicas(self) -> int:
        """GPUs, or groups of them with tensor parallelism, that have batches of their own."""
        return self.gpus // self.tensor_parallel

    @property
    def scheme(self) -> str:
        """Scheme of data parallelism, or none."""
        return self.shard or ("none" if self.replicas == 1 else "zero3")

    def apply(self, trace: Trace) -> Trace:
        """Return one GPU's step of this training.

        Choices are applied in the order of the fields: trained parameters, precision, loss,
        checkpoints, optimizer, masters, tensor parallelism, compiler, data parallelism and
        micro-batches. A choice that is left as it is changes nothing. ``origin["applied"]`` lists
        the others. With several GPUs ``origin["parameters"]`` is the number of the whole model's
        parameters.

        Raises :class:`~sw_driver.workload.trace.TraceError` if one does not fit the step.
        """
        return self.completed(self.begun(trace))

    def begun(self, trace: Trace) -> Trace:
        """Return the step with the first choices of :meth:`apply`: those of :attr:`beginning`."""
        if self.trainable != "all":
            trace = frozen(trace, self.trainable)
        if self.precision:
            trace = in_precision(trace, self.precision)
        if self.fused_loss:
            trace = fused_loss(trace)
        if self.loss_chunks > 1:
            trace = chunked_loss(trace, self.loss_chunks)
        return checkpointed(trace, self.checkpoint)

    @property
    def beginning(self) -> tuple[str, str, bool, int, str]:
        """Choices that are applied first; trainings that share them begin with the same step."""
        return (
            self.trainable, self.precision, self.fused_loss, self.loss_chunks, self.checkpoint,
        )  # fmt: skip

    def completed(self, trace: Trace) -> Trace:
        """Return the step of :meth:`begun` with all other choices."""
        if self.optimizer:
            trace = with_optimizer(trace, self.optimizer, in_backward=self.in_backward)
        if self.has_masters:
            made = with_masters(trace)
            trace = widened(trace) if made is trace else made
        if self.gpus > 1:
            origin = {**trace.origin, "parameters": parameters_of(trace)}
            trace = replace(trace, origin=origin)
        trace = tensor_parallel(trace, self.tensor_parallel)
        if self.compiled:
            trace = compiled(trace)
        if self.scheme != "none":
            trace = sharded(trace, self.scheme, self.replicas)
        elif self.is_streamed:
            trace = sharded(trace, "zero3", 1, is_streamed=True)
        return accumulated(trace, self.accumulate)
