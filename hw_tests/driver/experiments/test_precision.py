"""Training with the golden steps of narrow formats."""

from __future__ import annotations

import numpy as np
import pytest

from golden.rules import reference
from hw.narrow.formats import Formats
from hw_tests.rules.hyperparameters import hyperparameters
from sw_driver.experiments.training.precision import (
    FORMATS,
    NarrowOptimizer,
    compare,
    train_digits,
)


def test_fp32_takes_the_rules_own_steps_and_each_tensor_its_random_words() -> None:
    rng = np.random.default_rng(1)
    start, *gradients = rng.standard_normal((3, 300)).astype(np.float32)
    arguments = hyperparameters("adam", 1)
    del arguments["t"]
    plain = NarrowOptimizer("adam", [start], Formats(), 1, **arguments)
    model = reference("adam")
    state = {"p": start, "m": np.zeros_like(start), "v": np.zeros_like(start)}
    for t, gradient in enumerate(gradients, 1):
        plain.step([gradient])
        state = model.step({"g": gradient, **state}, model.constants(t=t, **arguments))
    assert np.array_equal(next(plain.values()), state["p"])
    bf16 = Formats(parameters="bf16")
    rounded = NarrowOptimizer("adam", [start] * 2, bf16, 1, **arguments)
    rounded.step([gradients[0]] * 2)
    one, other = rounded.values()
    assert len(one) == 300
    assert np.allclose(one, other, rtol=2**-6)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("name", FORMATS)
def test_digits_are_learned_with_every_format_but_one(name: str) -> None:
    loss = train_digits(FORMATS[name], seed=1, steps=20)
    assert (loss < 1) == ("linear" not in name)


def test_a_line_for_each_format(capsys: pytest.CaptureFixture[str]) -> None:
    compare(lambda formats, seed: seed * (1.0 if formats.usual else 1.01), range(1, 4))
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "FP32: loss 2.0000, standard deviation 50.00 %"
    assert second.startswith("BF16 gradients: loss 2.0200, difference +1.000 % (standard deviation")
