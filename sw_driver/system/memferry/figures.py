"""The paper's figures: times of layers, speeds of the systems, and their memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import inf
from statistics import fmean
from typing import Any

from ..outcome import Outcome
from ..plotting import draw_bars, draw_lines
from ..reproduction import (
    Changes,
    Claim,
    Experiment,
    Row,
    above,
    calibrated,
    claims,
    predicted,
)  # fmt: skip
from ..runs import Runs
from .runs import DEEPSPEED, GO, MACHINES, MEMFERRY, NATIVE, PAPERS, MemferryCase, profile_for

__all__ = ["figure3", "figure9", "figure10", "figure11", "figure12", "figure13", "figure14"]

BASELINES = (DEEPSPEED, NATIVE)
NETWORKS = ("bert-base", "roberta", "bert-large", "gpt2-medium")
"""Networks of section V-B: two small ones and two large ones."""
SIZES = (0.7, 1.0, 1.6, 1.9, 2.4, 2.9)
ON_V100 = tuple(f"transformer-xl-{size}b" for size in SIZES)
ON_A100 = tuple(f"transformer-xl-{size}" for size in ("1.0b-8", "4.3b", "6.7b"))
GPUS = (1, 2, 4, 8)
TOKENS = 3.7
"""Factor of the traces' 378 tokens on the V100, fitted to the largest networks that fit."""

_TIMES = {"step time, ms": [f"{system}, ms" for system in PAPERS]}
_PEAKS = {"the GPU's memory, GiB": [f"{system}, GiB" for system in PAPERS]}
_MORE = (1, inf)
"""Band for claims whose point is that there is a gain."""
_SLOWER = (1.01, inf)
"""Band for 1 % slower or more; a backward pass takes at least as long as on the GPU anyway."""

_BOTH, _THAN_GO = "MemFerry is faster than both baselines", "MemFerry is faster than GO-MemFerry"

Outcomes = Mapping[str, Sequence[Outcome]]
"""Steps of each system, on each of some networks."""


def figure3(runs: Runs) -> Experiment:
    """Compare layers of BERT-base on the GPU and by DHA; the embedding has a table of its own."""
    runs.progress("layers of bert-base")
    layers = {
        layer.name: layer
        for layer in profile_for(MemferryCase(network="bert-base", changes=runs.changes)).layers
    }  # fmt: skip
    words, output = layers["words"], layers["logits"]
    embedding = replace(
        words,
        nbytes=output.nbytes,
        transfer_ns=output.transfer_ns,
        backward_gradient_dha_ns=max(words.backward_ns, output.transfer_ns),
    )
    rows: list[Row] = []
    quoted: dict[str, Claim] = {}
    for kind, layer, forward_band in (
        ("Embedding", embedding, (0, 1)),
        ("LayerNorm", layers["norm"], (0, 1)),
        ("Linear", layers["layers.0.mlp.dense_h_to_4h"], _MORE),
    ):
        times = {
            "forward on the GPU, us": layer.transfer_ns + layer.forward_ns,
            "forward by DHA, us": layer.forward_dha_ns,
            "backward on the GPU, us": layer.backward_ns,
            "backward by DHA, us": layer.backward_dha_ns,
            "backward, gradients by DHA, us": layer.backward_gradient_dha_ns,
        }
        rows.append({"layer": kind} | {c: predicted(ns / 1e3, digits=1) for c, ns in times.items()})
        forward, dha, backward, slow, written = times.values()
        judged = [
            ("b: forward time", dha / forward, forward_band),
            ("c: backward time", slow / backward, _SLOWER),
        ]
        if kind == "LayerNorm":
            judged.append(("d: gradient time", written / backward, _SLOWER))
        for name, x, band in judged:
            where = f"Figure 3{name[0]}"
            quoted |= claims(where, "x", band, {f"{kind}, {name} by DHA over the GPU's": (1, x)})
    return Experiment(
        title="Figure 3: layers of BERT-base",
        rows=rows,
        quoted=quoted,
        notes=["The forward time on the GPU includes the copy of the parameters."],
        why_missed="the backward pass of an embedding reads no parameters here, and a norm "
        "computes for longer than its bytes take on the link.",
        draw=partial(
            draw_bars, rows, {"us": [column for column in rows[0] if column != "layer"]}
        ),
    )  # fmt: skip


def _steps(
    runs: Runs, networks: Sequence[str], systems: Sequence[str] = PAPERS, **case: Any
) -> Outcomes:
    """Simulate a step of each network on each system; ``case`` has further fields of the case."""
    return {
        system: [
            runs.simulated(MemferryCase, network=name, system=system, **case) for name in networks
        ]
        for system in systems
    }


def _faster(steps: Outcomes, system: str, *others: str) -> list[float]:
    """Return the speed-up of a system over the fastest of others, on each network."""
    fastest = [min(steps[other][n].step_ns for other in others) for n in range(len(steps[system]))]
    return [ns / step.step_ns for ns, step in zip(fastest, steps[system], strict=True)]


def _peak(step: Outcome) -> int:
    """Return the bytes of the GPU's memory that a step takes."""
    return step.peak_bytes["gpu"]


def _less(steps: Outcomes, system: str, *others: str) -> list[float]:
    """Return the % of the GPU's memory that a system saves over the best of others."""
    least = [min(_peak(steps[other][n]) for other in others) for n in range(len(steps[system]))]
    both = zip(steps[system], least, strict=True)
    return [100 * (1 - _peak(step) / nbytes) for step, nbytes in both]


def _rows(
    networks: Sequence[str], steps: Outcomes, *, times: bool = True, peaks: bool = True
) -> list[dict[str, Claim | str]]:
    return [
        {"network": network}
        | {
            f"{name}, ms": predicted(steps[name][n].step_ns / 1e6, digits=1)
            for name in PAPERS * times
        }
        | {f"{x}, GiB": predicted(_peak(steps[x][n]) / (1 << 30)) for x in PAPERS * peaks}
        for n, network in enumerate(networks)
    ]


def _room(machine: str, changes: Changes) -> int:
    """Return the bytes of the GPU's memory."""
    return int(MACHINES[machine].override(changes).memory("gpu").capacity_bytes.value)


def figure9(runs: Runs) -> Experiment:
    """Compare times of a step of four networks."""
    steps, where = _steps(runs, NETWORKS), "Figure 9"
    rows = _rows(NETWORKS, steps, peaks=False)
    over = {than: _faster(steps, MEMFERRY, than) for than in BASELINES}
    for n, row in enumerate(rows):
        row |= {f"speed-up over {than}": predicted(gains[n]) for than, gains in over.items()}
    small, large = (
        [x for gains in over.values() for x in gains[at]] for at in (slice(2), slice(2, 4))
    )
    of_small = "gain of small networks over the"
    gains = {
        f"most {of_small} most of large ones": (1.687 / 1.321, max(small) / max(large)),
        f"least {of_small} least of large ones": (1.217 / 1.071, min(small) / min(large)),
    }
    return Experiment(
        title="Figure 9: steps on an A100",
        rows=rows,
        quoted=above(
            where,
            1,
            {
                _BOTH: _faster(steps, MEMFERRY, *BASELINES),
                _THAN_GO: _faster(steps, MEMFERRY, GO),
            },
        )
        | claims(where, "x", _MORE, gains),
        why_missed="the least gain would be met if the table of words and the output's weight "
        "were two tensors.",
        draw=partial(draw_bars, rows, _TIMES),
    )


def figure10(runs: Runs) -> Experiment:
    """Compare the use of the GPU, and steps of GO-MemFerry with some gradients on the GPU."""
    steps = _steps(runs, NETWORKS)
    used = {
        name: [100 * (step.busy("gpu") / step.step_ns) for step in steps[name]] for name in PAPERS
    }
    gpt = {name: shares[-1] for name, shares in used.items()}
    shares = [n / 4 for n in range(5)]
    kept = [_steps(runs, NETWORKS, [GO], reserve=share)[GO] for share in shares]
    curves = [[step.step_ns / 1e6 for step in by_share] for by_share in zip(*kept, strict=True)]
    slopes = [[after - before for before, after in pairwise(curve)] for curve in curves]
    over = {
        "MemFerry's use over DeepSpeed's, GPT-2": (18.5, gpt[MEMFERRY] - gpt[DEEPSPEED]),
        "MemFerry's use over native's, GPT-2": (1.5, gpt[MEMFERRY] - gpt[NATIVE]),
    }
    falls = {
        "step time falls with the reserve factor": [max(slope) <= 0 for slope in slopes],
        "step time is convex in the reserve factor": [slope == sorted(slope) for slope in slopes],
    }
    relative: list[Row] = [
        {"reserve factor": f"{share:g}"}
        | {
            name: predicted(curve[n] / curve[0])
            for name, curve in zip(NETWORKS, curves, strict=True)
        }
        for n, share in enumerate(shares)
    ]
    return Experiment(
        title="Figure 10: use of the GPU, reserve factor",
        rows=[
            {"network": name}
            | {f"{system}, %": predicted(use[n], digits=1) for system, use in used.items()}
            | {
                f"reserve {share:g}, ms": predicted(ms, digits=1)
                for share, ms in zip(shares, curves[n], strict=True)
            }
            for n, name in enumerate(NETWORKS)
        ],
        quoted=claims("Figure 10a", "points", (0, inf), over) | above("Figure 10b", 0, falls),
        notes=["A GPU that waits for DHA counts as used."],
        why_missed="a gradient on the GPU also has to be copied, which the paper's D(i, j) leaves "
        "out.",
        draw=partial(
            draw_lines,
            relative[1:],
            {name: name for name in NETWORKS},
            "step time relative to factor 0",
        ),
    )


def figure11(runs: Runs) -> Experiment:
    """Compare steps and memory of larger and larger networks on a V100."""
    steps, where = _steps(runs, ON_V100, machine="v100"), "Figure 11"
    rows, room = _rows(ON_V100, steps), _room("v100", runs.changes)
    slower = zip(*(_faster(steps, baseline, GO) for baseline in BASELINES), strict=True)
    longer = _steps(runs, ON_V100, machine="v100", samples=TOKENS)
    largest = {
        system: max(
            (size for size, step in zip(SIZES, by_size, strict=True) if _peak(step) <= room),
            default=0.0,
        )
        for system, by_size in longer.items()
    }
    of_paper = dict(zip(PAPERS, (1.9, 2.4, 2.4, 2.9), strict=True))
    fits = {f"largest network, {name}": (of_paper[name], largest[name]) for name in PAPERS}
    ratio = largest[GO] / largest[DEEPSPEED] if largest[DEEPSPEED] else 0.0
    larger = {"GO-MemFerry's largest network over DeepSpeed's": (1.52, ratio)}
    gains = _faster(longer, MEMFERRY, DEEPSPEED)
    return Experiment(
        title="Figure 11: Transformer-XL on a V100",
        rows=rows,
        quoted=above(
            where,
            1,
            {
                _BOTH: _faster(steps, MEMFERRY, *BASELINES),
                _THAN_GO: _faster(steps, MEMFERRY, GO),
                "GO-MemFerry is slower than both baselines": [*map(min, slower)],
            },
        )
        | above(where, 0, {"GO-MemFerry takes the least memory": _less(steps, GO, *PAPERS[:-1])})
        | claims("abstract, V-C", "x", 0.01, larger, mark="calibrated")
        | claims(where, "B", 0, fits, mark="calibrated", digits=1)
        | claims(where, "x", 0.1, {"speed-up of MemFerry over DeepSpeed": (1.12, fmean(gains))}),
        notes=[
            f"The largest networks have {TOKENS:g} times the table's 378 tokens. This factor is "
            "*calibrated*: 3.5 to 3.9 give all four sizes. With it MemFerry is "
            f"{min(gains):.2f} to {max(gains):.2f} times as fast as DeepSpeed.",
        ],
        why_missed="updates on the host's 12 cores hide GO-MemFerry's writes, and longer backward "
        "passes hide DeepSpeed's.",
        draw=partial(draw_bars, rows, _TIMES | _PEAKS),
    )


def figure12(runs: Runs) -> Experiment:
    """Compare the GPU's memory that four networks take."""
    steps, where = _steps(runs, NETWORKS), "Figure 12"
    rows = _rows(NETWORKS, steps, times=False)
    mem, go = (_less(steps, system, DEEPSPEED) for system in (MEMFERRY, GO))
    for n, row in enumerate(rows):
        row["MemFerry saves, %"] = predicted(mem[n], digits=1)
        row["GO-MemFerry saves, %"] = predicted(go[n], digits=1)
    more = "MemFerry saves more with small networks than with GPT-2"
    saved = {more: (40.1 - 1.4, fmean(mem[:2]) - mem[-1])}
    least = {
        "MemFerry takes less than DeepSpeed": mem,
        "GO-MemFerry takes the least": _less(steps, GO, *PAPERS[:-1]),
    }
    return Experiment(
        title="Figure 12: memory on an A100",
        rows=rows,
        quoted=above(where, 0, least) | claims(where, "points", (0, inf), saved),
        draw=partial(draw_bars, rows, _PEAKS),
    )


def figure13(runs: Runs) -> Experiment:
    """Compare steps of Transformer-XL of three sizes."""
    steps, where = _steps(runs, ON_A100), "Figure 13"
    rows = _rows(ON_A100, steps, peaks=False)
    over = _faster(steps, MEMFERRY, DEEPSPEED)
    for mark, row, x in zip((calibrated, predicted, predicted), rows, over, strict=True):
        row["speed-up over DeepSpeed"] = mark(x)
    room = _room("a100", runs.changes)
    too_large = [system for system in PAPERS if _peak(steps[system][-1]) > room]
    falls = {"speed-up over DeepSpeed, 1 B relative to 6.7 B": (1.37 / 1.26, over[0] / over[-1])}
    return Experiment(
        title="Figure 13: Transformer-XL on an A100",
        rows=rows,
        quoted=above(where, 1, {_BOTH: _faster(steps, MEMFERRY, *BASELINES)})
        | {
            "speed-up over DeepSpeed, 1 B": calibrated(
                over[0], 1.37, section=where, unit="x", band=0.01
            )
        }
        | claims(where, "x", 0.1, {"speed-up over DeepSpeed, 6.7 B": (1.26, over[-1])})
        | claims(where, "x", _MORE, falls),
        notes=[
            "In the paper 6.7 B parameters fit in 80 GB; here they are too large for "
            f"{', '.join(too_large) or 'none'}.",
        ],
        why_missed="all parts of a step grow with the parameters, so the gain does not fall.",
        draw=partial(draw_bars, rows, _TIMES),
    )


def figure14(runs: Runs) -> Experiment:
    """Compare steps of eight samples on one to eight GPUs."""
    where, network = "Figure 14", ON_A100[1]
    systems = (*BASELINES, MEMFERRY)
    steps = [_steps(runs, [network], systems, gpus=n) for n in GPUS]
    took = {system: [by_gpus[system][0].step_ns for by_gpus in steps] for system in systems}
    rows: list[Row] = [
        {"GPUs": str(gpus)}
        | {f"{system}, ms": predicted(ns[n] / 1e6, digits=1) for system, ns in took.items()}
        for n, gpus in enumerate(GPUS)
    ]
    ours = took[MEMFERRY]
    falls = [took[system] == sorted(took[system], reverse=True) for system in systems]
    faster = [all(took[name][n] > ours[n] for name in BASELINES) for n in range(len(GPUS))]
    return Experiment(
        title="Figure 14: 4.3 B on several A100",
        rows=rows,
        quoted=above(where, 0, {"step time falls up to 8 GPUs": falls})
        | above(where, 0, {_BOTH: faster})
        | claims(
            where, "x", _MORE, {"step time on 1 GPU over 8": (5.41 / 4.12, ours[0] / ours[-1])}
        ),
        notes=["GO-MemFerry is missing: nothing adds up gradients that several GPUs write by DHA."],
        draw=partial(draw_lines, rows, {f"{name}, ms": name for name in took}, "step time, ms"),
    )
