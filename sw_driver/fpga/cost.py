"""FPGA cost of designs (area, logic levels, clock), and of operators by pipeline depth."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hw.float.add import FloatAdd
from hw.float.div import FloatDiv
from hw.float.format import FP32
from hw.float.mul import FloatMul
from hw.float.operator import FloatOperator
from hw.float.sqrt import FloatSqrt
from hw.verilog.generate import DESIGNS, Machines, generate
from hw.verilog.writer import Port, ports_of, to_verilog
from sw_driver.files import write_picture, write_whole
from sw_driver.fpga.placement import DEFAULT_MHZ, DEVICE, ECP5_RESOURCES, find_nextpnr, place
from sw_driver.fpga.synthesis import RESOURCES, design_cost, find_yosys
from sw_driver.numbers import check_name
from sw_driver.report import Report, Table, Watch, count
from sw_driver.simulator.processes import kill_started

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "OPERATORS",
    "PAPER_UNIT",
    "PART",
    "PART_RESOURCES",
    "Row",
    "cost",
    "draw_depths",
    "operator_cost",
    "report",
]

Row = dict[str, Any]
"""Cost of a design.

It has ``name``, ``latency`` (clock cycles or None), each of
:data:`~sw_driver.fpga.synthesis.RESOURCES`, ``levels``, ``path`` and ``placed``. The last has a
dictionary for each seed with ``seed``, ``clock_mhz``, ``used``, ``available`` and ``path``.
"""

PART = "xczu19eg"
"""UltraScale+ part for comparisons."""

PART_RESOURCES = {"luts": 522_720, "flip_flops": 1_045_440, "dsp48e2": 1_968, "bram18": 2 * 984}
"""Resources of :data:`PART` (AMD DS891)."""

PAPER_UNIT = {"latency": 128, "dsp48e2": 31}
"""A functional unit in the AXDIMM paper (section 3.3), which states no more about it."""

OPERATORS: dict[str, type[FloatOperator]] = {
    kind.operation: kind for kind in (FloatAdd, FloatMul, FloatDiv, FloatSqrt)
}
"""Operators with a configurable depth, by name."""

_DEFAULT = ("fp32_add", "fp32_mul", "fp32_div", "fp32_sqrt", "adam_unit")


def report(
    names: Sequence[str],
    machines: Machines,
    *,
    seeds: int = 0,
    asked_mhz: int | None = None,
    explore: bool = False,
    folder: Path | None = None,
    watch: Watch = Watch(),
) -> Report:
    """Return the :func:`cost` of designs, made for ``machines``.

    With ``explore`` the ``names`` are those of operations, and each is made in every depth. A
    ``folder`` gets ``cost.json`` and, for operations that are explored and placed, ``depths.svg``.
    """
    known, kind = (OPERATORS, "operation") if explore else (DESIGNS, "design")
    names = names or ([*OPERATORS] if explore else _DEFAULT)
    for name in names:
        check_name(f"the {kind}", name, known)
    placing = {"seeds": seeds, "asked_mhz": asked_mhz or DEFAULT_MHZ}
    find_yosys()
    if seeds:
        find_nextpnr()
    depths = {name: OPERATORS[name].depths(FP32) if explore else [0] for name in names}
    jobs = [(name, stages) for name in names for stages in depths[name]]
    rows: list[Row] = []
    for name, stages in watch.track(jobs, "measuring"):
        with kill_started():
            if explore:
                rows.append(operator_cost(name, stages, **placing))
                continue
            text, about = generate(name, machines, name=name)
            ports = [Port(**port) for port in about["ports"]]
            rows.append(cost(name, text, ports, latency=about["latency"], **placing))
    files: list[Path] = []
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        files.append(folder / "cost.json")
        write_whole(files[-1], json.dumps(rows, indent=2) + "\n")
        if explore and seeds:
            files.append(folder / "depths.svg")
            write_picture(files[-1], draw_depths(rows))
    return Report(
        results=rows,
        parts=[_table(rows, explored=explore)],
        machine={} if explore else machines.module.describe(),
        workload={"names": list(names), "explore": explore, **placing},
        files=files,
    )


def _table(rows: Sequence[Row], *, explored: bool) -> Table:
    placed = next((row["placed"] for row in rows if row["placed"]), [])
    used = list(ECP5_RESOURCES.values()) if placed else []
    headings = ["design", "cycles", *RESOURCES, "levels", *(f"ECP5 {name}" for name in used)]
    headings += [f"MHz, {len(placed)} seeds"] if placed else []
    shown = []
    for row in rows:
        default = " (default)" if row.get("default") else ""
        shown.append([f"{row['name']}{default}", count(row["latency"])])
        shown[-1] += [*(count(row[name]) for name in RESOURCES), str(row["levels"])]
        if placed:
            clocks = sorted(placement["clock_mhz"] for placement in row["placed"])
            shown[-1] += [count(row["placed"][0]["used"][name]) for name in used]
            shown[-1].append(" ".join(f"{mhz:.0f}" for mhz in clocks))
    if not explored:
        shown.append([])
        for name, known in (("the paper's unit", PAPER_UNIT), (f"{PART} has", PART_RESOURCES)):
            cells = [count(known.get(column)) for column in ("latency", *RESOURCES)]
            available = placed[0]["available"] if placed and known is PART_RESOURCES else {}
            cells += ["", *(count(available.get(resource)) for resource in used)]
            shown.append([name, *cells, *[""] * bool(placed)])
    return Table(
        title="On UltraScale+ (Yosys; mapped, not placed)"
        + (f", and on {DEVICE} (nextpnr; placed and routed)" if placed else ""),
        headings=[heading.replace("_", " ") for heading in headings],
        rows=shown,
    )


def cost(
    name: str,
    text: str,
    ports: Sequence[Port],
    *,
    latency: int | None,
    seeds: int = 0,
    asked_mhz: int = DEFAULT_MHZ,
) -> Row:
    """Return the cost of the module ``name`` of ``text``, mapped for UltraScale+.

    It is also placed and routed on an ECP5 for ``asked_mhz``, once for each of ``seeds`` seeds.

    Raises :class:`~sw_driver.simulator.runtime.BuildError`.
    """
    resources, path = design_cost(text, top=name)
    placed = [
        place(text, ports, top=name, seed=seed + 1, asked_mhz=asked_mhz) for seed in range(seeds)
    ]
    return {
        "name": name,
        "latency": latency,
        **resources,
        "levels": path.levels,
        "path": list(path.cells),
        "placed": [asdict(placement) for placement in placed],
    }


def operator_cost(operation: str, stages: int, **placing: int) -> Row:
    """Return the :func:`cost` of an FP32 operator with ``stages`` stages.

    It also has ``operation`` and ``default``, True for the default depth. ``placing`` are options
    of :func:`cost`.
    """
    kind = OPERATORS[operation]
    operator = kind(stages=stages)
    name = operator.module_name
    row = cost(name, to_verilog(operator, name), ports_of(operator), latency=stages, **placing)
    return {**row, "operation": operation, "default": stages == kind.default_depth(FP32)}


def draw_depths(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw clock against area, with a line for each operator and a mark for each depth.

    Default depths are filled. The clock is that of the slowest seed on the ECP5.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for number, operation in enumerate(OPERATORS):
        points = [
            (row["placed"][0]["used"]["lut4"], _slowest_mhz(row), row)
            for row in rows
            if row["operation"] == operation and row["placed"]
        ]
        if not points:
            continue
        color = f"C{number}"
        points.sort(key=lambda point: point[2]["latency"])
        axes.plot(
            [area for area, _, _ in points],
            [mhz for _, mhz, _ in points],
            color=color,
            label=operation,
            marker="o",
            markerfacecolor="none",
        )
        for area, mhz, row in points:
            if row["default"]:
                axes.plot(area, mhz, color=color, marker="o")
            axes.annotate(
                str(row["latency"]), (area, mhz), textcoords="offset points", xytext=(5, 4)
            )
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("LUT4 of an ECP5")
    axes.set_ylabel("clock (MHz), slowest of the seeds")
    axes.set_title("Operators by number of stages; filled marks: default", fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _slowest_mhz(row: Mapping[str, Any]) -> float:
    return min(placement["clock_mhz"] for placement in row["placed"])
