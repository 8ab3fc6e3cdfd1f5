"""``nearmem validate training``: error of predicted training steps, by published measurements."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from . import FLAT, OutputFolder, OutputOptions, Refusal, output_folder, turning
from .screen import Screen, show

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(OutputOptions):
    """Options of the command."""

    rows: Annotated[Path | None, Parameter(metavar="FILE.csv")] = None
    """rows to predict instead, with the columns of the shipped ones; a row that lacks a field or
    has a bad one is left out"""
    out: OutputFolder = None
    """folder for the page validation.md and, in validation/, its plot (default: none)"""


def run(options: Annotated[Options, FLAT] = Options()) -> int:
    """Measure how far predicted training steps are from published ones.

    Predicts steps of BF16, FP16 and FP8 training that others have measured, on GPUs from V100 to
    H100. Prints measured, predicted and error of each, and the median and the largest error by
    kind and by source. A row that cannot be predicted is listed with the reason. It takes some
    minutes on one core and needs PyTorch.

    Example: nearmem validate training --rows mine.csv
    """
    from sw_driver.experiments.measurements.report import report
    from sw_driver.experiments.measurements.rows import RowError
    from sw_driver.workload.trace import TraceError

    with turning(RowError, TraceError, into=Refusal), Screen(options) as watch:
        folder = options.out and output_folder(options.out, "validation")
        made = report(options.rows, folder=folder, watch=watch)
    return show(made, options)
