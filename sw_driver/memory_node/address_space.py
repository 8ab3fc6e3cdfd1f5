"""Address space of a device: local memory, followed by its shares of two memory-nodes."""

from __future__ import annotations

import heapq
from bisect import bisect, insort
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from ..device.errors import InvalidArgumentError, PointerError, RangeError
from ..device.memory import Allocator, MemoryStatistics, Users
from ..numbers import check_integer
from .network import Side
from .packets import LINE_BYTES

__all__ = ["AddressSpace", "Placement", "Stretch", "checked_placement"]


class Placement(Enum):
    """Distribution of the pages of a remote allocation (paper, Figure 10)."""

    LOCAL = "local"
    """All pages on one memory-node while it has room, the left one first."""
    BW_AWARE = "bw-aware"
    """Pages alternate between left and right memory-node, so that both transfer data."""


def checked_placement(placement: Placement) -> Placement:
    """Return it; raise :class:`~sw_driver.device.errors.InvalidArgumentError` if it is none."""
    if not isinstance(placement, Placement):
        raise InvalidArgumentError(
            f"placement is {placement!r}: expected one of {', '.join(map(str, Placement))}"
        )
    return placement


class Stretch(NamedTuple):
    """Contiguous bytes in one share."""

    side: Side
    address: int
    """Byte address in the share of memory-node ``side``."""
    nbytes: int


class _Pages:
    """Free pages of a share; the lowest is taken first."""

    def __init__(self, count: int) -> None:
        self._never_used = 0
        self._count = count
        self._freed: list[int] = []

    @property
    def free(self) -> int:
        return self._count - self._never_used + len(self._freed)

    def take(self) -> int:
        if self._freed:
            return heapq.heappop(self._freed)
        self._never_used += 1
        return self._never_used - 1

    def give_back(self, page: int) -> None:
        heapq.heappush(self._freed, page)


class AddressSpace:
    """Allocator of one address space over three memories (paper, III-B and Figure 10).

    Local memory begins at address 0; remote memory follows. A remote allocation has consecutive
    addresses, while its placement distributes the pages. The same calls give the same addresses.

    Parameters
    ----------
    local_bytes, share_bytes, page_bytes
        Sizes of the device's memory, of its share of each memory-node, and of a page. All are
        multiples of 64, and the share is a multiple of the page. Raises
        :class:`~sw_driver.device.errors.InvalidArgumentError` otherwise.

    Examples
    --------
    >>> space = AddressSpace(local_bytes=1 << 20, share_bytes=1 << 24, page_bytes=1 << 16)
    >>> remote = space.allocate_remote(100_000, Placement.BW_AWARE)
    >>> for stretch in space.stretches(remote, 100_000):
    ...     print(stretch.side.name, stretch.nbytes)
    LEFT 65536
    RIGHT 34464
    """

    def __init__(self, *, local_bytes: int, share_bytes: int, page_bytes: int) -> None:
        for name, size, unit in (
            ("local_bytes", local_bytes, LINE_BYTES),
            ("page_bytes", page_bytes, LINE_BYTES),
            ("share_bytes", share_bytes, page_bytes),
        ):
            if check_integer(name, size) % unit:
                raise InvalidArgumentError(f"{name} is {size}: expected a multiple of {unit}")
        self._local_bytes = local_bytes
        self._page_bytes = page_bytes
        self._local = Allocator(limit_bytes=local_bytes, setting="local_bytes")
        self._remote = Allocator(
            limit_bytes=2 * share_bytes,
            granule_bytes=page_bytes,
            setting="share_bytes",
            least=lambda limit_bytes: -(-limit_bytes // (2 * page_bytes)) * page_bytes,
        )
        self._pages = {side: _Pages(share_bytes // page_bytes) for side in Side}
        self._table: dict[int, tuple[Side, int]] = {}
        """Side and page of each remote page in use, by page number in the address space."""
        self._sizes: dict[int, int] = {}
        """Requested bytes of each allocation, by address."""
        self._starts: list[int] = []
        """Addresses of the allocations, in ascending order."""
        self._users: dict[int, Users] = {}
        """Copies that use an allocation, by address."""

    @property
    def local(self) -> MemoryStatistics:
        """Use of the device's own memory."""
        return self._local.statistics()

    @property
    def remote(self) -> MemoryStatistics:
        """Use of both shares together."""
        return self._remote.statistics()

    def is_remote(self, address: int) -> bool:
        """Return True if ``address`` is not in the device's own memory.

        Raises :class:`~sw_driver.device.errors.InvalidArgumentError` if it is no address.
        """
        return check_integer("an address", address, 0) >= self._local_bytes

    def allocate(self, nbytes: int) -> int:
        """Allocate in the device's own memory and return the address.

        Raises :class:`~sw_driver.device.errors.OutOfMemoryError` if there is no room.
        """
        nbytes = check_integer("nbytes", nbytes)
        address = self._local.allocate(nbytes)
        return self._note(address, nbytes)

    def allocate_remote(self, nbytes: int, placement: Placement) -> int:
        """Allocate in the shares and return the address.

        Raises :class:`~sw_driver.device.errors.OutOfMemoryError` if there is no room.
        """
        nbytes = check_integer("nbytes", nbytes)
        first = self._remote.allocate(nbytes) // self._page_bytes
        left, right = self._pages[Side.LEFT], self._pages[Side.RIGHT]
        for number in range(-(-nbytes // self._page_bytes)):
            side = Side(number % 2) if placement is Placement.BW_AWARE else Side.LEFT
            if not self._pages[side].free:
                side = Side.RIGHT if side is Side.LEFT else Side.LEFT
            self._table[first + number] = side, (left, right)[side].take()
        address = self._local_bytes + first * self._page_bytes
        return self._note(address, nbytes)

    def free(self, address: int, *, remote: bool) -> None:
        """Free the allocation at ``address``; ``remote`` states its kind.

        Raises :class:`~sw_driver.device.errors.PointerError`, and
        :class:`~sw_driver.device.errors.BusyError` while a copy uses it.
        """
        check_integer("address", address, 0)
        nbytes = self._sizes.get(address)
        if nbytes is None or self.is_remote(address) != remote:
            kind = "remote" if remote else "local"
            start = self.start_of(address)
            if start is not None:
                raise PointerError(
                    f"{address:#x} is inside the allocation at {start:#x}, or of the other kind: "
                    f"expected the start of a {kind} one",
                    address=address,
                )
            raise PointerError(
                f"no {kind} allocation at {address:#x}: expected an address that was allocated and "
                "not freed since",
                address=address,
            )
        self.users(address).check(f"{address:#x}", address=address)
        del self._sizes[address], self._users[address]
        self._starts.remove(address)
        if not remote:
            self._local.free(address)
            return
        self._remote.free(address - self._local_bytes)
        first = (address - self._local_bytes) // self._page_bytes
        for number in range(first, first + -(-nbytes // self._page_bytes)):
            side, page = self._table.pop(number)
            self._pages[side].give_back(page)

    def users(self, address: int) -> Users:
        """Return the users of the allocation around ``address``, to add a copy.

        The allocation cannot be freed while a copy uses it.
        """
        start = self.start_of(address)
        assert start is not None
        return self._users.setdefault(start, Users())

    def check(self, address: int, nbytes: int) -> int:
        """Return the bytes from ``address`` to the end of its allocation, at least ``nbytes``.

        Raises :class:`~sw_driver.device.errors.RangeError`, and
        :class:`~sw_driver.device.errors.InvalidArgumentError` if ``nbytes`` is no integer.
        """
        check_integer("nbytes", nbytes, None)
        start = self.start_of(address)
        left = 0 if start is None else start + self._sizes[start] - address
        if nbytes < 1 or nbytes > left:
            expected = (
                f"1 to {left}, to the end of its allocation" if left else "an allocation there"
            )
            raise RangeError(
                f"{nbytes} bytes at {address:#x}: expected {expected}",
                address=address,
                nbytes=nbytes,
            )
        return left

    def stretches(self, address: int, nbytes: int) -> Iterator[Stretch]:
        """Yield the stretches of remote memory from ``address`` on, merged where contiguous."""
        stretch: Stretch | None = None
        end = address + nbytes
        while address < end:
            number, offset = divmod(address - self._local_bytes, self._page_bytes)
            side, page = self._table[number]
            size = min(self._page_bytes - offset, end - address)
            place = page * self._page_bytes + offset
            if stretch and stretch.side is side and stretch.address + stretch.nbytes == place:
                stretch = stretch._replace(nbytes=stretch.nbytes + size)
            else:
                if stretch:
                    yield stretch
                stretch = Stretch(side, place, size)
            address += size
        if stretch:
            yield stretch

    def start_of(self, address: int) -> int | None:
        """Return the start of the allocation around ``address``; None outside of allocations."""
        check_integer("an address", address, 0)
        index = bisect(self._starts, address) - 1
        if index < 0:
            return None
        start = self._starts[index]
        return start if address < start + self._sizes[start] else None

    def _note(self, address: int, nbytes: int) -> int:
        self._sizes[address] = nbytes
        insort(self._starts, address)
        return address
