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

For researchers: the figures of Kim et al., sections 5 and 6, beside ours. A GPU trains models that
its memory cannot hold. Parameters and optimizer states are on the AXDIMM module and, where it is
full, on NVMe drives. The module updates parameters while gradients arrive. In the baseline the same
memory has no kernel, and one CPU core updates parameters.

See [the module](../papers.md#axdimm) and [the simulation of steps](../systems.md). This command
writes the page:

```
.venv/bin/nearmem reproduce axdimm --out docs/papers
```

**Met:** all claims. Times, throughputs and peaks of NVMe are within 10 %, speed-ups within 5 %,
sizes within 4 %. The paper has no figures of GPUDirect Storage (4.4) and of pinned pages (4.3).
[All claims](claims.md#not-judged) lists the figures that cannot be judged.

**Four rates are calibrated,** on the forward and backward passes of two models in Table 6. The
other three models are predicted with them.

We chose what the paper leaves open, knowing Table 6:

- The baseline's memory has two parts of 8 GiB, like the module.
- The runtime makes one transfer at a time. Gradients wait in the stream that fetches parameters.
- PyTorch is 20 operations ahead of the GPU.
- Parameters go to the channels in turn (5.2). Megatron makes weights and biases in turn, so one
  channel gets all large parameters, and the other has little to do.
"""

EXPERIMENTS = experiments(Runs, tables)
"""Experiments by name, in the order of the page."""

_INPUT = "It is an input of the simulation."

DATA: Sequence[Datum] = (
    *data(
        "Table 4",
        "GB",
        "All other sizes of states in the paper are 8 bytes per parameter, which is 21.6 GB for "
        "2.7 billion.",
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
        "The paper does not name the operators of its unit, and ours is another design.",
        {"latency of a unit": 128},
        digits=0,
    ),
    *data(
        "3.3",
        "",
        "The paper does not name the operators of its unit, and ours is another design.",
        {"DSPs of a unit": 31},
        digits=0,
    ),
)
