"""Plans for steps whose inputs differ in size, or whose operations depend on them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from sw_driver.numbers import check_integer
from sw_driver.workload.trace import Trace

__all__ = ["MOST", "Buckets"]

MOST = 10
"""Buckets at most, as the paper has it."""


class Buckets:
    """A plan for each bucket of input sizes, and there for each data flow: the first step of either
    is profiled, and those that follow run by its plan. Raises ``ValueError`` for more than
    :data:`MOST`, and for sizes that do not grow.

    Parameters
    ----------
    sizes: of the largest input in each bucket.
    plan: profiles a step and plans it; what it returns is the plan.
    """

    def __init__(self, sizes: Iterable[int], plan: Callable[[Trace], Any]) -> None:
        self.sizes = [check_integer("a bucket's largest input", each) for each in sizes]
        count = check_integer("the number of buckets", len(self.sizes))
        if count > MOST:
            raise ValueError(f"there are {count} buckets: expected at most {MOST}, so join some")
        if self.sizes != sorted(set(self.sizes)):
            raise ValueError(f"buckets are up to {self.sizes}: expected each to be above the last")
        self._plan = plan
        self._plans: dict[tuple[int, Hashable], Any] = {}  # by bucket and data flow

    def plan(self, size: int, step: Trace) -> Any:
        """Of a step with an input of that size. Raises ``ValueError`` if that is in no bucket."""
        check_integer("the input's size", size, 1, self.sizes[-1])
        tensors = tuple((each.kind, each.allocated, each.freed) for each in step.tensors)
        flow = tensors, tuple((op.kind, op.stage, op.reads, op.writes) for op in step.ops)
        key = self.sizes[bisect_left(self.sizes, size)], flow
        if key not in self._plans:
            self._plans[key] = self._plan(step)
        return self._plans[key]
