"""Part of a store on one channel: room for tensors, and the queue of operations on them.

All operations on the channel are queued in one stream in the order of the calls, and so are copies
between its tensors and storage. Room passes to another tensor once the copy that saves the old one
is queued. Later operations run later, so nothing has to be waited for.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.rules import RULES
from hw.rules.update_rule import UpdateRule
from sw_driver.axdimm import Axdimm, AxdimmPointer, KernelRun
from sw_driver.axdimm.allocator import ChannelAllocator
from sw_driver.axdimm.transport import LINE_BYTES
from sw_driver.device.errors import OutOfMemoryError
from sw_driver.device.memory import Allocator, NvmePointer
from sw_driver.device.streams import Handle, Stream

__all__ = ["ChannelRoom", "Entry", "Kept", "StoreStatistics", "padded_bytes"]

_ENDS = {"host": "Host", "module": "Axdimm", "nvme": "Nvme"}
"""Names of a route's ends in the driver's copy functions."""


@dataclass(eq=False)
class Kept:
    """A tensor of a store, in its state after all queued operations."""

    name: str
    """Description of the tensor for messages."""
    nbytes: int
    entry: Entry
    used: int = 0
    """Number of the last operation that used the tensor; a larger one is later."""
    place: int | None = None
    """Offset of the tensor's room in the channel's memory, None without room."""
    here: bool = False
    """True if the tensor's room has its values."""
    stored: bool = False
    """True if the tensor's storage has its values."""
    slot: NvmePointer | None = None
    """Storage of the tensor, allocated at first need."""
    writer: Handle[Any] | None = None
    """Copy that last wrote to the tensor's storage."""
    reader: Handle[Any] | None = None
    """Copy that last read the tensor's storage outside the channel's stream."""

    @property
    def known(self) -> bool:
        """True if the tensor has values."""
        return self.here or self.stored


@dataclass(eq=False)
class Entry:
    """A parameter with its gradient and optimizer state: the tensors of its rule."""

    name: str
    rule: UpdateRule
    shape: tuple[int, ...]
    count: int
    channel: int
    tensors: dict[str, Kept] = field(default_factory=dict)
    updated: bool = False
    """True if the parameter was updated in this iteration."""
    squares: KernelRun | None = None
    """Run that adds up the gradient's squares, if requested."""

    @property
    def gradient(self) -> Kept:
        """Tensor that receives the parameter's gradient."""
        return self.tensors["g"]

    @property
    def lasting(self) -> dict[str, Kept]:
        """Tensors that outlive a step: all but the gradient."""
        return {name: tensor for name, tensor in self.tensors.items() if name != "g"}


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
    """Bytes of allocated storage."""
    peak_nvme_bytes: int = 0
    peak_module_bytes: list[int] = field(default_factory=list)
    """Peak of the bytes in use of each channel."""
    runs: int = 0
    """Kernel runs."""
    kernel_ns: list[float] = field(default_factory=list)
    """Time that each channel spent in its kernel, in ns; 0 on a backend without a clock."""


class ChannelRoom:
    """Room for tensors on one channel, and the queue of operations on them.

    Parameters
    ----------
    device, number: the opened module, and the number of the channel.
    capacity_bytes: bytes of the channel to use, a positive multiple of 64.
    statistics: counts to update.
    """

    def __init__(
        self,
        device: Axdimm,
        number: int,
        capacity_bytes: int,
        statistics: StoreStatistics,
    ) -> None:
        self.number = number
        self.capacity_bytes = capacity_bytes
        self.stream: Stream = device.new_stream(f"of a store, channel {number}")
        self.arena: AxdimmPointer = device.MallocAxdimm(capacity_bytes, number)
        self._device = device
        self._statistics = statistics
        self._allocator: Allocator = ChannelAllocator(limit_bytes=capacity_bytes)
        self._resident: dict[Kept, None] = {}
        """Tensors with room, in the order in which they got it."""
        self._runs: deque[KernelRun] = deque()
        """Runs with times not counted yet."""
        self._spare: dict[int, list[NvmePointer]] = {}
        """Unused allocated storage, by size in bytes."""

    # Room.

    def take(self, tensor: Kept) -> bool:
        """Give ``tensor`` room if there is some free; return whether it has it."""
        try:
            place = self._allocator.allocate(tensor.nbytes)
        except OutOfMemoryError:
            return False
        tensor.place = place
        self._resident[tensor] = None
        used = self._allocator.statistics().allocated_bytes
        peaks = self._statistics.peak_module_bytes
        peaks[self.number] = max(peaks[self.number], used)
        return True

    def gather(self, wanted: Sequence[Kept]) -> None:
        """Bring these tensors onto the module; none of them is evicted for another.

        Raises :class:`OutOfMemoryError` if there is no storage to evict to. All tensors then still
        have their values, on the module or in storage.
        """
        for tensor in wanted:
            while tensor.place is None and not self.take(tensor):
                victims = [resident for resident in self._resident if resident not in wanted]
                if victims:
                    self._evict(min(victims, key=self._rank))
                else:
                    self._start_afresh(wanted)
        for tensor in wanted:
            if tensor.stored and not tensor.here:
                self.copy("nvme->module", tensor, self.pointer(tensor), self.slot(tensor))
                tensor.here = True

    def _rank(self, tensor: Kept) -> tuple[bool, int]:
        """Return the rank of a tensor; the least is evicted first."""
        return not tensor.entry.updated, tensor.used

    def _start_afresh(self, wanted: Sequence[Kept]) -> None:
        """Evict all tensors and place ``wanted`` again, since free pieces are too small.

        From then on tensors lie one after the other, so that all fit that do by their sizes.
        """
        nbytes = sum(padded_bytes(tensor.nbytes) for tensor in wanted)
        self.check_fits(wanted[0].entry.name, nbytes)
        for tensor in list(self._resident):
            self._evict(tensor)
        self._allocator = Allocator(limit_bytes=self.capacity_bytes)
        for tensor in wanted:
            taken = self.take(tensor)
            assert taken, tensor.name

    def check_fits(self, name: str, nbytes: int) -> None:
        """Raise :class:`OutOfMemoryError` if the empty channel has less room than ``nbytes``."""
        if nbytes > self.capacity_bytes:
            raise OutOfMemoryError(
                f"the tensors of {name} need {nbytes} bytes of one channel at once, channel "
                f"{self.number} has {self.capacity_bytes} for the store: capacity_bytes of at "
                f"least {nbytes} would do",
                nbytes=nbytes,
                capacity_bytes=self.capacity_bytes,
                channel=self.number,
            )

    def _evict(self, tensor: Kept) -> None:
        if tensor.here:
            unchanged = tensor.stored
            if not unchanged:
                self._write(tensor, "module->nvme", self.pointer(tensor))
            self._statistics.evictions += 1
            self._statistics.evictions_without_write += unchanged
        self._leave(tensor)

    def forget(self, tensor: Kept) -> None:
        """Discard a tensor's values, and free its room and storage."""
        self._leave(tensor)
        tensor.stored = False
        if tensor.slot is not None:
            # Only this stream has used it: another tensor may have it now, but freeing must wait.
            self._spare.setdefault(tensor.nbytes, []).append(tensor.slot)
            tensor.slot = None

    def _leave(self, tensor: Kept) -> None:
        if tensor.place is not None:
            self._allocator.free(tensor.place)
            del self._resident[tensor]
        tensor.place, tensor.here = None, False

    def slot(self, tensor: Kept) -> NvmePointer:
        """Return a tensor's storage, allocated now if it has none.

        Raises :class:`OutOfMemoryError`, also if no storage is registered.
        """
        if tensor.slot is None and self._spare.get(tensor.nbytes):
            tensor.slot = self._spare[tensor.nbytes].pop()
        if tensor.slot is not None:
            return tensor.slot
        problem = f"channel {self.number} is full and {tensor.name} cannot go to storage"
        if not self._device.storage.links:
            raise OutOfMemoryError(
                f"{problem}, as none is registered: give the store some, or more than "
                f"{self.capacity_bytes} bytes of the channel",
                tensor=tensor.name,
                nbytes=tensor.nbytes,
                capacity_bytes=self.capacity_bytes,
                channel=self.number,
            )
        try:
            tensor.slot = self._device.MallocNvme(tensor.nbytes)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(
                f"{problem}: {error}", **error.details | {"tensor": tensor.name}
            ) from None
        counts = self._statistics
        counts.nvme_bytes += tensor.nbytes
        counts.peak_nvme_bytes = max(counts.peak_nvme_bytes, counts.nvme_bytes)
        return tensor.slot

    def free_slot(self, tensor: Kept) -> None:
        """Free a tensor's storage, which no operation uses."""
        if tensor.slot is not None:
            self._device.FreeNvme(tensor.slot)
            self._statistics.nvme_bytes -= tensor.nbytes
            tensor.slot = None

    def close(self) -> None:
        """Free the channel's memory and unused storage, when nothing is queued."""
        for slots in self._spare.values():
            for slot in slots:
                self._device.FreeNvme(slot)
        self._device.FreeAxdimm(self.arena)

    # Queued operations.

    def put(self, tensor: Kept, source: NDArray[np.float32]) -> Handle[None]:
        """Copy host values to the tensor's room, or to its storage if it has no room."""
        if tensor.place is None:
            return self._write(tensor, "host->nvme", source)
        handle = self.copy("host->module", tensor, self.pointer(tensor), source)
        tensor.here, tensor.stored = True, False
        return handle

    def get(self, tensor: Kept, target: NDArray[np.float32]) -> Handle[None]:
        """Copy a tensor's values from its room to the host."""
        return self.copy("module->host", tensor, target, self.pointer(tensor))

    def copy(
        self, route: str, tensor: Kept, target: Any, source: Any, stream: Stream | None = None
    ) -> Handle[None]:
        """Queue a copy, in the channel's stream unless another is given, and count it."""
        copy = getattr(self._device, "Memcpy" + "2".join(_ENDS[end] for end in route.split("->")))
        handle = copy(target, source, tensor.nbytes, stream=stream or self.stream, modes="wait")
        self._statistics.copied_bytes[route] += tensor.nbytes
        return handle

    def run(
        self, rule: str, tensors: Mapping[str, Kept], hyperparameters: Mapping[str, Any]
    ) -> KernelRun:
        """Run ``rule`` on tensors of one entry that are on the channel."""
        pointers = {name: self.pointer(tensor) for name, tensor in tensors.items()}
        count = next(iter(tensors.values())).entry.count
        options: dict[str, Any] = {"stream": self.stream, "modes": "wait"}
        run = self._device.RunOnAxdimmAsync(
            rule, pointers, count, hyperparameters, self.number, **options
        )
        self._statistics.runs += 1
        self._runs.append(run)
        self.count()
        for name in RULES[rule].outputs:
            tensors[name].here, tensors[name].stored = True, False
        return run

    def _write(self, tensor: Kept, route: str, source: Any) -> Handle[None]:
        """Copy values to the tensor's storage, after any read of it in another stream."""
        slot = self.slot(tensor)
        if tensor.reader is not None:
            self.stream.wait_for(tensor.reader)
            tensor.reader = None
        tensor.writer = self.copy(route, tensor, slot, source)
        tensor.stored = True
        return tensor.writer

    def pointer(self, tensor: Kept) -> AxdimmPointer:
        """Return the pointer to a tensor's room on the channel."""
        assert tensor.place is not None
        return self.arena + tensor.place

    def count(self) -> None:
        """Count the time of runs that have ended, without waiting."""
        while self._runs and self._runs[0].over:
            result = self._runs.popleft().result
            if result is not None:
                ns = result.fabric_cycles * 1000 / self._device.transport.fabric_mhz
                self._statistics.kernel_ns[self.number] += ns


def padded_bytes(nbytes: int) -> int:
    """Return the bytes that ``nbytes`` occupy on a channel: whole lines."""
    return -(-nbytes // LINE_BYTES) * LINE_BYTES
