"""The paper's Table I and Figure 2: what takes a training step's time, and accesses main memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import inf
from typing import NamedTuple

from sw_driver.machine.hetero_pim import HETERO_PIM
from sw_driver.workload.trace import load_trace

from ..plotting import draw_bars
from ..reproduction import Changes, Claim, Experiment, Progress, claims, predicted
from .operations import on_pools
from .profiling import modelled, offered
from .ranking import by_type

__all__ = ["figure2", "table1"]

_FIVE = 5
_OTHERS = "others"

TABLE_1: Mapping[str, Mapping[str, tuple[float | None, float | None, int]]] = {
    "vgg-19": {
        "Conv2DBackpropFilter": (40.15, 42.52, 16),
        "Conv2DBackpropInput": (32.68, 21.06, 15),
        "BiasAddGrad": (11.92, 35.68, 16),
        "Conv2D": (10.34, None, 16),
        "MaxPoolGrad": (1.49, 0.22, 16),
        "Relu": (None, 0.14, 19),
        _OTHERS: (3.37, 0.38, 232),
    },
    "alexnet-32": {
        "Conv2DBackpropFilter": (33.64, 14.79, 5),
        "Conv2DBackpropInput": (33.46, 36.61, 4),
        "MatMul": (13.54, None, 6),
        "Conv2D": (10.48, 0.46, 5),
        "BiasAddGrad": (4.62, 44.64, 3),
        "Relu": (None, 1.20, 8),
        _OTHERS: (4.26, 2.30, 121),
    },
    "dcgan": {
        "Conv2DBackpropFilter": (19.98, 37.21, 4),
        "Conv2DBackpropInput": (17.18, 28.09, 4),
        "MatMul": (14.28, None, 12),
        "Conv2D": (10.53, 5.45, 4),
        "Mul": (9.89, 2.22, 84),
        "Slice": (None, 17.18, 14),
        _OTHERS: (28.14, 9.85, 821),
    },
}
"""% of time and of accesses, None of what is in the other list of five only, and invocations.
Others are all that a list has not; of their invocations those by time."""

_TIMES = (
    "The paper's filter gradients take 3.9, 3.2 and 1.9 times as long as the forward pass, for as "
    "many multiplications: that is how TensorFlow's kernels used its CPU, which it does not say."
)
_ACCESSES = (
    "The paper's BiasAddGrad, which reads an output's gradient, has 0.84 (VGG-19) and 3.0 times "
    "(AlexNet) as many accesses as Conv2DBackpropFilter, which reads that and the input: so these "
    "are of kernels that read the same again, and not of what operations need."
)
_GRAPH = "TensorFlow has operations for shapes and constants, and many in the place of one here."
_DCGAN = "Four are what updates the discriminator alone; ours updates both networks at once."
_VIEWS = "A slice of a tensor, or another shape of it, is a view in PyTorch and no operation."
_COUNTS = {
    ("vgg-19", "MaxPoolGrad"): "VGG-19 has five pools.",
    ("vgg-19", "Relu"): "VGG-19 has 18: of 16 convolutions, and of two of three dense layers.",
    ("alexnet-32", "MatMul"): "Three dense layers have three products each.",
    ("alexnet-32", "BiasAddGrad"): "AlexNet has eight biases, and the dense layers' three read "
    "1.2 MB, which are not 44.64 % of all accesses.",
    ("alexnet-32", "Relu"): "AlexNet has seven: of five convolutions and two dense layers.",
    ("dcgan", "MatMul"): "What has the paper's four convolutions of each kind has 14 (Conv2D).",
    ("dcgan", "Mul"): _GRAPH,
    ("dcgan", "Slice"): _VIEWS,
    **{("dcgan", f"Conv2D{each}"): _DCGAN for each in ("", "BackpropFilter", "BackpropInput")},
    **{(network, _OTHERS): _GRAPH for network in TABLE_1},
}
"""Why invocations are not judged; all others are to be the paper's."""
_ALL_THREE = (
    "By Table I it is 97.0 % at most for AlexNet and 75.2 % for DCGAN: what is not in a list of "
    "five has no more than the list's last."
)
_SAME = (
    "Conv2D reads an input and writes an output; Conv2DBackpropFilter, which is high, reads that "
    "input and that output's gradient."
)
_NOTES = (
    "The paper's is a profile of TensorFlow. Ours has the rates of the same CPU, and accesses are "
    "lines of 64 bytes past its last level of cache. *Not multiply/add* is what the pools cannot "
    "do whole; the paper counts both gradients of convolutions as such, for without them Table I "
    "leaves 4.9, 4.3 and 28.1 % at most."
)
_VGG_16 = "138 are VGG-16's. VGG-19 has three more convolutions, of 0.6, 2.4 and 2.4."
_CLASSES = ("long, low", "long, high", "short, high", "short, low")


class _Step(NamedTuple):
    """By type of operation."""

    time: Mapping[str, float]
    """In %, the most first, and so of accesses."""
    accesses: Mapping[str, float]
    invocations: Mapping[str, int]
    not_multiply_add: float
    """In % of the time."""
    offered: str
    parameters: float
    """In millions."""


def _steps(changes: Changes, progress: Progress) -> dict[str, _Step]:
    machine, found = HETERO_PIM.override(changes), {}
    for network in TABLE_1:
        progress(f"profile of {network}")
        trace = load_trace(network)
        rows = modelled(trace, machine)
        kinds, types = [each.kind for each in rows], by_type(rows)
        both = zip(rows, trace.ops, strict=True)
        other = [row.time for row, op in both if on_pools(op) != "whole"]
        found[network] = _Step(
            _shares({each.kind: each.time for each in types}),
            _shares({each.kind: each.accesses for each in types}),
            {each: kinds.count(each) for each in kinds},
            100 * sum(other) / sum(each.time for each in rows),
            f"{network} {len(offered(rows, types=False))} and {len(offered(rows))} of {len(rows)}",
            sum(each.nbytes for each in trace.tensors if each.kind == "parameter") / 4e6,
        )
    return found


def _shares(found: Mapping[str, float]) -> dict[str, float]:
    total = sum(found.values())
    return {
        kind: 100 * each / total for kind, each in sorted(found.items(), key=lambda each: -each[1])
    }


def _row(network: str, name: str, step: _Step) -> dict[str, Claim | str]:
    """The paper's row beside ours, of which others are what the paper's named ones leave."""
    paper = TABLE_1[network]
    row: dict[str, Claim | str] = {"": f"{network} {name}"}
    for column, of, listed, why in (
        ("time, %", step.time, 0, _TIMES),
        ("accesses, %", step.accesses, 1, _ACCESSES),
        ("invocations", step.invocations, 0, _COUNTS.get((network, name), "")),
    ):
        ours = of.get(name, 0)
        if name == _OTHERS:
            named = [each for each, cells in paper.items() if cells[listed] is not None]
            ours = sum(of.values()) - sum(of.get(each, 0) for each in named)
        value = paper[name][2 if column == "invocations" else listed]
        judged = {"excluded": why if value is not None else "", "band": 0, "section": "Table I"}
        row[column] = predicted(ours, value, digits=2 * (column != "invocations"), **judged)
    return row


def table1(changes: Changes, progress: Progress) -> Experiment:
    """What of a step types of operations take, beside the paper's profile."""
    steps = _steps(changes, progress)
    rows = [
        _row(network, name, step) for network, step in steps.items() for name in TABLE_1[network]
    ]
    longest = {name: [*step.time][:_FIVE] for name, step in steps.items()}
    found = {
        f"the five longest of {name}, accesses": (98, sum(step.accesses[n] for n in longest[name]))
        for name, step in steps.items()
    }
    in_both = {
        f"of the five longest of {name} in the other list": (
            4,
            len({*longest[name]} & {*[*step.accesses][:_FIVE]}),
        )
        for name, step in steps.items()
    }
    vgg, *others = found.items()
    millions = [step.parameters for step in steps.values()]
    time = sum(steps["vgg-19"].time[each] for each in longest["vgg-19"])
    complex_time = max(step.not_multiply_add for step in steps.values())
    return Experiment(
        title="Table I: what takes a step's time, and accesses main memory",
        rows=rows,
        quoted={
            **claims("I", "million", _VGG_16, {"parameters of vgg-19": (138, millions[0])}),
            **claims("I", "million", 0.01, {"parameters of alexnet-32": (61, millions[1])}),
            **claims("II-A", "%", (95, inf), {"the five longest of vgg-19, time": (95, time)}),
            **claims("II-A", "%", (98, inf), dict([vgg])),
            **claims("II-A", "%", _ALL_THREE, dict(others)),
            **claims("II-A", "%", (40, inf), {"not multiply/add, at most": (40, complex_time)}),
            **claims("II-A, Table I", "of 5", (3, _FIVE), in_both, digits=0),
        },
        notes=[
            _NOTES,
            "For 90 % of the time the PIMs are offered, ranked one by one and by type: "
            f"{'; '.join(step.offered for step in steps.values())}.",
        ],
        draw=partial(draw_bars, rows, {each: [each] for each in ("time, %", "accesses, %")}),
    )


def figure2(changes: Changes, progress: Progress) -> Experiment:
    """Types of operations in the paper's four classes."""
    steps = _steps(changes, progress)
    rows: list[dict[str, Claim | str]] = []
    for network, step in steps.items():
        fair = 100 / len(step.time)
        classes: dict[str, list[str]] = {each: [] for each in _CLASSES}
        for each, share in step.time.items():
            long, high = share > fair, step.accesses[each] > fair
            classes[f"{'long' if long else 'short'}, {'high' if high else 'low'}"].append(each)
        for name, of in classes.items():
            parts = (
                (how, sum(getattr(step, how)[each] for each in of)) for how in _Step._fields[:2]
            )
            rows.append(
                {"network": network, "class": name, "types": ", ".join(of)}
                | {f"{how}, %": predicted(share, digits=1) for how, share in parts}
            )
    found = {
        f"{name} in vgg-19, {how}": (value * 18 / 100, of[name] * len(of) / 100)
        for name, how, value, of in (
            ("Conv2D", "long", 10.34, steps["vgg-19"].time),
            ("Conv2DBackpropFilter", "long", 40.15, steps["vgg-19"].time),
            ("Conv2DBackpropFilter", "high", 42.52, steps["vgg-19"].accesses),
            ("Conv2D", "low", 0.14, steps["vgg-19"].accesses),
        )
    }
    *judged, low = found.items()
    where = "II-A, Figure 2"
    return Experiment(
        title="Figure 2: four classes of operations",
        rows=rows,
        quoted={
            **claims(where, "", (1, inf), dict(judged)),
            **claims(where, "", _SAME, dict([low])),
            "Slice in dcgan, short, high": predicted(None, excluded=_VIEWS, section=where),
            "Reshape in alexnet-32, short, low": predicted(None, excluded=_VIEWS, section=where),
        },
        notes=[
            "The paper gives no bounds. *Long* is a type of operations that takes more of the time "
            "than each would if all took the same, and *high* so of accesses: claims are how many "
            "times as much, the paper's of its 18 types."
        ],
    )
