"""``nearmem validate rtl``: error of the cycle model, by comparison with RTL."""

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
    """number of random configurations"""
    seed: Annotated[int, integer(0, metavar="S")] = 1
    """seed of the random configurations"""


def run(options: Annotated[Options, FLAT] = Options()) -> int:
    """Measure how far the cycle model is from the RTL.

    Draws random configurations: update rule, lanes, block size, buffers, DRAM part and timing,
    controller, placement and formats of the tensors, count, refresh. Runs each in RTL and in the
    cycle model, and prints both fabric cycles and the error. Eight configurations share a simulator
    build of some twenty seconds. The exit status is 1 if the model is off by 1 % or more.

    Example: nearmem validate rtl --configurations 8 --seed 2
    """
    from sw_driver.device.transport import DeviceTimeout
    from sw_driver.experiments.validation import report

    try:
        with Screen(options) as watch:
            return show(report(options.configurations, options.seed, watch), options)
    except (RuntimeError, DeviceTimeout) as error:
        raise Failure(f"the RTL failed: {error}") from error
