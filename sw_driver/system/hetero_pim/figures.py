"""The paper's Table I (II-A), and its figures of times, use of the pools, and energy.

Times and use are in VI-A and VI-D to VI-F, energy is in VI-B, VI-E and VI-G.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import Any

from sw_driver.machine.hetero_pim import HETERO_PIM
from sw_driver.workload import load_trace

from ..plotting import draw_bars
from ..reproduction import Claim, Experiment, Row, above, claims, predicted
from .configurations import CONFIGURATIONS, HETERO, Configuration
from .energy import units_beside
from .operations import on_pools
from .profiling import modelled
from .ranking import by_type
from .runs import CALIBRATED, COLUMNS, PREDICTED, HeteroPimRuns, HeteroPimStep
from .scheduling import PARTS

__all__ = [
    "figure8", "figure9", "figure11", "figure12", "figure13", "figure14", "figure15", "figure16",
    "figure17", "table1",
]  # fmt: skip

NETWORKS = VGG, ALEXNET, DCGAN, *_ = (
    "vgg-19", "alexnet-32", "dcgan", "resnet-50", "inception-v3",
)  # fmt: skip
BESIDE, OTHERS = (VGG, ALEXNET, DCGAN), ("lstm-ptb", "word2vec")
"""Networks of the pairs; the paper does not name its six, and these CNNs are those of Table I."""
REST = Configuration(name="CPU and core", devices=("cpu", "core"), ordered=False)
CPU, GPU, PROGR, FIXED, PIM = (configuration.name for configuration in CONFIGURATIONS)
RUNTIMES = NEITHER, RC, OP, BOTH = ("neither", "RC", "OP", "RC and OP")
CORES, FREQUENCIES = ("1P", "4P", "16P"), ("1x", "2x", "4x")
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    **{configuration.name: {"configuration": configuration} for configuration in CONFIGURATIONS},
    NEITHER: {"configuration": replace(HETERO, recursive=False, pipeline=False)},
    RC: {"configuration": replace(HETERO, pipeline=False)},
    OP: {"configuration": replace(HETERO, recursive=False)},
    BOTH: {"configuration": HETERO},
    **{
        f"{n}P": {"configuration": replace(HETERO, cores=n), "units": units_beside(n)}
        for n in (1, 4, 16)
    },
    **{f"{n}x": {"frequency": n} for n in (1, 2, 4)},
}
"""Fields of a case, by the name of the variant."""
_RUNTIME_BAND = 0.25
"""Band for the most that the runtime gains in the paper."""
_MOST_OPS = 8000
"""Operations of the steps beside another network, at most, to limit the time to seconds."""


class _Results(dict[str, dict[str, list[HeteroPimStep]]]):
    """Steps by column, variant, and network."""

    def __init__(
        self, steps: HeteroPimRuns, *variants: str, columns: Sequence[str] = COLUMNS
    ) -> None:
        for column in columns:
            self[column] = {
                name: [steps.run(column, network, **VARIANTS[name]) for network in NETWORKS]
                for name in variants
            }

    def figures(self, column: str, name: str, figure: str = "ms") -> list[float]:
        """Return a figure of each network's step."""
        return [*map(attrgetter(figure), self[column][name])]

    def over(self, many: str, few: str = PIM, figure: str = "ms") -> list[float]:
        """Return the ratios of two variants' figures, calibrated."""
        both = zip(*(self.figures(CALIBRATED, name, figure) for name in (many, few)), strict=True)
        return [a / b for a, b in both]

    def orders(
        self, where: str, pairs: Mapping[str, tuple[str, ...]], columns: Sequence[str] = COLUMNS
    ) -> dict[str, Claim]:
        """Return claims on all networks: one variant has more of a figure than others."""
        ordered: dict[str, Claim] = {}
        for column, (name, (figure, *names)) in product(columns, pairs.items()):
            by_network = zip(*(self.figures(column, x, figure) for x in names), strict=True)
            more = [many > max(few) for many, *few in by_network]
            ordered |= above(where, 0, {f"{name}, {column}": more}, mark=column)
        return ordered

    def rows(self, unit: str, figure: str = "ms", digits: int = 1) -> list[Row]:
        """Return rows by network and column."""
        return [
            {"network": network, "rate": column}
            | {
                f"{name}, {unit}": Claim(
                    ours=getattr(variant[n], figure),
                    mark=PREDICTED if name in (CPU, GPU) else column,
                    digits=digits,
                )
                for name, variant in variants.items()
            }
            for n, network in enumerate(NETWORKS)
            for column, variants in self.items()
        ]


def _bars(rows: Sequence[Row], unit: str, names: Sequence[str]) -> Callable[[Path], Sequence[Path]]:
    """Return a function that draws figures in shares, as networks differ too much for one scale."""
    panel = {f"{unit}, in % of the sum": [f"{name}, {unit}" for name in names]}
    return partial(draw_bars, rows, panel, shares=True)


_numbers = partial(claims, mark=CALIBRATED)
"""Claims in the calibrated column, the only one to compare the paper's figures with."""
_faster = partial(above, least=1, mark=CALIBRATED)
"""Claims that all networks are faster, in the same column."""


def _between(
    where: str, name: str, ends: tuple[float, float], ours: Sequence[float]
) -> dict[str, Claim]:
    """Return claims that ours are between the paper's least and most."""
    both = {f"{name}, least": (ends[0], min(ours)), f"{name}, most": (ends[1], max(ours))}
    return _numbers(where, "x", ends, both)


def table1(steps: HeteroPimRuns) -> Experiment:
    """Judge the claims of section II-A on Table I."""
    machine, not_multiply_add = HETERO_PIM.override(steps.changes), []
    sums: dict[str, float] = {}
    for network in BESIDE:
        steps.progress(f"profile of {network}")
        trace = load_trace(network)
        rows = modelled(trace, machine)
        total = sum(row.time for row in rows)
        both = zip(rows, trace.ops, strict=True)
        other = sum(row.time for row, op in both if on_pools(op) != "whole")
        not_multiply_add.append(100 * other / total)
        if network == VGG:
            types = sorted(by_type(rows), key=lambda row: -row.time)
            for figure in ("time", "accesses"):
                shares = [getattr(row, figure) for row in types]
                sums[figure] = sum(100 * share / sum(shares) for share in shares[:5])
    figures = {
        f"share of time, five longest operations of {VGG}": (95, sums["time"]),
        f"share of accesses, five longest operations of {VGG}": (98, sums["accesses"]),
        "share of time outside multiply/add, most": (40, max(not_multiply_add)),
    }
    return Experiment(
        title="Table I: time and main memory accesses by type of operation",
        quoted={
            name: predicted(ours, value, section="II-A", unit="%", band=(value, inf))
            for name, (value, ours) in figures.items()
        },
    )


def figure8(steps: HeteroPimRuns) -> Experiment:
    """Compare a step and its parts in each configuration."""
    where = "VI-A"
    results = _Results(steps, CPU, GPU, PROGR, FIXED, PIM)
    orders = {f"Hetero PIM is faster than {x}": ("ms", x, PIM) for x in (CPU, PROGR, FIXED)}
    orders[f"Hetero PIM moves and synchronises less than {FIXED}"] = ("lost_ns", FIXED, PIM)
    quoted = results.orders(where, orders)
    before = {f"{name} is faster than CPU": results.over(CPU, name) for name in (PROGR, FIXED)}
    quoted |= _faster(where, figures=before)
    least = {"speed-up over Fixed PIM, least": (1.4, min(results.over(FIXED)))}
    quoted |= _numbers(where, "x", (1.4, 5.7), least)
    bands = (0.1, (0, 1), (1, inf), 0.1)
    for network, band, times in zip(NETWORKS[1:], bands, results.over(GPU)[1:], strict=True):
        quoted |= _numbers(where, "x", band, {f"speed-up over GPU, {network}": (1, times)})
    parts: list[Row] = [
        {"network": network, "configuration": name}
        | {
            f"{column}: {part}": Claim(
                ours=100 * ns / results[column][name][n].step_ns, mark=column, digits=1
            )
            for column in COLUMNS
            for part, ns in results[column][name][n].parts_ns.items()
        }
        for n, network in enumerate(NETWORKS)
        for name in results[PREDICTED]
    ]
    return Experiment(
        title="Figure 8: a step in each configuration",
        rows=results.rows("ms"),
        quoted=quoted,
        notes=[
            f"In calibrated rows a unit does {steps.rate} operations in a cycle, unless the "
            "memory's 320 GB/s limit it."
        ],
        draw=partial(
            draw_bars,
            parts,
            {f"{column}, %": [f"{column}: {part}" for part in PARTS] for column in COLUMNS},
            stacked=True,
        ),
    )


def figure9(steps: HeteroPimRuns) -> Experiment:
    """Compare the energy of a step in each configuration."""
    where = "VI-B"
    results = _Results(steps, CPU, GPU, PROGR, FIXED, PIM)
    more, *others = (
        {f"{name} takes more energy than Hetero PIM": ("energy_j", name, PIM)}
        for name in (FIXED, CPU, GPU)
    )
    most = {"Progr PIM takes the most energy": ("energy_j", PROGR, CPU, GPU, FIXED)}
    quoted = results.orders(where, {**more, **most})
    for order in others:  # in the calibrated column, the least below implies it
        quoted |= results.orders(where, order, [PREDICTED])
    for name, ends in {CPU: (3, 24), GPU: (1.3, 5)}.items():
        times = results.over(name, figure="energy_j")
        quoted |= _between(where, f"energy of {name} over Hetero PIM", ends, times)
    rows = results.rows("J", "energy_j", 2)
    return Experiment(
        title="Figure 9: dynamic energy of a step",
        rows=rows,
        quoted=quoted,
        draw=_bars(rows, "J", [CPU, GPU, FIXED, PIM]),
    )


def figure11(steps: HeteroPimRuns) -> Experiment:
    """Compare steps with the stack at higher frequencies."""
    where = "VI-D"
    results = _Results(steps, GPU, *FREQUENCIES)
    orders = {"the stack at 4x moves and synchronises less than at 1x": ("lost_ns", "1x", "4x")}
    before = {
        f"Hetero PIM at {clock} is faster than GPU": results.over(GPU, clock)
        for clock in ("2x", "4x")
    }
    rows = results.rows("ms")
    return Experiment(
        title="Figure 11: the stack at higher frequencies",
        rows=rows,
        quoted=results.orders(where, orders) | _faster(where, figures=before),
        draw=_bars(rows, "ms", [GPU, *FREQUENCIES]),
    )


def figure12(steps: HeteroPimRuns) -> Experiment:
    """Compare steps with cores in the place of units."""
    results = _Results(steps, *CORES, columns=[CALIBRATED])
    slower = [100 * (1 - 1 / ratio) for ratio in results.over("16P", "1P")]
    figures = {
        "slow-down of 16P from 1P, least": (12, min(slower)),
        "slow-down of 16P from 1P, most": (14, max(slower)),
    }
    rows = results.rows("ms")
    return Experiment(
        title="Figure 12: cores in place of units",
        rows=rows,
        quoted=_numbers("VI-D", "%", (0, 14), figures, digits=1),
        notes=["A core takes the area of 3.3 units, counted in lookup tables."],
        draw=_bars(rows, "ms", CORES),
    )


def figure13(steps: HeteroPimRuns) -> Experiment:
    """Compare a step with and without recursive kernels and the operation pipeline."""
    where = "VI-E"
    results = _Results(steps, FIXED, *RUNTIMES, columns=[CALIBRATED])
    before = {
        "RC is faster than neither": results.over(NEITHER, RC),
        "RC and OP are faster than RC alone": results.over(RC, BOTH),
    }
    gain = {"speed-up by RC and OP, most": (3.8, max(results.over(NEITHER, BOTH)))}
    rows = results.rows("ms")
    return Experiment(
        title="Figure 13: with and without RC and OP",
        rows=rows,
        quoted=_between(
            where,
            "speed-up over Fixed PIM without RC and OP",
            (1.07, 1.3),
            results.over(FIXED, NEITHER),
        )
        | _faster(where, figures=before)
        | _numbers(where, "x", _RUNTIME_BAND, gain),
        draw=_bars(rows, "ms", RUNTIMES),
    )


def figure14(steps: HeteroPimRuns) -> Experiment:
    """Compare the energy of a step with and without RC and OP."""
    results = _Results(steps, NEITHER, BOTH, columns=[CALIBRATED])
    gain = max(results.over(NEITHER, BOTH, "energy_j"))
    figures = {"energy without RC and OP over energy with both, most": (3.9, gain)}
    return Experiment(
        title="Figure 14: dynamic energy with and without RC and OP",
        rows=results.rows("J", "energy_j", 2),
        quoted=_numbers("VI-E", "x", _RUNTIME_BAND, figures),
    )


def figure15(steps: HeteroPimRuns) -> Experiment:
    """Show the share of the pools that computes."""
    where = "VI-E"
    results = _Results(steps, *RUNTIMES, columns=[CALIBRATED])
    none, recursive, _, both = (
        results.figures(CALIBRATED, name, "pools_percent") for name in RUNTIMES
    )
    more = {
        "utilization that RC adds, in points, VGG-19": (66, round(recursive[0] - none[0], 1) + 0.0),
        "utilization that OP adds to RC, in points, AlexNet": (18, both[1] - recursive[1]),
    }
    close = {"utilization with RC and OP, least": (100, min(both))}
    rows = results.rows("%", "pools_percent")
    return Experiment(
        title="Figure 15: utilization of the pools",
        rows=rows,
        quoted=_numbers(where, "%", _RUNTIME_BAND, more, digits=1)
        | _numbers(where, "%", 0.1, close, digits=1),
        draw=partial(
            draw_bars, rows, {"utilization of the pools, %": [f"{name}, %" for name in RUNTIMES]}
        ),
    )


def side_by_side(steps: HeteroPimRuns, network: str, other: str) -> tuple[int, int]:
    """Return the ns of steps of two networks, one network after the other and both together.

    Each network has a number of steps that takes about as long as the other's.
    """
    of_other = steps.run(CALIBRATED, other, configuration=REST, share=1)
    one = steps.run(CALIBRATED, network)
    first, second = (
        min(max(1, longer.step_ns // this.step_ns), max(1, _MOST_OPS // len(this.made.trace.ops)))
        for this, longer in ((one, of_other), (of_other, one))
    )
    alone = steps.run(CALIBRATED, network, steps=first).made
    both = steps.run(CALIBRATED, network, steps=first, beside=(other, second)).made
    return alone.total_ns + second * of_other.step_ns, both.total_ns


def figure16(steps: HeteroPimRuns) -> Experiment:
    """Compare two networks in sequence and side by side.

    The second runs on CPU and core while the first leaves them idle.
    """
    where = "VI-F"
    rows: list[Row] = []
    gains: list[float] = []
    columns = ("sequential, ms", "side by side, ms", "speed gain, %")
    for network, other in product(BESIDE, OTHERS):
        sequential_ns, both_ns = side_by_side(steps, network, other)
        gains.append(100 * (sequential_ns / both_ns - 1))
        cells = zip(columns, (sequential_ns / 1e6, both_ns / 1e6, gains[-1]), strict=True)
        rows.append(
            {"network": network, "beside": other}
            | {name: Claim(ours=ours, mark=CALIBRATED, digits=1) for name, ours in cells}
        )
    quoted = above(
        where, 0, {f"two networks are faster side by side, {CALIBRATED}": gains}, mark=CALIBRATED
    )
    ends = {"speed gain, least": (69, min(gains)), "speed gain, most": (83, max(gains))}
    return Experiment(
        title="Figure 16: two networks side by side",
        rows=rows,
        quoted=quoted | _numbers(where, "%", (69, 83), ends, digits=1),
        notes=["The paper does not name its six pairs."],
        draw=partial(draw_bars, rows, {"speed gain, %": ["speed gain, %"]}),
    )


def figure17(steps: HeteroPimRuns) -> Experiment:
    """Compare energy-delay products and powers by frequency."""
    where = "VI-G"
    results = _Results(steps, *FREQUENCIES, GPU)
    quoted: dict[str, Claim] = {}
    for column in COLUMNS:
        products = zip(*(results.figures(column, x, "edp") for x in FREQUENCIES), strict=True)
        least = {
            f"energy-delay product is least at 4x, {column}": [
                fast < min(slow) for *slow, fast in products
            ]
        }
        quoted |= above(where, 0, least, mark=column)
    power = results.over(GPU, "4x", "watts")
    both = zip(results.rows("J s", "edp", 4), results.rows("W", "watts"), strict=True)
    shown = ("4x, W", "GPU, W")
    rows: list[Row] = [{**edps, **{name: watts[name] for name in shown}} for edps, watts in both]
    return Experiment(
        title="Figure 17: energy-delay product and power by frequency",
        rows=rows,
        quoted=quoted | _between(where, "power of GPU over power at 4x", (1.5, 2.6), power),
        draw=_bars(rows, "J s", [*FREQUENCIES, GPU]),
    )
