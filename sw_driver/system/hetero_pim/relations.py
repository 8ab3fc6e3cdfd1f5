"""Which of the paper's orderings hold at which rate of the units, and why not all can."""

from __future__ import annotations

from sw_driver.machine.hetero_pim import GPU_USE, HETERO_PIM
from sw_driver.workload import load_trace

from ..reproduction import Changes, Claim, Experiment, Progress, Row, above, claims
from .costs import past
from .figures import BESIDE, NETWORKS, OTHERS, VARIANTS, side_by_side
from .runs import CALIBRATED, PREDICTED, Step, Steps

__all__ = ["relations"]

RATES = (0, 1, 4, 16, 48, 1024)
"""Operations of a unit a cycle: 0 for the RTL's; with the last only memory bounds."""

FASTER = (
    "VI-A: Hetero PIM before CPU",
    "VI-A: Progr PIM before CPU",
    "VI-A: Fixed PIM before CPU",
    "VI-A: Hetero PIM before Progr PIM",
    "VI-A: Hetero PIM before Fixed PIM",
    "VI-D: Hetero PIM at 2x before GPU",
    "VI-D: Hetero PIM at 4x before GPU",
    "VI-D: 1P before 16P",
    "VI-E: with neither before Progr PIM",
    "VI-E: with neither before Fixed PIM",
    "VI-E: RC before neither",
    "VI-E: RC and OP before RC",
)
CHEAPER = tuple(
    f"VI-B: {each}"
    for each in (
        "Hetero PIM takes less energy than CPU",
        "Hetero PIM takes less energy than GPU",
        "Hetero PIM takes less energy than Fixed PIM",
        "CPU takes less energy than Progr PIM",
    )
)


def _held(steps: Steps, rate: float) -> dict[str, list[bool]]:
    """On each network or pair."""

    def on(network: str, name: str) -> Step:
        name = name.removeprefix("with ").removeprefix("Hetero PIM at ")
        return steps.run(rate, network, **VARIANTS[name])

    def over_gpu(network: str) -> float:
        return on(network, "GPU").step_ns / on(network, "Hetero PIM").step_ns

    def less(relation: str, verb: str, what: str) -> list[bool]:
        names = relation.split(": ")[1].split(verb)
        both = ([getattr(on(each, name), what) for name in names] for each in NETWORKS)
        return [first < second for first, second in both]

    close = [each for each in NETWORKS if each not in ("dcgan", "resnet-50")]
    gains = [side_by_side(steps, rate, each, other) for each in BESIDE[1:] for other in OTHERS]
    return {
        **{each: less(each, " before ", "step_ns") for each in FASTER},
        "VI-A: Hetero PIM within 10 % of GPU": [
            abs(1 / over_gpu(each) - 1) <= 0.1 for each in close
        ],
        "VI-A: before GPU with ResNet-50": [over_gpu("resnet-50") > 1],
        "VI-A: behind GPU with DCGAN": [over_gpu("dcgan") <= 1],
        "VI-F: two networks side by side before one after the other": [
            together < sequential for *_, sequential, together in gains
        ],
        **{each: less(each, " takes less energy than ", "joules") for each in CHEAPER},
    }


_READ = (
    "How many networks, or pairs, a relation holds for, and at which rates for all: *RTL* are the "
    "pools and the core of this project, all others units of so many operations a cycle and an ARM "
    "core. The greatest stands for units that only wait for memory. Progr PIM has one core. Judged "
    "is the rate that is fitted."
)


def _arithmetic() -> str:
    """What cannot follow from the hardware as it is described."""
    units, mhz = 444, 312.5
    ours = units * mhz / 1e3
    vgg = load_trace("vgg-19")
    tflop = sum(op.flops for op in vgg.ops) / 1e12
    gpu = HETERO_PIM.device("gpu").tflop_per_s.value * GPU_USE["vgg-19"].value
    return (
        f"{units} units of {mhz} MHz do {ours:.0f} GFLOP/s, or {2 * ours:.0f} if each is a pair. A "
        f"step of VGG-19, of 32 images, is {tflop:.2f} TFLOP: {tflop * 1e3 / ours:.0f} s, or "
        f"{tflop * 1e3 / ours / 2:.0f}. A GTX 1080 Ti does {gpu:.1f} TFLOP/s, at the use that the "
        f"paper gives: {tflop / gpu:.2f} s. To be as fast, a unit has to do "
        f"{gpu * 1e3 / ours:.0f} operations a cycle, and nothing may wait for memory, CPU or core."
    )


def _utilisation() -> dict[str, Claim]:
    """Section V-D's, which is what the GPU's rate here is made of; and what a roofline has."""
    gpu = HETERO_PIM.device("gpu")
    figures: dict[str, tuple[float, float | None]] = {}
    for network in NETWORKS:
        trace = load_trace(network)
        share = sum(map(gpu.compute_ns, trace.ops)) / sum(
            map(gpu.cost, past(trace, gpu, write_allocate=False))
        )
        figures[f"use of the GPU, {network}"] = (100 * GPU_USE[network].value, 100 * share)
    why = (
        "It is taken from the paper, as the share of its peak rates that the GPU has here. Ours is "
        "the share of arithmetic in a step by both peak rates."
    )
    return claims("V-D", "%", why, figures, digits=0)


def relations(changes: Changes, progress: Progress) -> Experiment:
    """Orderings by rate."""
    steps = Steps(changes=changes, progress=progress)
    rates = sorted({*RATES, steps.rate})
    names = {rate: f"{rate:g}" if rate else "RTL" for rate in rates}
    held = {rate: _held(steps, rate) for rate in rates}
    rows: list[Row] = []
    for name, first in held[0].items():
        row: dict[str, Claim | str] = {"the paper has": name, "of": f"{len(first)}"}
        for rate in rates:
            mark = CALIBRATED if rate == steps.rate else PREDICTED
            row[names[rate]] = Claim(ours=sum(held[rate][name]), mark=mark, digits=0)
        everywhere = [names[rate] for rate in rates if all(held[rate][name])]
        row["holds at"] = ", ".join(everywhere) or "none of these"
        rows.append(row)
    quoted: dict[str, Claim] = {}
    for name, of in held[steps.rate].items():
        section, relation = name.split(": ")
        quoted |= above(section, 0, {relation: of}, mark=CALIBRATED)
    return Experiment(
        title="Which relations hold at which rate of the units",
        rows=rows,
        quoted=quoted | _utilisation(),
        notes=[_arithmetic(), _READ],
    )
