"""The experiments of the heterogeneous PIM by name, and the words before them on their page."""

from __future__ import annotations

from collections.abc import Callable

from ..reproduction import Changes, Experiment, Progress
from . import figures
from .characterization import figure2, table1
from .data import DATA
from .relations import relations

__all__ = ["DATA", "EXPERIMENTS", "INTRODUCTION", "REFUSED"]

INTRODUCTION = """\
# Heterogeneous PIM: the systems

Training steps on a CPU beside a stack of memory with pools of multipliers and adders and with
programmable cores, by Liu et al., *Processing-in-Memory for Energy-efficient Neural Network
Training: A Heterogeneous Approach* (MICRO 2018). What is decided where says [operations on a
heterogeneous PIM](../hetero-pim.md), what the hardware is [heterogeneous PIM](../pim.md). This page
is written by

```
.venv/bin/nearmem reproduce hetero-pim --out docs/papers
```

There are two columns. *Predicted* has the pools and the core as they are in RTL. **Calibrated has
one number,** operations of a unit a cycle, by [one cell](#figure-8-a-step-in-each-configuration):
VGG-19 takes no longer than on the GPU. What cannot follow from the hardware as the paper has it is
[at the end](#which-relations-hold-at-which-rate-of-the-units), with the rates at which each of the
paper's relations holds. Figure 10 compares with a simulator that is not public, and is left out.
The command fails, as **some claims are missed:**

- The five longest types of VGG-19 have 60 % of its accesses here, not 98: ReLU, its gradient and
  Adam move as much as convolutions. Of DCGAN's five two are among the five with most accesses.
- Between CPU and memory the fixed PIM moves less than all parts together do for some networks: that
  has the CPU for what it does not offer, beside the pools. Nor is it less at 4x for all: what the
  CPU does is as long, and less of it is beside what the stack computes.
- With the one rate the PIM is faster than the GPU with AlexNet and DCGAN, and slower with ResNet-50
  and Inception-v3. By V-D the GPU is used to 30 and 28 % by the former, and to 63 by VGG-19; and
  what the latter two do besides convolutions is bound by memory.
- All parts together are 3.5 % ahead of the fixed PIM at least, not 40, and not 7 with neither RC
  nor OP: most of either's time is the CPU's. Two networks are behind the GPU at 2x, one at 4x.
- Sixteen cores in the place of units are faster than one with AlexNet and ResNet-50, where one core
  is waited for. RC has a core do the host's launches, which takes it longer.

What the paper leaves open was chosen so:

- The CPU does half of its peak. The GPU does of its peaks the share that V-D has as its use.
- Operations are ranked by type, as in Table I. One by one a tenth of VGG-19's time stays on the
  CPU, 1.2 s, twice what the GPU takes for all: no rate of units would do.
- What is offered to the stack goes where it ends first. By the paper's words, to the CPU whenever
  the stack is busy, a step is longer (*literal* in Figure 8).
- There is one core, of the RTL or an ARM Cortex-A9. *Progr PIM* has one, too: how many are needed
  is not said.
- Energy is by published figures, of other circuits, scaled to 10 nm; nothing is fitted.
"""

EXPERIMENTS: dict[str, Callable[[Changes, Progress], Experiment]] = {
    "table1": table1,
    "figure2": figure2,
    **{f"figure{n}": getattr(figures, f"figure{n}") for n in (8, 9, *range(11, 18))},
    "relations": relations,
}
"""By their names."""

REFUSED = {
    "figure10": "it compares with Neurocube, whose simulator is not public, and the paper gives no "
    "figures of it but that it is 3 times slower at least: make the others"
}
"""What is in the paper and not here, and why."""
