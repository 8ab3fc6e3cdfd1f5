"""A training step as data: tensors, operations in program order, and the layers they belong to."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any

from sw_driver.files import write_whole
from sw_driver.numbers import check_fields, check_integer

__all__ = ["KINDS", "PHASES", "Op", "Tensor", "Trace", "TraceError", "load_trace", "trace_names"]

KINDS = ("parameter", "gradient", "optimizer_state", "activation", "temporary", "input")
"""Kinds of tensors.

An activation is written in the forward pass and used in the backward pass. An input is what else is
there before the step: the batch, and the model's buffers.
"""

PHASES = ("forward", "backward", "update")
"""The parts of a training step, in their order."""


class TraceError(ValueError):
    """A trace that is not one; the message says where."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """A piece of memory: what views share counts once."""

    id: int
    """Index of the tensor in :attr:`Trace.tensors`."""
    nbytes: int
    kind: str
    """Kind of the tensor, one of :data:`KINDS`."""
    name: str = ""
    """Name of a parameter, and of what belongs to it, in the model."""
    parameter: int | None = None
    """The id of the parameter that a gradient or optimizer state belongs to."""
    element_bytes: int = 4
    """Of a parameter, for each of its elements."""

    def __post_init__(self) -> None:
        check_fields(self, "id", "nbytes", error=TraceError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Op:
    """An operation: what it reads and writes, and how much work it is. Times are not in it."""

    id: int
    """Index of the operation in :attr:`Trace.ops`."""
    kind: str
    """The operation's name in the framework, such as ``mm``; for an update, the rule."""
    layer: int
    """Index of the operation's layer in :attr:`Trace.layers`."""
    phase: str
    """Phase of the operation, one of :data:`PHASES`."""
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    flops: int
    nbytes: int
    """Bytes that the operation has to read and write at least: each tensor once each way."""

    def __post_init__(self) -> None:
        check_fields(self, "id", "layer", "flops", "nbytes", error=TraceError)


FORMAT = 1
SHIPPED = Path(__file__).parent / "traces"
SUFFIX = ".json.gz"


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A training step. Raises :class:`TraceError` if ids, kinds, phases or layers do not fit."""

    name: str
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    layers: tuple[str, ...]
    origin: Mapping[str, Any] = field(default_factory=dict)
    """How the trace was made: model, batch, versions."""

    def __post_init__(self) -> None:
        for number, tensor in enumerate(self.tensors):
            owned = tensor.parameter is None or _is_id(tensor.parameter, self.tensors)
            if tensor.id != number or tensor.kind not in KINDS or not owned:
                raise TraceError(f"{self.name}: tensor {number} is {tensor}")
        for number, op in enumerate(self.ops):
            known = all(_is_id(each, self.tensors) for each in op.reads + op.writes)
            fits = known and op.phase in PHASES and op.layer < len(self.layers)
            if op.id != number or not fits:
                raise TraceError(f"{self.name}: operation {number} is {op}")

    @cached_property
    def accesses(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor the ids of the operations that read or write it, in their order."""
        lists: list[list[int]] = [[] for _ in self.tensors]
        for op in self.ops:
            for tensor in dict.fromkeys(op.reads + op.writes):
                lists[tensor].append(op.id)
        return tuple(map(tuple, lists))

    @cached_property
    def dependencies(self) -> tuple[tuple[int, ...], ...]:
        """For each operation the ids of those that it has to wait for.

        The last writer of what it reads or writes, and the readers since of what it writes.
        """
        writer: dict[int, int] = {}
        readers: dict[int, list[int]] = {}
        found = []
        for op in self.ops:
            needed = {writer[each] for each in op.reads + op.writes if each in writer}
            for each in op.writes:
                needed.update(readers.pop(each, ()))
                writer[each] = op.id
            for each in op.reads:
                readers.setdefault(each, []).append(op.id)
            found.append(tuple(sorted(needed - {op.id})))
        return tuple(found)

    def lifetime(self, tensor: int) -> tuple[int, int] | None:
        """The first and the last operation that access it; None if none does.

        What outlives the step, such as a parameter, is there before and after, too. Raises
        :class:`TraceError` if there is no such tensor.
        """
        check_integer("tensor", tensor, 0, len(self.tensors) - 1, TraceError)
        accesses = self.accesses[tensor]
        return (accesses[0], accesses[-1]) if accesses else None

    def save(self, path: Path | str) -> None:
        """Writes a file for :func:`load_trace`, whole or not at all; the same bytes for the same.

        Raises ``OSError`` if it cannot be written.
        """
        packed = BytesIO()
        with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as file:
            file.write(json.dumps(self._columns(), separators=(",", ":")).encode())
        write_whole(Path(path), packed.getvalue())

    def _columns(self) -> dict[str, Any]:
        """A list for each field of the trace. Tensors' numbers are as differences, alike in layers
        that are."""
        kinds = list(dict.fromkeys(op.kind for op in self.ops))
        owners = [-1 if each.parameter is None else each.parameter for each in self.tensors]
        sizes = [each.element_bytes for each in self.tensors]
        return {
            "format": FORMAT,
            "name": self.name,
            "origin": dict(self.origin),
            "layers": self.layers,
            "op_kinds": kinds,
            "tensors": {
                "nbytes": [each.nbytes for each in self.tensors],
                "kind": [KINDS.index(each.kind) for each in self.tensors],
                "name": [each.name for each in self.tensors],
                "parameter": _differences(owners),
                **({"element_bytes": sizes} if set(sizes) - {4} else {}),
            },
            "ops": {
                "kind": [kinds.index(op.kind) for op in self.ops],
                "layer": [op.layer for op in self.ops],
                "phase": [PHASES.index(op.phase) for op in self.ops],
                "reads": [len(op.reads) for op in self.ops],
                "writes": [len(op.writes) for op in self.ops],
                "flops": [op.flops for op in self.ops],
                "nbytes": [op.nbytes for op in self.ops],
            },
            "accessed": _differences([each for op in self.ops for each in op.reads + op.writes]),
        }


def trace_names() -> tuple[str, ...]:
    """The traces that come with the package."""
    return tuple(sorted(path.name.removesuffix(SUFFIX) for path in SHIPPED.glob(f"*{SUFFIX}")))


def load_trace(name_or_path: Path | str) -> Trace:
    """One of :func:`trace_names`, or what :meth:`Trace.save` has written.

    Raises :class:`TraceError` for a name that is neither, and for a file that is damaged; and
    ``OSError`` for one that cannot be read.
    """
    shipped = str(name_or_path) in trace_names()
    path = SHIPPED / f"{name_or_path}{SUFFIX}" if shipped else Path(name_or_path)
    if not path.exists():
        raise TraceError(
            f"no trace {str(name_or_path)!r}: give one of {', '.join(trace_names())}, or a file"
        )
    try:
        content = json.loads(gzip.decompress(path.read_bytes()))
        if content["format"] != FORMAT:
            raise TraceError(f"its format is {content['format']}, and {FORMAT} is known here")
        return _from_columns(content)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TraceError(f"{path} is damaged or no trace: {error}; capture it again") from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise TraceError(f"{path} is no trace: {reason}; capture it again") from error


def _from_columns(content: Mapping[str, Any]) -> Trace:
    of_tensors, of_ops = content["tensors"], content["ops"]
    owners = accumulate(of_tensors["parameter"])
    given = {"element_bytes": [4] * len(of_tensors["nbytes"]), **of_tensors}
    columns = (given[each] for each in ("nbytes", "kind", "name", "element_bytes"))
    tensors = tuple(
        Tensor(
            id=number,
            nbytes=nbytes,
            kind=KINDS[kind],
            name=name,
            parameter=None if owner < 0 else owner,
            element_bytes=element_bytes,
        )
        for number, (owner, nbytes, kind, name, element_bytes) in enumerate(
            zip(owners, *columns, strict=True)
        )
    )
    count = len(content["accessed"])
    if count != (needed := sum(of_ops["reads"]) + sum(of_ops["writes"])):
        raise TraceError(f"its operations access {needed} tensors, and {count} are there")
    accessed = accumulate(content["accessed"])
    fields = ("kind", "layer", "phase", "reads", "writes", "flops", "nbytes")
    ops = tuple(
        Op(
            id=number,
            kind=content["op_kinds"][kind],
            layer=layer,
            phase=PHASES[phase],
            reads=tuple(islice(accessed, reads)),
            writes=tuple(islice(accessed, writes)),
            flops=flops,
            nbytes=nbytes,
        )
        for number, (kind, layer, phase, reads, writes, flops, nbytes) in enumerate(
            zip(*(of_ops[each] for each in fields), strict=True)
        )
    )
    return Trace(
        name=content["name"],
        tensors=tensors,
        ops=ops,
        layers=tuple(content["layers"]),
        origin=content["origin"],
    )


def _is_id(number: Any, numbered: Sequence[Any]) -> bool:
    return type(number) is int and 0 <= number < len(numbered)


def _differences(numbers: Sequence[int]) -> list[int]:
    return [following - number for number, following in pairwise([0, *numbers])]
