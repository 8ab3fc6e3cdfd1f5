"""``nearmem baseline``: Adam on this machine's CPU, beside the simulated module."""

from __future__ import annotations

import argparse
import json
import os
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
    print_table,
    progress_console,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["add_parser", "run"]

DEFAULT_PARAMETERS = 1 << 26
DEFAULT_MODULE_PARAMETERS = 4_000_000


def add_parser(subparsers: Any) -> None:
    """Describes the options."""
    parser = subparsers.add_parser(
        "baseline",
        help="measure Adam on this machine's CPU, beside the simulated module",
        description="Runs a step of Adam on the CPU by numpy, by torch's fused Adam if torch is "
        "installed, and on the simulated module. The paper's figures (Table 5) stand beside them. "
        "The CPU's are medians, after a step that does not count.",
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
        help="of torch, measured beside one thread (default: one for each core)",
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
    from sw_driver.experiments.baseline import cores, measure_cpu, needed_bytes
    from sw_driver.experiments.figures import PAPER_CPU_MPARAMS_PER_S, PAPER_MPARAMS_PER_S

    progress = progress_console(arguments)
    needed = needed_bytes(arguments.parameters)
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > present:
        raise Refusal(
            f"{arguments.parameters} parameters take {needed:,} bytes, but this machine has "
            f"{present:,}: measure fewer --parameters"
        )
    # First, so that bad options of the module are refused before anything takes time.
    module = None if arguments.no_module else _module(arguments, progress)
    with progress.status("measuring the CPU"):
        cpu = measure_cpu(
            arguments.parameters,
            repetitions=arguments.repetitions,
            threads=arguments.threads or cores(),
        )
    figures = {
        "parameters": arguments.parameters,
        "repetitions": arguments.repetitions,
        "cpu": cpu,
        "module": module,
        "paper": {"cpu": PAPER_CPU_MPARAMS_PER_S, "module": PAPER_MPARAMS_PER_S},
    }
    if arguments.json:
        print(json.dumps(figures, indent=2))
    elif not arguments.quiet:
        print_table(_table(figures))
        if not any("torch" in row["library"] for row in cpu):
            print("torch is not installed, so it was not measured: pip install -e '.[torch]'")
    return 0


def _module(arguments: argparse.Namespace, progress: Console) -> dict[str, Any]:
    from sw_driver.axdimm.backends import module_config
    from sw_driver.experiments.sweep.measure import measure_step

    options = backend_options(arguments, progress)
    with (
        open_device(arguments.backend, options) as device,
        driving(out_of_memory="run fewer --module-parameters, 16 bytes of a channel each"),
        progress.status("simulating the module"),
    ):
        if not device.transport.timed:
            raise Refusal(
                f"the backend {arguments.backend!r} has no clock, so the module has no speed: "
                "choose another --backend, or --no-module"
            )
        figures = measure_step(device, module_config(options), arguments.module_parameters)
    if not figures["bit_exact"]:
        raise Failure("the module's p, m and v are not the golden model's")
    wanted = ("fabric_cycles", "mparams_per_s", "ceiling_mparams_per_s", "efficiency", "bit_exact")
    parameters = {"parameters_per_channel": arguments.module_parameters}
    return {"backend": arguments.backend, **parameters, **{name: figures[name] for name in wanted}}


def _table(figures: dict[str, Any]) -> Table:
    from rich.table import Table

    table = Table(
        title=f"Adam in FP32, {figures['parameters']:,} parameters on the CPU, "
        f"median of {figures['repetitions']}"
    )
    table.add_column("")
    for heading in ("threads", "MP/s", "GB/s"):
        table.add_column(heading, justify="right")
    for row in figures["cpu"]:
        speeds = (f"{row[name]:.2f}" for name in ("mparams_per_s", "gb_per_s"))
        table.add_row(row["library"], str(row["threads"]), *speeds)
    module, paper = figures["module"], figures["paper"]
    if module is not None:
        name = f"simulated AXDIMM ({module['backend']})"
        table.add_row(name, "", f"{module['mparams_per_s']:.2f}")
    table.add_section()
    table.add_row("paper: CPU, one core", "1", f"{paper['cpu']:.2f}")
    table.add_row("paper: AXDIMM", "", f"{paper['module']:.2f}")
    return table
