"""``nearmem cost``: what designs take on an FPGA, and how fast they are."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import (
    Failure,
    Refusal,
    add_configuration_options,
    add_depth_option,
    add_output_options,
    depths_of,
    integer,
    output_folder,
    print_files,
    print_table,
    progress_console,
    settings_of,
)

if TYPE_CHECKING:
    from rich.table import Table

    from hw.verilog.generate import Machines
    from sw_driver.fpga.cost import Row

__all__ = ["add_parser", "run"]

_DEFAULT = ("fp32_add", "fp32_mul", "fp32_div", "fp32_sqrt", "adam_unit")


def add_parser(subparsers: Any) -> None:
    """Describes the options."""
    parser = subparsers.add_parser(
        "cost",
        help="count what designs take on an FPGA, and place and route them",
        description="Maps designs for UltraScale+ with Yosys: lookup tables, flip-flops, DSP "
        "blocks, block RAMs (18 Kbit) and the levels of logic of the longest path, beside the "
        "paper's unit and a part's capacity. With --place it also places and routes them on an "
        "ECP5 (LFE5U-85F, speed grade 8) with nextpnr: an operator takes half a minute, the Adam "
        "unit some minutes. What was found is kept.",
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"designs, as of 'nearmem verilog' (default: {' '.join(_DEFAULT)}); with --explore "
        "operations (default: all)",
    )
    add_configuration_options(parser)
    parser.add_argument("--place", action="store_true", help="also place and route")
    parser.add_argument(
        "--seeds",
        type=integer(1, 100),
        default=3,
        metavar="N",
        help="times that each is placed and routed, each from another random start",
    )
    parser.add_argument(
        "--mhz",
        type=integer(1, 1000),
        metavar="F",
        help="clock that placing and routing aim at (default: 200)",
    )
    add_depth_option(parser)
    parser.add_argument(
        "--explore",
        action="store_true",
        help="instead of designs, every depth of the operators add, mul, div and sqrt",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for cost.json with every figure and path, and with --explore --place a plot "
        "of clock against area (default: no files)",
    )
    add_output_options(parser, "the figures")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Maps, places and prints."""
    from rich.progress import track

    from sw_driver.fpga.placement import find_nextpnr
    from sw_driver.fpga.synthesis import find_yosys
    from sw_driver.runtime.files import write_whole
    from sw_driver.simulator.processes import kill_started
    from sw_driver.simulator.runtime import BuildError

    seeds = arguments.seeds if arguments.place else 0
    placing = {"seeds": seeds}
    if arguments.mhz:
        placing["asked_mhz"] = arguments.mhz
    jobs = [*(_explored(arguments.names) if arguments.explore else _designs(arguments))]
    folder = output_folder(arguments.out, "cost") if arguments.out else None
    rows: list[Row] = []
    try:
        find_yosys()
        if seeds:
            find_nextpnr()
        for job in track(jobs, description="measuring", console=progress_console(arguments)):
            with kill_started():
                rows.append(_measure(job, placing))
    except BuildError as error:
        raise Failure(str(error)) from error
    written: list[Path] = []
    if folder:
        written.append(folder / "cost.json")
        write_whole(written[-1], json.dumps(rows, indent=2) + "\n")
        if arguments.explore and seeds:
            written.append(folder / "depths.svg")
            _draw(written[-1], rows)
    if arguments.json:
        print(json.dumps({"rows": rows, "files": [str(file) for file in written]}, indent=2))
    elif not arguments.quiet:
        print_table(_table(rows, explored=arguments.explore))
        if written:
            print_files(arguments, written)
    return 0


def _explored(names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    from hw.float.format import FP32
    from sw_driver.fpga.cost import OPERATORS

    for name in names or OPERATORS:
        if name not in OPERATORS:
            raise Refusal(f"no operation {name!r} with depths; known: {', '.join(OPERATORS)}")
        for stages in OPERATORS[name].depths(FP32):
            yield name, stages


def _designs(arguments: argparse.Namespace) -> Iterator[tuple[Any, ...]]:
    from hw.axdimm.config import configure
    from hw.pim.config import configure as configure_pim
    from hw.verilog.generate import DESIGNS, Machines

    try:
        machines = Machines(module=configure(**settings_of(arguments)), pim=configure_pim("paper"))
    except ValueError as error:
        raise Refusal(str(error)) from error
    names = arguments.names or _DEFAULT
    for name in names:
        if name not in DESIGNS:
            raise Refusal(f"no design {name!r}; known: {', '.join(DESIGNS)}")
    machines = machines._replace(depths=depths_of(arguments, names))
    for name in names:
        yield name, machines


def _measure(job: tuple[str, int | Machines], placing: Mapping[str, int]) -> Row:
    from hw.verilog.generate import generate
    from hw.verilog.writer import Port
    from sw_driver.fpga.cost import cost, operator_cost

    name, what = job
    if isinstance(what, int):
        return operator_cost(name, what, **placing)
    text, description = generate(name, what)
    ports = [Port(**port) for port in description["ports"]]
    return cost(name, text, ports, latency=description["latency"], **placing)


def _draw(path: Path, rows: Sequence[Row]) -> None:
    import io

    from sw_driver.fpga.cost import draw_depths
    from sw_driver.runtime.files import write_whole

    buffer = io.StringIO()
    draw_depths(rows).savefig(buffer, format="svg", metadata={"Date": None})
    write_whole(path, buffer.getvalue())


def _table(rows: Sequence[Mapping[str, Any]], *, explored: bool) -> Table:
    from rich import box
    from rich.table import Table

    from sw_driver.fpga.cost import PAPER_UNIT, PART, PART_RESOURCES
    from sw_driver.fpga.placement import DEVICE, ECP5_RESOURCES
    from sw_driver.fpga.synthesis import RESOURCES

    placed = next((row["placed"] for row in rows if row["placed"]), [])
    used = list(ECP5_RESOURCES.values()) if placed else []
    table = Table(
        title="On UltraScale+ (Yosys; mapped, not placed)"
        + (f", and on {DEVICE} (nextpnr; placed and routed)" if placed else ""),
        box=box.SIMPLE_HEAD,
    )
    table.add_column("design")
    columns = ["cycles", *(name.replace("_", " ") for name in RESOURCES), "levels"]
    columns += [f"ECP5 {name.replace('_', ' ')}" for name in used]
    columns += [f"MHz, {len(placed)} seeds"] if placed else []
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        cells = [_number(row["latency"]), *(_number(row[name]) for name in RESOURCES)]
        cells.append(str(row["levels"]))
        if placed:
            clocks = sorted(each["clock_mhz"] for each in row["placed"])
            cells += [_number(row["placed"][0]["used"][name]) for name in used]
            cells.append(" ".join(f"{mhz:.0f}" for mhz in clocks))
        default = " (default)" if row.get("default") else ""
        table.add_row(f"{row['name']}{default}", *cells)
    if not explored:
        table.add_section()
        for name, known in (("the paper's unit", PAPER_UNIT), (f"{PART} has", PART_RESOURCES)):
            cells = [known.get(column) for column in ("latency", *RESOURCES)]
            available = placed[0]["available"] if placed and known is PART_RESOURCES else {}
            table.add_row(
                name,
                *(_number(cell) for cell in cells),
                "",
                *(_number(available.get(each)) for each in used),
            )
    return table


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
