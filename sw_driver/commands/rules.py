"""``nearmem rules``: the update rules there are, and what the module makes of each."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import (
    Failure,
    Refusal,
    add_configuration_options,
    add_output_options,
    integer,
    print_table,
    progress_console,
    settings_of,
)

if TYPE_CHECKING:
    from hw.axdimm.config import ModuleConfig
    from hw.rules.update_rule import UpdateRule
    from sw_driver.experiments.sweep.grid import Point

__all__ = ["add_parser", "run"]

_FIGURES = ("bytes_per_parameter", "ceiling_mparams_per_s", "mparams_per_s", "efficiency")


def add_parser(subparsers: Any) -> None:
    """Describes the options."""
    parser = subparsers.add_parser(
        "rules",
        help="list the update rules, with traffic and predicted throughput",
        description="Lists the update rules: tensors, hyper-parameters, bytes a parameter, latency "
        "of the functional unit in fabric cycles, the ceiling that the DRAM of the configuration "
        "sets, and the throughput that the cycle model predicts, tensors placed by the driver. "
        "With names, those only, and their constants.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="rules to show (default: all)")
    add_configuration_options(parser)
    parser.add_argument(
        "--count",
        type=integer(1),
        default=4194304,
        metavar="N",
        help="parameters of each channel",
    )
    parser.add_argument(
        "--resources",
        action="store_true",
        help="also synthesize the functional unit of each rule and the kernel of the configuration "
        "with Yosys (UltraScale+), up to some minutes each",
    )
    add_output_options(parser, "the table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Predicts and prints."""
    from rich.progress import track

    from hw.axdimm.config import configure
    from hw.rules import RULES, rule
    from sw_driver.experiments.settings import KEYS, SweepError
    from sw_driver.fpga.synthesis import find_yosys, kernel_resources
    from sw_driver.simulator.runtime import BuildError

    settings = settings_of(arguments)
    console = progress_console(arguments)
    names = list(RULES)
    rows: list[dict[str, Any]] = []
    try:
        if arguments.names:
            names = str(KEYS["rules"].parse(",".join(arguments.names))).split(",")
        config = configure(**settings)
        if arguments.resources:
            find_yosys()
        points = {name: _point(name, settings, arguments.count) for name in names}
        for name in track(points, description="measuring", console=console):
            row = _row(rule(name), points[name])
            if arguments.resources:
                row["resources"] = _unit_resources(rule(name), config)
            rows.append(row)
        kernel = None
        if arguments.resources:
            with console.status("synthesizing the kernel"):
                kernel = kernel_resources(config.kernel)
    except BuildError as error:
        raise Failure(str(error)) from error
    except (SweepError, ValueError) as error:
        raise Refusal(str(error)) from error
    if arguments.json:
        document = {"count": arguments.count, "configuration": config.describe(), "rules": rows}
        print(json.dumps(document | ({"kernel_resources": kernel} if kernel else {}), indent=2))
    elif not arguments.quiet:
        _print(rows, config, arguments.count, kernel, constants=bool(arguments.names))
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
            str(row["bytes_per_parameter"]),
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
