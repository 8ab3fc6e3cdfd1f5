"""The experiments of Sentinel by name, and the words before them on their page."""

from __future__ import annotations

from collections.abc import Callable

from ..reproduction import Changes, Experiment, Progress
from .data import DATA
from .figures import figure7, figure8, figure10, figure11, figure12, figure13

__all__ = ["DATA", "EXPERIMENTS", "INTRODUCTION"]

INTRODUCTION = """\
# Sentinel: the systems

Ren et al., *Sentinel: Runtime Data Management on Heterogeneous Main Memory Systems for Deep
Learning*, train with a small fast memory beside a large slow one. Tensors that live within a layer
stay in a pool in fast memory. Others move there before an interval of layers needs them. More:
[the planner](../sentinel.md), [the simulation](../systems.md).
`.venv/bin/nearmem reproduce sentinel --out docs/papers` writes this page.

Nothing is measured: an operation takes what its bytes and arithmetic take. The paper leaves open
whether moves take from the memories' rates. *Shared* they do, *apart* they do not; where neither is
named, it is *apart*. Figures 1 to 4 and Tables 1 and 3 to 5 are [not judged](claims.md#not-judged).

**Met.** With a fifth of the peak as fast memory ResNets lose nothing *apart*, and 6 % at most
*shared*. IAL, which moves pages by a kernel's lists, at its best loses what it does in the paper.
More fast memory is never slower.

**Missed,** so the command fails:

- *A fifth of the peak* is below the paper's lower bound for three networks: `lstm-ptb` has 144 of
  625 MB in one layer. It loses less under IAL.
- *Sentinel over IAL* is 6 % and not 18, as IAL is at its best.
- *At 60 %* `lstm-ptb` loses, which uses all weights in each of 35 time steps, and `dcgan`, of whose
  bytes two thirds outlive the step. *Shared*, all lose: 80 % of ResNet-32's 320 MB out and back
  take 15 ms, beside 51 for its step's bytes.
- *Interval lengths* hardly matter: in the shortest, of 12 ms, 19 GB/s bring 227 of 320 MB.
- *False sharing* costs nothing: few bytes are of tensors smaller than a page.
- *Without a pool* `dcgan` is faster; ResNets lose nothing.
- *Figure 13:* to `resnet-34` and to `resnet-50` fast memory grows faster than the peak.
"""

EXPERIMENTS: dict[str, Callable[[Changes, Progress], Experiment]] = {
    each.__name__: each for each in (figure7, figure8, figure10, figure11, figure12, figure13)
}
"""The paper's figures of sections 4.4 and 6."""
