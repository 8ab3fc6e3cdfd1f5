"""Training steps as data, captured from real models.

Only :mod:`~sw_driver.workload.capture` and the models in :mod:`~sw_driver.workload.gpt` and
:mod:`~sw_driver.workload.benchmarks` need PyTorch.
"""

from .networks import BENCHMARKS, GPTS, NETWORKS, GptConfig
from .profile import Profile
from .summary import peak_bytes, summary_text
from .trace import Op, Tensor, Trace, TraceError, load_trace, trace_names

__all__ = [
    "BENCHMARKS",
    "GPTS",
    "NETWORKS",
    "GptConfig",
    "Op",
    "Profile",
    "Tensor",
    "Trace",
    "TraceError",
    "load_trace",
    "peak_bytes",
    "summary_text",
    "trace_names",
]
