"""``nearmem study``: experiments that the paper argues from, on the RTL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from . import (
    FLAT,
    Failure,
    MachineOptions,
    OutputOptions,
    Refusal,
    driving,
    integer,
    progress_console,
    turning,
)
from .screen import print_table

__all__ = ["Options", "run"]

_HEADS = {
    "mode": "",
    "channel_0": "channel 0",
    "channel_1": "channel 1",
    "pattern": "host reads",
    "interval_fabric_cycles": "every .. cycles",
    "offered_gb_per_s": "asked GB/s",
    "host_gb_per_s": "got GB/s",
    "latency_median_ns": "median ns",
    "latency_p99_ns": "99 % ns",
    "latency_worst_ns": "worst ns",
    "late_share": "late",
    "kernel_mparams_per_s": "kernel MP/s",
    "kernel_share": "of alone",
    "copy_gb_per_s": "copies GB/s",
}
_PERCENT = ("late_share", "kernel_share")


@dataclass(frozen=True, kw_only=True)
class Options(MachineOptions, OutputOptions):
    """Options of the command."""

    parameters: Annotated[int, integer(1)] = 1_000_000
    """of a kernel's run"""
    window: Annotated[int, integer(10_000, 100_000_000, metavar="CYCLES")] = 200_000
    """fcfs: fabric cycles that the host reads for"""
    copy_kib: Annotated[int, integer(64, 1 << 20)] = 2048
    """parallel: of a copy"""


def run(name: Literal["fcfs", "parallel"], /, options: Annotated[Options, FLAT] = Options()) -> int:
    """Measure what the paper argues from: sharing a channel, working on two.

    fcfs: host and kernel share a channel first come first served, in an arbiter for simulation
    only, beside the two exclusive modes. parallel: the host copies to one channel while the kernel
    runs on the other.

    Parameters
    ----------
    name
        experiment
    """
    from rich.table import Table

    from sw_driver.axdimm.backends import BackendOptions, module_config

    progress = progress_console(options)
    channels = 1 if name == "fcfs" else 2
    settings = options.settings()
    preset = settings.pop("preset", "axdimm")
    module = BackendOptions(preset=preset, settings={**settings, "channels": channels})
    with turning(ValueError, into=Refusal):
        config = module_config(module)

    def rows() -> Iterator[dict[str, Any]]:
        from sw_driver.experiments.study.parallel import measure_parallel
        from sw_driver.experiments.study.sharing import measure_sharing

        if name == "fcfs":
            yield from measure_sharing(
                config,
                parameters=options.parameters,
                window_fabric_cycles=options.window,
                announce=progress.print,
            )
        else:
            yield from measure_parallel(
                config,
                parameters=options.parameters,
                copy_bytes=1024 * options.copy_kib,
                announce=progress.print,
            )

    done = []
    with (
        driving(out_of_memory="take fewer --parameters, or parallel a smaller --copy-kib"),
        progress.status("measuring") as status,
        turning(RuntimeError, into=Failure),
    ):
        for row in rows():
            done.append(row)
            status.update(f"measuring: {len(done)} done")
    if options.json:
        print(json.dumps(done, indent=2))
        return 0
    heads = [head for head in _HEADS if any(head in row for row in done)]
    table = Table(title=f"nearmem study {name}: {preset}")
    for head in heads:
        table.add_column(_HEADS[head], justify="left" if head in _WORDS else "right")
    for row in done:
        table.add_row(*(_cell(head, row.get(head)) for head in heads))
    print_table(table)
    return 0


_WORDS = ("mode", "channel_0", "channel_1", "pattern")


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name in _PERCENT:
        return f"{value:.1%}"
    if isinstance(value, float):
        return f"{value:.2f}" if value < 1000 else f"{value:,.0f}"
    return str(value)
