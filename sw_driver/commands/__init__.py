"""Subcommands of ``nearmem``, one module each."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sw_driver.axdimm import Axdimm
    from sw_driver.axdimm.backends import BackendOptions

__all__ = [
    "COMMANDS",
    "Failure",
    "Parser",
    "Refusal",
    "driving",
    "integer",
    "open_device",
    "output_file",
    "output_folder",
    "print_table",
    "progress_console",
]

COMMANDS = (
    "sim",
    "verilog",
    "registers",
    "bench",
    "baseline",
    "sweep",
    "study",
    "validate",
    "ctl",
    "pim",
)
"""Modules of this package that are subcommands, in the order of the help text.

They are imported to describe their options, so they import what is slow to load in ``run``.
"""


class Refusal(Exception):
    """Bad input. The message says the value, what was expected and what to do."""


class Failure(Exception):
    """The job failed, though what was asked for was fine."""


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are :class:`Refusal`, so that they take one line."""

    def error(self, message: str) -> NoReturn:
        """Refuses the command line."""
        raise Refusal(f"{message}; '{self.prog} --help' lists what is possible")


def integer(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """An option's type: an integer of at least ``minimum`` and at most ``maximum``."""
    expected = f"an integer of at least {minimum}"
    if maximum is not None:
        expected = f"an integer from {minimum} to {maximum}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum or (maximum is not None and value > maximum):
            raise argparse.ArgumentTypeError(f"got {text!r}, expected {expected}")
        return value

    return parse


def output_file(text: str) -> Path:
    """An option's type: a file that can be written."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder, expected a file: add a name")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"{text!r} is to be written in {str(path.parent)!r}, which is not a folder: create it"
        )
    return path


def output_folder(given: Path | None, name: str) -> Path:
    """The folder that was given, by default ``name`` among the builds; made if it is not there."""
    from sw_driver.simulator.buildcache import build_root

    folder = given or build_root() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(
            f"cannot create the folder {str(folder)!r} ({error.strerror}): give another with --out"
        ) from error
    return folder


def open_device(backend: str, options: BackendOptions, *, timeline: Path | None = None) -> Axdimm:
    """Opens a device; see :class:`~sw_driver.axdimm.device.Axdimm`.

    Raises :class:`Refusal` for bad options, else :class:`Failure`.
    """
    from sw_driver.axdimm import Axdimm
    from sw_driver.errors import AxdimmError

    try:
        return Axdimm(backend, options=options, timeline=timeline)
    except ValueError as error:
        raise Refusal(str(error)) from error
    except (AxdimmError, RuntimeError, OSError) as error:
        raise Failure(str(error)) from error


@contextmanager
def driving(*, out_of_memory: str) -> Iterator[None]:
    """Raises what the driver and its device raise as :class:`Refusal` and :class:`Failure`.

    ``out_of_memory`` says what to do when the channels are too small for what was asked for.
    """
    from sw_driver.errors import AxdimmError, OutOfMemoryError
    from sw_driver.transport import DeviceFault, DeviceTimeout

    try:
        yield
    except OutOfMemoryError as error:
        raise Refusal(f"{error}: {out_of_memory}") from error
    except (AxdimmError, DeviceFault, DeviceTimeout) as error:
        raise Failure(f"the device failed: {error}") from error


def progress_console(arguments: argparse.Namespace) -> Console:
    """Shows what is no result, on stderr, so that ``--json`` leaves stdout to the figures; nothing
    with ``--json`` or ``--quiet``."""
    from rich.console import Console

    quiet = arguments.json or getattr(arguments, "quiet", False)
    return Console(stderr=True, quiet=quiet, highlight=False)


def print_table(table: Table, console: Console | None = None) -> None:
    """Prints a table on stdout. What goes into a file is not squeezed into a screen."""
    if console is None:
        from rich.console import Console

        console = Console()
    if not console.is_terminal:
        wide = console.options.update(width=10_000)
        console.width = max(console.width, console.measure(table, options=wide).maximum)
    console.print(table)
