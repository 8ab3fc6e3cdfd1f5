"""Subcommands of ``nearmem``, one module each."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sw_driver.axdimm import Axdimm
    from sw_driver.axdimm.backends import BackendOptions

__all__ = [
    "COMMANDS",
    "Failure",
    "Names",
    "Parser",
    "Refusal",
    "add_configuration_options",
    "add_output_options",
    "backend_options",
    "build_console",
    "driving",
    "integer",
    "open_device",
    "output_file",
    "output_folder",
    "presets",
    "print_files",
    "print_table",
    "progress_console",
    "settings_of",
]

COMMANDS = (
    "sim",
    "verilog",
    "cost",
    "registers",
    "rules",
    "bench",
    "baseline",
    "sweep",
    "study",
    "reproduce",
    "validate",
    "pim",
    "config",
    "cache",
)
"""Modules of this package that are subcommands, in the order of the help text.

They are imported to describe their options, so they import what is slow to load in ``run``.
"""


class Refusal(Exception):
    """Bad input. The message says the value, what was expected and what to do."""


class Failure(Exception):
    """The job failed, though what was asked for was fine."""


class _Help(argparse.HelpFormatter):
    """Says the default of each option that has one and does not say it itself."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        shown = action.help
        known = action.default not in (None, True, False, argparse.SUPPRESS, [])
        if shown is not None and known and "default" not in shown and action.option_strings:
            return f"{shown} (default: %(default)s)"
        return shown


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are :class:`Refusal`, so that they take one line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": _Help, **settings})

    def error(self, message: str) -> NoReturn:
        """Refuses the command line."""
        raise Refusal(f"{message}; '{self.prog} --help' lists what is possible")


def integer(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """An option's type: an integer of at least ``minimum`` and at most ``maximum``."""
    expected = f"an integer of at least {minimum}"
    if maximum is not None:
        expected = f"an integer from {minimum} to {maximum}"

    def parse(text: str) -> int:
        from sw_driver.runtime.numbers import parse_integer

        value = parse_integer(text)
        if value is None or value < minimum or (maximum is not None and value > maximum):
            raise argparse.ArgumentTypeError(f"got {text!r}, expected {expected}")
        return value

    return parse


class Names:
    """Names that are only loaded when a help text shows them."""

    def __init__(self, load: Callable[[], Iterable[str]]) -> None:
        self._load = load

    def __str__(self) -> str:
        return ", ".join(self._load())


def presets(pim: bool = False) -> tuple[str, ...]:
    """Configurations of the module, or of the PIM."""
    from sw_driver.experiments.settings import MODULE_KEYS, PIM_KEYS

    return (PIM_KEYS if pim else MODULE_KEYS)["preset"].choices


def add_configuration_options(parser: argparse.ArgumentParser, *, pim: bool = False) -> None:
    """``--config`` and ``--set``, of the module or of the PIM."""
    default = "paper" if pim else "axdimm"
    config: Any = parser.add_argument(
        "--config",
        metavar="PRESET|FILE",
        help=f"configuration, one of %(presets)s, or a TOML file (default: {default}, the paper's)",
    )
    config.presets = Names(lambda: presets(pim))
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the configuration; may be given several times ('nearmem config "
        f"{default}' lists them)",
    )


def add_depth_option(parser: argparse.ArgumentParser) -> None:
    """``--depth``, of operators."""
    parser.add_argument(
        "--depth",
        action="append",
        default=[],
        metavar="OPERATION=STAGES",
        help="stages of operators (fp32_add, ...) and of those in functional units (adam_unit, "
        "...) where they are not the default, for example add=8; may be given several times",
    )


def depths_of(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, int]:
    """The depths of :func:`add_depth_option`, for designs of these names. Raises
    :class:`Refusal`."""
    from hw.float.format import FP32
    from hw.verilog.generate import WITH_DEPTHS
    from sw_driver.fpga.cost import OPERATORS
    from sw_driver.runtime.numbers import parse_integer

    depths: dict[str, int] = {}
    for setting in arguments.depth:
        if others := [name for name in names if name not in WITH_DEPTHS]:
            raise Refusal(
                f"--depth is for operators and functional units, got {others[0]!r}; name one, as "
                "adam_unit"
            )
        operation, _, text = setting.partition("=")
        stages = parse_integer(text)
        known = OPERATORS[operation].depths(FP32) if operation in OPERATORS else ()
        if stages is None or stages not in known:
            expected = f"one of {', '.join(map(str, known))}" if known else ", ".join(OPERATORS)
            raise Refusal(f"--depth is {setting!r}, expected OPERATION=STAGES with {expected}")
        depths[operation] = stages
    return depths


def add_output_options(parser: argparse.ArgumentParser, what: str = "the results") -> None:
    """``--quiet`` and ``--json``."""
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON, and only that")


def settings_of(arguments: argparse.Namespace, *, pim: bool = False) -> dict[str, Any]:
    """The settings of :func:`add_configuration_options`. Raises :class:`Refusal`."""
    from sw_driver.experiments.settings import MODULE_KEYS, PIM_KEYS, SweepError, read_settings

    try:
        entries = getattr(arguments, "set", [])
        return dict(read_settings(arguments.config, entries, PIM_KEYS if pim else MODULE_KEYS))
    except SweepError as error:
        raise Refusal(str(error)) from error


def backend_options(arguments: argparse.Namespace, progress: Console) -> BackendOptions:
    """The module of :func:`settings_of`, its builds shown by ``progress``."""
    from sw_driver.axdimm.backends import BackendOptions

    settings = settings_of(arguments)
    preset = settings.pop("preset", None)
    announce = build_console(progress)
    return BackendOptions(preset=preset, settings=settings, announce=announce)


def output_file(text: str) -> Path:
    """An option's type: a file that can be written."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder, expected a file: add a name")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"{text!r} is to be written in {str(path.parent)!r}, which is not a folder: create it"
        )
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: choose another")
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
    if not os.access(folder, os.W_OK):
        raise Refusal(f"the folder {str(folder)!r} cannot be written: give another with --out")
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
        if isinstance(error, OSError) and error.filename is not None:
            raise  # the command line names the file
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


def build_console(progress: Console) -> Callable[[str], None] | None:
    """Who is told of a simulator's build: stderr, which shows it, unless nothing is to be shown."""
    return (lambda _: None) if progress.quiet else None


def print_files(arguments: argparse.Namespace, files: Iterable[Path]) -> None:
    """Says which files were written."""
    paths = [str(file) for file in files]
    if arguments.json:
        print(json.dumps({"files": paths}, indent=2))
    elif not arguments.quiet:
        print("\n".join(["Written:", *(f"  {path}" for path in paths)]))


def print_table(table: Table, console: Console | None = None) -> None:
    """Prints a table on stdout. What goes into a file is not squeezed into a screen."""
    if console is None:
        from rich.console import Console

        console = Console()
    if not console.is_terminal:
        wide = console.options.update(width=10_000)
        console.width = max(console.width, console.measure(table, options=wide).maximum)
    console.print(table)
