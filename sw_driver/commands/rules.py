"""``nearmem rules``: the update rules there are, and what the module makes of each."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from . import (
    FLAT,
    Failure,
    MachineOptions,
    OutputOptions,
    Refusal,
    integer,
    progress_console,
    rule_mistake,
    turning,
)
from .screen import print_table

if TYPE_CHECKING:
    from hw.axdimm.config import ModuleConfig
    from hw.rules.update_rule import UpdateRule
    from sw_driver.experiments.sweep.grid import Point

__all__ = ["Options", "run"]

_FIGURES = ("bytes_per_parameter", "ceiling_mparams_per_s", "mparams_per_s", "efficiency")


@dataclass(frozen=True, kw_only=True)
class Options(MachineOptions, OutputOptions):
    """Options of the command."""

    count: Annotated[int, integer(1)] = 4194304
    """parameters of each channel"""
    resources: bool = False
    """also synthesize the functional unit of each rule and the kernel of the configuration with
    Yosys (UltraScale+), up to some minutes each"""


def run(*names: str, options: Annotated[Options, FLAT] = Options()) -> int:
    """List the update rules, with traffic and predicted throughput.

    Lists the update rules: tensors, hyper-parameters, bytes a parameter, latency of the functional
    unit in fabric cycles, the ceiling that the DRAM of the configuration sets, and the throughput
    that the cycle model predicts, tensors placed by the driver. With names, those only, and their
    constants.

    Parameters
    ----------
    names
        rules to show (default: all that a kernel of the configuration can have)
    """
    from rich.progress import track

    from hw.axdimm.config import configure
    from hw.kernel.config import NARROW_RULES
    from hw.rules import MISTAKES, RULES, rule
    from sw_driver.experiments.settings import check_rule
    from sw_driver.fpga.synthesis import find_yosys, kernel_resources
    from sw_driver.simulator.runtime import BuildError

    settings = options.settings()
    console = progress_console(options)
    rows: list[dict[str, Any]] = []
    kernel = None
    for name in names:
        check_rule("the rule", name)
    with turning(BuildError, into=Failure), turning(ValueError, into=Refusal):
        config = configure(**settings)
        known = NARROW_RULES if config.narrow else RULES
        if options.resources:
            find_yosys()
        points = {name: _point(name, settings, options.count) for name in names or known}
        for name in track(points, description="measuring", console=console):
            row = _row(rule(name), points[name])
            if options.resources:
                row["resources"] = _unit_resources(rule(name), config)
            rows.append(row)
        if options.resources:
            with console.status("synthesizing the kernel"):
                kernel = kernel_resources(config.kernel)
    if options.json:
        document = {"count": options.count, "configuration": config.describe(), "rules": rows}
        print(json.dumps(document | ({"kernel_resources": kernel} if kernel else {}), indent=2))
    elif not options.quiet:
        _print(rows, config, options.count, kernel, constants=bool(names))
    for error in MISTAKES.values():
        print(f"nearmem: left out: {rule_mistake(error)}", file=sys.stderr)
    return 0


def _point(name: str, settings: Mapping[str, Any], count: int) -> Point:
    from sw_driver.experiments.sweep.grid import Point

    values = {"preset": "axdimm", **settings, "rules": name, "count": count, "stagger": True}
    point = Point(backend="cycles", settings=values, arithmetic=False)
    point.config()  # refuses what is impossible
    return point


def _row(rule: UpdateRule, point: Point) -> dict[str, Any]:
    from sw_driver.experiments.sweep.measure import measure_point

    figures = measure_point(point)
    if figures["error"]:
        raise Failure(f"{rule.name}: {figures['error']}")
    return {
        "name": rule.name,
        "title": rule.title,
        "tensors": dict(rule.tensors),
        "inputs": rule.inputs,
        "outputs": rule.outputs,
        "sums": rule.sums,
        "hyperparameters": rule.hyperparameters,
        "constants": dict(rule.constants),
        "latency_fabric_cycles": rule.latency,
        **{name: figures[name] for name in _FIGURES},
    }


def _unit_resources(rule: UpdateRule, config: ModuleConfig) -> dict[str, int]:
    from hw.kernel.unit import RuleUnit
    from hw.verilog.writer import to_verilog
    from sw_driver.fpga.synthesis import design_resources

    unit = RuleUnit(rule, format=config.kernel.format)
    return design_resources(to_verilog(unit, unit.module_name), top=unit.module_name)


def _print(
    rows: Sequence[Mapping[str, Any]],
    config: ModuleConfig,
    count: int,
    kernel: Mapping[str, int] | None,
    *,
    constants: bool,
) -> None:
    from rich import box
    from rich.table import Table

    from sw_driver.fpga.synthesis import RESOURCES

    counted = [name for name in RESOURCES if kernel]
    table = Table(
        title=f"Update rules on {config.channels} channels with {config.lanes} lanes and "
        f"{config.buffer_blocks} blocks a buffer (cycle model)",
        caption=f"{count:,} parameters a channel; bytes are of a parameter, the latency is in "
        f"fabric cycles{', the last columns are of a functional unit' if counted else ''}",
        box=box.SIMPLE_HEAD,
    )
    for heading in ("rule", "is", "loads", "stores", "hyper-parameters"):
        table.add_column(heading)
    for heading in ("bytes", "latency", "ceiling MP/s", "MP/s", "share", *counted):
        table.add_column(heading.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(
            row["name"],
            row["title"],
            " ".join(row["inputs"]),
            " ".join([*row["outputs"], *(f"sum:{name}" for name in row["sums"])]),
            " ".join(row["hyperparameters"]),
            f"{row['bytes_per_parameter']:g}",
            str(row["latency_fabric_cycles"]),
            f"{row['ceiling_mparams_per_s']:.2f}",
            f"{row['mparams_per_s']:.2f}",
            f"{row['efficiency']:.2%}",
            *(f"{row['resources'][name]:,}" for name in counted),
        )
    print_table(table)
    if kernel:
        taken = ", ".join(f"{value:,} {name}" for name, value in kernel.items())
        print(f"kernel of {', '.join(config.rules)}: {taken.replace('_', ' ')}")
    for row in rows if constants else ():
        print(f"\n{row['name']}: {row['title']}")
        for name, what in row["tensors"].items():
            print(f"  {name}: {what}")
        for name, expression in row["constants"].items():
            print(f"  {name} = {expression}")
