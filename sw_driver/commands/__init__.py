"""Subcommands of ``nearmem``, one module each.

A module has ``Options``, a dataclass with what can be given and its help, and ``run``, which does
the work and returns the exit status. What several have of ``Options`` is here.
"""

# No postponed annotations: those of options are read where the options are inherited, too.

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from cyclopts import Group, Parameter, Token
from cyclopts.validators import mutually_exclusive

if TYPE_CHECKING:
    from rich.console import Console

    from hw.axdimm.config import ModuleConfig
    from hw.pim.config import PimConfig
    from sw_driver.axdimm import Axdimm
    from sw_driver.axdimm.backends import BackendOptions

__all__ = [
    "COMMANDS",
    "FLAT",
    "GROUPS",
    "OPTIONS",
    "DepthOptions",
    "Failure",
    "MachineOptions",
    "OutputFile",
    "OutputFolder",
    "OutputOptions",
    "Refusal",
    "Settings",
    "backend_options",
    "driving",
    "exclusive",
    "integer",
    "new_folder",
    "open_device",
    "output_folder",
    "print_files",
    "progress_console",
    "refuse_both",
    "turning",
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
    "workload",
    "compare",
    "plan memferry",
    "plan sentinel",
    "plan hetero-pim",
    "reproduce",
    "validate",
    "pim",
    "config",
    "cache",
)
"""Subcommands, in the order of the help text: modules of this package, with _ for a space.

Their docstrings and options are shown without anything being done, so they import what is slow to
load in ``run``.
"""

GROUPS = {"plan": "Plan a training step for a system."}
"""What the first words of subcommands of two words mean."""

FLAT = Parameter(name="*")
"""Marks the parameter of ``run`` whose fields are the options."""

OPTIONS = Group("Options", sort_key=1)
OUTPUT = Group("Output", sort_key=2)

Settings: TypeAlias = Annotated[tuple[str, ...], Parameter(metavar="KEY=VALUE")]
OutputFolder: TypeAlias = Annotated[Path | None, Parameter(metavar="DIR")]


class Refusal(Exception):
    """Bad input. The message says the value, what was expected and what to do."""


class Failure(Exception):
    """The job failed, though what was asked for was fine."""


def exclusive() -> Parameter:
    """Marks options of which one may be given."""
    return Parameter(group=(OPTIONS, Group(validator=mutually_exclusive, show=False)))


def integer(minimum: int, maximum: int | None = None, metavar: str = "N") -> Parameter:
    """Marks an option that is an integer of at least ``minimum`` and at most ``maximum``."""
    expected = f"an integer of at least {minimum}"
    if metavar == "BYTES":
        expected += ", such as 16GiB"
    if maximum is not None:
        expected = f"an integer from {minimum} to {maximum}"

    def convert(_: Any, tokens: Sequence[Token]) -> int:
        from sw_driver.numbers import parse_integer

        text = tokens[0].value
        value = parse_integer(text)
        if value is None or value < minimum or (maximum is not None and value > maximum):
            raise ValueError(f"got {text!r}, expected {expected}")
        return value

    return Parameter(converter=convert, metavar=metavar)


def _output_file(_: Any, tokens: Sequence[Token]) -> Path:
    text = tokens[0].value
    path = Path(text)
    if path.is_dir():
        raise ValueError(f"{text!r} is a folder, expected a file: add a name")
    if not path.parent.is_dir():
        raise ValueError(
            f"{text!r} is to be written in {str(path.parent)!r}, which is not a folder: create it"
        )
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{text!r} cannot be written: choose another")
    return path


OutputFile: TypeAlias = Annotated[Path | None, Parameter(converter=_output_file, metavar="FILE")]


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is printed."""

    quiet: Annotated[bool, Parameter(group=OUTPUT)] = False
    """print nothing but errors"""
    json: Annotated[bool, Parameter(group=OUTPUT)] = False
    """print the results as JSON, and only that"""


@dataclass(frozen=True, kw_only=True)
class MachineOptions(OutputOptions):
    """The configuration of the module, or of the PIM, and what is printed."""

    config: Annotated[str | None, Parameter(metavar="PRESET|FILE")] = None
    """configuration that 'nearmem config' lists, or a TOML file (default: the paper's)"""
    set: Settings = ()
    """a setting of the configuration; may be given several times ('nearmem config PRESET' lists
    them)"""

    def settings(self, *, pim: bool = False) -> dict[str, Any]:
        """The settings of ``--config`` and ``--set``."""
        from sw_driver.experiments.settings import MODULE_KEYS, PIM_KEYS, read_settings

        return dict(read_settings(self.config, self.set, PIM_KEYS if pim else MODULE_KEYS))

    def module(self, **own: Any) -> "ModuleConfig":
        """Return the module, with ``own`` settings; raise :class:`Refusal` if there is none."""
        from hw.axdimm.config import configure

        with turning(ValueError, into=Refusal):
            return configure(**self.settings() | own)

    def pim(self) -> "PimConfig":
        """Return the PIM; raise :class:`Refusal` if there is none."""
        from hw.pim.config import configure

        with turning(ValueError, into=Refusal):
            return configure(**self.settings(pim=True))


@dataclass(frozen=True, kw_only=True)
class DepthOptions:
    """Depths of operators."""

    depth: Annotated[tuple[str, ...], Parameter(metavar="OPERATION=STAGES")] = ()
    """stages of operators (fp32_add, ...) and of those in functional units (adam_unit, ...) where
    they are not the default, for example add=8; may be given several times"""

    def depths(self, names: Iterable[str]) -> dict[str, int]:
        """The depths, for designs of these names."""
        from hw.float.format import FP32
        from hw.verilog.generate import WITH_DEPTHS
        from sw_driver.fpga.cost import OPERATORS
        from sw_driver.numbers import parse_integer

        depths: dict[str, int] = {}
        for setting in self.depth:
            if others := [name for name in names if name not in WITH_DEPTHS]:
                raise Refusal(
                    f"--depth is for operators and functional units, got {others[0]!r}; name one, "
                    "as adam_unit"
                )
            operation, _, text = setting.partition("=")
            stages = parse_integer(text)
            known = OPERATORS[operation].depths(FP32) if operation in OPERATORS else ()
            if stages is None or stages not in known:
                expected = f"one of {', '.join(map(str, known))}" if known else ", ".join(OPERATORS)
                raise Refusal(f"--depth is {setting!r}, expected OPERATION=STAGES with {expected}")
            if operation in depths:
                raise Refusal(
                    f"--depth has {operation} twice, as {depths[operation]} and {stages}: give it "
                    "once"
                )
            depths[operation] = stages
        return depths


def refuse_both(entries: Iterable[str], options: Mapping[str, str]) -> None:
    """Raise :class:`Refusal` if ``--set`` has a setting that an option has, too.

    ``options`` are those that were given, by the settings that they mean.
    """
    from sw_driver.numbers import split_entry

    for name in [name for name, _ in map(split_entry, entries) if name in options]:
        raise Refusal(f"{options[name]} and --set {name}= say the same thing: leave one out")


def backend_options(options: MachineOptions, **own: Any) -> "BackendOptions":
    """Return the module that ``options`` describe, with ``own`` settings.

    Its builds are shown unless nothing is.
    """
    from sw_driver.axdimm.backends import BackendOptions

    settings = options.settings() | own
    preset = settings.pop("preset", None)
    announce = (lambda _: None) if options.json or options.quiet else None
    return BackendOptions(preset=preset, settings=settings, announce=announce)


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


def new_folder(given: Path | None) -> Path | None:
    """Return the folder that was given, which can be made and written to when there is a result."""
    if given is None:
        return None
    there = next(path for path in (given.absolute(), *given.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise Refusal(
            f"the folder {str(given)!r} cannot be written, as {str(there)!r} is none that can: "
            "give another with --out"
        )
    return given


def open_device(
    backend: str, options: "BackendOptions", *, timeline: Path | None = None
) -> "Axdimm":
    """Opens a device; see :class:`~sw_driver.axdimm.device.Axdimm`.

    Raises :class:`Refusal` for bad options, else :class:`Failure`.
    """
    from sw_driver.axdimm import Axdimm
    from sw_driver.device.errors import AxdimmError

    try:
        return Axdimm(backend, options=options, timeline=timeline)
    except ValueError as error:
        raise Refusal(str(error)) from error
    except (AxdimmError, RuntimeError, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise  # the command line names the file
        raise Failure(str(error)) from error


@contextmanager
def turning(*errors: type[Exception], into: type[Refusal] | type[Failure]) -> Iterator[None]:
    """Raises ``errors`` as :class:`Refusal` or :class:`Failure`."""
    try:
        yield
    except errors as error:
        raise into(str(error)) from error


@contextmanager
def driving(*, out_of_memory: str) -> Iterator[None]:
    """Raise what the driver and its device raise as :class:`Refusal` and :class:`Failure`.

    An ``InvalidArgumentError`` stays one. ``out_of_memory`` says what to do when the channels are
    too small for what was asked for.
    """
    from sw_driver.device.errors import AxdimmError, InvalidArgumentError, OutOfMemoryError
    from sw_driver.device.transport import DeviceFault, DeviceTimeout

    try:
        yield
    except InvalidArgumentError:
        raise
    except OutOfMemoryError as error:
        raise Refusal(f"{error}: {out_of_memory}") from error
    except (AxdimmError, DeviceFault, DeviceTimeout) as error:
        raise Failure(f"the device failed: {error}") from error


def progress_console(options: OutputOptions) -> "Console":
    """Shows what is no result, on stderr, so that ``--json`` leaves stdout to the figures; nothing
    with ``--json`` or ``--quiet``."""
    from rich.console import Console

    return Console(stderr=True, quiet=options.json or options.quiet, highlight=False)


def print_files(options: OutputOptions, files: Iterable[Path]) -> None:
    """Says which files were written."""
    paths = [str(file) for file in files]
    if options.json:
        print(json.dumps({"files": paths}, indent=2))
    elif not options.quiet:
        print("\n".join(["Written:", *(f"  {path}" for path in paths)]))
