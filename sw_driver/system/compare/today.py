"""Systems in use today: a GPU and its host as sold, and an update in the drives.

A system is a training (:class:`~sw_driver.workload.training.Training`), a change of places
(:mod:`~sw_driver.workload.offloading`), or both. All run on the same lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from sw_driver.machine import Machine
from sw_driver.workload import Trace
from sw_driver.workload.activation_offloading import AHEAD, activations_offloaded
from sw_driver.workload.offloading import Offload, offloaded, paged
from sw_driver.workload.summary import alive_bytes
from sw_driver.workload.trace import PLACES
from sw_driver.workload.training import Training

from .comparison import capacity_bytes
from .lanes import alone
from .system import Assumption, CannotRunError, Need, Needs, System, formats_of, remembering

__all__ = ["SYSTEMS"]

_RANK = 16
_DRIVE_LINK = ("drive.read_gb_per_s", "drive.write_gb_per_s")
_PURE = {"bf16-mixed": "bf16", "fp16-mixed": "fp16"}


def _system(
    name: str,
    *assumptions: Assumption,
    training: Callable[[Training, Trace], Training] = lambda training, _: training,
    step: Callable[[Trace, int], Trace] = lambda trace, _: trace,
    micro_batches: bool = True,
    hardware: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> System:
    """Return a system; ``step`` gets the step and the GPU's bytes, 0 for as few as possible."""
    step = remembering(step)

    def needs(trace: Trace, _: Machine) -> Needs:
        least = step(trace, 0)
        held = [place for place in PLACES if max(alive_bytes(least, place=place))]
        return {place: Need.of_all(least, place) for place in held}

    return System(
        name=name,
        mark="predicted",
        assumptions=assumptions,
        several_gpus=True,
        micro_batches=micro_batches,
        hardware=hardware,
        training=training,
        needs=needs,
        run=lambda trace, machine: alone(step(trace, capacity_bytes(machine, "gpu")), machine),
    )


def _anywhere(change: Callable[[Trace], Trace]) -> Callable[[Trace, int], Trace]:
    """Return a change of a step that does not depend on the GPU's memory."""
    once = remembering(change)
    return lambda trace, _: once(trace)


def _parallel(scheme: str, training: Training, _: Trace) -> Training:
    if training.replicas == 1:
        raise CannotRunError("data parallelism of several GPUs: give a machine such as h100x8")
    return replace(training, shard=scheme)


def _in_backward(training: Training, captured: Trace) -> Training:
    if training.accumulate > 1:
        raise CannotRunError("an update in the backward pass needs one micro-batch a step")
    rule = training.optimizer or str(captured.origin.get("rule", ""))
    return replace(training, optimizer=rule, in_backward=True)


def _eight_bits(training: Training, captured: Trace) -> Training:
    rule = training.optimizer or str(captured.origin.get("rule", ""))
    if rule not in ("adam", "adamw", "adamw8bit"):
        raise CannotRunError(
            f"an 8-bit optimizer for {rule or 'no rule'}: it is modelled for adam and adamw"
        )
    return replace(training, optimizer=f"{rule.removesuffix('8bit')}8bit")


def _adapters(form: str, training: Training, _: Trace) -> Training:
    if training.trainable != "all":
        raise CannotRunError(f"the step trains {training.trainable} already: see the other rows")
    return replace(training, trainable=f"{form}:{_RANK}")


def _sharded(shard: str, training: Training, _: Trace, *, is_streamed: bool = False) -> Training:
    """Return a training of a scheme on several GPUs, and perhaps streamed on one."""
    if training.replicas == 1:
        return replace(training, is_streamed=is_streamed)
    return replace(training, shard=shard)


def _deepspeed(
    shard: str, training: Training, captured: Trace, *, is_streamed: bool = False
) -> Training:
    """Return a training with all in 16 bits but for masters and states, as in DeepSpeed."""
    precision = _PURE.get(training.precision, training.precision)
    own = replace(training, precision=precision, has_masters=True)
    return _sharded(shard, own, captured, is_streamed=is_streamed)


_MASTERS = (
    "The GPU computes in 16 bits without autocast; the optimizer has parameters and states in "
    "FP32.",
    lambda trace: formats_of(trace) in ("bf16", "fp16"),
)
_LEAVES = (
    "Gradients leave as they are complete, in buckets of 25 MiB. The sum over micro-batches stays "
    "on the GPU."
)
_CORES = (
    "The cores cast gradients to FP32, read them for norm and overflow, scale them, and update; "
    "all at the share of the memory's rate that Adam reaches."
)
_DRIVES = "Drives of a host are one RAID 0; they read or write, one at a time."
_ONE_RANK = f"Adapters of rank {_RANK} are trained instead of all parameters."

SYSTEMS = (
    *(
        _system(name, training=partial(_parallel, scheme))
        for name, scheme in (
            ("DDP", "ddp"),
            ("ZeRO-1", "zero1"),
            ("ZeRO-2", "zero2"),
            ("FSDP (ZeRO-3)", "zero3"),
        )
    ),
    _system("gradient release", training=_in_backward, micro_batches=False),
    _system(
        "8-bit optimizer, paged",
        "States without room are on the host. They come to the GPU for their update at the full "
        "rate of the link.",
        training=_eight_bits,
        step=paged,
    ),
    _system(
        "activation offload",
        f"Activations move to the host until the backward pass; {AHEAD} of them are on their way "
        "each way, at most.",
        step=_anywhere(activations_offloaded),
    ),
    _system("LoRA", _ONE_RANK, training=partial(_adapters, "lora")),
    _system("QLoRA", _ONE_RANK, training=partial(_adapters, "qlora")),
    _system(
        "FSDP, CPU offload",
        "Parameters, in the format in which they are updated, and states are on the host. The "
        "cores update in PyTorch, with all gradients there; no norm is read.",
        _LEAVES,
        training=partial(_sharded, "zero3", is_streamed=True),
        step=_anywhere(partial(offloaded, offload=Offload(parameters="host", is_clipped=False))),
    ),
    *(
        _system(
            name,
            _MASTERS,
            _LEAVES,
            *texts,
            training=partial(_deepspeed, scheme, is_streamed=offload.parameters != "gpu"),
            step=_anywhere(partial(offloaded, offload=offload)),
            hardware={"its drives' rate": ("drive.gb_per_s",), "its link": _DRIVE_LINK}
            if offload.updates == "drive"
            else {},
        )
        for name, scheme, offload, *texts in (
            ("ZeRO-Offload, as run", "zero2", Offload(), _CORES),
            (
                "ZeRO-Offload, delayed update",
                "zero2",
                Offload(is_delayed=True),
                _CORES,
                "Updates run one step late, beside the passes of the next step.",
            ),
            ("ZeRO-3 offload", "zero3", Offload(parameters="host"), _CORES),
            (
                "ZeRO-Infinity",
                "zero3",
                Offload(states="drive", parameters="drive"),
                _CORES,
                _DRIVES,
            ),
            (
                "Smart-Infinity",
                "zero2",
                Offload(states="drive", updates="drive"),
                _CORES,
                _DRIVES,
                "Every drive updates the parameters that it has, at the rate at which it reads.",
            ),
        )
    ),
)
