"""``nearmem config``: list of presets, and a configuration as a TOML file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from . import FLAT, OutputOptions, Refusal, Settings, turning
from .screen import show

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(OutputOptions):
    """Options of the command."""

    set: Settings = ()
    """change one setting, such as lanes=4; repeatable"""


def run(
    preset: Annotated[str | None, Parameter(metavar="PRESET|FILE")] = None,
    /,
    options: Annotated[Options, FLAT] = Options(),
) -> int:
    """List the hardware presets, or print one configuration with all its settings.

    Without PRESET it lists the presets of the module, the PIM and the memory-node. With a preset of
    the module or the PIM it prints a TOML file, which other commands read with --config.

    Example: nearmem config axdimm --set lanes=4

    Parameters
    ----------
    preset
        preset or TOML file to print
    """
    from sw_driver.experiments.settings import report

    if preset is None and options.set:
        raise Refusal("--set changes a configuration: name a preset or a file")
    with turning(ValueError, into=Refusal):
        return show(report(preset, options.set), options)
