"""Training steps of the benchmarks on the designs, each simulated once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import harmonic_mean
from typing import Any

from sw_driver.numbers import check_fields, check_integer, check_name
from sw_driver.workload import BENCHMARKS
from sw_driver.workload.layers import load_layers

from ..reproduction import Changes, Progress
from .designs import DC, DESIGNS, DEVICES, SCALE_OUT, catalogue
from .step import MODES, Choices, StepResult, step

__all__ = ["BATCH", "NETWORKS", "Runs", "harmonic_mean"]

BATCH = 512
NETWORKS = tuple(BENCHMARKS)


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Of one set of parts, batch and number of device-nodes."""

    changes: Changes = field(default_factory=dict)
    parts: str = "mc_dla"
    batch: int = BATCH
    devices: int = DEVICES
    compression: Mapping[str, float] = field(default_factory=dict)
    """By design, where there is any."""
    progress: Progress = lambda _: None
    networks: Sequence[str] = NETWORKS
    modes: Sequence[str] = MODES
    choices: Choices = field(default_factory=Choices)

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("networks", "modes"):
            check_integer(f"the number of {name}", len(getattr(self, name)))
        for design in self.compression:
            check_name("design", design, DESIGNS | SCALE_OUT)

    def result(self, design: str, network: str, mode: str) -> StepResult:
        """Of one step."""
        self.progress(f"{design}, {network}, {mode}-parallel, batch {self.batch}")
        return _result(
            tuple(sorted(self.changes.items())),
            self.parts,
            design,
            network,
            mode,
            self.batch,
            devices=self.devices,
            compression=self.compression.get(design, 1.0),
            choices=self.choices,
        )

    def each(self, mode: str = "") -> Iterable[tuple[str, str]]:
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


@cache
def _result(
    changes: tuple[tuple[str, str], ...],
    parts: str,
    design: str,
    network: str,
    *how: Any,
    **more: Any,
) -> StepResult:
    check_name("design", design, DESIGNS | SCALE_OUT)
    machine, layers = catalogue(dict(changes), parts), load_layers(network)
    return step((DESIGNS | SCALE_OUT)[design], machine, layers, *how, **more)
