"""``python -m hw_tests.speed.levers``: what each lever of the simulation's speed is worth.

Builds the channel of the default configuration with one thing changed at a time and prints how
fast each can be clocked, beside the channel as it is built otherwise: medians over the repetitions,
which go round the variants. A build takes a minute or two; all take half an hour, once.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from amaranth.hdl import UnusedElaboratable
from rich.console import Console
from rich.progress import track

from hw.logic.shared import Shared
from sw_driver.axdimm.backends import BackendOptions, module_config, rtl
from sw_driver.axdimm.backends.rtl import build_library
from sw_driver.simulator import library as simulator_library
from sw_driver.simulator.buildcache import cache_root, content_key
from sw_driver.simulator.compiler import native_target
from sw_driver.simulator.library import LINK
from sw_driver.simulator.runtime import run_tool, shared_runtime

from .amaranth_kernel import elaborate_copy

__all__ = ["LEVERS", "Lever", "arguments", "build", "main", "measure"]


def _make(fast: str) -> list[str]:
    return [f"OPT_FAST={fast}", "OPT_SLOW=-O0", "OPT_GLOBAL=-O2"]


@contextmanager
def _unshared() -> Iterator[None]:
    with mock.patch.object(Shared, "elaborate", elaborate_copy), warnings.catch_warnings():
        # What was copied is not used itself.
        warnings.simplefilter("ignore", UnusedElaboratable)
        yield
        gc.collect()


@dataclass(frozen=True, kw_only=True)
class Lever:
    """One thing that is built in another way."""

    text: str
    verilator: tuple[str, ...] = ()
    """Added to Verilator's arguments."""
    without: tuple[str, ...] = ()
    """Taken from them; with its value if it has one."""
    make: tuple[str, ...] = tuple(_make("-O2"))
    settings: str | None = None
    """In place of Verilator's control file."""
    clocking: str = "gated"
    """One of :data:`hw.logic.clocking.CLOCKINGS`."""
    design: Callable[[], object] | None = None
    """A context in which the design is another."""
    profile: bool = False
    """Compiled a second time with the profile of a run."""


_NO_HIDING = "-fno-semantic-interposition"

LEVERS = {
    "as built": Lever(text="the driver's own build"),
    "enable": Lever(text="an enable at each of the units' registers", clocking="enable"),
    "unshared": Lever(text="a Verilog module for each instance", design=_unshared),
    "inlined": Lever(
        text="Verilator may inline the units into the kernel", settings="`verilator_config\n"
    ),
    "Os": Lever(text="compiled with -Os, Verilator's default", make=tuple(_make("-Os"))),
    "O3": Lever(text="compiled with -O3", make=tuple(_make("-O3"))),
    "native": Lever(
        text="compiled for this processor, -march=native", verilator=("-CFLAGS", "-march=native")
    ),
    "interposition": Lever(text=f"compiled with {_NO_HIDING}", verilator=("-CFLAGS", _NO_HIDING)),
    "profile": Lever(text="compiled with the profile of a run", profile=True),
    "x-assign": Lever(
        text="Verilator's default for unknown values", without=("--x-assign", "--x-initial")
    ),
    "assertions": Lever(text="assertions checked", without=("--noassert",)),
    "threads": Lever(text="a channel on two threads", verilator=("--threads", "2")),
}
"""Each lever by its short name."""


def arguments(lever: Lever) -> list[str]:
    """Verilator's arguments with the lever."""
    arguments = []
    rest = iter(rtl.VERILATOR_ARGS)
    for argument in rest:
        if argument not in lever.without:
            arguments.append(argument)
        elif argument != "--noassert":
            next(rest)
    return [*arguments, *lever.verilator]


def build(name: str) -> Path:
    """The library with the lever ``name``, from the cache if it is there."""
    lever = LEVERS[name]
    settings = rtl._SETTINGS if lever.settings is None else lever.settings
    native = native_target() if "-march=native" in lever.verilator else ""
    # Names in the control file, which is part of the build's key, what the key does not see.
    mark = content_key([native]) if native else "".join(filter(str.isalpha, name))
    with ExitStack() as stack:
        if lever.design is not None:
            stack.enter_context(lever.design())  # pyright: ignore[reportArgumentType]
        if name != "as built":
            for constant, value in (
                ("VERILATOR_ARGS", arguments(lever)),
                ("MAKE_ARGS", list(lever.make)),
                ("_SETTINGS", f"{settings}// {mark}\n"),
            ):
                stack.enter_context(mock.patch.object(rtl, constant, value))
            stack.enter_context(mock.patch.object(simulator_library, "KEEP_WORK", lever.profile))
        settings = {"clocking": lever.clocking}
        library = build_library(module_config(BackendOptions(settings=settings)))
    return _profiled(library) if lever.profile else library


def _profiled(library: Path) -> Path:
    """Compiles the model of ``library`` with the profile of a run, in a folder of its own."""
    folder = cache_root() / "profiled" / library.parent.name
    done = folder / ".done"
    if done.exists():
        return folder / library.name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(library.parent / "work", folder)
    profile = folder / "profile"

    def compile_all(options: str, link: str) -> None:
        for pattern in ("*.o", "*.gch", "*.a", "*.so"):
            for path in folder.glob(pattern):
                path.unlink()
        links = f"LDLIBS={LINK} {link}"
        make = ["make", "-j2", "-f", "Vchannel.mk", *_make(f"-O2 {options}"), links]
        run_tool([*make, *shared_runtime()], folder)

    generate = f"-fprofile-generate={profile}"
    compile_all(generate, generate)
    measure(folder / library.name, 20_000)
    compile_all(f"-fprofile-use={profile} -fprofile-correction -Wno-missing-profile", "")
    done.touch()
    return folder / library.name


def measure(library: Path, parameters: int) -> dict[str, float]:
    """The figures of :mod:`hw_tests.speed.bare`, from a process of its own."""
    command = [sys.executable, "-m", "hw_tests.speed.bare", str(library), str(parameters)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()[-1000:]}")
    return json.loads(done.stdout)


def main() -> None:
    """Builds, measures, prints."""
    parser = argparse.ArgumentParser(
        prog="python -m hw_tests.speed.levers", description=__doc__.partition("\n\n")[2]
    )
    parser.add_argument("levers", nargs="*", metavar="NAME", help=f"of {', '.join(LEVERS)}")
    parser.add_argument("--parameters", type=int, default=200_000, metavar="N")
    parser.add_argument("--repetitions", type=int, default=5, metavar="N")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.levers if name not in LEVERS]
    if unknown:
        parser.error(f"no lever {', '.join(unknown)}: expected some of {', '.join(LEVERS)}")
    names = list(dict.fromkeys(["as built", *(arguments.levers or LEVERS)]))
    console = Console(stderr=True)
    libraries = {}
    for name in track(names, description="building", console=console):
        libraries[name] = build(name)
    speeds: dict[str, list[float]] = {name: [] for name in names}
    for _ in track(range(arguments.repetitions), description="measuring", console=console):
        for name in names:
            figures = measure(libraries[name], arguments.parameters)
            if not figures["bit_exact"]:
                sys.exit(f"{name}: p, m and v are not the golden model's")
            speeds[name].append(figures["fabric_cycles_per_cpu_second"])
    reference = statistics.median(speeds["as built"])
    for name in names:
        median = statistics.median(speeds[name])
        print(
            f"{name:>14}: {median:>9,.0f} fabric cycles per CPU second, {median / reference:.2f}"
            f"  ({LEVERS[name].text})"
        )


if __name__ == "__main__":
    main()
