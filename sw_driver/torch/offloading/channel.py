"""The part of a store on one channel: room for tensors, and the queue of what is done with them.

All that touches the channel is queued in one stream, in the order of the calls, and so is what
goes between its tensors and storage. Room is given to another tensor when the copy that saves the
old one has been queued: what is queued later comes later, so nothing has to be waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hw.rules import RULES
from sw_driver.axdimm import Axdimm, AxdimmPointer, KernelRun
from sw_driver.errors import OutOfMemoryError, StreamFailedError
from sw_driver.memory.allocator import Allocator, ChannelAllocator
from sw_driver.memory.pointers import GpuPointer, NvmePointer
from sw_driver.runtime.handles import Handle
from sw_driver.runtime.streams import Stream
from sw_driver.transport import LINE_BYTES

from .entries import Kept, StoreStatistics, Where

__all__ = ["ChannelRoom", "end_name", "padded_bytes"]

Changes = list[tuple[Kept, Where]]

_ENDS = {"host": "Host", "gpu": "Gpu", "module": "Axdimm", "nvme": "Nvme"}
"""What the driver's copies call the ends of a route."""


@dataclass
class _Step:
    """An operation in the channel's stream, and what becomes true with it."""

    handle: Handle[Any]
    before: Changes
    """When it begins, whether it then fails or not."""
    after: Changes
    """When it has ended well."""


class ChannelRoom:
    """See the module.

    Parameters
    ----------
    device, number: the channel.
    capacity_bytes: of its memory that may be used, a positive multiple of 64.
    updated_first: whether entries that were updated in this iteration are evicted before others.
    statistics: where to count.
    """

    def __init__(
        self,
        device: Axdimm,
        number: int,
        capacity_bytes: int,
        *,
        updated_first: bool,
        statistics: StoreStatistics,
    ) -> None:
        self.number = number
        self.capacity_bytes = capacity_bytes
        self.stream: Stream = device.new_stream(f"of a store, channel {number}")
        self.arena: AxdimmPointer = device.MallocAxdimm(capacity_bytes, number)
        self._device = device
        self._updated_first = updated_first
        self._statistics = statistics
        self._allocator: Allocator = ChannelAllocator(limit_bytes=capacity_bytes)
        self._resident: dict[Kept, None] = {}
        """What has room, in the order in which it came."""
        self._steps: deque[_Step] = deque()
        self._spare: dict[int, list[NvmePointer]] = {}
        """Storage that is not used any more, by its size."""
        self._left: Changes = []
        """Tensors whose room the next operation may overwrite."""

    # Room.

    def take(self, tensor: Kept) -> bool:
        """Gives ``tensor`` room if there is some free."""
        try:
            place = self._allocator.allocate(tensor.nbytes)
        except OutOfMemoryError:
            return False
        tensor.now = replace(tensor.now, place=place)
        self._resident[tensor] = None
        used = self._allocator.statistics().allocated_bytes
        peaks = self._statistics.peak_module_bytes
        peaks[self.number] = max(peaks[self.number], used)
        return True

    def gather(self, wanted: Sequence[Kept]) -> None:
        """Has these tensors on the module; none of them is evicted for another.

        Raises :class:`OutOfMemoryError` if there is no storage to evict to. All tensors then still
        have their values, here or there.
        """
        for tensor in wanted:
            while tensor.now.place is None and not self.take(tensor):
                victims = [each for each in self._resident if each not in wanted]
                if victims:
                    self._evict(min(victims, key=self._rank))
                else:
                    self._start_afresh(wanted)
        for tensor in wanted:
            if tensor.now.stored and not tensor.now.here:
                self._load(tensor)

    def _rank(self, tensor: Kept) -> tuple[bool, int]:
        """The least is evicted first."""
        return self._updated_first and not tensor.entry.updated, tensor.used

    def _start_afresh(self, wanted: Sequence[Kept]) -> None:
        """Places ``wanted`` anew, where those that are here leave no piece large enough for the
        rest. From then on tensors lie one behind the other, so that all fit that do by their sizes.
        """
        self.check_fits(wanted[0].entry.name, sum(padded_bytes(each.nbytes) for each in wanted))
        for tensor in list(self._resident):
            self._evict(tensor)
        self._allocator = Allocator(limit_bytes=self.capacity_bytes)
        for tensor in wanted:
            taken = self.take(tensor)
            assert taken, tensor.name

    def check_fits(self, name: str, nbytes: int) -> None:
        """Raises :class:`OutOfMemoryError` if the channel, all empty, has not that much room."""
        if nbytes > self.capacity_bytes:
            raise OutOfMemoryError(
                f"the tensors of {name} need {nbytes} bytes of one channel at once, channel "
                f"{self.number} has {self.capacity_bytes} for the store: give it more",
                nbytes=nbytes,
                capacity_bytes=self.capacity_bytes,
                channel=self.number,
            )

    def _evict(self, tensor: Kept) -> None:
        where = tensor.now
        if where.here:
            if not where.stored:
                self._save(tensor)
            self._statistics.evictions += 1
            self._statistics.evictions_without_write += where.stored
        self._leave(tensor, Where(stored=where.known))

    def forget(self, tensor: Kept) -> None:
        """Its values are not needed any more, nor is its room here and in storage."""
        self._leave(tensor, Where())
        if tensor.slot is not None:
            # Only this stream has used it, so it may be another's at once, but not be freed.
            self._spare.setdefault(tensor.nbytes, []).append(tensor.slot)
            tensor.slot = None

    def _leave(self, tensor: Kept, where: Where) -> None:
        if tensor.now.place is not None:
            self._allocator.free(tensor.now.place)
            del self._resident[tensor]
        tensor.now = where
        self._left.append((tensor, where))

    def slot(self, tensor: Kept) -> NvmePointer:
        """Its storage, from now on. Raises :class:`OutOfMemoryError`, also if there is none."""
        if tensor.slot is None and self._spare.get(tensor.nbytes):
            tensor.slot = self._spare[tensor.nbytes].pop()
        if tensor.slot is not None:
            return tensor.slot
        what = f"channel {self.number} is full and {tensor.name} cannot go to storage"
        if not self._device.storage.schedules:
            raise OutOfMemoryError(
                f"{what}, as none is registered: give the store some, or more than "
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
                f"{what}: {error}", **error.details | {"tensor": tensor.name}
            ) from None
        counts = self._statistics
        counts.nvme_bytes += tensor.nbytes
        counts.peak_nvme_bytes = max(counts.peak_nvme_bytes, counts.nvme_bytes)
        return tensor.slot

    def free_slot(self, tensor: Kept) -> None:
        """Frees its storage, which nothing uses."""
        if tensor.slot is not None:
            self._device.FreeNvme(tensor.slot)
            self._statistics.nvme_bytes -= tensor.nbytes
            tensor.slot = None

    def close(self) -> None:
        """Frees what no tensor has, when nothing is queued."""
        for slots in self._spare.values():
            for slot in slots:
                self._device.FreeNvme(slot)
        self._device.FreeAxdimm(self.arena)

    # What is queued.

    def put(self, tensor: Kept, source: Any) -> Handle[None]:
        """Copies values of the host or the GPU to where the tensor is: its room, or storage."""
        where, name = tensor.now, end_name(source)
        if where.place is not None:
            handle = self.copy(f"{name}->module", tensor, self.pointer(where), source)
            after = Where(where.place, here=True)
        else:
            slot = self.slot(tensor)
            self._await_readers(tensor)
            handle = tensor.writer = self.copy(f"{name}->nvme", tensor, slot, source)
            after = Where(stored=True)
        self._queued(handle, [(tensor, Where(where.place))], [(tensor, after)])
        return handle

    def get(self, tensor: Kept, target: Any) -> Handle[None]:
        """Copies a tensor's values from its room to the host or the GPU."""
        route = f"module->{end_name(target)}"
        handle = self.copy(route, tensor, target, self.pointer(tensor.now))
        self._queued(handle, [], [])
        return handle

    def copy(
        self, route: str, tensor: Kept, target: Any, source: Any, stream: Stream | None = None
    ) -> Handle[None]:
        """Queues a copy, in the channel's stream unless another is given, and counts it."""
        copy = getattr(self._device, "Memcpy" + "2".join(_ENDS[end] for end in route.split("->")))
        handle = copy(target, source, tensor.nbytes, stream=stream or self.stream, modes="wait")
        self._statistics.copied_bytes[route] += tensor.nbytes
        return handle

    def run(
        self, rule: str, tensors: Mapping[str, Kept], hyperparameters: Mapping[str, Any]
    ) -> KernelRun:
        """Runs ``rule`` on tensors of one entry that are here."""
        pointers = {name: self.pointer(each.now) for name, each in tensors.items()}
        count = next(iter(tensors.values())).entry.count
        how: dict[str, Any] = {"stream": self.stream, "modes": "wait"}
        handle = self._device.RunOnAxdimmAsync(
            rule, pointers, count, hyperparameters, self.number, **how
        )
        self._statistics.runs += 1
        outputs = [tensors[name] for name in RULES[rule].outputs]
        self._queued(
            handle,
            [(each, Where(each.now.place)) for each in outputs],
            [(each, Where(each.now.place, here=True)) for each in outputs],
        )
        return handle

    def _load(self, tensor: Kept) -> None:
        handle = self.copy("nvme->module", tensor, self.pointer(tensor.now), self.slot(tensor))
        self._queued(handle, [], [(tensor, replace(tensor.now, here=True))])

    def _save(self, tensor: Kept) -> None:
        slot = self.slot(tensor)
        self._await_readers(tensor)
        tensor.writer = self.copy("module->nvme", tensor, slot, self.pointer(tensor.now))
        self._queued(tensor.writer, [], [(tensor, replace(tensor.now, stored=True))])

    def _await_readers(self, tensor: Kept) -> None:
        """Its storage is not written while it is read beside this stream."""
        if tensor.reader is not None:
            self.stream.wait_for(tensor.reader)
            tensor.reader = None

    def pointer(self, where: Where) -> AxdimmPointer:
        """Where that is."""
        assert where.place is not None
        return self.arena + where.place

    def _queued(self, handle: Handle[Any], before: Changes, after: Changes) -> None:
        self._steps.append(_Step(handle, self._left + before, after))
        self._left = []
        for tensor, where in after:
            tensor.now = where
        self.settle()

    # What has been carried out.

    def settle(self) -> None:
        """Draws the consequences of what has ended; waits for nothing."""
        while self._steps and self._steps[0].handle.done:
            step = self._steps.popleft()
            handle = step.handle
            if isinstance(handle.error, StreamFailedError):
                continue  # not carried out
            for tensor, where in step.before if handle.failed else step.before + step.after:
                tensor.sure = where
            if isinstance(handle, KernelRun) and handle.result is not None:
                ns = handle.result.fabric_cycles * 1000 / self._device.transport.fabric_mhz
                self._statistics.kernel_ns[self.number] += ns

    def wait(self) -> None:
        """Waits for all that is queued; raises what the first that failed raised."""
        try:
            self.stream.wait()
        finally:
            self.settle()


def end_name(values: Any) -> str:
    """What an end of a copy is called that is an array of the host or memory of the GPU."""
    return "gpu" if isinstance(values, GpuPointer) else "host"


def padded_bytes(nbytes: int) -> int:
    """What ``nbytes`` take of a channel."""
    return -(-nbytes // LINE_BYTES) * LINE_BYTES
