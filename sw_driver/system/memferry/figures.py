"""The paper's figures of section V: how fast the systems are, and what they take of the memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import inf
from statistics import fmean
from typing import Any

from ..plotting import draw_bars, draw_lines
from ..reproduction import (
    Changes,
    Claim,
    Experiment,
    Progress,
    Row,
    above,
    calibrated,
    claims,
    predicted,
)  # fmt: skip
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

__all__ = ["FIGURES"]

BASELINES = (DEEPSPEED, NATIVE)
NETWORKS = ("bert-base", "roberta", "bert-large", "gpt2-medium")
"""Section V-B: two small ones and two large ones."""
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
_MORE = (1, inf)
"""A band, where the paper's point is that there is a gain."""

Steps = Mapping[str, Sequence[StepResult]]
"""Of each system, on each of some networks."""


def _steps(
    networks: Sequence[str], progress: Progress, systems: Sequence[str] = SYSTEMS, **how: Any
) -> Steps:
    """By ``how`` the cases are."""
    return {
        system: [simulate(Case(network=each, system=system, **how), progress) for each in networks]
        for system in systems
    }


def _faster(steps: Steps, system: str, *others: str) -> list[float]:
    """How many times as fast a system is as the fastest of others, on each network."""
    fastest = [min(steps[each][n].total_ns for each in others) for n in range(len(steps[system]))]
    return [ns / of.total_ns for ns, of in zip(fastest, steps[system], strict=True)]


def _less(steps: Steps, system: str, *others: str) -> list[float]:
    """How many % less of the GPU's memory it takes than the one that takes least."""
    least = [min(steps[each][n].peak_bytes for each in others) for n in range(len(steps[system]))]
    both = zip(steps[system], least, strict=True)
    return [100 * (1 - of.peak_bytes / nbytes) for of, nbytes in both]


def _orders(section: str, steps: Steps) -> dict[str, Claim]:
    """What the paper says of all networks' times."""
    gains = {
        "MemFerry is faster than both baselines": _faster(steps, MEMFERRY, *BASELINES),
        "the same with our planner": _faster(steps, OURS, *BASELINES),
        "MemFerry is faster than GO-MemFerry": _faster(steps, MEMFERRY, GO),
        "native is faster than DeepSpeed": _faster(steps, NATIVE, DEEPSPEED),
    }
    return above(section, 1, gains)


def _rows(
    networks: Sequence[str], steps: Steps, systems: Sequence[str] = SYSTEMS
) -> list[dict[str, Claim | str]]:
    """Times, and memory of the paper's systems."""
    return [
        {"network": network}
        | {f"{of}, ms": predicted(steps[of][n].total_ns / 1e6, digits=1) for of in systems}
        | {f"{of}, GiB": predicted(steps[of][n].peak_bytes / (1 << 30)) for of in PAPERS}
        for n, network in enumerate(networks)
    ]


def figure9(changes: Changes, progress: Progress) -> Experiment:
    """Times of a step of four networks."""
    steps, where = _steps(NETWORKS, progress, changes=changes), "V-B, Figure 9"
    rows = _rows(NETWORKS, steps)
    over = {than: _faster(steps, MEMFERRY, than) for than in BASELINES}
    for n, row in enumerate(rows):
        row |= {f"over {than}": predicted(of[n]) for than, of in over.items()}
    small, large = ([x for of in over.values() for x in of[at]] for at in (slice(2), slice(2, 4)))
    layers = profile_for(Case(network=NETWORKS[0], changes=changes)).layers
    copies_ms = sum(layer.transfer_ns for layer in layers) / 1e6
    computes_ms = steps[NATIVE][0].used_ns / 1e6
    why = (
        f"{_OPEN} With 8 samples of 128 tokens bert-base computes for {computes_ms:.0f} ms beside "
        f"copies of {copies_ms:.0f} ms each way, with four times as many for "
        f"{4 * computes_ms:.0f}. And 10 to 40 % of all is not 7.1 to 68.7 %."
    )
    of_large = "gain of small networks, of that of large ones"
    gains = {
        f"most {of_large}": (1.687 / 1.321, max(small) / max(large)),
        f"least {of_large}": (1.217 / 1.071, min(small) / min(large)),
    }
    excluded = {
        "least gain of all": (1.1, min(small + large)),
        "most gain of all": (1.4, max(small + large)),
        "least gain of small networks": (1.217, min(small)),
        "most gain of small networks": (1.687, max(small)),
        "least gain of large networks": (1.071, min(large)),
        "most gain of large networks": (1.321, max(large)),
    }
    most = {"most gain over ZeRO-Offload": (1.68, max(over[DEEPSPEED]))}
    return Experiment(
        title="Figure 9: a step of four networks on an A100",
        rows=rows,
        quoted=_orders(where, steps)
        | claims(where, "x", _MORE, gains)
        | claims(where, "x", why, excluded)
        | claims("abstract, I", "x", why, most),
        draw=partial(draw_bars, rows, _TIMES),
    )


def figure10(changes: Changes, progress: Progress) -> Experiment:
    """How much the GPU is used, and GO-MemFerry with some gradients on the GPU."""
    steps = _steps(NETWORKS, progress, changes=changes)
    used = {each: [100 * of.utilization for of in steps[each]] for each in PAPERS}
    bert, gpt = ({each: of[n] for each, of in used.items()} for n in (0, -1))
    shares = [n / 4 for n in range(5)]
    kept = [_steps(NETWORKS, progress, [GO], changes=changes, reserve=each)[GO] for each in shares]
    curves = [[each.total_ns / 1e6 for each in of] for of in zip(*kept, strict=True)]
    slopes = [[after - before for before, after in pairwise(curve)] for curve in curves]
    over = {
        "MemFerry's use over DeepSpeed's, GPT-2": (18.5, gpt[MEMFERRY] - gpt[DEEPSPEED]),
        "MemFerry's use over native's, GPT-2": (1.5, gpt[MEMFERRY] - gpt[NATIVE]),
    }
    falls = {
        "all gradients on the GPU are no slower than none": [of[-1] <= of[0] for of in curves],
        "a step falls with each share of them": [max(of) <= 0 for of in slopes],
        "and is convex": [of == sorted(of) for of in slopes],
    }
    ratios = [x / y for x, y in zip(used[MEMFERRY], used[DEEPSPEED], strict=True)]
    excluded = {
        "DeepSpeed's use, GPT-2": (63.1, gpt[DEEPSPEED]),
        "DeepSpeed's use, BERT-base": (63, bert[DEEPSPEED]),
        "most of MemFerry's use, of DeepSpeed's": (127, 100 * max(ratios)),
    }
    third = f"{_OPEN} 63.1 % of use leave 36.9 % idle, more than a third."
    idle = {"DeepSpeed's idle time, GPT-2": (100 / 3, 100 - gpt[DEEPSPEED])}
    never = "Without offloading the model's GPU never waits: what is lost is the framework's."
    alone = {"use of the GPU alone, BERT-base": (99, 100), "of GPT-2, at least": (80, 100)}
    relative: list[Row] = [
        {"reserve factor": f"{share:g}"}
        | {name: predicted(of[n] / of[0]) for name, of in zip(NETWORKS, curves, strict=True)}
        for n, share in enumerate(shares)
    ]
    return Experiment(
        title="Figure 10: use of the GPU, and the reserve factor",
        rows=[
            {"network": name}
            | {f"{each}, %": predicted(of[n], digits=1) for each, of in used.items()}
            | {
                f"reserve factor {share:g}, ms": predicted(ms, digits=1)
                for share, ms in zip(shares, curves[n], strict=True)
            }
            for n, name in enumerate(NETWORKS)
        ],
        quoted=claims("V-B, Figure 10a", "points", (0, inf), over)
        | above("V-C, Figure 10b", 0, falls)
        | claims("I, III-A", "%", _OPEN, excluded)
        | claims("III-A", "%", third, idle)
        | claims("I, III-A", "%", never, alone),
        notes=[
            "While a GPU waits for DHA its kernels run, so that counts as use.",
            "D(i, j) weighs what backward passes take alone. But a gradient on the GPU has to be "
            "copied then, which may make a step longer.",
        ],
        draw=partial(
            draw_lines, relative[1:], {name: name for name in NETWORKS}, "a step, of that at 0"
        ),
    )


def figure11(changes: Changes, progress: Progress) -> Experiment:
    """Larger and larger networks on a V100."""
    how, where = {"machine": "v100", "changes": changes}, "V-C, Figure 11"
    steps = _steps(ON_V100, progress, **how)
    rows, room = _rows(ON_V100, steps), _room("v100", changes)

    def largest(system: str) -> float:
        """Billions of parameters that fit, on the line through the first and last network."""
        first, last = (steps[system][n].peak_bytes for n in (0, -1))
        return SIZES[-1] + (room - last) / (last - first) * (SIZES[-1] - SIZES[0])

    profile = profile_for(Case(network=ON_V100[4], **how))
    both, kept = 2 * 4 * SIZES[4] * 1e9, sum(layer.activation_bytes for layer in profile.layers)
    why = (
        f"At 2.4 B parameters and gradients in FP32 take {both / 1e9:.1f} GB, and activations of "
        f"the shortest sample that is named, 378 tokens, {kept / 1e9:.1f}: all fit in 32 GB. They "
        f"do not with {(room - both) / kept:.1f} times these activations, but of 378 to 4096 "
        "tokens it is not said how many there are here."
    )
    slower = zip(*(_faster(steps, each, GO) for each in BASELINES), strict=True)
    of_paper = zip(PAPERS, (1.9, 2.4, 2.4, 2.9), strict=True)
    fits = {f"largest network, {each}": (value, largest(each)) for each, value in of_paper}
    ratio = largest(GO) / largest(DEEPSPEED)
    larger = {"GO-MemFerry's largest network, of DeepSpeed's": (1.52, ratio)}
    gain = fmean(_faster(steps, MEMFERRY, DEEPSPEED))
    slowed = 100 * (1 - fmean(_faster(steps, GO, DEEPSPEED)))
    return Experiment(
        title="Figure 11: Transformer-XL on a V100, one sample",
        rows=rows,
        quoted=_orders(where, steps)
        | above(where, 1, {"GO-MemFerry is slower than both baselines": [*map(min, slower)]})
        | above(where, 0, {"GO-MemFerry takes the least memory": _less(steps, GO, *PAPERS[:-1])})
        | claims("abstract, V-C", "x", why, larger)
        | claims(where, "B", why, fits)
        | claims(where, "x", _OPEN, {"MemFerry over DeepSpeed": (1.12, gain)})
        | claims(where, "%", _OPEN, {"GO-MemFerry slower": (3.4, slowed)}),
        notes=[
            "As GO-MemFerry's largest network is 1.52 times as large as DeepSpeed's, for DeepSpeed "
            "1.9 B fit and 2.4 B do not.",
            "Here the host's 12 cores update 1 B in a second, beside which what GO-MemFerry writes "
            "is over soon; and a kernel computes while it writes, which need not be so.",
        ],
        draw=partial(draw_bars, rows, _TIMES | _PEAKS),
    )  # fmt: skip


def _room(machine: str, changes: Changes) -> int:
    """Bytes of the GPU's memory."""
    return int(MACHINES[machine].override(changes).memory("gpu").capacity_bytes.value)


def figure12(changes: Changes, progress: Progress) -> Experiment:
    """What four networks take of the GPU's memory."""
    steps, where = _steps(NETWORKS, progress, changes=changes), "V-C, Figure 12"
    rows = _rows(NETWORKS, steps, ())
    mem, go = (_less(steps, each, DEEPSPEED) for each in (MEMFERRY, GO))
    for n, row in enumerate(rows):
        row["MemFerry, % less"] = predicted(mem[n], digits=1)
        row["GO-MemFerry, % less"] = predicted(go[n], digits=1)
    why = (
        f"{_OPEN} If MemFerry leaves out the table of words, that is 11 % of bert-base's "
        "parameters and gradients, and 16 % of roberta's: less than 40.1 % or 61.7 %. Two means of "
        "GO-MemFerry's, of 20.1 and 41.6 %, cannot both be. Our figures have DeepSpeed's bucket of "
        "2 GB in them, of which the paper says nothing."
    )
    small = fmean(mem[:2])
    saved = {"MemFerry saves more of small networks than of GPT-2": (40.1 - 1.4, small - mem[-1])}
    excluded = {
        "MemFerry, small networks": (40.1, small),
        "MemFerry, GPT-2": (1.4, mem[-1]),
        "MemFerry, mean": (25.4, fmean(mem)),
        "MemFerry, most": (61.7, max(mem)),
        "GO-MemFerry than MemFerry, small networks": (17.6, fmean(_less(steps, GO, MEMFERRY)[:2])),
        "GO-MemFerry, mean": (41.6, fmean(go)),
        "GO-MemFerry, mean, section I": (20.1, fmean(go)),
        "GO-MemFerry, most": (74.4, max(go)),
    }
    least = {
        "MemFerry takes less than DeepSpeed": mem,
        "GO-MemFerry takes the least": _less(steps, GO, *PAPERS[:-1]),
    }
    return Experiment(
        title="Figure 12: memory of four networks on an A100",
        rows=rows,
        quoted=above(where, 0, least)
        | claims(where, "points", (0, inf), saved)
        | claims(f"I, {where}", "% less", why, excluded),
        draw=partial(draw_bars, rows, _PEAKS),
    )


def figure13(changes: Changes, progress: Progress) -> Experiment:
    """Transformer-XL of three sizes, and DeepSpeed's one number."""
    steps, where = _steps(ON_A100, progress, changes=changes), "V-D, Figure 13"
    rows = _rows(ON_A100, steps)
    over, saved = _faster(steps, MEMFERRY, DEEPSPEED), _less(steps, GO, DEEPSPEED)
    for mark, row, x in zip((calibrated, predicted, predicted), rows, over, strict=True):
        row["over DeepSpeed"] = mark(x)

    def too_slow(ps: int) -> bool:
        """Whether DeepSpeed waits for its buffers as long as the speed-up at 1 B says."""
        case = Case(network=ON_A100[0], system=DEEPSPEED, changes=changes, buffer_ps_per_byte=ps)
        return simulate(case, progress).total_ns >= FITTED * steps[MEMFERRY][0].total_ns

    too_large = [each for each in PAPERS if steps[each][-1].peak_bytes > _room("a100", changes)]
    layers = profile_for(Case(network=ON_A100[-1], changes=changes)).layers
    both, kept = (sum(getattr(each, n) for each in layers) / 1e9
                  for n in ("nbytes", "activation_bytes"))  # fmt: skip
    why = (
        "What is saved is gradients. For 21.6 %, activations and all else have to be "
        f"{1 / 0.216 - 2:.1f} times the parameters at all sizes; how large they are depends on "
        "tokens, of which 378 to 4096 are named. With 378 gradients weigh more."
    )
    others = {
        "over DeepSpeed, 6.7 B": (1.26, over[-1]),
        "over DeepSpeed, mean of all but 1 B, of the paper's of all": (1.32, fmean(over[1:])),
    }
    falls = {"over DeepSpeed, 1 B, of 6.7 B": (FITTED / 1.26, over[0] / over[-1])}
    memory = {
        "GO-MemFerry's memory, mean": (21.6, fmean(saved)),
        "GO-MemFerry's memory, least": (18, min(saved)),
        "GO-MemFerry's memory, most": (22, max(saved)),
    }
    fit = bisect_left(range(1000), True, key=too_slow)
    return Experiment(
        title="Figure 13: Transformer-XL on an A100, eight samples",
        rows=rows,
        quoted=_orders(where, steps)
        | {"over DeepSpeed, 1 B": calibrated(over[0], FITTED, section=where, unit="x", band=0.01)}
        | claims(where, "x", 0.1, others)
        | claims(where, "x", _MORE, falls)
        | above(where, 0, {"GO-MemFerry takes the least memory": _less(steps, GO, *PAPERS[:-1])})
        | claims(where, "% less", why, memory),
        notes=[
            f"So that the first comes out as the paper's, DeepSpeed has to wait {fit} ps "
            f"for each byte of gradients; {BUFFER_PS_PER_BYTE} are used everywhere. What else a "
            "step takes grows with the parameters, too, so that MemFerry gains as much at 6.7 B.",
            "In the paper 6.7 B have room in 80 GB for all systems. Here parameters and gradients "
            f"take {2 * both:.1f} GB and activations {kept:.1f}: too much for "
            f"{', '.join(too_large) or 'none'}.",
        ],
        draw=partial(draw_bars, rows, _TIMES | _PEAKS),
    )  # fmt: skip


def figure14(changes: Changes, progress: Progress) -> Experiment:
    """Eight samples on one to eight GPUs."""
    where, network = "V-D, Figure 14", ON_A100[1]
    systems = (*BASELINES, MEMFERRY, OURS)
    steps = [_steps([network], progress, systems, changes=changes, gpus=n) for n in GPUS]
    took = {each: [of[each][0].total_ns for of in steps] for each in systems}
    rows: list[Row] = [
        {"GPUs": str(gpus)}
        | {f"{each}, ms": predicted(of[n] / 1e6, digits=1) for each, of in took.items()}
        for n, gpus in enumerate(GPUS)
    ]
    ours = took[MEMFERRY]
    rate = profile_for(Case(network=network, changes=changes)).link_bytes_per_s
    why = (
        "The global batch is not said, nor what is between the GPUs. Of 5.41 s a copy of "
        f"4.3 B parameters is {4.3e9 * 4 / rate:.2f} and that of gradients as much; how the rest "
        "is shared by computing and updating is not in the paper."
    )
    falls = [took[each] == sorted(took[each], reverse=True) for each in (*BASELINES, MEMFERRY)]
    faster = [all(took[each][n] > ours[n] for each in BASELINES) for n in range(len(GPUS))]
    took_s = {"1 GPU": (5.41, ours[0] / 1e9), "8 GPUs": (4.12, ours[-1] / 1e9)}
    over = {each: 100 * (took[each][-1] / ours[-1] - 1) for each in BASELINES}
    return Experiment(
        title="Figure 14: Transformer-XL of 4.3 B on several A100",
        rows=rows,
        quoted=above(where, 0, {"a step gets shorter up to 8 GPUs": falls})
        | above(where, 0, {"MemFerry is faster than both baselines": faster})
        | claims(where, "x", _MORE, {"1 GPU, of 8": (5.41 / 4.12, ours[0] / ours[-1])})
        | claims(where, "s", why, took_s)
        | claims(
            f"abstract, {where}", "%", why, {"over DeepSpeed, 8 GPUs": (28.1, over[DEEPSPEED])}
        )
        | claims(where, "%", why, {"over native, 8 GPUs": (19.1, over[NATIVE])}),
        notes=[
            "The first GPU has the copies, as in PyTorch's DataParallel; parameters and gradients "
            "go in a ring at the rate of PCIe. Nothing adds up what several GPUs write by DHA, so "
            "there is no GO-MemFerry. The paper calls 28.1 % the least in the abstract, and 1.28 "
            "times in the introduction."
        ],
        draw=partial(draw_lines, rows, {f"{each}, ms": each for each in took}, "a step, ms"),
    )


def axdimm(changes: Changes, progress: Progress) -> Experiment:
    """Updates by AXDIMMs in the place of the host's cores: in no paper."""
    rows: list[Row] = []
    for machine, networks in (("a100", (*NETWORKS, *ON_A100)), ("v100", ON_V100)):
        cases = [{"machine": machine, "changes": changes, "axdimm": each} for each in (False, True)]
        host, module = (_steps(networks, progress, **how) for how in cases)
        for n, network in enumerate(networks):
            by_host, by_module = (
                predicted(profile_for(Case(network=network, **how)).update_ns / 1e6, digits=1)
                for how in cases
            )
            rows.append(
                {"network": network, "machine": machine}
                | {"host, ms": by_host, "AXDIMMs, ms": by_module}
                | {
                    f"{of}, x": predicted(host[of][n].total_ns / module[of][n].total_ns)
                    for of in SYSTEMS
                }
            )
    return Experiment(
        title="Updates by AXDIMMs",
        rows=rows,
        notes=[
            f"In no paper: {MODULES} AXDIMMs update at the rate of the RTL's cycles, and all else "
            "stays. x is how many times as fast a step then is. One would not carry what PCIe "
            "does, as its DDR4-800 link has 6.4 GB/s."
        ],
    )


FIGURES = (figure9, figure10, figure11, figure12, figure13, figure14, axdimm)
"""Experiments."""
