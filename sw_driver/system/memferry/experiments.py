"""The experiments of MemFerry by name, and the introduction of their page."""

from __future__ import annotations

from collections.abc import Sequence

from ..reproduction import Datum, data
from ..runs import Runs, experiments
from . import figures

__all__ = ["DATA", "EXPERIMENTS", "INTRODUCTION"]

INTRODUCTION = """\
# MemFerry: the systems

For researchers: the figures of Yao et al., *MemFerry*, beside ours. Parameters are in the host's
memory while a GPU trains:

- *native* copies all of them to the GPU, as ZeRO-Offload's paper has it;
- *DeepSpeed* also does so, and waits for a buffer for each gradient;
- *MemFerry* copies some, and reads others in place (direct host access, DHA);
- *GO-MemFerry* also writes all gradients to the host by DHA.

See [the planners](../memferry.md), [the simulation](../systems.md) and the paper's
[given parts](../papers.md#memferry). This command writes the page:

```
.venv/bin/nearmem reproduce memferry --out docs/papers
```

A cost model gives the layers' times. Orders and trends are judged. Most of the paper's figures
depend on samples and tokens that it does not state; [all claims](claims.md#not-judged) lists them.

**Met:** MemFerry is faster than both baselines, with less memory than DeepSpeed; GO-MemFerry takes
the least.

**Missed:** some layers by DHA (Figure 3), the reserve factor's curves (Figure 10), GO-MemFerry's
place on a V100 and MemFerry's gain there (Figure 11), and how the gain changes with size (Figures 9
and 13).

**Two numbers are calibrated.** The GPU's wait for DeepSpeed's buffers is fitted to the gain at 1 B
(Figure 13), and the V100's tokens to the largest networks (Figure 11).

We chose what the paper leaves open:

- MemFerry plans with the paper's Algorithm 1, repaired. DHA and copies share a link.
- Native updates when all gradients are there (II-B). If it updated layer by layer, it would be
  faster than MemFerry for three networks of Figure 9.
- All numbers are FP32, and DeepSpeed has its default bucket.
- The table of words is also the output's weight, except in Figure 3.
"""

EXPERIMENTS = experiments(Runs, figures)
"""Experiments by name, in the order of the page."""

_OPEN = (
    "The paper does not give the number and length of a step's samples; computing and activations "
    "depend on them."
)

DATA: Sequence[Datum] = (
    *data("abstract, I", "x", _OPEN, {"gain over ZeRO-Offload, most": 1.68}),
    *data(
        "V-B, Figure 9",
        "x",
        _OPEN,
        {
            "least gain of all": 1.1,
            "most gain of all": 1.4,
            "least gain of small networks": 1.217,
            "most gain of small networks": 1.687,
            "least gain of large networks": 1.071,
            "most gain of large networks": 1.321,
        },
    ),
    *data(
        "III-B, Figure 3c",
        "%",
        _OPEN,
        {
            "backward pass of a linear layer by DHA is slower, least": 5,
            "backward pass of a linear layer by DHA is slower, most": 10,
        },
        digits=0,
    ),
    *data(
        "I, III-A",
        "%",
        _OPEN,
        {
            "DeepSpeed's use of the GPU, GPT-2": 63.1,
            "DeepSpeed's use of the GPU, BERT-base": 63,
            "MemFerry's use relative to DeepSpeed's, most": 127,
        },
        digits=1,
    ),
    *data(
        "I, III-A",
        "%",
        "Without offloading the model's GPU never waits; the paper's loss is the framework's.",
        {"use of the GPU alone, BERT-base": 99, "use of the GPU alone, GPT-2, at least": 80},
        digits=0,
    ),
    *data(
        "I, V-C, Figure 12",
        "% less",
        _OPEN,
        {
            "MemFerry, small networks": 40.1,
            "MemFerry, GPT-2": 1.4,
            "MemFerry, mean": 25.4,
            "MemFerry, most": 61.7,
            "GO-MemFerry relative to MemFerry, small networks": 17.6,
            "GO-MemFerry, most": 74.4,
        },
        digits=1,
    ),
    *data(
        "I, V-C, Figure 12",
        "% less",
        "These are two values for one mean, and only one can be right.",
        {"GO-MemFerry, mean": 41.6, "GO-MemFerry, mean, section I": 20.1},
        digits=1,
    ),
    *data(
        "V-D, Figure 13",
        "% less",
        _OPEN,
        {
            "GO-MemFerry's memory, mean": 21.6,
            "GO-MemFerry's memory, least": 18,
            "GO-MemFerry's memory, most": 22,
        },
        digits=1,
    ),
    *data(
        "V-D, Figure 14",
        "s",
        "The paper names neither the global batch nor the links between GPUs.",
        {"a step on 1 GPU": 5.41, "a step on 8 GPUs": 4.12},
    ),
    *data(
        "abstract, V-D, Figure 14",
        "%",
        "The paper names neither the global batch nor the links between GPUs.",
        {"gain over DeepSpeed on 8 GPUs": 28.1, "gain over native on 8 GPUs": 19.1},
        digits=1,
    ),
)
