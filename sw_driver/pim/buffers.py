"""Resources that a program releases: buffers, and kernels with their memory."""

from __future__ import annotations

from collections.abc import Callable

from sw_driver.device.clock import Operation
from sw_driver.device.errors import BusyError, PointerError

__all__ = ["Buffer", "Held"]


class Held:
    """A resource that operations use until it is released; messages name it by ``title``."""

    def __init__(self, title: str, give_back: Callable[[], None]) -> None:
        self.title = title
        self._give_back = give_back
        self._users: list[Operation] = []
        self._is_released = False

    def check(self) -> None:
        """Raise :class:`~sw_driver.device.errors.PointerError` if the resource was released."""
        if self._is_released:
            raise PointerError(f"{self.title} was released: make another one", what=self.title)

    def use(self, operation: Operation) -> None:
        """Record that an operation uses the resource until it ends."""
        self._users = [user for user in self._users if not _is_past(user)] + [operation]

    def release(self) -> None:
        """Free the memory of the resource.

        Raises
        ------
        BusyError: an operation that uses the resource has not ended.
        PointerError: the resource was already released.
        """
        self.check()
        for user in self._users:
            if not _is_past(user):
                raise BusyError(
                    f"{self.title} is used by {user.label!r}, which has not ended: wait for its "
                    "event, then release it",
                    what=self.title,
                )
        self._is_released = True
        self._give_back()


class Buffer(Held):
    """Memory in a stack for a tensor of ``elements`` elements; parts of the tensor share it."""

    def __init__(
        self, name: str, memory: object, elements: int, give_back: Callable[[], None]
    ) -> None:
        super().__init__(f"the buffer {name!r}", give_back)
        self.name, self.memory, self.elements = name, memory, elements


def _is_past(operation: Operation) -> bool:
    """Return whether an operation has ended by the program's simulated time."""
    return operation.over and operation.time <= operation.domain.clock.now
