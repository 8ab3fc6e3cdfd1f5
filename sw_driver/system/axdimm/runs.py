"""A model's training step on a variant of the platform."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from hw.rules import PAPER_RULES
from sw_driver.experiments.figures import BYTES_PER_PARAMETER, PAPER_MPARAMS_PER_S
from sw_driver.experiments.sweep.grid import Point
from sw_driver.experiments.sweep.measure import measure_point

from ..reproduction import Changes
from .framework import StepResult
from .platform import CHANNELS, machine_of, measure, trace_of, with_channels
from .settings import FrameworkSettings, Variant

__all__ = [
    "BASELINE",
    "BY_BYTES",
    "COUNT",
    "MODULE",
    "own_mparams_per_s",
    "run",
]

BASELINE = FrameworkSettings(updater="cpu")
MODULE = FrameworkSettings()
BY_BYTES = replace(MODULE, placement="by_bytes")

COUNT = 1 << 22
"""Parameters of each channel for the kernel's own rate: what refresh leaves in the long run."""


@cache
def own_mparams_per_s() -> float:
    """Of the module here, both channels, by the model of its cycles."""
    settings = {"preset": "axdimm", "rules": PAPER_RULES[0], "count": COUNT, "stagger": True}
    figures = measure_point(Point(backend="cycles", settings=settings, arithmetic=False))
    if figures["error"]:
        raise RuntimeError(figures["error"])
    return figures["mparams_per_s"]


def run(variant: Variant, model: str, changes: Changes) -> StepResult:
    """A step of a variant; ``changes`` count for more than its own."""
    machine = machine_of(changes={**variant.changes, **changes})
    settings = variant.settings
    rate = (own_mparams_per_s() if variant.own_rate else PAPER_MPARAMS_PER_S) / CHANNELS
    # A kernel is as fast as its memory: parameters 4 bytes each way, states, too, gradients one.
    moved = 8 + settings.gradient_bits / 8 + 2 * 2 * settings.state_bits / 8
    return measure(
        with_channels(machine, variant.channels),
        trace_of(model),
        settings,
        channel_mparams_per_s=rate * BYTES_PER_PARAMETER / moved,
    )
