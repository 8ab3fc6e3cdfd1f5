"""The experiments of the systems by name, and the words before them on their page.

Each is a function of the parts' changes, as ``--set`` has them, and of the progress callback.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..reproduction import Changes, Experiment, Progress
from .data import DATA
from .figures import figure2, figure11, figure13, figure14, scaling, sensitivity, table4
from .runs import Case, Runs

__all__ = ["DATA", "EXPERIMENTS", "INTRODUCTION"]

INTRODUCTION = """\
# MC-DLA: the systems

Kwon and Rhu, *Beyond the Memory Wall: A Case for Memory-centric HPC System for Deep Learning*
(MICRO 2018). Eight devices train a network that does not fit their memory. What a layer computes
moves out until the backward pass needs it. In DC-DLA it moves to the host's memory over PCIe, in
HC-DLA over half of the devices' links. In MC-DLA it moves to memory-nodes that sit between the
devices: to one of a device's own (S), to one neighbour (L), or to both neighbours (B). The oracle,
DC-DLA(O), has memory without end and moves nothing. [Models of whole systems](../systems.md) says
how steps are simulated. This page is written by

```
.venv/bin/nearmem reproduce mc-dla --out docs/papers
```

**Met:** the paper's order of the designs and nearly all of its means, within 10 %.

**Missed:** both figures with PCIe 4. Figures that contradict others of the paper are not judged;
they are with [all claims](claims.md#not-judged).

**Two rates are calibrated.** The device-node's arithmetic is a quarter of what its PEs could do, by
MC-DLA(S) at worst 24 % behind (B). A PCIe uplink carries 14.2 GB/s, by (B)'s two means; copies
reach 12, and the lanes have 15.75.

The paper leaves open what follows. It was chosen with the paper's means in sight:

- Numbers are FP32. Recurrent layers have the widths of DeepBench's published sizes and, as there,
  no products with inputs. The gradient of their weights is one product over all time steps.
- The results of products are moved, once for each layer. What lies between them is computed again.
  Moving goes on beside all else, as early as there is memory.
- In model-parallel training each device computes a share of each layer's outputs. Inputs are
  gathered in the forward pass and once more in the backward pass. Their gradients are all-reduced.
- Two devices share a PCIe uplink, as in a DGX-1. Collectives use all rings in both directions.
"""


def _of(
    experiment: Callable[[Runs], Experiment], changes: Changes, progress: Progress
) -> Experiment:
    return experiment(Runs(case=Case(changes=changes), progress=progress))


EXPERIMENTS: dict[str, Callable[[Changes, Progress], Experiment]] = {
    each.__name__: partial(_of, each)
    for each in (figure2, figure11, figure13, figure14, table4, sensitivity, scaling)
}
"""Experiments by name, in the order of the page."""
