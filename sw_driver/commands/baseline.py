"""``nearmem baseline``: Adam on this machine's CPU, beside the simulated module."""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from . import (
    Failure,
    Refusal,
    add_configuration_options,
    add_output_options,
    backend_options,
    driving,
    integer,
    open_device,
    progress_console,
)

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["add_parser", "run"]

DEFAULT_PARAMETERS = 1 << 26
DEFAULT_MODULE_PARAMETERS = 4_000_000


def add_parser(subparsers: Any) -> None:
    """Describes the options."""
    parser = subparsers.add_parser(
        "baseline",
        help="measure Adam on this machine's CPU, beside the simulated module",
        description="Runs the same Adam step on the CPU: a vectorised one-pass kernel compiled for "
        "this machine, compared with the golden model before it is timed; numpy; and torch's fused "
        "Adam if torch is installed. Measures the memory's bandwidth in the same run, hence this "
        "machine's ceiling, and runs the simulated module. The paper's figures (Table 5) stand "
        "beside them. All times are medians.",
    )
    parser.add_argument(
        "--parameters",
        type=integer(1, 1 << 36),
        default=DEFAULT_PARAMETERS,
        metavar="N",
        help=f"on the CPU (default: {DEFAULT_PARAMETERS:,})",
    )
    parser.add_argument(
        "--repetitions", type=integer(1, 10_000), default=9, metavar="N", help="(default: 9)"
    )
    parser.add_argument(
        "--threads",
        type=integer(1, 4096),
        metavar="N",
        help="measured beside one thread (default: one for each core)",
    )
    parser.add_argument(
        "--backend",
        default="rtl",
        metavar="NAME",
        help="what simulates the module (default: rtl)",
    )
    add_configuration_options(parser)
    parser.add_argument(
        "--module-parameters",
        type=integer(1),
        default=DEFAULT_MODULE_PARAMETERS,
        metavar="N",
        help=f"in each of its channels (default: {DEFAULT_MODULE_PARAMETERS:,})",
    )
    parser.add_argument("--no-module", action="store_true", help="measure the CPU alone")
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints."""
    from rich.console import Console
    from rich.progress import track

    from sw_driver.experiments.baseline.machine import this_machine
    from sw_driver.experiments.baseline.measure import MismatchError, measure_cpu, needed_bytes
    from sw_driver.experiments.baseline.report import figures, notes, tables
    from sw_driver.simulator.compiler import CompilerError

    progress = progress_console(arguments)
    machine = this_machine()
    needed = needed_bytes(arguments.parameters)
    if machine.available_bytes and needed > machine.available_bytes:
        raise Refusal(
            f"{arguments.parameters} parameters take {needed:,} bytes, but only "
            f"{machine.available_bytes:,} are free: measure fewer --parameters"
        )
    # First, so that bad options of the module are refused before anything takes time.
    module = None if arguments.no_module else _module(arguments, progress)
    threads = arguments.threads or machine.cores
    try:
        cpu = measure_cpu(
            arguments.parameters,
            repetitions=arguments.repetitions,
            threads=threads,
            track=partial(track, description="measuring the CPU", console=progress),
        )
    except (CompilerError, MismatchError, MemoryError) as error:
        raise Failure(str(error)) from error
    values = figures(cpu, machine, module, threads=threads)
    if arguments.json:
        print(json.dumps(values, indent=2))
    elif not arguments.quiet:
        console = Console()
        for table in tables(values):
            console.print(table)
        for note in notes(values):
            console.print(note, highlight=False)
    return 0


def _module(arguments: argparse.Namespace, progress: Console) -> dict[str, Any]:
    from sw_driver.experiments.baseline.measure import MismatchError, measure_module

    options = backend_options(arguments, progress)
    with (
        open_device(arguments.backend, options) as device,
        driving(out_of_memory="run fewer --module-parameters, 16 bytes of a channel each"),
        progress.status("simulating the module"),
    ):
        transport = device.transport
        if not transport.timed:
            raise Refusal(
                f"the backend {arguments.backend!r} has no clock, so the module has no speed: "
                "choose another --backend, or --no-module"
            )
        try:
            return measure_module(device, arguments.module_parameters)
        except MismatchError as error:
            raise Failure(str(error)) from error
