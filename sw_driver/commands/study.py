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

WINDOW_CYCLES = 200_000
COPY_KIB = 2048


@dataclass(frozen=True, kw_only=True)
class Options(MachineOptions):
    """Options of the command."""

    parameters: Annotated[int, integer(1)] = 1_000_000
    """parameters of a kernel's run"""
    window: Annotated[int | None, integer(10_000, 100_000_000, metavar="CYCLES")] = None
    """fcfs: fabric cycles in which the host reads (default: 200000)"""
    copy_kib: Annotated[int | None, integer(64, 1 << 20)] = None
    """parallel: KiB of a copy (default: 2048)"""


def run(name: Literal["fcfs", "parallel"], /, options: Annotated[Options, FLAT] = Options()) -> int:
    """Measure how host and kernel slow each other down, on one channel or on two.

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

    other = "copy_kib" if name == "fcfs" else "window"
    if (value := getattr(options, other)) is not None:
        option = other.replace("_", "-")
        raise Refusal(f"--{option} is {value}, but {name} has none: leave --{option} out")
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
            window_fabric_cycles=options.window or WINDOW_CYCLES,
            copy_bytes=1024 * (options.copy_kib or COPY_KIB),
            watch=watch,
        )
    return show(made, options)
