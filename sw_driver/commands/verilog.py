"""``nearmem verilog``: the designs as Verilog, with a description of their ports."""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import Failure, Refusal, integer, output_folder

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Describes the options."""
    parser = subparsers.add_parser(
        "verilog",
        help="write the designs as Verilog",
        description="Writes NAME.v, with every module that NAME needs, and NAME.json: ports with "
        "widths and directions, latency, configuration.",
    )
    parser.add_argument(
        "designs", nargs="*", metavar="NAME", help="designs to write (default: all)"
    )
    parser.add_argument(
        "--config", default="axdimm", metavar="PRESET", help="configuration (default: the paper's)"
    )
    parser.add_argument(
        "--pim", default="paper", metavar="PRESET", help="configuration of the PIM (default: paper)"
    )
    parser.add_argument("--lanes", type=integer(1), metavar="N", help="functional units a channel")
    parser.add_argument("--block-bytes", type=integer(1), metavar="N", help="bytes of a block")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder (default: build/verilog)")
    parser.add_argument(
        "--resources",
        action="store_true",
        help="also synthesize each design with Yosys (UltraScale+), some minutes for a large one: "
        "counts in NAME.json and on the output",
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the files."""
    from amaranth.hdl import UnusedElaboratable
    from rich.console import Console
    from rich.progress import track

    from hw.axdimm.config import configure
    from hw.generate import DESIGNS, Machines, generate
    from hw.pim.config import configure as configure_pim
    from sw_driver.simulator.synthesis import SynthesisError, design_resources, find_yosys

    options = {
        name: value
        for name in ("lanes", "block_bytes")
        if (value := getattr(arguments, name)) is not None
    }
    try:
        machines = Machines(
            module=configure(arguments.config, **options), pim=configure_pim(arguments.pim)
        )
    except ValueError as error:
        raise Refusal(str(error)) from error
    names = arguments.designs or list(DESIGNS)
    for name in names:
        if name not in DESIGNS:
            raise Refusal(f"no design {name!r}; known: {', '.join(DESIGNS)}")
    folder = output_folder(arguments.out, "verilog")
    console = Console(stderr=True, quiet=arguments.quiet)
    # Of the components that are one module, all but the first are made for their ports alone.
    warnings.simplefilter("ignore", UnusedElaboratable)
    resources: dict[str, dict[str, int]] = {}
    try:
        if arguments.resources:
            find_yosys()
        for name in track(names, description="writing Verilog", console=console):
            text, description = generate(name, machines)
            if arguments.resources:
                resources[name] = design_resources(text, top=name)
                description["resources"] = resources[name]
            (folder / f"{name}.v").write_text(text)
            (folder / f"{name}.json").write_text(json.dumps(description, indent=2) + "\n")
    except SynthesisError as error:
        raise Failure(str(error)) from error
    if not arguments.quiet:
        print(f"{len(names)} designs in {folder}: {', '.join(names)}")
        if resources:
            Console().print(_table(resources))
    return 0


def _table(resources: Mapping[str, Mapping[str, int]]) -> Table:
    from rich.table import Table

    from sw_driver.simulator.synthesis import RESOURCES

    table = Table(title="On an UltraScale+ FPGA (Yosys; mapped, not placed)")
    for column in ("design", *RESOURCES):
        table.add_column(
            column.replace("_", " "), justify="left" if column == "design" else "right"
        )
    for name, counts in resources.items():
        table.add_row(name, *(f"{counts[each]:,}" for each in RESOURCES))
    return table
