"""How many fabric cycles a run of the kernel takes, and where they go.

A model at the grain of AXI bursts, in plain Python: for each burst it works out when it is admitted
to the controller, when its rows are opened and when its columns are given, from the policies of the
machine (``docs/architecture.md``), the JEDEC timing and the run's placement. Of the update rule it
is told how many tensors are loaded and stored, the latency of the unit, and whether there are sums.
Nothing is simulated cycle by cycle, and what repeats is extrapolated, so that runs larger than any
simulation are answered at once.

Taken from the specification: the order and the size of bursts, rounds and credits, the queue and
its two directions, the preparation of rows, column spacing, refresh and the rounding of DRAM timing
to fabric cycles. Fitted to the RTL, by its source and by measurement: the pipeline latencies
between these events, one to three cycles each, the depths of the small FIFOs, and the thresholds
that no document states (``sw_driver.predict.axdimm.model.LOW_LEVEL``,
``sw_driver.predict.dram.refresh.EXTRA_PER_INTERVAL``). All of them are named constants beside what
they belong to. So agreement with the RTL says that the model predicts this machine; it is no
independent check that the machine's policies are right, which is what the DRAM's checkers are for.
"""

from ..dram.refresh import RefreshState
from ..dram.state import ChannelState
from .host import HostTraffic, Transfer
from .model import Placement, Prediction, predict

__all__ = [
    "ChannelState",
    "HostTraffic",
    "Placement",
    "Prediction",
    "RefreshState",
    "Transfer",
    "predict",
]
