"""Training steps of the benchmarks on the designs, each simulated once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import harmonic_mean
from typing import Any

from sw_driver.numbers import check_fields, check_integer, check_name
from sw_driver.workload import BENCHMARKS
from sw_driver.workload.layers import load_layers

from .. import runs
from ..outcome import Outcome
from ..reproduction import Changes
from .designs import DC, DESIGNS, DEVICES, catalogue
from .step import MODES, step

__all__ = ["BATCH", "NETWORKS", "McDlaCase", "McDlaRuns"]

BATCH = 512
NETWORKS = tuple(BENCHMARKS)


@dataclass(frozen=True, kw_only=True)
class McDlaCase(runs.Case[Outcome]):
    """A step of a network on a design with the given parts."""

    network: str = NETWORKS[0]
    design: str = DC
    mode: str = MODES[0]
    batch: int = BATCH
    devices: int = DEVICES

    def __post_init__(self) -> None:
        check_fields(self)
        check_name("design", self.design, DESIGNS)

    def __str__(self) -> str:
        return f"{self.design}, {self.network}, {self.mode}-parallel, batch {self.batch}"

    def simulate(self) -> Outcome:
        design, parts = DESIGNS[self.design], catalogue(self.changes)
        layers = load_layers(self.network)
        return step(design, parts, layers, self.mode, self.batch, devices=self.devices)


@dataclass(frozen=True, kw_only=True)
class McDlaRuns(runs.Runs):
    """Steps on any design, of some networks and modes.

    Examples
    --------
    >>> runs = McDlaRuns(networks=("alexnet",), modes=("data",))
    >>> round(runs.speedup("MC-DLA(B)"), 2)
    5.75
    """

    networks: Sequence[str] = NETWORKS
    modes: Sequence[str] = MODES
    batch: int = BATCH
    devices: int = DEVICES

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("networks", "modes"):
            check_integer(f"the number of {name}", len(getattr(self, name)))

    def with_changes(self, changes: Changes | None = None, **others: Any) -> McDlaRuns:
        """Return runs with further changes of the parts, and ``others`` of the fields."""
        return replace(self, changes={**self.changes, **(changes or {})}, **others)

    def result(self, design: str, network: str, mode: str) -> Outcome:
        """Return the result of one step."""
        others = {"mode": mode, "batch": self.batch, "devices": self.devices}
        return self.simulated(McDlaCase, network=network, design=design, **others)

    def steps(self, mode: str = "") -> list[tuple[str, str]]:
        """Return networks with modes, all or one."""
        modes = [mode] if mode else self.modes
        return [(network, split) for split in modes for network in self.networks]

    def speedup(self, design: str, mode: str = "", over: str = DC) -> float:
        """Return the harmonic mean of :meth:`shares`, as in the paper; by default of all modes."""
        return harmonic_mean(self.shares(design, over, mode))

    def shares(self, design: str, other: str, mode: str = "") -> list[float]:
        """Return the speed of a design, as a multiple of another's, for each step."""
        return [
            self.result(other, *step).step_ns / self.result(design, *step).step_ns
            for step in self.steps(mode)
        ]

    def faster(self, than: McDlaRuns, design: str) -> float:
        """Return the harmonic mean of a design's speed, as a multiple of that in other runs."""
        return harmonic_mean(
            than.result(design, *step).step_ns / self.result(design, *step).step_ns
            for step in self.steps()
        )
