"""Asks the process that has a device open."""

from __future__ import annotations

import base64
import json
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from sw_driver.control.exclusive import DeviceEntry, open_devices, socket_path
from sw_driver.errors import BusyError, ClosedError

from . import AllocationEntry, ChannelState, ControlError, MemoryEntry, RegisterValue, check_range
from .protocol import CHUNK_BYTES, error_from, request_line
from .server import ANSWER_LIMIT_S

__all__ = ["ControlClient"]

MARGIN_S = 1.0
"""What an answer may take longer than the service allows itself."""
RETRY_S = 0.02
ANSWER_LIMIT_BYTES = 1 << 28
RECEIVE_BYTES = 1 << 18
SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket on Linux (``sun_path``, less the zero at its end)."""


class ControlClient:
    """An open device of another process, as a :class:`.Controlled`.

    Every call raises what the device raises, and besides

    - :class:`~sw_driver.errors.BusyError`: no answer in time,
    - :class:`~sw_driver.errors.ClosedError`: the device is not open any more,
    - :class:`.ControlError`: the process has it open, but does not answer requests.

    Peeks and pokes of more than 512 KiB are made in several requests: the device may change
    between them.
    """

    def __init__(self, entry: DeviceEntry, *, answer_limit_s: float = ANSWER_LIMIT_S) -> None:
        self._entry = entry
        self._limit_s = answer_limit_s + MARGIN_S

    def describe(self) -> dict[str, Any]:
        """See :class:`.Controlled`."""
        return self._ask("describe")

    def channel_state(self, channel: int) -> ChannelState:
        """See :class:`.Controlled`."""
        return self._ask("channel_state", channel=channel)

    def registers(self, channel: int, names: Sequence[str] | None = None) -> list[RegisterValue]:
        """See :class:`.Controlled`."""
        return self._ask("registers", channel=channel, names=None if names is None else list(names))

    def write_register(self, channel: int, register: str, value: int | str) -> None:
        """See :class:`.Controlled`."""
        self._ask("write_register", channel=channel, register=register, value=value)

    def set_mode(self, channel: int, mode: str) -> None:
        """See :class:`.Controlled`."""
        self._ask("set_mode", channel=channel, mode=mode)

    def allocations(self) -> list[AllocationEntry]:
        """See :class:`.Controlled`."""
        return self._ask("allocations")

    def memory(self) -> list[MemoryEntry]:
        """See :class:`.Controlled`."""
        return self._ask("memory")

    def peek(self, channel: int, address: int, nbytes: int, backdoor: bool = False) -> bytes:
        """See :class:`.Controlled`."""
        if nbytes > CHUNK_BYTES:  # refused whole if at all
            check_range(self.describe()["capacity_bytes"], address, nbytes)
        parts = [
            self._ask(
                "peek",
                channel=channel,
                address=address + offset,
                nbytes=min(CHUNK_BYTES, nbytes - offset),
                backdoor=backdoor,
            )
            for offset in range(0, max(nbytes, 1), CHUNK_BYTES)
        ]
        return b"".join(map(base64.b64decode, parts))

    def poke(self, channel: int, address: int, data: bytes, backdoor: bool = False) -> None:
        """See :class:`.Controlled`."""
        if len(data) > CHUNK_BYTES:
            check_range(self.describe()["capacity_bytes"], address, len(data))
        for offset in range(0, max(len(data), 1), CHUNK_BYTES):
            self._ask(
                "poke",
                channel=channel,
                address=address + offset,
                data=data[offset : offset + CHUNK_BYTES],
                backdoor=backdoor,
            )

    def _ask(self, name: str, **parameters: Any) -> Any:
        """The result of a request."""
        line = request_line(name, parameters)
        deadline = time.monotonic() + self._limit_s
        try:
            answer = self._exchange(line, deadline)
        except TimeoutError as error:
            raise BusyError(
                f"process {self._entry.pid} ({self._entry.program}), which has device "
                f"{self._entry.name!r} open, gave no answer in {self._limit_s} s",
                name=self._entry.name,
                pid=self._entry.pid,
            ) from error
        except OSError as error:
            raise self._absent(error) from error
        if answer is None:
            raise self._absent(ConnectionError("it ended the connection"))
        try:
            content = json.loads(answer)
            if "error" not in content:
                return content["result"]
        except (ValueError, TypeError, KeyError) as error:
            raise ControlError(
                f"process {self._entry.pid} gave an answer that is none: {answer!r:.60}"
            ) from error
        raise error_from(content["error"])

    def _exchange(self, line: bytes, deadline: float) -> bytes | None:
        """Sends a line and returns the one that comes back; None if none does."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            while True:
                connection.settimeout(_left(deadline))
                try:
                    connection.connect(str(socket_path(self._entry.name)))
                    break
                except BlockingIOError:  # many clients are waiting to be accepted
                    time.sleep(RETRY_S)
            # A service that refuses answers without reading all, and its answer says why.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(line)
            answer = bytearray()
            while not answer.endswith(b"\n"):
                connection.settimeout(_left(deadline))
                try:
                    received = connection.recv(RECEIVE_BYTES)
                except ConnectionResetError:
                    received = b""
                if not received:
                    return None
                answer += received
                if len(answer) > ANSWER_LIMIT_BYTES:
                    raise ConnectionError(f"its answer has more than {ANSWER_LIMIT_BYTES} bytes")
            return bytes(answer)

    def _absent(self, error: OSError) -> ControlError | ClosedError:
        """Why nobody answers."""
        deadline = time.monotonic() + MARGIN_S
        # A process that closes the device ends the service first.
        while self._entry in open_devices():
            if time.monotonic() > deadline:
                break
            time.sleep(RETRY_S)
        else:
            return ClosedError(
                f"device {self._entry.name!r} was closed by process {self._entry.pid}",
                name=self._entry.name,
                pid=self._entry.pid,
            )
        reason = error.strerror or str(error)
        path = str(socket_path(self._entry.name))
        length = len(os.fsencode(path))
        if length > SOCKET_PATH_BYTES:
            reason = (
                f"the path {path!r} has {length} bytes, a Unix socket's {SOCKET_PATH_BYTES} at "
                "most: name a shorter runtime directory with NEARMEM_RUNTIME_DIR"
            )
        return ControlError(
            f"process {self._entry.pid} ({self._entry.program}) has device {self._entry.name!r} "
            f"open, but answers no requests ({reason})",
            name=self._entry.name,
            pid=self._entry.pid,
        )


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
