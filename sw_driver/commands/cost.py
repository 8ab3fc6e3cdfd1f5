"""``nearmem cost``: what designs take on an FPGA, and how fast they are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from . import (
    FLAT,
    DepthOptions,
    Failure,
    MachineOptions,
    OutputFolder,
    OutputOptions,
    Refusal,
    integer,
    output_folder,
    print_files,
    progress_console,
    turning,
)
from .screen import print_table

if TYPE_CHECKING:
    from rich.table import Table

    from hw.verilog.generate import Machines
    from sw_driver.fpga.cost import Row

__all__ = ["Options", "run"]

_DEFAULT = ("fp32_add", "fp32_mul", "fp32_div", "fp32_sqrt", "adam_unit")


@dataclass(frozen=True, kw_only=True)
class Options(DepthOptions, MachineOptions, OutputOptions):
    """Options of the command."""

    place: bool = False
    """also place and route"""
    seeds: Annotated[int, integer(1, 100)] = 3
    """times that each is placed and routed, each from another random start"""
    mhz: Annotated[int | None, integer(1, 1000, metavar="F")] = None
    """clock that placing and routing aim at (default: 200)"""
    explore: bool = False
    """instead of designs, every depth of the operators add, mul, div and sqrt"""
    out: OutputFolder = None
    """folder for cost.json with every figure and path, and with --explore --place a plot of clock
    against area (default: no files)"""


def run(*names: str, options: Annotated[Options, FLAT] = Options()) -> int:
    """Count what designs take on an FPGA, and place and route them.

    Maps designs for UltraScale+ with Yosys: lookup tables, flip-flops, DSP blocks, block RAMs
    (18 Kbit) and the levels of logic of the longest path, beside the paper's unit and a part's
    capacity. With --place it also places and routes them on an ECP5 (LFE5U-85F, speed grade 8) with
    nextpnr: an operator takes half a minute, the Adam unit some minutes. What was found is kept.

    Parameters
    ----------
    names
        designs, as of 'nearmem verilog' (default: fp32_add fp32_mul fp32_div fp32_sqrt adam_unit);
        with --explore operations (default: all)
    """
    from rich.progress import track

    from sw_driver.files import write_picture, write_whole
    from sw_driver.fpga.cost import draw_depths
    from sw_driver.fpga.placement import find_nextpnr
    from sw_driver.fpga.synthesis import find_yosys
    from sw_driver.simulator.processes import kill_started
    from sw_driver.simulator.runtime import BuildError

    seeds = options.seeds if options.place else 0
    placing = {"seeds": seeds}
    if options.mhz:
        placing["asked_mhz"] = options.mhz
    jobs = [*(_explored(names) if options.explore else _designs(names or _DEFAULT, options))]
    folder = output_folder(options.out, "cost") if options.out else None
    rows: list[Row] = []
    with turning(BuildError, into=Failure):
        find_yosys()
        if seeds:
            find_nextpnr()
        for job in track(jobs, description="measuring", console=progress_console(options)):
            with kill_started():
                rows.append(_measure(job, placing))
    written: list[Path] = []
    if folder:
        written.append(folder / "cost.json")
        write_whole(written[-1], json.dumps(rows, indent=2) + "\n")
        if options.explore and seeds:
            written.append(folder / "depths.svg")
            write_picture(written[-1], draw_depths(rows))
    if options.json:
        print(json.dumps({"rows": rows, "files": [str(file) for file in written]}, indent=2))
    elif not options.quiet:
        print_table(_table(rows, explored=options.explore))
        if written:
            print_files(options, written)
    return 0


def _explored(names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    from hw.float.format import FP32
    from sw_driver.fpga.cost import OPERATORS
    from sw_driver.numbers import check_name

    for name in names or OPERATORS:
        check_name("the operation", name, OPERATORS)
        for stages in OPERATORS[name].depths(FP32):
            yield name, stages


def _designs(names: Sequence[str], options: Options) -> Iterator[tuple[Any, ...]]:
    from hw.axdimm.config import configure
    from hw.pim.config import configure as configure_pim
    from hw.verilog.generate import DESIGNS, Machines
    from sw_driver.numbers import check_name

    with turning(ValueError, into=Refusal):
        machines = Machines(module=configure(**options.settings()), pim=configure_pim("paper"))
    for name in names:
        check_name("the design", name, DESIGNS)
    machines = machines._replace(depths=options.depths(names))
    for name in names:
        yield name, machines


def _measure(job: tuple[str, int | Machines], placing: Mapping[str, int]) -> Row:
    from hw.verilog.generate import generate
    from hw.verilog.writer import Port
    from sw_driver.fpga.cost import cost, operator_cost

    name, what = job
    if isinstance(what, int):
        return operator_cost(name, what, **placing)
    text, description = generate(name, what, name=name)
    ports = [Port(**port) for port in description["ports"]]
    return cost(name, text, ports, latency=description["latency"], **placing)


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
