"""Steps made from other steps: operations replaced one by one, with lifetimes that follow."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from .trace import LASTING, Geometry, Op, Tensor, Trace, TraceError

__all__ = ["derived", "marked", "rebuilt"]

_R = TypeVar("_R", Op, Tensor)


def marked(
    trace: Trace, name: str, value: str, after: Collection[str] | None = None
) -> dict[str, Any]:
    """Return the origin of a step with ``name=value`` added to its ``applied`` transformations.

    Raises :class:`~sw_driver.workload.trace.TraceError` for a transformation that the step has
    already, for several steps in a row, and for a step with another transformation than ``after``
    names; None allows all.
    """
    texts = list(trace.origin.get("applied", ()))
    names = {text.partition("=")[0]: text for text in texts}
    if "recomputed" in trace.origin:
        names.setdefault("checkpoint", "checkpointing")
    others = {} if after is None else {key: names[key] for key in names if key not in after}
    if present := names.get(name) or next(iter(others.values()), None):
        earlier = f"after {' and '.join(after)} at most" if after else "before any other change"
        expected = "at most once" if name in names or after is None else earlier
        raise TraceError(
            f"{name} is {value!r}, but {trace.name} has {present} already: {name} is applied "
            f"{expected}; begin with the step as captured"
        )
    if trace.steps != 1:
        raise TraceError(
            f"{name} is {value!r}, but {trace.name} has {trace.steps} steps: expected one; change "
            f"the step first, then repeat it"
        )
    return {**trace.origin, "applied": [*texts, f"{name}={value}"]}


def derived(
    op: Op,
    kind: str,
    reads: Mapping[int, int],
    writes: Mapping[int, int],
    flops: int = 0,
    geometry: Geometry | None = None,
    dtype: str = "",
) -> Op:
    """Return an operation of the layer and phase of ``op``, with bytes by tensor."""
    return replace(
        op,
        kind=kind,
        reads=tuple(reads),
        writes=tuple(writes),
        read_bytes=tuple(reads.values()),
        write_bytes=tuple(writes.values()),
        flops=flops,
        geometry=geometry,
        dtype=dtype or op.dtype,
    )


def _with(record: _R, **changes: Any) -> _R:
    """Return a record with valid changes, as ``replace`` does, without its checks.

    A step has many records, and its own checks cover ids and lifetimes.
    """
    made = object.__new__(type(record))
    for name in record.__slots__:
        object.__setattr__(made, name, changes[name] if name in changes else getattr(record, name))
    return made


def rebuilt(
    trace: Trace,
    groups: Sequence[Sequence[Op]],
    tensors: Sequence[Tensor],
    origin: Mapping[str, Any],
    released: Collection[int] = (),
    before: Mapping[int, Sequence[Op]] = MappingProxyType({}),
) -> Trace:
    """Return the step with ``before[n]``, if there are some, and ``groups[n]`` for operation ``n``.

    ``tensors`` are those of the step, which may be changed, and new ones behind them. A new tensor
    lives while it is used, and at least until the old operation ``freed``; a gradient lives to the
    end. An old tensor lives as before, but no longer than it is used if its last use came earlier,
    or if it is in ``released``. Tensors that no operation uses any more are left out, except
    parameters and inputs.
    """
    ops, starts, places, sources = list[Op](), list[int](), list[int](), list[int]()
    for number, group in enumerate([*groups, ()]):
        starts.append(len(ops))
        ops += before.get(number, ())
        places.append(len(ops))
        ops += group
        sources += [number] * (len(ops) - len(sources))
    first, last = dict[int, int](), dict[int, int]()
    for number, op in enumerate(ops):
        for tensor in op.reads + op.writes:
            first.setdefault(tensor, number)
            last[tensor] = number

    def placed(tensor: Tensor) -> Tensor:
        if tensor.kind in LASTING or tensor.id not in first:
            ends = tensor.freed is None
            freed = None if ends else max(starts[tensor.freed or 0], places[tensor.allocated])
            return _with(tensor, allocated=places[tensor.allocated], freed=freed)
        begin, end = first[tensor.id], last[tensor.id]
        kind, freed = tensor.kind, starts[tensor.freed or 0]
        if kind in ("activation", "temporary"):
            both = (ops[begin].phase, ops[end].phase) == ("forward", "backward")
            kind = "activation" if both else "temporary"
        shortened = tensor.id in released
        if tensor.id >= len(trace.tensors):
            freed = len(ops) if kind == "gradient" else freed
        else:
            if sources[begin] != tensor.allocated:
                begin = min(places[tensor.allocated], begin)
            latest = trace.accesses[tensor.id][-1]
            at_once = sources[end] < latest or tensor.freed == latest + 1
            shortened |= kind != "gradient" and at_once
        freed = end + 1 if shortened else max(freed, end + 1)
        return _with(tensor, kind=kind, allocated=begin, freed=freed)

    kept = [
        placed(tensor)
        for tensor in tensors
        if tensor.id in first
        or tensor.kind in ("parameter", "input")
        or (tensor.id < len(trace.tensors) and not trace.accesses[tensor.id])
    ]
    ids = {tensor.id: number for number, tensor in enumerate(kept)}
    if "recomputed" in origin:
        earlier = {*origin["recomputed"]}
        origin = {**origin, "recomputed": [n for n, op in enumerate(ops) if op.id in earlier]}
    return replace(
        trace,
        tensors=tuple(
            _with(
                tensor,
                id=ids[tensor.id],
                parameter=None if tensor.parameter is None else ids[tensor.parameter],
            )
            for tensor in kept
        ),
        ops=tuple(
            _with(
                op,
                id=number,
                reads=tuple(map(ids.__getitem__, op.reads)),
                writes=tuple(map(ids.__getitem__, op.writes)),
            )
            for number, op in enumerate(ops)
        ),
        origin=origin,
    )
