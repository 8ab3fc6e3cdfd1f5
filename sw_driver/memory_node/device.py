"""A device-node as a program sees it: local memory, remote memory, and copies between them."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from itertools import count

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..device.errors import InvalidArgumentError, RangeError, shown
from ..device.memory import MemoryStatistics
from ..device.streams import Handle
from .address_space import AddressSpace, Placement, checked_placement
from .compression import BLOCK_BYTES, CompressionStatistics
from .dma import DmaNetwork
from .network import Piece
from .packets import LINE_BYTES
from .streams import Stream

__all__ = ["PAGE_BYTES", "DeviceNode", "Direction"]

PAGE_BYTES = 1 << 16
"""Default bytes of a page of remote memory."""


class Direction(Enum):
    """Direction of a ``cuda_memcpy_async`` (paper, Table I)."""

    LOCAL_TO_REMOTE = "LocalToRemote"
    REMOTE_TO_LOCAL = "RemoteToLocal"


class DeviceNode:
    """Device ``number`` of a network. Any thread may call it.

    Addresses are integers in one :class:`AddressSpace`; ``address + offset`` is a place inside an
    allocation.

    Parameters
    ----------
    network
        The network; the same for all its devices.
    placement
        Default placement of the pages of remote allocations.
    page_bytes
        See :class:`AddressSpace`.

    Raises
    ------
    InvalidArgumentError
        The network has no device of that number.
    DeviceInUseError
        The device already has a :class:`DeviceNode`, which allocates the same memory.

    Examples
    --------
    >>> from sw_driver.memory_node.backends.golden import GoldenNetwork
    >>> node = DeviceNode(GoldenNetwork(local_bytes=1 << 20, share_bytes=1 << 24))
    >>> here, there = node.cuda_malloc(64), node.cuda_malloc_remote(64)
    >>> copy = node.cuda_memcpy_async(there, here, 64, Direction.LOCAL_TO_REMOTE)
    >>> node.synchronize()
    >>> copy.done, hex(there), node.remote_memory.allocated_bytes
    (True, '0x100000', 65536)
    """

    def __init__(
        self,
        network: DmaNetwork,
        number: int = 0,
        *,
        placement: Placement = Placement.BW_AWARE,
        page_bytes: int = PAGE_BYTES,
    ) -> None:
        self.number = number
        self._network = network
        self._clock = network.domain.clock
        self._placement = checked_placement(placement)
        self._space = AddressSpace(
            local_bytes=network.local_bytes,
            share_bytes=network.share_bytes,
            page_bytes=page_bytes,
        )
        network.claim(number, self)
        self._memory: NDArray[np.uint8] = network.local(number)
        self._stream_numbers = count()
        self._page_bytes = page_bytes
        self._compressed: set[int] = set()
        """Addresses of compressed allocations."""
        self._default = self.stream()

    @property
    def local_memory(self) -> MemoryStatistics:
        """Use of the device's own memory."""
        with self._clock:
            return self._space.local

    @property
    def remote_memory(self) -> MemoryStatistics:
        """Use of the device's shares of the memory-nodes."""
        with self._clock:
            return self._space.remote

    @property
    def compression(self) -> CompressionStatistics:
        """Transfer statistics of the device's compressed allocations."""
        with self._clock:
            return replace(self._network.compression(self.number))

    def cuda_malloc(self, nbytes: int) -> int:
        """Allocate ``nbytes`` of the device's own memory; the address is a multiple of 64.

        Raises :class:`~sw_driver.device.errors.OutOfMemoryError`.
        """
        with self._clock:
            return self._space.allocate(nbytes)

    def cuda_free(self, address: int) -> None:
        """Free an allocation of :meth:`cuda_malloc`.

        Raises :class:`~sw_driver.device.errors.PointerError`, and
        :class:`~sw_driver.device.errors.BusyError` while a copy uses it.
        """
        self._clock.release(lambda: self._space.free(address, remote=False))

    def cuda_malloc_remote(
        self, nbytes: int, *, placement: Placement | None = None, compressed: bool = False
    ) -> int:
        """Allocate ``nbytes`` in the memory-nodes; the address is a multiple of 64.

        Copies of a ``compressed`` allocation go over the links without zeros, in blocks of 4 KB.
        The allocation occupies its full size.

        Raises :class:`~sw_driver.device.errors.OutOfMemoryError`, or
        :class:`~sw_driver.device.errors.InvalidArgumentError` if pages are not whole blocks.
        """
        if compressed and self._page_bytes % BLOCK_BYTES:
            raise InvalidArgumentError(
                f"compressed with pages of {self._page_bytes} bytes: expected page_bytes of the "
                f"device to be a multiple of {BLOCK_BYTES}"
            )
        placement = self._placement if placement is None else checked_placement(placement)
        with self._clock:
            address = self._space.allocate_remote(nbytes, placement)
            if compressed:
                self._compressed.add(address)
        return address

    def cuda_free_remote(self, address: int) -> None:
        """Free an allocation of :meth:`cuda_malloc_remote`; raise as :meth:`cuda_free`."""

        def free() -> None:
            self._space.free(address, remote=True)
            self._compressed.discard(address)

        self._clock.release(free)

    def stream(self) -> Stream:
        """Return a new stream, besides the default one."""
        with self._clock:
            return Stream(f"{self.number}.{next(self._stream_numbers)}", self._network)

    def cuda_memcpy_async(
        self,
        dst: int,
        src: int,
        nbytes: int,
        direction: Direction,
        stream: Stream | None = None,
    ) -> Handle[None]:
        """Queue a copy between local and remote memory; ``stream`` None is the default stream.

        Memory-nodes move lines of 64 bytes: ``dst`` and ``src`` must be multiples of 64. So must
        ``nbytes``, unless the copy ends with the allocation at ``dst``. A compressed allocation is
        copied in whole blocks of 4096 bytes, or to its end. The copy reads its source when its turn
        comes.

        Raises :class:`~sw_driver.device.errors.RangeError`, or
        :class:`~sw_driver.device.errors.InvalidArgumentError` for a bad direction, multiple or
        stream; then nothing is queued.
        """
        if stream is None:
            stream = self._default
        elif not isinstance(stream, Stream) or stream.network is not self._network:
            raise InvalidArgumentError(
                f"{stream!r} is no stream of this network: expected what stream() returned"
            )
        with self._clock:
            pieces = self._pieces(dst, src, nbytes, direction)
            handle: Handle[None] = Handle(
                f"the copy of {nbytes} bytes from {src:#x} to {dst:#x} of device {self.number}",
                self._network.domain,
                total=nbytes,
            )
            for address in (dst, src):
                self._space.users(address).add(handle)
            stream.submit(
                handle, lambda: self._network.copy_steps(self.number, pieces, handle.reach)
            )
        return handle

    def _pieces(self, dst: int, src: int, nbytes: int, direction: Direction) -> list[Piece]:
        """Check a copy and return its transfers."""
        if not isinstance(direction, Direction):
            raise InvalidArgumentError(
                f"direction must be one of {', '.join(map(str, Direction))}, got {direction!r}"
            )
        writes = direction is Direction.LOCAL_TO_REMOTE
        for name, address, remote in (("dst", dst, writes), ("src", src, not writes)):
            if self._space.is_remote(address) != remote:
                raise RangeError(
                    f"{name} {address:#x} is {'local' if remote else 'remote'}: expected "
                    f"{'remote' if remote else 'local'} memory for {direction.value}",
                    address=address,
                )
            if address % LINE_BYTES:
                raise InvalidArgumentError(
                    f"{name} {address:#x} is no multiple of {LINE_BYTES}", address=address
                )
        self._space.check(src, nbytes)
        if self._space.check(dst, nbytes) != nbytes and nbytes % LINE_BYTES:
            raise InvalidArgumentError(
                f"{nbytes} bytes: expected a multiple of {LINE_BYTES}, or as many as are left of "
                f"the allocation at {dst:#x}",
                nbytes=nbytes,
            )
        local, remote = (src, dst) if writes else (dst, src)
        start = self._space.start_of(remote)
        compressed = start in self._compressed
        if compressed and start is not None:
            whole = self._space.check(remote, nbytes) == nbytes or not nbytes % BLOCK_BYTES
            if (remote - start) % BLOCK_BYTES or not whole:
                raise InvalidArgumentError(
                    f"{nbytes} bytes from byte {remote - start} of a compressed allocation on: "
                    f"expected multiples of {BLOCK_BYTES}, or all that is left of it",
                    nbytes=nbytes,
                )
        lines = -(-nbytes // LINE_BYTES) * LINE_BYTES
        pieces = []
        for side, place, size in self._space.stretches(remote, lines):
            pieces.append(
                Piece(
                    side=side,
                    write=writes,
                    local=local,
                    remote=place,
                    nbytes=size,
                    compressed=compressed,
                )
            )
            local += size
        return pieces

    def synchronize(self) -> None:
        """Let time pass until the default stream is idle, see :meth:`Stream.synchronize`."""
        self._default.synchronize()

    def write(self, address: int, values: ArrayLike) -> None:
        """Write an array to the device's own memory without simulated time."""
        array = np.ascontiguousarray(values)
        if array.dtype.hasobject:
            raise InvalidArgumentError(f"values are {shown(values)}: expected an array of numbers")
        with self._clock:
            self._own(address, array.nbytes)[:] = array.reshape(-1).view(np.uint8)

    def read(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Return a view of bytes in the device's own memory."""
        with self._clock:
            return self._own(address, nbytes)

    def _own(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        if self._space.is_remote(address):
            raise InvalidArgumentError(
                f"{address:#x} is remote: expected local memory; copy it there first",
                address=address,
            )
        self._space.check(address, nbytes)
        return self._memory[address : address + nbytes]
