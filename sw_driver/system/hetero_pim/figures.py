"""The paper's figures of times, of how busy the pools are (VI-A, VI-D to VI-F), and of energy
(VI-B, VI-E, VI-G)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import Any

from sw_driver.workload import load_trace

from ..plotting import draw_bars
from ..reproduction import Changes, Claim, Experiment, Progress, Row, above, claims
from .configurations import CONFIGURATIONS, HETERO, Configuration
from .energy import AREA, SOURCES, units_beside
from .runs import CALIBRATED, COLUMNS, FITTED, PREDICTED, Step, Steps, costs_of
from .scheduling import PARTS

__all__ = [
    "BESIDE", "NETWORKS", "OTHERS", "VARIANTS", "figure8", "figure9", "figure11",
    "figure12", "figure13", "figure14", "figure15", "figure16", "figure17", "side_by_side",
]  # fmt: skip

NETWORKS = VGG, ALEXNET, DCGAN, RESNET, INCEPTION = (
    "vgg-19", "alexnet-32", "dcgan", "resnet-50", "inception-v3",
)  # fmt: skip
BESIDE, OTHERS = (VGG, ALEXNET, DCGAN), ("lstm-ptb", "word2vec")
"""The paper does not say of which CNNs its six pairs are: these are those of Table I."""
REST = Configuration(name="CPU and core", devices=("cpu", "core"), ordered=False)
CPU, GPU, PROGR, FIXED, PIM = (each.name for each in CONFIGURATIONS)
RUNTIMES = NEITHER, RC, OP, BOTH = ("neither", "RC", "OP", "RC and OP")
CORES, FREQUENCIES = ("1P", "4P", "16P"), ("1x", "2x", "4x")
LITERAL = "Hetero PIM, literal"
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    **{each.name: {"configuration": each} for each in CONFIGURATIONS},
    LITERAL: {"configuration": replace(HETERO, name=LITERAL, principle="literal")},
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
"""Fields of a case by the name of what has them."""
_CORES_OPEN = "How many cores the programmable PIM has is not said: with one it takes the longer."
_MOST_OPS = 8000
"""Of steps beside another, so that they take seconds here."""


class _Found(dict[str, dict[str, list[Step]]]):
    """Steps by column, variant, and network."""

    def __init__(self, steps: Steps, *variants: str) -> None:
        for column in COLUMNS:
            self[column] = {
                name: [steps.run(column, network, **VARIANTS[name]) for network in NETWORKS]
                for name in variants
            }

    def of(self, column: str, name: str, what: str = "ms") -> list[float]:
        return [*map(attrgetter(what), self[column][name])]

    def over(self, many: str, few: str = PIM, what: str = "ms") -> list[float]:
        """How many times as much one is as the other, calibrated."""
        both = zip(*(self.of(CALIBRATED, name, what) for name in (many, few)), strict=True)
        return [a / b for a, b in both]

    def orders(self, where: str, pairs: Mapping[str, tuple[str, ...]]) -> dict[str, Claim]:
        """What the paper says of all networks: of what one has more than others."""
        found: dict[str, Claim] = {}
        for column, (name, (what, *names)) in product(COLUMNS, pairs.items()):
            of_each = zip(*(self.of(column, each, what) for each in names), strict=True)
            more = [many > max(few) for many, *few in of_each]
            found |= above(where, 0, {f"{name}, {column}": more}, mark=column)
        return found

    def rows(self, unit: str, what: str = "ms", digits: int = 1) -> list[Row]:
        """By network and column."""
        return [
            {"network": network, "rate": column}
            | {
                f"{name}, {unit}": Claim(
                    ours=getattr(each[n], what),
                    mark=PREDICTED if name in (CPU, GPU) else column,
                    digits=digits,
                )
                for name, each in found.items()
            }
            for n, network in enumerate(NETWORKS)
            for column, found in self.items()
        ]


def _bars(rows: Sequence[Row], unit: str, names: Sequence[str]) -> Callable[[Path], Sequence[Path]]:
    """Draws what differs too much by network to be on one scale."""
    panel = {f"{unit}, in % of the sum": [f"{each}, {unit}" for each in names]}
    return partial(draw_bars, rows, panel, shares=True)


_numbers = partial(claims, mark=CALIBRATED)
"""Of the one column in which the paper's can be looked for."""


def _judged(
    where: str, figures: Mapping[Any, Mapping[str, tuple[float, float]]]
) -> dict[str, Claim]:
    """Figures by their band, or the reason why they are excluded."""
    found = {}
    for judged, of in figures.items():
        found |= _numbers(where, "x", judged, of)
    return found


def _between(
    where: str, what: str, ends: tuple[float, float], ours: Sequence[float]
) -> dict[str, Claim]:
    """The paper's least and most: ours are to be between them."""
    both = {f"{what}, least": (ends[0], min(ours)), f"{what}, most": (ends[1], max(ours))}
    return _numbers(where, "x", ends, both)


def figure8(changes: Changes, progress: Progress) -> Experiment:
    """A step in each configuration, and what it consists of."""
    steps, where = Steps(changes=changes, progress=progress), "VI-A, Figure 8"
    found = _Found(steps, CPU, GPU, PROGR, FIXED, PIM, LITERAL)
    orders = {f"Hetero PIM is faster than {x}": ("ms", x, PIM) for x in (CPU, PROGR, FIXED)}
    for each in (CPU, FIXED):
        orders[f"less movement and synchronisation than {each}"] = ("lost_ns", each, PIM)
    quoted = found.orders(where, orders)
    parts: list[Row] = [
        {"network": network, "configuration": name}
        | {
            f"{column}: {part}": Claim(
                ours=100 * ns / found[column][name][n].step_ns, mark=column, digits=1
            )
            for column in COLUMNS
            for part, ns in found[column][name][n].made.breakdown_ns.items()
        }
        for n, network in enumerate(NETWORKS)
        for name in found[PREDICTED]
    ]
    progr, fixed, gpu = map(found.over, (PROGR, FIXED, GPU))
    over_cpu = [found.over(CPU, each) for each in (PROGR, FIXED, PIM)]
    of_cpu, of_gpu, of_progr, of_fixed, *_ = (each[0] for each in found[CALIBRATED].values())
    open_cpu = (
        "How much of its peak the paper's CPU reaches is not said: with half of it VGG-19 takes "
        f"{of_cpu.ms:,.0f} ms, of which a 28th is {of_cpu.ms / 28:.0f}; the GPU takes "
        f"{of_gpu.ms:.0f}."
    )
    open_cores = (
        "How many cores the programmable PIM has is not said: with VGG-19 the CPU is as fast as "
        f"{of_progr.ms / of_cpu.ms:.0f}, Hetero PIM as {progr[0]:.0f}."
    )
    why = {
        open_cores: {
            "PIMs over CPU, least": (1.19, min(map(min, over_cpu))),
            "over Progr PIM, least": (2.5, min(progr)),
            "over Progr PIM, most": (23, max(progr)),
        },
        open_cpu: {"PIMs over CPU, most": (28, max(map(max, over_cpu)))},
        "By Figure 13 it is 1.30 times 3.8 = 4.94 at most.": {
            "over Fixed PIM, most": (5.7, max(fixed))
        },
        (1.4, 5.7): {"over Fixed PIM, least": (1.4, min(fixed))},
    }
    quoted |= _judged(where, why)
    fitted = "It is the cell that the rate is fitted to."
    bands = (fitted, 0.1, (0, 1), (1, inf), 0.1)
    for network, band, times in zip(NETWORKS, bands, gpu, strict=True):
        quoted |= _numbers(where, "x", band, {f"over GPU, {network}": (1, times)})
    return Experiment(
        title="Figure 8: a step in each configuration",
        rows=found.rows("ms"),
        quoted=quoted,
        notes=[
            f"Calibrated: each unit does {steps.rate} operations a cycle, the fewest with which "
            f"{FITTED} takes Hetero PIM no longer than the GPU; the memory's 320 GB/s bound them. "
            "Predicted: the pools and cores as they are in RTL, which are slower than the CPU.",
            "By V-D's use of the GPU, and if only arithmetic counted, a PIM that is as fast with "
            "VGG-19 would be 0.63 / 0.30 = 2.1 times as fast with AlexNet, 2.3 with DCGAN and 1.4 "
            "with ResNet-50.",
            "Movement counts while nothing computes. The GPU's is not known apart, and with all on "
            "cores there is none.",
            "Literal: to the pools, else to a core, else to the CPU, if they are free, however "
            "long that takes. In all others who is offered the PIMs goes where it ends first.",
            f"Of Fixed PIM's {of_fixed.ms:.0f} ms of VGG-19, calibrated, "
            f"{of_fixed.made.busy_ns('cpu') / 1e6:.0f} are the CPU's, which Hetero PIM "
            "has, too.",
        ],
        draw=partial(
            draw_bars,
            parts,
            {f"{column}, %": [f"{column}: {part}" for part in PARTS] for column in COLUMNS},
            stacked=True,
        ),
    )


def figure9(changes: Changes, progress: Progress) -> Experiment:
    """Energy of a step in each configuration."""
    steps, where = Steps(changes=changes, progress=progress), "VI-B, Figure 9"
    found = _Found(steps, CPU, GPU, PROGR, FIXED, PIM)
    orders: dict[str, tuple[str, ...]] = {
        f"{each} takes more than Hetero PIM": ("joules", each, PIM)
        for each in (CPU, PROGR, FIXED, GPU)
    }
    orders["Progr PIM takes most"] = ("joules", PROGR, CPU, GPU, FIXED)
    quoted = found.orders(where, orders)
    gpu, ours = (found[PREDICTED][each][0] for each in (GPU, PIM))
    slow = f"GPU takes more than Hetero PIM, {PREDICTED}"
    why = (
        f"With the RTL's units a step of {NETWORKS[0]} takes {ours.ms / 1e3:.1f} s and the GPU "
        f"{gpu.ms / 1e3:.2f}: the host alone takes {ours.energy.host:,.0f} J meanwhile, GPU and "
        f"host {gpu.joules:,.0f}."
    )
    quoted[slow] = replace(quoted[slow], excluded=why)
    for name, ends in {CPU: (3, 24), GPU: (1.3, 5)}.items():
        times = found.over(name, what="joules")
        quoted |= _between(where, f"{name} over Hetero PIM", ends, times)
    rows = found.rows("J", "joules", 2)
    return Experiment(
        title="Figure 9: dynamic energy of a step",
        rows=rows,
        quoted=quoted,
        notes=[
            "The host's power counts for all of a step, as the paper has it. Of the pools each "
            "operand and result counts once: what tiles read again, such as 86 GB of VGG-19's "
            "largest gradient, would be 3 J.",
            SOURCES,
        ],
        draw=_bars(rows, "J", [CPU, GPU, FIXED, PIM]),
    )


def figure11(changes: Changes, progress: Progress) -> Experiment:
    """The stack at higher frequencies."""
    steps, where = Steps(changes=changes, progress=progress), "VI-D, Figure 11"
    found = _Found(steps, GPU, *FREQUENCIES)
    orders = {f"{b} is faster than {a}": ("ms", a, b) for a, b in pairwise(FREQUENCIES)}
    orders["less movement and synchronisation at 4x"] = ("lost_ns", "1x", "4x")
    of = {VGG: (1.36, 1.37), ALEXNET: (1.17, 1.60)}
    first, second = (1 / (3 / two - 2 / four) for two, four in of.values())
    why = (
        "With t = a + b / f the two figures of VGG-19 make it "
        f"{first:.2f} times as fast as the GPU at 1x, those of AlexNet {second:.2f}: neither is "
        "within 10 %, as Figure 8 has both."
    )
    figures = {
        f"{name} over GPU, {network}": (
            value, found.over(GPU, name)[NETWORKS.index(network)]
        )
        for network, values in of.items()
        for name, value in zip(("2x", "4x"), values, strict=True)
    }  # fmt: skip
    rows = found.rows("ms")
    return Experiment(
        title="Figure 11: the stack at higher frequencies",
        rows=rows,
        quoted=found.orders(where, orders) | _numbers(where, "x", why, figures),
        draw=_bars(rows, "ms", [GPU, *FREQUENCIES]),
    )


def figure12(changes: Changes, progress: Progress) -> Experiment:
    """Cores in the place of units."""
    found = _Found(Steps(changes=changes, progress=progress), *CORES)
    slower = [100 * (1 - 1 / each) for each in found.over("16P", "1P")]
    figures = {"16P slower, least": (12, min(slower)), "16P slower, most": (14, max(slower))}
    rows = found.rows("ms")
    return Experiment(
        title="Figure 12: cores in the place of units",
        rows=rows,
        quoted=_numbers("VI-D, Figure 12", "%", (0, 14), figures, digits=1),
        notes=[AREA, "*relatively small* is judged: slower, by no more than the paper's 14 %."],
        draw=_bars(rows, "ms", CORES),
    )


def _launches(steps: Steps) -> str:
    """Why RC and OP are worth little here."""
    trace, costs = load_trace(VGG), costs_of(steps.case(CALIBRATED, VGG))
    kernels = [each for each in map(costs.phases, trace.ops) if len({of.device for of in each}) > 1]
    more_ns = costs.launch_core_ns - costs.launch_host_ns
    more_ns *= sum(len(each) - 1 for each in kernels)
    step_ns = steps.run(CALIBRATED, VGG).step_ns
    return (
        f"A launch by the host takes {costs.launch_host_ns} ns and one by a core "
        f"{costs.launch_core_ns}, so that for {len(kernels)} kernels of VGG-19 RC changes a step "
        f"of {step_ns / 1e3:,.0f} us by {more_ns / 1e3:+.0f}; the next step's first convolution "
        "needs weights that this one updates last, so that OP has next to nothing to fill banks."
    )


def figure13(changes: Changes, progress: Progress) -> Experiment:
    """With and without recursive kernels and the pipeline of operations."""
    steps, where = Steps(changes=changes, progress=progress), "VI-E, Figure 13"
    found = _Found(steps, PROGR, FIXED, *RUNTIMES)
    both = (PROGR, FIXED)
    quoted = found.orders(
        where, {f"neither is faster than {each}": ("ms", each, NEITHER) for each in both}
    )
    progr, fixed = (found.over(each, NEITHER) for each in both)
    gain = max(found.over(NEITHER, BOTH))
    why = {
        _CORES_OPEN: {"neither, over Progr and Fixed PIM, most": (8.5, max(*fixed, *progr))},
        (1.07, 1.30): {
            "neither, over Fixed PIM, least": (1.07, min(fixed)),
            "neither, over Fixed PIM, most": (1.30, max(fixed)),
        },
        _launches(steps): {"RC and OP over neither, most": (3.8, gain)},
    }
    quoted |= _judged(where, why)
    rows = found.rows("ms")
    return Experiment(
        title="Figure 13: with and without RC and OP",
        rows=rows,
        quoted=quoted,
        draw=_bars(rows, "ms", RUNTIMES),
    )


def figure14(changes: Changes, progress: Progress) -> Experiment:
    """Energy of a step with and without recursive kernels and the operation pipeline."""
    steps, where = Steps(changes=changes, progress=progress), "VI-E, Figure 14"
    found = _Found(steps, PROGR, FIXED, *RUNTIMES)
    quoted = found.orders(
        where,
        {f"{each} takes more than neither": ("joules", each, NEITHER) for each in (PROGR, FIXED)},
    )
    launches = (
        f"RC and OP make a step {max(found.over(NEITHER, BOTH)):.2f} times as fast at "
        "most, for the reasons of Figure 13, and most of its energy is the host's, by time."
    )
    slow = max(found.over(PROGR, NEITHER, "joules"))
    gain = max(found.over(NEITHER, BOTH, "joules"))
    why = {
        _CORES_OPEN: {"Progr and Fixed PIM over neither, most": (2.7, slow)},
        launches: {"neither over RC and OP, most": (3.9, gain)},
    }
    quoted |= _judged(where, why)
    rows = found.rows("J", "joules", 2)
    return Experiment(
        title="Figure 14: dynamic energy with and without RC and OP",
        rows=rows,
        quoted=quoted,
        draw=_bars(rows, "J", [FIXED, *RUNTIMES]),
    )


def figure15(changes: Changes, progress: Progress) -> Experiment:
    """How much of the pools computes."""
    steps = Steps(changes=changes, progress=progress)
    found = _Found(steps, *RUNTIMES)
    none, recursive, _, both = (found.of(CALIBRATED, each, "pools_percent") for each in RUNTIMES)
    figures = {
        "RC, points more, VGG-19": (66, round(recursive[0] - none[0], 1) + 0.0),
        "OP beside RC, points more, AlexNet": (18, both[1] - recursive[1]),
        "RC and OP, least": (100, min(both)),
    }
    rows = found.rows("%", "pools_percent")
    return Experiment(
        title="Figure 15: how much of the pools computes",
        rows=rows,
        quoted=_numbers("VI-E, Figure 15", "%", _launches(steps), figures, digits=1),
        draw=partial(draw_bars, rows, {"banks at work, %": [f"{each}, %" for each in RUNTIMES]}),
    )


def side_by_side(
    steps: Steps, column: str | float, network: str, other: str
) -> tuple[int, int, int, int]:
    """As many steps of two networks as take about as long, and the ns of all of them, one network
    after the other and together."""
    of_other = steps.run(column, other, configuration=REST, share=1)
    one = steps.run(column, network)
    first, second = (
        min(max(1, longer.step_ns // this.step_ns), max(1, _MOST_OPS // len(this.made.trace.ops)))
        for this, longer in ((one, of_other), (of_other, one))
    )
    alone = steps.run(column, network, steps=first).made
    both = steps.run(column, network, steps=first, beside=(other, second)).made
    return first, second, alone.total_ns + second * of_other.step_ns, both.total_ns


def figure16(changes: Changes, progress: Progress) -> Experiment:
    """A second network on what the first leaves idle of CPU and core."""
    steps, where = Steps(changes=changes, progress=progress), "VI-F, Figure 16"
    rows: list[Row] = []
    gains: dict[str, list[float]] = {column: [] for column in COLUMNS}
    for network, other, column in product(BESIDE, OTHERS, COLUMNS):
        first, second, sequential_ns, both_ns = side_by_side(steps, column, network, other)
        gain = 100 * (sequential_ns / both_ns - 1)
        gains[column].append(gain)
        ms = [each / 1e6 for each in (sequential_ns, both_ns)]
        columns = ("steps", "steps beside", "sequential, ms", "side by side, ms", "faster, %")
        figures = zip(columns, (first, second, *ms, gain), (0, 0, 1, 1, 1), strict=True)
        rows.append(
            {"network": network, "beside": other, "rate": column}
            | {name: Claim(ours=of, mark=column, digits=digits) for name, of, digits in figures}
        )
    of = gains[CALIBRATED]
    name = f"side by side is faster, {CALIBRATED}"
    quoted = above(where, 0, {name: of}, mark=CALIBRATED)
    busy = [(each, steps.run(CALIBRATED, each).made) for each in BESIDE]
    why = "To gain 69 % the CPU has to be idle for about as much of a step. It is for " + ", ".join(
        f"{100 * (1 - made.busy_ns('cpu') / made.step_ns):.0f} % of {each}'s" for each, made in busy
    )
    figures = {"faster, least": (69, min(of)), "faster, most": (83, max(of))}
    return Experiment(
        title="Figure 16: two networks",
        rows=rows,
        quoted=quoted | _numbers(where, "%", f"{why}.", figures, digits=1),
        notes=[
            "Not said is which six pairs there are. Of both networks as many steps as take about "
            f"as long, but {_MOST_OPS:,} operations at most."
        ],
        draw=partial(draw_bars, rows, {"faster, %": ["faster, %"]}),
    )


def figure17(changes: Changes, progress: Progress) -> Experiment:
    """Energy-delay product and power by frequency."""
    steps, where = Steps(changes=changes, progress=progress), "VI-G, Figure 17"
    found = _Found(steps, *FREQUENCIES, GPU)
    quoted: dict[str, Claim] = {}
    for column in COLUMNS:
        products = zip(*(found.of(column, each, "edp") for each in FREQUENCIES), strict=True)
        least = {
            f"energy-delay product is least at 4x, {column}": [
                fast < min(slow) for *slow, fast in products
            ]
        }
        quoted |= above(where, 0, least, mark=column)
    power = found.over(GPU, "4x", "watts")
    both = zip(found.rows("J s", "edp", 4), found.rows("W", "watts"), strict=True)
    rows: list[Row] = [{**products, **powers} for products, powers in both]
    return Experiment(
        title="Figure 17: energy-delay product and power by frequency",
        rows=rows,
        quoted=quoted | _between(where, "power of GPU over that at 4x", (1.5, 2.6), power),
        notes=[
            "Energy of an operation does not depend on frequency at constant voltage, so that a "
            "step which is shorter takes less, of the host, and its product of energy and time "
            "falls."
        ],
        draw=_bars(rows, "J s", [*FREQUENCIES, GPU]),
    )
