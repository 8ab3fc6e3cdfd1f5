"""Shared libraries of Verilated designs with a harness in C++."""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hw
from sw_driver.simulator.buildcache import cached_build, content_key, plain_path

from . import public, runtime
from .processes import kill_started
from .profile import BuildProfile, chosen_profile
from .progress import Stage, build_progress
from .public import public_registers
from .runtime import header_flags, run_tool, shared_runtime

__all__ = [
    "C_FLAGS",
    "LINK",
    "cached_library",
    "load_library",
    "model_args",
    "verilated_library",
]

LINK = "-shared -pthread"

# No other library replaces these functions, so they may be inlined, which is a tenth faster.
C_FLAGS = "-fPIC -fno-semantic-interposition -std=c++17"

_STORED = Path(__file__).with_name("stored")

_PUBLIC = Path(public.__file__)

HARNESS_HEADERS = sorted(Path(__file__).parent.glob("*.h"))
"""Headers that a harness may include."""


def model_args(top: str, profile: BuildProfile, c_flags: Sequence[str] = ()) -> list[str]:
    """Return Verilator's arguments for a model of the module ``top``, the class ``V{top}``."""
    return [
        "-cc", "--top-module", top, "--prefix", f"V{top}",
        "-Wno-fatal", "-Wno-lint", "-O3", "--x-assign", "fast", "--x-initial", "fast",
        "--noassert", "--output-split", str(profile.output_split),
        "-CFLAGS", " ".join([C_FLAGS, *c_flags]),
    ]  # fmt: skip


def cached_library(
    build: Callable[[Path, Stage], None],
    *,
    name: str,
    about: str,
    sources: Sequence[Path],
    unused: Sequence[str],
    parameters: Sequence[str],
    announce: Callable[[str], None] | None,
) -> Path:
    """Return the library ``lib{name}.so``; call ``build`` if the same sources were not built yet.

    ``build`` gets a folder, of which only the library is kept, and a function for its progress. The
    cache key covers ``sources``, all of ``hw`` except the packages ``unused``, and the tools'
    versions. ``parameters`` must cover everything else that matters.
    """
    root = Path(next(iter(hw.__path__)))
    files = [path for suffix in ("*.py", "*.v", "*.rdl") for path in root.rglob(suffix)]
    used = [path for path in files if path.relative_to(root).parts[0] not in unused]
    own = [Path(__file__), Path(runtime.__file__)]
    key = content_key(
        [
            *(path.read_bytes() for path in [*sorted(used), *sources, *own]),
            *parameters,
            *(version(tool) for tool in ("verilator", "amaranth")),
            sys.version,
            platform.machine(),
        ]
    )

    def build_and_tidy(folder: Path) -> None:
        build_folder = folder / "work"
        build_folder.mkdir()
        with build_progress(about, announce) as stage:
            build(build_folder, stage)
        (build_folder / f"lib{name}.so").rename(folder / f"lib{name}.so")
        shutil.rmtree(build_folder)

    def load(folder: Path) -> None:
        ctypes.CDLL(str(folder / f"lib{name}.so"))

    return cached_build("rtl", key, build_and_tidy, about, announce, load) / f"lib{name}.so"


def verilated_library(
    design: Callable[[], Any],
    *,
    top: str,
    about: str,
    parameters: Sequence[str],
    harness: Path,
    c_flags: Sequence[str],
    settings: str,
    unused: Sequence[str] = (),
    wave: bool = False,
    faults: bool = False,
    announce: Callable[[str], None] | None = None,
) -> Path:
    """Return the shared library of a design, and build it unless it is already built.

    Parameters
    ----------
    design: function that makes the component.
    top: name of its module.
    about: description of the build for messages.
    parameters: everything besides the sources in ``hw`` that changes the component.
    harness: C++ source that drives the model.
    c_flags: flags of the compiler, in addition to ``C_FLAGS``.
    settings: content of Verilator's control file.
    unused: packages in ``hw`` that the design does not need.
    wave: True to define ``NEARMEM_WAVE``, with which the harness writes waveforms; the model is
        slower.
    faults: True to define ``NEARMEM_FAULTS``, with which the harness flips bits of registers and
        memories; the model is slower.
    announce: function for messages about the begin and end of a build, see
        :func:`~sw_driver.simulator.progress.build_progress`; a build takes about a minute.

    Raises
    ------
    BuildError: a tool failed.
    """
    profile = chosen_profile()
    arguments = [
        *model_args(top, profile, c_flags), "--exe", "-o", f"lib{top}.so", "-LDFLAGS", LINK,
    ]  # fmt: skip
    make_arguments = [f"OPT_SLOW={profile.once}", f"OPT_GLOBAL={profile.once}"]
    if wave:
        stored = plain_path(_STORED)
        arguments += ["--trace-fst", "-CFLAGS", f"-DNEARMEM_WAVE -I{stored}"]
        # For Verilator's own files alone: the model's begin with a header that is compiled before.
        make_arguments[1] += f" -include {stored}/waveform_checks.h"
        # Without the libraries that Verilator requires: see the headers in `stored`.
        make_arguments.append(f"LDLIBS={LINK}")
    if faults:
        arguments += ["-DNEARMEM_FAULTS", "-CFLAGS", "-DNEARMEM_FAULTS"]

    def build(folder: Path, stage: Stage) -> None:
        stage("generating Verilog", 0, 0)
        # Amaranth takes time to load and is needed only for a build.
        from hw.verilog.writer import to_verilog

        with kill_started():
            text = to_verilog(design(), top)
        (folder / f"{top}.v").write_text(text)
        more = public_registers(text) if faults else ""
        (folder / "settings.vlt").write_text(settings + more)
        inputs = ["settings.vlt", f"{top}.v", str(plain_path(harness.parent) / harness.name)]
        headers = ["-CFLAGS", f"-I{plain_path(Path(__file__).parent)}"]
        stage("Verilating", 0, 0)
        run_tool(["verilator", *arguments, *headers, "-Mdir", str(folder), *inputs], folder)
        fast = [f"OPT_FAST={' '.join([profile.optimization, *header_flags(profile, C_FLAGS)])}"]
        shared_objects = [] if wave else shared_runtime()
        files = len([*folder.glob("*.cpp"), harness])
        run_tool(
            ["make", "-j2", "-f", f"V{top}.mk", *fast, *make_arguments, *shared_objects],
            folder,
            lambda: stage("compiling", min(files, len([*folder.glob("*.o")])), files),
        )

    return cached_library(
        build,
        name=top,
        about=about,
        sources=[harness, *HARNESS_HEADERS, *sorted(_STORED.iterdir()), *[_PUBLIC] * faults],
        unused=unused,
        parameters=[*parameters, repr(profile), *arguments, *make_arguments, settings],
        announce=announce,
    )


_C_TYPES = {
    "void": None,
    "int": ctypes.c_int,
    "unsigned": ctypes.c_uint,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "char*": ctypes.c_char_p,
}


def load_library(path: Path, harness: Path) -> Any:
    """Return the library at ``path`` with the functions in ``extern "C"`` of ``harness``.

    The types of results and arguments are parsed from ``harness``. Pointers are addresses
    (``ctypes.c_void_p``). Other Python threads run during a call.
    """
    library = ctypes.CDLL(str(path))
    _, _, defined = harness.read_text().partition('extern "C" {')
    for result, name, parameters in re.findall(r"^(\w+\*?) (\w+)\(([^)]*)\) \{", defined, re.M):
        function = getattr(library, name)
        function.restype = _c_type(result)
        declared = [" ".join(text.split()[:-1]) for text in parameters.split(",") if text]
        function.argtypes = [_c_type(parameter) for parameter in declared]
    return library


def _c_type(declared: str) -> Any:
    kind = declared.removeprefix("const ")
    return ctypes.c_void_p if kind.endswith("*") and kind != "char*" else _C_TYPES[kind]
