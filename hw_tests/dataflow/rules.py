"""Small rules for the tests of the pipeline builder."""

from __future__ import annotations

from hw.dataflow.flow import FlowValue, sqrt

__all__ = ["momentum", "spread"]


def momentum(*, p: FlowValue, g: FlowValue, m: FlowValue, mu: FlowValue, lr: FlowValue) -> dict:
    """Stochastic gradient descent with momentum."""
    m = mu * m + g
    return {"p": p - lr * m, "m": m}


def spread(*, a: FlowValue, b: FlowValue, c: FlowValue) -> dict:
    """Values used at many stages, negated and not, and inputs that go straight through."""
    total = a - -c * b
    root = sqrt(total * total)
    ratio = -a / root
    return {"ratio": ratio - b, "total": -total, "a": a, "late": total + ratio}
