"""Predictor of a kernel run's fabric cycles, by cause.

It is a model at the grain of AXI bursts. For each burst it computes the cycles of its admission to
the controller, of its rows' activates and of its columns. Its inputs are the machine's policies
(``docs/architecture.md``), the hardware's tables of distances between commands, and the run's
addresses. Repeating parts are extrapolated, so that runs larger than any simulation are answered at
once.

Some constants are fitted to the RTL, by its source and by measurement. They are the pipeline
latencies between these events (one to three cycles each), the depths of the small FIFOs, and the
thresholds that no document states (``sw_driver.predict.dram.controller.LOW_LEVEL``,
``sw_driver.predict.dram.refresh.EXTRA_PER_INTERVAL``). All are named constants beside their use. So
agreement with the RTL shows that the model predicts this machine. It does not check that the
machine's policies are right; that is the task of the DRAM's checkers.
"""

from ..dram.channel import ChannelState
from ..dram.refresh import RefreshState
from .host import HostTraffic, HostTransfer
from .model import Prediction, TensorAddresses, predict

__all__ = [
    "ChannelState",
    "HostTraffic",
    "HostTransfer",
    "Prediction",
    "RefreshState",
    "TensorAddresses",
    "predict",
]
