"""``nearmem registers``: documentation and C headers of the register map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from . import (
    FLAT,
    Failure,
    OutputFolder,
    OutputOptions,
    Refusal,
    output_folder,
    turning,
)
from .screen import show

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(OutputOptions):
    """Options of the command."""

    out: OutputFolder = None
    """folder for the files (default: build/registers)"""
    name: Annotated[str | None, Parameter(metavar="NAME")] = None
    """prefix of the headers and of all names in them (default: nearmem, plus the rules if they are
    not the paper's, plus narrow)"""
    rules: Annotated[str | None, Parameter(metavar="NAME,NAME")] = None
    """update rules of the kernel, with commas between them (default: the paper's)"""
    narrow: bool = False
    """write the map of a kernel with narrow formats"""


def run(options: Annotated[Options, FLAT] = Options()) -> int:
    """Write the register map: which registers the hardware has, and their fields.

    Writes registers.md and C headers, generated from the SystemRDL description.

    Example: nearmem registers --rules adam,adamw
    """
    from sw_driver.fpga.register_pages import report

    rules = None if options.rules is None else tuple(options.rules.split(","))
    folder = output_folder(options.out, "registers")
    try:
        with turning(ValueError, into=Refusal):
            return show(report(folder, rules, narrow=options.narrow, name=options.name), options)
    except ImportError as error:
        raise Failure(f"{error.name} is needed: pip install -e '.[dev]'") from error
