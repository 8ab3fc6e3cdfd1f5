"""``nearmem bench``: the speed of the simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from . import FLAT, MachineOptions, backend_options, driving, integer, open_device
from .screen import Screen, show

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(MachineOptions):
    """Options of the command."""

    parameters: Annotated[int, integer(1)] = 400_000
    """parameters of each channel"""
    repetitions: Annotated[int, integer(1)] = 5
    """number of measurements; the medians are printed"""


def run(options: Annotated[Options, FLAT] = Options()) -> int:
    """Measure how many fabric cycles per second this machine simulates.

    Runs Adam on both channels at once through the driver. In the same run, a bare loop clocks the
    same Verilated channel. Prints the simulated throughput, fabric cycles of all channels per host
    second for both, and their ratio.

    Example: nearmem bench --parameters 100000 --repetitions 3
    """
    from sw_driver.axdimm.backends import module_config
    from sw_driver.experiments.speed import report

    module = backend_options(options)
    with (
        open_device("rtl", module) as device,
        Screen(options) as watch,
        driving(out_of_memory="measure fewer --parameters, 16 bytes of a channel each"),
    ):
        config = module_config(module)
        made = report(device, config, options.parameters, options.repetitions, watch)
    return show(made, options)
