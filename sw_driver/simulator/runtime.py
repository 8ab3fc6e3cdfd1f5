"""Verilator's runtime library and its headers, compiled once for all models."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from sw_driver.simulator.buildcache import (
    cache_root,
    cached_build,
    content_key,
    plain_path,
    verilator_env,
)

from .processes import kill_tree
from .profile import BuildProfile

__all__ = [
    "COMPILER",
    "DEFINES",
    "BuildError",
    "header_flags",
    "precompiled_headers",
    "run_tool",
    "runtime_library",
    "shared_runtime",
    "verilator_includes",
]

COMPILER = "g++"

DEFINES = [
    "-DVERILATOR=1", "-DVM_COVERAGE=0", "-DVM_SC=0", "-DVM_TIMING=0", "-DVM_TRACE=0",
    "-DVM_TRACE_FST=0", "-DVM_TRACE_VCD=0", "-DVM_TRACE_SAIF=0",
]  # fmt: skip
"""Definitions of Verilator's makefile, for models without tracing and timing."""

# Tracing and coroutines are left out: they need other settings.
_OBJECTS = [f"verilated{part}.o" for part in ("", "_cov", "_dpi", "_vpi", "_threads")]

_VERILATOR = [
    "verilator", "-cc", "--vpi", "--top-module", "empty", "--prefix", "Vempty", "-Mdir", ".",
    "-CFLAGS", "-fPIC", "empty.v",
]  # fmt: skip
WATCH_S = 0.5

_REASON = re.compile(r"\berror\b(?! \d)|\bkilled\b", re.IGNORECASE)
"""Lines of a log that state a reason; not make's final "Error 1"."""
_MAKE = ["make", "-j2", "-f", "Vempty.mk", "OPT_GLOBAL=-O2", *_OBJECTS]


class BuildError(RuntimeError):
    """A simulator was not built, or a design not synthesized; the message says what to do."""


def run_tool(command: list[str], folder: Path, watch: Callable[[], None] = lambda: None) -> None:
    """Run a build command in ``folder``; call ``watch`` regularly while it runs.

    Raises :class:`BuildError`; the log stays in the folder. An exception of ``watch``, or Ctrl-C,
    ends the command and all its child processes.
    """
    log = folder / "build.log"
    try:
        with (
            log.open("a") as output,
            subprocess.Popen(
                command, cwd=folder, env=verilator_env(), stdout=output, stderr=output
            ) as process,
        ):
            status = None
            try:
                while status is None:
                    watch()
                    with suppress(subprocess.TimeoutExpired):
                        status = process.wait(WATCH_S)
            except BaseException:  # Ctrl-C
                kill_tree(process.pid)
                raise
    except FileNotFoundError as error:
        raise BuildError(
            f"{command[0]!r} was not found: the simulator needs g++, make and perl"
        ) from error
    if status:
        lines = log.read_text(errors="replace").strip().splitlines()
        # The folder stays until the next attempt.
        reasons = [line for line in lines if _REASON.search(line)]
        reason = " | ".join(reasons[:2] or lines[-3:])
        raise BuildError(f"building the simulator failed, see {log}: {reason}")


def runtime_library() -> Path:
    """Return Verilator's runtime for models without tracing and timing.

    Otherwise each model would compile the runtime again, some ten seconds of CPU time. Verilator's
    own makefile compiles it for an empty model. Raises :class:`BuildError`.
    """

    def build(folder: Path) -> None:
        (folder / "empty.v").write_text("module empty(input clk); endmodule\n")
        for command in (_VERILATOR, _MAKE, ["ar", "rcs", "libverilated.a", *_OBJECTS]):
            run_tool(command, folder)

    key = content_key([version("verilator"), platform.machine(), *_VERILATOR, *_MAKE])
    folder = cached_build("verilator-runtime", key, build, "Verilator's runtime")
    return plain_path(folder) / "libverilated.a"


def shared_runtime() -> list[str]:
    """Return the makefile arguments that link a model to the :func:`runtime_library`."""
    return ["VM_GLOBAL_FAST=", f"LOADLIBES={runtime_library()}"]


def verilator_includes() -> list[Path]:
    """Return the folders of Verilator's headers."""
    include = Path(verilator_env()["VERILATOR_ROOT"]) / "include"
    return [include, include / "vltstd"]


def header_flags(profile: BuildProfile, c_flags: str) -> list[str]:
    """Return the flags that include Verilator's precompiled headers, if the profile uses them."""
    if not profile.precompiled:
        return []
    flags = [profile.optimization, *c_flags.split()]
    return ["-include", str(precompiled_headers("verilated verilated_dpi", flags))]


def precompiled_headers(names: str, flags: list[str]) -> Path:
    """Return a header that includes Verilator's headers ``names``, and precompile it.

    Parsing the headers takes a second for each file. A compiler with flags other than ``flags``
    parses them anyway.
    """
    options = [*flags, *DEFINES, *(f"-I{path}" for path in verilator_includes())]
    text = "".join(f'#include "{name}.h"\n' for name in names.split())
    key = content_key([version("verilator"), text, *options])
    folder = cache_root() / "verilator-headers" / key
    header = plain_path(folder) / "headers.h"
    compiled = header.with_suffix(".h.gch")
    if not compiled.exists():
        folder.mkdir(parents=True, exist_ok=True)
        header.write_text(text)
        # Replace it atomically: another process or thread may use it.
        new = header.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        subprocess.run([COMPILER, *options, "-x", "c++-header", header, "-o", new], check=True)
        new.replace(compiled)
    return header
