"""Who has which device open on this machine, and names of devices.

An opened device has a file in the runtime directory, which its process keeps locked and which says
who it is. The kernel gives the lock back however the process ends, so a crash releases the device;
the file it leaves is taken over by the next opener or removed by whoever lists the devices.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import AxdimmError, DeviceInUseError, NoSuchDeviceError

__all__ = [
    "DeviceEntry",
    "DeviceLock",
    "DeviceName",
    "RuntimeDirectoryError",
    "open_devices",
    "parse_device",
    "runtime_directory",
    "socket_path",
]

DEFAULT_BACKEND = "rtl"
CLAIM_LIMIT_S = 0.2
"""How long a lock is waited for: whoever looks whether a device is open holds it for a moment."""
CLAIM_RETRY_S = 0.002

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_unnamed_numbers = itertools.count(1)


class RuntimeDirectoryError(AxdimmError):
    """The directory in which open devices are noted cannot be used, or not be trusted."""


@dataclass(frozen=True, kw_only=True)
class DeviceName:
    """What a device name stands for. Raises :class:`NoSuchDeviceError` for a bad ``name``."""

    backend: str
    preset: str | None = None
    """Configuration of the module."""
    name: str | None = None
    """Under which the device exists once on the machine; None for one of the caller's own."""

    def __post_init__(self) -> None:
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise NoSuchDeviceError(
                f"a device cannot be called {self.name!r}: expected 1 to 64 letters, digits, "
                "dots, hyphens and underscores",
                name=self.name,
            )

    @property
    def model(self) -> str:
        """``BACKEND`` or ``BACKEND:PRESET``, as ``open_backend`` takes it."""
        return self.backend if self.preset is None else f"{self.backend}:{self.preset}"

    def __str__(self) -> str:
        return self.model if self.name is None else f"{self.model}@{self.name}"


def parse_device(text: str) -> DeviceName:
    """What ``BACKEND[:PRESET][@NAME]``, ``@NAME`` or ``/dev/NAME`` stands for.

    Without a backend it is the one that the environment variable ``NEARMEM_BACKEND`` names,
    ``BACKEND[:PRESET]``, or else ``rtl``. Whether there is such a backend is seen when it is
    opened. Raises :class:`NoSuchDeviceError`.
    """
    if not isinstance(text, str):
        raise NoSuchDeviceError(
            f"{text!r} is no device: expected BACKEND[:PRESET][@NAME] or /dev/NAME", name=text
        )
    if text.startswith("/dev/"):
        model, name = "", text.removeprefix("/dev/")
    else:
        model, at, given = text.partition("@")
        name = given if at else None
    source = repr(text)
    if not model and name is not None:
        model = os.environ.get("NEARMEM_BACKEND") or DEFAULT_BACKEND
        source = f"the environment variable NEARMEM_BACKEND, {model!r},"
    backend, colon, preset = model.partition(":")
    if not backend or (colon and not preset) or "@" in model:
        raise NoSuchDeviceError(
            f"{source} names no backend: expected BACKEND or BACKEND:PRESET such as 'rtl' or "
            "'golden:tiny', and behind it @NAME if wanted",
            name=text,
        )
    return DeviceName(backend=backend, preset=preset if colon else None, name=name)


@dataclass(frozen=True, kw_only=True)
class DeviceEntry:
    """An opened device of this machine, as its process described it."""

    name: str
    """Its own, or one made up for a device without a name."""
    pid: int
    device: str
    """As it was opened."""
    backend: str
    preset: str | None
    program: str
    started: str
    """When it was opened: ISO 8601 with the offset from UTC."""


def runtime_directory() -> Path:
    """The directory in which open devices are noted, made if it is not there.

    ``$NEARMEM_RUNTIME_DIR``, else ``$XDG_RUNTIME_DIR/nearmem``, else ``/tmp/nearmem-UID``. Raises
    :class:`RuntimeDirectoryError` if it cannot be made, or if others could put files into it.
    """
    if own := os.environ.get("NEARMEM_RUNTIME_DIR"):
        path = Path(own).absolute()
    elif shared := os.environ.get("XDG_RUNTIME_DIR"):
        path = Path(shared).absolute() / "nearmem"
    else:
        path = Path(f"/tmp/nearmem-{os.geteuid()}")
    problem = None
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        problem = f"cannot be made ({error.strerror})"
    else:
        if stat.S_ISLNK(status.st_mode):
            problem = "is a symbolic link"
        elif status.st_uid != os.geteuid():
            problem = f"belongs to user {status.st_uid}, not to {os.geteuid()}"
        elif status.st_mode & 0o022:
            problem = f"can be written by others (mode {status.st_mode & 0o777:o}, expected 700)"
    if problem is not None:
        raise RuntimeDirectoryError(
            f"the runtime directory {str(path)!r} {problem}: name another with the environment "
            "variable NEARMEM_RUNTIME_DIR",
            path=str(path),
        )
    return path


def socket_path(name: str) -> Path:
    """Where the control service of the open device ``name`` listens.

    Raises :class:`RuntimeDirectoryError`.
    """
    return runtime_directory() / f"{name}.sock"


class DeviceLock:
    """The claim on a device, held until :meth:`release` or the end of the process.

    A process that is forked off neither holds the claim nor can it release it. A device without a
    name is noted under one made up, and goes without (:attr:`path` is None) where that is not
    possible.

    Attributes
    ----------
    entry: how the device is listed.
    path: the locked file; None if there is none.

    Raises
    ------
    DeviceInUseError: another process, or this one, holds the claim.
    RuntimeDirectoryError: the device has a name, and the runtime directory cannot be used.
    """

    def __init__(self, device: DeviceName) -> None:
        self.entry = DeviceEntry(
            name=device.name or f"{device.backend}-{os.getpid()}-{next(_unnamed_numbers)}",
            pid=os.getpid(),
            device=str(device),
            backend=device.backend,
            preset=device.preset,
            program=_program(),
            started=datetime.now().astimezone().isoformat(timespec="seconds"),
        )
        self.path: Path | None = None
        try:
            path = runtime_directory() / f"{self.entry.name}.lock"
            self._lock = _claimed(path, self.entry)
            self.path = path
        except (DeviceInUseError, RuntimeDirectoryError):
            if device.name is not None:
                raise

    @property
    def held(self) -> bool:
        """Whether the claim is this process's and was not released."""
        return self.path is not None and self._lock.is_locked

    def release(self) -> None:
        """Gives the device back. Calling it twice, or in a forked process, does no harm."""
        if self.path is not None and self._lock.is_locked:
            _give_back(self._lock, self.path)

    def __enter__(self) -> DeviceLock:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def open_devices() -> list[DeviceEntry]:
    """The open devices of this machine, by name. Removes what dead processes left.

    Those of other users, who have runtime directories of their own, are not seen. Raises
    :class:`RuntimeDirectoryError`.
    """
    entries = (_holder(path) for path in sorted(runtime_directory().glob("*.lock")))
    return [entry for entry in entries if entry is not None]


def _file_lock(path: Path) -> FileLock:
    # A device is closed by any thread. An existence lock would outlive a process that is killed.
    return FileLock(
        path,
        timeout=CLAIM_LIMIT_S,
        poll_interval=CLAIM_RETRY_S,
        mode=0o600,
        thread_local=False,
        fallback_to_soft=False,
    )


def _claimed(path: Path, entry: DeviceEntry) -> FileLock:
    """The lock of the file at ``path``, which describes ``entry``."""
    lock = _file_lock(path)
    try:
        lock.acquire()
        path.write_text(json.dumps(asdict(entry)))
    except Timeout:
        holder = _described(path)
        who = (
            f"a process that has not said who it is: {str(path)!r} is locked"
            if holder is None
            else f"process {holder.pid} ({holder.program}) since {holder.started}"
        )
        details = {"name": entry.name} if holder is None else asdict(holder)
        raise DeviceInUseError(
            f"device {entry.name!r} is open in {who}: close it there first", **details
        ) from None
    except OSError as error:
        lock.release()
        raise RuntimeDirectoryError(
            f"{str(path)!r} cannot be written ({error.strerror}): name another runtime "
            "directory with the environment variable NEARMEM_RUNTIME_DIR",
            path=str(path),
        ) from error
    return lock


def _holder(path: Path) -> DeviceEntry | None:
    """Who holds the file at ``path``; if nobody does, None, and the file is gone."""
    lock = _file_lock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return _described(path)
    except OSError:
        return None
    _give_back(lock, path)
    return None


def _give_back(lock: FileLock, path: Path) -> None:
    # Removed while it is locked: whoever waits for it sees that it is gone, and makes another.
    for each in (path.with_suffix(".sock"), path):
        with suppress(OSError):
            each.unlink()
    lock.release()


def _described(path: Path) -> DeviceEntry | None:
    """What the file says; None if its owner is just writing or removing it."""
    try:
        return DeviceEntry(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _program() -> str:
    script = Path(sys.argv[0] if sys.argv else "")
    if script.name == "__main__.py":  # python -m PACKAGE
        return script.parent.name
    return script.name if script.name not in ("", "-c") else "python"
