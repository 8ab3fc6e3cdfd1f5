"""The experiments of the platform by name, and the words before them on their page.

Each is a function of the machine's changes, as ``--set`` has them, and of who is told about
progress.
"""

from __future__ import annotations

from collections.abc import Callable

from ..reproduction import Changes, Experiment, Progress
from .choices import calibration, choices
from .data import DATA
from .narrow import formats
from .tables import figure4, table4, table5, table6
from .variants import ablations, further, gpudirect, today

__all__ = ["DATA", "EXPERIMENTS", "INTRODUCTION"]

INTRODUCTION = """\
# AXDIMM: the platform

Training steps of models that a GPU cannot hold, on the platform of Kim et al., *Synergistic
Approach for Systems with AXDIMMs, GPUs, and NVMe Devices* (sections 5 and 6): parameters and
optimizer states are on the module, and on NVMe what has no room there; the module updates them
while gradients arrive. The module itself is in [papers](../papers.md), how such steps are simulated
in [models of whole systems](../systems.md). This page is written by

```
.venv/bin/nearmem reproduce axdimm --out docs/papers
```

Times, throughputs and peaks of NVMe have to be within 10 %, speed-ups within 5 %, sizes within 4 %,
or the command fails.

What the paper does not say was chosen so: the baseline has its memory in two parts of 8 GiB, as the
module; the runtime makes one transfer after the other; gradients wait in the stream in which
parameters are fetched; PyTorch is 20 operations ahead of the GPU. [Other
choices](#what-the-choices-explain), each with rates fitted to it, explain the paper's figures less
well, but for two that do about as well: transfers beside each other, and PyTorch further ahead or
less. No rate is fitted to the peaks of NVMe, but they did help to choose.
"""

EXPERIMENTS: dict[str, Callable[[Changes, Progress], Experiment]] = {
    each.__name__: each
    for each in (
        table4,
        table5,
        table6,
        figure4,
        gpudirect,
        ablations,
        further,
        formats,
        today,
        choices,
        calibration,
    )
}
