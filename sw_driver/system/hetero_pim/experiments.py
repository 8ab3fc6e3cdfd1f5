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
adders, and with programmable cores. See its [runtime](../hetero-pim.md) and its
[hardware](../pim.md). This page is written by

```
.venv/bin/nearmem reproduce hetero-pim --out docs/papers
```

*Predicted* is this project's RTL. *Calibrated* has one fitted number, operations of a unit a cycle:
with it [VGG-19](#figure-8-a-step-in-each-configuration) takes as long as on the GPU. 444 units of
312.5 MHz do 139 GFLOP/s and the GPU does 6.8 TFLOP/s with VGG-19, so a unit has to do 49 at least.
[All claims](claims.md#not-judged) lists the figures that are not judged.

Hetero PIM is faster than CPU, Progr PIM and Fixed PIM, and takes less energy. **Missed:**

- Accesses: ReLU, its gradient and Adam move as much as VGG-19's convolutions.
- The GPU's time: in V-D, VGG-19 uses 63 % of the GPU, AlexNet 30 and DCGAN 28 %. The fitted rate
  is too fast for the latter two. Memory bounds more operations of ResNet-50 and Inception-v3.
- The gain over Fixed PIM: the CPU takes most of the time in both.
- Movement: Hetero PIM leaves a tenth of the time to the CPU. Fixed PIM has more of it on the pools.
- Cores: Progr PIM has one, and is slower than the CPU. Sixteen cores help only where operations
  wait for the one core.
- Predicted energy: a step takes 6 to 20 times as long as on the GPU.
- RC and OP: a core's launch takes longer than the host's. OP gains little: a step needs at its
  start the weights that the previous step updates at its end.
- Two networks: the CPU is idle for less than a third of a step.

The CPU reaches half of its peak (assumed), the GPU the share that V-D gives. Operations are ranked
by type, and each runs where it ends first. The core is the RTL's or an ARM Cortex-A9. Energy comes
from [published figures](../hetero-pim.md#two-rates), scaled to 10 nm.
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


_CORES = "The paper does not say how many cores its programmable PIM has."

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
        _CORES,
        {
            "speed-up of PIMs over CPU, least": 1.19,
            "speed-up over Progr PIM, least": 2.5,
            "speed-up over Progr PIM, most": 23,
        },
    ),
    *data(
        "VI-A, Figure 8",
        "x",
        "The paper does not give the share of its peak that its CPU reaches.",
        {"speed-up of PIMs over CPU, most": 28},
    ),
    *data(
        "VI-A, Figure 8",
        "x",
        "Figure 13 allows 1.30 times 3.8 = 4.94 at most.",
        {"speed-up over Fixed PIM, most": 5.7},
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
    *data(
        "VI-E, Figure 13",
        "x",
        _CORES,
        {"speed-up over Progr and Fixed PIM without RC and OP, most": 8.5},
    ),
    *data(
        "VI-E, Figure 14",
        "x",
        _CORES,
        {"energy of Progr and Fixed PIM over energy without RC and OP, most": 2.7},
    ),
)
