"""The experiments of the heterogeneous PIM by name, and the words before them on their page."""

from __future__ import annotations

from collections.abc import Callable

from ..reproduction import Changes, Experiment, Progress
from . import figures
from .data import DATA

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
What is not judged is in [all claims](claims.md#not-judged).

Hetero PIM is faster than CPU, Progr PIM and Fixed PIM, and takes less energy. **Missed are:**

- Accesses: ReLU, its gradient and Adam move as much as VGG-19's convolutions.
- The GPU's time: by V-D the GPU is used to 63 % with VGG-19 and to 30 and 28 % with AlexNet and
  DCGAN, for which the fitted rate is too fast. ResNet-50 and Inception-v3 have more that memory
  bounds.
- The gain over Fixed PIM: most of either's time is the CPU's.
- Movement: Hetero PIM leaves a tenth of the time to the CPU. Fixed PIM has more of it on the pools.
- Cores: Progr PIM has one, and is slower than the CPU. Sixteen help where one is waited for.
- Predicted energy: a step takes 6 to 20 times as long as on the GPU.
- RC and OP: a core's launch takes longer than the host's. OP gains little, as a step begins with
  the weights that the last one updates at its end.
- Two networks: the CPU is idle for less than a third of a step.

The CPU does half of its peak (assumed), the GPU the share that V-D has. Operations are ranked by
type, and go where they end first. The core is the RTL's or an ARM Cortex-A9. Energy is by
[published figures](../hetero-pim.md#two-rates), scaled to 10 nm.
"""

EXPERIMENTS: dict[str, Callable[[Changes, Progress], Experiment]] = {
    name: getattr(figures, name)
    for name in ("table1", *(f"figure{number}" for number in (8, 9, *range(11, 18))))
}
"""Experiments by name, in the order of the page."""

REFUSED = {
    "figure10": "it compares with Neurocube, whose simulator is not public, and the paper gives no "
    "figures of it but that it is 3 times slower at least: make the others"
}
"""Experiments of the paper that are not here, and why."""
