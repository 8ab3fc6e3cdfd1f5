"""Data parallelism: one GPU's share of a step that several GPUs run on batches of their own.

- ``ddp`` shards nothing. An all-reduce adds up gradients.
- ``zero1`` shards optimizer states. A reduce-scatter adds up gradients, and an all-gather collects
  updated parameters.
- ``zero2`` also shards gradients, with the same collectives.
- ``zero3`` also shards parameters. An all-gather collects them before each pass.

Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models,
SC 2020, figure 1. ``zero3`` is FSDP's full sharding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from sw_driver.numbers import check_integer, check_name

from .collectives import format_of
from .edits import derived, marked, rebuilt
from .stages import block_of, blocks_of
from .trace import Op, Tensor, Trace, TraceError

__all__ = ["BUCKET_BYTES", "SCHEMES", "sharded"]

SCHEMES = ("ddp", "zero1", "zero2", "zero3")
"""Names of schemes; each shards what the one before it does, and more."""

_GRADIENTS, _PARAMETERS = SCHEMES.index("zero2"), SCHEMES.index("zero3")

BUCKET_BYTES = 25 << 20
"""Least bytes of a collective, but for the last: the default of PyTorch's DDP (given)."""


def sharded(trace: Trace, scheme: str, gpus: int, *, is_streamed: bool = False) -> Trace:
    """Return one GPU's share of a step that ``gpus`` GPUs run, with its collectives.

    The batch is that of one GPU. Collectives are operations of
    :data:`~sw_driver.workload.collectives.COLLECTIVES`, at the place where they may begin.

    - Gradients are reduced in buckets of :data:`BUCKET_BYTES`, in the order in which the backward
      pass completes them. A bucket is a view of its gradients and takes no memory.
    - With ``zero1`` and ``zero2`` updated parameters are gathered in such buckets, too.
    - Parameters that a step only reads as copies in another format are gathered in that format,
      and the copies are left out.
    - With ``zero3`` a unit takes the place of a bucket: a repeated block, such as ``layers.3``, or
      another outermost module. It is gathered before its first use in a pass, while the previous
      unit runs, and freed after its last. It is kept between the passes if the backward pass needs
      it first.

    A single GPU's step is returned as it is, unless it ``is_streamed``: then it gathers and reduces
    like that of several GPUs, for parameters that come from another memory. An update works on its
    GPU's share. ``origin`` has the number of GPUs as ``gpus``, times that
    of a tensor-parallel step. Raises :class:`~sw_driver.workload.trace.TraceError` for another
    scheme.
    """
    check_name("shard", scheme, SCHEMES, TraceError)
    check_integer("gpus", gpus, error=TraceError)
    if gpus == 1 and not is_streamed:
        return trace
    width = int(trace.origin.get("tensor_parallel", 1))
    origin = {**marked(trace, "shard", scheme), "gpus": gpus * width}
    sharding = _Sharding(trace, SCHEMES.index(scheme), gpus)
    for op in trace.ops:
        sharding.run(op)
    sharding.end()
    return rebuilt(trace, sharding.groups, sharding.tensors, origin)


@dataclass(frozen=True, kw_only=True)
class _Use:
    """Operations from the first to the last that need a gathered unit."""

    unit: str
    phase: str
    begin: int
    end: int
    gathers: bool = True
    """False if the unit is kept since the forward pass."""


class _Sharding:
    """A step that is being shared; ``level`` is the index of its scheme."""

    def __init__(self, trace: Trace, level: int, gpus: int) -> None:
        self.trace, self.tensors = trace, list(trace.tensors)
        self.groups: list[list[Op]] = []
        self._level, self._gpus = level, gpus
        self._blocks = blocks_of(trace)
        self._ready: dict[int, list[int]] = {}  # gradients complete after an operation
        self._updated: dict[int, list[int]] = {}  # parameters complete after an update
        self._whole: dict[int, int] = {}  # tensors that stand for a sharded one, whole
        self._units: dict[str, list[int]] = {}  # parameters
        self._copies: dict[int, list[Op]] = {}  # casts of a parameter, if nothing else reads it
        self._waiting: Counter[str] = Counter()  # gradients that a unit is still to get
        self._gradients: list[int] = []  # complete, and not yet reduced
        self._parameters: list[int] = []  # updated, and not yet gathered
        for tensor in trace.tensors:
            self._prepare(tensor)
        self._last = max(self._ready, default=-1)
        self._casts = {op.id for copies in self._copies.values() for op in copies}
        uses = self._uses() if level == _PARAMETERS else []
        self._begins: dict[int, list[_Use]] = {}
        for before, use in zip([None, *uses], uses, strict=False):
            early = before if before is not None and before.phase == use.phase else use
            if use.gathers:
                self._begins.setdefault(early.begin, []).append(use)

    def _prepare(self, tensor: Tensor) -> None:
        number, ops = tensor.id, self.trace.ops
        updates = [n for n in self.trace.accesses[number] if ops[n].phase == "update"]
        passes = [n for n in self.trace.accesses[number] if ops[n].phase != "update"]
        shrinks = tensor.kind == "optimizer_state" or (updates and not passes)
        if tensor.kind == "gradient" and passes:
            self._ready.setdefault(passes[-1], []).append(number)
            self._waiting[self._unit(tensor)] += 1
            shrinks = self._level >= _GRADIENTS
            if shrinks:
                self._whole[number] = self._new(tensor, freed=None)
        elif tensor.kind == "parameter":
            self._units.setdefault(self._unit(tensor), []).append(number)
            if written := [n for n in updates if number in ops[n].writes]:
                self._updated.setdefault(written[-1], []).append(number)
            shrinks = self._level == _PARAMETERS
            if shrinks and (copies := self._only_casts(passes)):
                self._copies[number] = copies
        if shrinks and self._level:
            size = self._share(tensor, tensor.nbytes)
            self.tensors[number] = replace(tensor, nbytes=size)

    def _only_casts(self, passes: Sequence[int]) -> list[Op]:
        """Return the operations that use a parameter, if they only copy it to one format."""
        ops = [self.trace.ops[number] for number in passes]
        copies = [self.trace.tensors[op.writes[0]] for op in ops if op.kind == "_to_copy"]
        once = all(
            sum(copy.id in self.trace.ops[n].writes for n in self.trace.accesses[copy.id]) == 1
            for copy in copies
        )
        alike = len({(op.dtype, copy.nbytes) for op, copy in zip(ops, copies, strict=False)}) == 1
        return ops if once and alike and len(copies) == len(ops) else []

    def _uses(self) -> list[_Use]:
        """Return when units are needed, by their begin."""
        uses: dict[tuple[str, str], _Use] = {}
        for unit, parameters in self._units.items():
            copies = [op.writes[0] for one in parameters for op in self._copies.get(one, ())]
            for number in sorted(
                {n for m in (*parameters, *copies) for n in self.trace.accesses[m]}
            ):
                phase = self.trace.ops[number].phase
                begin = uses[unit, phase].begin if (unit, phase) in uses else number
                uses[unit, phase] = _Use(unit=unit, phase=phase, begin=begin, end=number)
        uses = {key: use for key, use in uses.items() if use.phase != "update"}
        for use in sorted(uses.values(), key=lambda use: -use.end):
            later = uses.get((use.unit, "backward"))
            if use.phase == "forward" and later is not None:
                between = range(use.end + 1, later.begin)
                if not any(other.gathers and other.begin in between for other in uses.values()):
                    uses[use.unit, "forward"] = replace(use, end=later.end)
                    uses[use.unit, "backward"] = replace(later, gathers=False)
        return sorted(uses.values(), key=lambda use: use.begin)

    def run(self, op: Op) -> None:
        """Add an operation, with the collectives before and after it."""
        self.groups.append([])
        for use in self._begins.get(op.id, ()):
            self._gather_unit(use, op)
        if op.phase == "update":
            if not set(self._gradients).isdisjoint(op.reads):
                self._reduce(op)
            self.groups[-1].append(self._shared(op) if self._level else op)
        elif op.id not in self._casts:
            reads, writes = (
                tuple(self._whole.get(n, n) for n in ids) for ids in (op.reads, op.writes)
            )
            self.groups[-1].append(replace(op, reads=reads, writes=writes))
        for number in self._ready.get(op.id, ()):
            self._gradients.append(number)
            unit = self._unit(self.trace.tensors[number])
            self._waiting[unit] -= 1
            if self._level < _PARAMETERS and self._fills(self._gradients):
                self._reduce(op)
            elif self._level == _PARAMETERS and not self._waiting[unit]:
                self._reduce(op, unit)
        if op.id == self._last:
            self._reduce(op)
        if 0 < self._level < _PARAMETERS:
            self._parameters += self._updated.get(op.id, ())
            if self._fills(self._parameters):
                self._gather(op)

    def end(self) -> None:
        """Add the last collective."""
        self._gather(self.trace.ops[-1])

    def _gather_unit(self, use: _Use, near: Op) -> None:
        """Gather parameters in the format that the unit computes in."""
        for number in self._units[use.unit]:
            copies = [op.writes[0] for op in self._copies.get(number, ())]
            like = self.trace.tensors[copies[0] if copies else number]
            whole = self._new(like, freed=use.end + 1)
            self._whole.update(dict.fromkeys((number, *copies), whole))
        self._collect("all_gather", near, self._units[use.unit])

    def _new(self, like: Tensor, freed: int | None) -> int:
        """Add a whole tensor that is freed with an operation, or else after its last use."""
        fields = {"id": len(self.tensors), "allocated": 0, "freed": freed}
        self.tensors.append(replace(like, kind="temporary", parameter=None, **fields))
        return len(self.tensors) - 1

    def _reduce(self, near: Op, unit: str | None = None) -> None:
        """Reduce gradients that wait, of one unit or of all."""
        tensors = self.trace.tensors
        ready = [n for n in self._gradients if unit in (None, self._unit(tensors[n]))]
        self._gradients = [n for n in self._gradients if n not in ready]
        self._collect("reduce_scatter" if self._level else "all_reduce", near, ready)

    def _gather(self, near: Op) -> None:
        self._collect("all_gather", near, self._parameters)
        self._parameters = []

    def _fills(self, numbers: Iterable[int]) -> bool:
        return sum(self.trace.tensors[number].nbytes for number in numbers) >= BUCKET_BYTES

    def _collect(self, kind: str, near: Op, numbers: Sequence[int]) -> None:
        """Add a collective of tensors for each of their formats, near an operation."""
        formats: dict[str, list[int]] = {}
        for number in numbers:
            copies = self._copies.get(number)
            dtype = copies[0].dtype if copies else format_of(self.tensors[number], near)
            formats.setdefault(dtype, []).append(number)
        for dtype, own in formats.items():
            whole = [self._whole.get(number, number) for number in own]
            wholes = {number: self.tensors[number].nbytes for number in whole}
            sources = (self.trace.tensors[number] for number in own)
            shares = {one.id: self._share(one, one.nbytes) for one in sources}
            if kind == "reduce_scatter" and whole != own:
                for number in own:  # a share of a gradient begins here
                    self.tensors[number] = replace(self.tensors[number], allocated=near.id)
            reads = shares if kind == "all_gather" else wholes
            writes = shares if kind == "reduce_scatter" else wholes
            made = derived(near, kind, reads, writes, dtype=dtype)
            self.groups[-1].append(replace(made, id=len(self.trace.ops)))  # not a repeated one

    def _shared(self, op: Op) -> Op:
        """Return an update of one share."""
        read, written = (
            tuple(
                self._share(self.trace.tensors[number], nbytes)
                for number, nbytes in zip(ids, sizes, strict=True)
            )
            for ids, sizes in ((op.reads, op.read_bytes), (op.writes, op.write_bytes))
        )
        return replace(op, read_bytes=read, write_bytes=written, flops=-(-op.flops // self._gpus))

    def _share(self, tensor: Tensor, nbytes: int) -> int:
        """Return a GPU's share of bytes, in whole elements."""
        elements = ceil(nbytes / tensor.element_bytes)
        return ceil(ceil(elements / self._gpus) * tensor.element_bytes)

    def _unit(self, tensor: Tensor) -> str:
        return block_of(tensor.name, self._blocks) or tensor.name.partition(".")[0]
