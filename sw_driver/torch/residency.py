"""Residency of all tensors of a training step in fast memory, parameters to activations.

Every operation of PyTorch is watched, forward, backward and in the optimizer, with the storages of
its arguments and results. A storage that is away is empty. Its tensors, views of them and what
autograd has saved of them stay valid, and its bytes come back before an operation uses them.
"""

from __future__ import annotations

import ctypes
import functools
import io
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.queues import JoinableQueue, Queue
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, UntypedStorage
from torch._C._dynamo import eval_frame
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import dlpack
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
)

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.workload.writes import outlasts_call, written_arguments

from . import guard as guards
from .guard import AWAY, KEPT, Account, Guard, State
from .step import Interrupts, unwatched
from .stores import Job, Store

__all__ = ["Held", "Policy", "Residency", "Statistics", "held_of"]

_LOOKS = {torch.ops.aten.detach.default, torch.ops.aten.view.default}
"""Operations that need no bytes and can make their results from an empty storage."""

_PLAIN: Any = torch._C._disabled_torch_dispatch_impl
"""Dispatch implementation of tensor classes that keep PyTorch's ordinary operations."""

_TRACED = FakeTensor, FunctionalTensor
"""Classes of tensors without bytes; PyTorch calls their own modes after all others."""

_SIGNATURES = 1 << 10
"""Calls of operators with remembered result sizes, at most."""

_MMAP_THRESHOLD = -3
"""Parameter of ``mallopt``: blocks from this size on are mapped, and unmapped when freed."""

_MOST_INT = (1 << 31) - 1
"""The most that ``mallopt`` takes."""

_HELD: dict[int, Held] = {}
"""Records of all residencies by the storage's number; each storage has one."""

_DEAD: dict[Held, Any] = {}
"""Records of storages that have just died.

An entry is made without running Python code, which a signal could interrupt.
"""

_THREAD = threading.local()

_COPY = "copy.deepcopy(tensor.detach())"
"""Copy that error messages recommend to hand over; no residency counts it, however large."""

_RESIDENCIES: weakref.WeakSet[Residency] = weakref.WeakSet()

# CPython handles no signal between statements without a call, such as updates of the counts below.


@dataclass(eq=False, slots=True)
class Held:
    """Record of a storage that may be away."""

    residency: Residency
    number: int
    nbytes: int
    storage: Callable[[], UntypedStorage | None]
    here: bool = True
    """True if the storage is in fast memory, or being fetched."""
    stored: bool = False
    """True if the store has the storage's bytes."""
    store: Store | None = None
    """Store to use in place of the residency's."""
    place: Any = None
    """Place in the store, set when the storage first leaves."""
    make: Callable[[], Tensor] | None = None
    """Function that recomputes the storage, in place of a store.

    The residency does not watch it, so it fetches its inputs itself. It is valid until an operation
    writes to the storage.
    """
    job: Job | None = None
    """Copy to or from the store in flight."""
    comes: bool = False
    """True if that copy is from the store."""
    keeps: UntypedStorage | None = None
    """Storage, kept alive while it is copied."""
    copied: Callable[[], UntypedStorage | None] | None = None
    """Copy of the storage in use elsewhere."""
    pinned: bool = False
    """True if others have the storage's memory, so that it cannot leave."""
    gone: bool = False
    """True once the storage is not counted any more."""
    foreign: bool = False
    """True if the storage has memory that the guard's allocator does not count."""
    used: int = 0
    """Number of the last operation that used the storage."""
    name: str = ""
    """Name for messages."""
    slot: int = -1
    """Number for the policy's use."""


@dataclass
class Statistics:
    """Totals of bytes moved since the start."""

    bytes_out: int = 0
    bytes_back: int = 0
    bytes_made: int = 0
    """Bytes that came back by being recomputed."""
    waits: int = 0
    """Copies that were waited for."""
    waited_ns: int = 0
    peak_bytes: int = 0
    """Peak of bytes in fast memory."""


class Policy:
    """Decisions on moves of storages. The training thread makes all calls.

    This base class fetches nothing ahead, and lets the least recently used storage leave.
    """

    scripts: ClassVar = False
    """True if the policy lets the guard follow steps that it knows, without Python."""

    def diverged(self, reason: int, new: list[Held]) -> None:
        """Note that the guard has stopped to follow a step, which goes on under Python.

        ``reason`` is the guard's, and ``new`` are records of storages that the step has made.
        """

    def before(self, func: Any, used: list[Held]) -> int | None:
        """Prepare for an operation, possibly by moves; return the bytes that it makes.

        None lets the residency compute the bytes, which is slow. 0 makes room for the results only
        once they exist.
        """

    def after(self, func: Any, used: list[Held], made: list[Held]) -> None:
        """Note that an operation has ended without an error."""

    def failed(self) -> None:
        """Note that an operation was refused or has raised, after :meth:`before`."""

    def written(self, held: Held) -> None:
        """Note that an operation is about to write to a storage in fast memory."""

    def freed(self, held: Held) -> None:
        """Note that a storage was freed; called before the next operation."""

    def victim(self, residency: Residency, stay: Collection[Held]) -> Held | None:
        """Return the storage to leave when there is no room, not in ``stay``; None if none can."""
        return min(residency.movable(stay), key=lambda held: held.used, default=None)


class _Watch(TorchDispatchMode):
    """Watches the operations of a thread for all residencies that it has entered."""

    guarding: ClassVar[bool] = False
    """State of all threads: True while a residency keeps the others off tensors that move."""

    def __init__(self) -> None:
        super().__init__()
        self.residencies: list[Residency] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True adds a wrapper, which takes as long as the rest: see below

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for tensor_type in types:
            if tensor_type is not Tensor and tensor_type.__torch_dispatch__ is not _PLAIN:
                if issubclass(tensor_type, _TRACED):
                    return func(*args, **(kwargs or {}))
                return NotImplemented  # it comes back as operations on the tensors inside
        kwargs = kwargs or {}
        kind = _KINDS.get(id(func)) or _kind(func)
        if kind.looks:
            return func(*args, **kwargs)
        if kind.sliced and len(args[0]) > 1:
            return self._sliced(func, args, kwargs)
        given: dict[int, UntypedStorage] = {}
        if _DEAD:
            _mourn()
        _gather(args, given)
        if kwargs:
            _gather(kwargs.values(), given)
        used = []
        if (guarded := Residency.guarded) is not None:
            guarded.look(given)
        for number in given:
            held = _HELD.get(number)
            if held is not None and not (held.here and held.residency._watch is None):
                used.append(held)
        residency = used[0].residency if used else None
        for held in used:
            if held.residency is not residency or held.residency._watch is not self:
                residency, used = self._of_one(func, used)
                break
        if residency is None:
            residency = next((own for own in self.residencies[::-1] if own.takes), None)
            if residency is None:
                return func(*args, **kwargs)
        return residency._operate(func, kind, args, kwargs, given, used)

    def _of_one(self, func: Any, used: list[Held]) -> tuple[Residency | None, list[Held]]:
        """Return the residency in charge of tensors of several ones, and its records.

        A residency that only counts its tensors is not in charge of others.
        """
        moves = [held for held in used if not _only_counted(held)]
        residency = (moves or used)[0].residency
        if moves and (len({held.residency for held in moves}) > 1 or residency._watch is not self):
            raise InvalidArgumentError(
                f"{func} uses tensors of two policies, or of a policy that is closed or belongs to "
                "another thread or process: train all by one policy, in one thread, or hand over "
                f"{_COPY}, made in the thread of the policy"
            )
        if residency._watch is not self:
            return None, []  # of another thread, and not moved
        return residency, [held for held in used if held.residency is residency]

    def _sliced(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation on one tensor of each list at a time: all would have to fit at once."""
        count, results = len(args[0]), []

        def part(value: Any, n: int) -> Any:
            return [value[n]] if isinstance(value, (list, tuple)) and len(value) == count else value

        for n in range(count):
            some = {name: part(value, n) for name, value in kwargs.items()}
            these = tuple([part(value, n) for value in args])
            results.append(self.__torch_dispatch__(func, (), these, some))
        if not isinstance(results[0], list | tuple):
            return results[0]
        return [item for result in results for item in result]


_SKIP = eval_frame._FrameAction.SKIP
eval_frame.set_code_exec_strategy(
    _Watch.__torch_dispatch__.__code__, eval_frame._FrameExecStrategy(_SKIP, _SKIP)
)


class Residency:
    """Context that keeps the tensors of this thread's operations within a budget.

    The budget covers adopted tensors, and results of operations while it ``takes`` them. It does
    not cover tensors smaller than ``least_bytes`` or memory that PyTorch cannot empty (NumPy's or
    another process'). Workspace inside operations counts on a CPU with the compiled guard.
    Results made from another residency's tensors belong to that one. Operations of other threads
    on tensors that may leave raise ``InvalidArgumentError``; so do calls that would share their
    memory with another process.

    Enter it before other dispatch modes of PyTorch; it may be left in any order.

    Parameters
    ----------
    store: place of storages that are away; without one only storages that can be recomputed leave.
    budget: bytes, None for no limit, or a function that returns them.
    kind: device type of the tensors that count, ``"cpu"`` or ``"cuda"``.

    Examples
    --------
    >>> import torch
    >>> from sw_driver.torch.stores import HostStore
    >>> with Residency(HostStore(), budget=1 << 20) as residency:
    ...     tensors = [torch.full((1 << 17,), float(number)) for number in range(4)]
    ...     residency.peak_bytes, tensors[0].sum().item()
    (1048576, 0.0)
    >>> residency.close()
    """

    guarded: ClassVar[Residency | None] = None
    """Residency whose thread the compiled guard filters."""

    def __init__(
        self,
        store: Store | None = None,
        policy: Policy | None = None,
        budget: Callable[[], float] | float | None = None,
        *,
        least_bytes: int = 1 << 16,
        kind: str = "cpu",
    ) -> None:
        self.store = store
        self.policy = policy or Policy()
        self._budget = budget
        self.least_bytes = max(1, least_bytes)
        self.kind = kind
        self._guard: Guard | None = None
        if budget is not None and kind == "cpu":
            self._guard = guards.load()
        self._account: Account | None = None
        self._idle_bytes: int | None = None
        """Bytes in fast memory that the operation under way does not use; None between two."""
        self._address = 0
        if self._guard is not None:
            self._answer = guards.answering(_weakly(self))
            pointer = self._guard.call.account(max(1, least_bytes), self._answer)
            self._account, self._address = pointer.contents, ctypes.addressof(pointer.contents)
        self._refusal: BaseException | None = None
        """Error for the operation in progress, which has no room inside."""
        self.takes = False
        """True if results of operations belong to this residency.

        It is set on entry, unless the policy changes it. Of several in a thread, the one entered
        last gets tensors made from nothing.
        """
        self._live_bytes = self._most_live_bytes = 0
        self.most_needed_bytes = 0
        """Peak of the bytes that one operation used and made."""
        self.statistics = Statistics()
        self._counted_bytes = 0
        self._watch: _Watch | None = None
        self._held: dict[Held, None] = {}
        self._jobs: dict[Held, None] = {}
        self._dead: dict[Held, None] = {}
        self._known_bytes: dict[Any, int] = {}
        """Bytes of the new results of calls, by signature."""
        self._using: list[Held] = []
        """Storages used by operations in progress."""
        self._operation = 0
        if budget is not None and store is not None and self._guard is None:
            ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, min(max(1 << 20, least_bytes), _MOST_INT))
        _RESIDENCIES.add(self)
        _read_through()

    def __iter__(self) -> Iterator[Held]:
        self._bury()
        return iter([*self._held])

    @property
    def used_bytes(self) -> int:
        """Bytes in fast memory."""
        self._bury()
        return self._used_bytes

    @property
    def _used_bytes(self) -> int:
        return self._counted_bytes if self._account is None else self._account.used

    @property
    def live_bytes(self) -> int:
        """Bytes of all storages, wherever they are."""
        account = self._account
        return self._live_bytes if account is None else account.used + account.away

    @property
    def most_live_bytes(self) -> int:
        """Peak of :attr:`live_bytes`; a policy may set it."""
        return self._most_live_bytes if self._account is None else self._account.most_live

    @most_live_bytes.setter
    def most_live_bytes(self, nbytes: int) -> None:
        """Set the peak."""
        self._most_live_bytes = nbytes
        if self._account is not None:
            self._account.most_live = nbytes

    @property
    def peak_bytes(self) -> int:
        """Peak of bytes in fast memory."""
        if self._account is not None:
            self.statistics.peak_bytes = self._account.peak
        return self.statistics.peak_bytes

    @property
    def budget_bytes(self) -> float:
        """Budget in bytes, infinite without one. It may be set as in the constructor."""
        budget = self._budget() if callable(self._budget) else self._budget
        return math.inf if budget is None else budget

    @budget_bytes.setter
    def budget_bytes(self, budget: Callable[[], float] | float | None) -> None:
        """Set the budget: a number of bytes, a function that returns it, or None."""
        self._budget = budget

    @property
    def free_bytes(self) -> float:
        """Rest of the budget, in bytes."""
        return self.budget_bytes - self.used_bytes

    def report(self) -> dict[str, Any]:
        """Return the totals so far, ready for JSON.

        ``peak_without_bytes`` is the peak of all storages, wherever they are.
        """
        moved = self.statistics
        return {
            "budget_bytes": None if math.isinf(self.budget_bytes) else self.budget_bytes,
            "peak_bytes": self.peak_bytes,
            "peak_without_bytes": self.most_live_bytes,
            "out_bytes": moved.bytes_out,
            "back_bytes": moved.bytes_back,
            "waits": moved.waits,
            "waited_ms": moved.waited_ns // 10**6,
        }

    def __enter__(self) -> Self:
        watch = getattr(_THREAD, "watch", None)
        if watch is None:
            if (mode := _get_current_dispatch_mode()) is not None:
                raise InvalidArgumentError(
                    f"{type(mode).__name__} is entered: enter or make the policy before it"
                )
            watch = _THREAD.watch = _Watch().__enter__()
        if Residency.guarded is not None:
            Residency.guarded.leave_guard()
        self._watch, self.takes = watch, True
        watch.residencies.append(self)
        self.enter_guard()
        if not _Watch.guarding:
            _Watch.guarding = True
            _in_other_threads(_guard)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching operations. Storages that are away stay away."""
        watch = self._watch
        if watch is None:
            return
        self.check_thread()
        self.leave_guard()
        self._watch, self.takes = None, False
        watch.residencies.remove(self)
        if getattr(_THREAD, "end", None) is None:
            _THREAD.end = _End(watch)
        _mourn()
        away = any(not held.here for held in _HELD.values())
        if not away and all(other._watch is None for other in _RESIDENCIES):
            _Watch.guarding = False
            _in_other_threads(_guard)
        _guard()  # below another mode the watch stays, and does nothing

    def check_thread(self) -> None:
        """Raise ``InvalidArgumentError`` in a thread that has not entered the residency.

        Its operations would find storages empty.
        """
        if self._watch is None:
            return
        # Autograd has a thread per GPU, with the modes of the thread that it works for.
        if self._watch not in (getattr(_THREAD, "watch", None), _get_current_dispatch_mode()):
            raise InvalidArgumentError(
                f"{threading.current_thread().name} uses tensors in the memory plan of another "
                "thread or process: use the model, and close the policy, where that was made, or "
                f"hand over {_COPY}, made there"
            )

    def close(self) -> None:
        """Bring all storages back, beyond any budget, and end the residency.

        Raises the store's errors; then nothing is lost, and it may be called again.
        """
        self.check_thread()
        self.leave_guard()
        peak_bytes = self.peak_bytes
        for held in self:
            if not held.here:
                self._fetch(held)
            self._settle(held)
        for held in self:
            self.forget(held)
        if self._account is not None:
            self._account.peak = peak_bytes
        self.__exit__()
        if self._guard is not None:
            self._guard.call.keep(0)
        if self.store is not None:
            self.store.close()

    # Moves.

    def adopt(self, tensors: Iterable[Tensor]) -> list[Held]:
        """Take over tensors that were made elsewhere; some may leave at once.

        Raises ``InvalidArgumentError`` for a tensor of another residency or device, before it takes
        any.
        """
        storages: dict[int, UntypedStorage] = {}
        _mourn()
        _gather((one for one in tensors if not torch.nn.parameter.is_lazy(one)), storages)
        for storage in storages.values():
            if storage.device.type != self.kind:
                raise InvalidArgumentError(f"a tensor is on {storage.device}: expected {self.kind}")
        theirs = [held for held in map(_HELD.get, storages) if held and held.residency is not self]
        if not all(map(_only_counted, theirs)):
            raise InvalidArgumentError("a tensor is in another policy: close that first")
        for held in theirs:
            held.residency.forget(held)
        new: list[Held] = []
        try:
            for number, storage in storages.items():
                if number not in _HELD and (held := self._take(storage)) is not None:
                    new.append(held)
                    self._make_room(0, f"a tensor of {held.nbytes} bytes")
                    self._note_peak()
        except BaseException:
            for held in new:
                self.forget(held)
            raise
        return [held for held in map(_HELD.get, storages) if held is not None]

    def of(self, tensor: Tensor) -> Held | None:
        """Return the record of a tensor's storage if it is this residency's."""
        held = held_of(tensor)
        return held if held is not None and held.residency is self else None

    def held(self, tensor: Tensor) -> Held | None:
        """Return the record of a tensor's storage, which becomes this residency's if possible.

        Another residency gives up a storage that it only counts. Return None for a storage that
        this one cannot have.
        """
        self._bury()  # places of the dead are free again
        held = held_of(tensor)
        if held is not None and held.residency is not self and _only_counted(held):
            held.residency.forget(held)
            held = None
        held = held or self._take(_storage_of(tensor))
        return held if held is not None and held.residency is self else None

    def forget(self, held: Held) -> None:
        """Stop counting a storage, and leave it in memory.

        If it cannot be fetched, raises the store's error; its bytes are then undefined.
        """
        storage, peak_bytes = held.storage(), self.peak_bytes
        try:
            if not held.here and storage is not None:
                self._fetch(held)
            self._settle(held)
        finally:
            if storage is not None and _nbytes(storage) != held.nbytes:
                self._fill(storage, held.nbytes)
            self._release(held)
            if self._account is not None:
                self._account.peak = peak_bytes

    def bring(self, tensor: Tensor) -> None:
        """Bring a tensor's storage into fast memory now."""
        held = self.of(tensor)
        if held is not None and _held_in(tensor) is not None:
            self._have([held], 0, "reading a tensor")

    def fetch(self, held: Held) -> bool:
        """Start to fetch a storage if there is room; return whether there was."""
        if not held.here:
            if self.used_bytes + held.nbytes > self.budget_bytes:
                return False
            self._fetch(held)
            self._note_peak()
        return True

    def clean(self, held: Held) -> None:
        """Start to copy a storage to the store, so that it can leave at once."""
        if held.stored or held.job is not None or not held.here or held.make is not None:
            return
        storage, store = held.storage(), self._store_of(held)
        if storage is None:
            return
        if held.place is None:
            held.place = store.take(held.nbytes)
        self._start(held, storage, store, comes=False)
        self.statistics.bytes_out += held.nbytes

    def stored_copy(self, held: Held) -> Any:
        """Return a place in the store with a copy of a storage, which the caller gives back."""
        self._have([held], 0, "copying a tensor")
        storage, store = held.storage(), self._store_of(held)
        assert storage is not None
        place = store.take(held.nbytes)
        began_ns = time.perf_counter_ns()
        store.write(place, _data_ptr(storage), held.nbytes).wait()
        self.statistics.bytes_out += held.nbytes
        self.statistics.waits += 1
        self.statistics.waited_ns += time.perf_counter_ns() - began_ns
        return place

    def restore(self, held: Held, place: Any) -> None:
        """Give a storage the bytes of a place."""
        storage = held.storage()
        if storage is not None:
            self._have([held], 0, "restoring a tensor")
            self._changed(held)
            self._store_of(held).read(place, _data_ptr(storage), held.nbytes).wait()
            self.statistics.bytes_back += held.nbytes

    def drop(self, held: Held) -> None:
        """Let a storage leave; raise ``RuntimeError`` if its memory was handed out, as to NumPy."""
        self.clean(held)
        self._settle(held)
        storage = held.storage()
        if storage is None or not held.here:
            return
        if held.pinned:
            raise RuntimeError("the memory of a tensor was handed out: it cannot leave")
        self._empty(held, storage)

    def movable(self, stay: Collection[Held]) -> Iterator[Held]:
        """Yield the storages that could leave, except ``stay``."""
        for held in self:
            if held.here and not held.comes and held not in stay and self.can_leave(held):
                yield held

    def copied(self, tensor: Tensor) -> Tensor:
        """Return a copy of a tensor in memory that is not counted; nothing moves.

        Copies of tensors in one storage share a storage, too.
        """
        held = _held_in(tensor)
        if held is None:
            return tensor
        inference = torch.inference_mode(tensor.is_inference())
        with unwatched(), inference, torch.no_grad():
            copied = tensor.data  # an alias would count set_() as a change of the tensor
            size, stride = copied.size(), copied.stride()
            copied.set_(self._copied(held), copied.storage_offset(), size, stride)
            if isinstance(tensor, torch.nn.Parameter):
                return torch.nn.Parameter(copied, tensor.requires_grad)
            return copied.requires_grad_(tensor.requires_grad)

    # Helpers.

    def _operate(
        self,
        func: Any,
        kind: _Kind,
        args: Any,
        kwargs: Any,
        given: dict[int, Any],
        used: list[Held],
    ) -> Any:
        """Run an operation with its arguments in fast memory and room for its results."""
        if _DEAD or self._dead:
            self._bury()
        if self._jobs:
            for held in [*self._jobs]:
                if held.job is None or held.job.done():
                    self._settle(held)
        self._operation = operation = self._operation + 1
        under_way, takes, most_needed_bytes = len(self._using), self.takes, self.most_needed_bytes
        try:
            self._using += used
            needed = self.policy.before(func, used)
            if self._budget is None:
                needed = needed or 0
            elif needed is None:
                needed = self._expected(func, args, kwargs, used) if kind.makes else 0
            elif kind.writes and kind.makes:  # it cannot be refused after it has written
                needed = max(needed, self._known(func, args, kwargs, used))
            lacks = self._used_bytes + needed > self.budget_bytes
            made_bytes = needed
            for held in used:
                held.used = operation
                needed += held.nbytes
                lacks |= held.comes or not held.here
            if needed > self.most_needed_bytes:
                self.most_needed_bytes = needed
            if lacks:
                self._have(used, made_bytes, func)
            if kind.outlasts:
                for held in used:
                    held.pinned = True
            written = self._written(kind, args, kwargs) if kind.writes else ()
            result = (
                func(*args, **kwargs)
                if self._account is None
                else self._run(self._account, func, args, kwargs, needed - made_bytes)
            )
            if _DEAD or self._dead:
                self._bury()
            results: dict[int, UntypedStorage] = {}
            if self.takes:
                _gather((result,), results)
            made = []
            for number, storage in results.items():
                if number not in given and number not in _HELD:
                    held = self._take(storage, func)
                    if held is not None:
                        made.append(held)
                        self._using.append(held)
            for storage, nbytes in written:
                if _nbytes(storage) != nbytes and (held := self._resized(storage, func)):
                    made.append(held)
            self.policy.after(func, used, made)
            return result
        except BaseException:
            self.takes, self.most_needed_bytes = takes, most_needed_bytes
            self.policy.failed()
            raise
        finally:
            del self._using[under_way:]

    def _run(self, account: Account, func: Any, args: Any, kwargs: Any, used_bytes: int) -> Any:
        """Run an operation, with its memory counted if its results belong here."""
        assert self._guard is not None
        account.limit = _as_integer(self.budget_bytes)
        account.high = account.used
        outer = self._idle_bytes
        before = self._guard.call.count(None)  # a signal may come before the next line
        try:
            self._idle_bytes = account.used - used_bytes
            self._guard.call.count(self._address if self.takes else None)
            return func(*args, **kwargs)
        except torch.OutOfMemoryError:
            refusal, self._refusal = self._refusal, None
            if refusal is None:
                raise
            raise refusal from None
        finally:
            self._guard.call.count(before)
            if self._idle_bytes is not None:
                self._note_needed(account, self._idle_bytes)
            self._idle_bytes = outer

    def _note_needed(self, account: Account, idle_bytes: int) -> None:
        """Note the most memory of an operation since ``account.high`` was set."""
        self.most_needed_bytes = max(self.most_needed_bytes, account.high - idle_bytes)

    # The guard.

    @property
    def guard(self) -> Guard | None:
        """Guard that filters this residency's operations, if one does."""
        return self._guard if Residency.guarded is self else None

    @property
    def state(self) -> State | None:
        """State of that guard."""
        return self._guard.state if self._guard is not None and Residency.guarded is self else None

    def enter_guard(self) -> bool:
        """Let the guard filter this thread's operations; return whether it had to begin anew.

        It filters those of one residency, and only if no other is entered.
        """
        guard = self._guard
        if guard is None or Residency.guarded is self:
            return False
        others = any(one._watch is not None for one in _RESIDENCIES if one is not self)
        guard.call.keep(not others)
        if others or self._watch is None or not self.policy.scripts:
            return False
        Residency.guarded = self
        guard.call.own(id(self._watch), self._address)
        for held in self:
            guard.call.track(held.number, held.nbytes, self._flags(held))
        return True

    def leave_guard(self) -> None:
        """Let Python see every operation from now on."""
        if self._guard is not None and Residency.guarded is self:
            self.stop_script()
            Residency.guarded = None
            self._guard.call.own(None, None)

    def stop_script(self) -> None:
        """Stop to follow a step without Python."""
        assert self._guard is not None
        state = self._guard.state
        if state.scripted or state.diverged:
            with Interrupts(recent=True):
                reason, state.scripted, state.diverged = state.diverged, 0, 0
                self.policy.diverged(reason, self.take_orphans())

    def look(self, given: Mapping[int, UntypedStorage]) -> None:
        """Prepare for an operation that the guard hands on: make the records that it misses."""
        assert self._guard is not None
        state = self._guard.state
        if state.diverged and self._watch is getattr(_THREAD, "watch", None):
            self.stop_script()
        elif state.orphans:
            for number, storage in given.items():
                if number not in _HELD and self._guard.call.is_orphan(number):
                    self._take(storage)

    def take_orphans(self) -> list[Held]:
        """Make and return records of the storages that operations made without Python."""
        guard, new = self.guard, []
        if guard is None or not guard.state.orphans:
            return new
        guard.state.orphans = 0
        for number, slot in guard.storages(orphans=True):
            if number not in _HELD:
                try:
                    held = self._take(guard.storage(number))
                except RuntimeError:  # it has just died
                    continue
                if held is not None:
                    held.slot = slot
                    new.append(held)
        return new

    def seen(self) -> list[Held]:
        """Return the records of the storages that the step has used, with their slots."""
        assert self._guard is not None
        seen = []
        for number, slot in self._guard.storages(orphans=False):
            if (held := _HELD.get(number)) is not None:
                held.slot = slot
                seen.append(held)
        return seen

    def at(self, slot: int) -> Held | None:
        """Return the record of the storage with a number in the step that the guard follows."""
        assert self._guard is not None
        number = self._guard.call.at(slot)
        if not number:
            return None
        held = _HELD.get(number)
        if held is None:
            held = self._take(self._guard.storage(number))
        if held is not None:
            held.slot = slot
        return held

    def _room_inside(self, nbytes: int) -> None:
        """Make room for memory that an operation takes inside."""
        assert self._guard is not None
        assert self._account is not None
        under_way, account, idle_bytes = len(self._using), self._account, self._idle_bytes
        counting, self._refusal = self._guard.call.count(None), None
        used_bytes = account.used
        try:
            if Residency.guarded is self:
                self.take_orphans()
                users = map(_HELD.get, self._guard.users())
                self._using += [held for held in users if held is not None]
            self._make_room(nbytes, "memory inside an operation")
            if idle_bytes is not None:  # what has left was not the operation's
                self._note_needed(account, idle_bytes)
                self._idle_bytes = idle_bytes - (used_bytes - account.used)
                account.high = account.used
        except BaseException as error:
            self._refusal = error
            raise
        finally:
            self._guard.call.count(counting)
            account.limit = _as_integer(self.budget_bytes)
            del self._using[under_way:]

    def _flag(self, held: Held) -> None:
        if self._guard is not None and Residency.guarded is self:
            self._guard.call.flag(held.number, self._flags(held))

    @staticmethod
    def _flags(held: Held) -> int:
        away = held.comes or not held.here
        kept = held.stored or held.make or held.copied or held.job
        return AWAY * away + KEPT * bool(kept)

    def _empty(self, held: Held, storage: UntypedStorage) -> None:
        """Take a storage's memory away."""
        foreign = held.foreign
        held.here = held.foreign = False
        self._counted_bytes -= held.nbytes
        try:
            self._fill(storage, 0)
        except BaseException:
            if _nbytes(storage):
                held.here, held.foreign = True, foreign
                self._counted_bytes += held.nbytes
            raise
        self._flag(held)

    def _filled(self, held: Held) -> None:
        """Note that a storage has got its memory back."""
        held.here = True
        self._counted_bytes += held.nbytes
        self._flag(held)

    def _fill(self, storage: UntypedStorage, nbytes: int) -> None:
        """Give a storage memory of its own, or none."""
        if self._guard is None:
            _resize(storage, nbytes)
        elif code := self._guard.call.fill(self._address, storage._cdata, nbytes):
            raise RuntimeError(
                "a storage's memory was handed out: it cannot be resized"
                if code == 1
                else f"the system has no {nbytes} bytes"
            )

    def _take(self, storage: UntypedStorage, made_by: Any = None) -> Held | None:
        """Start to count a storage, and make room for it if an operation made it."""
        nbytes = _nbytes(storage)
        if nbytes < self.least_bytes or storage.device.type != self.kind or not storage.resizable():
            return None
        if self.kind == "cpu" and storage.is_shared():  # with another process
            return None
        try:
            _data_ptr(storage)
        except RuntimeError:  # zeros without memory, as a derivative may be
            return None
        held = Held(self, storage._cdata, nbytes, lambda: None, used=self._operation)
        if self._guard is not None:
            held.foreign = not self._guard.call.adopt(self._address, held.number)
            if held.foreign:
                self._guard.call.add(self._address, nbytes)
            if Residency.guarded is self:
                self._guard.call.track(held.number, nbytes, 0)
        elif made_by is not None:
            self._make_room(nbytes, made_by)
        held.storage = weakref.ref(storage, functools.partial(_DEAD.setdefault, held))
        self._held[held] = None
        _HELD[held.number] = held
        self._live_bytes += nbytes
        if self._live_bytes > self._most_live_bytes:
            self._most_live_bytes = self._live_bytes
        self._counted_bytes += nbytes
        if made_by is not None:
            self._make_room(0, made_by)
            self._note_peak()
        return held

    def _bury(self) -> None:
        """Release the records of storages that have died, and of their inputs in turn."""
        while _DEAD or self._dead:
            if _DEAD:
                _mourn()
            for held in [*self._dead]:
                if not held.gone:
                    self.policy.freed(held)
                self._release(held)
                self._dead.pop(held, None)

    def _release(self, held: Held) -> None:
        if not held.gone:
            held.gone = True
            self._live_bytes -= held.nbytes
            if held.here:
                self._counted_bytes -= held.nbytes
            if self._guard is not None and self._account is not None:
                if not held.here:
                    self._account.away -= held.nbytes
                elif held.foreign:
                    self._guard.call.add(self._address, -held.nbytes)
                if Residency.guarded is self:
                    self._guard.call.untrack(held.number)
        self._held.pop(held, None)
        if _HELD.get(held.number) is held:
            del _HELD[held.number]
        held.make = None
        self._give(held)

    def _give(self, held: Held) -> None:
        place, held.place, held.stored = held.place, None, False
        self._flag(held)
        if place is not None and (store := held.store or self.store) is not None:
            store.give(place, held.nbytes)

    def _note_peak(self) -> None:
        account = self._account
        if account is not None:
            account.peak = self.statistics.peak_bytes = max(account.peak, account.used)
        elif self._used_bytes > self.statistics.peak_bytes:
            self.statistics.peak_bytes = self._used_bytes

    def _resized(self, storage: UntypedStorage, cause: Any) -> Held | None:
        """Count a storage that an operation has resized as a new one."""
        held = _HELD.get(storage._cdata)
        if held is not None:
            self.policy.freed(held)
            self._release(held)
        return self._take(storage, cause) if self.takes or held is not None else None

    def _have(self, used: list[Held], made_bytes: int, cause: Any) -> None:
        """Bring an operation's storages into fast memory, and make room for its results."""
        absent = [held for held in used if not held.here]
        under_way = len(self._using)
        try:
            self._using += absent
            names = ", ".join(held.name for held in absent if held.name)
            self._make_room(sum(held.nbytes for held in absent) + made_bytes, names or cause)
            for held in absent:
                if not held.here:
                    self._fetch(held)
                    self._note_peak()
        finally:
            del self._using[under_way:]
        for held in used:
            if held.comes:
                self._settle(held)

    def _make_room(self, nbytes: int, cause: Any) -> None:
        while self._used_bytes + nbytes > self.budget_bytes:
            stay = {*self._using}
            needed = sum(held.nbytes for held in stay if held.here) + nbytes
            most_needed_bytes = self.most_needed_bytes
            self.most_needed_bytes = max(most_needed_bytes, needed)
            free_bytes = self.free_bytes
            if nbytes <= free_bytes:
                return
            victim = self.policy.victim(self, stay)
            if victim is None and self.take_orphans():
                continue
            if victim is None and self._account is not None:
                # Nothing else can leave: what is there is needed.
                self.most_needed_bytes = max(self.most_needed_bytes, self._used_bytes + nbytes)
                if self._used_bytes + nbytes <= self.budget_bytes:
                    return
            if victim is None:
                self.most_needed_bytes = most_needed_bytes
                stuck = sum(held.nbytes for held in self if held.here and self._is_pinned(held))
                raise torch.OutOfMemoryError(
                    f"no room for {nbytes} bytes on the device, for {cause}: {max(free_bytes, 0)} "
                    f"of {self.budget_bytes} bytes are free"
                    + (f" ({stuck} were handed out, to NumPy for one, and stay)" if stuck else "")
                    + f"; it needs a budget of at least {self._used_bytes + nbytes}"
                )
            self.drop(victim)

    def _is_pinned(self, held: Held) -> bool:
        storage = held.storage()
        return held.pinned or (storage is not None and not storage.resizable())

    def can_leave(self, held: Held) -> bool:
        """Return whether a storage in fast memory may be dropped."""
        has_place = held.make is not None or (held.store or self.store) is not None
        return has_place and not self._is_pinned(held)

    def _fetch(self, held: Held) -> None:
        storage = held.storage()
        assert storage is not None
        if held.make is not None:
            with unwatched():
                made = _storage_of(held.make())
                if _nbytes(made) != held.nbytes:
                    raise InvalidArgumentError(
                        f"{_nbytes(made)} bytes were recomputed for a storage of {held.nbytes}"
                    )
                self._fill(storage, held.nbytes)
                _copy(storage, made)
            self.statistics.bytes_made += held.nbytes
            self._filled(held)
        else:
            self._start(held, storage, self._store_of(held), comes=True)
            self.statistics.bytes_back += held.nbytes

    def _store_of(self, held: Held) -> Store:
        store = held.store or self.store
        if store is None:
            raise InvalidArgumentError("a storage has no store; in a forked process none has")
        return store

    def _start(self, held: Held, storage: UntypedStorage, store: Store, *, comes: bool) -> None:
        with Interrupts(recent=True):  # a copy's memory must stay while the copy is in flight
            if comes:
                self._fill(storage, held.nbytes)
            try:
                move = store.read if comes else store.write
                job = move(held.place, _data_ptr(storage), held.nbytes)
            except BaseException:
                if comes:
                    self._fill(storage, 0)
                raise
            held.keeps, held.comes, held.job = storage, comes, job
            self._jobs[held] = None
            if comes:
                self._filled(held)
            self._flag(held)

    def _settle(self, held: Held) -> None:
        """Wait for a storage's copy. Raises the copy's error; the source is still whole."""
        job, keeps, came = held.job, held.keeps, held.comes
        if job is None or keeps is None:
            self._jobs.pop(held, None)
            return
        began = 0 if job.done() else time.perf_counter_ns()
        error = None
        try:
            with Interrupts(recent=not began):  # memory is freed once this has raised
                job.wait()
        except Exception as caught:
            error = caught
        if began:
            self.statistics.waits += 1
            self.statistics.waited_ns += time.perf_counter_ns() - began
        held.job, held.keeps, held.comes, held.stored = None, None, False, came or error is None
        if came and error is not None:
            self._empty(held, keeps)
        self._jobs.pop(held, None)
        self._flag(held)
        if error is not None:
            raise error

    def _copied(self, held: Held) -> UntypedStorage:
        copied = held.copied() if held.copied is not None else None
        if copied is None or self._is_pinned(held):
            storage = held.storage()
            assert storage is not None
            if not held.here and held.make is not None:
                self._have([held], 0, "copying a tensor")
            self._settle(held)
            copied = UntypedStorage(held.nbytes, device=storage.device)
            if held.here:
                _copy(copied, storage)
            else:
                with Interrupts():
                    self._store_of(held).read(held.place, copied.data_ptr(), held.nbytes).wait()
            held.copied = weakref.ref(copied)
            self._flag(held)
        return copied

    def _written(self, kind: _Kind, args: Any, kwargs: Any) -> list[tuple[UntypedStorage, int]]:
        """Return the storages that an operation writes to, with their sizes before."""
        storages: dict[int, UntypedStorage] = {}
        for n, name in kind.writes:
            _gather((args[n] if n < len(args) else kwargs.get(name),), storages)
        for number in storages:
            held = _HELD.get(number)
            if held is not None:
                self._changed(held)
        return [(storage, _nbytes(storage)) for storage in storages.values()]

    def _changed(self, held: Held) -> None:
        """Prepare a storage for a write: its copies become stale."""
        self.policy.written(held)
        if held.job is not None:
            self._settle(held)  # a copy to the store reads it until then
        held.stored, held.make, held.copied = False, None, None
        self._flag(held)

    def _expected(self, func: Any, args: Any, kwargs: Any, used: list[Held]) -> int:
        """Return the bytes of the storages that an operation will make."""
        given: dict[int, Tensor] = {}
        try:
            with unwatched():  # the operation may be implemented in Python
                options = _meta(kwargs, given)
                if "device" in options:
                    options["device"] = torch.device("meta")
                results = func(*_meta(args, given), **options)
        except Exception:  # sizes may depend on values
            return sum(held.nbytes for held in used)
        theirs: dict[int, UntypedStorage] = {}
        made: dict[int, UntypedStorage] = {}
        _gather(given.values(), theirs)
        _gather((results,), made)
        sizes = [made[number].nbytes() for number in made if number not in theirs]
        return sum(nbytes for nbytes in sizes if nbytes >= self.least_bytes)

    def _known(self, func: Any, args: Any, kwargs: Any, used: list[Held]) -> int:
        """Return the result of :meth:`_expected`, which runs once for equal signatures."""
        storages: dict[int, int] = {}
        try:
            signature = func, _signature(args, storages), _signature(kwargs.items(), storages)
            known = self._known_bytes.get(signature)
        except (NotImplementedError, RuntimeError, TypeError):  # such as of a sparse tensor
            return self._expected(func, args, kwargs, used)
        if known is None:
            if len(self._known_bytes) == _SIGNATURES:
                self._known_bytes.clear()
            known = self._known_bytes[signature] = self._expected(func, args, kwargs, used)
        return known


@dataclass(frozen=True, slots=True)
class _Kind:
    """Properties of an operator."""

    func: Any
    looks: bool
    writes: tuple[tuple[int, str], ...]
    """Arguments that the operator writes to."""
    sliced: bool
    """True if the operator does the same for each tensor of its lists."""
    makes: bool
    """True if the operator's results may be new tensors."""
    outlasts: bool
    """True if the operator uses its tensors after it has returned."""


_KINDS: dict[int, _Kind] = {}


def _kind(func: Any) -> _Kind:
    name = func._schema.name
    kind = _KINDS[id(func)] = _Kind(
        func,
        func in _LOOKS,
        written_arguments(func),
        name.startswith(("aten::_foreach_", "aten::_amp_foreach_"))
        or (name.startswith("aten::_fused_") and name[-1] == "_"),
        any(output.alias_info is None for output in func._schema.returns),
        outlasts_call(func),
    )
    return kind


def _mourn() -> None:
    """Hand dead records to their residencies; residencies not entered release them now."""
    left: dict[Residency, None] = {}
    for held in [*_DEAD]:
        if _HELD.get(held.number) is held:
            del _HELD[held.number]
        held.residency._dead[held] = None
        _DEAD.pop(held, None)
        if held.residency._watch is None:
            left[held.residency] = None
    for residency in left:
        residency._bury()


_storage_of: Callable[[Any], UntypedStorage] = torch._C.TensorBase.untyped_storage


def _gather(values: Iterable[Any], storages: dict[int, UntypedStorage]) -> None:
    """Add the storages of tensors among arguments or results, by number."""
    for value in values:
        if isinstance(value, Tensor):
            layout = value.layout
            if layout is torch.strided:
                try:
                    storage = _storage_of(value)
                except (RuntimeError, NotImplementedError):  # a wrapper of torch.func
                    continue
                storages[storage._cdata] = storage
            elif layout is torch.sparse_coo:
                _gather((value._indices(), value._values()), storages)
            elif layout in (torch.sparse_csr, torch.sparse_bsr):
                _gather((value.crow_indices(), value.col_indices(), value.values()), storages)
            elif layout in (torch.sparse_csc, torch.sparse_bsc):
                _gather((value.ccol_indices(), value.row_indices(), value.values()), storages)
        elif isinstance(value, (list, tuple)):
            _gather(value, storages)
        elif isinstance(value, UntypedStorage):
            storages[value._cdata] = value


def _signature(values: Any, storages: dict[int, int]) -> Any:
    """Return the arguments of a call without tensors' bytes; they decide the sizes of results."""
    if isinstance(values, Tensor):
        number = storages.setdefault(_storage_of(values)._cdata, len(storages))
        return values.dtype, values.shape, values.stride(), number
    if isinstance(values, Iterable) and not isinstance(values, str):
        return tuple([_signature(value, storages) for value in values])
    return type(values), values


def _meta(values: Any, given: dict[int, Tensor]) -> Any:
    """Return arguments with tensors on "meta"; those that share a storage still do."""
    if isinstance(values, Tensor):
        made = torch.empty(0, dtype=values.dtype, device="meta")
        storage = given.setdefault(
            _storage_of(values)._cdata, torch.empty(0, dtype=torch.uint8, device="meta")
        ).untyped_storage()
        ends = sum((n - 1) * s for n, s in zip(values.shape, values.stride(), strict=True)) + 1
        least = (ends + values.storage_offset()) * values.element_size()
        if storage.nbytes() < least:
            storage.resize_(int(least))
        return made.set_(storage, values.storage_offset(), values.size(), values.stride())
    if isinstance(values, list | tuple):
        return type(values)(_meta(value, given) for value in values)
    if isinstance(values, dict):
        return {name: _meta(value, given) for name, value in values.items()}
    return values


# Functions that read memory without an operation.


def _weakly(residency: Residency) -> Callable[[int], None]:
    """Return a function that makes room, and does not keep the residency alive."""
    reference = weakref.ref(residency)

    def make_room(nbytes: int) -> None:
        if (there := reference()) is not None:
            there._room_inside(nbytes)

    return make_room


def _as_integer(nbytes: float) -> int:
    return guards.NEVER if nbytes >= guards.NEVER else int(nbytes)


_bytes: Any = torch._C.StorageBase
_resize: Callable[[UntypedStorage, int], Any] = _bytes.resize_
_copy: Callable[[UntypedStorage, UntypedStorage], Any] = _bytes.copy_
_nbytes: Callable[[UntypedStorage], int] = _bytes.nbytes
_data_ptr: Callable[[UntypedStorage], int] = _bytes.data_ptr


@functools.cache
def _read_through() -> None:
    """Replace the methods of tensors and storages that read memory without an operator.

    They bring storages back first, and refuse other threads. The replacement is permanent. (A
    function mode would do, but under one PyTorch leaves its fast paths and computes other bits.)
    """
    for name in ("__repr__", "__format__", "__reduce_ex__", "tolist"):
        setattr(Tensor, name, _reading(getattr(Tensor, name), copies=True))
    for kind in (Tensor, torch.nn.Parameter):
        kind.__deepcopy__ = _reading(kind.__deepcopy__, apart=True)
    for name in ("numpy", "data_ptr", "untyped_storage"):
        setattr(Tensor, name, _reading(getattr(Tensor, name), writes=True))
    for owner, name in ((Tensor, "__dlpack__"), (torch, "to_dlpack"), (dlpack, "to_dlpack")):
        setattr(owner, name, _reading(getattr(owner, name), writes=True, pins=True))
    for name in (
        "__getitem__", "__setitem__", "_byteswap", "_set_from_file", "_write_file", "copy_",
        "data_ptr",
    ):  # fmt: skip
        setattr(UntypedStorage, name, _reading(getattr(UntypedStorage, name), writes=True))
    for name in ("__len__", "nbytes", "size"):
        setattr(UntypedStorage, name, _sizing(getattr(UntypedStorage, name)))
    UntypedStorage.resize_ = _resizing(UntypedStorage.resize_)
    for shared in (Tensor, UntypedStorage):
        shared.share_memory_ = _sharing(shared.share_memory_)
    for name in ("_share_fd_cpu_", "_share_filename_cpu_"):
        setattr(UntypedStorage, name, _sharing(getattr(UntypedStorage, name)))
    for queue in (Queue, JoinableQueue):
        queue.put = _putting(queue.put)
    threading.Thread.start = _starting(threading.Thread.start)


def _held_in(value: Tensor | UntypedStorage, *, pins: bool = False) -> Held | None:
    """Return the record of a tensor or storage that this thread may have in memory."""
    if isinstance(value, Tensor):
        held = held_of(value)
    else:
        if _DEAD:
            _mourn()
        held = _held_at(value)
    if held is None:
        return None
    try:
        held.residency.check_thread()
    except InvalidArgumentError:
        if not _only_counted(held):
            raise
        held.pinned |= pins
        return None
    return held


def _reading(
    method: Any,
    *,
    copies: bool = False,
    writes: bool = False,
    pins: bool = False,
    apart: bool = False,
) -> Any:
    """Return a method that brings a tensor's memory; with ``apart`` its result is not counted."""

    @functools.wraps(method)
    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        for value in (self, *args) if _HELD else ():
            if not isinstance(value, Tensor | UntypedStorage):
                continue
            if (held := _held_in(value, pins=pins)) is None:
                continue
            residency = held.residency
            if copies:
                return method(residency.copied(self), *args, **kwargs)
            residency._have([held], 0, "reading a tensor")
            held.pinned |= pins
            if writes:
                residency._changed(held)
            if apart:
                with unwatched():
                    return method(self, *args, **kwargs)
        return method(self, *args, **kwargs)

    return read


def _sizing(method: Any) -> Any:
    @functools.wraps(method)
    def size(self: UntypedStorage) -> int:
        held = _HELD.get(self._cdata)
        return method(self) if held is None or held in _DEAD else held.nbytes

    return size


def _resizing(method: Any) -> Any:
    @functools.wraps(method)
    def resize(self: UntypedStorage, size: int) -> Any:
        held = _held_in(self)
        if held is not None:
            held.residency._have([held], 0, "resizing a storage")
            held.residency._changed(held)
        result = method(self, size)
        if (held := _HELD.get(self._cdata)) is not None and _nbytes(self) != held.nbytes:
            held.residency._resized(self, "resizing a storage")
        return result

    return resize


def _sharing(method: Any) -> Any:
    @functools.wraps(method)
    def share(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _HELD:
            _refuse_sharing(self)
        return method(self, *args, **kwargs)

    return share


def _refuse_sharing(value: Tensor | UntypedStorage) -> None:
    held = _held_in(value, pins=True)
    if held is not None and not _only_counted(held):
        raise InvalidArgumentError(
            f"{held.name or 'a tensor'} of {held.nbytes} bytes is in a memory plan, which moves "
            "it, so that its memory cannot be shared with another process: close the policy "
            f"first, or hand over {_COPY}"
        )
    if held is not None:
        held.pinned = True


class _Sent(ForkingPickler):
    """Pickler that refuses objects for another process if they have tensors that move."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (Tensor, UntypedStorage)):
            _refuse_sharing(obj)
            return int, ()
        return NotImplemented


def _putting(method: Any) -> Any:
    """Return a ``put`` that refuses in the call: the queue's own thread has no caller to tell."""

    @functools.wraps(method)
    def put(self: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        watch = getattr(_THREAD, "watch", None)
        if watch is not None and watch.residencies:
            try:
                _Sent(io.BytesIO(), -1).dump(obj)
            except InvalidArgumentError:
                raise
            except Exception:  # the queue reports it
                pass
        return method(self, obj, *args, **kwargs)

    return put


def _starting(method: Any) -> Any:
    @functools.wraps(method)
    def start(self: threading.Thread) -> None:
        run = self.run

        def watched() -> None:
            _guard()
            run()

        if _Watch.guarding:
            self.run = watched
        method(self)

    return start


def _guard() -> bool:
    """Enter a watch in this thread if it must be kept off, or leave one.

    Return whether that is done. Below another mode it cannot be.
    """
    watch, mode = getattr(_THREAD, "watch", None), _get_current_dispatch_mode()
    if watch is None and _Watch.guarding and mode is None:
        _THREAD.watch = _Watch().__enter__()
        _THREAD.end = _End(_THREAD.watch)
    elif watch is mode and not (_Watch.guarding or watch is None or watch.residencies):
        watch.__exit__(None, None, None)
        _THREAD.watch = _THREAD.end = None
    else:
        return (watch is not None) is _Watch.guarding
    return True


def _in_other_threads(act: Callable[[], bool]) -> None:
    """Call ``act`` in each other thread, at its next Python calls, until it returns True."""

    def call(*_: Any) -> int:
        if act():
            sys.setprofile(None)
        return 0

    own = sys.getprofile()
    if sys.version_info >= (3, 12):
        later = threading.getprofile()
        threading.setprofile_all_threads(call)
        threading.setprofile(later)
        sys.setprofile(own)
        return
    # As the function of Python 3.12.
    python = ctypes.pythonapi
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
    )
    _THREAD_HOOKS.append(called := kind(call))
    for function in (python.PyThreadState_Get, python.PyInterpreterState_Get):
        function.restype = ctypes.c_void_p
    for function in (python.PyInterpreterState_ThreadHead, python.PyThreadState_Next):
        function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    python._PyEval_SetProfile.argtypes = [ctypes.c_void_p, kind, ctypes.c_void_p]
    this = python.PyThreadState_Get()
    thread = python.PyInterpreterState_ThreadHead(python.PyInterpreterState_Get())
    while thread:
        if thread != this:
            python._PyEval_SetProfile(thread, called, None)
        thread = python.PyThreadState_Next(thread)


@dataclass
class _End:
    """Leaves a watch at the end of its thread, which may be that of the interpreter."""

    watch: _Watch

    def __del__(self) -> None:
        if _get_current_dispatch_mode() is self.watch:
            self.watch.__exit__(None, None, None)


_THREAD_HOOKS: list[Any] = []
"""C functions that threads may still call."""


def _only_counted(held: Held) -> bool:
    return held.here and not held.residency.can_leave(held)


def held_of(tensor: Tensor) -> Held | None:
    """Return the record of a tensor's storage, None if no residency has it."""
    if _DEAD:
        _mourn()
    if not _HELD:
        return None
    try:
        return _held_at(_storage_of(tensor)) if tensor.layout is torch.strided else None
    except (RuntimeError, NotImplementedError):  # a tensor class without a storage
        return None


def _held_at(storage: UntypedStorage) -> Held | None:
    """Return the record of a storage, made now if an operation without Python made the storage."""
    held, guarded = _HELD.get(storage._cdata), Residency.guarded
    if held is None and guarded is not None:
        guarded.look({storage._cdata: storage})
        held = _HELD.get(storage._cdata)
    return held


def _forked() -> None:
    """Detach all residencies in a forked process: it has neither their threads nor their file."""
    for residency in _RESIDENCIES:
        residency._watch, residency.takes, residency.store = None, False, None
        Residency.guarded = None
        residency.budget_bytes = None  # no storage can leave


os.register_at_fork(after_in_child=_forked)
