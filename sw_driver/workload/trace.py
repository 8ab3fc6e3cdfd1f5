"""Training steps as data: tensors, operations in program order, and what these belong to."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from io import BytesIO
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any

from sw_driver.files import write_whole
from sw_driver.numbers import check_fields, check_integer

__all__ = [
    "KINDS",
    "LASTING",
    "PHASES",
    "Geometry",
    "Op",
    "Stage",
    "Tensor",
    "Trace",
    "TraceError",
    "load_trace",
    "trace_names",
]

KINDS = ("parameter", "gradient", "optimizer_state", "activation", "temporary", "input")
"""Kinds of tensors.

An activation is written in the forward pass and used in the backward pass. An input is what else is
there before the step: the batch, and the model's buffers.
"""

LASTING = ("parameter", "optimizer_state", "input")
"""Kinds of tensors that are there before a step and after it."""

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
    allocated: int = 0
    """The operation before which it gets its memory."""
    freed: int | None = None
    """The operation before which it gives it back; None if it is still there after the step."""

    def __post_init__(self) -> None:
        _check(self, "id", "nbytes", "allocated")
        check_integer("element_bytes", self.element_bytes, error=TraceError)
        if self.freed is not None:
            check_integer("freed", self.freed, self.allocated, error=TraceError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometry:
    """Shapes of a product, and how a convolution goes over them."""

    operands: tuple[tuple[int, ...], ...]
    """Shapes of the tensors that it is given, in their order."""
    result: tuple[int, ...]
    """Shape of what it makes."""
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    transposed: bool = False

    def __post_init__(self) -> None:
        check_fields(self, error=TraceError)
        shapes = [*self.operands, self.result, self.stride, self.padding, self.dilation]
        if not all(type(each) is tuple and all(type(n) is int for n in each) for each in shapes):
            raise TraceError(f"{self} has what is no shape: expected tuples of integers")


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """The operations of a layer in a pass.

    A layer begins with a module whose weights are factors of a product, or whose table is looked
    up, and has what runs until the next begins. A module that is used again is a further layer.
    """

    name: str
    """Name of the module that the layer begins with."""
    phase: str
    """``forward``, or ``backward``, which has the update of the layer's parameters, too."""


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
    stage: int
    """Index of the operation's stage in :attr:`Trace.stages`."""
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    read_bytes: tuple[int, ...]
    """Bytes that the operation has to read at least of each tensor in :attr:`reads`."""
    write_bytes: tuple[int, ...]
    """Bytes that it writes of each tensor in :attr:`writes`."""
    flops: int
    geometry: Geometry | None = None
    """Of a product; else None."""

    def __post_init__(self) -> None:
        _check(self, "id", "layer", "stage", "flops")
        for name in ("read", "write"):
            tensors, sizes = getattr(self, f"{name}s"), getattr(self, f"{name}_bytes")
            if len(sizes) != len(tensors) or any(type(n) is not int or n < 0 for n in sizes):
                raise TraceError(
                    f"{name}_bytes is {sizes!r}: expected an integer of 0 or more for each of "
                    f"{len(tensors)} tensors in {name}s"
                )

    @property
    def nbytes(self) -> int:
        """Bytes that the operation has to read and write at least: each tensor once each way."""
        return sum(self.read_bytes) + sum(self.write_bytes)


FORMAT = 2
SHIPPED = Path(__file__).parent / "traces"
SUFFIX = ".json.gz"


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A training step. Raises :class:`TraceError` if ids, kinds, phases, layers or stages do not
    fit, and for a tensor that is used when it has no memory."""

    name: str
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    layers: tuple[str, ...]
    """Names of the modules that run, and of what runs in none."""
    stages: tuple[Stage, ...]
    """Of a network of n layers n forward ones in their order, and n backward ones in reverse."""
    origin: Mapping[str, Any] = field(default_factory=dict)
    """How the trace was made: model, batch, versions."""
    steps: int = 1
    """How many steps it is of, each of as many operations."""

    def __post_init__(self) -> None:
        check_fields(self, error=TraceError)
        for stage in self.stages:
            if stage.phase not in PHASES[:2]:
                raise TraceError(f"{self.name}: {stage} has a phase that is none of {PHASES[:2]}")
        for number, tensor in enumerate(self.tensors):
            owned = tensor.parameter is None or _is_id(tensor.parameter, self.tensors)
            if tensor.id != number or tensor.kind not in KINDS or not owned:
                raise TraceError(f"{self.name}: tensor {number} is {tensor}")
        for number, op in enumerate(self.ops):
            known = all(_is_id(each, self.tensors) for each in op.reads + op.writes)
            fits = known and op.phase in PHASES
            fits = fits and op.layer < len(self.layers) and op.stage < len(self.stages)
            if op.id != number or not fits:
                raise TraceError(f"{self.name}: operation {number} is {op}")
        for tensor, accesses in zip(self.tensors, self.accesses, strict=True):
            first, last = (accesses[0], accesses[-1]) if accesses else (len(self.ops), -1)
            freed = len(self.ops) if tensor.freed is None else tensor.freed
            if not (tensor.allocated <= first and last < freed <= len(self.ops)):
                raise TraceError(
                    f"{self.name}: {tensor} is used from operation {first} to {last}, of "
                    f"{len(self.ops)}, and has no memory in all of them"
                )

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

    def unrolled(self, steps: int) -> Trace:
        """As many of these steps, one behind the other. Tensors of :data:`LASTING` kinds are the
        same in all, others are new in each.

        Raises :class:`TraceError` for less than one step.
        """
        check_integer("steps", steps, 1, error=TraceError)
        if steps not in self._unrolled:
            self._unrolled[steps] = self._times(steps)
        return self._unrolled[steps]

    @cached_property
    def _unrolled(self) -> dict[int, Trace]:
        """By steps: who tries many policies asks again and again."""
        return {1: self}

    def _times(self, steps: int) -> Trace:
        tensors, ops = list(self.tensors), list(self.ops)
        for first in range(len(self.ops), steps * len(self.ops), len(self.ops)):
            ids = {}
            for tensor in self.tensors:
                ids[tensor.id] = tensor.id
                if tensor.kind not in LASTING:
                    ids[tensor.id] = number = len(tensors)
                    freed = None if tensor.freed is None else tensor.freed + first
                    begin = tensor.allocated + first
                    tensors.append(replace(tensor, id=number, allocated=begin, freed=freed))
            ops += [
                replace(
                    op,
                    id=op.id + first,
                    reads=tuple(map(ids.__getitem__, op.reads)),
                    writes=tuple(map(ids.__getitem__, op.writes)),
                )
                for op in self.ops
            ]
        return replace(self, tensors=tuple(tensors), ops=tuple(ops), steps=steps * self.steps)

    def save(self, path: Path | str) -> None:
        """Writes a file for :func:`load_trace`, whole or not at all; the same bytes for the same.

        Raises ``OSError`` if it cannot be written.
        """
        packed = BytesIO()
        with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as file:
            file.write(json.dumps(self._columns(), separators=(",", ":")).encode())
        write_whole(Path(path), packed.getvalue())

    def _columns(self) -> dict[str, Any]:
        """A list for each field. What counts up is as differences, alike in layers that are; so are
        lifetimes, to the first and last access. Geometries are indices from 1 on, and the bytes of
        an access are there only where they are not the tensor's."""
        kinds = list(dict.fromkeys(op.kind for op in self.ops))
        geometries = list(dict.fromkeys(op.geometry for op in self.ops if op.geometry))
        indices = {None: 0, **{each: number for number, each in enumerate(geometries, 1)}}
        owners = [-1 if each.parameter is None else each.parameter for each in self.tensors]
        sizes = [each.element_bytes for each in self.tensors]
        accessed = [each for op in self.ops for each in op.reads + op.writes]
        moved = [each for op in self.ops for each in op.read_bytes + op.write_bytes]
        parts = [
            number
            for number, (tensor, nbytes) in enumerate(zip(accessed, moved, strict=True))
            if nbytes != self.tensors[tensor].nbytes
        ]
        lives = [_life(each, self.accesses[each.id], len(self.ops)) for each in self.tensors]
        return {
            "format": FORMAT,
            "name": self.name,
            "origin": dict(self.origin),
            "steps": self.steps,
            "layers": self.layers,
            "stages": [(each.name, each.phase) for each in self.stages],
            "op_kinds": kinds,
            "geometries": [asdict(each) for each in geometries],
            "tensors": {
                "nbytes": [each.nbytes for each in self.tensors],
                "kind": [KINDS.index(each.kind) for each in self.tensors],
                "name": [each.name for each in self.tensors],
                "parameter": _differences(owners),
                "allocated": [before for before, _ in lives],
                "freed": [behind for _, behind in lives],
                **({"element_bytes": sizes} if set(sizes) - {4} else {}),
            },
            "ops": {
                "kind": [kinds.index(op.kind) for op in self.ops],
                "layer": _differences([op.layer for op in self.ops]),
                "phase": [PHASES.index(op.phase) for op in self.ops],
                "stage": _differences([op.stage for op in self.ops]),
                "reads": [len(op.reads) for op in self.ops],
                "writes": [len(op.writes) for op in self.ops],
                "flops": [op.flops for op in self.ops],
                "geometry": [indices[op.geometry] for op in self.ops],
            },
            "accessed": _differences(accessed),
            "parts": _differences(parts),
            "part_bytes": [moved[each] for each in parts],
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
        if (found := content["format"]) != FORMAT:
            raise TraceError(f"its format is {found!r}, and {FORMAT} is known here")
        return _from_columns(content)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TraceError(f"{path} is damaged or no trace: {error}; capture it again") from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise TraceError(f"{path} is no trace: {reason}; capture it again") from error


def _from_columns(content: Mapping[str, Any]) -> Trace:
    of_tensors, of_ops = content["tensors"], content["ops"]
    accessed = list(accumulate(content["accessed"]))
    if len(accessed) != (needed := sum(of_ops["reads"]) + sum(of_ops["writes"])):
        raise TraceError(f"its operations access {needed} tensors, and {len(accessed)} are there")
    moved = [of_tensors["nbytes"][each] for each in accessed]
    for part, nbytes in zip(accumulate(content["parts"]), content["part_bytes"], strict=True):
        moved[part] = nbytes
    geometries = [None, *(Geometry(**_tuples(each)) for each in content["geometries"])]
    tensors_of, bytes_of = iter(accessed), iter(moved)
    fields = ("kind", "phase", "reads", "writes", "flops", "geometry")
    ops = tuple(
        Op(
            id=number,
            kind=content["op_kinds"][kind],
            layer=layer,
            phase=PHASES[phase],
            stage=stage,
            reads=tuple(islice(tensors_of, reads)),
            writes=tuple(islice(tensors_of, writes)),
            read_bytes=tuple(islice(bytes_of, reads)),
            write_bytes=tuple(islice(bytes_of, writes)),
            flops=flops,
            geometry=geometries[geometry],
        )
        for number, (layer, stage, kind, phase, reads, writes, flops, geometry) in enumerate(
            zip(
                *(accumulate(of_ops[each]) for each in ("layer", "stage")),
                *(of_ops[each] for each in fields),
                strict=True,
            )
        )
    )
    first, last = {}, {}
    for op in ops:
        for each in op.reads + op.writes:
            first.setdefault(each, op.id)
            last[each] = op.id
    given = {"element_bytes": [4] * len(of_tensors["nbytes"]), **of_tensors}
    fields = ("nbytes", "kind", "name", "element_bytes", "allocated", "freed")
    tensors = tuple(
        Tensor(
            id=number,
            nbytes=nbytes,
            kind=KINDS[kind],
            name=name,
            parameter=None if owner < 0 else owner,
            element_bytes=element_bytes,
            allocated=0 if before < 0 else first.get(number, len(ops)) - before,
            freed=(None, len(ops))[behind] if behind < 0 else last.get(number, -1) + 1 + behind,
        )
        for number, (owner, nbytes, kind, name, element_bytes, before, behind) in enumerate(
            zip(accumulate(of_tensors["parameter"]), *(given[each] for each in fields), strict=True)
        )
    )
    return Trace(
        name=content["name"],
        tensors=tensors,
        ops=ops,
        layers=tuple(content["layers"]),
        stages=tuple(Stage(name=name, phase=phase) for name, phase in content["stages"]),
        origin=dict(content["origin"]),
        steps=content["steps"],
    )


def _life(tensor: Tensor, accesses: Sequence[int], end: int) -> tuple[int, int]:
    """How long before its first access a tensor is allocated, -1 if from the beginning on; and how
    long behind its last it is freed, -1 if with the last operation, -2 if not at all."""
    first, last = (accesses[0], accesses[-1]) if accesses else (end, -1)
    before = first - tensor.allocated if tensor.allocated else -1
    if tensor.freed is None:
        return before, -2
    return before, -1 if tensor.freed == end else tensor.freed - last - 1


def _check(record: Tensor | Op, *names: str) -> None:
    """Checks integers that may be 0, fast if there is nothing to say."""
    if not all(type(n) is int and n >= 0 for n in [getattr(record, each) for each in names]):
        check_fields(record, *names, error=TraceError)


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _tuples(each) for name, each in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _is_id(number: Any, numbered: Sequence[Any]) -> bool:
    return type(number) is int and 0 <= number < len(numbered)


def _differences(numbers: Sequence[int]) -> list[int]:
    return [following - number for number, following in pairwise([0, *numbers])]
