"""``nearmem config``: the configurations there are, and one as a file."""

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
    """a change to it; may be given several times"""


def run(
    preset: Annotated[str | None, Parameter(metavar="PRESET|FILE")] = None,
    /,
    options: Annotated[Options, FLAT] = Options(),
) -> int:
    """List the configurations, or print one as a file.

    Lists the presets of the module, of the PIM and of the memory-node, or prints one of the first
    two, with changes, as a TOML file that --config of other commands takes.

    Parameters
    ----------
    preset
        what to print, a preset or a file
    """
    from sw_driver.experiments.settings import report

    if preset is None and options.set:
        raise Refusal("--set changes a configuration: name one")
    with turning(ValueError, into=Refusal):
        return show(report(preset, options.set), options)
