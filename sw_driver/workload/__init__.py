"""Training steps as data, captured from real models.

Only :mod:`~sw_driver.workload.capture` and :mod:`~sw_driver.workload.gpt` need PyTorch.
"""

from .networks import GPTS, GptConfig
from .profile import Profile
from .summary import peak_bytes, summary_text
from .trace import Op, Tensor, Trace, TraceError, load_trace, trace_names

__all__ = [
    "GPTS",
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
