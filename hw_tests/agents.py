"""Loads ``agents.cpp`` into the simulator: what acts at every clock in cocotb benches."""

from __future__ import annotations

import ctypes
import random
from functools import cache
from pathlib import Path
from typing import Any

import cocotb
from cocotb.task import Task
from cocotb.triggers import Event, ReadWrite

from sw_driver.simulator.buildcache import cached_build, content_key
from sw_driver.simulator.runtime import COMPILER, run_tool, verilator_includes

__all__ = ["agents", "start_agent"]

_FLAGS = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared"]

_clocks: dict[Any, tuple[Task[Any], int]] = {}
"""Tasks that last as long as the test, and their clocks in C++, by clock."""


@cache
def agents() -> ctypes.PyDLL:
    """Return the functions of ``agents.cpp``, compiled on first use."""
    source = Path(__file__).with_suffix(".cpp")
    includes = [f"-I{path}" for path in verilator_includes()]

    def build(folder: Path) -> None:
        command = [COMPILER, *_FLAGS, *includes, str(source), "-o", str(folder / "agents.so")]
        run_tool(command, folder)

    key = content_key([source.read_text(), COMPILER, *_FLAGS, *includes])
    library = ctypes.PyDLL(
        str(cached_build("agents", key, build, "agents of benches") / "agents.so")
    )
    for name in ("clock_new", "source_new", "sink_new", "memory_new"):
        getattr(library, name).restype = ctypes.c_void_p
    for name in ("memory_cycle", "memory_answers"):
        getattr(library, name).restype = ctypes.c_uint64
    library.memory_quiet.restype = ctypes.c_bool
    return library


def start_agent(
    kind: str, owner: object, clock: Any, port: Any, seed: object, *arguments: object
) -> ctypes.c_void_p:
    """Start an agent of ``kind`` that acts for ``owner`` at each rising edge until the test ends.

    What it reads are values from before the edge. What it finds wrong fails the test: before any
    task that waits for this edge goes on, or at the latest with it.

    Parameters
    ----------
    port:
        The signal of which the agent's ports have the name, up to the last ``_``.
    """
    task, handle = _clocks.get(clock, (None, 0))
    if task is None or task.done():  # that of a test before this one
        task = cocotb.start_soon(Event().wait())
        name = clock._path.encode()
        handle = agents().clock_new(name, ctypes.py_object(task), ctypes.py_object(_fail))
        _clocks[clock] = task, handle
    return ctypes.c_void_p(
        getattr(agents(), f"{kind}_new")(
            ctypes.c_void_p(handle),
            ctypes.py_object(owner),
            ctypes.c_uint64(random.Random(str(seed)).getrandbits(64)),
            port._path[: port._path.rindex("_") + 1].encode(),
            *arguments,
        )
    )


def _fail(error: Exception) -> None:
    """Have the test fail, before what now waits goes on; called outside of cocotb's tasks."""

    async def fail() -> None:
        raise error

    cocotb.start_soon(fail())
    ReadWrite()._register(lambda: None)  # has cocotb go on in this time step
