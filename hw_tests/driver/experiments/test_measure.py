"""Adam on the CPU: that both libraries compute it, and what the command prints."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from hw.rules import rule
from hw_tests.driver.adam import adam_constants, adam_step
from hw_tests.driver.refusals import assert_refused
from sw_driver.axdimm.rulejob import hyperparameters_of
from sw_driver.cli import main
from sw_driver.experiments.measure import adam

SMALL = ["--parameters", "3000", "--repetitions", "3", "--threads", "2"]
MODULE = ["--backend", "cycles", "--config", "tiny", "--module-parameters", "2000"]


def operands(count: int) -> list[np.ndarray]:
    """p, g, m and v: ordinary values, subnormal ones and infinities."""
    rng = np.random.default_rng(3)
    arrays = [rng.normal(0, 1e-2, count).astype(np.float32) for _ in range(4)]
    arrays[3] **= 2
    for array in arrays:
        array[rng.integers(0, count, count // 10)] = np.float32(1e-40)
        array[rng.integers(0, count, count // 100)] = np.float32("inf")
    return arrays


def test_numpy_computes_the_golden_step() -> None:
    p, g, m, v = operands(5000)
    expected = p, m, v
    step = adam.numpy_adam(p := p.copy(), g, m := m.copy(), v := v.copy())
    for t in (1, 2):
        hyperparameters = {**hyperparameters_of(rule("adam"), 1), "t": t}
        expected = adam_step(expected[0], g, *expected[1:], adam_constants(**hyperparameters))
        with np.errstate(all="ignore"):
            step(t)
        for result, wanted in zip((p, m, v), expected, strict=True):
            np.testing.assert_array_equal(result, wanted)


def test_torch_computes_nearly_the_golden_step() -> None:
    pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    p, g = (rng.normal(0, 0.1, 1000).astype(np.float32) for _ in range(2))
    state = p.copy(), np.zeros_like(p), np.zeros_like(p)
    step = adam.torch_adam(p, g, threads=2)
    for t in range(1, 4):
        step(t)
        constants = adam_constants(**hyperparameters_of(rule("adam"), t))
        state = adam_step(state[0], g, *state[1:], constants)
    np.testing.assert_allclose(p, state[0], rtol=1e-4, atol=1e-6)


def test_json_is_all_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", "--json", *SMALL, *MODULE]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    document = json.loads(output.out)
    assert document["machine"]["lanes"] == 2
    figures = document["results"]
    assert figures["paper"] == {"cpu": 140.32, "module": 789.38}
    module = figures["module"]
    assert module["bit_exact"] is True
    assert module["mparams_per_s"] == pytest.approx(2 * 2000 / module["fabric_cycles"] * 200)
    assert figures["cpu"][0]["library"] == f"numpy {np.__version__}"
    for row in figures["cpu"]:
        assert len(row["seconds"]) == 3
        assert row["mparams_per_s"] == pytest.approx(3000 / sorted(row["seconds"])[1] / 1e6)
        assert row["gb_per_s"] == pytest.approx(28 * row["mparams_per_s"] / 1e3)


@pytest.mark.parametrize("installed", [True, False])
def test_the_table_names_each_library(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    if installed:
        pytest.importorskip("torch")
    else:
        monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["measure", "--no-module", *SMALL]) == 0
    printed = capsys.readouterr().out
    for words in ("numpy", "140.32", "789.38", "Adam(fused=True)" if installed else "pip install"):
        assert words in printed
    assert main(["measure", "--no-module", "--quiet", *SMALL]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("options", "phrases"),
    [
        (["--parameters", "0"], ["'0'", "from 1"]),
        (["--parameters", str(1 << 36)], [str(1 << 36), "--parameters"]),
        (["--backend", "golden"], ["'golden'", "--no-module"]),
        (["--config", "huge"], ["'huge'", "axdimm"]),
    ],
    ids=" ".join,
)
def test_refusals_take_one_line(
    capsys: pytest.CaptureFixture[str], options: list[str], phrases: list[str]
) -> None:
    assert_refused(capsys, ["measure", "--quiet", *options], phrases)
