"""Asks the process that has a device open."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Client
from typing import Any, cast

from sw_driver.control.exclusive import DeviceEntry, open_devices, socket_path
from sw_driver.errors import BusyError, ClosedError

from . import ControlError, Controlled, check_range
from .protocol import REQUEST_LIMIT_BYTES, REQUESTS, decoded, encoded, error_from

__all__ = ["CHUNK_BYTES", "connect"]

ANSWER_LIMIT_S = 6.0
ANSWER_LIMIT_BYTES = 1 << 28
CHUNK_BYTES = 1 << 16
"""Most bytes of memory in a request: a socket takes them though the process is stopped."""
CLOSING_LIMIT_S = 1.0
"""How long a process may take to close a device after its service."""
RETRY_S = 0.02


def connect(entry: DeviceEntry, *, answer_limit_s: float = ANSWER_LIMIT_S) -> Controlled:
    """An open device of another process. Nothing is asked yet.

    Every call, whose arguments have to be positional, raises what the device raises, and besides

    - :class:`~sw_driver.errors.BusyError`: no answer in time,
    - :class:`~sw_driver.errors.ClosedError`: the device is not open any more,
    - :class:`.ControlError`: the process has it open, but does not answer requests.

    Peeks and pokes of more than 64 KiB are made in several requests: the device may change
    between them.
    """
    return cast(Controlled, _Remote(entry, answer_limit_s))


class _Remote:
    def __init__(self, entry: DeviceEntry, answer_limit_s: float) -> None:
        self._entry = entry
        self._limit_s = answer_limit_s

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in REQUESTS:
            raise AttributeError(name)
        return partial(self._ask, name)

    def peek(self, channel: int, address: int, nbytes: int, backdoor: bool = False) -> bytes:
        return b"".join(
            self._ask("peek", channel, start, size, backdoor)
            for start, size in self._chunks(address, nbytes)
        )

    def poke(self, channel: int, address: int, data: bytes, backdoor: bool = False) -> None:
        for start, size in self._chunks(address, len(data)):
            self._ask("poke", channel, start, data[start - address :][:size], backdoor)

    def _chunks(self, address: int, nbytes: int) -> list[tuple[int, int]]:
        """Address and size of each request; raises :class:`.AddressError` for all or none."""
        if nbytes <= CHUNK_BYTES:
            return [(address, nbytes)]
        check_range(self._ask("describe")["capacity_bytes"], address, nbytes)
        return [
            (address + offset, min(CHUNK_BYTES, nbytes - offset))
            for offset in range(0, nbytes, CHUNK_BYTES)
        ]

    def _ask(self, *request: Any) -> Any:
        """The result of a request."""
        message = encoded(request)
        if len(message) > REQUEST_LIMIT_BYTES:
            raise ControlError(
                f"the request has {len(message)} bytes: send {REQUEST_LIMIT_BYTES} at most"
            )
        try:
            with Client(str(socket_path(self._entry.name)), "AF_UNIX") as connection:
                connection.send_bytes(message)
                if not connection.poll(self._limit_s):
                    raise BusyError(
                        f"{self._who} gave no answer in {self._limit_s} s: try again; the request "
                        "may still be carried out",
                        name=self._entry.name,
                        pid=self._entry.pid,
                    )
                answer = connection.recv_bytes(ANSWER_LIMIT_BYTES)
        except (OSError, EOFError) as error:
            raise self._absent(error) from error
        content = decoded(answer)
        try:
            if "error" not in content:
                return content["result"]
            failure = error_from(*content["error"])
        except (TypeError, KeyError) as error:
            raise ControlError(
                f"{self._who} gave an answer that is none: {answer!r:.60}"
            ) from error
        raise failure

    @property
    def _who(self) -> str:
        entry = self._entry
        return f"process {entry.pid} ({entry.program}), which has device {entry.name!r} open,"

    def _absent(self, error: Exception) -> ControlError | ClosedError:
        """Why nobody answers."""
        deadline = time.monotonic() + CLOSING_LIMIT_S
        while time.monotonic() < deadline:
            if self._entry not in open_devices():
                return ClosedError(
                    f"device {self._entry.name!r} was closed by process {self._entry.pid}",
                    name=self._entry.name,
                    pid=self._entry.pid,
                )
            time.sleep(RETRY_S)
        reason = getattr(error, "strerror", None) or str(error) or "it ended the connection"
        if "too long" in reason:  # of a Unix socket's 107 bytes
            reason += ": name a shorter runtime directory with NEARMEM_RUNTIME_DIR"
        if isinstance(error, FileNotFoundError):
            reason += ": it may still be opening it, with a simulator to build first; try again"
        path = socket_path(self._entry.name)
        return ControlError(
            f"{self._who} answers no requests at {str(path)!r} ({reason})",
            name=self._entry.name,
            pid=self._entry.pid,
        )
