"""``nearmem cost``: what designs take on an FPGA, and how fast they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from . import FLAT, DepthOptions, MachineOptions, OutputFolder, integer, output_folder
from .screen import Screen, show

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(DepthOptions, MachineOptions):
    """Options of the command."""

    place: bool = False
    """also place and route"""
    seeds: Annotated[int, integer(1, 100)] = 3
    """times that each is placed and routed, each from another random start"""
    mhz: Annotated[int | None, integer(1, 1000, metavar="F")] = None
    """clock that placing and routing aim at (default: 200)"""
    explore: bool = False
    """instead of designs, every depth of the operators add, mul, div and sqrt"""
    out: OutputFolder = None
    """folder for cost.json with every figure and path, and with --explore --place a plot of clock
    against area (default: no files)"""


def run(*names: str, options: Annotated[Options, FLAT] = Options()) -> int:
    """Count what designs take on an FPGA, and place and route them.

    Maps designs for UltraScale+ with Yosys: lookup tables, flip-flops, DSP blocks, block RAMs
    (18 Kbit) and the levels of logic of the longest path, beside the paper's unit and a part's
    capacity. With --place it also places and routes them on an ECP5 (LFE5U-85F, speed grade 8) with
    nextpnr: an operator takes half a minute, the Adam unit some minutes. What was found is kept.

    Parameters
    ----------
    names
        designs, as of 'nearmem verilog' (default: fp32_add fp32_mul fp32_div fp32_sqrt adam_unit);
        with --explore operations (default: all)
    """
    from hw.pim.config import configure
    from hw.verilog.generate import Machines
    from sw_driver.fpga.cost import report

    machines = Machines(module=options.module(), pim=configure("paper"))
    if not options.explore:
        machines = machines._replace(depths=options.depths(names))
    folder = options.out and output_folder(options.out, "cost")
    with Screen(options) as watch:
        made = report(
            names,
            machines,
            seeds=options.seeds if options.place else 0,
            asked_mhz=options.mhz,
            explore=options.explore,
            folder=folder,
            watch=watch,
        )
    return show(made, options)
