"""Systems that Sentinel is compared with, each with its best settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sw_driver.machine import Machine
from sw_driver.workload.summary import peak_bytes
from sw_driver.workload.trace import Tensor

from ..outcome import Outcome
from ..placing import FAST, SLOW, Make, Placing, run
from .active_lists import AT_ONCE, PERIOD_NS, active_lists, in_blocks
from .profiling import StepProfile

__all__ = ["RIVALS", "Rival"]


@dataclass(frozen=True, kw_only=True)
class Rival(Outcome):
    """Result of a step in the steady state."""

    settings: str = ""
    """The best settings of ``tried``."""
    tried: Mapping[str, Rival] = field(default_factory=dict)
    """Results by settings; the paper's settings come first, if it has some."""


class _FastFirst(Placing):
    def begins(self, tensor: Tensor) -> str:
        return self.allocate(tensor)


class _Slow(Placing):
    def allocate(self, tensor: Tensor) -> str:
        return SLOW


def _fast_only(profile: StepProfile, machine: Machine) -> Rival:
    enough = str(max(peak_bytes(profile.step), 1))
    return _ran(profile, machine.override({f"{FAST}.capacity_bytes": enough}), _FastFirst)


def _slow_only(profile: StepProfile, machine: Machine) -> Rival:
    return _ran(profile, machine, _Slow)


def _first_touch(profile: StepProfile, machine: Machine) -> Rival:
    return _best(
        {
            "what lasts in fast memory": _ran(profile, machine, _FastFirst),
            "what lasts in slow memory": _ran(profile, machine, Placing),
        }
    )


def _ial(profile: StepProfile, machine: Machine) -> Rival:
    slow_ns = _slow_only(profile, machine).step_ns
    periods = {"5 s": PERIOD_NS, "1 s": PERIOD_NS // 5, "step": slow_ns}
    periods |= {f"1/{part} of a step": slow_ns // part for part in (4, 8, 16, 32)}
    steps = {"blocks": in_blocks(profile.step), "tensors": profile.step}
    tried = {}

    def add(units: str, period: str, at_once: int = AT_ONCE) -> None:
        mean_ns = active_lists(steps[units], machine, periods[period], slow_ns, at_once)
        tried[units, period, at_once] = Rival(step_ns=round(mean_ns))

    for units in steps:
        for period in periods:
            add(units, period)
    units, period, _ = min(tried, key=lambda setting: tried[setting].step_ns)
    for at_once in (1, 4 * AT_ONCE):
        add(units, period, at_once)
    return _best({f"{a}, every {b}, {c} at once": rival for (a, b, c), rival in tried.items()})


def _ran(profile: StepProfile, machine: Machine, make: Make) -> Rival:
    return Rival(step_ns=run(machine, profile.step, make).step_ns)


def _best(tried: Mapping[str, Rival]) -> Rival:
    settings = min(tried, key=lambda setting: tried[setting].step_ns)
    return replace(tried[settings], settings=settings, tried=tried)


RIVALS: Mapping[str, Callable[[StepProfile, Machine], Rival]] = {
    "fast-only": _fast_only,
    "slow-only": _slow_only,
    "first-touch": _first_touch,
    "ial": _ial,
}
"""Functions that run a step on a machine, by the rival's name.

The machine has memories ``fast``, with the capacity under test, and ``slow``.
"""
