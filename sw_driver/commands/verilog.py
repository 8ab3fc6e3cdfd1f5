"""``nearmem verilog``: the designs as Verilog, with a description of their ports."""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import (
    Failure,
    Names,
    Refusal,
    add_configuration_options,
    add_depth_option,
    add_output_options,
    depths_of,
    integer,
    output_folder,
    presets,
    print_files,
    progress_console,
    settings_of,
)

if TYPE_CHECKING:
    from rich.table import Table

    from hw.verilog.generate import Machines

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Describes the options."""
    parser = subparsers.add_parser(
        "verilog",
        help="write the designs as Verilog",
        description="Writes NAME.v, with every module that NAME needs, and NAME.json: ports with "
        "widths and directions, latency, configuration. With --package, a folder for FPGA tools.",
    )
    parser.add_argument(
        "designs", nargs="*", metavar="NAME", help="designs to write (default: all)"
    )
    add_configuration_options(parser)
    pim: Any = parser.add_argument(
        "--pim",
        default="paper",
        metavar="PRESET",
        help="configuration of the PIM, one of %(presets)s (default: paper)",
    )
    pim.presets = Names(lambda: presets(pim=True))
    node: Any = parser.add_argument(
        "--node",
        default="paper",
        metavar="PRESET",
        help="configuration of the memory-node, one of %(presets)s (default: paper)",
    )
    node.presets = Names(_nodes)
    parser.add_argument("--lanes", type=integer(1), metavar="N", help="functional units a channel")
    parser.add_argument("--block-bytes", type=integer(1), metavar="N", help="bytes of a block")
    parser.add_argument(
        "--clocking",
        metavar="WAY",
        help="how functional units are clocked, gated or enable: as --set clocking=WAY "
        "and for the PIM (default: gated)",
    )
    parser.add_argument(
        "--cell",
        metavar="CELL",
        help="what clock gates are made of: bufgce (UltraScale+), dcca (ECP5) or model, a latch "
        "and an AND gate for simulation (default: bufgce)",
    )
    add_depth_option(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder (default: build/verilog)")
    parser.add_argument(
        "--package",
        type=Path,
        metavar="DIR",
        help="write one design to a folder of its own, with what takes it to a board: FuseSoC, "
        "IP-XACT, constraints, register map, self test, example tops; it must not be there, or be "
        "empty",
    )
    parser.add_argument(
        "--src",
        action="store_true",
        help="say of each wire, register and instance where in the source it comes from, as an "
        "attribute",
    )
    parser.add_argument(
        "--resources",
        action="store_true",
        help="also synthesize each design with Yosys (UltraScale+), some minutes for a large one: "
        "counts in NAME.json and on the output",
    )
    add_output_options(parser, "the files' names and what was asked for")
    parser.set_defaults(run=run)


def _nodes() -> Iterable[str]:
    from hw.memory_node.config import MEMORY_NODE_PRESETS

    return MEMORY_NODE_PRESETS


def run(arguments: argparse.Namespace) -> int:
    """Writes the files."""
    from amaranth.hdl import UnusedElaboratable
    from rich.console import Console
    from rich.progress import track

    from hw.axdimm.config import configure
    from hw.logic.clocking import CLOCK_GATE_CELLS
    from hw.memory_node.config import MEMORY_NODE_PRESETS
    from hw.pim.config import configure as configure_pim
    from hw.verilog.generate import DESIGNS, Machines, generate
    from sw_driver.fpga.synthesis import design_resources, find_yosys
    from sw_driver.runtime.files import write_whole
    from sw_driver.simulator.processes import kill_started
    from sw_driver.simulator.runtime import BuildError

    own = {
        name: value
        for name in ("lanes", "block_bytes", "clocking")
        if (value := getattr(arguments, name)) is not None
    }
    for name in own:
        if any(entry.partition("=")[0].strip() == name for entry in arguments.set):
            option = f"--{name.replace('_', '-')}"
            raise Refusal(f"{option} and --set {name}= say the same thing: leave one out")
    options = settings_of(arguments) | own
    if arguments.node not in MEMORY_NODE_PRESETS:
        known = ", ".join(MEMORY_NODE_PRESETS)
        raise Refusal(f"--node is {arguments.node!r}: expected one of {known}")
    try:
        pim = {} if arguments.clocking is None else {"clocking": arguments.clocking}
        machines = Machines(
            module=configure(**options),
            pim=configure_pim(arguments.pim, **pim),
            node=MEMORY_NODE_PRESETS[arguments.node],
        )
    except ValueError as error:
        raise Refusal(str(error)) from error
    cell = arguments.cell
    if cell is not None:
        if cell not in CLOCK_GATE_CELLS:
            raise Refusal(f"--cell is {cell!r}: expected one of {', '.join(CLOCK_GATE_CELLS)}")
        if "gated" not in (machines.module.clocking, machines.pim.clocking):
            raise Refusal(
                f"--cell is {cell!r}, but with the clocking {machines.module.clocking!r} there are "
                "no clock gates: give one of the two"
            )
        machines = machines._replace(clock_gate_cell=cell)
    names = arguments.designs or list(DESIGNS)
    if arguments.package is not None:
        for option in ("out", "resources"):
            if getattr(arguments, option):
                raise Refusal(f"--package and --{option} do not go together: leave one out")
        if len(arguments.designs) != 1:
            given = ", ".join(arguments.designs) or "none"
            raise Refusal(f"--package takes the name of one design, got {given}")
    for name in names:
        if name not in DESIGNS:
            raise Refusal(f"no design {name!r}; known: {', '.join(DESIGNS)}")
    machines = machines._replace(depths=depths_of(arguments, names))
    if arguments.package is not None:
        return _write_package(arguments, names[0], machines)
    folder = output_folder(arguments.out, "verilog")
    console = progress_console(arguments)
    written: list[Path] = []
    # Of the components that are one module, all but the first are made for their ports alone.
    warnings.simplefilter("ignore", UnusedElaboratable)
    resources: dict[str, dict[str, int]] = {}
    try:
        if arguments.resources:
            find_yosys()
        for name in track(names, description="writing Verilog", console=console):
            with kill_started():
                text, description = generate(name, machines, src=arguments.src)
            if arguments.resources:
                resources[name] = design_resources(text, top=name)
                description["resources"] = resources[name]
            texts = {f"{name}.v": text, f"{name}.json": json.dumps(description, indent=2) + "\n"}
            for file, content in texts.items():
                written.append(folder / file)
                write_whole(written[-1], content)
    except BuildError as error:
        raise Failure(str(error)) from error
    if arguments.json:
        print(json.dumps({"files": [str(file) for file in written], "resources": resources}))
        return 0
    if resources and not arguments.quiet:
        Console().print(_table(resources))
    print_files(arguments, written)
    return 0


def _write_package(arguments: argparse.Namespace, name: str, machines: Machines) -> int:
    from amaranth.hdl import UnusedElaboratable

    from sw_driver.fpga.package import write_package
    from sw_driver.simulator.processes import kill_started

    warnings.simplefilter("ignore", UnusedElaboratable)
    try:
        with kill_started():
            files = write_package(arguments.package, name, machines, src=arguments.src)
    except (FileExistsError, ValueError) as error:
        raise Refusal(f"--package: {error}") from error
    except ImportError as error:
        raise Failure("peakrdl-cheader is needed: pip install -e '.[dev]'") from error
    print_files(arguments, files)
    return 0


def _table(resources: Mapping[str, Mapping[str, int]]) -> Table:
    from rich.table import Table

    from sw_driver.fpga.synthesis import RESOURCES

    table = Table(title="On an UltraScale+ FPGA (Yosys; mapped, not placed)")
    for column in ("design", *RESOURCES):
        table.add_column(
            column.replace("_", " "), justify="left" if column == "design" else "right"
        )
    for name, counts in resources.items():
        table.add_row(name, *(f"{counts[each]:,}" for each in RESOURCES))
    return table
