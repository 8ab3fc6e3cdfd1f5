"""The experiments of the platform by name, and the introduction of their page.

Each is a function of the machine's changes, as ``--set`` has them, and of the progress callback.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..reproduction import Datum, data
from ..runs import Runs, experiments
from . import tables

__all__ = ["DATA", "EXPERIMENTS", "INTRODUCTION"]

INTRODUCTION = """\
# AXDIMM: the platform

Kim et al., *Synergistic Approach for Systems with AXDIMMs, GPUs, and NVMe Devices* (sections 5 and
6). A GPU trains models that its memory cannot hold. Parameters and optimizer states are on the
AXDIMM module, and on NVMe drives what has no room there. The module updates parameters while
gradients arrive. In the baseline the same memory has no kernel, and one core of the CPU updates.

The module itself is in [papers](../papers.md), and [models of whole systems](../systems.md) says
how steps are simulated. This page is written by

```
.venv/bin/nearmem reproduce axdimm --out docs/papers
```

**Met:** all claims. Times, throughputs and peaks of NVMe are within 10 %, speed-ups within 5 %,
sizes within 4 %. The paper has no figures of GPUDirect Storage (4.4) and of pinned pages (4.3).
What cannot be judged is with [all claims](claims.md#not-judged).

**Four rates are calibrated,** on the forward and backward passes of two models in Table 6. The
other three models are predicted with them.

The paper leaves open what follows. It was chosen with Table 6 in sight:

- The baseline has its memory in two parts of 8 GiB, as the module.
- The runtime makes one transfer after the other. Gradients wait in the stream in which parameters
  are fetched.
- PyTorch is 20 operations ahead of the GPU.
- Parameters are placed in turns (5.2). Megatron makes weights and biases in turns, so that one
  channel has all large parameters, and the other has little to do.
"""

EXPERIMENTS = experiments(Runs, tables)
"""Experiments by name, in the order of the page."""

_INPUT = "It is an input of the simulation."

DATA: Sequence[Datum] = (
    *data(
        "Table 4",
        "GB",
        "The paper's sizes of states are 8 bytes a parameter but for this one, as 8 bytes of 2.7 "
        "billion are 21.6 GB.",
        {"states of gpt3-2.7b": 20.2},
        digits=1,
    ),
    *data(
        "Table 5",
        "MP/s",
        _INPUT,
        {
            "CPU, one core, theoretical": 228.57,
            "CPU, one core, measured": 140.32,
            "module, theoretical": 914.29,
        },
    ),
    *data(
        "3.3",
        "cycles",
        "Which operators the paper's unit has is not said, and ours is another design.",
        {"latency of a unit": 128},
        digits=0,
    ),
    *data(
        "3.3",
        "",
        "Which operators the paper's unit has is not said, and ours is another design.",
        {"DSPs of a unit": 31},
        digits=0,
    ),
)
