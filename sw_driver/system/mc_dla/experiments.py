"""The experiments of the systems by name, and the introduction of their page.

Each is a function of the parts' changes, as ``--set`` has them, and of the progress callback.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..reproduction import Datum, data
from ..runs import experiments
from . import figures
from .runs import McDlaRuns

__all__ = ["DATA", "EXPERIMENTS", "INTRODUCTION"]

INTRODUCTION = """\
# MC-DLA: the systems

For researchers: the figures of Kwon and Rhu, *Beyond the Memory Wall* (MICRO 2018), beside ours.
Eight devices train a network that does not fit their memory. Activations move out until the
backward pass needs them:

- in DC-DLA to the host's memory over PCIe;
- in HC-DLA to the host's memory over half of the devices' links;
- in MC-DLA to memory-nodes between the devices: a device's own one (S), one neighbour (L), or both
  neighbours (B).

The oracle, DC-DLA(O), has unlimited memory and moves nothing. See [the simulation](../systems.md)
and the paper's [given parts](../papers.md#mc-dla). This command writes the page:

```
.venv/bin/nearmem reproduce mc-dla --out docs/papers
```

**Met:** the paper's order of the designs and nearly all of its means, within 10 %.

**Missed:** both figures with PCIe 4. Figures that contradict others of the paper are not judged;
[all claims](claims.md#not-judged) lists them.

**Two rates are calibrated.** The device-node's arithmetic is a quarter of its PEs' peak, so that
MC-DLA(S) is at worst 24 % behind (B). A PCIe uplink carries 14.2 GB/s, fitted to (B)'s two means;
copies reach 12, and the lanes have 15.75.

We chose what the paper leaves open, knowing its means:

- Numbers are FP32. Recurrent layers have the widths of DeepBench's published sizes and, as there,
  no products with inputs. The gradient of their weights is one product over all time steps.
- Only the results of products are moved, once per layer. Results between them are computed again.
  Moves overlap with everything else, and begin as soon as there is memory.
- In model-parallel training each device computes a share of each layer's outputs. Inputs are
  gathered in the forward pass and once more in the backward pass. Their gradients are all-reduced.
- Two devices share a PCIe uplink, as in a DGX-1. Collectives use all rings in both directions.
"""


EXPERIMENTS = experiments(McDlaRuns, figures)
"""Experiments by name, in the order of the page."""

DATA: Sequence[Datum] = (
    *data(
        "II-C",
        "x",
        "If HC-DLA moved at 92 % of its rate throughout, it would be more than 1.32 to 1.38 times "
        "as fast as DC-DLA, which moves at an eighth of that rate.",
        {"HC-DLA: largest mean use of a socket's 300 GB/s": 0.92},
    ),
    *data(
        "V-A",
        "steps",
        "88 % less overlaying needs 9 GB/s over PCIe for each device, and a switch that two "
        "devices share has at most 7.9.",
        {"DC-DLA: steps, of 16, with overlaying as the longest part": 14},
        digits=0,
    ),
    *data(
        "V-B",
        "x",
        "It contradicts the speeds of (B) and (S): HC-DLA moves over more links than (S), and what "
        "its collectives can add is less than the difference.",
        {"speed of HC-DLA over DC-DLA, data-parallel": 1.32},
    ),
    *data(
        "V-B",
        "x",
        "The paper does not say whether this is data- or model-parallel training, or a mean.",
        {"speed of (B) over DC-DLA with traffic compressed 2.6 times": 2.3},
    ),
    *data(
        "V-D",
        "x",
        "One device moves eight times as much as each of eight, so it would need 26.7 GB/s, and "
        "PCIe 3.0 x16 has 15.75.",
        {
            "speed of DC-DLA with 4 devices over one": 1.3,
            "speed of DC-DLA with 8 devices over one": 2.7,
        },
    ),
    *data(
        "III-A",
        "GB",
        "It is an input: ten DIMMs, from their data sheet.",
        {"smallest memory-node": 80, "largest memory-node": 1300},
        digits=0,
    ),
)
