"""The paper's figures of what DHA is for: times of layers, and two timelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from math import inf
from pathlib import Path

from ..plotting import draw_bars
from ..reproduction import Changes, Claim, Experiment, Progress, Row, claims, predicted
from .link import Mode, Plan
from .profile import LayerProfile, ModelProfile
from .runs import Case, profile_for
from .systems import System, draw, run

__all__ = ["figure3", "figure4", "figure6"]

_EMBEDDING, _NORM = "words", "norm"
_SMALL, _LINEAR = "layers.0.attention.dense", "layers.0.mlp.dense_h_to_4h"
"""Layers of bert-base."""

_SLOWER = (1.01, inf)
"""By 1 % or more: as long as on the GPU a backward pass takes in any case."""


def _bert(changes: Changes) -> tuple[ModelProfile, dict[str, LayerProfile]]:
    """BERT-base, and its layers, the embedding with a table of its own."""
    profile = profile_for(Case(network="bert-base", changes=changes))
    layers = {each.name: each for each in profile.layers}
    words, output = layers[_EMBEDDING], layers["logits"]
    layers[_EMBEDDING] = replace(
        words,
        nbytes=output.nbytes,
        transfer_ns=output.transfer_ns,
        backward_gradient_dha_ns=max(words.backward_ns, output.transfer_ns),
    )
    return profile, layers


def figure3(changes: Changes, progress: Progress) -> Experiment:
    """Layers of BERT-base on the GPU and by DHA."""
    progress("layers of bert-base")
    profile, layers = _bert(changes)
    rows: list[Row] = []
    quoted: dict[str, Claim] = {}
    for kind, name in (("Embedding", _EMBEDDING), ("LayerNorm", _NORM), ("Linear", _LINEAR)):
        layer = layers[name]
        times = {
            "forward on the GPU, us": layer.transfer_ns + layer.forward_ns,
            "forward by DHA, us": layer.forward_dha_ns,
            "backward on the GPU, us": layer.backward_ns,
            "backward by DHA, us": layer.backward_dha_ns,
            "backward, gradients by DHA, us": layer.backward_gradient_dha_ns,
        }
        rows.append({"layer": kind} | {c: predicted(ns / 1e3, digits=1) for c, ns in times.items()})
        forward, dha, backward, *slow = times.values()
        for what, x, band in (
            ("b: forward", dha / forward, (1, inf) if name == _LINEAR else (0, 1)),
            ("c: backward", slow[0] / backward, _SLOWER),
            ("d: gradients", slow[1] / backward, _SLOWER),
        ):
            where = f"III-B, Figure 3{what[0]}"
            quoted |= claims(where, "x", band, {f"{kind}, {what} by DHA, of on the GPU": (1, x)})
    reads_us, computes_us = layer.transfer_ns / 1e3, layer.backward_ns / 1e3
    # Read beside half of the pass, weights make it x slower that take 1/2 + x of it.
    few, many = (1024 * reads_us / (0.5 + x) / computes_us for x in (0.1, 0.05))
    why = (
        f"Samples are not said. With 1024 tokens a linear layer's backward pass takes "
        f"{computes_us:.0f} us on the GPU, and its weights {reads_us:.0f} on the link if they are "
        "read once, beside the half of the pass that needs them: it would be 10 to 5 % slower with "
        f"{few:.0f} to {many:.0f} tokens. But here they are read once for each 128."
    )
    slower = 100 * (layer.backward_dha_ns / layer.backward_ns - 1)
    ends = {f"Linear, backward by DHA is slower, {end}": (value, slower)
            for end, value in (("least", 5), ("most", 10))}  # fmt: skip
    gbit_per_s = profile.link_bytes_per_s * 8 / 1e9
    of_100 = (
        f"What is set here is {gbit_per_s:g} Gbit/s, what copies get of 15.75 GB/s of PCIe 3.0."
    )
    of_8 = "V-A has 128 cores beside an A100. They update, of which Figure 3 has nothing."
    return Experiment(
        title="Figure 3: layers of BERT-base on an A100",
        rows=rows,
        quoted=quoted
        | claims("III-B, Figure 3c", "%", why, ends, digits=0)
        | claims(
            "III-B, Figure 3b", "x", "BERT-base has no convolution.",
            {"Convolution, forward by DHA, of on the GPU": (1, None)},
        )
        | claims("III-B", "Gbit/s", of_100, {"PCIe": (100, gbit_per_s)}, digits=0)
        | claims("III-B", "", of_8, {"CPU cores": (8, 128)}, digits=0),
        notes=["On the GPU a forward pass is with the copy of the parameters."],
        draw=partial(
            draw_bars, rows, {"us": [column for column in rows[0] if column != "layer"]}
        ),
    )  # fmt: skip


def figure4(changes: Changes, progress: Progress) -> Experiment:
    """Two layers, on the GPU and in a mixture."""
    progress("timelines of two layers")
    plans: dict[str, Sequence[Mode]] = {"hybrid": ("DHA", "GFGB"), "all-on-gpu": ("GFGB", "GFGB")}
    title, claim = "Figure 4: two layers, hybrid", "hybrid forward pass, of that on the GPU"
    return _timelines(changes, title, "III-B, Figure 4", claim, (_EMBEDDING, _LINEAR), plans)


def figure6(changes: Changes, progress: Progress) -> Experiment:
    """Three layers, one in each mode."""
    progress("timelines of three layers")
    plans: dict[str, Sequence[Mode]] = {
        "memferry": ("DHA", "DFGB", "GFGB"),
        "without-dfgb": ("DHA", "DHA", "GFGB"),
    }
    title, claim = "Figure 6: three layers, in three modes", "step with DFGB, of that without"
    names = _EMBEDDING, _SMALL, _LINEAR
    return _timelines(changes, title, "IV-B, Figure 6", claim, names, plans)


def _timelines(
    changes: Changes,
    title: str,
    where: str,
    claim: str,
    names: Sequence[str],
    modes: Mapping[str, Sequence[Mode]],
) -> Experiment:
    """Steps of some layers of BERT-base by two plans, of which the first is claimed to be faster,
    each with a timeline."""
    whole, found = _bert(changes)
    layers = tuple(found[name] for name in names)
    share = sum(each.nbytes for each in layers) / sum(each.nbytes for each in whole.layers)
    profile = replace(whole, layers=layers, update_ns=int(share * whole.update_ns))
    systems = {
        name: System(plan=Plan(modes=tuple(each), gradients_on_gpu=(True,) * len(each)))
        for name, each in modes.items()
    }
    steps = {name: run(profile, system) for name, system in systems.items()}
    times = [s.forward_ns if "forward" in claim else s.total_ns for s in steps.values()]

    def drawn(path: Path) -> list[Path]:
        each = (draw(profile, of, path.with_name(f"{path.name}-{n}")) for n, of in systems.items())
        return [*chain.from_iterable(each)]

    rows = [
        {"plan": name, "modes": ", ".join(modes[name])}
        | {
            "forward, us": predicted(step.forward_ns / 1e3, digits=1),
            "step, us": predicted(step.total_ns / 1e3, digits=1),
        }
        for name, step in steps.items()
    ]
    note = (
        f"The paper's figure has no scale. These are {', '.join(names)} of bert-base, and their "
        "share of the update. `--out DIR` writes the timelines."
    )
    quoted = claims(where, "x", (0, 1), {claim: (1, times[0] / times[1])})
    return Experiment(title=title, rows=rows, quoted=quoted, notes=[note], draw=drawn)
