"""``nearmem sweep``: measurements of all combinations of settings."""

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
    """simulator to measure: the Verilated RTL or the cycle model"""
    axis: Annotated[tuple[str, ...], Parameter(metavar="KEY=V1,V2,...")] = ()
    """a setting to vary; repeatable"""
    count: Annotated[str | None, Parameter(metavar="N[,N...]")] = None
    """parameters of each channel (default: 4194304, enough to show the speed of long runs)"""
    jobs: Annotated[int | None, integer(1, 4096, metavar="J"), _PACE] = None
    """points to measure at a time (default: depends on the cores)"""
    out: OutputFolder = None
    """folder for the results (default: build/sweep)"""
    dask: Annotated[str | None, Parameter(metavar="ADDRESS"), _PACE] = None
    """measure on the workers of this Dask scheduler, one point on each at a time"""
    no_arithmetic: bool = False
    """leave the arithmetic out of the RTL: the same cycles in much less time, but no results to
    compare with the golden model"""
    resources: bool = False
    """also synthesize each kernel with Yosys (UltraScale+); one or two minutes each"""


def run(options: Annotated[Options, FLAT] = Options()) -> int:
    """Measure how the module's settings change its speed, for all combinations of values.

    Measures one step of the kernel's first update rule, on all channels at once, for every
    combination of the axes' values. Each result goes to results.sqlite at once and is not measured
    again, so an interrupted sweep continues where it stopped. At the end it writes results.csv and
    plots. The exit status is 1 if a point failed or was not bit-exact.

    Keys of axes: preset; count; all settings of the configuration, such as rules, lanes,
    block_bytes, queue_depth, refresh, t_rfc or bank_groups (a wrong key gives the list); stagger,
    true if the driver spreads tensors over banks; and formats of the tensors (fp32, bf16_g,
    bf16_g_8bit, bf16_gp_8bit; for the preset axdimm_narrow). Values are integers, such as 4096, 1e6
    or 4KiB, true or false, or names. A list in the file of --config is an axis.

    Example: nearmem sweep --backend cycles --axis lanes=4,16 --count 1e6
    """
    from sw_driver.experiments.sweep.grid import Grid
    from sw_driver.experiments.sweep.report import report
    from sw_driver.simulator.buildcache import build_root

    if options.no_arithmetic and options.backend == "cycles":
        raise Refusal(
            "--no-arithmetic is for the RTL, but --backend is 'cycles', which has none: leave one "
            "of the two out"
        )
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
            "a process that measured a point died, perhaps for lack of memory: finished points are "
            f"in {str(folder)!r}, and the same command continues; with --jobs 1, the first point "
            "missing in results.csv is the one that died"
        ) from error
    except OSError as error:
        raise Refusal(f"cannot write the results to {str(folder)!r}: {error}") from error
    return show(made, options)
