"""Steps of networks in the paper's configurations, each scheduled once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping  # noqa: F401 - of the signature that a dataclass inherits
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hw.pim.config import configure
from sw_driver.machine.hetero_pim import GPU_USE, HETERO_PIM
from sw_driver.numbers import check_fields
from sw_driver.workload import load_trace

from .. import runs
from ..errors import EngineError
from ..outcome import Outcome
from ..reproduction import Changes, Progress
from .configurations import GPU, HEADLINE, HETERO, PROGR, STRICT, Configuration, Readings
from .costs import Costs
from .energy import energy, units_beside
from .profiling import modelled, offered
from .scheduling import Schedule, schedule

__all__ = [
    "CALIBRATED",
    "CALIBRATED_RATE",
    "COLUMNS",
    "Column",
    "HeteroPimCase",
    "HeteroPimRuns",
    "HeteroPimStep",
    "calibrated_rate",
]  # fmt: skip

_MOST_RATE = 1024
"""Largest number of operations a cycle that is tried for a unit."""
FITTED = "vgg-19"
"""Network of the one cell of the paper that the calibrated column is fitted to.

Its step must take the PIM as long as the GPU.
"""
CALIBRATED_RATE = 44
"""Result of :func:`calibrated_rate` on the paper's machine, to avoid the search."""


class Column(NamedTuple):
    """Readings, and ``calibrated`` or ``predicted`` units and cores."""

    mark: str = "predicted"
    readings: Readings = HEADLINE


CALIBRATED = Column("calibrated")
COLUMNS = {
    "predicted": Column(),
    "calibrated": CALIBRATED,
    "strict predicted": Column(readings=STRICT),
    "strict calibrated": Column("calibrated", STRICT),
}
"""Columns of figures by name; ``calibrated`` is judged."""


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
        return self.made.lost_ns

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
    408 ms
    220 ms
    """

    configuration: Configuration = HETERO
    unit_rate: float = 0
    """Operations that a unit does a cycle; 0 for the predicted column, with the RTL's units."""
    frequency: int = 1
    """Factor of the stack's clock."""
    readings: Readings = HEADLINE
    beside: tuple[str, int] | None = None
    """Another network and its number of steps, on devices that the first leaves idle."""
    steps: int = 8
    """Number of steps that are run, if they overlap."""

    def __post_init__(self) -> None:
        check_fields(self, "unit_rate")

    def __str__(self) -> str:
        column = f"{self.unit_rate:g} a cycle" if self.unit_rate else "predicted"
        return f"{self.network}, {self.configuration.name}, {column}"

    def simulate(self) -> HeteroPimStep:
        """Return the schedule and energy of several steps."""
        trace, costs = load_trace(self.network), costs_of(self)
        beside = load_trace(self.beside[0]).unrolled(self.beside[1]) if self.beside else None
        chosen = offered(modelled(trace, costs.machine), self.readings.share)
        made = schedule(trace, costs, self.configuration, chosen, steps=self.steps, beside=beside)
        joules = energy(made, costs, self.configuration).total
        return HeteroPimStep(
            made=made, step_ns=made.step_ns, parts_ns=made.breakdown_ns, energy_j=joules
        )


def costs_of(case: HeteroPimCase) -> Costs:
    """Return the costs of a case's network on its machine."""
    readings = case.readings
    if case.configuration == PROGR:
        readings = replace(readings, cores=readings.progr_cores)
    return Costs(
        machine=HETERO_PIM.override(case.changes),
        config=configure("paper", total=readings.units),
        unit_rate=case.unit_rate,
        frequency=case.frequency,
        gpu_use=GPU_USE[case.network].value,
        readings=readings,
    )


def calibrated_rate(changes: Changes, progress: Progress, readings: Readings = HEADLINE) -> int:
    """Return the least whole number of operations a cycle of a unit that matches the GPU.

    With it, a step of VGG-19 takes the PIM no longer than the GPU. Raises
    :class:`~sw_driver.system.errors.EngineError` if none is enough.
    """
    case = HeteroPimCase(network=FITTED, changes=changes, readings=readings)
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
    """Steps of networks in columns of figures."""

    def rate(self, column: Column) -> int:
        """Return the operations of a unit a cycle; 0 for the RTL's units."""
        if column.mark == "predicted":
            return 0
        return calibrated_rate(self.changes, self.progress, column.readings)

    def run(
        self, column: Column, network: str, *, pims: int = 1, share: float = 0, **fields: Any
    ) -> HeteroPimStep:
        """Return a step of a case in a column; ``fields`` are further fields of the case.

        ``pims`` is the number of programmable PIMs, which take the place of units. ``share`` is
        offered instead of the readings' if it is not 0.
        """
        own = column.readings
        more = (pims - 1) * own.cores
        units = own.units - units_beside(1) + units_beside(1 + more)
        own = replace(own, cores=own.cores + more, units=units, share=share or own.share)
        fields = {"unit_rate": self.rate(column), "readings": own, **fields}
        return self.simulated(HeteroPimCase, network=network, **fields)
