"""Shared libraries of assemblies, with a Verilated model for each component."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING

from .library import C_FLAGS, HARNESS_HEADERS, LINK, cached_library, model_args
from .parts_header import parts_header
from .processes import kill_started
from .profile import BuildProfile, chosen_profile
from .progress import Stage
from .runtime import (
    COMPILER,
    DEFINES,
    WATCH_S,
    BuildError,
    header_flags,
    run_tool,
    runtime_library,
    verilator_includes,
)

if TYPE_CHECKING:
    from hw.sim.assembly import Assembly

__all__ = ["parts_library"]

_SOURCES = [Path(__file__), Path(__file__).with_name("parts_header.py")]


def parts_library(
    design: Callable[[], Assembly],
    *,
    name: str,
    about: str,
    parameters: Sequence[str],
    harness: Path,
    unused: Sequence[str] = (),
    announce: Callable[[str], None] | None = None,
) -> Path:
    """Return the shared library of an assembly, and build it unless it is already built.

    The harness includes ``parts.h`` (:func:`~sw_driver.simulator.parts_header.parts_header`). Its
    structure ``Parts`` has a Verilated model as a member for each instance.

    Parameters
    ----------
    design: function that makes the assembly.
    name: name of the library.
    about: description of the build for messages.
    parameters: everything besides the sources in ``hw`` that changes the assembly.
    harness: C++ source that drives the models.
    unused: packages in ``hw`` that the assembly does not need.
    announce: function for messages about the begin and end of a build, see
        :func:`~sw_driver.simulator.progress.build_progress`; a build takes some minutes.

    Raises
    ------
    BuildError: a tool failed.
    """
    profile = chosen_profile()

    def build(folder: Path, stage: Stage) -> None:
        stage("generating Verilog", 0, 0)
        # Amaranth takes time to load and is needed only for a build.
        from hw.verilog.writer import to_verilog

        assembly = design()
        models = [folder / module for module in assembly.components]
        stopped = threading.Event()
        with ThreadPoolExecutor(os.cpu_count()) as workers:
            try:
                builds = []
                for model, component in zip(models, assembly.components.values(), strict=True):
                    model.mkdir()
                    verilog = model / f"{model.name}.v"
                    with kill_started():
                        verilog.write_text(to_verilog(component, model.name))
                    builds.append(workers.submit(_build_model, model.name, model, profile, stopped))
                pending = set(builds)
                while pending:
                    stage("Verilating and compiling", len([*folder.glob("*/*.o")]), 2 * len(models))
                    _, pending = wait(pending, WATCH_S, FIRST_EXCEPTION)
                    for finished in builds:
                        if finished.done():
                            finished.result()
            except BaseException:  # a failure or Ctrl-C: the other builds are useless
                stopped.set()
                workers.shutdown(wait=False, cancel_futures=True)
                raise
        weights = {model.name: (model / "fast.o").stat().st_size for model in models}
        (folder / "parts.h").write_text(parts_header(assembly, weights))
        stage("linking", 0, 0)
        _link(name, harness, models, profile, folder)

    return cached_library(
        build,
        name=name,
        about=about,
        sources=[harness, *_SOURCES, *HARNESS_HEADERS],
        unused=unused,
        parameters=[*parameters, *model_args(name, profile), LINK, repr(profile)],
        announce=announce,
    )


def _compiler(optimization: str, profile: BuildProfile, folder: Path) -> list[str]:
    return [
        *(COMPILER, optimization, *C_FLAGS.split(), *DEFINES, *header_flags(profile, C_FLAGS)),
        *(f"-I{path}" for path in (folder, *verilator_includes())),
    ]


def _build_model(
    module: str, folder: Path, profile: BuildProfile, stopped: threading.Event
) -> None:
    """Verilate and compile the model of ``module``, with its Verilog in ``folder``.

    Raises :class:`BuildError` if ``stopped`` is set.
    """

    def watch() -> None:
        if stopped.is_set():
            raise BuildError(f"building {module} was stopped")

    arguments = [*model_args(module, profile), "-Mdir", ".", f"{module}.v"]
    run_tool(["verilator", *arguments], folder, watch)
    # Verilator's makefile would compile each file separately, and headers first. That takes longer,
    # and 140 MB.
    sources = sorted(path.name for path in folder.glob("*.cpp"))
    for name, optimization in (("fast", profile.optimization), ("slow", profile.once)):
        chosen = [source for source in sources if ("Slow" in source) == (name == "slow")]
        unit = folder / f"{name}.cpp"
        unit.write_text("".join(f'#include "{source}"\n' for source in chosen))
        run_tool([*_compiler(optimization, profile, folder), "-c", unit.name], folder, watch)


def _link(
    name: str, harness: Path, models: Sequence[Path], profile: BuildProfile, folder: Path
) -> None:
    """Link the library in ``folder`` from the harness and the models in their folders."""
    run_tool(
        [
            *_compiler(profile.optimization, profile, folder),
            *LINK.split(),
            *(f"-I{path}" for path in (*models, Path(__file__).parent)),
            str(harness),
            *(str(path) for model in models for path in sorted(model.glob("*.o"))),
            str(runtime_library()),
            *("-o", f"lib{name}.so"),
        ],
        folder,
    )
