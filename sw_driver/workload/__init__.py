"""Training steps as data, captured from real models.

Only :mod:`~sw_driver.workload.capture` and :mod:`~sw_driver.workload.models` need PyTorch.
"""

from .networks import BENCHMARKS, GPTS, NETWORKS, GptConfig
from .profile import Profile
from .summary import peak_bytes
from .trace import Geometry, Op, Stage, Tensor, Trace, TraceError, load_trace, trace_names

__all__ = [
    "BENCHMARKS",
    "GPTS",
    "NETWORKS",
    "Geometry",
    "GptConfig",
    "Op",
    "Profile",
    "Stage",
    "Tensor",
    "Trace",
    "TraceError",
    "load_trace",
    "peak_bytes",
    "trace_names",
]
