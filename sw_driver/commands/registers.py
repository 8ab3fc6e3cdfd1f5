"""``nearmem registers``: documentation and C headers from the register map."""

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
    """folder (default: build/registers)"""
    name: Annotated[str | None, Parameter(metavar="NAME")] = None
    """what the headers and all that is in them begin with (default: nearmem, with the rules if they
    are not the paper's, and narrow)"""
    rules: Annotated[str | None, Parameter(metavar="NAME,NAME")] = None
    """update rules of the kernel (default: the paper's)"""
    narrow: bool = False
    """of a kernel with narrow formats"""


def run(options: Annotated[Options, FLAT] = Options()) -> int:
    """Write the register map as documentation and as C headers.

    Writes registers.md and C headers, made from the SystemRDL description.
    """
    from sw_driver.fpga.register_pages import report

    rules = tuple(options.rules.split(",")) if options.rules else None
    folder = output_folder(options.out, "registers")
    try:
        with turning(ValueError, into=Refusal):
            return show(report(folder, rules, narrow=options.narrow, name=options.name), options)
    except ImportError as error:
        raise Failure(f"{error.name} is needed: pip install -e '.[dev]'") from error
