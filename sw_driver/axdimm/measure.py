"""Measurement of one step of a rule on all channels: speed, DRAM time and correctness."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

from hw.narrow.formats import FP32_FORMATS, Formats
from hw.rules import PAPER_RULES

from .backends import BackendOptions, module_config
from .device import Axdimm
from .figures import ceiling_mparams_per_s
from .rulejob import RuleJob
from .runs import DRAM_TIMES, DramActivity

if TYPE_CHECKING:
    from hw.axdimm.config import ModuleConfig

__all__ = ["COUNT", "FIGURES", "measure_step", "own_mparams_per_s", "refresh_note"]

FIGURES = (
    "rule",
    "bytes_per_parameter",
    "fabric_cycles",
    "mparams_per_s",
    "ceiling_mparams_per_s",
    "efficiency",
    "refresh_limit",
    *(f"{name}_tck" for name in DRAM_TIMES),
    "activates",
    "precharges",
    "refreshes",
    "row_hits",
    "bus_turns",
    "beats_read",
    "beats_written",
    "onchip_bytes",
    "fabric_mhz",
    "bit_exact",
    "host_seconds",
    "error",
)
"""Names of the figures of a measured step; ``error`` says why a step could not be measured."""


def measure_step(
    device: Axdimm,
    config: ModuleConfig,
    count: int,
    *,
    check: bool = True,
    formats: Formats = FP32_FORMATS,
) -> dict[str, Any]:
    """Return figures of a step of the kernel's first rule on ``count`` parameters a channel.

    All channels run at once, from START to DONE. The device has configuration ``config`` and is
    left as it was.

    ``rule``, ``bytes_per_parameter``: name of the rule, and its traffic.
    ``fabric_cycles``: those of the slowest channel.
    ``mparams_per_s``: of the module, in 10^6 parameters a second of simulated time.
    ``ceiling_mparams_per_s``: rate at the DRAM's peak bandwidth; ``efficiency`` is the share.
    ``refresh_limit``: share that refreshes leave in the long run, 1 without refreshes.
    ``NAME_tck`` of :data:`~sw_driver.axdimm.runs.DRAM_TIMES`, ``activates``, ``precharges``,
    ``refreshes``, ``row_hits``, ``bus_turns``, ``beats_read``, ``beats_written``: sums over the
    channels.
    ``onchip_bytes``: data that a channel can buffer on the chip.
    ``bit_exact``: True if the outputs of random tensors are bit for bit those of the golden model.
    It is None without ``check``, which also leaves the tensors as they are.
    ``host_seconds``: host time of the step.

    Figures that need a clock are None on an untimed backend. Raises the driver's errors.
    """
    job = RuleJob(device, count, fill=check, formats=formats)
    start = time.perf_counter()
    results = job.step(1)
    host_seconds = time.perf_counter() - start
    exact = job.bit_exact() if check else None
    job.release()

    timed = device.transport.timed
    cycles = max(result.fabric_cycles for result in results)
    speed = job.mparams_per_s(results) if timed else None
    moved = formats.bytes_per_parameter(job.rule)
    ceiling = ceiling_mparams_per_s(device.channels, config.fabric_mhz, moved)
    figures: dict[str, Any] = {
        **dict.fromkeys(FIGURES),
        "rule": job.rule.name,
        "bytes_per_parameter": moved,
        "fabric_cycles": cycles if timed else None,
        "mparams_per_s": speed,
        "ceiling_mparams_per_s": ceiling,
        "efficiency": None if speed is None else speed / ceiling,
        "refresh_limit": config.refresh_efficiency,
        "beats_read": sum(result.beats_read for result in results),
        "beats_written": sum(result.beats_written for result in results),
        "onchip_bytes": config.onchip_bytes,
        "fabric_mhz": config.fabric_mhz,
        "bit_exact": exact,
        "host_seconds": host_seconds,
    }
    activities = [result.activity for result in results if result.activity is not None]
    if activities:
        total = DramActivity.total(activities)
        figures |= {**asdict(total), "row_hits": total.row_hits}
    return figures


def refresh_note(figures: Mapping[str, Any]) -> str | None:
    """Return why a step's ``efficiency`` is more than its ``refresh_limit``; None if it is not."""
    efficiency, limit = figures["efficiency"], figures["refresh_limit"]
    if efficiency is None or limit is None or efficiency <= limit:
        return None
    return (
        f"More than the {100 * limit:.2f} % that refresh leaves in the long run: a step is so "
        "short that the DRAM controller gives most of its refreshes before or after it, as the "
        "standard allows. 'nearmem sweep' without --count shows a sustained figure."
    )


COUNT = 1 << 22
"""Parameters of each channel; enough to measure the kernel's long-term rate with refreshes."""

_CAPACITY_BYTES = 32 * COUNT
"""Bytes of a channel that hold all tensors."""


@cache
def own_mparams_per_s(formats: Formats = FP32_FORMATS) -> float:
    """Return the rate of Adam on both channels in 10^6 parameters a second, by the cycle model."""
    options = BackendOptions(
        preset="axdimm" if formats.usual else "axdimm_narrow",
        settings={"rules": PAPER_RULES[0], "capacity_bytes": _CAPACITY_BYTES},
        arithmetic=False,
    )
    with Axdimm("cycles", options=options) as device:
        config = module_config(options)
        return measure_step(device, config, COUNT, check=False, formats=formats)["mparams_per_s"]
