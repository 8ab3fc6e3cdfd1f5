"""``nearmem measure``: speeds of this machine, as a machine file for ``nearmem compare``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from . import FLAT, OutputFile, OutputFolder, OutputOptions, Refusal, integer
from .screen import Screen, show

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(OutputOptions):
    """Options of the command."""

    out: OutputFile = None
    """machine file to write, FILE.toml (default: none)"""
    gpu: Annotated[str, Parameter(metavar="NAME")] = ""
    """machine with the figures that are not measured, such as h100x8 (default: the GPU here)"""
    drive: OutputFolder = None
    """folder on the drive to measure (default: that of temporary files)"""
    drive_bytes: Annotated[int, integer(1 << 20, metavar="BYTES")] = 4 << 30
    """bytes to write to the drive"""
    parameters: Annotated[int, integer(1, 1 << 36)] = 1 << 26
    """parameters of Adam on the CPU"""
    repetitions: Annotated[int, integer(1, 10_000)] = 9
    """timed steps of Adam"""
    threads: Annotated[int | None, integer(1, 4096)] = None
    """threads of PyTorch, beside one (default: one for each core)"""


def run(options: Annotated[Options, FLAT] = Options()) -> int:
    """Measure how fast this machine is, in at most five minutes.

    Measures products by format, copies, Adam on the CPU, kernel launches and a drive. Needs no GPU;
    with PyTorch and a GPU it measures that and its link to the host, too. Writes a machine file
    that 'nearmem compare --machine FILE.toml' takes.

    Example: nearmem measure --gpu rtx4090 --out mine.toml
    """
    from sw_driver.experiments.measure.report import report

    if options.out is not None and options.out.suffix != ".toml":
        raise Refusal(f"--out is {str(options.out)!r}: expected a name that ends in .toml")
    with Screen(options) as watch:
        made = report(
            gpu=options.gpu,
            drive=options.drive,
            drive_bytes=options.drive_bytes,
            parameters=options.parameters,
            repetitions=options.repetitions,
            threads=options.threads,
            out=options.out,
            watch=watch,
        )
    return show(made, options)
