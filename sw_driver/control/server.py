"""The control service of an opened device, in the process that has it open."""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from sw_driver.control.exclusive import DeviceLock
from sw_driver.errors import BusyError, ClosedError

from . import ControlError, Controlled
from .protocol import REQUEST_LIMIT_BYTES, error_line, parse_request, result_line

__all__ = ["ANSWER_LIMIT_S", "ControlServer"]

ANSWER_LIMIT_S = 5.0
"""When a request is answered at the latest, with ``BusyError`` if with nothing else."""
SILENCE_LIMIT_S = 30.0
"""How long a client may take to send a request, or to take its answer."""
CONNECTION_LIMIT = 64
CALL_LIMIT = 8
"""Calls into the device at once, those included that were given up."""
ACCEPT_RETRY_S = 0.1
JOIN_LIMIT_S = 1.0
RECEIVE_BYTES = 1 << 16


class ControlServer:
    """Answers requests about ``device`` until :meth:`close`, in threads of its own.

    It never keeps the device from being used or collected: it refers to it weakly, closes itself
    when it is gone, and its threads are daemons. A device whose ``lock`` has no file, or whose
    socket cannot be made, goes without the service; :attr:`problem` says why.

    Close the device before the service, so that late requests are told that it was closed, and
    release the lock last.
    """

    def __init__(self, device: Controlled, lock: DeviceLock) -> None:
        self._pid = os.getpid()
        self._entry = lock.entry
        self._closing = False
        self._connections: set[socket.socket] = set()
        self._calls = threading.BoundedSemaphore(CALL_LIMIT)
        self._listening: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self._problem: str | None = None
        if lock.path is None:
            self._problem = "the device is noted nowhere"
        else:
            self._path = lock.path.with_suffix(".sock")
            try:
                self._listening = _listen(self._path)
            except OSError as error:
                self._problem = f"no socket at {str(self._path)!r}: {error.strerror or error}"
        self._device = weakref.ref(device, lambda _: self.close())
        if self._listening is not None:
            self._acceptor = self._start(self._accept, self._listening)

    @property
    def problem(self) -> str | None:
        """Why there is no service; None if there is."""
        return self._problem

    def close(self) -> None:
        """Ends the service. Calling it twice, or in a forked process, does no harm."""
        if self._listening is None or os.getpid() != self._pid or self._closing:
            return
        self._closing = True
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        for end in (self._listening, *list(self._connections)):
            # Wakes the thread that waits there; closing alone does not.
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        if self._acceptor is not None and self._acceptor is not threading.current_thread():
            self._acceptor.join(JOIN_LIMIT_S)

    def _start(self, target, *arguments: object) -> threading.Thread:
        thread = threading.Thread(
            target=target, args=arguments, name=f"control of {self._entry.name}", daemon=True
        )
        thread.start()
        return thread

    def _accept(self, listening: socket.socket) -> None:
        while not self._closing:
            try:
                connection, _ = listening.accept()
            except OSError:
                # No descriptors left, or closed.
                time.sleep(ACCEPT_RETRY_S)
                continue
            self._connections.add(connection)
            try:
                self._start(self._converse, connection)
            except RuntimeError:  # no more threads
                self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        self._connections.discard(connection)
        connection.close()

    def _converse(self, connection: socket.socket) -> None:
        try:
            buffer = bytearray()
            if len(self._connections) > CONNECTION_LIMIT:
                connection.settimeout(ANSWER_LIMIT_S)
                connection.sendall(
                    error_line(BusyError(f"{CONNECTION_LIMIT} clients are connected: try again"))
                )
                return
            while not self._closing:
                line = _receive_line(connection, buffer)
                if line is None:
                    return
                answer = self._answer(line)
                connection.settimeout(SILENCE_LIMIT_S)
                connection.sendall(answer)
        except ControlError as error:
            with suppress(OSError):
                connection.sendall(error_line(error))
        except OSError:
            pass  # the client has gone, or is too slow
        finally:
            self._forget(connection)

    def _answer(self, line: bytes) -> bytes:
        try:
            name, parameters = parse_request(line)
        except ControlError as error:
            return error_line(error)
        if not self._calls.acquire(blocking=False):
            return error_line(BusyError(f"{CALL_LIMIT} requests are being answered: try again"))
        answer: Future[bytes] = Future()
        try:
            self._start(self._call, answer, name, parameters)
        except RuntimeError:  # no more threads
            self._calls.release()
            return error_line(BusyError("no thread is left to answer: try again"))
        if wait([answer], ANSWER_LIMIT_S).not_done:
            return error_line(
                BusyError(
                    f"no answer to {name} in {ANSWER_LIMIT_S} s, the device is busy; the request "
                    "may still be carried out",
                    request=name,
                    limit_s=ANSWER_LIMIT_S,
                )
            )
        return answer.result()

    def _call(self, answer: Future[bytes], name: str, parameters: dict[str, object]) -> None:
        try:
            device = self._device()
            if device is None:
                raise ClosedError("the device was closed: open it again")
            result = getattr(device, name)(**parameters)
            if name == "describe":
                result = {**asdict(self._entry), **result}
            line = result_line(result)
        except Exception as error:  # goes to the client
            line = error_line(error)
        finally:
            self._calls.release()
        answer.set_result(line)


def _listen(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        listening.bind(str(path))
        path.chmod(0o600)
        listening.listen(CONNECTION_LIMIT)
    except BaseException:
        listening.close()
        raise
    return listening


def _receive_line(connection: socket.socket, buffer: bytearray) -> bytes | None:
    """Takes the next line out of ``buffer``, received so far; None at the end.

    Raises :class:`.ControlError` for one that is too long and ``TimeoutError`` for one too late.
    """
    deadline = time.monotonic() + SILENCE_LIMIT_S
    searched = 0
    while (end := buffer.find(b"\n", searched, REQUEST_LIMIT_BYTES)) < 0:
        if len(buffer) >= REQUEST_LIMIT_BYTES:
            raise ControlError(
                f"the request has more than {REQUEST_LIMIT_BYTES} bytes: send less at once"
            )
        searched = len(buffer)
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the client took too long to send a request")
        connection.settimeout(left)
        received = connection.recv(RECEIVE_BYTES)
        if not received:
            return None
        buffer += received
    line = bytes(buffer[:end])
    del buffer[: end + 1]
    return line
