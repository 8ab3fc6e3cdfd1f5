"""Steps of networks on a fast and a slow memory, each simulated once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil
from typing import Any, cast

from sw_driver.machine import Machine
from sw_driver.machine.parts import TRANSFERS, MachineError
from sw_driver.machine.sentinel import SENTINEL as SENTINEL_MACHINE
from sw_driver.numbers import check_fields, check_integer, check_name
from sw_driver.workload import load_trace, peak_bytes

from .. import runs
from ..placing import FAST, SLOW
from .planning import Planned, Settings, lower_bound_bytes, planned
from .profiling import StepProfile, profile_of
from .rivals import RIVALS, Rival

__all__ = [
    "CAPACITY",
    "SENTINEL",
    "SentinelCase",
    "SentinelRuns",
    "least_percent",
    "machine_of",
    "profile_for",
]

SENTINEL = "Sentinel"
CAPACITY = f"{FAST}.capacity_bytes"


@dataclass(frozen=True, kw_only=True)
class SentinelCase(runs.Case[Planned | Rival]):
    """A network's step, and the system that places its tensors.

    Examples
    --------
    >>> str(SentinelCase(network="dcgan", percent=40))
    'Sentinel, dcgan, 40 %'
    >>> SentinelCase(network="dcgan", percent=0)
    Traceback (most recent call last):
        ...
    sw_driver.device.errors.InvalidArgumentError: percent is 0: expected an integer from 1 to 100
    """

    percent: int = 20
    """Fast memory in % of the step's peak."""
    system: str = SENTINEL
    """Sentinel or one of ``RIVALS``."""
    transfers: str = "shared"
    """Setting of both memories: whether moves take from their rates."""
    settings: Settings = field(default_factory=Settings)
    lengths: tuple[int, ...] | None = None
    """Layers in an interval to try, instead of those that the equations leave."""

    def __post_init__(self) -> None:
        check_fields(self, "percent")
        check_integer("percent", self.percent, 1, 100)
        check_name("system", self.system, [SENTINEL, *RIVALS])
        check_name("transfers", self.transfers, TRANSFERS)
        if CAPACITY in self.changes:
            raise MachineError(f"{CAPACITY} is the experiments' own: leave it out")

    def __str__(self) -> str:
        return f"{self.system}, {self.network}, {self.percent} %"

    def simulate(self) -> Planned | Rival:
        """Return the result of Sentinel, or the best of another system.

        Below the lower bound, Sentinel has no pool.
        """
        profile, machine = profile_for(self), machine_of(self)
        if self.system != SENTINEL:
            return RIVALS[self.system](profile, machine)
        enough = self.percent >= least_percent(self)
        settings = replace(self.settings, reserve=self.settings.reserve and enough)
        return planned(profile, machine, settings, lengths=self.lengths)


def profile_for(case: SentinelCase) -> StepProfile:
    """Return the profile of a case's step, behind the cache of its machine's processor."""
    cache_bytes = SENTINEL_MACHINE.override(case.changes).devices[0].cache_bytes
    return _profile(case.network, int(cache_bytes.value) if cache_bytes else 0)


def machine_of(case: SentinelCase) -> Machine:
    """Return the paper's machine with its changes and share of fast memory."""
    nbytes = peak_bytes(profile_for(case).step) * case.percent // 100
    transfers = {f"{memory}.transfers": case.transfers for memory in (FAST, SLOW)}
    return SENTINEL_MACHINE.override({**transfers, **case.changes, CAPACITY: str(nbytes)})


def least_percent(case: SentinelCase) -> int:
    """Return the lower bound of fast memory, in % of the step's peak."""
    profile = profile_for(case)
    return ceil(100 * lower_bound_bytes(profile) / peak_bytes(profile.step))


@cache
def _profile(network: str, cache_bytes: int) -> StepProfile:
    return profile_of(load_trace(network), cache_bytes)


@dataclass(frozen=True, kw_only=True)
class SentinelRuns(runs.Runs):
    """Steps on the paper's machine, with changes."""

    def case(self, network: str, **fields: Any) -> SentinelCase:
        """Return a case with the changes."""
        return SentinelCase(network=network, changes=self.changes, **fields)

    def ours(self, network: str, **fields: Any) -> Planned:
        """Return Sentinel's result."""
        return cast(Planned, self.simulated(SentinelCase, network=network, **fields))

    def rival(self, network: str, system: str, **fields: Any) -> Rival:
        """Return the result of another system."""
        return cast(Rival, self.simulated(SentinelCase, network=network, system=system, **fields))

    def loss(self, network: str, made: Planned | Rival) -> float:
        """Return the % of the throughput with fast memory alone that a step loses."""
        return 100 * (1 - self.rival(network, "fast-only").step_ns / made.step_ns)
