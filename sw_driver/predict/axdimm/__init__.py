"""How many fabric cycles a run of the kernel takes, and where they go.

A model at the grain of AXI bursts: for each it works out when it is admitted to the controller,
when its rows are opened and when its columns are given, from the policies of the machine
(``docs/architecture.md``), the hardware's tables of distances between commands, and the run's
placement. What repeats is extrapolated, so that runs larger than any simulation are answered at
once.

Fitted to the RTL, by its source and by measurement: the pipeline latencies between these events,
one to three cycles each, the depths of the small FIFOs, and the thresholds that no document states
(``sw_driver.predict.dram.controller.LOW_LEVEL``,
``sw_driver.predict.dram.refresh.EXTRA_PER_INTERVAL``). All of them are named constants beside what
they belong to. So agreement with the RTL says that the model predicts this machine; it is no
independent check that the machine's policies are right, which is what the DRAM's checkers are for.
"""

from ..dram.channel import ChannelState
from ..dram.refresh import RefreshState
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
