"""The experiments of the heterogeneous PIM by name, and the introduction of their page."""

from __future__ import annotations

from sw_driver.machine.hetero_pim import GPU_USE

from ..reproduction import data
from ..runs import experiments
from . import figures
from .runs import HeteroPimRuns

__all__ = ["DATA", "EXPERIMENTS", "INTRODUCTION", "REFUSED"]

INTRODUCTION = """\
# Heterogeneous PIM: the systems

Liu et al., *Processing-in-Memory for Energy-efficient Neural Network Training: A Heterogeneous
Approach* (MICRO 2018), train on a CPU beside a stack of memory with pools of multipliers and
adders, and programmable cores. See its [runtime](../hetero-pim.md) and its
[hardware](../pim.md). This page is written by

```
.venv/bin/nearmem reproduce hetero-pim --out docs/papers
```

*Predicted* has this project's RTL: pools, and VexRiscv cores, as many as configured. *Calibrated*
has ARM cores of 2 GHz and one fitted number, operations of a unit a cycle: with it
[VGG-19](#figure-8-a-step-in-each-configuration) takes as long as on the GPU.

[Readings](#readings-changed-one-by-one) answer what the text leaves open.
*Headline* ones, calibrated, are judged (*here*), beside *strict* ones. They are assumed, Progr
PIM's cores calibrated. IV-D's 444 units of each kind meet no more claims, predicted, than
III-C's 222.

**Missed:**

- Accesses: ReLU, its gradient and Adam move as much as VGG-19's convolutions.
- Gains over Fixed PIM, and by RC and OP: without RC, gradients are on the CPU for 73 to 94 % of a
  step. Fixed PIM gains 2.0 over the CPU at most, Hetero PIM 12 at least.
- The GPU's time: V-D has 30 and 28 % of its use for AlexNet and DCGAN, and 63 % for VGG-19.
- Energy of Progr PIM: cores add 4 W to the host's 85, and take less time.
- Frequency: units bound VGG-19, and double. AlexNet loses 0.1 % of a step at 1x, 1.6 % at 4x.
- 16P: 60 cores take the area of 198 units.
- Without RC and OP, Hetero PIM is Fixed PIM with four cores; Progr PIM has 45.
- Use: the pools wait for Adam on the CPU and ReLU on cores. Without RC they have almost nothing.
- Two networks: AlexNet and DCGAN use the CPU for 98 % of a step.

The CPU reaches half of its peak (assumed). Counts are of five networks, or six pairs. Energy has
[published figures](../hetero-pim.md#two-rates). ResNet-50's step takes 10.6 GiB, the stack has 8.
"""

EXPERIMENTS = experiments(HeteroPimRuns, figures)
"""Experiments by name, in the order of the page."""

REFUSED = {
    "figure10": "it compares with Neurocube, and Neurocube's simulator is not public; the paper "
    "only says that it is at least 3 times slower: make the others"
}
"""Experiments of the paper that are left out, with the reason."""

_OTHERS = "others"
_TABLE_1 = {
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
"""Time in %, accesses in %, and invocations of each operation.

None marks an operation that is only in the other list of five. Invocations of others are those by
time.
"""


def _column(place: int) -> dict[str, float]:
    """Return a column of Table I by network and operation."""
    return {
        f"{network} {name}": value
        for network, rows in _TABLE_1.items()
        for name, cells in rows.items()
        if (value := cells[place]) is not None
    }


DATA = (
    *data(
        "I", "million", "VGG-16 has 138; VGG-19 has 144.", {"parameters of vgg-19": 138}, digits=0
    ),
    *data(
        "Table I",
        "% of the time",
        "The paper's filter gradients take 3.9, 3.2 and 1.9 times as long as the forward pass, for "
        "as many multiplications: this depends on TensorFlow's kernels, which are not described.",
        _column(0),
    ),
    *data(
        "Table I",
        "% of accesses",
        "The paper's BiasAddGrad has 0.84 (VGG-19) and 3.0 times (AlexNet) the accesses of "
        "Conv2DBackpropFilter, which reads the same tensor and another one: this depends on "
        "TensorFlow's kernels, too.",
        _column(1),
    ),
    *data(
        "Table I",
        "invocations",
        "TensorFlow's graph has operations for shapes and constants, and the paper does not give "
        "the graph.",
        _column(2),
        digits=0,
    ),
    *data(
        "II-A",
        "%",
        "Table I leaves 97.0 % at most for AlexNet and 75.2 % for DCGAN: an operation outside a "
        "list of five has no more than the list's last.",
        {
            f"share of accesses, five longest operations of {name}": 98
            for name in ("alexnet-32", "dcgan")
        },
        digits=0,
    ),
    *data(
        "V-D",
        "%",
        "It is an input: the GPU does this share of its peak rates here.",
        {
            f"use of the GPU, {name}": 100 * use.value
            for name, use in GPU_USE.items()
            if use.mark == "given"
        },
        digits=0,
    ),
    *data(
        "VI-A, Figure 8",
        "x",
        "The number of Progr PIM's cores is fitted to it.",
        {"speed-up of PIMs over CPU, least": 1.19},
    ),
    *data(
        "VI-A, Figure 8",
        "x",
        "The calibrated rate is fitted to it.",
        {"speed-up over GPU, vgg-19": 1},
    ),
    *data(
        "VI-C, Figure 10",
        "x",
        "Neurocube's simulator is not public.",
        {"speed-up over Neurocube, least": 3},
    ),
    *data(
        "VI-D, Figure 11",
        "x",
        "If a step's time at frequency f is t = a + b / f, these figures make VGG-19 1.34 times as "
        "fast as the GPU at 1x and AlexNet 0.76 times; Figure 8 has both within 10 %.",
        {
            "speed-up of 2x over GPU, vgg-19": 1.36,
            "speed-up of 4x over GPU, vgg-19": 1.37,
            "speed-up of 2x over GPU, alexnet-32": 1.17,
            "speed-up of 4x over GPU, alexnet-32": 1.60,
        },
    ),
)
