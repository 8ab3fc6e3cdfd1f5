"""Figures that summarize a trace."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate, pairwise
from typing import Any

from .trace import KINDS, PHASES, Op, Tensor, Trace, TraceError

__all__ = ["alive_bytes", "described", "parameters_of", "peak_bytes", "summary", "trained_units"]

_LIMITS = (1, 4, 16, 64)
_LIFETIMES = ("1", "2 to 4", "5 to 16", "17 to 64", "65 or more", "outlives the step")
"""Classes of lifetimes, in stages: up to each of the limits, and beyond."""


def alive_bytes(trace: Trace, *kinds: str, place: str = "gpu") -> list[int]:
    """Return the bytes allocated during each operation, and, as the last, after all of them.

    Only tensors of ``kinds`` in a place count, or all tensors there if no kind is given.
    """
    changes = [0] * (len(trace.ops) + 1)
    for tensor in trace.tensors:
        if tensor.place == place and (not kinds or tensor.kind in kinds):
            changes[tensor.allocated] += tensor.nbytes
            if tensor.freed is not None:
                changes[tensor.freed] -= tensor.nbytes
    return list(accumulate(changes))


def peak_bytes(trace: Trace, *kinds: str, place: str = "gpu") -> int:
    """Return the peak of the bytes that :func:`alive_bytes` counts."""
    return max(alive_bytes(trace, *kinds, place=place))


def parameters_of(trace: Trace) -> int:
    """Return the number of a model's parameters, from the origin if a GPU has a share of them."""
    if "parameters" in trace.origin:
        return int(trace.origin["parameters"])
    return sum(tensor.elements for tensor in trace.tensors if tensor.kind == "parameter")


def trained_units(trace: Trace) -> tuple[int, str]:
    """Return the tokens that all GPUs of a step train on, or its samples, with the word for them.

    A network's origin has the tokens of a sample as ``context``, a function's as ``seq``. Without a
    batch in the origin the result is one step.
    """
    origin = trace.origin
    if type(batch := origin.get("batch")) is not int:
        return 1, "steps"
    micro, gpus, width = (int(origin.get(n, 1)) for n in ("accumulate", "gpus", "tensor_parallel"))
    samples = batch * micro * gpus // width
    if type(tokens := origin.get("context", origin.get("seq"))) is int:
        return samples * tokens, "tokens"
    return samples, "samples"


def described(trace: Trace) -> dict[str, Any]:
    """Return the facts that identify a step, ready for JSON."""
    return {
        "name": trace.name,
        "origin": dict(trace.origin),
        "steps": trace.steps,
        "layers": sum(stage.phase == "forward" for stage in trace.stages),
        "parameters": parameters_of(trace),
        "operations": len(trace.ops),
    }


def summary(trace: Trace, cost_ns: Callable[[Op], int]) -> dict[str, Any]:
    """Return the figures of a step. ``cost_ns`` ranks operations as expensive.

    A tensor lives in each stage that runs between its allocation and its release; a stage that runs
    again counts again. Raises :class:`~sw_driver.workload.trace.TraceError` for an empty trace.
    """
    if not trace.ops:
        raise TraceError(f"{trace.name} has no operation: capture it again")
    alive = alive_bytes(trace)
    peak = max(trace.ops, key=lambda op: alive[op.id])
    costs = [cost_ns(op) for op in trace.ops]
    expensive = sorted(trace.ops, key=lambda op: costs[op.id], reverse=True)[:10]
    of_stage: list[list[Op]] = [[] for _ in trace.stages]
    for op in trace.ops:
        of_stage[op.stage].append(op)
    begun = [*accumulate((a.stage != b.stage for a, b in pairwise(trace.ops)), initial=0)]
    classes: dict[str, list[Tensor]] = {name: [] for name in _LIFETIMES}
    for tensor in trace.tensors:
        name = _LIFETIMES[-1]
        if tensor.freed is not None:
            stages = begun[max(tensor.freed - 1, tensor.allocated)] - begun[tensor.allocated] + 1
            name = _LIFETIMES[bisect_left(_LIMITS, stages)]
        classes[name].append(tensor)
    return {
        "peak": {**_place(trace, peak), "nbytes": alive[peak.id]},
        "stages": [
            {"stage": stage.name, "phase": stage.phase, **_sums(ops)}
            for stage, ops in zip(trace.stages, of_stage, strict=True)
        ],
        "phases": [
            {"phase": phase, **_sums(op for op in trace.ops if op.phase == phase)}
            for phase in PHASES
        ],
        "kinds": [
            {
                "kind": kind,
                **_share(trace, [tensor for tensor in trace.tensors if tensor.kind == kind]),
                "most_nbytes": peak_bytes(trace, kind),
                "peak_nbytes": alive_bytes(trace, kind)[peak.id],
            }
            for kind in KINDS
        ],
        "lifetimes": [{"stages": name, **_share(trace, own)} for name, own in classes.items()],
        "expensive": [
            {
                **_place(trace, op),
                "flops": op.flops,
                "nbytes": op.nbytes,
                "share": costs[op.id] / sum(costs),
            }
            for op in expensive
        ],
    }


def _place(trace: Trace, op: Op) -> dict[str, Any]:
    layer = trace.layers[op.layer]
    return {"operation": op.id, "kind": op.kind, "layer": layer, "phase": op.phase}


def _sums(ops: Iterable[Op]) -> dict[str, int]:
    counts = [(1, op.flops, op.nbytes) for op in ops]
    operations, flops, nbytes = map(sum, zip((0, 0, 0), *counts, strict=True))
    return {"operations": operations, "flops": flops, "nbytes": nbytes}


def _share(trace: Trace, own: Iterable[Tensor]) -> dict[str, float]:
    sizes = [tensor.nbytes for tensor in own]
    return {
        "tensors": len(sizes),
        "share": len(sizes) / len(trace.tensors),
        "nbytes": sum(sizes),
        "byte_share": sum(sizes) / sum(tensor.nbytes for tensor in trace.tensors),
    }
