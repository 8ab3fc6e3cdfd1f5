"""The kinds of memory beside the module's own: host, GPU and NVMe storage.

Each is a class with the methods of :class:`Memory`. The bytes are really moved; the time that it
would take is simulated, by schedules that an operation occupies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sw_driver.memory.allocations import AllocationTable
from sw_driver.memory.pointers import Pointer
from sw_driver.runtime.schedule import Schedule

__all__ = ["Leg", "Memory"]


@dataclass(frozen=True)
class Leg:
    """What a transfer occupies, and for how long; all legs of a transfer begin at once."""

    schedule: Schedule
    duration_ns: float


class Memory(Protocol):
    """A memory that copies go to and come from. Any thread may call."""

    name: str
    """Name of the memory, as in reports and messages."""

    @property
    def schedules(self) -> Sequence[Schedule]:
        """The schedules that transfers occupy: the memory's tracks in a timeline."""
        ...

    allocations: AllocationTable[Any]
    """The table of what is allocated in the memory."""

    def allocate(self, nbytes: int, channel: int | None) -> Pointer:
        """Allocates memory.

        Raises :class:`~sw_driver.errors.InvalidArgumentError` for a size or channel,
        :class:`~sw_driver.errors.OutOfMemoryError`.
        """
        ...

    def free(self, pointer: Any) -> None:
        """Frees an allocation; raises what :meth:`AllocationTable.remove` raises."""
        ...

    def read(self, pointer: Any, destination: NDArray[np.uint8]) -> None:
        """Copies the bytes from ``pointer`` on to ``destination``, as many as it holds."""
        ...

    def write(self, pointer: Any, source: NDArray[np.uint8]) -> None:
        """Copies ``source`` to the bytes from ``pointer`` on."""
        ...

    def legs(self, pointer: Any, nbytes: int, *, writing: bool) -> list[Leg]:
        """The legs that moving ``nbytes`` from or, ``writing``, to ``pointer`` occupies."""
        ...

    def close(self) -> None:
        """Releases what the memory holds of the system. Calling it twice does no harm."""
        ...
