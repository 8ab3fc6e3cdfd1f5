"""``nearmem sweep``: a grid of configurations, measured one by one."""

from __future__ import annotations

from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from . import FLAT, Failure, MachineOptions, OutputFolder, Refusal, exclusive, integer
from .screen import Screen, show

__all__ = ["Options", "run"]

_PACE = exclusive()


@dataclass(frozen=True, kw_only=True)
class Options(MachineOptions):
    """Options of the command."""

    backend: Literal["rtl", "cycles"] = "rtl"
    """what is measured: the Verilated RTL, or the model of its cycles"""
    axis: Annotated[tuple[str, ...], Parameter(metavar="KEY=V1,V2,...")] = ()
    """a setting to vary; may be given several times"""
    count: Annotated[str | None, Parameter(metavar="N[,N...]")] = None
    """parameters of each channel (default: 4194304, as many as show what a long run does)"""
    jobs: Annotated[int | None, integer(1, 4096, metavar="J"), _PACE] = None
    """points measured at a time (default: as many as the cores can work on)"""
    out: OutputFolder = None
    """where results go (default: build/sweep)"""
    dask: Annotated[str | None, Parameter(metavar="ADDRESS"), _PACE] = None
    """measure on the cluster of this Dask scheduler, as many points at a time as it has workers"""
    no_arithmetic: bool = False
    """leave the arithmetic out of the RTL: the same cycles, much sooner, but nothing to compare
    with the golden model"""
    resources: bool = False
    """synthesize each kernel with Yosys (UltraScale+), one or two minutes each"""


def run(options: Annotated[Options, FLAT] = Options()) -> int:
    """Measure all combinations of settings.

    Measures one step of the kernel's first update rule, on all channels at once, for every
    combination of the axes' values. Results go to results.sqlite as they come; what is there is not
    measured again, so an interrupted sweep goes on where it was. At the end results.csv and plots
    are written. The exit status is 1 if a point failed or was not bit-exact.

    Keys are all options of the configuration (rules, lanes, block_bytes, queue_depth, refresh,
    t_rfc, bank_groups, ...; a wrong one is answered with a list), preset, count, stagger:
    whether the driver spreads the tensors over the banks, and formats of the tensors, with the
    preset axdimm_narrow: fp32, bf16_g, bf16_g_8bit, bf16_gp_8bit. Values are integers, such as
    4096, 1e6 or 4KiB, true or false, and names. In a file given with --config a list is an axis.
    """
    from sw_driver.experiments.sweep.grid import Grid
    from sw_driver.experiments.sweep.report import report
    from sw_driver.simulator.buildcache import build_root

    folder = options.out or build_root() / "sweep"
    grid = Grid.parse(
        backend=options.backend,
        config=options.config,
        counts=options.count,
        fixed=options.set,
        axes=options.axis,
        arithmetic=not options.no_arithmetic,
    )
    try:
        with Screen(options) as watch:
            made = report(
                grid,
                folder,
                jobs=options.jobs,
                cluster=options.dask,
                resources=options.resources,
                watch=watch,
            )
    except BrokenExecutor as error:
        raise Failure(
            "a process that measured a point died, or was killed for want of memory: what was done "
            f"before is in {str(folder)!r}, and the same command goes on; with --jobs 1 the first "
            "point that results.csv lacks is the one"
        ) from error
    except OSError as error:
        raise Refusal(f"cannot write the results to {str(folder)!r}: {error}") from error
    return show(made, options)
