"""``nearmem bench``: the speed of the simulation."""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import Any

from . import (
    add_configuration_options,
    add_output_options,
    backend_options,
    driving,
    integer,
    open_device,
    progress_console,
)

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Describes the options."""
    parser = subparsers.add_parser(
        "bench",
        help="measure the speed of the simulation",
        description="Runs Adam on both channels at once through the driver and, in the same run, "
        "the same Verilated channel in a bare loop that does nothing but clock it. Prints the "
        "simulated throughput, fabric cycles of all channels per host second and their ratio, "
        "medians over the repetitions.",
    )
    add_configuration_options(parser)
    parser.add_argument(
        "--parameters", type=integer(1), default=400_000, metavar="N", help="of each channel"
    )
    parser.add_argument(
        "--repetitions", type=integer(1), default=5, metavar="N", help="(default: 5)"
    )
    add_output_options(parser, "the figures")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints."""
    from rich.progress import track

    from sw_driver.experiments.speed import measure_driven

    progress = progress_console(arguments)
    options = backend_options(arguments, progress)
    tracked = partial(track, description="measuring", console=progress)
    with (
        open_device("rtl", options) as device,
        driving(out_of_memory="measure fewer --parameters, 16 bytes of a channel each"),
    ):
        figures = measure_driven(device, arguments.parameters, arguments.repetitions, track=tracked)
        channels = device.channels
        lanes = device.configuration(0).lanes
    if arguments.json:
        print(json.dumps(figures))
    elif not arguments.quiet:
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
