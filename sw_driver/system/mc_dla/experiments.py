"""The experiments of the systems by name, and the words before them on their page.

Each is a function of the parts' changes, as ``--set`` has them, and of who is told about progress.
"""

from __future__ import annotations

from collections.abc import Callable

from ..reproduction import Changes, Experiment, Progress
from .figures import figure11, figure12, figure13
from .further import calibration, choices, scale_out, today
from .interconnect import figure9, topologies
from .studies import figure14, scaling, sensitivity, table4

__all__ = ["EXPERIMENTS", "INTRODUCTION"]

INTRODUCTION = """\
# MC-DLA: the systems

Training steps on eight devices whose memory holds only what is soon needed, on the systems of Kwon
and Rhu, *Beyond the Memory Wall: A Case for Memory-centric HPC System for Deep Learning* (MICRO
2018). The rest is in the host's memory, over PCIe (DC-DLA) or links (HC-DLA), or in memory-nodes
between the devices (MC-DLA). How such steps are simulated is in
[models of whole systems](../systems.md). This page is written by

```
.venv/bin/nearmem reproduce mc-dla --out docs/papers
```

In brackets is the paper's figure and the deviation from it. *c* is calibrated, *g* given, all
others are predicted. Means have to be within 10 %, or the command fails. Five are not judged, with
the reason beside them: HC-DLA in data-parallel training and DC-DLA's scaling, of which the paper's
figures exclude others of its own; PCIe 4, whose gain takes parts that overlap less than ours; and
the largest use of a socket's memory, and compression, of which it does not say what they are means
of.

**Two rates are calibrated.** The device-node's arithmetic is a quarter of what its PEs could do: by
that MC-DLA(S) is at worst 24 % behind (B). A PCIe uplink carries 14.2 GB/s, between the 12 that
copies reach and the 15.75 of the lanes: by that (B)'s means for both ways to split are least off.
They are fitted to [three cells](#the-two-rates). All else is given by the paper or follows; what
follows from [other choices](#what-the-choices-do) is at the end.

What the paper leaves open was chosen so, with its means in sight; none of it is a rate:

- Numbers are FP32. Recurrent layers have widths of DeepBench's published sizes, as the paper prints
  time steps only, and no products with inputs, as in DeepBench; their weights' gradient is one
  product over all time steps.
- Moved is what products give, once for each layer; what lies between them is computed again. Moving
  goes on beside all else, as far ahead as there is memory.
- Model-parallel, each device has a share of each layer's outputs. Inputs are gathered forward, and
  once more backward, as each device moves its share only; their gradients are all-reduced.
- Two devices share a PCIe uplink, as in a DGX-1. Collectives use all rings in both directions.
"""

EXPERIMENTS: dict[str, Callable[[Changes, Progress], Experiment]] = {
    "topologies": topologies,
    "figure9": figure9,
    "figure11": figure11,
    "figure12": figure12,
    "figure13": figure13,
    "figure14": figure14,
    "table4": table4,
    "sensitivity": sensitivity,
    "scaling": scaling,
    "today": today,
    "scaleout": scale_out,
    "choices": choices,
    "calibration": calibration,
}
