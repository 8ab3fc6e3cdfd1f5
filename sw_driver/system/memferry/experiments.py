"""The experiments of MemFerry by name, and the words before them on their page."""

from __future__ import annotations

from collections.abc import Callable

from ..reproduction import Changes, Experiment, Progress
from .data import DATA
from .figures import figure3, figure9, figure10, figure11, figure12, figure13, figure14

__all__ = ["DATA", "EXPERIMENTS", "INTRODUCTION"]

INTRODUCTION = """\
# MemFerry: the systems

Yao et al., *MemFerry: A Fast and Memory Efficient Offload Training Framework with Hybrid GPU
Computation*. Parameters are in the host's memory while a GPU trains:

- *native* copies all of them to the GPU, as ZeRO-Offload's paper has it;
- *DeepSpeed* does so, and waits for a buffer for each gradient;
- *MemFerry* copies some, and reads others where they are (direct host access, DHA);
- *GO-MemFerry* also writes all gradients to the host by DHA.

[Parameters in the host's memory](../memferry.md) has the planners,
[models of whole systems](../systems.md) says how steps are simulated. This page is written by

```
.venv/bin/nearmem reproduce memferry --out docs/papers
```

Layers' times are a cost model's. Most of the paper's figures depend on samples and tokens that it
does not say; they are with [all claims](claims.md#not-judged). Orders and trends are judged.

**Met:** MemFerry is faster than both baselines, with less memory than DeepSpeed; GO-MemFerry takes
the least.

**Missed:** some layers by DHA (Figure 3), the reserve factor's curves (Figure 10), GO-MemFerry's
place on a V100 and MemFerry's gain there (Figure 11), and how the gain changes with size (Figures 9
and 13).

**Two numbers are calibrated:** how long a GPU waits for DeepSpeed's buffers, by the gain at 1 B
(Figure 13), and the V100's tokens, by the largest networks (Figure 11). Also open, and chosen:

- MemFerry's plan is by the paper's Algorithm 1, repaired. DHA and copies share a link here.
- Native updates when all gradients are there (II-B). If it updated layer by layer, it would be
  faster than MemFerry for three networks of Figure 9.
- All is FP32, and DeepSpeed has its default bucket.
- The table of words is the output's weight, too, but for Figure 3.
"""

EXPERIMENTS: dict[str, Callable[[Changes, Progress], Experiment]] = {
    each.__name__: each
    for each in (figure3, figure9, figure10, figure11, figure12, figure13, figure14)
}
"""Experiments by name, in the order of the page."""
