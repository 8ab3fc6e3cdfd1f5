"""The experiments of the systems by name, and the words before them on their page.

Each is a function of the parts' changes, as ``--set`` has them, and of who is told about progress.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..reproduction import Changes, Experiment, Progress
from .data import DATA
from .figures import figure9, figure11, figure12, figure13, figure14, topologies
from .further import calibration, choices, scaleout, today
from .motivation import figure2
from .runs import Case, Runs
from .studies import scaling, sensitivity, table4

__all__ = ["DATA", "EXPERIMENTS", "INTRODUCTION"]

INTRODUCTION = """\
# MC-DLA: the systems

Training steps on eight devices whose memory holds only what is soon needed, by Kwon and Rhu,
*Beyond the Memory Wall: A Case for Memory-centric HPC System for Deep Learning* (MICRO 2018). The
rest is in the host's memory, over PCIe (DC-DLA) or links (HC-DLA), or in memory-nodes between the
devices (MC-DLA); [models of whole systems](../systems.md) says how they are simulated. This page is
written by

```
.venv/bin/nearmem reproduce mc-dla --out docs/papers
```

Means have to be within 10 %, or the command fails.

**Two rates are calibrated,** on [three cells](#the-two-rates): the device-node's arithmetic is a
quarter of what its PEs could do, by MC-DLA(S) at worst 24 % behind (B); and a PCIe uplink carries
14.2 GB/s, between the 12 that copies reach and the 15.75 of the lanes, by (B)'s two means. What the
paper leaves open was chosen with its means in sight; [other choices](#what-the-choices-do) are at
the end:

- Numbers are FP32. Recurrent layers have widths of DeepBench's published sizes and, as there, no
  products with inputs; their weights' gradient is one product over all time steps.
- Moved is what products give, once for each layer; what lies between them is computed again. Moving
  goes on beside all else, as far ahead as there is memory.
- Model-parallel, each device has a share of each layer's outputs. Inputs are gathered forward and
  once more backward; their gradients are all-reduced.
- Two devices share a PCIe uplink, as in a DGX-1. Collectives use all rings in both directions.
"""


def _of(
    experiment: Callable[[Runs], Experiment], changes: Changes, progress: Progress
) -> Experiment:
    return experiment(Runs(case=Case(changes=changes), progress=progress))


EXPERIMENTS: dict[str, Callable[[Changes, Progress], Experiment]] = {
    each.__name__: partial(_of, each)
    for each in (
        figure2,
        topologies,
        figure9,
        figure11,
        figure12,
        figure13,
        figure14,
        table4,
        sensitivity,
        scaling,
        today,
        scaleout,
        choices,
        calibration,
    )
}
