"""``python -m hw_tests.golden.rules.flushed_training [STEPS]``: what flushing changes in training.

Trains the perceptron of ``nearmem sim`` on the digits by the golden Adam, with subnormal numbers
kept, with them flushed, and both ways with and without weight decay. Prints the share of the
results of single steps, each from the state that training with them kept has then, that differ in
a bit; how many parameters differ at the end; and the losses of the last step.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from golden.rules import reference
from sw_driver.experiments.training.data import CLASSES, PIXELS, load_split_digits
from sw_driver.experiments.training.mlp import Mlp

SUBNORMALS = ("kept", "flushed")
BATCH_IMAGES = 256


def main(steps: int) -> None:
    """Measures and prints."""
    for weight_decay in (0.0, 1e-4):
        _train(steps, weight_decay)


def _train(steps: int, weight_decay: float) -> None:
    digits = load_split_digits()
    network = Mlp((PIXELS, 256, 320, CLASSES))
    rng = np.random.default_rng(1)
    start = network.initial(rng)
    models = {each: reference("adam", each) for each in SUBNORMALS}
    begin = {"p": start, "m": np.zeros_like(start), "v": np.zeros_like(start)}
    states: dict[str, Any] = dict.fromkeys(SUBNORMALS, begin)
    losses: dict[str, float] = {}
    differing = dict.fromkeys("pmv", 0)
    for t in range(1, steps + 1):
        batch = rng.integers(0, len(digits.train_labels), BATCH_IMAGES)
        constants = models["kept"].constants(
            lr=3e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=weight_decay, t=t
        )
        once: dict[str, Any] = {}
        same = states["kept"] is states["flushed"]
        for each, state in states.items():
            if same and each == "flushed":
                # Training has not parted yet.
                losses[each] = losses["kept"]
                states[each] = once
                continue
            losses[each], gradient = network.loss_and_gradient(
                state["p"], digits.train_images[batch], digits.train_labels[batch]
            )
            states[each] = models[each].step({"g": gradient, **state}, constants)
            if each == "kept":
                once = models["flushed"].step({"g": gradient, **state}, constants)
                for name in differing:
                    differing[name] += _differing(once[name], states[each][name])
        if same and not any(differing.values()):
            states["flushed"] = states["kept"]
    results = steps * network.parameters
    shares = ", ".join(f"{name} {count / results:.2e}" for name, count in differing.items())
    apart = _differing(states["kept"]["p"], states["flushed"]["p"])
    print(
        f"{steps} steps of {network.parameters} parameters, weight decay {weight_decay:g}: of "
        f"single steps differ {shares}; at the end {apart} parameters; "
        f"loss {losses['kept']:.6f} kept, {losses['flushed']:.6f} flushed"
    )


def _differing(one: Any, other: Any) -> int:
    """Numbers of FP32 that are not the same bits."""
    return int(np.count_nonzero(one.view(np.uint32) != other.view(np.uint32)))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
