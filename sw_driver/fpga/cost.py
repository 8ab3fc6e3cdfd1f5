"""What designs cost on an FPGA: area, levels of logic, clock; and operators by their depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hw.float.add import FloatAdd
from hw.float.div import FloatDiv
from hw.float.format import FP32
from hw.float.mul import FloatMul
from hw.float.operator import FloatOperator
from hw.float.sqrt import FloatSqrt
from hw.verilog.writer import Port, ports_of, to_verilog
from sw_driver.fpga.placement import DEFAULT_MHZ, place
from sw_driver.fpga.synthesis import design_cost

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
]

Row = dict[str, Any]
"""What a design costs: ``name``, ``latency`` (clock cycles or None), each of
:data:`~sw_driver.fpga.synthesis.RESOURCES`, ``levels`` and ``path``, and ``placed``: a dictionary
for each seed with ``seed``, ``clock_mhz``, ``used``, ``available`` and ``path``."""

PART = "xczu19eg"
"""The UltraScale+ part that designs are compared with."""

PART_RESOURCES = {"luts": 522_720, "flip_flops": 1_045_440, "dsp48e2": 1_968, "bram18": 2 * 984}
"""Resources of :data:`PART` (AMD DS891)."""

PAPER_UNIT = {"latency": 128, "dsp48e2": 31}
"""A functional unit of the AXDIMM paper (section 3.3), which says no more of it."""

OPERATORS: dict[str, type[FloatOperator]] = {
    kind.operation: kind for kind in (FloatAdd, FloatMul, FloatDiv, FloatSqrt)
}
"""The operators that have several depths."""


def cost(
    name: str,
    text: str,
    ports: Sequence[Port],
    *,
    latency: int | None,
    seeds: int = 0,
    asked_mhz: int = DEFAULT_MHZ,
) -> Row:
    """What the module ``name`` of ``text`` costs: mapped for UltraScale+ and, with ``seeds``,
    placed and routed so many times on an ECP5, for a clock of ``asked_mhz``.

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
        "placed": [asdict(each) for each in placed],
    }


def operator_cost(operation: str, stages: int, **placing: int) -> Row:
    """The :func:`cost`, with its options of ``placing``, of an FP32 operator of that depth, with
    ``operation`` and whether the depth is the ``default``."""
    kind = OPERATORS[operation]
    operator = kind(stages=stages)
    name = operator.module_name
    row = cost(name, to_verilog(operator, name), ports_of(operator), latency=stages, **placing)
    return {**row, "operation": operation, "default": stages == kind.default_depth(FP32)}


def draw_depths(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Clock against area, a line for each operator, a mark for each depth, filled if it is the
    default: the slowest of the seeds on the ECP5."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for number, operation in enumerate(OPERATORS):
        points = [
            (each["placed"][0]["used"]["lut4"], _slowest_mhz(each), each)
            for each in rows
            if each["operation"] == operation and each["placed"]
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
    axes.set_title("Operators by their number of stages; filled: the default", fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _slowest_mhz(row: Mapping[str, Any]) -> float:
    return min(each["clock_mhz"] for each in row["placed"])
