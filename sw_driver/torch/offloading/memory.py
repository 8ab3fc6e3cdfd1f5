"""The memory of a device that trains: what lies in it, how much that was at most, and its limit."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sw_driver.device.errors import InvalidArgumentError

__all__ = ["DeviceMemory", "tensors_in"]


class DeviceMemory(TorchDispatchMode):
    """Counts what PyTorch's operations make while it is entered, as a GPU's memory would.

    Every tensor that an operation returns counts with the whole of its storage until the storage
    is freed: parameters, activations, gradients, an optimizer's state, results in between. What
    was made elsewhere is the host's (data sets, arrays of numpy). What an operation takes and gives
    back inside is not seen. Operations of other threads do not count.

    Parameters
    ----------
    limit_bytes: the most bytes of all that lies in it; None for no limit. Beyond it
        ``torch.OutOfMemoryError`` is raised, with the bytes asked for, the free ones and the limit.
    kind: of the tensors that count, ``"cpu"`` or ``"cuda"``.

    Raises
    ------
    InvalidArgumentError: the limit is no positive integer.
    """

    def __init__(self, limit_bytes: int | None = None, *, kind: str = "cpu") -> None:
        super().__init__()
        if limit_bytes is not None and (not isinstance(limit_bytes, int) or limit_bytes < 1):
            raise InvalidArgumentError(
                f"the device's limit is {limit_bytes!r}: expected a positive number of bytes, or "
                "None",
                limit_bytes=limit_bytes,
            )
        self.limit_bytes = limit_bytes
        self.kind = kind
        self.used_bytes = 0
        self.peak_bytes = 0
        self.relief: Callable[[], None] | None = None
        """Is called when there is no room: may free some."""
        self._alive: dict[int, tuple[weakref.ref[Any], int]] = {}

    @property
    def free_bytes(self) -> float:
        """Bytes that are left; infinite without a limit."""
        return float("inf") if self.limit_bytes is None else self.limit_bytes - self.used_bytes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        for tensor in tensors_in((result,)):
            storage = tensor.untyped_storage()
            if storage.device.type != self.kind:
                continue
            known = self._alive.get(storage._cdata)
            if known is None and any(
                each.untyped_storage()._cdata == storage._cdata
                for each in tensors_in((args, kwargs))
            ):
                continue  # a view of what was made elsewhere
            if known is None or known[1] != storage.nbytes():
                self.count(storage, func)
        return result

    def room(self, nbytes: int, what: object) -> None:
        """Makes sure of room for ``nbytes`` more. Raises ``torch.OutOfMemoryError``."""
        if nbytes > self.free_bytes and self.relief is not None:
            self.relief()
        if nbytes > self.free_bytes:
            raise torch.OutOfMemoryError(
                f"no room for {nbytes} bytes on the device, for {what}: "
                f"{max(self.free_bytes, 0)} of {self.limit_bytes} bytes are free"
            )

    def count(self, storage: torch.UntypedStorage, what: object) -> None:
        """Counts a storage as it is now: it was made, or has another size than before.

        Raises ``torch.OutOfMemoryError``; then it does not count, as it would not be there.
        """
        number, nbytes = storage._cdata, storage.nbytes()
        self._forget(number)
        if nbytes:
            self.room(nbytes, what)
        self._alive[number] = weakref.ref(storage, partial(self._forget, number)), nbytes
        self.used_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def _forget(self, number: int, _: object = None) -> None:
        self.used_bytes -= self._alive.pop(number, (None, 0))[1]


def tensors_in(values: Any) -> Iterator[Tensor]:
    """The dense tensors among arguments or results, which nest in lists and dicts."""
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, Tensor):
            if value.layout is torch.strided:
                yield value
        elif isinstance(value, list | tuple | dict):
            yield from tensors_in(value)
