"""Who has which device open on this machine, and names of devices.

An opened device has a file in the runtime directory, which its process keeps locked (``flock``)
and which says who it is. The kernel gives the lock back however the process ends, so a crash
releases the device; the file it leaves is taken over by the next opener or removed by whoever lists
the devices.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import sys
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

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
CLAIM_LIMIT_S = 1.0
"""How long to wait for who has the lock to say who it is."""
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
    advice = "name another with the environment variable NEARMEM_RUNTIME_DIR"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RuntimeDirectoryError(
            f"the runtime directory {str(path)!r} cannot be made ({reason}): {advice}",
            path=str(path),
        ) from error
    problem = None
    if path.is_symlink():
        problem = "is a symbolic link"
    elif status.st_uid != os.geteuid():
        problem = f"belongs to user {status.st_uid}, not to {os.geteuid()}"
    elif status.st_mode & 0o022:
        problem = f"can be written by others (mode {status.st_mode & 0o777:o}, expected 700)"
    if problem is not None:
        raise RuntimeDirectoryError(
            f"the runtime directory {str(path)!r} {problem}: {advice}", path=str(path)
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
    name is noted under one made up, and goes without (:attr:`path` is None) where the runtime
    directory cannot be used.

    Raises
    ------
    DeviceInUseError: another process, or this one, holds the claim.
    RuntimeDirectoryError: the device has a name, and the runtime directory cannot be used.
    """

    def __init__(self, device: DeviceName) -> None:
        self._pid = os.getpid()
        self._path: Path | None = None
        self._finalizer: weakref.finalize | None = None
        if device.name is not None:
            self._entry = _entry(device, device.name)
            self._hold(runtime_directory() / f"{device.name}.lock")
            return
        try:
            directory = runtime_directory()
        except RuntimeDirectoryError:
            directory = None
        while True:
            name = f"{device.backend}-{self._pid}-{next(_unnamed_numbers)}"
            self._entry = _entry(device, name)
            if directory is None:
                return
            try:
                self._hold(directory / f"{name}.lock")
            except DeviceInUseError:  # somebody gave a device such a name
                continue
            except RuntimeDirectoryError:
                pass
            return

    def _hold(self, path: Path) -> None:
        try:
            descriptor = _claim(path, self._entry)
        except OSError as error:
            raise RuntimeDirectoryError(
                f"{str(path)!r} cannot be written ({error.strerror}): name another runtime "
                "directory with the environment variable NEARMEM_RUNTIME_DIR",
                path=str(path),
            ) from error
        self._path = path
        # Also when the lock is forgotten, and at the end of the program.
        self._finalizer = weakref.finalize(self, _give_up, descriptor, path, self._pid)

    @property
    def entry(self) -> DeviceEntry:
        """How the device is listed."""
        return self._entry

    @property
    def name(self) -> str:
        """Under which the device is listed."""
        return self._entry.name

    @property
    def path(self) -> Path | None:
        """The locked file; None if there is none."""
        return self._path

    @property
    def held(self) -> bool:
        """Whether the claim is this process's and was not released."""
        return self._finalizer is not None and self._finalizer.alive and os.getpid() == self._pid

    def release(self) -> None:
        """Gives the device back. Calling it twice, or in a forked process, does no harm."""
        if self._finalizer is not None:
            self._finalizer()

    def __enter__(self) -> DeviceLock:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def open_devices() -> list[DeviceEntry]:
    """The open devices of this machine, by name. Removes what dead processes left.

    Those of other users, who have runtime directories of their own, are not seen. Raises
    :class:`RuntimeDirectoryError`.
    """
    entries = (_probe(path) for path in sorted(runtime_directory().glob("*.lock")))
    return [entry for entry in entries if entry is not None]


# Locked files. All descriptors are known, so that a forked process can close its copies: it shares
# the locks, which last until the last copy is closed.

_descriptors: set[int] = set()
_forking = threading.RLock()
"""Held while a descriptor is open and not yet known, or the reverse, and during a fork."""


def _forked() -> None:
    for descriptor in _descriptors:
        os.close(descriptor)
    _descriptors.clear()
    _forking.release()


os.register_at_fork(
    before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_forked
)


def _open(path: Path, flags: int) -> int:
    with _forking:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        _descriptors.add(descriptor)
    return descriptor


def _close(descriptor: int) -> None:
    with _forking:
        # A process forked off meanwhile has closed its copy.
        if descriptor in _descriptors:
            _descriptors.remove(descriptor)
            os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Locks the file if nobody else has, this process included."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one at ``path``."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _claim(path: Path, entry: DeviceEntry) -> int:
    """The descriptor of the file at ``path``, locked and describing ``entry``."""
    deadline = time.monotonic() + CLAIM_LIMIT_S
    while True:
        descriptor = _open(path, os.O_RDWR | os.O_CREAT)
        try:
            if _locked(descriptor):
                # Whoever had it may have removed it between our opening and locking it: then it
                # is another file that the next process finds and locks.
                if _is_at(descriptor, path):
                    path.with_suffix(".sock").unlink(missing_ok=True)
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, json.dumps(asdict(entry)).encode(), 0)
                    return descriptor
                holder = None
            else:
                holder = _read(descriptor)
        except BaseException:
            _close(descriptor)
            raise
        _close(descriptor)
        # No living holder: one that has not said yet who it is, or a file being removed.
        if holder is not None and (_alive(holder.pid) or time.monotonic() > deadline):
            raise DeviceInUseError(
                f"device {entry.name!r} is open in process {holder.pid} ({holder.program}) since "
                f"{holder.started}: close it there first",
                name=entry.name,
                pid=holder.pid,
                program=holder.program,
                device=holder.device,
            )
        if time.monotonic() > deadline:
            raise DeviceInUseError(
                f"device {entry.name!r} is open in a process that has not said in "
                f"{CLAIM_LIMIT_S} s who it is: {str(path)!r} is locked",
                name=entry.name,
                path=str(path),
            )
        time.sleep(CLAIM_RETRY_S)


def _probe(path: Path) -> DeviceEntry | None:
    """Who holds the file at ``path``; if nobody does, None, and the file is gone."""
    try:
        descriptor = _open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        if not _locked(descriptor):
            return _read(descriptor)
        if _is_at(descriptor, path):
            _remove(path)
        return None
    finally:
        _close(descriptor)


def _give_up(descriptor: int, path: Path, pid: int) -> None:
    if os.getpid() != pid:
        return
    if _is_at(descriptor, path):
        with suppress(OSError):
            _remove(path)
    _close(descriptor)


def _remove(path: Path) -> None:
    """Removes the files of a device. For who has locked the one at ``path``."""
    path.with_suffix(".sock").unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _read(descriptor: int) -> DeviceEntry | None:
    """What the file says; None if its owner is just writing it."""
    try:
        entry = DeviceEntry(**json.loads(os.pread(descriptor, 1 << 16, 0)))
    except (ValueError, TypeError):
        return None
    return entry if isinstance(entry.pid, int) and entry.pid > 0 else None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _entry(device: DeviceName, name: str) -> DeviceEntry:
    return DeviceEntry(
        name=name,
        pid=os.getpid(),
        device=str(device),
        backend=device.backend,
        preset=device.preset,
        program=_program(),
        started=datetime.now().astimezone().isoformat(timespec="seconds"),
    )


def _program() -> str:
    script = Path(sys.argv[0] if sys.argv else "")
    if script.name == "__main__.py":  # python -m PACKAGE
        return script.parent.name
    return script.name if script.name not in ("", "-c") else "python"
