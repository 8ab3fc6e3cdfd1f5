"""Things that a program releases: memory of tensors, and kernels with theirs."""

from __future__ import annotations

from collections.abc import Callable

from sw_driver.device.clock import Operation
from sw_driver.device.errors import BusyError, PointerError

__all__ = ["Buffer", "Held"]


class Held:
    """A thing that operations use until it is released; messages call it ``title``."""

    def __init__(self, title: str, give_back: Callable[[], None]) -> None:
        self.title = title
        self._give_back = give_back
        self._users: list[Operation] = []
        self._is_released = False

    def check(self) -> None:
        """Raises :class:`~sw_driver.device.errors.PointerError` if it was released."""
        if self._is_released:
            raise PointerError(f"{self.title} was released: make another one", what=self.title)

    def use(self, operation: Operation) -> None:
        """Note an operation that uses it until its end."""
        self._users = [each for each in self._users if not _is_past(each)] + [operation]

    def release(self) -> None:
        """Give its memory back.

        Raises :class:`~sw_driver.device.errors.BusyError` while an operation that uses it has not
        ended, and :class:`~sw_driver.device.errors.PointerError` the second time.
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
    """Bytes of a stack that a tensor of so many elements has, with all its parts."""

    def __init__(
        self, name: str, memory: object, elements: int, give_back: Callable[[], None]
    ) -> None:
        super().__init__(f"the buffer {name!r}", give_back)
        self.name, self.memory, self.elements = name, memory, elements


def _is_past(operation: Operation) -> bool:
    """Return whether an operation has ended by the program's time."""
    return operation.over and operation.time <= operation.domain.clock.now
