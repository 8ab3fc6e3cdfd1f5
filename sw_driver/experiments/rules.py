"""Report of the update rules: tensors, constants, traffic, predicted throughput."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hw.axdimm.config import ModuleConfig, configure
from hw.kernel.config import NARROW_RULES
from hw.kernel.unit import RuleUnit
from hw.rules import MISTAKES, RULES, rule
from hw.rules.update_rule import UpdateRule
from hw.verilog.writer import to_verilog
from sw_driver.experiments.settings import Value, check_rule, rule_mistake
from sw_driver.experiments.sweep.grid import Point
from sw_driver.experiments.sweep.measure import measure_point
from sw_driver.fpga.synthesis import RESOURCES, design_resources, find_yosys, kernel_resources
from sw_driver.report import Report, Table, Watch, share
from sw_driver.report import count as number

__all__ = ["report"]

Row = Mapping[str, Any]

_FIGURES = ("bytes_per_parameter", "ceiling_mparams_per_s", "mparams_per_s", "efficiency")


def report(
    names: Sequence[str],
    settings: Mapping[str, Value],
    *,
    count: int,
    resources: bool = False,
    watch: Watch = Watch(),
) -> Report:
    """Report update rules with traffic and predicted throughput at ``count`` parameters.

    Rules in ``names`` come with their constants. Without names the report has all rules that a
    kernel of the module with these ``settings`` can have. ``resources`` also synthesizes units and
    kernel. Raise ``ValueError`` for an unknown rule or an impossible module, and ``RuntimeError``
    if a rule cannot be measured.
    """
    for name in names:
        check_rule("the rule", name)
    config = configure(**settings)  # type: ignore[arg-type]
    known = NARROW_RULES if config.narrow else RULES
    if resources:
        find_yosys()
    points = {name: _point(name, settings, count) for name in names or known}
    rows: list[dict[str, Any]] = []
    for name in watch.track(points, "measuring"):
        rows.append(_row(rule(name), points[name]))
        if resources:
            unit = RuleUnit(rule(name), format=config.kernel.format)
            text = to_verilog(unit, unit.module_name)
            rows[-1]["resources"] = design_resources(text, top=unit.module_name)
    results: dict[str, Any] = {"rules": rows}
    notes = []
    if resources:
        watch.say("synthesizing the kernel")
        results["kernel_resources"] = kernel = kernel_resources(config.kernel)
        taken = ", ".join(f"{value:,} {name}" for name, value in kernel.items())
        notes.append(f"kernel of {', '.join(config.rules)}: {taken.replace('_', ' ')}")
    for row in rows if names else ():
        notes += ["", f"{row['name']}: {row['title']}"]
        notes += [f"  {name}: {meaning}" for name, meaning in row["tensors"].items()]
        notes += [f"  {name} = {expression}" for name, expression in row["constants"].items()]
    return Report(
        results=results,
        parts=[_table(rows, config, count, resources=resources)],
        notes=notes,
        machine=config.describe(),
        workload={"count": count},
        complaints=[f"left out: {rule_mistake(error)}" for error in MISTAKES.values()],
    )


def _point(name: str, settings: Mapping[str, Value], count: int) -> Point:
    values = {"preset": "axdimm", **settings, "rules": name, "count": count, "stagger": True}
    point = Point(backend="cycles", settings=values, arithmetic=False)
    point.config()  # raises an error if the point is impossible
    return point


def _row(rule: UpdateRule, point: Point) -> dict[str, Any]:
    figures = measure_point(point)
    if figures["error"]:
        raise RuntimeError(f"{rule.name}: {figures['error']}")
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


def _table(rows: Sequence[Row], config: ModuleConfig, count: int, *, resources: bool) -> Table:
    columns: dict[str, Callable[[Row], str]] = {
        "rule": lambda row: row["name"],
        "loads": lambda row: " ".join(row["inputs"]),
        "stores": lambda row: " ".join([*row["outputs"], *(f"sum {n}" for n in row["sums"])]),
        "hyper parameters": lambda row: " ".join(row["hyperparameters"]),
        "bytes": lambda row: f"{row['bytes_per_parameter']:g}",
        "latency": lambda row: str(row["latency_fabric_cycles"]),
        "ceiling MP/s": lambda row: f"{row['ceiling_mparams_per_s']:.2f}",
        "MP/s": lambda row: f"{row['mparams_per_s']:.2f}",
        "share": lambda row: share(row["efficiency"], 2),
    }
    for name in RESOURCES if resources else ():
        columns[name.replace("_", " ")] = lambda row, name=name: number(row["resources"][name])
    return Table.of(
        f"Update rules on {config.channels} channels with {config.lanes} lanes and "
        f"{config.buffer_blocks} blocks a buffer (cycle model)",
        rows,
        columns,
        words=range(4),
        caption=f"{count:,} parameters a channel; bytes per parameter; latency in fabric cycles; "
        f"share of the ceiling{'; the last columns: one functional unit' if resources else ''}",
    )
