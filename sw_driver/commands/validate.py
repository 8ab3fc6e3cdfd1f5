"""``nearmem validate``: the cycle model against RTL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from . import FLAT, Failure, OutputOptions, integer
from .screen import Screen, show

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(OutputOptions):
    """Options of the command."""

    configurations: Annotated[int, integer(1)] = 64
    """how many"""
    seed: Annotated[int, integer(0, metavar="S")] = 1
    """of the drawing"""


def run(options: Annotated[Options, FLAT] = Options()) -> int:
    """Compare the cycle model with the RTL.

    Draws random configurations (update rule, lanes, block size, buffers, DRAM part and timing,
    controller, placement of the tensors, their formats, count, refresh), runs each in RTL and asks
    the cycle model for the same. Prints both and the errors. Every eight configurations share a
    build of the simulator, which takes some twenty seconds. The exit status is 1 if the model is
    off by 1 % or more.
    """
    from sw_driver.device.transport import DeviceTimeout
    from sw_driver.experiments.validation import report

    try:
        with Screen(options) as watch:
            return show(report(options.configurations, options.seed, watch), options)
    except (RuntimeError, DeviceTimeout) as error:
        raise Failure(f"the RTL failed: {error}") from error
