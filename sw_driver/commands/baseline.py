"""``nearmem baseline``: Adam on this machine's CPU, beside the simulated module."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from . import (
    FLAT,
    Failure,
    MachineOptions,
    OutputOptions,
    Refusal,
    backend_options,
    driving,
    integer,
    open_device,
    progress_console,
)
from .screen import print_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(MachineOptions, OutputOptions):
    """Options of the command."""

    parameters: Annotated[int, integer(1, 1 << 36)] = 1 << 26
    """on the CPU"""
    repetitions: Annotated[int, integer(1, 10_000)] = 9
    """of a step on the CPU"""
    threads: Annotated[int | None, integer(1, 4096)] = None
    """of torch, measured beside one thread (default: one for each core)"""
    backend: Annotated[str, Parameter(metavar="NAME")] = "rtl"
    """what simulates the module"""
    module_parameters: Annotated[int, integer(1)] = 4_000_000
    """in each of its channels"""
    no_module: bool = False
    """measure the CPU alone"""


def run(options: Annotated[Options, FLAT] = Options()) -> int:
    """Measure Adam on this machine's CPU, beside the simulated module.

    Runs a step of Adam on the CPU by numpy, by torch's fused Adam if torch is installed, and on the
    simulated module. The paper's figures (Table 5) stand beside them. The CPU's are medians, after
    a step that does not count.
    """
    from sw_driver.axdimm.figures import PAPER_CPU_MPARAMS_PER_S, PAPER_MPARAMS_PER_S
    from sw_driver.experiments.baseline import cores, measure_cpu, needed_bytes

    progress = progress_console(options)
    needed = needed_bytes(options.parameters)
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > present:
        raise Refusal(
            f"{options.parameters} parameters take {needed:,} bytes, but this machine has "
            f"{present:,}: measure fewer --parameters"
        )
    # First, so that bad options of the module are refused before anything takes time.
    module = None if options.no_module else _module(options, progress)
    with progress.status("measuring the CPU"):
        cpu = measure_cpu(
            options.parameters,
            repetitions=options.repetitions,
            threads=options.threads or cores(),
        )
    figures = {
        "parameters": options.parameters,
        "repetitions": options.repetitions,
        "cpu": cpu,
        "module": module,
        "paper": {"cpu": PAPER_CPU_MPARAMS_PER_S, "module": PAPER_MPARAMS_PER_S},
    }
    if options.json:
        print(json.dumps(figures, indent=2))
    elif not options.quiet:
        print_table(_table(figures))
        if not any("torch" in row["library"] for row in cpu):
            print("torch is not installed, so it was not measured: pip install -e '.[torch]'")
    return 0


def _module(options: Options, progress: Console) -> dict[str, Any]:
    from sw_driver.axdimm.backends import module_config
    from sw_driver.axdimm.measure import measure_step

    module = backend_options(options, progress)
    with (
        open_device(options.backend, module) as device,
        driving(out_of_memory="run fewer --module-parameters, 16 bytes of a channel each"),
        progress.status("simulating the module"),
    ):
        if not device.transport.timed:
            raise Refusal(
                f"the backend {options.backend!r} has no clock, so the module has no speed: "
                "choose another --backend, or --no-module"
            )
        figures = measure_step(device, module_config(module), options.module_parameters)
    if not figures["bit_exact"]:
        raise Failure("the module's p, m and v are not the golden model's")
    wanted = ("fabric_cycles", "mparams_per_s", "ceiling_mparams_per_s", "efficiency", "bit_exact")
    parameters = {"parameters_per_channel": options.module_parameters}
    return {"backend": options.backend, **parameters, **{name: figures[name] for name in wanted}}


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
