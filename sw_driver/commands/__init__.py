"""Subcommands of ``nearmem``, one module each.

A module has ``Options``, a dataclass of options with their help texts, and ``run``, which does the
work and returns the exit status. The docstring of ``run`` is the help text of the command; it ends
with an example. This module has the options and checks that several commands share.
"""

# No postponed annotations: modules that inherit options read the annotations as well.

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from cyclopts import Group, Parameter, Token
from cyclopts.validators import mutually_exclusive

if TYPE_CHECKING:
    from hw.axdimm.config import ModuleConfig
    from hw.pim.config import PimConfig
    from sw_driver.axdimm import Axdimm
    from sw_driver.axdimm.backends import BackendOptions

__all__ = [
    "COMMANDS",
    "DEFAULTS",
    "FLAT",
    "GROUPS",
    "OPTIONS",
    "RENAMED",
    "DepthOptions",
    "Failure",
    "MachineOptions",
    "OutputFile",
    "OutputFolder",
    "OutputOptions",
    "Refusal",
    "Settings",
    "SizeOptions",
    "WorkloadOptions",
    "backend_options",
    "driving",
    "exclusive",
    "integer",
    "open_device",
    "output_folder",
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
    "measure",
    "sweep",
    "study",
    "workload",
    "compare",
    "plan memferry",
    "plan sentinel",
    "plan hetero-pim",
    "reproduce",
    "validate rtl",
    "validate training",
    "faults",
    "pim",
    "config",
    "cache",
)
"""Subcommands, in the order of the help text: modules of this package, with _ for a space.

The help text loads these modules, so they import slow libraries inside ``run`` only.
"""

RENAMED = {"baseline": "measure"}
"""Older names of subcommands, with the present ones."""

GROUPS = {
    "plan": "Plan a training step for a system.",
    "validate": "Measure how far the models are off; without a word, the cycle model (rtl).",
}
"""Help texts of the first words of two-word subcommands."""

DEFAULTS = {"validate": "rtl"}
"""Second words of two-word subcommands that may be left out."""

FLAT = Parameter(name="*")
"""Mark of the parameter of ``run`` with the options as its fields."""

OPTIONS = Group("Options", sort_key=1)
OUTPUT = Group("Output", sort_key=2)

Settings: TypeAlias = Annotated[tuple[str, ...], Parameter(metavar="KEY=VALUE")]
OutputFolder: TypeAlias = Annotated[Path | None, Parameter(metavar="DIR")]


class Refusal(Exception):
    """Error for bad input; its message has the value, the expected values and a remedy."""


class Failure(Exception):
    """Error of a job that fails although its input is good."""


def exclusive() -> Parameter:
    """Return the mark of options that exclude each other."""
    return Parameter(group=(OPTIONS, Group(validator=mutually_exclusive, show=False)))


def integer(minimum: int, maximum: int | None = None, metavar: str = "N") -> Parameter:
    """Return the mark of an integer option from ``minimum`` to ``maximum``."""
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
        raise ValueError(f"{text!r} is a folder, expected a file: add a file name")
    if not path.parent.is_dir():
        raise ValueError(
            f"cannot write {text!r}: {str(path.parent)!r} is not a folder, so create it first"
        )
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"cannot write {text!r}: choose a file that you may write")
    return path


OutputFile: TypeAlias = Annotated[Path | None, Parameter(converter=_output_file, metavar="FILE")]


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Options for the output of a command."""

    quiet: Annotated[bool, Parameter(group=OUTPUT)] = False
    """print errors only"""
    json: Annotated[bool, Parameter(group=OUTPUT)] = False
    """print the results as one JSON object and nothing else"""


@dataclass(frozen=True, kw_only=True)
class SizeOptions(OutputOptions):
    """Options for the sizes of a workload, and for the output."""

    batch: Annotated[int | None, integer(1)] = None
    """samples of a batch (default: the network's); FUNCTION takes it as its argument batch"""
    seq: Annotated[int | None, integer(1)] = None
    """tokens of a sample of a decoder (default: the network's); FUNCTION takes it as its argument
    seq"""


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions(SizeOptions):
    """Options for the training step of a workload, and for the output."""

    rule: Annotated[str | None, Parameter(metavar="NAME")] = None
    """update rule for a decoder, a vision transformer or FILE.py:FUNCTION (default: adam)"""


@dataclass(frozen=True, kw_only=True)
class MachineOptions(OutputOptions):
    """Options for the configuration of the module or the PIM, and for the output."""

    config: Annotated[str | None, Parameter(metavar="PRESET|FILE")] = None
    """preset of 'nearmem config', or a TOML file (default: the paper's)"""
    set: Settings = ()
    """change a setting ('nearmem config PRESET' lists them); repeatable"""

    def settings(self, *, pim: bool = False) -> dict[str, Any]:
        """Return the settings of ``--config`` and ``--set``."""
        from sw_driver.experiments.settings import MODULE_KEYS, PIM_KEYS, read_settings

        return dict(read_settings(self.config, self.set, PIM_KEYS if pim else MODULE_KEYS))

    def module(self, **own: Any) -> "ModuleConfig":
        """Return the module's configuration, with ``own`` settings.

        Raise :class:`Refusal` if the settings do not fit together.
        """
        from hw.axdimm.config import configure

        with turning(ValueError, into=Refusal):
            return configure(**self.settings() | own)

    def pim(self) -> "PimConfig":
        """Return the PIM's configuration; raise :class:`Refusal` for settings that do not fit."""
        from hw.pim.config import configure

        with turning(ValueError, into=Refusal):
            return configure(**self.settings(pim=True))


@dataclass(frozen=True, kw_only=True)
class DepthOptions:
    """Option for the pipeline depths of operators."""

    depth: Annotated[tuple[str, ...], Parameter(metavar="OPERATION=STAGES")] = ()
    """pipeline stages of an operation, such as add=8, in operators (fp32_add, ...) and functional
    units (adam_unit, ...); repeatable (default: the depths of the designs)"""

    def depths(self, names: Iterable[str]) -> dict[str, int]:
        """Return the stages by operation; raise :class:`Refusal` if ``names`` take no depth."""
        from hw.float.format import FP32
        from hw.verilog.generate import WITH_DEPTHS
        from sw_driver.fpga.cost import OPERATORS
        from sw_driver.numbers import parse_integer

        depths: dict[str, int] = {}
        for setting in self.depth:
            if others := [name for name in names if name not in WITH_DEPTHS]:
                raise Refusal(
                    f"--depth is for operators and functional units, got {others[0]!r}: name one, "
                    "such as adam_unit"
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
    """Raise :class:`Refusal` if ``--set`` and another option change the same setting.

    ``options`` holds the options on the command line, by the names of their settings.
    """
    from sw_driver.numbers import split_entry

    for name in [name for name, _ in map(split_entry, entries) if name in options]:
        raise Refusal(f"{options[name]} and --set {name}= change the same setting: leave one out")


def backend_options(options: MachineOptions, **own: Any) -> "BackendOptions":
    """Return a backend's options: the settings of ``options`` and ``own``.

    Builds of simulators are announced unless ``--json`` or ``--quiet`` is given.
    """
    from sw_driver.axdimm.backends import BackendOptions

    settings = options.settings() | own
    preset = settings.pop("preset", None)
    announce = (lambda _: None) if options.json or options.quiet else None
    return BackendOptions(preset=preset, settings=settings, announce=announce)


def output_folder(given: Path | None, default: str) -> Path:
    """Return the folder ``given``, by default one in the build folder, without creating it.

    A refused command leaves no folder, so the one that writes creates it. Raise :class:`Refusal` if
    it cannot be created and written.
    """
    from sw_driver.simulator.buildcache import build_root

    folder = given or build_root() / default
    parent = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise Refusal(
            f"cannot write to the folder {str(folder)!r}: {str(parent)!r} is not a folder that you "
            "may write to; give another with --out"
        )
    return folder


def open_device(
    backend: str, options: "BackendOptions", *, timeline: Path | None = None
) -> "Axdimm":
    """Open a device; see :class:`~sw_driver.axdimm.device.Axdimm`.

    Raise :class:`Refusal` for bad options, else :class:`Failure`.
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
    """Turn ``errors`` into :class:`Refusal` or :class:`Failure`."""
    try:
        yield
    except errors as error:
        raise into(str(error)) from error


@contextmanager
def driving(*, out_of_memory: str) -> Iterator[None]:
    """Turn errors of the driver and its device into :class:`Refusal` and :class:`Failure`.

    An ``InvalidArgumentError`` passes unchanged. ``out_of_memory`` is the remedy that the message
    names when the channels are too small for the job.
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
