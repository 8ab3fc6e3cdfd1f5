"""``nearmem study``: experiments that the paper argues from, on the RTL."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from . import (
    Failure,
    Refusal,
    add_configuration_options,
    add_output_options,
    driving,
    integer,
    print_table,
    progress_console,
    settings_of,
)

__all__ = ["add_parser", "run"]

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


def add_parser(subparsers: Any) -> None:
    """Describes the options."""
    parser = subparsers.add_parser(
        "study",
        help="measure what the paper argues from: sharing a channel, working on two",
        description="fcfs: host and kernel share a channel first come first served, in an arbiter "
        "for simulation only, beside the two exclusive modes. parallel: the host copies to one "
        "channel while the kernel runs on the other.",
    )
    parser.add_argument("name", choices=("fcfs", "parallel"), help="experiment")
    add_configuration_options(parser)
    parser.add_argument(
        "--parameters", type=integer(1), default=1_000_000, metavar="N", help="of a kernel's run"
    )
    parser.add_argument(
        "--window", type=integer(10_000, 100_000_000), default=200_000, metavar="CYCLES",
        help="fcfs: fabric cycles that the host reads for (default: 200000)",
    )  # fmt: skip
    parser.add_argument(
        "--copy-kib",
        type=integer(64, 1 << 20),
        default=2048,
        metavar="N",
        help="parallel: of a copy",
    )
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints."""
    from rich.table import Table

    from sw_driver.axdimm.backends import BackendOptions, module_config

    progress = progress_console(arguments)
    channels = 1 if arguments.name == "fcfs" else 2
    settings = settings_of(arguments)
    preset = settings.pop("preset", "axdimm")
    options = BackendOptions(preset=preset, settings={**settings, "channels": channels})
    try:
        config = module_config(options)
    except ValueError as error:
        raise Refusal(str(error)) from error

    def rows() -> Iterator[dict[str, Any]]:
        from sw_driver.experiments.study.parallel import measure_parallel
        from sw_driver.experiments.study.sharing import measure_sharing

        if arguments.name == "fcfs":
            yield from measure_sharing(
                config,
                parameters=arguments.parameters,
                window_fabric_cycles=arguments.window,
                announce=progress.print,
            )
        else:
            yield from measure_parallel(
                config,
                parameters=arguments.parameters,
                copy_bytes=1024 * arguments.copy_kib,
                announce=progress.print,
            )

    done = []
    with (
        driving(out_of_memory="take fewer --parameters, or parallel a smaller --copy-kib"),
        progress.status("measuring") as status,
    ):
        try:
            for row in rows():
                done.append(row)
                status.update(f"measuring: {len(done)} done")
        except RuntimeError as error:
            raise Failure(str(error)) from error
    if arguments.json:
        print(json.dumps(done, indent=2))
        return 0
    heads = [name for name in _HEADS if any(name in row for row in done)]
    table = Table(title=f"nearmem study {arguments.name}: {preset}")
    for name in heads:
        table.add_column(_HEADS[name], justify="left" if name in _WORDS else "right")
    for row in done:
        table.add_row(*(_cell(name, row.get(name)) for name in heads))
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
