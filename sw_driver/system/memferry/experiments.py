"""The experiments of MemFerry by name, and the words before them on their page."""

from __future__ import annotations

from collections.abc import Callable

from ..reproduction import Changes, Experiment, Progress
from .data import DATA
from .examples import figure3, figure4, figure6
from .figures import FIGURES

__all__ = ["DATA", "EXPERIMENTS", "INTRODUCTION"]

INTRODUCTION = """\
# MemFerry: the systems

Training steps with parameters in the host's memory, by Yao et al., *MemFerry: A Fast and Memory
Efficient Offload Training Framework with Hybrid GPU Computation*: all are copied to the GPU
(ZeRO-Offload, as its paper has it, *native*, and as DeepSpeed has it), or some are read by the GPU
where they are, by direct host access, DHA (MemFerry), and all gradients written so, too
(GO-MemFerry). What planners there are says [parameters in the host's memory](../memferry.md), how
steps are simulated [models of whole systems](../systems.md). This page is written by

```
.venv/bin/nearmem reproduce memferry --out docs/papers
```

No time is measured: layers' times are a cost model's. Orders and trends are judged, and the command
fails, as **some are missed:**

- Backward passes of an embedding and a norm by DHA are no slower here, nor a norm's with gradients
  by DHA: an embedding's reads no parameters, and a norm's few bytes cross the link meanwhile.
- The reserve factor's curves neither fall at each step nor are convex: what the paper's D(i, j)
  weighs is not all that a step waits for.
- GO-MemFerry is not the slowest on the V100, nor slower than MemFerry. What it writes is hidden
  here behind the host's updates.
- MemFerry gains over DeepSpeed as much at 6.7 B as at 1 B, as all that takes time grows alike. Nor
  is its least gain of small networks above that of large ones.

**One number is calibrated,** on [one speed-up](#figure-13-transformer-xl-on-an-a100-eight-samples):
how long the GPU waits for DeepSpeed's gradient buffers. What the paper leaves open was chosen so:

- MemFerry's plan is by the paper's Algorithm 1, repaired, which takes DHA and copies for
  independent. They share a link here, on which many of its layers by DHA are slower than copies.
  *ours* is MemFerry with a planner that knows this.
- Native has copies from the step's begin, layer by layer, and updates when all gradients are there
  (II-B). III-A also has updates and copies overlap. Native with a layer's update as soon as its
  gradient comes would be 19 to 22 % shorter a step than MemFerry for three networks of Figure 9,
  and as long for GPT-2: that MemFerry is faster than native there is by this choice.
- In the GPU's memory DeepSpeed has parameters, gradients and activations (II-B), and its bucket of
  5e8 gradients, which is the default. FP32 is everywhere.
- The table of words is the output's weight, too, as in these networks: bert-base has 110 M
  parameters (I), and 4.3 and 6.7 B are 4.2 and 6.6. So the output copies it, and an embedding has
  only its rows to move. Figures 3, 4 and 6 are of an embedding that copies a table of its own, as
  III-B has it. If each network had one, bert-base of 134 M, 4.3 B of 4.8 and 6.7 B of 7.2, two
  verdicts would change, both in Figure 9: MemFerry would be slower than GO-MemFerry with GPT-2, and
  the least gain of small networks above that of large ones.
"""

EXPERIMENTS: dict[str, Callable[[Changes, Progress], Experiment]] = {
    each.__name__: each for each in (figure3, figure4, figure6, *FIGURES)
}
"""By their names."""
