"""``nearmem study``: experiments behind the paper's arguments, on the RTL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from . import (
    FLAT,
    Failure,
    MachineOptions,
    Refusal,
    backend_options,
    driving,
    integer,
    turning,
)
from .screen import Screen, show

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(MachineOptions):
    """Options of the command."""

    parameters: Annotated[int, integer(1)] = 1_000_000
    """parameters of a kernel's run"""
    window: Annotated[int, integer(10_000, 100_000_000, metavar="CYCLES")] = 200_000
    """fcfs: fabric cycles in which the host reads"""
    copy_kib: Annotated[int, integer(64, 1 << 20)] = 2048
    """parallel: KiB of a copy"""


def run(name: Literal["fcfs", "parallel"], /, options: Annotated[Options, FLAT] = Options()) -> int:
    """Measure what host and kernel cost each other, on one channel or on two.

    fcfs: host and kernel share a channel, first come first served, beside the two exclusive modes;
    the arbiter for it exists in simulation only. parallel: the host copies to one channel while the
    kernel runs on the other.

    Example: nearmem study parallel --parameters 100000

    Parameters
    ----------
    name
        experiment: fcfs or parallel
    """
    from sw_driver.axdimm.backends import module_config
    from sw_driver.experiments.study import report

    with turning(ValueError, into=Refusal):
        config = module_config(backend_options(options, channels=1 if name == "fcfs" else 2))

    with (
        Screen(options) as watch,
        driving(out_of_memory="take fewer --parameters or, for parallel, a smaller --copy-kib"),
        turning(RuntimeError, into=Failure),
    ):
        made = report(
            name,
            config,
            parameters=options.parameters,
            window_fabric_cycles=options.window,
            copy_bytes=1024 * options.copy_kib,
            watch=watch,
        )
    return show(made, options)
