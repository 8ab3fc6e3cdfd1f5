"""The paper's figures of what DHA is for: times of layers, and two timelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path

from sw_driver.device.timeline import Timeline

from ..plotting import draw_bars
from ..reproduction import Changes, Claim, Experiment, Progress, Row, predicted
from .link import Mode, Plan
from .runs import Case, profile_for
from .systems import StepResult, System, run

__all__ = ["figure3", "figure4", "figure6"]

_EMBEDDING, _NORM = "words", "norm"
_SMALL, _LINEAR = "layers.0.attention.dense", "layers.0.mlp.dense_h_to_4h"
"""Layers of bert-base."""

_SLOWER = (1.01, inf)
"""By 1 % or more: as long as on the GPU a backward pass takes in any case."""


def figure3(changes: Changes, progress: Progress) -> Experiment:
    """Layers of BERT-base on the GPU and by DHA."""
    progress("layers of bert-base")
    layers = {each.name: each for each in profile_for(_bert(changes)).layers}
    rows: list[Row] = []
    quoted: dict[str, Claim] = {}
    for kind, name in (("Embedding", _EMBEDDING), ("LayerNorm", _NORM), ("Linear", _LINEAR)):
        layer = layers[name]
        loaded_ns = layer.transfer_ns + layer.forward_ns
        times = {
            "forward on the GPU, us": loaded_ns,
            "forward by DHA, us": layer.forward_dha_ns,
            "backward on the GPU, us": layer.backward_ns,
            "backward by DHA, us": layer.backward_dha_ns,
            "backward, gradients by DHA, us": layer.backward_gradient_dha_ns,
        }
        rows.append({"layer": kind} | {c: predicted(ns / 1e3, digits=1) for c, ns in times.items()})
        for what, x, band in (
            (
                "b: forward",
                layer.forward_dha_ns / loaded_ns,
                (1, inf) if name == _LINEAR else (0, 1),
            ),
            ("c: backward", layer.backward_dha_ns / layer.backward_ns, _SLOWER),
            ("d: gradients", layer.backward_gradient_dha_ns / layer.backward_ns, _SLOWER),
        ):
            quoted[f"{kind}, {what} by DHA, of on the GPU"] = predicted(
                x, 1, section=f"III-B, Figure 3{what[0]}", unit="x", band=band
            )
    reads_us, computes_us = layer.transfer_ns / 1e3, layer.backward_ns / 1e3
    # Read beside half of the pass, weights make it x slower that take 1/2 + x of it.
    few, many = (1024 * reads_us / (0.5 + x) / computes_us for x in (0.1, 0.05))
    why = (
        f"Samples are not said. With 1024 tokens a linear layer's backward pass takes "
        f"{computes_us:.0f} us on the GPU, and its weights {reads_us:.0f} on the link if they are "
        "read once, beside the half of the pass that needs them: it would be 10 to 5 % slower with "
        f"{few:.0f} to {many:.0f} tokens. But here they are read once for each 128."
    )
    for end, value in (("least", 5), ("most", 10)):
        quoted[f"Linear, backward by DHA is slower, {end}"] = predicted(
            100 * (layer.backward_dha_ns / layer.backward_ns - 1), value,
            section="III-B, Figure 3c", unit="%", excluded=why, digits=0,
        )  # fmt: skip
    quoted["Convolution, forward by DHA, of on the GPU"] = predicted(
        None, 1, section="III-B, Figure 3b", excluded="BERT-base has no convolution."
    )
    return Experiment(
        title="Figure 3: layers of BERT-base on an A100",
        rows=rows,
        quoted=quoted,
        notes=["On the GPU a forward pass is with the copy of the parameters."],
        draw=partial(
            draw_bars, rows, {"us": [column for column in rows[0] if column != "layer"]}
        ),
    )  # fmt: skip


def figure4(changes: Changes, progress: Progress) -> Experiment:
    """Two layers, on the GPU and in a mixture."""
    progress("timelines of two layers")
    plans: dict[str, Sequence[Mode]] = {"hybrid": ("DHA", "GFGB"), "all-on-gpu": ("GFGB", "GFGB")}
    made, steps = _timelines(changes, (_EMBEDDING, _LINEAR), plans)
    x = steps["hybrid"].forward_ns / steps["all-on-gpu"].forward_ns
    claim = predicted(x, 1, section="III-B, Figure 4", unit="x", band=(0, 1))
    return replace(
        made,
        title="Figure 4: two layers, hybrid",
        quoted={"hybrid forward pass, of that on the GPU": claim},
    )


def figure6(changes: Changes, progress: Progress) -> Experiment:
    """Three layers, one in each mode."""
    progress("timelines of three layers")
    plans: dict[str, Sequence[Mode]] = {
        "memferry": ("DHA", "DFGB", "GFGB"),
        "without-dfgb": ("DHA", "DHA", "GFGB"),
    }
    made, steps = _timelines(changes, (_EMBEDDING, _SMALL, _LINEAR), plans)
    x = steps["memferry"].total_ns / steps["without-dfgb"].total_ns
    claim = predicted(x, 1, section="IV-B, Figure 6", unit="x", band=(0, 1))
    return replace(
        made,
        title="Figure 6: three layers, in three modes",
        quoted={"step with DFGB, of that without": claim},
    )


def _bert(changes: Changes) -> Case:
    return Case(network="bert-base", changes=changes)


def _timelines(
    changes: Changes, names: Sequence[str], modes: Mapping[str, Sequence[Mode]]
) -> tuple[Experiment, dict[str, StepResult]]:
    """Steps of some layers of BERT-base, by their modes, each with a timeline."""
    whole = profile_for(_bert(changes))
    layers = tuple(each for each in whole.layers if each.name in names)
    share = sum(each.nbytes for each in layers) / sum(each.nbytes for each in whole.layers)
    profile = replace(whole, layers=layers, update_ns=int(share * whole.update_ns))
    systems = {
        name: System(plan=Plan(modes=tuple(each), gradients_on_gpu=(True,) * len(each)))
        for name, each in modes.items()
    }
    steps = {name: run(profile, system) for name, system in systems.items()}

    def draw(path: Path) -> list[Path]:
        files = []
        for name, system in systems.items():
            timeline = Timeline(backend="model", fabric_mhz=1000)
            run(profile, system, timeline)
            for ending in ("json.gz", "svg", "png"):
                files.append(path.with_name(f"{path.name}-{name}.{ending}"))
                timeline.write(files[-1])
        return files

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
    return Experiment(title="", rows=rows, notes=[note], draw=draw), steps
