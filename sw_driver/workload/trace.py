"""Training steps as data: tensors, operations in program order, and their layers and stages."""

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
from sw_driver.numbers import check_fields, check_integer, check_name, check_number

__all__ = [
    "DTYPES",
    "KINDS",
    "LASTING",
    "PHASES",
    "PLACES",
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

An activation is written in the forward pass and used in the backward pass. Inputs are all other
tensors that exist before the step: the batch, and the model's buffers.
"""

LASTING = ("parameter", "optimizer_state", "input")
"""Kinds of tensors that exist before a step and after it."""

PHASES = ("forward", "backward", "update")
"""Phases of a training step, in their order."""

PLACES = ("gpu", "host", "drive")
"""Places of tensors: the GPU's memory, unless a transformation moves them to another."""


DTYPES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
"""Formats of floating-point numbers, with the bytes of an element.

TF32 is FP32 in memory; tensor cores round the operands of a product to ten bits of fraction.
"""


class TraceError(ValueError):
    """Raised for an invalid trace; the message says where."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """A piece of memory; all views of a storage are one tensor."""

    id: int
    """Index of the tensor in :attr:`Trace.tensors`."""
    nbytes: int
    kind: str
    """Kind of the tensor, one of :data:`KINDS`."""
    name: str = ""
    """Name in the model of a parameter, or of the parameter that the tensor belongs to."""
    parameter: int | None = None
    """Id of the parameter that a gradient or optimizer state belongs to."""
    element_bytes: float = 4
    """Bytes of a floating-point element, 0.5 for packed ones of 4 bits; 4 for other elements."""
    allocated: int = 0
    """Id of the operation before which the tensor is allocated."""
    freed: int | None = None
    """Id of the operation before which the tensor is freed; None if it outlives the step."""
    place: str = "gpu"
    """Place of the tensor, one of :data:`PLACES`."""

    def __post_init__(self) -> None:
        _check(self, "id", "nbytes", "allocated")
        if self.place not in PLACES:
            check_name("place", self.place, PLACES, TraceError)
        check_number("element_bytes", self.element_bytes, 1 / 8, 8, TraceError)
        if self.freed is not None:
            check_integer("freed", self.freed, self.allocated, error=TraceError)

    @property
    def elements(self) -> int:
        """Number of elements of :attr:`element_bytes`."""
        return int(self.nbytes / self.element_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometry:
    """Shapes of a product, and the steps of a convolution.

    Examples
    --------
    >>> product = Geometry(operands=((32, 64), (64, 10)), result=(32, 10))
    >>> product.groups, product.transposed
    (1, False)
    """

    operands: tuple[tuple[int, ...], ...]
    """Shapes of the input tensors, in their order."""
    result: tuple[int, ...]
    """Shape of the output."""
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    transposed: bool = False
    causal: bool = False
    """True if attention leaves out what a causal mask hides: about half of the work."""

    def __post_init__(self) -> None:
        check_fields(self, error=TraceError)
        shapes = [*self.operands, self.result, self.stride, self.padding, self.dilation]
        if not all(type(shape) is tuple and all(type(n) is int for n in shape) for shape in shapes):
            raise TraceError(f"{self} has an invalid shape: expected tuples of integers")


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Operations of a layer in one pass.

    A layer begins with a module that has the weights of a product or a table for look-ups, and ends
    where the next begins. A module that runs again is another layer.
    """

    name: str
    """Name of the module at the layer's beginning."""
    phase: str
    """``forward`` or ``backward``; the latter includes the update of the layer's parameters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Op:
    """An operation: its reads, writes and amount of work, without times."""

    id: int
    """Index of the operation in :attr:`Trace.ops`."""
    kind: str
    """Name of the operation in the framework, such as ``mm``; for an update, the rule."""
    layer: int
    """Index of the operation's layer in :attr:`Trace.layers`."""
    phase: str
    """Phase of the operation, one of :data:`PHASES`."""
    stage: int
    """Index of the operation's stage in :attr:`Trace.stages`."""
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    read_bytes: tuple[int, ...]
    """Least bytes that the operation reads of each tensor in :attr:`reads`."""
    write_bytes: tuple[int, ...]
    """Bytes that the operation writes of each tensor in :attr:`writes`."""
    flops: int
    geometry: Geometry | None = None
    """Shapes of a product; None for other operations."""
    dtype: str = "fp32"
    """Format of the operands of a product, else of the results; one of :data:`DTYPES`."""

    def __post_init__(self) -> None:
        _check(self, "id", "layer", "stage", "flops")
        if self.dtype not in DTYPES:
            check_name("dtype", self.dtype, DTYPES, TraceError)
        for name in ("read", "write"):
            tensors, sizes = getattr(self, f"{name}s"), getattr(self, f"{name}_bytes")
            if len(sizes) != len(tensors) or any(type(n) is not int or n < 0 for n in sizes):
                raise TraceError(
                    f"{name}_bytes is {sizes!r}: expected an integer of 0 or more for each of "
                    f"{len(tensors)} tensors in {name}s"
                )

    @property
    def nbytes(self) -> int:
        """Least bytes that the operation reads and writes: each tensor once each way."""
        return sum(self.read_bytes) + sum(self.write_bytes)


FORMAT = 2
_FP32 = list(DTYPES).index("fp32")
SHIPPED = Path(__file__).parent / "traces"
SUFFIX = ".json.gz"


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A training step.

    Raises :class:`TraceError` if ids, kinds, phases, layers or stages do not fit, and for a tensor
    that is used while it is not allocated.

    Examples
    --------
    >>> w = Tensor(id=0, nbytes=64, kind="parameter", name="w")
    >>> y = Tensor(id=1, nbytes=16, kind="activation", name="y", freed=1)
    >>> moved = {"reads": (0,), "writes": (1,), "read_bytes": (64,), "write_bytes": (16,)}
    >>> op = Op(id=0, kind="mm", layer=0, phase="forward", stage=0, flops=128, **moved)
    >>> parts = {"layers": ("line",), "stages": (Stage(name="line", phase="forward"),)}
    >>> Trace(name="mine", tensors=(w, y), ops=(op,), **parts, origin={}).accesses
    ((0,), (0,))
    """

    name: str
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    layers: tuple[str, ...]
    """Names of the modules that run, and a name for operations outside modules."""
    stages: tuple[Stage, ...]
    """Stages: for n layers n forward ones in order, then n backward ones in reverse."""
    origin: Mapping[str, Any] = field(default_factory=dict)
    """Source of the trace: model, batch, versions."""
    steps: int = 1
    """Number of steps in the trace, with equally many operations each."""

    def __post_init__(self) -> None:
        check_fields(self, error=TraceError)
        for stage in self.stages:
            if stage.phase not in PHASES[:2]:
                raise TraceError(f"{self.name}: the phase of {stage} is none of {PHASES[:2]}")
        for number, tensor in enumerate(self.tensors):
            owned = tensor.parameter is None or _is_id(tensor.parameter, self.tensors)
            if tensor.id != number or tensor.kind not in KINDS or not owned:
                raise TraceError(f"{self.name}: tensor {number} is {tensor}")
        for number, op in enumerate(self.ops):
            known = all(_is_id(tensor, self.tensors) for tensor in op.reads + op.writes)
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
                    f"{len(self.ops)}, but is not allocated in all of them"
                )

    @cached_property
    def accesses(self) -> tuple[tuple[int, ...], ...]:
        """Ids of the operations that read or write a tensor, in their order, for each tensor."""
        lists: list[list[int]] = [[] for _ in self.tensors]
        for op in self.ops:
            for tensor in dict.fromkeys(op.reads + op.writes):
                lists[tensor].append(op.id)
        return tuple(map(tuple, lists))

    @cached_property
    def dependencies(self) -> tuple[tuple[int, ...], ...]:
        """Ids of the operations that an operation has to wait for, for each operation.

        These are the last writer of every tensor it reads or writes, and the readers since then of
        every tensor it writes.
        """
        writer: dict[int, int] = {}
        readers: dict[int, list[int]] = {}
        dependencies = []
        for op in self.ops:
            needed = {writer[tensor] for tensor in op.reads + op.writes if tensor in writer}
            for tensor in op.writes:
                needed.update(readers.pop(tensor, ()))
                writer[tensor] = op.id
            for tensor in op.reads:
                readers.setdefault(tensor, []).append(op.id)
            dependencies.append(tuple(sorted(needed - {op.id})))
        return tuple(dependencies)

    def unrolled(self, steps: int) -> Trace:
        """Return ``steps`` repetitions of the trace, one after the other.

        Tensors of :data:`LASTING` kinds are shared by all repetitions, others are new in each.
        Raises :class:`TraceError` for less than one step.
        """
        check_integer("steps", steps, 1, error=TraceError)
        if steps not in self._unrolled:
            self._unrolled[steps] = self._times(steps)
        return self._unrolled[steps]

    @cached_property
    def _unrolled(self) -> dict[int, Trace]:
        """Unrolled traces by number of steps, since experiments with policies ask repeatedly."""
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
        """Write a file for :func:`load_trace`, completely or not at all.

        Equal traces give equal bytes. Raises ``OSError`` if the file cannot be written.
        """
        packed = BytesIO()
        with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as file:
            file.write(json.dumps(self._columns(), separators=(",", ":")).encode())
        write_whole(Path(path), packed.getvalue())

    def _columns(self) -> dict[str, Any]:
        """Return the trace as columns, one list per field.

        Increasing numbers are stored as differences, which are the same in equal layers. For the
        same reason lifetimes are distances to the first and last access. Geometries are indices
        from 1 on; 0 is none. Bytes of an access are stored only if they are not the whole tensor,
        formats only if they are not all FP32, and places only if they are not all the GPU.
        """
        kinds = list(dict.fromkeys(op.kind for op in self.ops))
        dtypes = list(DTYPES)
        geometries = list(dict.fromkeys(op.geometry for op in self.ops if op.geometry))
        indices = {None: 0, **{shapes: number for number, shapes in enumerate(geometries, 1)}}
        owners = [-1 if tensor.parameter is None else tensor.parameter for tensor in self.tensors]
        sizes = [tensor.element_bytes for tensor in self.tensors]
        places = [PLACES.index(tensor.place) for tensor in self.tensors]
        formats = [dtypes.index(op.dtype) for op in self.ops]
        accessed = [tensor for op in self.ops for tensor in op.reads + op.writes]
        moved = [nbytes for op in self.ops for nbytes in op.read_bytes + op.write_bytes]
        parts = [
            number
            for number, (tensor, nbytes) in enumerate(zip(accessed, moved, strict=True))
            if nbytes != self.tensors[tensor].nbytes
        ]
        lives = [_life(one, self.accesses[one.id], len(self.ops)) for one in self.tensors]
        return {
            "format": FORMAT,
            "name": self.name,
            "origin": dict(self.origin),
            "steps": self.steps,
            "layers": self.layers,
            "stages": [(stage.name, stage.phase) for stage in self.stages],
            "op_kinds": kinds,
            "geometries": [_shapes(shapes) for shapes in geometries],
            "tensors": {
                "nbytes": [tensor.nbytes for tensor in self.tensors],
                "kind": [KINDS.index(tensor.kind) for tensor in self.tensors],
                "name": [tensor.name for tensor in self.tensors],
                "parameter": _differences(owners),
                "allocated": [before for before, _ in lives],
                "freed": [behind for _, behind in lives],
                **({"element_bytes": sizes} if set(sizes) - {4} else {}),
                **({"place": places} if any(places) else {}),
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
                **({"dtype": formats} if set(formats) - {_FP32} else {}),
            },
            "accessed": _differences(accessed),
            "parts": _differences(parts),
            "part_bytes": [moved[part] for part in parts],
        }


def trace_names() -> tuple[str, ...]:
    """Return the names of the traces that come with the package."""
    return tuple(sorted(path.name.removesuffix(SUFFIX) for path in SHIPPED.glob(f"*{SUFFIX}")))


def load_trace(name_or_path: Path | str) -> Trace:
    """Return a trace, one of :func:`trace_names` or from a file that :meth:`Trace.save` wrote.

    Raises :class:`TraceError` for another name and for a damaged file, and ``OSError`` for a file
    that cannot be read.
    """
    shipped = str(name_or_path) in trace_names()
    path = SHIPPED / f"{name_or_path}{SUFFIX}" if shipped else Path(name_or_path)
    if not path.exists():
        raise TraceError(
            f"no trace {str(name_or_path)!r}: give one of {', '.join(trace_names())}, or a file"
        )
    try:
        content = json.loads(gzip.decompress(path.read_bytes()))
        if (version := content["format"]) != FORMAT:
            raise TraceError(f"its format is {version!r}: expected {FORMAT}")
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
        raise TraceError(f"its operations access {needed} tensors, but it lists {len(accessed)}")
    moved = [of_tensors["nbytes"][tensor] for tensor in accessed]
    for part, nbytes in zip(accumulate(content["parts"]), content["part_bytes"], strict=True):
        moved[part] = nbytes
    geometries = [None, *(Geometry(**_tuples(shapes)) for shapes in content["geometries"])]
    tensors_of, bytes_of = iter(accessed), iter(moved)
    dtypes = list(DTYPES)
    of_ops = {"dtype": [_FP32] * len(of_ops["kind"]), **of_ops}
    fields = ("kind", "phase", "reads", "writes", "flops", "geometry", "dtype")
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
            dtype=dtypes[dtype],
        )
        for number, (layer, stage, kind, phase, reads, writes, flops, geometry, dtype) in enumerate(
            zip(
                *(accumulate(of_ops[name]) for name in ("layer", "stage")),
                *(of_ops[name] for name in fields),
                strict=True,
            )
        )
    )
    first, last = {}, {}
    for op in ops:
        for tensor in op.reads + op.writes:
            first.setdefault(tensor, op.id)
            last[tensor] = op.id
    count = len(of_tensors["nbytes"])
    given = {"element_bytes": [4] * count, "place": [0] * count, **of_tensors}
    fields = ("nbytes", "kind", "name", "element_bytes", "place", "allocated", "freed")
    tensors = tuple(
        Tensor(
            id=number,
            nbytes=nbytes,
            kind=KINDS[kind],
            name=name,
            parameter=None if owner < 0 else owner,
            element_bytes=element_bytes,
            place=PLACES[place],
            allocated=0 if before < 0 else first.get(number, len(ops)) - before,
            freed=(None, len(ops))[behind] if behind < 0 else last.get(number, -1) + 1 + behind,
        )
        for number, (owner, nbytes, kind, name, element_bytes, place, before, behind) in enumerate(
            zip(accumulate(of_tensors["parameter"]), *(given[key] for key in fields), strict=True)
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
    """Return a tensor's lifetime as distances to its accesses, in operations.

    The first is from the allocation to the first access, -1 if allocated from the beginning. The
    second is from the last access to the release, -1 if at the end, -2 if never.
    """
    first, last = (accesses[0], accesses[-1]) if accesses else (end, -1)
    before = first - tensor.allocated if tensor.allocated else -1
    if tensor.freed is None:
        return before, -2
    return before, -1 if tensor.freed == end else tensor.freed - last - 1


def _check(record: Tensor | Op, *names: str) -> None:
    """Check integers that may be 0; fast if all are right."""
    if not all(type(n) is int and n >= 0 for n in [getattr(record, name) for name in names]):
        check_fields(record, *names, error=TraceError)


def _shapes(geometry: Geometry) -> dict[str, Any]:
    """Return a geometry for JSON; a mask is stored only if there is one."""
    content = asdict(geometry)
    if not geometry.causal:
        del content["causal"]
    return content


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _tuples(item) for name, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _is_id(number: Any, numbered: Sequence[Any]) -> bool:
    return type(number) is int and 0 <= number < len(numbered)


def _differences(numbers: Sequence[int]) -> list[int]:
    return [following - number for number, following in pairwise([0, *numbers])]
