"""Store on a module: places in its channels' memory, with NVMe storage behind it.

All operations on a channel are queued in one stream in the order of the calls, and so are copies
between its places and storage. Room passes to another place once the copy that saves the old one is
queued. Later operations run later, so nothing has to be waited for (paper sections 5.2 and 5.3).
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from hw.rules import RULES
from sw_driver.axdimm import Axdimm, AxdimmPointer, KernelRun
from sw_driver.axdimm.allocator import ChannelAllocator
from sw_driver.axdimm.transport import LINE_BYTES
from sw_driver.device.errors import (
    BusyError,
    ClosedError,
    InvalidArgumentError,
    OutOfMemoryError,
    StreamFailedError,
    shown,
)
from sw_driver.device.memory import Allocator, NvmePointer, checked_size
from sw_driver.device.streams import Handle, Stream
from sw_driver.torch.step import unwatched
from sw_driver.torch.stores import Job, Store

__all__ = ["ChannelChoice", "ModuleStore", "Place", "StoreStatistics"]

ChannelChoice = Literal["round_robin", "by_bytes"]
"""Choice of a parameter's channel: in turn (paper section 5.2), or that with the fewest bytes."""

_ENDS = {"host": "Host", "module": "Axdimm", "nvme": "Nvme"}
"""Names of a route's ends in the driver's copy functions."""

_IN_FLIGHT = 2
"""Copies in flight from the host's memory to the module, at most; more would fill memory."""


@dataclass(eq=False)
class Place:
    """Place of a tensor, in its state after all queued operations."""

    room: _Room
    nbytes: int
    name: str
    """Description of the tensor for messages."""
    used: int = 0
    """Number of the last operation that used the place; a larger one is later."""
    updated: bool = False
    """True if the place was used by an update in this iteration."""
    offset: int | None = None
    """Offset in the channel's memory, None without room there."""
    here: bool = False
    """True if the channel's memory has the content."""
    stored: bool = False
    """True if the storage has the content."""
    slot: NvmePointer | None = None
    """Storage of the place, allocated at first need."""
    writer: Handle[Any] | None = None
    """Copy that last wrote to the storage."""
    reader: Handle[Any] | None = None
    """Copy that last read the storage outside the channel's stream."""


@dataclass(kw_only=True)
class StoreStatistics:
    """Counts of a store's operations, made when they are queued, except for kernel times."""

    copied_bytes: Counter[str] = field(default_factory=Counter)
    """Bytes copied, by route: ``"host->module"`` and others of ``host``, ``module``, ``nvme``."""
    evictions: int = 0
    """Tensors with values that were evicted from the module."""
    evictions_without_write: int = 0
    """Evicted tensors that storage already had with these values."""
    nvme_bytes: int = 0
    """Bytes of allocated storage, which is kept for other tensors of the size."""
    peak_module_bytes: list[int] = field(default_factory=list)
    """Peak of the bytes in use of each channel."""
    runs: int = 0
    """Kernel runs."""
    kernel_ns: list[float] = field(default_factory=list)
    """Time that each channel spent in its kernel, in ns; 0 on a backend without a clock."""


class _Room:
    """Room for places on one channel, and the queue of operations on them."""

    def __init__(
        self, device: Axdimm, number: int, capacity_bytes: int, statistics: StoreStatistics
    ) -> None:
        self.number = number
        self.capacity_bytes = capacity_bytes
        self.given_bytes = 0
        """Bytes of all places, wherever their content is."""
        self.stream: Stream = device.new_stream(f"of a store, channel {number}")
        self._arena: AxdimmPointer = device.MallocAxdimm(capacity_bytes, number)
        self._device = device
        self._statistics = statistics
        self._allocator: Allocator = ChannelAllocator(limit_bytes=capacity_bytes)
        self._resident: dict[Place, None] = {}
        """Places with room, in the order in which they got it."""
        self._runs: deque[KernelRun] = deque()
        """Runs with times not counted yet."""
        self._slots: list[NvmePointer] = []
        self._spare: dict[int, list[NvmePointer]] = {}
        """Unused allocated storage, by size in bytes."""

    def gather(self, wanted: Sequence[Place]) -> None:
        """Bring these places onto the module; none of them is evicted for another.

        Raises :class:`OutOfMemoryError` if there is no storage to evict to. All places then still
        have their content, on the module or in storage.
        """
        for place in wanted:
            while place.offset is None and not self._take(place):
                victims = [resident for resident in self._resident if resident not in wanted]
                if victims:
                    self._evict(min(victims, key=lambda victim: (not victim.updated, victim.used)))
                else:
                    self._start_afresh(wanted)
        for place in wanted:
            if place.stored and not place.here:
                self.copy("nvme->module", place, self.pointer(place), self._slot(place))
                place.here = True

    def _take(self, place: Place) -> bool:
        """Give ``place`` room if there is some free; return whether it has it."""
        try:
            place.offset = self._allocator.allocate(place.nbytes)
        except OutOfMemoryError:
            return False
        self._resident[place] = None
        used = self._allocator.statistics().allocated_bytes
        peaks = self._statistics.peak_module_bytes
        peaks[self.number] = max(peaks[self.number], used)
        return True

    def _start_afresh(self, wanted: Sequence[Place]) -> None:
        """Evict all places and take room for ``wanted`` again, since free pieces are too small.

        From then on places lie one after the other, so that all fit that do by their sizes.
        """
        self.check_fits(wanted[0].name, [place.nbytes for place in wanted])
        for place in list(self._resident):
            self._evict(place)
        self._allocator = Allocator(limit_bytes=self.capacity_bytes)
        for place in wanted:
            taken = self._take(place)
            assert taken, place.name

    def check_fits(self, name: str, sizes: Sequence[int]) -> None:
        """Raise :class:`OutOfMemoryError` if the empty channel has no room for these sizes."""
        nbytes = sum(-(-size // LINE_BYTES) * LINE_BYTES for size in sizes)
        if nbytes > self.capacity_bytes:
            raise OutOfMemoryError(
                f"the tensors of {name} need {nbytes} bytes of one channel at once, channel "
                f"{self.number} has {self.capacity_bytes} for the store: capacity_bytes of at "
                f"least {nbytes} would do",
                nbytes=nbytes,
                capacity_bytes=self.capacity_bytes,
                channel=self.number,
            )

    def _evict(self, place: Place) -> None:
        if place.here:
            if not place.stored:
                self._write(place)
            else:
                self._statistics.evictions_without_write += 1
            self._statistics.evictions += 1
        self._leave(place)

    def forget(self, place: Place) -> None:
        """Discard a place's content, and free its room and storage."""
        self._leave(place)
        place.stored = False
        if place.slot is not None:
            # Only this stream has used it: another place may have it now, but freeing must wait.
            self._spare.setdefault(place.nbytes, []).append(place.slot)
            place.slot = None

    def _leave(self, place: Place) -> None:
        if place.offset is not None:
            self._allocator.free(place.offset)
            del self._resident[place]
        place.offset, place.here = None, False

    def _slot(self, place: Place) -> NvmePointer:
        """Return a place's storage, allocated now if it has none.

        Raises :class:`OutOfMemoryError`, also if no storage is registered.
        """
        if place.slot is None and self._spare.get(place.nbytes):
            place.slot = self._spare[place.nbytes].pop()
        if place.slot is not None:
            return place.slot
        problem = f"channel {self.number} is full and {place.name} cannot go to storage"
        if not self._device.storage.links:
            raise OutOfMemoryError(
                f"{problem}, as none is registered: give the store some, or more than "
                f"{self.capacity_bytes} bytes of the channel",
                tensor=place.name,
                nbytes=place.nbytes,
                capacity_bytes=self.capacity_bytes,
                channel=self.number,
            )
        try:
            place.slot = self._device.MallocNvme(place.nbytes)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(
                f"{problem}: {error}", **error.details | {"tensor": place.name}
            ) from None
        self._slots.append(place.slot)
        self._statistics.nvme_bytes += place.nbytes
        return place.slot

    def close(self) -> None:
        """Free the channel's memory and storage, when nothing is queued."""
        for slot in self._slots:
            self._device.FreeNvme(slot)
        self._device.FreeAxdimm(self._arena)

    # Queued operations.

    def copy(
        self, route: str, place: Place, target: Any, source: Any, stream: Stream | None = None
    ) -> Handle[None]:
        """Queue a copy, in the channel's stream unless another is given, and count it."""
        copy = getattr(self._device, "Memcpy" + "2".join(_ENDS[end] for end in route.split("->")))
        handle = copy(target, source, place.nbytes, stream=stream or self.stream, modes="wait")
        self._statistics.copied_bytes[route] += place.nbytes
        return handle

    def put(self, place: Place, source: Any) -> Handle[None]:
        """Copy host memory to a place, which gets room on the module."""
        place.here = place.stored = False
        self.gather([place])
        handle = self.copy("host->module", place, self.pointer(place), source)
        place.here = True
        return handle

    def run(
        self, rule: str, places: Mapping[str, Place], count: int, values: Mapping[str, Any]
    ) -> KernelRun:
        """Run ``rule`` on ``count`` values of the channel's places, which it gathers."""
        self.gather(list(places.values()))
        pointers = {name: self.pointer(place) for name, place in places.items()}
        options: dict[str, Any] = {"stream": self.stream, "modes": "wait"}
        run = self._device.RunOnAxdimmAsync(rule, pointers, count, values, self.number, **options)
        self._statistics.runs += 1
        self._runs.append(run)
        self.count()
        for name in RULES[rule].outputs:
            places[name].here, places[name].stored = True, False
        return run

    def _write(self, place: Place) -> None:
        """Copy a place to its storage, after any read of it in another stream."""
        slot = self._slot(place)
        if place.reader is not None:
            self.stream.wait_for(place.reader)
            place.reader = None
        place.writer = self.copy("module->nvme", place, slot, self.pointer(place))
        place.stored = True

    def pointer(self, place: Place) -> AxdimmPointer:
        """Return the pointer to a place's room on the channel."""
        assert place.offset is not None
        return self._arena + place.offset

    def count(self) -> None:
        """Count the time of runs that have ended, without waiting."""
        while self._runs and self._runs[0].over:
            result = self._runs.popleft().result
            if result is not None:
                ns = result.fabric_cycles * 1000 / self._device.transport.fabric_mhz
                self._statistics.kernel_ns[self.number] += ns


class ModuleStore(Store):
    """Store of FP32 tensors in the memory of a module, evicted to storage.

    Calls only queue operations; results do not depend on when they are waited for. Operations on a
    channel run in the order of the calls, so one channel computes while the other copies. Copies
    from storage to the host run beside both. Placement is decided in the call, so it is
    deterministic.

    When a channel is full, tensors updated in this iteration are evicted first (paper section 5.3),
    and of these the least recently used. Operands of an operation are never evicted for it.

    After a failed operation the store refuses further ones: a half-done step has no consistent
    state, and training has to go on from a checkpoint.

    Parameters
    ----------
    device: the opened module. It stays open when the store is closed.
    capacity_bytes: bytes of each channel to use; None for the largest free piece.
    placement: see :data:`ChannelChoice`.
    storage: file or files to register as storage, striped over; None for the storage that the
        device has registered. Without any, a full channel raises :class:`OutOfMemoryError`.
    storage_bytes: bytes of each file to use, see
        :meth:`~sw_driver.axdimm.device.Axdimm.RegisterStorage`.
    kind: device type of the memory that is copied, ``"cpu"`` or ``"cuda"``.

    Raises
    ------
    InvalidArgumentError, OutOfMemoryError, StorageError, DeviceInUseError: as their names say.
    """

    def __init__(
        self,
        device: Axdimm,
        *,
        capacity_bytes: int | None = None,
        placement: ChannelChoice = "round_robin",
        storage: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        storage_bytes: int | None = None,
        kind: str = "cpu",
    ) -> None:
        known = get_args(ChannelChoice)
        if placement not in known:
            raise InvalidArgumentError(
                f"placement is {shown(placement)}: expected {' or '.join(map(repr, known))}",
                option="placement",
            )
        if not isinstance(device, Axdimm):
            raise InvalidArgumentError(f"device is {shown(device)}: expected an opened Axdimm")
        if storage is not None and not isinstance(storage, str | os.PathLike | Sequence):
            raise InvalidArgumentError(f"storage is {shown(storage)}: expected a path, or several")
        if storage_bytes is not None:
            checked_size("storage_bytes", storage_bytes, minimum=1)
            if not storage:
                raise InvalidArgumentError(
                    f"storage_bytes is {storage_bytes}, but there is no storage: give its path"
                )
        if capacity_bytes is None and any(
            device.memory(channel).largest_free_bytes < LINE_BYTES
            for channel in range(device.channels)
        ):
            raise InvalidArgumentError(
                "device has no memory left: close the policy that has it, or give each one a "
                "capacity_bytes"
            )
        sizes = [
            device.memory(channel).largest_free_bytes if capacity_bytes is None else capacity_bytes
            for channel in range(device.channels)
        ]
        self._placement, self._kind = placement, kind
        self._closed = False
        self._clock = self._taken = 0
        self._used: set[Place] = set()
        """Places used by updates in this iteration."""
        self._sent: deque[Handle[None]] = deque()
        self._statistics = StoreStatistics(
            peak_module_bytes=[0] * len(sizes), kernel_ns=[0.0] * len(sizes)
        )
        self._fetches = device.new_stream("of a store, from storage")
        self._rooms: list[_Room] = []
        files = [storage] if isinstance(storage, str | os.PathLike) else storage or ()
        with ExitStack() as made:
            for number, size in enumerate(sizes):
                size = checked_size("capacity_bytes", size, minimum=LINE_BYTES)
                size -= size % LINE_BYTES
                self._rooms.append(_Room(device, number, size, self._statistics))
                made.callback(self._rooms[-1].close)
            for file in files:
                device.RegisterStorage(file, capacity_bytes=storage_bytes)
            made.pop_all()

    @property
    def failure(self) -> BaseException | None:
        """Error of the first failed operation; None while the store is sound."""
        failures = (stream.failure for stream in self._streams)
        return next((failure for failure in failures if failure is not None), None)

    def statistics(self) -> StoreStatistics:
        """Return the counts, as they are when all queued operations have ended; does not wait."""
        for room in self._rooms:
            room.count()
        return deepcopy(self._statistics)

    def take(
        self,
        nbytes: int,
        *,
        beside: Place | None = None,
        name: str = "a tensor",
        sizes: Sequence[int] = (),
    ) -> Place:
        """Return a place, on the channel of another one if that is given.

        Raises :class:`OutOfMemoryError` if the channel could not hold ``sizes`` at once.
        """
        room = beside.room if beside is not None else self._next_room()
        room.check_fits(name, sizes or [nbytes])
        self._taken += beside is None
        room.given_bytes += nbytes
        return Place(room, nbytes, name)

    def give(self, place: Place, nbytes: int) -> None:
        """Discard a place, at once; copies from it that are queued still run."""
        place.room.given_bytes -= nbytes
        place.room.forget(place)
        self._used.discard(place)

    def write(self, place: Place, address: int, nbytes: int) -> Job:
        """Start to copy memory to a place. It may be reused on return."""
        self._use(place)
        with unwatched():
            values = np.array(self._memory(address, nbytes).cpu().numpy())
        self._sent.append(place.room.put(place, values))
        while len(self._sent) > _IN_FLIGHT:
            self._sent.popleft().wait()
        return _Copy()

    def read(self, place: Place, address: int, nbytes: int) -> Job:
        """Start to copy a place to memory, straight from storage if it is there."""
        self._use(place)
        memory, room = self._memory(address, nbytes), place.room
        with unwatched():
            landing = memory if memory.is_cpu else torch.empty_like(memory, device="cpu")
        if place.here:
            handle = room.copy("module->host", place, landing.numpy(), room.pointer(place))
        else:
            if place.writer is not None:
                self._fetches.wait_for(place.writer)
            handle = place.reader = room.copy(
                "nvme->host", place, landing.numpy(), place.slot, self._fetches
            )

        def end() -> None:
            handle.wait()
            if landing is not memory:
                with unwatched():
                    memory.copy_(landing)

        return _Copy(end)

    def run(
        self, rule: str, places: Mapping[str, Place], count: int, values: Mapping[str, Any]
    ) -> KernelRun:
        """Run an update rule on places of one channel, which then have its results.

        Raises :class:`OutOfMemoryError` if the storage is full; nothing is lost then.
        """
        self._use(*places.values())
        run = next(iter(places.values())).room.run(rule, places, count, values)
        for place in places.values():
            place.updated = True
            self._used.add(place)
        return run

    def begin_iteration(self) -> None:
        """Begin an iteration, in which nothing has been updated yet."""
        while self._used:
            self._used.pop().updated = False

    def drain(self) -> None:
        """Wait for all queued operations; raise the error of the first that failed."""
        self._sent.clear()
        for stream in self._streams:
            stream.wait()

    def close(self) -> None:
        """Let all queued operations end, and free the memory. A second call does nothing.

        It does not raise errors of operations: :meth:`drain` does.
        """
        if self._closed:
            return
        self._closed = True
        with suppress(ClosedError, BusyError):
            for stream in self._streams:  # whether or not it has failed
                with suppress(Exception):
                    stream.wait()
            for room in self._rooms:
                room.close()

    # Helpers.

    def _next_room(self) -> _Room:
        if self._placement == "round_robin":
            return self._rooms[self._taken % len(self._rooms)]
        return min(self._rooms, key=lambda room: room.given_bytes)

    def _use(self, *places: Place) -> None:
        """Count a use of places; raise an error in a store that is closed or has failed."""
        if self._closed:
            raise ClosedError("the store was closed")
        failure = self.failure
        if failure is not None:
            raise StreamFailedError(
                f"the store failed ({failure}): go on in a new one, from what was saved last"
            ) from failure
        self._clock += 1
        for place in places:
            place.used = self._clock

    @property
    def _streams(self) -> list[Stream]:
        return [*(room.stream for room in self._rooms), self._fetches]

    def _memory(self, address: int, nbytes: int) -> Tensor:
        """Return the bytes at an address of the device's memory."""
        with unwatched():
            if self._kind == "cpu":
                values = (ctypes.c_uint8 * nbytes).from_address(address)
                return torch.from_numpy(np.ctypeslib.as_array(values))
            there = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}
            memory = SimpleNamespace(__cuda_array_interface__=there)
            return torch.as_tensor(memory, dtype=torch.uint8, device=self._kind)


@dataclass(frozen=True)
class _Copy(Job):
    """A copy that has read its memory, or one that the training thread ends.

    Polling the latter would take simulated time.
    """

    end: Callable[[], None] | None = None

    def done(self) -> bool:
        return self.end is None

    def wait(self) -> None:
        if self.end is not None:
            self.end()
