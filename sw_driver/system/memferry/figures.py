"""The paper's figures of section V: how fast the systems are, and what they take of the memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import inf
from statistics import fmean
from typing import Any

from ..plotting import draw_bars, draw_lines
from ..reproduction import Changes, Claim, Experiment, Progress, Row, calibrated, predicted
from .runs import (
    BUFFER_PS_PER_BYTE,
    DEEPSPEED,
    GO,
    MACHINES,
    MEMFERRY,
    MODULES,
    NATIVE,
    OURS,
    PAPERS,
    SYSTEMS,
    Case,
    profile_for,
    simulate,
)
from .systems import StepResult

__all__ = ["axdimm", "figure9", "figure10", "figure11", "figure12", "figure13", "figure14"]

BASELINES = (DEEPSPEED, NATIVE)
SMALL, LARGE = ("bert-base", "roberta"), ("bert-large", "gpt2-medium")
"""Section V-B."""
NETWORKS = (*SMALL, *LARGE)
GPT = "gpt2-medium"
SIZES = (0.7, 1.0, 1.6, 1.9, 2.4, 2.9)
ON_V100 = tuple(f"transformer-xl-{size}b" for size in SIZES)
ON_A100 = tuple(f"transformer-xl-{size}" for size in ("1.0b-8", "4.3b", "6.7b"))
GPUS = (1, 2, 4, 8)
FITTED = 1.37
"""MemFerry over DeepSpeed at 1 B, on an A100: what DeepSpeed's one number is calibrated on."""

_TIMES = {"a step, ms": [f"{each}, ms" for each in SYSTEMS]}
_PEAKS = {"the GPU's memory, GiB": [f"{each}, GiB" for each in PAPERS]}
_OPEN = (
    "The paper does not say how many samples of which length a step has: computing takes as long "
    "as there are, and copies and updates do not depend on them."
)


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """Steps of networks on a machine, with its changes."""

    changes: Changes
    progress: Progress
    machine: str = "a100"
    how: Mapping[str, Any] = field(default_factory=dict)
    """What else the cases have."""

    def case(self, network: str, **how: Any) -> Case:
        return Case(
            network=network, machine=self.machine, changes=self.changes, **{**self.how, **how}
        )

    def of(self, network: str, system: str, **how: Any) -> StepResult:
        return simulate(self.case(network, system=system, **how), self.progress)

    def faster(self, network: str, than: str, system: str = MEMFERRY) -> float:
        """How many times as fast a system is as another."""
        return self.of(network, than).total_ns / self.of(network, system).total_ns

    def less(self, network: str, than: str, system: str) -> float:
        """How many % less of the GPU's memory it takes."""
        peaks = [self.of(network, each).peak_bytes for each in (system, than)]
        return 100 * (1 - peaks[0] / peaks[1])

    def row(self, network: str, systems: Sequence[str] = SYSTEMS) -> dict[str, Claim | str]:
        """Times, and memory of the paper's systems."""
        times = {
            f"{each}, ms": predicted(self.of(network, each).total_ns / 1e6, digits=1)
            for each in systems
        }
        peaks = {
            f"{each}, GiB": predicted(self.of(network, each).peak_bytes / (1 << 30))
            for each in PAPERS
        }
        return {"network": network, **times, **peaks}

    @property
    def room(self) -> int:
        """Bytes of the GPU's memory."""
        machine = MACHINES[self.machine].override(self.changes)
        return int(machine.memory("gpu").capacity_bytes.value)

    def orders(self, networks: Sequence[str], where: str) -> dict[str, Claim]:
        """What the paper says of all networks' times."""

        def beats(system: str, others: Sequence[str]) -> Claim:
            return _all(
                networks,
                lambda each: all(self.faster(each, than, system) > 1 for than in others),
                where,
            )

        return {
            "MemFerry is faster than both baselines": beats(MEMFERRY, BASELINES),
            "the same with our planner": beats(OURS, BASELINES),
            "MemFerry is faster than GO-MemFerry": beats(MEMFERRY, [GO]),
            "native is faster than DeepSpeed": beats(NATIVE, [DEEPSPEED]),
        }

    def saves(self, networks: Sequence[str], where: str) -> Claim:
        return _all(
            networks,
            lambda each: all(self.less(each, than, GO) > 0 for than in PAPERS[:-1]),
            where,
        )


def _all(of: Sequence[Any], holds: Callable[[Any], bool], section: str) -> Claim:
    """Of how many something holds, which the paper says of all."""
    unit = f"of {len(of)}"
    return predicted(
        sum(map(holds, of)), len(of), band=0, section=section, unit=unit, digits=0
    )  # fmt: skip


def _trend(ours: float, value: float, section: str, unit: str = "x", least: float = 1) -> Claim:
    """A figure of which the paper's point is that it is above ``least``."""
    return predicted(ours, value, section=section, unit=unit, band=(least, inf))


def _not_judged(
    why: str, section: str, unit: str, figures: Mapping[str, tuple[float, float]]
) -> dict[str, Claim]:
    """The paper's figures and ours."""
    return {
        name: predicted(ours, value, section=section, unit=unit, excluded=why)
        for name, (value, ours) in figures.items()
    }


def figure9(changes: Changes, progress: Progress) -> Experiment:
    """Times of a step of four networks."""
    steps, where = _Steps(changes=changes, progress=progress), "V-B, Figure 9"
    rows = [steps.row(each) for each in NETWORKS]
    over = {each: [steps.faster(each, than) for than in BASELINES] for each in NETWORKS}
    for row, each in zip(rows, NETWORKS, strict=True):
        row |= {f"over {than}": predicted(x) for than, x in zip(BASELINES, over[each], strict=True)}
    small, large = ([x for each in group for x in over[each]] for group in (SMALL, LARGE))
    layers = profile_for(steps.case("bert-base")).layers
    copies_ms = sum(layer.transfer_ns for layer in layers) / 1e6
    computes_ms = sum(
        each.forward_ns + each.backward_ns + each.gap_forward_ns + each.gap_backward_ns
        for each in layers
    ) / 1e6  # fmt: skip
    why = (
        f"{_OPEN} With 8 samples of 128 tokens bert-base computes for {computes_ms:.0f} ms beside "
        f"copies of {copies_ms:.0f} ms each way, with four times as many for "
        f"{4 * computes_ms:.0f}. And 10 to 40 % of all is not 7.1 to 68.7 %."
    )
    return Experiment(
        title="Figure 9: a step of four networks on an A100",
        rows=rows,
        quoted={
            **steps.orders(NETWORKS, where),
            "most gain of small networks, of that of large ones": _trend(
                max(small) / max(large), 1.687 / 1.321, where
            ),
            "least gain of small networks, of that of large ones": _trend(
                min(small) / min(large), 1.217 / 1.071, where
            ),
            **_not_judged(
                why, where, "x",
                {
                    "least gain of all": (1.1, min(small + large)),
                    "most gain of all": (1.4, max(small + large)),
                    "least gain of small networks": (1.217, min(small)),
                    "most gain of small networks": (1.687, max(small)),
                    "least gain of large networks": (1.071, min(large)),
                    "most gain of large networks": (1.321, max(large)),
                },
            ),
        },
        draw=partial(draw_bars, rows, _TIMES),
    )  # fmt: skip


def figure10(changes: Changes, progress: Progress) -> Experiment:
    """How much the GPU is used, and GO-MemFerry with some gradients on the GPU."""
    steps, where = _Steps(changes=changes, progress=progress), "V-B, Figure 10a"
    used = {
        name: {each: 100 * steps.of(name, each).utilization for each in PAPERS} for name in NETWORKS
    }
    gpt, bert = used[GPT], used["bert-base"]
    shares = [n / 4 for n in range(5)]
    curves = {
        name: [steps.of(name, GO, reserve=share).total_ns / 1e6 for share in shares]
        for name in NETWORKS
    }
    slopes = {
        name: [after - before for before, after in pairwise(curve)]
        for name, curve in curves.items()
    }
    curve = "V-C, Figure 10b"
    return Experiment(
        title="Figure 10: use of the GPU, and the reserve factor",
        rows=[
            {"network": name}
            | {f"{each}, %": predicted(used[name][each], digits=1) for each in PAPERS}
            | {
                f"reserve factor {share:g}, ms": predicted(ms, digits=1)
                for share, ms in zip(shares, curves[name], strict=True)
            }
            for name in NETWORKS
        ],
        quoted={
            "MemFerry's use over DeepSpeed's, GPT-2": _trend(
                gpt[MEMFERRY] - gpt[DEEPSPEED], 18.5, where, "points", 0
            ),
            "MemFerry's use over native's, GPT-2": _trend(
                gpt[MEMFERRY] - gpt[NATIVE], 1.5, where, "points", 0
            ),
            "all gradients on the GPU are no slower than none": _all(
                NETWORKS, lambda each: curves[each][-1] <= curves[each][0], curve
            ),
            "a step falls with each share of them": _all(
                NETWORKS, lambda each: max(slopes[each]) <= 0, curve
            ),
            "and is convex": _all(
                NETWORKS,
                lambda each: all(before <= after for before, after in pairwise(slopes[each])),
                curve,
            ),
            **_not_judged(
                _OPEN, "I, III-A", "%",
                {
                    "DeepSpeed's use, GPT-2": (63.1, gpt[DEEPSPEED]),
                    "DeepSpeed's use, BERT-base": (63, bert[DEEPSPEED]),
                    "most of MemFerry's use, of DeepSpeed's": (
                        127, max(100 * of[MEMFERRY] / of[DEEPSPEED] for of in used.values()),
                    ),
                },
            ),
            **_not_judged(
                "Without offloading the model's GPU never waits: what is lost is the framework's.",
                "I, III-A", "%",
                {"use of the GPU alone, BERT-base": (99, 100), "of GPT-2, at least": (80, 100)},
            ),
        },
        notes=[
            "While a GPU waits for DHA its kernels run, so that counts as use.",
            "D(i, j) weighs what backward passes take alone. But a gradient on the GPU has to be "
            "copied then, which may make a step longer.",
        ],
        draw=partial(
            draw_lines,
            [
                {"reserve factor": f"{share:g}"}
                | {name: predicted(curves[name][n] / curves[name][0]) for name in NETWORKS}
                for n, share in enumerate(shares)
                if n
            ],
            dict(zip(NETWORKS, NETWORKS, strict=True)),
            "a step, of that at 0",
        ),
    )  # fmt: skip


def figure11(changes: Changes, progress: Progress) -> Experiment:
    """Larger and larger networks on a V100."""
    steps = _Steps(changes=changes, progress=progress, machine="v100")
    rows, where = [steps.row(each) for each in ON_V100], "V-C, Figure 11"

    def largest(system: str) -> float:
        """Billions of parameters that fit, on the line through the first and last network."""
        first, last = (steps.of(each, system).peak_bytes for each in (ON_V100[0], ON_V100[-1]))
        return SIZES[-1] + (steps.room - last) / (last - first) * (SIZES[-1] - SIZES[0])

    layers = profile_for(steps.case(ON_V100[4])).layers
    both = 2 * 4 * SIZES[4] * 1e9
    kept = sum(layer.activation_bytes for layer in layers)
    why = (
        f"At 2.4 B parameters and gradients in FP32 take {both / 1e9:.1f} GB, and activations of "
        f"the shortest sample that is named, 378 tokens, {kept / 1e9:.1f}: all fit in 32 GB. They "
        f"do not with {(steps.room - both) / kept:.1f} times these activations, but of 378 to 4096 "
        "tokens it is not said how many there are here."
    )
    slower = [100 * (1 - steps.faster(each, DEEPSPEED, GO)) for each in ON_V100]
    gains = [steps.faster(each, DEEPSPEED) for each in ON_V100]
    return Experiment(
        title="Figure 11: Transformer-XL on a V100, one sample",
        rows=rows,
        quoted={
            **steps.orders(ON_V100, where),
            "GO-MemFerry is slower than both baselines": _all(
                ON_V100, lambda each: all(steps.faster(each, GO, b) > 1 for b in BASELINES), where
            ),
            "GO-MemFerry takes the least memory": steps.saves(ON_V100, where),
            **_not_judged(
                why, "abstract, V-C", "x",
                {
                    "GO-MemFerry's largest network, of DeepSpeed's": (
                        1.52, largest(GO) / largest(DEEPSPEED),
                    ),
                },
            ),
            **_not_judged(
                why, where, "B",
                {
                    f"largest network, {each}": (value, largest(each))
                    for each, value in zip(PAPERS, (1.9, 2.4, 2.4, 2.9), strict=True)
                },
            ),
            **_not_judged(_OPEN, where, "x", {"MemFerry over DeepSpeed": (1.12, fmean(gains))}),
            **_not_judged(_OPEN, where, "%", {"GO-MemFerry slower": (3.4, fmean(slower))}),
        },
        notes=[
            "As GO-MemFerry's largest network is 1.52 times as large as DeepSpeed's, for DeepSpeed "
            "1.9 B fit and 2.4 B do not.",
            "Here the host's 12 cores update 1 B in a second, beside which what GO-MemFerry writes "
            "is over soon; and a kernel computes while it writes, which need not be so.",
        ],
        draw=partial(draw_bars, rows, _TIMES | _PEAKS),
    )  # fmt: skip


def figure12(changes: Changes, progress: Progress) -> Experiment:
    """What four networks take of the GPU's memory."""
    steps, where = _Steps(changes=changes, progress=progress), "V-C, Figure 12"
    rows = [steps.row(each, ()) for each in NETWORKS]
    by = {
        system: {each: steps.less(each, DEEPSPEED, system) for each in NETWORKS}
        for system in (MEMFERRY, GO)
    }
    for row, each in zip(rows, NETWORKS, strict=True):
        row |= {f"{name}, % less": predicted(of[each], digits=1) for name, of in by.items()}
    mem, go = by[MEMFERRY], by[GO]
    small = fmean(mem[each] for each in SMALL)
    shares = []
    for each in SMALL:
        sizes = [layer.nbytes for layer in profile_for(steps.case(each)).layers]
        table, total = max(sizes), sum(sizes)
        shares += [f"{50 * table / of:.0f} %" for of in (total, total - table)]
    why = (
        f"{_OPEN} Of parameters and gradients MemFerry leaves out an embedding, {shares[0]} of "
        f"bert-base's and {shares[2]} of roberta's, or {shares[1]} and {shares[3]} if that is also "
        "the output's: less than 40.1 % or 61.7 %. Two means of "
        "GO-MemFerry's, of 20.1 and 41.6 %, cannot both be. Our figures have DeepSpeed's bucket of "
        "2 GB in them, of which the paper says nothing."
    )
    return Experiment(
        title="Figure 12: memory of four networks on an A100",
        rows=rows,
        quoted={
            "MemFerry takes less than DeepSpeed": _all(NETWORKS, lambda e: mem[e] > 0, where),
            "GO-MemFerry takes the least": steps.saves(NETWORKS, where),
            "MemFerry saves more of small networks than of GPT-2": _trend(
                small - mem[GPT], 40.1 - 1.4, where, "points", 0
            ),
            **_not_judged(
                why, "I, V-C, Figure 12", "% less",
                {
                    "MemFerry, small networks": (40.1, small),
                    "MemFerry, GPT-2": (1.4, mem[GPT]),
                    "MemFerry, mean": (25.4, fmean(mem.values())),
                    "MemFerry, most": (61.7, max(mem.values())),
                    "GO-MemFerry than MemFerry, small networks": (
                        17.6, fmean(steps.less(each, MEMFERRY, GO) for each in SMALL),
                    ),
                    "GO-MemFerry, mean": (41.6, fmean(go.values())),
                    "GO-MemFerry, mean, section I": (20.1, fmean(go.values())),
                    "GO-MemFerry, most": (74.4, max(go.values())),
                },
            ),
        },
        draw=partial(draw_bars, rows, _PEAKS),
    )  # fmt: skip


def figure13(changes: Changes, progress: Progress) -> Experiment:
    """Transformer-XL of three sizes, and DeepSpeed's one number."""
    steps, where = _Steps(changes=changes, progress=progress), "V-D, Figure 13"
    rows = [steps.row(each) for each in ON_A100]
    over = [steps.faster(each, DEEPSPEED) for each in ON_A100]
    saved = [steps.less(each, DEEPSPEED, GO) for each in ON_A100]
    too_large = ", ".join(
        each for each in PAPERS if steps.of(ON_A100[-1], each).peak_bytes > steps.room
    )
    for row, x in zip(rows, over, strict=True):
        row["over DeepSpeed"] = (calibrated if x == over[0] else predicted)(x)
    why = (
        "What is saved is gradients. For 21.6 %, activations and all else have to be "
        f"{1 / 0.216 - 2:.1f} times the parameters at all sizes; how large they are depends on "
        "tokens, of which 378 to 4096 are named. With 378 gradients weigh more."
    )
    return Experiment(
        title="Figure 13: Transformer-XL on an A100, eight samples",
        rows=rows,
        quoted={
            **steps.orders(ON_A100, where),
            "over DeepSpeed, 1 B": calibrated(
                over[0], FITTED, section=where, unit="x", band=0.01
            ),
            "over DeepSpeed, 6.7 B": predicted(over[-1], 1.26, section=where, unit="x", band=0.1),
            "over DeepSpeed, mean": predicted(
                fmean(over), 1.32, section=where, unit="x", band=0.1
            ),
            "over DeepSpeed, 1 B, of 6.7 B": _trend(over[0] / over[-1], FITTED / 1.26, where),
            "GO-MemFerry takes the least memory": steps.saves(ON_A100, where),
            **_not_judged(
                why, where, "% less",
                {
                    "GO-MemFerry's memory, mean": (21.6, fmean(saved)),
                    "GO-MemFerry's memory, least": (18, min(saved)),
                    "GO-MemFerry's memory, most": (22, max(saved)),
                },
            ),
        },
        notes=[
            f"So that the first comes out as the paper's, DeepSpeed has to wait {_fit(steps)} ps "
            f"for each byte of gradients; {BUFFER_PS_PER_BYTE} are used everywhere. What else a "
            "step takes grows with the parameters, too, so that MemFerry gains as much at 6.7 B.",
            f"In the paper 6.7 B have room in 80 GB for all systems. Here not for {too_large}.",
        ],
        draw=partial(draw_bars, rows, _TIMES | _PEAKS),
    )  # fmt: skip


def _fit(steps: _Steps) -> int:
    """Of DeepSpeed's buffers, from the speed-up at 1 B."""
    low, high = 0, 1000
    target_ns = FITTED * steps.of(ON_A100[0], MEMFERRY).total_ns
    while low < high:
        middle = (low + high) // 2
        took = steps.of(ON_A100[0], DEEPSPEED, buffer_ps_per_byte=middle).total_ns
        low, high = (middle + 1, high) if took < target_ns else (low, middle)
    return low


def figure14(changes: Changes, progress: Progress) -> Experiment:
    """Eight samples on one to eight GPUs."""
    where, network = "V-D, Figure 14", ON_A100[1]
    shown = (*BASELINES, MEMFERRY, OURS)
    took = {
        each: [
            _Steps(changes=changes, progress=progress, how={"gpus": n}).of(network, each).total_ns
            for n in GPUS
        ]
        for each in shown
    }
    rows: list[Row] = [
        {"GPUs": str(gpus)}
        | {f"{each}, ms": predicted(took[each][n] / 1e6, digits=1) for each in shown}
        for n, gpus in enumerate(GPUS)
    ]
    ours = took[MEMFERRY]
    rate = profile_for(Case(network=network, changes=changes)).link_bytes_per_s
    why = (
        "The global batch is not said, nor what is between the GPUs. Of 5.41 s a copy of "
        f"4.3 B parameters is {4.3e9 * 4 / rate:.2f} and that of gradients as much; how the rest "
        "is shared by computing and updating is not in the paper."
    )
    return Experiment(
        title="Figure 14: Transformer-XL of 4.3 B on several A100",
        rows=rows,
        quoted={
            "a step gets shorter up to 8 GPUs": _all(
                shown[:-1], lambda each: took[each] == sorted(took[each], reverse=True), where
            ),
            "MemFerry is faster than both baselines": _all(
                range(len(GPUS)), lambda n: all(took[each][n] > ours[n] for each in BASELINES),
                where,
            ),
            "1 GPU, of 8": _trend(ours[0] / ours[-1], 5.41 / 4.12, where),
            **_not_judged(
                why, where, "s",
                {"1 GPU": (5.41, ours[0] / 1e9), "8 GPUs": (4.12, ours[-1] / 1e9)},
            ),
            **{
                f"over {each}, 8 GPUs": predicted(
                    100 * (took[each][-1] / ours[-1] - 1), value,
                    section=section, unit="%", excluded=why,
                )
                for each, value, section in (
                    (DEEPSPEED, 28.1, f"abstract, {where}"), (NATIVE, 19.1, where),
                )
            },
        },
        notes=[
            "The first GPU has the copies, as in PyTorch's DataParallel; parameters and gradients "
            "go in a ring at the rate of PCIe. Nothing adds up what several GPUs write by DHA, so "
            "there is no GO-MemFerry. The paper calls 28.1 % the least in the abstract, and 1.28 "
            "times in the introduction."
        ],
        draw=partial(draw_lines, rows, {f"{each}, ms": each for each in shown}, "a step, ms"),
    )  # fmt: skip


def axdimm(changes: Changes, progress: Progress) -> Experiment:
    """Updates by AXDIMMs in the place of the host's cores: in no paper."""
    rows: list[Row] = []
    for machine, networks in (("a100", (*NETWORKS, *ON_A100)), ("v100", ON_V100)):
        steps = _Steps(changes=changes, progress=progress, machine=machine)
        for network in networks:
            host, module = (
                profile_for(steps.case(network, axdimm=axdimm)).update_ns / 1e6
                for axdimm in (False, True)
            )
            row: dict[str, Claim | str] = {"network": network, "machine": machine}
            row["host, ms"] = predicted(host, digits=1)
            row["AXDIMMs, ms"] = predicted(module, digits=1)
            for each in SYSTEMS:
                before, after = (
                    steps.of(network, each, axdimm=axdimm).total_ns for axdimm in (False, True)
                )
                row[f"{each}, x"] = predicted(before / after)
            rows.append(row)
    return Experiment(
        title="Updates by AXDIMMs",
        rows=rows,
        notes=[
            f"In no paper: {MODULES} AXDIMMs update at the rate of the RTL's cycles, and all else "
            "stays. x is how many times as fast a step then is. One would not carry what PCIe "
            "does, as its DDR4-800 link has 6.4 GB/s."
        ],
    )
