"""A model's training step on a variant of the platform, each simulated once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hw.rules import PAPER_RULES, rule
from sw_driver.axdimm.figures import BYTES_PER_PARAMETER, PAPER_MPARAMS_PER_S
from sw_driver.axdimm.measure import own_mparams_per_s
from sw_driver.numbers import check_fields

from ..once import once
from ..reproduction import Changes
from .framework import StepResult
from .paper import MODELS
from .platform import PAPER_RATES, Rates, machine_of, measure, trace_of, with_channels
from .settings import CHANNELS, FrameworkSettings

__all__ = [
    "BASELINE",
    "BY_BYTES",
    "MODULE",
    "Variant",
    "run",
]

BASELINE = FrameworkSettings(updater="cpu")
MODULE = FrameworkSettings()
BY_BYTES = replace(MODULE, placement="by_bytes")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A training step of a model, and what differs from the paper's platform."""

    model: str = MODELS[0]
    settings: FrameworkSettings = MODULE
    changes: Changes = field(default_factory=dict)
    """Of the machine."""
    channels: int = CHANNELS
    rates: Rates = PAPER_RATES
    own_rate: bool = False
    """Whether a kernel is as fast as the one here."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __str__(self) -> str:
        return f"{self.model}, updated by {self.settings.updater}"


@once
def run(variant: Variant) -> StepResult:
    """The step, once there were others before it."""
    settings = variant.settings
    formats = settings.formats
    if variant.own_rate:
        rate = own_mparams_per_s(formats)
    else:  # as many bytes a second in all formats
        moved = formats.bytes_per_parameter(rule(PAPER_RULES[0]))
        rate = PAPER_MPARAMS_PER_S * BYTES_PER_PARAMETER / moved
    return measure(
        with_channels(machine_of(variant.rates, variant.changes), variant.channels),
        trace_of(variant.model),
        settings,
        channel_mparams_per_s=rate / CHANNELS,
        overhead_us=variant.rates.update_overhead_us,
    )
