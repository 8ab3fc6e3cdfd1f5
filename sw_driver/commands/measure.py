"""``nearmem measure``: speed of Adam on this machine's CPU and on the simulated module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from . import FLAT, MachineOptions, backend_options, driving, integer, open_device
from .screen import Screen, show

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(MachineOptions):
    """Options of the command."""

    parameters: Annotated[int, integer(1, 1 << 36)] = 1 << 26
    """parameters on the CPU"""
    repetitions: Annotated[int, integer(1, 10_000)] = 9
    """timed steps on the CPU"""
    threads: Annotated[int | None, integer(1, 4096)] = None
    """threads of PyTorch, measured in addition to one thread (default: one for each core)"""
    backend: Annotated[str, Parameter(metavar="NAME")] = "rtl"
    """simulator of the module, one that has a clock: rtl or cycles"""
    module_parameters: Annotated[int, integer(1)] = 4_000_000
    """parameters in each channel of the module"""
    no_module: bool = False
    """measure the CPU only"""


def run(options: Annotated[Options, FLAT] = Options()) -> int:
    """Compare the speed of Adam on this machine's CPU with the simulated module.

    Runs Adam steps on the CPU with numpy and, if PyTorch is installed, with its fused Adam; then on
    the simulated module. Prints millions of parameters per second beside the paper's figures
    (Table 5). CPU figures are medians after one warm-up step.

    Example: nearmem measure --parameters 1000000 --no-module
    """
    from sw_driver.axdimm.backends import module_config
    from sw_driver.experiments.measure.adam import check_memory, measure_module, report

    check_memory(options.parameters)
    # The module first, so that its bad options are refused before the CPU's measurement.
    module, config = None, None
    if not options.no_module:
        given = backend_options(options)
        with (
            open_device(options.backend, given) as device,
            Screen(options) as watch,
            driving(out_of_memory="run fewer --module-parameters, 16 bytes of a channel each"),
        ):
            config = module_config(given)
            module = measure_module(device, config, options.module_parameters, watch)
    with Screen(options) as watch:
        made = report(
            options.parameters,
            repetitions=options.repetitions,
            threads=options.threads,
            module=module,
            config=config,
            watch=watch,
        )
    return show(made, options)
