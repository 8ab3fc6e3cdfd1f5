"""The experiments of the platform by name, and the words before them on their page.

Each is a function of the machine's changes, as ``--set`` has them, and of the progress callback.
"""

from __future__ import annotations

from collections.abc import Callable

from ..reproduction import Changes, Experiment, Progress
from .data import DATA
from .tables import table4, table5, table6

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

EXPERIMENTS: dict[str, Callable[[Changes, Progress], Experiment]] = {
    each.__name__: each for each in (table4, table5, table6)
}
"""Experiments by name, in the order of the page."""
