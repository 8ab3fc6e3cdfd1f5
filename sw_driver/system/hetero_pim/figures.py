"""The paper's Table I (II-A), its figures of times, use and energy (VI), and what explains ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import inf
from typing import Any, NamedTuple

from sw_driver.machine.hetero_pim import HETERO_PIM
from sw_driver.workload import load_trace

from ..plotting import draw_bars
from ..reproduction import Claim, Experiment, Row, predicted
from .configurations import CONFIGURATIONS, HEADLINE, HETERO, STRICT, Configuration
from .operations import on_pools
from .profiling import modelled
from .ranking import SHARE, by_type, chosen
from .report import cpu_operations
from .runs import CALIBRATED, COLUMNS, Column, HeteroPimRuns
from .scheduling import PARTS

__all__ = [
    "breakdown", "figure8", "figure9", "figure11", "figure12", "figure13", "figure14", "figure15",
    "figure16", "figure17", "readings", "table1",
]  # fmt: skip

NETWORKS = VGG, ALEXNET, DCGAN, *_ = (
    "vgg-19", "alexnet-32", "dcgan", "resnet-50", "inception-v3",
)  # fmt: skip
BESIDE, OTHERS = (VGG, ALEXNET, DCGAN), ("lstm-ptb", "word2vec")
"""Networks of the pairs; the paper does not name its six, and these CNNs are those of Table I."""
REST = Configuration(name="CPU and cores", devices=("cpu", "core"), ordered=False)
CPU, GPU, PROGR, FIXED, PIM = (configuration.name for configuration in CONFIGURATIONS)
RUNTIMES = NEITHER, RC, OP, BOTH = ("neither", "RC", "OP", "RC and OP")
PIMS, FREQUENCIES = ("1P", "4P", "16P"), ("1x", "2x", "4x")
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    **{configuration.name: {"configuration": configuration} for configuration in CONFIGURATIONS},
    NEITHER: {"configuration": replace(HETERO, recursive=False, pipeline=False)},
    RC: {"configuration": replace(HETERO, pipeline=False)},
    OP: {"configuration": replace(HETERO, recursive=False)},
    BOTH: {},
    **{f"{n}P": {"pims": n} for n in (1, 4, 16)},
    **{f"{n}x": {"frequency": n} for n in (1, 2, 4)},
}
"""Fields of a case, by the name of the variant."""
_RUNTIME_BAND = 0.25
"""Band for the most that the runtime gains in the paper, and for gains of a higher clock."""
_MOST_OPS = 8000
"""Operations of the steps beside another network, at most, to limit the time to seconds."""


_NAMED = [(name if " " in name else f"headline {name}", column) for name, column in COLUMNS.items()]
"""Columns by their readings and marks."""

_Figures = Callable[[Column], list[float]]
"""Function of a column that returns a figure of each network, or pair of networks."""


class _Statement(NamedTuple):
    """A figure of the paper, and ours in a column."""

    name: str
    section: str
    value: float
    unit: str
    band: float | tuple[float, float]
    ours: Callable[[Column], float]

    def claim(self, column: Column) -> Claim:
        """Return the claim that ours is within the band of the paper's figure."""
        digits = {"x": 2, "%": 1}.get(self.unit, 0)
        own = {"ours": self.ours(column), "mark": column.mark, "unit": self.unit.strip("x")}
        fields = {**self._asdict(), **own}
        del fields["name"]
        return Claim(**fields, digits=digits)


class _Steps:
    """Figures of the networks' steps, by variant and column."""

    def __init__(self, runs: HeteroPimRuns) -> None:
        self.runs = runs

    def figures(self, variant: str, figure: str = "ms") -> _Figures:
        """Return a figure of all networks in a variant."""

        def figures(column: Column) -> list[float]:
            steps = (self.runs.run(column, network, **VARIANTS[variant]) for network in NETWORKS)
            return [getattr(step, figure) for step in steps]

        return figures

    def over(self, many: str, few: str = PIM, figure: str = "ms") -> _Figures:
        """Return the ratios of two variants' figures."""
        first, second = self.figures(many, figure), self.figures(few, figure)
        return lambda column: [a / b for a, b in zip(first(column), second(column), strict=True)]

    def more(self, name: str, section: str, figure: str, many: str, *few: str) -> _Statement:
        """Return a statement that all networks have the most of a figure in one variant."""
        variants = [self.figures(variant, figure) for variant in (many, *few)]

        def ours(column: Column) -> float:
            by_network = zip(*(figures(column) for figures in variants), strict=True)
            return sum(most > max(others) for most, *others in by_network)

        return _Statement(name, section, 5, "", 0, ours)


_Statements = Iterator[_Statement]


def _one(figures: _Figures, number: int, column: Column, without: _Figures | None = None) -> float:
    """Return one network's figure, or its difference to another variant's."""
    return figures(column)[number] - (without(column)[number] if without else 0)


def _ends(
    name: str,
    section: str,
    ends: tuple[float, float],
    ours: _Figures,
    unit: str = "x",
    band: tuple[float, float] | None = None,
) -> _Statements:
    """Yield statements that ours are between the paper's least and most."""
    for which, end, choose in zip(("least", "most"), ends, (min, max), strict=True):
        figure = partial(lambda choose, column: choose(ours(column)), choose)
        yield _Statement(f"{name}, {which}", section, end, unit, band or ends, figure)


def _most(
    name: str, value: float, *ours: _Figures, section: str = "VI-E", band: Any = _RUNTIME_BAND
) -> _Statement:
    """Return a statement on the largest of several figures."""

    def most(column: Column) -> float:
        return max(max(figures(column)) for figures in ours)

    return _Statement(f"{name}, most", section, value, "x", band, most)


def _experiment(
    title: str, statements: Sequence[_Statement], rows: Sequence[Row], **others: Any
) -> Experiment:
    """Return an experiment with statements in all columns."""
    return Experiment(
        title=title,
        rows=rows,
        marked=False,
        quoted={statement.name: statement.claim(CALIBRATED) for statement in statements},
        others={
            name: {
                statement.name: replace(statement.claim(column), value=None)
                for statement in statements
            }
            for name, column in COLUMNS.items()
            if column is not CALIBRATED
        },
        **others,
    )


def _compared(
    runs: HeteroPimRuns,
    title: str,
    statements: Callable[[_Steps], _Statements],
    variants: Sequence[str],
    unit: str = "ms",
    figure: str = "ms",
    digits: int = 1,
    notes: Sequence[str] = (),
    marks: Sequence[str] = ("calibrated",),
) -> Experiment:
    """Return an experiment with a figure of all networks in several variants.

    Rows are those of columns with one of ``marks``.

    Its picture has shares, as networks differ too much for one scale.
    """
    steps = _Steps(runs)
    rows: list[Row] = [
        {"network": network, "readings": name.partition(" ")[0], "rate": column.mark}
        | {
            f"{variant}, {unit}": Claim(
                ours=steps.figures(variant, figure)(column)[number],
                mark="predicted" if variant in (CPU, GPU) else column.mark,
                digits=digits,
            )
            for variant in variants
        }
        for number, network in enumerate(NETWORKS)
        for name, column in _NAMED
        if column.mark in marks
    ]
    shares = unit != "%"
    drawn = [row for row in rows if row["rate"] == "calibrated"]
    panels = {f"{unit}, in % of the sum" if shares else "%": [*rows[0]][3:]}
    draw = partial(draw_bars, drawn, panels, shares=shares)
    return _experiment(title, [*statements(steps)], rows, notes=notes, draw=draw)


def table1(runs: HeteroPimRuns) -> Experiment:
    """Judge the claims of section II-A on Table I, and what the rule of III-C offers."""
    machine, not_multiply_add = HETERO_PIM.override(runs.changes), []
    sums: dict[str, float] = {}
    for network in BESIDE:
        runs.progress(f"profile of {network}")
        trace = load_trace(network)
        rows = modelled(trace, machine)
        total = sum(row.time for row in rows)
        both = zip(rows, trace.ops, strict=True)
        other = sum(row.time for row, op in both if on_pools(op) != "whole")
        not_multiply_add.append(100 * other / total)
        sums[network] = 100 * sum(row.time for row in chosen(by_type(rows), SHARE)) / total
        if network == VGG:
            types = sorted(by_type(rows), key=lambda row: -row.time)
            for figure in ("time", "accesses"):
                shares = [getattr(row, figure) for row in types]
                sums[figure] = sum(100 * share / sum(shares) for share in shares[:5])
    figures: dict[str, tuple[float, float, Any]] = {
        f"share of time, five longest operations of {VGG}": (95, sums["time"], (95, inf)),
        f"share of accesses, five longest operations of {VGG}": (98, sums["accesses"], (98, inf)),
        "share of time outside multiply/add, most": (40, max(not_multiply_add), (40, inf)),
        f"time of types that make 90 %, {VGG}": (96.58, sums[VGG], 0.05),
        f"time of types that make 90 %, {ALEXNET}": (95.74, sums[ALEXNET], 0.05),
    }
    return Experiment(
        title="Table I: time and main memory accesses by type of operation",
        quoted={
            name: predicted(ours, value, section="II-A", unit="%", band=band)
            for name, (value, ours, band) in figures.items()
        },
    )


_MEANINGS = {
    "splits": "VI-E: without RC, the host splits gradients",
    "stale_steps": "III-C: steps of staleness with OP",
    "share": "III-C, IV-D: share of time offered",
    "cores": "IV-D: cores of the programmable PIM",
    "core_vaults": "IV-D: vaults of their bandwidth",
    "progr_cores": "VI-B: cores of Progr PIM (calibrated)",
    "units": "III-C, IV-D: multipliers and adders",
}


def readings(runs: HeteroPimRuns) -> Experiment:
    """Show both sets of readings, and what the figures become with one of them changed."""
    steps, rows = _Steps(runs), []

    def met(column: Column) -> str:
        made = (_claims8, _claims9, _claims11, _claims12, _claims13)
        verdicts = [x.claim(column).verdict for statements in made for x in statements(steps)]
        return f"{verdicts.count('met')} of {len(verdicts)}"

    for name, meaning in _MEANINGS.items():
        ours, theirs = (getattr(chosen_set, name) for chosen_set in (HEADLINE, STRICT))
        instead = 888 if name == "units" else theirs
        column = Column("calibrated", replace(HEADLINE, **{name: instead}))
        vgg, alexnet = (
            {variant: runs.run(column, network, **VARIANTS[variant]) for variant in VARIANTS}
            for network in (VGG, ALEXNET)
        )
        cells = {
            "rate": runs.rate(column),
            "points by RC, VGG-19": _zeroed(vgg[RC].pools_percent - vgg[NEITHER].pools_percent),
            "by OP, AlexNet": alexnet[BOTH].pools_percent - alexnet[RC].pools_percent,
            "AlexNet over Fixed PIM": alexnet[FIXED].ms / alexnet[PIM].ms,
            "over GPU": alexnet[GPU].ms / alexnet[PIM].ms,
        }
        rows.append(
            {"reading": meaning, "headline": f"{ours:g}", "instead": f"{instead:g}"}
            | {
                cell: Claim(ours=value, mark="calibrated", digits=2 * isinstance(value, float))
                for cell, value in cells.items()
            }
        )
    pairs = Column(readings=replace(HEADLINE, units=888))
    counted = {**COLUMNS, "with 888 units predicted": pairs}
    shown = "; ".join(f"{name} {met(column)}" for name, column in counted.items())
    rates = {name: runs.rate(column) for name, column in COLUMNS.items() if "cal" in name}
    return Experiment(
        title="Readings changed one by one",
        rows=rows,
        marked=False,
        notes=[
            f"Claims met of Figures 8 to 13: {shown}.",
            f"Operations of a unit a cycle: {', '.join(f'{n} {r}' for n, r in rates.items())}.",
        ],
    )


def _zeroed(value: float) -> float:
    """Return a difference, 0 instead of one that rounding makes."""
    return round(value, 9) + 0.0


def breakdown(runs: HeteroPimRuns) -> Experiment:
    """Show where a step's time goes, and which operations are left to the CPU."""
    rows: list[Row] = []
    for network, variant in product(NETWORKS, (FIXED, PIM)):
        step = runs.run(CALIBRATED, network, **VARIANTS[variant])
        busy = {f"{name} busy": step.made.busy_ns(name) for name in ("core", "cpu")}
        rows.append(
            {"network": network, "configuration": variant}
            | {
                name: Claim(ours=100 * ns / step.step_ns, mark="calibrated", digits=1)
                for name, ns in {**step.parts_ns, **busy}.items()
            }
            | {"operations on the CPU": cpu_operations(step.made, 1) if variant == PIM else ""}
        )
    drawn = [dict([*row.items()][:-1]) for row in rows]  # without the operations
    return Experiment(
        title="Where a step's time goes, in %",
        rows=rows,
        marked=False,
        notes=["The pools compute, or wait while a core or the CPU does; else nothing computes."],
        draw=partial(draw_bars, drawn, {"%": PARTS}, stacked=True),
    )


def _claims8(steps: _Steps) -> _Statements:
    where = "VI-A"
    for name in (CPU, PROGR, FIXED):
        yield steps.more(f"Hetero PIM is faster than {name}", where, "ms", name, PIM)
    for name in (CPU, FIXED):
        less = f"Hetero PIM moves and synchronises less than {name}"
        yield steps.more(less, where, "lost_ns", name, PIM)
    over_cpu = [steps.over(CPU, few) for few in (PROGR, FIXED, PIM)]
    yield _most("speed-up of PIMs over CPU", 28, *over_cpu, section=where, band=(1.19, 28))
    yield from _ends("speed-up over Progr PIM", where, (2.5, 23), steps.over(PROGR))
    yield from _ends("speed-up over Fixed PIM", where, (1.4, 5.7), steps.over(FIXED))
    for number, band in enumerate((0.1, (0, 1), (1, inf), 0.1), 1):
        name = f"speed-up over GPU, {NETWORKS[number]}"
        yield _Statement(name, where, 1, "x", band, partial(_one, steps.over(GPU), number))


def _claims9(steps: _Steps) -> _Statements:
    where, figure = "VI-B", "energy_j"
    yield steps.more("Progr PIM takes the most energy", where, figure, PROGR, CPU, GPU, FIXED, PIM)
    yield steps.more("CPU takes more than GPU and Fixed PIM", where, figure, CPU, GPU, FIXED)
    yield steps.more("Fixed PIM takes more than Hetero PIM", where, figure, FIXED, PIM)
    for name, ends in {CPU: (3, 24), GPU: (1.3, 5)}.items():
        ours = steps.over(name, figure=figure)
        yield from _ends(f"energy of {name} over Hetero PIM", where, ends, ours)


def _claims11(steps: _Steps) -> _Statements:
    where = "VI-D"
    for clock in FREQUENCIES[1:]:
        yield steps.more(f"Hetero PIM at {clock} is faster than GPU", where, "ms", GPU, clock)
    yield steps.more("4x moves and synchronises less than 1x", where, "lost_ns", "1x", "4x")
    for number, value in enumerate((1.37 / 1.36, 1.60 / 1.17)):
        ours = partial(_one, steps.over("2x", "4x"), number)
        name = f"speed-up of 4x over 2x, {NETWORKS[number]}"
        yield _Statement(name, where, value, "x", _RUNTIME_BAND, ours)


def _claims12(steps: _Steps) -> _Statements:
    over = steps.over("1P", "16P")
    slower = partial(lambda column: [100 * (1 - ratio) for ratio in over(column)])
    yield from _ends("slow-down of 16P from 1P", "VI-D", (12, 14), slower, "%", (0, 14))


def _claims13(steps: _Steps) -> _Statements:
    where, over_fixed = "VI-E", steps.over(FIXED, NEITHER)
    yield from _ends("speed-up over Fixed PIM without RC and OP", where, (1.07, 1.3), over_fixed)
    name = "speed-up over Progr PIM, too"
    yield _most(name, 8.5, over_fixed, steps.over(PROGR, NEITHER))
    yield steps.more("RC is faster than neither", where, "ms", NEITHER, RC)
    yield steps.more("RC and OP are faster than RC", where, "ms", RC, BOTH)
    yield _most("speed-up by RC and OP", 3.8, steps.over(NEITHER, BOTH))


def _claims14(steps: _Steps) -> _Statements:
    others = [steps.over(name, NEITHER, "energy_j") for name in (PROGR, FIXED)]
    yield _most("energy of Progr and Fixed PIM over it", 2.7, *others)
    yield _most("energy without RC and OP", 3.9, steps.over(NEITHER, BOTH, "energy_j"))


def _claims15(steps: _Steps) -> _Statements:
    neither, recursive, both = (
        steps.figures(variant, "pools_percent") for variant in (NEITHER, RC, BOTH)
    )
    more = {
        "points that RC adds, VGG-19": (66, partial(_one, recursive, 0, without=neither)),
        "points that OP adds to RC, AlexNet": (18, partial(_one, both, 1, without=recursive)),
    }
    for name, (value, ours) in more.items():
        yield _Statement(name, "VI-E", value, "%", _RUNTIME_BAND, ours)
    least = partial(lambda column: min(both(column)))
    yield _Statement("use with RC and OP, least", "VI-E", 100, "%", 0.1, least)


def _claims17(steps: _Steps) -> _Statements:
    figures = [steps.figures(clock, "edp") for clock in FREQUENCIES]

    def least(column: Column) -> float:
        products = zip(*(edp(column) for edp in figures), strict=True)
        return sum(fast < min(slow) for *slow, fast in products)

    yield _Statement("energy-delay product is least at 4x", "VI-G", 5, "", 0, least)
    power = steps.over(GPU, "4x", "watts")
    yield from _ends("power of GPU over power at 4x", "VI-G", (1.5, 2.6), power)


_BOTH = ("predicted", "calibrated")
_ENERGY: Mapping[str, Any] = {"unit": "J", "figure": "energy_j", "digits": 2}

# fmt: off
figure8 = partial(
    _compared, title="Figure 8: a step in each configuration", statements=_claims8,
    variants=(CPU, GPU, PROGR, FIXED, PIM), marks=_BOTH,
)
figure9 = partial(
    _compared, title="Figure 9: dynamic energy of a step", statements=_claims9,
    variants=(CPU, GPU, PROGR, FIXED, PIM), marks=_BOTH, **_ENERGY,
)
figure11 = partial(
    _compared, title="Figure 11: the stack at higher frequencies", statements=_claims11,
    variants=(GPU, *FREQUENCIES), marks=_BOTH,
)
figure12 = partial(
    _compared, title="Figure 12: programmable PIMs in place of units", statements=_claims12,
    variants=PIMS, notes=["A core takes the area of 3.3 units, counted in lookup tables."],
)
figure13 = partial(
    _compared, title="Figure 13: RC and OP", statements=_claims13,
    variants=RUNTIMES,
)
figure14 = partial(
    _compared, title="Figure 14: energy by RC and OP", statements=_claims14,
    variants=(NEITHER, BOTH), **_ENERGY,
)
figure15 = partial(
    _compared, title="Figure 15: use of the pools", statements=_claims15, variants=RUNTIMES,
    unit="%", figure="pools_percent",
)
# fmt: on


def side_by_side(
    runs: HeteroPimRuns, network: str, other: str, column: Column = CALIBRATED
) -> tuple[int, int]:
    """Return the ns of steps of two networks, one network after the other and both together.

    Each network has a number of steps that takes about as long as the other's.
    """
    of_other = runs.run(column, other, share=1, configuration=REST)
    one = runs.run(column, network)
    first, second = (
        min(max(1, longer.step_ns // this.step_ns), max(1, _MOST_OPS // len(this.made.trace.ops)))
        for this, longer in ((one, of_other), (of_other, one))
    )
    alone = runs.run(column, network, steps=first).made
    both = runs.run(column, network, steps=first, beside=(other, second)).made
    return alone.total_ns + second * of_other.step_ns, both.total_ns


def figure16(runs: HeteroPimRuns) -> Experiment:
    """Compare two networks in sequence and side by side.

    The second runs on CPU and cores while the first leaves them idle.
    """
    where, pairs = "VI-F", [*product(BESIDE, OTHERS)]

    def gains(column: Column) -> list[float]:
        times = [side_by_side(runs, *pair, column) for pair in pairs]
        return [100 * (alone_ns / both_ns - 1) for alone_ns, both_ns in times]

    def faster(column: Column) -> float:
        return sum(gain > 0 for gain in gains(column))

    rows: list[Row] = []
    for pair in pairs:
        sequential_ns, both_ns = side_by_side(runs, *pair)
        cells = {
            "sequential, ms": sequential_ns / 1e6,
            "side by side, ms": both_ns / 1e6,
            "speed gain, %": 100 * (sequential_ns / both_ns - 1),
        }
        rows.append(
            dict(zip(("network", "beside"), pair, strict=True))
            | {name: Claim(ours=ours, mark="calibrated", digits=1) for name, ours in cells.items()}
        )
    statements = [
        _Statement("two networks are faster side by side", where, 6, "", 0, faster),
        *_ends("speed gain", where, (69, 83), gains, "%"),
    ]
    return _experiment(
        "Figure 16: two networks side by side",
        statements,
        rows,
        notes=["The paper does not name its six pairs."],
        draw=partial(draw_bars, rows, {"speed gain, %": ["speed gain, %"]}),
    )


figure17 = partial(
    _compared,
    title="Figure 17: energy-delay product",
    statements=_claims17,
    variants=(*FREQUENCIES, GPU),
    unit="J s",
    figure="edp",
    digits=4,
)
