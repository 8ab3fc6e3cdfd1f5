"""A store as it would be without a module: arrays of the host and the golden rules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.rules import reference

__all__ = ["ReferenceStore", "same"]

Array = NDArray[Any]


def same(one: Array, other: Array) -> bool:
    """Whether they are equal in every bit."""
    return np.array_equal(one.ravel().view(np.uint32), other.ravel().view(np.uint32))


class ReferenceStore:
    """Its tensors, by name of the parameter and of the tensor."""

    def __init__(self) -> None:
        self.rules: dict[str, str] = {}
        self.tensors: dict[str, dict[str, Array]] = {}

    def add(self, name: str, values: Array, rule: str, **initial: float) -> None:
        names = (*reference(rule).inputs,)
        self.rules[name] = rule
        self.tensors[name] = {
            each: np.full(values.shape, initial.get(each, 0.0), np.float32)
            for each in names
            if each not in ("p", "g")
        } | {"p": values.copy()}

    def receive(self, name: str, gradient: Array) -> None:
        own = self.tensors[name]
        if "g" in own:
            own["g"] = self._run("accumulate", {"a": own["g"], "g": gradient}, scale=1.0)["a"]
        else:
            own["g"] = gradient.copy()

    def update(self, name: str, scale: float = 1.0, **hyperparameters: Any) -> None:
        own = self.tensors[name]
        if scale != 1:
            own["g"] = np.float32(scale) * own["g"]
        own.update(self._run(self.rules[name], own, **hyperparameters))
        del own["g"]

    def norm(self) -> float:
        gradients = [own["g"] for own in self.tensors.values() if "g" in own]
        squares = [self._run("sum_squares", {"g": each})["squares"] for each in gradients]
        return math.sqrt(math.fsum(map(float, squares)))

    @staticmethod
    def _run(rule: str, tensors: dict[str, Array], **hyperparameters: Any) -> dict[str, Any]:
        chosen = reference(rule)
        return chosen.step(tensors, chosen.constants(**hyperparameters))
