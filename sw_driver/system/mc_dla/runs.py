"""Training steps of the benchmarks on the designs, each simulated once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import harmonic_mean
from typing import Any

from sw_driver.numbers import check_fields, check_integer, check_name
from sw_driver.workload import BENCHMARKS
from sw_driver.workload.layers import load_layers

from ..once import once
from ..reproduction import Changes, Progress
from .designs import DC, DESIGNS, DEVICES, catalogue
from .step import MODES, StepResult, step

__all__ = ["BATCH", "NETWORKS", "Case", "Runs"]

BATCH = 512
NETWORKS = tuple(BENCHMARKS)


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is simulated: a step of a network on a design of these parts."""

    design: str = DC
    network: str = NETWORKS[0]
    mode: str = MODES[0]
    changes: Changes = field(default_factory=dict)
    batch: int = BATCH
    devices: int = DEVICES

    def __post_init__(self) -> None:
        check_fields(self)
        check_name("design", self.design, DESIGNS)

    def __str__(self) -> str:
        return f"{self.design}, {self.network}, {self.mode}-parallel, batch {self.batch}"


@once
def _simulate(case: Case) -> StepResult:
    return step(
        DESIGNS[case.design],
        catalogue(case.changes),
        load_layers(case.network),
        case.mode,
        case.batch,
        devices=case.devices,
    )


@dataclass(frozen=True, kw_only=True)
class Runs:
    """A case, on any design, for some networks and ways to split them."""

    case: Case = field(default_factory=Case)
    progress: Progress = lambda _: None
    networks: Sequence[str] = NETWORKS
    modes: Sequence[str] = MODES

    def __post_init__(self) -> None:
        for name in ("networks", "modes"):
            check_integer(f"the number of {name}", len(getattr(self, name)))

    def of(self, changes: Changes | None = None, **case: Any) -> Runs:
        """Another case, with further changes of the parts."""
        changes = {**self.case.changes, **(changes or {})}
        return replace(self, case=replace(self.case, changes=changes, **case))

    def result(self, design: str, network: str, mode: str) -> StepResult:
        """Of one step."""
        case = replace(self.case, design=design, network=network, mode=mode)
        return _simulate(case, self.progress)

    def each(self, mode: str = "") -> list[tuple[str, str]]:
        """Networks and modes; or of one mode."""
        return [(name, each) for each in ([mode] if mode else self.modes) for name in self.networks]

    def speedup(self, design: str, mode: str = "", over: str = DC) -> float:
        """The harmonic mean, as all of the paper's; of both modes if none is given."""
        return harmonic_mean(self.shares(design, over, mode))

    def shares(self, design: str, of: str, mode: str = "") -> list[float]:
        """How fast one design is beside another, step by step."""
        return [
            self.result(of, *each).total_ns / self.result(design, *each).total_ns
            for each in self.each(mode)
        ]

    def faster(self, than: Runs, design: str) -> float:
        """The harmonic mean of how fast a design is beside itself in another case."""
        return harmonic_mean(
            than.result(design, *each).total_ns / self.result(design, *each).total_ns
            for each in self.each()
        )
