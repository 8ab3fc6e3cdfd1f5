"""``nearmem verilog``: designs as Verilog, with a description of their ports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from hw.logic.clocking import CLOCK_GATE_CELLS, CLOCKINGS

from . import (
    FLAT,
    DepthOptions,
    Failure,
    MachineOptions,
    OutputFolder,
    Refusal,
    integer,
    output_folder,
    refuse_both,
    turning,
)
from .screen import Screen, show

if TYPE_CHECKING:
    from hw.verilog.generate import Machines

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(DepthOptions, MachineOptions):
    """Options of the command."""

    pim: Annotated[str, Parameter(metavar="PRESET")] = "paper"
    """preset of the PIM"""
    cores: Annotated[int | None, integer(0, 4)] = None
    """programmable cores of the PIM (default: none)"""
    core_clock_ratio: Annotated[int | None, integer(1, 4)] = None
    """clock of the cores as a multiple of the PIM's clock (default: 1)"""
    node: Annotated[str, Parameter(metavar="PRESET")] = "paper"
    """preset of the memory-node"""
    lanes: Annotated[int | None, integer(1)] = None
    """functional units of a channel"""
    block_bytes: Annotated[int | None, integer(1)] = None
    """bytes of a block"""
    clocking: Annotated[str | None, Parameter(choices=CLOCKINGS)] = None
    """clocking of functional units, in the module (as --set clocking=...) and the PIM (default:
    gated)"""
    cell: Annotated[str | None, Parameter(choices=CLOCK_GATE_CELLS)] = None
    """cell of clock gates: bufgce (UltraScale+), dcca (ECP5), or model, a latch and an AND gate for
    simulation (default: bufgce)"""
    name: Annotated[str | None, Parameter(metavar="NAME")] = None
    """name for the top module of one design, and prefix of its other modules, files and names
    (default: the design's name, plus settings that differ from the default)"""
    out: OutputFolder = None
    """folder for the files (default: build/verilog)"""
    package: OutputFolder = None
    """write one design to a new or empty folder, with all that a board needs: FuseSoC, IP-XACT,
    constraints, register map, self test, example tops"""
    src: bool = False
    """add the Python source line of each wire, register and instance as an attribute"""
    resources: bool = False
    """also synthesize each design with Yosys (UltraScale+), print the counts and write them to
    NAME.json; some minutes for a large design"""


def run(*designs: str, options: Annotated[Options, FLAT] = Options()) -> int:
    """Write the hardware designs as Verilog, to read or to use in a project.

    Writes NAME.v, with every module that the design NAME needs, and NAME.json with ports (widths,
    directions), latency and configuration. With --package it writes a folder for FPGA tools.
    Designs of different names can share a project.

    Example: nearmem verilog adam_unit

    Parameters
    ----------
    designs
        designs to write (default: all)
    """
    from hw.verilog.generate import DESIGNS, check_module_name
    from sw_driver.fpga.designs import report
    from sw_driver.numbers import check_name

    names = designs or tuple(DESIGNS)
    for name in names:
        check_name("the design", name, DESIGNS)
    if options.name is not None:
        if len(names) != 1:
            raise Refusal(f"--name is for one design, got {', '.join(designs) or 'none'}")
        with turning(ValueError, into=Refusal):
            check_module_name(options.name)
    machines = _machines(options, names)
    if "fp32_div_sqrt" in designs and machines.module.subnormals == "flushed":
        raise Refusal(
            "subnormals is 'flushed', but fp32_div_sqrt belongs to the PIM, which keeps "
            "subnormals: leave one of the two out"
        )
    if options.package is not None:
        if options.out or options.resources:
            raise Refusal("--package excludes --out and --resources: leave these out")
        if len(designs) != 1:
            given = ", ".join(designs) or "none"
            raise Refusal(f"--package takes the name of one design, got {given}")
    folder = options.package or output_folder(options.out, "verilog")
    try:
        with Screen(options) as watch:
            made = report(
                names,
                machines,
                folder,
                own_name=options.name,
                src=options.src,
                resources=options.resources,
                is_package=options.package is not None,
                watch=watch,
            )
    except (FileExistsError, ImportError, ValueError) as error:
        if options.package is None:
            raise
        if isinstance(error, ImportError):
            raise Failure("peakrdl-cheader is needed: pip install -e '.[dev]'") from error
        raise Refusal(f"--package: {error}") from error
    return show(made, options)


def _machines(options: Options, names: Sequence[str]) -> Machines:
    """Return the configurations of module, PIM and memory-node for the designs ``names``."""
    from hw.memory_node.config import MEMORY_NODE_PRESETS
    from hw.pim.config import configure
    from hw.verilog.generate import Machines
    from sw_driver.numbers import check_name

    own = {name: getattr(options, name) for name in ("lanes", "block_bytes", "clocking")}
    own = {name: value for name, value in own.items() if value is not None}
    refuse_both(options.set, {name: f"--{name.replace('_', '-')}" for name in own})
    check_name("--node", options.node, MEMORY_NODE_PRESETS)
    pim: dict[str, Any] = {"clocking": own["clocking"]} if "clocking" in own else {}
    if options.cores and not any(name.startswith("pim_") for name in names):
        raise Refusal(
            f"--cores is {options.cores}, but {', '.join(names)} has none: add pim_bank or "
            "pim_pool, or leave --cores out"
        )
    if options.cores:
        pim |= {"cores": options.cores, "rings": options.cores + 1}
    if options.core_clock_ratio:
        if not options.cores:
            raise Refusal("--core-clock-ratio is for cores: add --cores N")
        pim["core_clock_ratio"] = options.core_clock_ratio
    with turning(ValueError, into=Refusal):
        machines = Machines(
            module=options.module(**own),
            pim=configure(options.pim, **pim),
            node=MEMORY_NODE_PRESETS[options.node],
        )
    if options.cell is not None:
        if "gated" not in (machines.module.clocking, machines.pim.clocking):
            raise Refusal(
                f"--cell is {options.cell!r}, but with the clocking "
                f"{machines.module.clocking!r} there are no clock gates: give one of the two"
            )
        machines = machines._replace(clock_gate_cell=options.cell)
    return machines._replace(depths=options.depths(names))
