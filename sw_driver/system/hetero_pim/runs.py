"""Steps of networks in the paper's configurations, each scheduled once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping  # noqa: F401 - of the signature that a dataclass inherits
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from hw.pim.config import configure
from sw_driver.machine.hetero_pim import GPU_USE, HETERO_PIM
from sw_driver.numbers import check_fields
from sw_driver.workload import load_trace

from .. import runs
from ..errors import EngineError
from ..outcome import Outcome
from ..reproduction import Changes, Progress
from .configurations import GPU, HETERO, Configuration
from .costs import Costs
from .energy import energy
from .profiling import modelled, offered
from .ranking import SHARE
from .scheduling import Schedule, schedule

__all__ = [
    "CALIBRATED",
    "CALIBRATED_RATE",
    "COLUMNS",
    "PREDICTED",
    "HeteroPimCase",
    "HeteroPimRuns",
    "HeteroPimStep",
    "calibrated_rate",
]  # fmt: skip

COLUMNS = PREDICTED, CALIBRATED = "predicted", "calibrated"

_MOST_RATE = 1024
"""Largest number of operations a cycle that is tried for a unit."""
FITTED = "vgg-19"
"""Network of the one cell of the paper that the calibrated column is fitted to.

Its step must take the PIM as long as the GPU.
"""
CALIBRATED_RATE = 93
"""Result of :func:`calibrated_rate` on the paper's machine, to avoid the search."""


@dataclass(frozen=True, kw_only=True)
class HeteroPimStep(Outcome):
    """Times of a step, with its dynamic energy and its schedule."""

    made: Schedule
    energy_j: float = 0.0

    @property
    def ms(self) -> float:
        """Time of the step, in ms."""
        return self.step_ns / 1e6

    @property
    def lost_ns(self) -> int:
        """Time during which nothing computes, in ns."""
        return self.step_ns - self.parts_ns["operation"]

    @property
    def pools_percent(self) -> float:
        """Share of the pools that computes, in %."""
        return 100 * self.made.utilisation

    @property
    def watts(self) -> float:
        """Mean dynamic power, in W."""
        return self.energy_j / self.step_ns * 1e9

    @property
    def edp(self) -> float:
        """Energy-delay product, in joule seconds."""
        return self.energy_j * self.step_ns / 1e9


@dataclass(frozen=True, kw_only=True)
class HeteroPimCase(runs.Case[HeteroPimStep]):
    """A step of a network, which is one of ``GPU_USE``, in a configuration.

    Examples
    --------
    >>> for frequency in (1, 4):
    ...     case = HeteroPimCase(network="alexnet-32", frequency=frequency)
    ...     print(case.result(lambda _: None).step_ns // 10**6, "ms")
    461 ms
    253 ms
    """

    configuration: Configuration = HETERO
    unit_rate: float = 0
    """Operations that a unit does a cycle; 0 for the predicted column, with the RTL's units."""
    frequency: int = 1
    """Factor of the stack's clock."""
    units: int = 444
    share: float = SHARE
    """Share of a step's time on the CPU that is offered to the PIMs."""
    beside: tuple[str, int] | None = None
    """Another network and its number of steps, on devices that the first leaves idle."""
    steps: int = 4
    """Number of steps that are run, if they overlap."""

    def __post_init__(self) -> None:
        check_fields(self, "unit_rate", "share")

    def __str__(self) -> str:
        column = f"{self.unit_rate:g} a cycle" if self.unit_rate else "predicted"
        return f"{self.network}, {self.configuration.name}, {column}"

    def simulate(self) -> HeteroPimStep:
        """Return the schedule and energy of several steps."""
        trace, costs = load_trace(self.network), costs_of(self)
        beside = load_trace(self.beside[0]).unrolled(self.beside[1]) if self.beside else None
        chosen = offered(modelled(trace, costs.machine), self.share)
        made = schedule(trace, costs, self.configuration, chosen, steps=self.steps, beside=beside)
        joules = energy(made, costs, self.configuration).total
        return HeteroPimStep(
            made=made, step_ns=made.step_ns, parts_ns=made.breakdown_ns, energy_j=joules
        )


def costs_of(case: HeteroPimCase) -> Costs:
    """Return the costs of a case's network on its machine."""
    return Costs(
        machine=HETERO_PIM.override(case.changes),
        config=configure("paper", total=case.units),
        unit_rate=case.unit_rate,
        frequency=case.frequency,
        gpu_use=GPU_USE[case.network].value,
    )


def calibrated_rate(changes: Changes, progress: Progress) -> int:
    """Return the least whole number of operations a cycle of a unit that matches the GPU.

    With it, a step of VGG-19 takes the PIM no longer than the GPU. Raises
    :class:`~sw_driver.system.errors.EngineError` if none is enough.
    """
    case = HeteroPimCase(network=FITTED, changes=changes)
    gpu_ns = replace(case, configuration=GPU).result(progress).step_ns

    def enough(rate: int) -> bool:
        return replace(case, unit_rate=rate).result(progress).step_ns <= gpu_ns

    rate = 1 + bisect_left(range(1, _MOST_RATE + 1), True, key=enough)
    if rate > _MOST_RATE:
        raise EngineError(
            f"even with {_MOST_RATE} operations a cycle of each unit, {FITTED} takes the PIM "
            "longer than the GPU: expected a slower GPU, or a faster memory"
        )
    return rate


@dataclass(frozen=True, kw_only=True)
class HeteroPimRuns(runs.Runs):
    """Steps of networks in one of ``COLUMNS``."""

    @cached_property
    def rate(self) -> int:
        """Operations of a unit a cycle in the calibrated column."""
        return calibrated_rate(self.changes, self.progress)

    def run(self, column: str, network: str, **fields: Any) -> HeteroPimStep:
        """Return a step of a case in one of ``COLUMNS``; ``fields`` are its other fields."""
        rate = self.rate if column == CALIBRATED else 0
        return self.simulated(HeteroPimCase, network=network, unit_rate=rate, **fields)
