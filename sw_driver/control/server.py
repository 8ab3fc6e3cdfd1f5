"""The control service of an opened device, in the process that has it open."""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path

from sw_driver.control.exclusive import DeviceLock
from sw_driver.errors import ClosedError

from . import ControlError, Controlled
from .protocol import REQUEST_LIMIT_BYTES, REQUESTS, decoded, encoded, error_content

__all__ = ["ControlServer"]

WAITING_LIMIT = 64
"""Clients that have not been accepted yet."""
ACCEPT_RETRY_S = 0.1
JOIN_LIMIT_S = 1.0


class ControlServer:
    """Answers requests about ``device`` until :meth:`close`, each in a thread of its own.

    It never keeps the device from being used or collected: it refers to it weakly, closes itself
    when it is gone, and its threads are daemons. A device whose ``lock`` has no file, or whose
    socket cannot be made, goes without the service.

    Close the device before the service, so that late requests are told that it was closed, and
    release the lock last.
    """

    def __init__(self, device: Controlled, lock: DeviceLock) -> None:
        self._pid = os.getpid()
        self._entry = lock.entry
        self._closing = False
        self._listening: socket.socket | None = None
        self._device = weakref.ref(device, lambda _: self.close())
        if lock.path is not None:
            self._path = lock.path.with_suffix(".sock")
            with suppress(OSError):
                listening = _listen(self._path)
                try:
                    self._acceptor = self._start(self._accept, listening)
                except BaseException:
                    listening.close()
                    raise
                self._listening = listening

    def close(self) -> None:
        """Ends the service. Calling it twice, or in a forked process, does no harm."""
        if self._listening is None or os.getpid() != self._pid or self._closing:
            return
        self._closing = True
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the acceptor; closing does not
        if self._acceptor is not threading.current_thread():
            self._acceptor.join(JOIN_LIMIT_S)
        self._listening.close()

    def _start(self, target, *arguments: object) -> threading.Thread:
        thread = threading.Thread(
            target=target, args=arguments, name=f"control of {self._entry.name}", daemon=True
        )
        thread.start()
        return thread

    def _accept(self, listening: socket.socket) -> None:
        while not self._closing:
            try:
                accepted, _ = listening.accept()
                self._start(self._serve, Connection(accepted.detach()))
            except (OSError, RuntimeError):  # no descriptor or no thread is left, or closed
                if not self._closing:
                    time.sleep(ACCEPT_RETRY_S)

    def _serve(self, connection: Connection) -> None:
        # The client may leave at any time.
        with suppress(OSError, EOFError), connection:
            connection.send_bytes(self._answer(connection.recv_bytes(REQUEST_LIMIT_BYTES)))

    def _answer(self, request: bytes) -> bytes:
        try:
            match decoded(request):
                case [str(name), *arguments] if name in REQUESTS:
                    pass
                case content:
                    raise ControlError(
                        f"{content!r:.60} is no request: expected a call of a device"
                    )
            device = self._device()
            if device is None:
                raise ClosedError("the device was closed: open it again")
            result = getattr(device, name)(*arguments)
            if name == "describe":
                result = {**asdict(self._entry), **result}
            return encoded({"result": result})
        except Exception as error:  # goes to the client
            return encoded(error_content(error))


def _listen(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    try:
        path.unlink(missing_ok=True)
        listening.bind(str(path))
        path.chmod(0o600)
        listening.listen(WAITING_LIMIT)
    except BaseException:
        listening.close()
        raise
    return listening
