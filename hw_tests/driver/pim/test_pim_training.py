"""Steps of training by cores and pools: bit for bit, and without the host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from hw.pim.config import PimConfig
from sw_driver.cli import main
from sw_driver.experiments.pim import training
from sw_driver.experiments.pim.training import SAMPLES, Training, training_config
from sw_driver.experiments.training.data import load_split_digits
from sw_driver.pim.backends.rtl import RtlPim
from sw_driver.pim.device import Pim

Floats = NDArray[np.float64]
FASTER = training_config(1, core_clock_ratio=2)


class WatchedPim(RtlPim):
    """Knows in which cycle the host last did something on a bus, before and after its longest
    pause."""

    pause = 0, 0
    last = 0

    def _note(self) -> None:
        now = self.cycles()
        self.pause = max(self.pause, (self.last, now), key=lambda span: span[1] - span[0])
        self.last = now

    def _access(self, *args: Any) -> int:
        self._note()
        try:
            return super()._access(*args)
        finally:
            self.last = self.cycles()

    def _transfer(self, *args: Any, **settings: Any) -> Any:
        self._note()
        yield from super()._transfer(*args, **settings)
        self.last = self.cycles()


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--steps", "1", "--cores", "4", "--json", "--out", str(tmp_path)]
    trace = tmp_path / "trace.csv"
    assert main(["pim", "--train", *options, "--dram-trace", str(trace)]) == 0
    document = json.loads(capsys.readouterr().out)
    report = document["results"]
    assert document["files"] == [str(trace), str(tmp_path / "cores.svg")]
    assert trace.read_text().count("\n") > 100
    assert (tmp_path / "cores.svg").read_text().startswith("<?xml")
    (step,) = report["steps"]
    assert (document["machine"]["cores"], len(step["cores"]), step["wrong_tensors"]) == (4, 4, [])
    assert report["compared_tensors"] == step["compared_tensors"] == 17
    assert main(["pim", "--train", *options[:4]]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "compared with the golden model's, 17 in 1 steps: they are equal, bit for bit" in shown
    assert "The first table has a row for each step. Losses are from before" in shown
    monkeypatch.setattr(training, "golden_step", lambda *_: None)
    assert main(["pim", "--train", "--steps", "1", "--cores", "4"]) == 1
    shown = capsys.readouterr()
    waits = [f"{100 * core['pool_cycles'] / core['cycles']:.1f}%" for core in step["cores"]]
    assert f"{step['loss']:.4f}" in shown.out
    assert all(wait in shown.out for wait in waits)
    assert "differ from the golden model's: bias, convolved," in shown.err
    assert "they are equal" not in shown.out


def plain_step(p: dict[str, Floats], images: Floats, digits: NDArray[np.int64]) -> float:
    """The same step in numpy, in double precision: changes the parameters, returns the loss."""
    n = len(images)
    windows = sliding_window_view(images.reshape(n, 8, 8), (5, 5), axis=(1, 2))
    y = np.einsum("nijkl,fkl->fnij", windows, p["filters"][:, 0])
    y = np.maximum(y + p["filter_bias"][:, None, None, None], 0)
    quarters = y.reshape(4, n, 2, 2, 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(4, n, 2, 2, 4)
    pooled = quarters.max(-1)
    scores = np.einsum("fnij,foij->no", pooled, p["weights"]) + p["bias"]
    powers = np.exp(scores - scores.max(1, keepdims=True))
    shares = powers / powers.sum(1, keepdims=True)
    dscores = (shares - np.eye(10)[digits]) / n
    dquarters = np.zeros_like(quarters)
    dpooled = np.einsum("no,foij->fnij", dscores, p["weights"])
    np.put_along_axis(dquarters, quarters.argmax(-1)[..., None], dpooled[..., None], -1)
    dy = dquarters.reshape(4, n, 2, 2, 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(y.shape) * (y > 0)
    p["filters"][:, 0] -= 0.25 * np.einsum("fnij,nijkl->fkl", dy, windows)
    p["filter_bias"] -= 0.25 * dy.sum((1, 2, 3))
    p["weights"] -= 0.25 * np.einsum("no,fnij->foij", dscores, pooled)
    p["bias"] -= 0.25 * dscores.sum(0)
    return float(-np.log(shares[range(n), digits]).mean())


@pytest.mark.soak
def test_no_output_depends_on_a_core_at_once() -> None:
    """In the middle of the pool's cycle, when its own clock has an edge."""
    with Pim(RtlPim(FASTER)) as device:
        training = Training(device)
        transport = device.transport
        assert isinstance(transport, RtlPim)
        offered = device.pim_prog(
            FASTER.banks, "program", training._programs[0], windows=[training._window]
        )
        for _ in range(50_000):
            assert transport._library.nm_consistent(transport._stack)
        device.wait(offered)


@pytest.mark.parametrize(
    ("config", "steps"),
    [
        pytest.param(FASTER, 2, id="faster", marks=pytest.mark.soak),
        pytest.param(training_config(4), 10, id="4 cores"),
    ],
)
def test_steps_without_the_host(config: PimConfig, steps: int) -> None:
    """Each tensor of each step is the golden model's, the loss falls as one in double precision
    does, and between the last ring of a core and the end of all the host does nothing."""
    digits = load_split_digits()
    transport = WatchedPim(config)
    losses = []
    with Pim(transport) as device:
        network = Training(device)
        names = "filters", "filter_bias", "weights", "bias"
        plain = {name: network.golden(name).astype(np.float64) for name in names}
        for number in range(steps):
            part = slice(SAMPLES * (number % 2), SAMPLES * (number % 2 + 1))
            images, labels = digits.train_images[part], digits.train_labels[part]
            transport.pause = 0, 0
            step = network.step(images, labels)
            assert not step.wrong_tensors
            expected = plain_step(plain, images.astype(np.float64), labels)
            assert step.loss == pytest.approx(expected, rel=1e-5)
            losses.append(step.loss)
            # A core's cycles count from when it sees the ring; the first one to be asked waits for
            # the others, so that no operation begins before all have been.
            begin, end = transport.pause
            own = step.counters[0].cycles // config.core_clock_ratio
            assert end - begin >= max(0, own)
            assert sum(counter.multiplications_done for counter in step.counters) == 16_640
            assert not sum(counter.multiplications_left for counter in step.counters)
    if config is FASTER:
        assert step.cycles < 0.61 * 158_700  # of a core in the pool's clock
    if steps == 10:
        pairs = np.reshape(losses, (5, 2)).mean(1)
        assert (np.diff(pairs) < 0).all()
        assert losses[0] == pytest.approx(2.3947, abs=1e-4)
        assert losses[-1] == pytest.approx(1.9951, abs=1e-4)
