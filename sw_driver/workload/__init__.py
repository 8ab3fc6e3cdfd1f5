"""Training steps as data, captured from real models."""

from .trace import Op, Tensor, Trace, TraceError

__all__ = ["Op", "Tensor", "Trace", "TraceError"]
