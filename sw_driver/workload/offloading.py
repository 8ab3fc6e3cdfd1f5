"""Offloading: steps whose parameters, optimizer states or updates are outside the GPU.

A transformation gives tensors another of :data:`~sw_driver.workload.trace.PLACES`, and adds the
operations that move them. An operation runs where it writes: on the GPU, on the host's cores, or in
a drive that computes.

Sources: Ren et al., ZeRO-Offload, ATC 2021; Rajbhandari et al., ZeRO-Infinity, SC 2021; Jang et
al., Smart-Infinity, HPCA 2024; PyTorch's ``CPUOffloadPolicy``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sw_driver.numbers import check_name

from .collectives import COLLECTIVES
from .edits import derived, marked, rebuilt
from .sharding import BUCKET_BYTES
from .summary import alive_bytes
from .trace import PLACES, Op, Tensor, Trace, TraceError

__all__ = ["MOVE", "Offload", "offloaded", "paged", "place_of"]

MOVE = "move"
"""Kind of an operation that moves tensors from one place to another."""


@dataclass(frozen=True, kw_only=True)
class Offload:
    """Places of what a step does not keep on the GPU.

    Examples
    --------
    >>> from sw_driver.workload import load_trace, peak_bytes
    >>> step = load_trace("gpt-tiny")
    >>> less = offloaded(step, Offload())
    >>> [peak_bytes(less, "optimizer_state", place=place) for place in ("gpu", "host")]
    [0, 360960]
    """

    states: str = "host"
    """Place of optimizer states, masters included."""
    parameters: str = "gpu"
    """Place of parameters; other than ``gpu``, units come to the GPU for each pass."""
    updates: str = "host"
    """Place where parameters are updated."""
    is_clipped: bool = True
    """True if an update waits for the norm of all gradients.

    The cores then also cast gradients to FP32, look for overflows and scale, as DeepSpeed does.
    """
    is_delayed: bool = False
    """True if updates run beside the passes of the next step, one step late."""

    def __post_init__(self) -> None:
        for name in ("states", "parameters", "updates"):
            check_name(name, getattr(self, name), PLACES, TraceError)


def place_of(op: Op, tensors: Sequence[Tensor]) -> str:
    """Return the place where an operation runs."""
    return tensors[next(iter(op.writes or op.reads))].place if op.writes or op.reads else "gpu"


def paged(trace: Trace, nbytes: int) -> Trace:
    """Return the step with optimizer states on the host if the GPU has less than it needs.

    Those of the last updates go first, until the rest has room in ``nbytes`` or all are there. They
    come to the GPU for their update, as pages do.
    """
    made, chosen = trace, list[int]()
    states = [
        [one for one in op.reads if trace.tensors[one].kind == "optimizer_state"]
        for op in trace.ops
        if op.phase == "update"
    ]
    states = [own for own in states if own]
    while states and (excess := max(alive_bytes(made)) - nbytes) > 0:
        while states and excess > 0:
            chosen += (own := states.pop())
            excess -= sum(trace.tensors[one].nbytes for one in own)
        made = offloaded(trace, Offload(updates="gpu"), chosen)  # pages have memory, too
    return made


def offloaded(trace: Trace, offload: Offload, only: Collection[int] | None = None) -> Trace:
    """Return the step with the places of ``offload``.

    Gradients leave as they are complete, in buckets of
    :data:`~sw_driver.workload.sharding.BUCKET_BYTES`; two buckets have memory on the GPU. Updated
    parameters come back one by one, behind what comes in for later updates. Parameters that are
    not on the GPU have to be gathered unit by unit (:func:`~sw_driver.workload.sharding.sharded`
    with ``zero3``). Sums over micro-batches are on the GPU. States other than ``only`` stay there,
    too.

    Raises :class:`~sw_driver.workload.trace.TraceError` for a step without an update, with updates
    in the backward pass, or whose parameters are not gathered.
    """
    words = [f"{name} {getattr(offload, name)}" for name in ("states", "parameters", "updates")]
    origin = marked(trace, "offload", ", ".join(words))
    updates = [op for op in trace.ops if op.phase == "update" and _gradients(op, trace)]
    if not updates:
        raise TraceError(f"{trace.name} updates no parameter: expected a whole training step")
    behind = trace.ops[updates[0].id :]
    if offload.updates != "gpu" and any(
        op.phase != "update" and op.kind not in COLLECTIVES for op in behind
    ):
        raise TraceError(
            f"{trace.name} updates parameters in its backward pass: offloaded gradients leave "
            f"instead; leave out in_backward"
        )
    made = _Offloading(trace, offload, only)
    for op in trace.ops:
        made.run(op)
    made.end()
    return rebuilt(trace, made.groups, made.tensors, origin, made.released)


def _gradients(op: Op, trace: Trace) -> list[int]:
    return [one for one in op.reads if trace.tensors[one].kind == "gradient"]


class _Offloading:
    """A step that is being offloaded."""

    def __init__(self, trace: Trace, offload: Offload, only: Collection[int] | None) -> None:
        self.trace, self.offload, self.tensors = trace, offload, list(trace.tensors)
        self.groups: list[list[Op]] = [[] for _ in trace.ops]
        self.released = set[int]()
        self._only = range(len(trace.tensors)) if only is None else only
        gpus, width = (int(trace.origin.get(name, 1)) for name in ("gpus", "tensor_parallel"))
        self._is_alone = gpus == width
        self._moved_on = offload.updates != "gpu"  # gradients leave
        self._ready: dict[int, list[int]] = {}
        self._bucket: list[int] = []
        self._buckets = 0
        self._slots = [self._new(trace.tensors[0], "temporary", "gpu", 0) for _ in range(2)]
        self._arrived: dict[int, int] = {}  # gradients where they are updated
        self._late: dict[int, int] = {}  # those of the step before, with delayed updates
        self._whole: dict[int, int] = {}  # unreduced gradients of a single GPU, by share
        self._early: list[Op] = []  # operations before all others
        self._last: list[Op] = []  # and behind them
        self._norm: int | None = None
        self._gathers: list[Op] = []
        self._inbound: list[Op] = []  # moves before all updates
        self._behind: list[Op] = []  # moves after the last update
        for op in trace.ops:
            if op.phase == "update":
                self._keep(op)
            elif op.kind == "reduce_scatter" and self._is_alone:
                self._whole.update(zip(op.writes, op.reads, strict=True))
        for tensor in trace.tensors:
            passes = [n for n in trace.accesses[tensor.id] if trace.ops[n].phase != "update"]
            updated = len(passes) < len(trace.accesses[tensor.id])
            if tensor.kind == "gradient" and updated and passes:
                self._ready.setdefault(passes[-1], []).append(tensor.id)
            elif tensor.kind == "parameter" and offload.parameters != "gpu":
                if {trace.ops[n].kind for n in passes} - {"all_gather"}:
                    raise TraceError(
                        f"{trace.name} has its parameter {tensor.name} whole on the GPU: expected "
                        f"parameters that are gathered unit by unit; give shard zero3"
                    )
                self.tensors[tensor.id] = replace(tensor, place=offload.parameters)
        self._end = max(self._ready, default=-1)
        self._first = next(op.id for op in trace.ops if op.phase == "update")

    def _keep(self, op: Op) -> None:
        """Place the states of an update."""
        for one in (*op.reads, *op.writes):
            if self.trace.tensors[one].kind == "optimizer_state" and one in self._only:
                self.tensors[one] = replace(self.tensors[one], place=self.offload.states)

    def _new(self, like: Tensor, kind: str, place: str, nbytes: int | None = None) -> int:
        nbytes = like.nbytes if nbytes is None else nbytes
        fields = {"allocated": 0, "freed": None if kind == "optimizer_state" else 0}
        number = len(self.tensors)
        made = replace(like, id=number, kind=kind, place=place, nbytes=nbytes, **fields)
        self.tensors.append(made if kind == "gradient" else replace(made, parameter=None))
        return number

    def _move(self, near: Op, sources: Collection[int], targets: Collection[int]) -> Op:
        sizes = [self.tensors[one].nbytes for one in sources]  # of a share, if the target is whole
        reads, writes = (dict(zip(ids, sizes, strict=True)) for ids in (sources, targets))
        return replace(derived(near, MOVE, reads, writes), id=len(self.trace.ops))

    def run(self, op: Op) -> None:
        """Add an operation, with the moves around it."""
        group = self.groups[op.id]
        if op.phase == "update" and _gradients(op, self.trace):
            if op.id == self._first and self.offload.is_clipped and self._moved_on:
                self._check_all(op)
            self._update(op)
        elif op.kind == "all_gather" and self.offload.parameters != "gpu":
            self._gather(op)
        elif op.kind == "all_gather" and op.phase == "update":  # of parameters that came back
            if self.offload.is_delayed:
                self._last.append(op)
            else:
                group += [*self._behind, op]
                self._behind = []
        elif not (op.kind == "reduce_scatter" and self._is_alone):
            reads, writes = (
                tuple(self._whole.get(one, one) for one in ids) for ids in (op.reads, op.writes)
            )
            group.append(replace(op, reads=reads, writes=writes))
        if self._moved_on:
            ready = self._ready.get(op.id, ())
            self._bucket += [self._whole.get(one, one) for one in ready]
            self._arrived.update((one, -1) for one in ready)
            filled = sum(self.tensors[one].nbytes for one in self._bucket) >= BUCKET_BYTES
            if self._bucket and (filled or op.id == self._end):
                self._leave(op)

    def _leave(self, near: Op) -> None:
        """Copy the bucket of gradients to a slot, and move it to the host."""
        own, self._bucket = self._bucket, []
        sizes = {one: self.tensors[one].nbytes for one in own}
        slot, nbytes = self._slots[self._buckets % 2], sum(sizes.values())
        self._buckets += 1
        self.tensors[slot] = replace(
            self.tensors[slot], nbytes=max(self.tensors[slot].nbytes, nbytes)
        )
        self.released.update(own)
        there = {one: self._new(self.tensors[one], "gradient", "host") for one in own}
        copied = derived(near, "cat", sizes, {slot: nbytes})
        moved = derived(near, MOVE, {slot: nbytes}, {there[one]: sizes[one] for one in own})
        group = self.groups[near.id]
        group += [replace(one, id=len(self.trace.ops)) for one in (copied, moved)]
        narrow = [one for one in own if self.tensors[one].element_bytes < 4]
        if narrow and self.offload.is_clipped:
            wide = {one: self._wide(there[one]) for one in narrow}
            reads = {there[one]: sizes[one] for one in narrow}
            writes = {number: self.tensors[number].nbytes for number in wide.values()}
            cast = derived(near, "_to_copy", reads, writes, dtype="fp32")
            group.append(replace(cast, phase="update"))
            there |= wide
        shares = {whole: share for share, whole in self._whole.items()}
        self._arrived.update((shares.get(one, one), number) for one, number in there.items())

    def _wide(self, narrow: int) -> int:
        """Add a gradient in FP32."""
        like = replace(self.tensors[narrow], element_bytes=4)
        return self._new(like, "gradient", "host", 4 * self.tensors[narrow].elements)

    def _check_all(self, near: Op) -> None:
        """Read all gradients for their norm and for overflows."""
        reads = {self._gradient(one): 0 for one in self._arrived}
        reads = {number: self.tensors[number].nbytes for number in reads}
        self._norm = self._new(self.trace.tensors[0], "temporary", "host", 4)
        elements = sum(self.tensors[one].elements for one in reads)
        norm = derived(near, "norm", reads, {self._norm: 4}, 2 * elements, dtype="fp32")
        self._group(near).append(norm)

    def _gradient(self, one: int) -> int:
        """Return the tensor that an update reads for a gradient."""
        if not self._moved_on:
            return one
        if self.offload.is_delayed:
            if one not in self._late:
                here = self.tensors[self._arrived[one]]
                self._late[one] = self._new(here, "optimizer_state", "host")
            return self._late[one]
        return self._arrived[one]

    def _group(self, near: Op) -> list[Op]:
        """Return the operations among which updates are."""
        return self._early if self.offload.is_delayed else self.groups[near.id]

    def _update(self, op: Op) -> None:
        """Add an update where its place is, with what it needs there."""
        place, tensors = self.offload.updates, self.tensors
        before, back = list[Op](), list[Op]()
        ids: dict[int, int] = {}
        into, out = dict[int, int](), dict[int, int]()  # moves before and behind, by source
        sizes = dict(zip(op.reads + op.writes, op.read_bytes + op.write_bytes, strict=True))
        for one in _gradients(op, self.trace):
            ids[one] = own = self._gradient(one)
            if self._norm is not None:
                own_bytes = {own: tensors[own].nbytes}
                elements = tensors[own].elements
                scaled = derived(op, "mul_", {**own_bytes, self._norm: 4}, own_bytes, elements)
                before.append(replace(scaled, dtype="fp32"))
            if place == "drive":
                ids[one] = self._new(tensors[own], "temporary", "drive")
                before.append(self._move(op, [own], [ids[one]]))
        for one in dict.fromkeys((*op.reads, *op.writes)):
            tensor = tensors[one]
            if one in ids or tensor.kind == "input" or tensor.place == place:
                continue
            last = one
            if tensor.kind == "parameter" and tensor.place == "gpu":
                if one in op.reads:  # the host or the drive has a copy, which is the one that lasts
                    last = self._new(tensor, "optimizer_state", self.offload.states, sizes[one])
                ids[one] = last if tensors[last].place == place else 0
            if not ids.get(one):
                ids[one] = self._new(tensor, "temporary", place, sizes[one])
                if one in op.reads:
                    into[last] = ids[one]
                if one in op.writes and tensors[last].place != "gpu":
                    out[ids[one]] = last
            if one in op.writes and tensor.place == "gpu":
                back += self._route(op, ids[one], one)
        reads = {ids.get(one, one): nbytes for one, nbytes in self._read(op, ids)}
        if into:
            before.append(self._move(op, [*into], [*into.values()]))
        writes = tuple(ids.get(one, one) for one in op.writes)
        if place == "gpu":  # reads no bytes: it waits for pages that leave, and hold memory
            reads |= {one: 0 for out in self._behind for one in out.reads + out.writes}
        moved = replace(op, reads=tuple(reads), read_bytes=tuple(reads.values()), writes=writes)
        # What comes in for an update overtakes what goes out after the one before. A drive has room
        # for all gradients, and gets them at once.
        group = self._group(op)
        (self._inbound if place == "drive" else group).extend(before)
        group += [*self._behind, moved]
        self._behind = [self._move(op, [*out], [*out.values()])] if out else []
        (self._last if self.offload.is_delayed else self._behind).extend(back)

    def _read(self, op: Op, ids: Mapping[int, int]) -> Iterator[tuple[int, int]]:
        """Yield what an update reads, with the bytes in the format that it has there."""
        for one, nbytes in zip(op.reads, op.read_bytes, strict=True):
            is_gradient = self.tensors[one].kind == "gradient"
            yield one, self.tensors[ids[one]].nbytes if is_gradient else nbytes

    def _route(self, near: Op, source: int, target: int) -> list[Op]:
        """Return the moves between two places; the host is between GPU and drive."""
        ends = {self.tensors[source].place, self.tensors[target].place}
        if ends != {"gpu", "drive"}:
            return [self._move(near, [source], [target])]
        way = self._new(self.tensors[source], "temporary", "host")
        return [self._move(near, [source], [way]), self._move(near, [way], [target])]

    def _gather(self, op: Op) -> None:
        """Bring a unit's parameters to the GPU, a unit ahead from a drive.

        The host has room for two units.
        """
        own = list(op.reads)
        if self.offload.parameters == "drive":
            there = [self._new(self.tensors[one], "temporary", "host") for one in own]
            move = self._move(op, own, there)
            done = self._gathers[-2].writes if len(self._gathers) > 1 else ()
            sizes = (*move.read_bytes, *(0 for _ in done))  # reads no bytes: waits until it left
            move = replace(move, reads=(*move.reads, *done), read_bytes=sizes)
            self.groups[self._gathers[-1].id if self._gathers else op.id].insert(0, move)
            own = there
        self._gathers.append(op)
        group = self.groups[op.id]
        if self._is_alone and op.read_bytes == op.write_bytes:
            group.append(self._move(op, own, op.writes))
            return  # else the gathering is a cast
        here = [self._new(self.tensors[one], "temporary", "gpu") for one in own]
        group.append(self._move(op, own, here))
        group.append(replace(op, reads=tuple(here)))

    def end(self) -> None:
        """Add what is before and behind all operations."""
        begin = 0 if self._norm is None else 1  # behind the norm
        self._group(self.trace.ops[self._first])[begin:begin] = self._inbound
        (self._early if self.offload.is_delayed else self.groups[-1]).extend(self._behind)
        self.groups[0][:0] = self._early
        self.groups[-1].extend(self._last)
