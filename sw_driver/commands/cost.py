"""``nearmem cost``: FPGA resources and clock of designs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from . import FLAT, DepthOptions, MachineOptions, OutputFolder, Refusal, integer, output_folder
from .screen import Screen, show

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(DepthOptions, MachineOptions):
    """Options of the command."""

    place: bool = False
    """also place and route the designs"""
    seeds: Annotated[int | None, integer(1, 100)] = None
    """with --place: placements of each design, each from another random start (default: 3)"""
    mhz: Annotated[int | None, integer(1, 1000, metavar="F")] = None
    """with --place: target clock of placing and routing, in MHz (default: 200)"""
    explore: bool = False
    """measure every depth of the operators add, mul, div and sqrt instead of designs"""
    out: OutputFolder = None
    """folder for cost.json with all figures and paths; with --explore --place also for a plot of
    clock against area (default: no files)"""


def run(*names: str, options: Annotated[Options, FLAT] = Options()) -> int:
    """Show how much of an FPGA designs take, and their clock with --place.

    Maps designs to UltraScale+ with Yosys. Prints lookup tables, flip-flops, DSP blocks, block RAMs
    (18 Kbit) and logic levels of the longest path, beside the paper's unit and an FPGA's capacity.
    With --place, nextpnr also places and routes them on an ECP5 (LFE5U-85F, speed grade 8): half a
    minute for an operator, some minutes for the Adam unit. Results are cached.

    Example: nearmem cost fp32_add

    Parameters
    ----------
    names
        designs of 'nearmem verilog' (default: fp32_add fp32_mul fp32_div fp32_sqrt adam_unit); with
        --explore operations (default: all)
    """
    from hw.pim.config import configure
    from hw.verilog.generate import Machines
    from sw_driver.fpga.cost import report

    _refuse_ignored(options)
    machines = Machines(module=options.module(), pim=configure("paper"))
    if not options.explore:
        machines = machines._replace(depths=options.depths(names))
    folder = options.out and output_folder(options.out, "cost")
    with Screen(options) as watch:
        made = report(
            names,
            machines,
            seeds=(options.seeds or 3) if options.place else 0,
            asked_mhz=options.mhz,
            explore=options.explore,
            folder=folder,
            watch=watch,
        )
    return show(made, options)


def _refuse_ignored(options: Options) -> None:
    """Raise :class:`Refusal` for an option that the chosen job does not use."""
    if options.explore:
        for name in ("depth", "config", "set"):
            if value := getattr(options, name):
                shown = value if name == "config" else value[0]
                raise Refusal(
                    f"--{name} is {shown!r}, but --explore measures every depth of operators by "
                    f"themselves: leave --{name} or --explore out"
                )
    if not options.place:
        for name in ("seeds", "mhz"):
            if (value := getattr(options, name)) is not None:
                raise Refusal(
                    f"--{name} is {value}, but nothing is placed: add --place, or leave --{name} "
                    "out"
                )
