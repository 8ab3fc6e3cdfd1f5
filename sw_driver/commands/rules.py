"""``nearmem rules``: update rules, with traffic and predicted throughput."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from . import FLAT, Failure, MachineOptions, Refusal, integer, turning
from .screen import Screen, show

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(MachineOptions):
    """Options of the command."""

    count: Annotated[int, integer(1)] = 4194304
    """parameters of each channel"""
    resources: bool = False
    """also synthesize each rule's functional unit and the configuration's kernel with Yosys
    (UltraScale+); up to some minutes each"""


def run(*names: str, options: Annotated[Options, FLAT] = Options()) -> int:
    """List the update rules (optimizers) of the hardware, and how fast each runs.

    Prints tensors, hyper-parameters, bytes per parameter, latency of the functional unit in fabric
    cycles, the throughput ceiling of the DRAM, and the throughput that the cycle model predicts.
    The driver places the tensors. With names, it prints these rules and their constants.

    Example: nearmem rules adam lion

    Parameters
    ----------
    names
        rules to show (default: all that a kernel of the configuration can have)
    """
    from sw_driver.experiments.rules import report

    settings, count = options.settings(), options.count
    with (
        Screen(options) as watch,
        turning(RuntimeError, into=Failure),
        turning(ValueError, into=Refusal),
    ):
        made = report(names, settings, count=count, resources=options.resources, watch=watch)
    return show(made, options)
