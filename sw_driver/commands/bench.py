"""``nearmem bench``: the speed of the simulation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from . import (
    FLAT,
    MachineOptions,
    OutputOptions,
    backend_options,
    driving,
    integer,
    open_device,
    progress_console,
)

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(MachineOptions, OutputOptions):
    """Options of the command."""

    parameters: Annotated[int, integer(1)] = 400_000
    """of each channel"""
    repetitions: Annotated[int, integer(1)] = 5
    """of the measurement"""


def run(options: Annotated[Options, FLAT] = Options()) -> int:
    """Measure the speed of the simulation.

    Runs Adam on both channels at once through the driver and, in the same run, the same Verilated
    channel in a bare loop that does nothing but clock it. Prints the simulated throughput, fabric
    cycles of all channels per host second and their ratio, medians over the repetitions.
    """
    from rich.progress import track

    from sw_driver.experiments.speed import measure_driven

    progress = progress_console(options)
    tracked = partial(track, description="measuring", console=progress)
    with (
        open_device("rtl", backend_options(options, progress)) as device,
        driving(out_of_memory="measure fewer --parameters, 16 bytes of a channel each"),
    ):
        figures = measure_driven(device, options.parameters, options.repetitions, track=tracked)
        channels = device.channels
        lanes = device.configuration(0).lanes
    if options.json:
        print(json.dumps(figures))
    elif not options.quiet:
        _print(figures, channels, lanes)
    return 0


def _print(figures: dict[str, Any], channels: int, lanes: int) -> None:
    print(
        f"Adam on {figures['parameters_per_channel']} parameters in each of {channels} channels, "
        f"{lanes} lanes"
    )
    print(
        f"{'simulated':>20}: {figures['mparams_per_s']:>12.2f} MP/s, "
        f"{figures['efficiency']:.2%} of the ceiling"
    )
    for name, text, counted in (
        ("fabric_cycles_per_host_second", "through the driver", "all channels"),
        ("bare_loop_fabric_cycles_per_host_second", "bare loop", "all channels"),
        ("one_channel_fabric_cycles_per_host_second", "one channel alone", "through the driver"),
    ):
        print(f"{text:>20}: {figures[name]:>12,.0f} fabric cycles per host second, {counted}")
    print(f"{'ratio':>20}: {figures['ratio']:>12.2f}, through the driver to bare loop")
