"""``nearmem baseline``: Adam on this machine's CPU, beside the simulated module."""

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
    """on the CPU"""
    repetitions: Annotated[int, integer(1, 10_000)] = 9
    """of a step on the CPU"""
    threads: Annotated[int | None, integer(1, 4096)] = None
    """of torch, measured beside one thread (default: one for each core)"""
    backend: Annotated[str, Parameter(metavar="NAME")] = "rtl"
    """what simulates the module"""
    module_parameters: Annotated[int, integer(1)] = 4_000_000
    """in each of its channels"""
    no_module: bool = False
    """measure the CPU alone"""


def run(options: Annotated[Options, FLAT] = Options()) -> int:
    """Measure Adam on this machine's CPU, beside the simulated module.

    Runs a step of Adam on the CPU by numpy, by torch's fused Adam if torch is installed, and on the
    simulated module. The paper's figures (Table 5) stand beside them. The CPU's are medians, after
    a step that does not count.
    """
    from sw_driver.axdimm.backends import module_config
    from sw_driver.experiments.baseline import check_memory, measure_module, report

    check_memory(options.parameters)
    # First, so that bad options of the module are refused before anything takes time.
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
