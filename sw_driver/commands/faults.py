"""``nearmem faults``: flips of bits in the RTL, and what comes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from . import FLAT, Failure, OutputOptions, integer
from .screen import Screen, show

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(OutputOptions):
    """Options of the command."""

    count: Annotated[int, integer(1, 1_000_000)] = 100
    """number of flips, some five a second"""
    seed: Annotated[int, integer(0, metavar="S")] = 1
    """seed of the flips"""
    where: Literal["registers", "dram", "fifo"] = "registers"
    """what is flipped: registers, the tensors in the DRAM, or FIFOs and the other memories on the
    chip"""


def run(options: Annotated[Options, FLAT] = Options()) -> int:
    """Flip bits in the RTL during an Adam step, and count the outcomes.

    Each flip inverts a random bit in a random cycle of a step on the tiny preset; then the host
    reads all tensors. Outcomes: masked; an error of the driver or its limit; noticed only by the
    simulated DRAM's checker, which no board has; silently wrong results.

    Example: nearmem faults --count 300 --seed 2 --where registers
    """
    from sw_driver.experiments.faults import report

    announce = (lambda _: None) if options.json or options.quiet else None
    try:
        with Screen(options) as watch:
            made = report(options.where, options.count, options.seed, watch, announce)
            return show(made, options)
    except RuntimeError as error:
        raise Failure(f"the simulation failed: {error}") from error
