"""``MemcpyX2Y(dst, src, nbytes)`` for all pairs of memories (paper section 4.2, Table 2)."""

from __future__ import annotations

from functools import partial
from typing import Any, TypedDict, Unpack

import numpy as np

from ..device.errors import InvalidArgumentError
from ..device.memory import AxdimmPointer, GpuPointer, HostPointer, NvmePointer, checked_size
from ..device.streams import Handle, Stream, perform
from ..device.tensors import byte_view
from .channel import ModePolicy
from .copies import BufferEnd, ChannelEnd, End, MemoryEnd, check_overlap, copy
from .session import Session, check_flags

__all__ = ["Copies", "CopyOptions"]

_MEMORIES = {"Host": "host", "Gpu": "gpu", "Nvme": "storage"}
"""Attributes of a session with its memories, by the names in the functions."""


class CopyOptions(TypedDict, total=False):
    """Options of every copy."""

    stream: Stream | None
    """Stream in which to queue the copy; without one the copy is over when the call returns."""
    modes: str | None
    """Name of a :class:`~sw_driver.axdimm.channel.ModePolicy`; None for the device's."""
    backdoor: bool | None
    """True to bypass link, clock and arbiter to the module's DRAM; None for the device's."""


class Copies:
    """The copies of :class:`~sw_driver.axdimm.device.Axdimm`.

    Each copies ``nbytes`` bytes and returns a handle. Host memory is a pointer of ``MallocHost``,
    or any bytes-like object or contiguous array. A queued copy reads its source when its turn
    comes: leave the source unchanged until the handle is over. In the module's DRAM, the other
    bytes of the first and last line keep their values.

    Raises
    ------
    PointerError, RangeError, InvalidArgumentError, StreamFailedError: at once, before anything
        happens.
    BusyError, WrongModeError: by ``modes``, before anything is copied.
    StorageError, GpuError, ClosedError: during the copy; ``details["copied_bytes"]`` counts the
        copied bytes, the others are as they were.
    """

    _session: Session

    def MemcpyHost2Host(
        self,
        dst: HostPointer | Any,
        src: HostPointer | Any,
        nbytes: int,
        **options: Unpack[CopyOptions],
    ) -> Handle[None]:
        """Copy within the host's memory."""
        return self._copy("Host", "Host", dst, src, nbytes, **options)

    def MemcpyHost2Axdimm(
        self,
        dst: AxdimmPointer,
        src: HostPointer | Any,
        nbytes: int,
        **options: Unpack[CopyOptions],
    ) -> Handle[None]:
        """Copy to the module over the host link, with non-temporal stores (paper section 4.1)."""
        return self._copy("Host", "Axdimm", dst, src, nbytes, **options)

    def MemcpyHost2Gpu(
        self, dst: GpuPointer, src: HostPointer | Any, nbytes: int, **options: Unpack[CopyOptions]
    ) -> Handle[None]:
        """Copy to a GPU over its link."""
        return self._copy("Host", "Gpu", dst, src, nbytes, **options)

    def MemcpyHost2Nvme(
        self, dst: NvmePointer, src: HostPointer | Any, nbytes: int, **options: Unpack[CopyOptions]
    ) -> Handle[None]:
        """Copy to storage; the bytes are in the files when the copy has ended."""
        return self._copy("Host", "Nvme", dst, src, nbytes, **options)

    def MemcpyAxdimm2Host(
        self,
        dst: HostPointer | Any,
        src: AxdimmPointer,
        nbytes: int,
        **options: Unpack[CopyOptions],
    ) -> Handle[None]:
        """Copy from the module over the host link, past the host's cache (section 4.1)."""
        return self._copy("Axdimm", "Host", dst, src, nbytes, **options)

    def MemcpyAxdimm2Axdimm(
        self, dst: AxdimmPointer, src: AxdimmPointer, nbytes: int, **options: Unpack[CopyOptions]
    ) -> Handle[None]:
        """Copy twice over the host link, because the module's channels cannot reach each other."""
        return self._copy("Axdimm", "Axdimm", dst, src, nbytes, **options)

    def MemcpyAxdimm2Gpu(
        self, dst: GpuPointer, src: AxdimmPointer, nbytes: int, **options: Unpack[CopyOptions]
    ) -> Handle[None]:
        """Copy from the module directly over both links: its pages are pinned (section 4.3)."""
        return self._copy("Axdimm", "Gpu", dst, src, nbytes, **options)

    def MemcpyAxdimm2Nvme(
        self, dst: NvmePointer, src: AxdimmPointer, nbytes: int, **options: Unpack[CopyOptions]
    ) -> Handle[None]:
        """Copy from the module over the host link directly to storage."""
        return self._copy("Axdimm", "Nvme", dst, src, nbytes, **options)

    def MemcpyGpu2Host(
        self, dst: HostPointer | Any, src: GpuPointer, nbytes: int, **options: Unpack[CopyOptions]
    ) -> Handle[None]:
        """Copy from a GPU over its link."""
        return self._copy("Gpu", "Host", dst, src, nbytes, **options)

    def MemcpyGpu2Axdimm(
        self, dst: AxdimmPointer, src: GpuPointer, nbytes: int, **options: Unpack[CopyOptions]
    ) -> Handle[None]:
        """Copy to the module directly over both links: its pages are pinned (section 4.3)."""
        return self._copy("Gpu", "Axdimm", dst, src, nbytes, **options)

    def MemcpyGpu2Gpu(
        self, dst: GpuPointer, src: GpuPointer, nbytes: int, **options: Unpack[CopyOptions]
    ) -> Handle[None]:
        """Copy within a GPU's memory or from one GPU to another."""
        return self._copy("Gpu", "Gpu", dst, src, nbytes, **options)

    def MemcpyGpu2Nvme(
        self, dst: NvmePointer, src: GpuPointer, nbytes: int, **options: Unpack[CopyOptions]
    ) -> Handle[None]:
        """Copy from a GPU directly to storage, as GPUDirect Storage does (section 4.4)."""
        return self._copy("Gpu", "Nvme", dst, src, nbytes, **options)

    def MemcpyNvme2Host(
        self, dst: HostPointer | Any, src: NvmePointer, nbytes: int, **options: Unpack[CopyOptions]
    ) -> Handle[None]:
        """Copy from storage to the host's memory."""
        return self._copy("Nvme", "Host", dst, src, nbytes, **options)

    def MemcpyNvme2Axdimm(
        self, dst: AxdimmPointer, src: NvmePointer, nbytes: int, **options: Unpack[CopyOptions]
    ) -> Handle[None]:
        """Copy directly from storage over the host link to the module."""
        return self._copy("Nvme", "Axdimm", dst, src, nbytes, **options)

    def MemcpyNvme2Gpu(
        self, dst: GpuPointer, src: NvmePointer, nbytes: int, **options: Unpack[CopyOptions]
    ) -> Handle[None]:
        """Copy directly from storage to a GPU, as GPUDirect Storage does (section 4.4)."""
        return self._copy("Nvme", "Gpu", dst, src, nbytes, **options)

    def MemcpyNvme2Nvme(
        self, dst: NvmePointer, src: NvmePointer, nbytes: int, **options: Unpack[CopyOptions]
    ) -> Handle[None]:
        """Copy within storage or from one storage to another."""
        return self._copy("Nvme", "Nvme", dst, src, nbytes, **options)

    def _copy(
        self,
        source_kind: str,
        destination_kind: str,
        dst: Any,
        src: Any,
        nbytes: int,
        *,
        stream: Stream | None = None,
        modes: str | None = None,
        backdoor: bool | None = None,
    ) -> Handle[None]:
        session = self._session
        with session.clock:
            return self._queue_copy(
                source_kind,
                destination_kind,
                dst,
                src,
                checked_size("nbytes", nbytes),
                stream,
                session.modes if modes is None else ModePolicy.of(modes),
                backdoor,
            )

    def _queue_copy(
        self,
        source_kind: str,
        destination_kind: str,
        dst: Any,
        src: Any,
        size: int,
        stream: Stream | None,
        policy: ModePolicy,
        backdoor: bool | None,
    ) -> Handle[None]:
        session = self._session
        if session.closed:
            session.check_open()
        call = f"Memcpy{source_kind}2{destination_kind}"
        if backdoor is not None:
            check_flags(backdoor=backdoor)
        if backdoor and "Axdimm" not in (source_kind, destination_kind):
            raise InvalidArgumentError(
                f"{call} has no backdoor: only the module's DRAM is simulated", backdoor=backdoor
            )
        past_link = session.backdoor if backdoor is None else backdoor

        def end(kind: str, place: Any, written: bool) -> End:
            """Return one end of the copy; raise what is wrong with its pointer or buffer."""
            if kind == "Axdimm":
                allocation = session.allocations.range(place, size)
                channel = session.channels[allocation.channel]
                return ChannelEnd(channel, place.address, allocation, session.transport, past_link)
            if kind == "Host" and not isinstance(place, HostPointer):
                return BufferEnd(byte_view(place, size, writable=written))
            memory = getattr(session, _MEMORIES[kind])
            allocation = memory.allocations.range(place, size)
            if kind == "Host":
                return BufferEnd(memory.array(place, np.uint8, size), allocation)
            return MemoryEnd(memory, place, allocation)

        # Check pointers first: they are misused more often than buffers.
        if destination_kind == "Host":
            source = end(source_kind, src, False)
            destination = end(destination_kind, dst, True)
        else:
            destination = end(destination_kind, dst, True)
            source = end(source_kind, src, False)
        check_overlap(destination, source, size)
        if stream is not None:
            session.check_stream(stream)
        handle: Handle[None] = Handle(f"{call} of {size} bytes", session.domain, total=size)
        for allocation in (destination.allocation, source.allocation):
            if allocation:
                allocation.users.add(handle)
        steps = partial(
            copy,
            destination,
            source,
            size,
            policy=policy,
            timeline=session.timeline,
            handle=handle,
        )
        return perform(handle, steps, stream)
