"""``nearmem rules``: the update rules there are, and what the module makes of each."""

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
    """also synthesize the functional unit of each rule and the kernel of the configuration with
    Yosys (UltraScale+), up to some minutes each"""


def run(*names: str, options: Annotated[Options, FLAT] = Options()) -> int:
    """List the update rules, with traffic and predicted throughput.

    Lists the update rules: tensors, hyper-parameters, bytes a parameter, latency of the functional
    unit in fabric cycles, the ceiling that the DRAM of the configuration sets, and the throughput
    that the cycle model predicts, tensors placed by the driver. With names, those only, and their
    constants.

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
