"""Verilator's runtime library, compiled once for all models."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from sw_driver.simulator.buildcache import cached_build, content_key, verilator_env

from .processes import kill_tree

__all__ = ["BuildError", "run_tool", "runtime_library", "shared_runtime"]

# Tracing and coroutines are not among them: they need other settings.
_OBJECTS = [f"verilated{part}.o" for part in ("", "_dpi", "_vpi", "_threads")]

_VERILATOR = [
    "verilator", "-cc", "--vpi", "--top-module", "empty", "--prefix", "Vempty", "-Mdir", ".",
    "-CFLAGS", "-fPIC", "empty.v",
]  # fmt: skip
WATCH_S = 0.5
_MAKE = ["make", "-j2", "-f", "Vempty.mk", "OPT_GLOBAL=-O2", *_OBJECTS]


class BuildError(RuntimeError):
    """The simulator could not be built."""


def run_tool(command: list[str], folder: Path, watch: Callable[[], None] = lambda: None) -> None:
    """Runs a command of the build in ``folder``; ``watch`` is called while it runs.

    Raises :class:`BuildError`, a log beside it. What ``watch`` raises, or Ctrl-C, ends the command
    and all that it has started.
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
        # The folder is thrown away by the next attempt, not by this one.
        tail = " | ".join(log.read_text().strip().splitlines()[-3:])
        raise BuildError(f"building the simulator failed, see {log}: {tail}")


def runtime_library() -> Path:
    """Verilator's runtime, for models without tracing and timing.

    Otherwise each model would compile the runtime again, some ten seconds of CPU time. Verilator's
    own makefile compiles it, for an empty model. Raises :class:`BuildError`.
    """

    def build(folder: Path) -> None:
        (folder / "empty.v").write_text("module empty(input clk); endmodule\n")
        for command in (_VERILATOR, _MAKE, ["ar", "rcs", "libverilated.a", *_OBJECTS]):
            run_tool(command, folder)

    key = content_key([version("verilator"), *_VERILATOR, *_MAKE])
    return cached_build("verilator-runtime", key, build, "Verilator's runtime") / "libverilated.a"


def shared_runtime() -> list[str]:
    """Arguments for the makefile of a model, to link the :func:`runtime_library`."""
    return ["VM_GLOBAL_FAST=", f"LOADLIBES={runtime_library()}"]
