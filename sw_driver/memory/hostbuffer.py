"""Host memory as bytes."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidArgumentError

__all__ = ["byte_view", "zeroed_pages"]


def byte_view(buffer: Any, nbytes: int | None, *, writable: bool) -> NDArray[np.uint8]:
    """The first ``nbytes`` bytes of a bytes-like object or C-contiguous array, without a copy.

    None means all of them.

    Raises :class:`InvalidArgumentError` if it is none, too small, or read-only where ``writable``.
    """
    what = "destination" if writable else "source"
    try:
        view = memoryview(buffer)
    except (TypeError, ValueError, BufferError):
        raise InvalidArgumentError(
            f"the {what} is a {type(buffer).__name__}: expected bytes, a bytearray or a numpy array"
        ) from None
    if view.format == "O":
        raise InvalidArgumentError(f"the {what} is an array of objects: expected numbers")
    nbytes = view.nbytes if nbytes is None else nbytes
    if not view.c_contiguous:
        raise InvalidArgumentError(
            f"the {what} of {view.nbytes} bytes is not contiguous: pass a contiguous copy",
            buffer_bytes=view.nbytes,
        )
    if view.nbytes < nbytes:
        raise InvalidArgumentError(
            f"the {what} holds {view.nbytes} bytes, {nbytes} are to be copied",
            buffer_bytes=view.nbytes,
            nbytes=nbytes,
        )
    if writable and view.readonly:
        raise InvalidArgumentError(
            f"the {what} of {view.nbytes} bytes is read-only", buffer_bytes=view.nbytes
        )
    if nbytes == 0:
        return np.empty(0, dtype=np.uint8)
    if isinstance(buffer, np.ndarray):
        return buffer.reshape(-1).view(np.uint8)[:nbytes]
    return np.frombuffer(view.cast("B"), dtype=np.uint8, count=nbytes)


def zeroed_pages(nbytes: int) -> NDArray[np.uint8]:
    """Zeroed memory of at least 1 byte that starts on a page and costs memory as it is touched.

    Raises ``OSError`` or ``OverflowError`` if the system gives none.
    """
    # Private, so that a process that forks does not share it with its child.
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, dtype=np.uint8)
