"""The training job: the network, the trainer's figures, the report's arithmetic."""

from __future__ import annotations

import sys
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from hw_tests.driver.transports import SpoilingTransport
from sw_driver.axdimm import Axdimm, BackendOptions
from sw_driver.axdimm.backends.golden import GoldenTransport
from sw_driver.axdimm.figures import ceiling_mparams_per_s
from sw_driver.axdimm.runs import DramActivity
from sw_driver.experiments.training.data import CLASSES, PIXELS, load_split_digits
from sw_driver.experiments.training.mlp import Mlp
from sw_driver.experiments.training.report import (
    activity_table,
    figures,
    summary_table,
    write_loss_curve,
)
from sw_driver.experiments.training.trainer import (
    TRAINING_RULES,
    ChannelFigures,
    MismatchError,
    Trainer,
    TrainingResult,
    TrainingSettings,
)
from sw_driver.report import Watch


def test_the_split_is_fixed_and_complete() -> None:
    digits, again = load_split_digits(), load_split_digits()
    assert digits.train_images.shape == (1437, PIXELS)
    assert digits.test_images.shape == (360, PIXELS)
    assert digits.train_images.dtype == np.float32
    assert (digits.train_images.min(), digits.train_images.max()) == (0, 1)
    assert np.array_equal(digits.test_labels, again.test_labels)
    assert set(digits.test_labels) == set(range(CLASSES))


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    rng = np.random.default_rng(0)
    network = Mlp((5, 7, 6, 3))
    parameters = network.initial(rng)
    parameters += (0.1 * rng.standard_normal(parameters.shape)).astype(np.float32)
    images = rng.random((20, 5), dtype=np.float32)
    labels = rng.integers(0, 3, 20)
    _, gradient = network.loss_and_gradient(parameters, images, labels)
    # In double the differences are exact enough; the network works in whatever it is given.
    exact = parameters.astype(np.float64)
    for number in range(network.parameters):
        step = np.zeros_like(exact)
        step[number] = 1e-5
        above, _ = network.loss_and_gradient(exact + step, images, labels)  # type: ignore[arg-type]
        below, _ = network.loss_and_gradient(exact - step, images, labels)  # type: ignore[arg-type]
        assert gradient[number] == pytest.approx((above - below) / 2e-5, abs=2e-5)


class Said(Watch):
    """What was said of the progress."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def say(self, text: str) -> None:
        self.texts.append(text)


@pytest.mark.parametrize("seed", [1, 7])
def test_training_passes_90_percent(seed: int) -> None:
    with Axdimm(GoldenTransport(capacity_bytes=1 << 20)) as device:
        trainer = Trainer(device, load_split_digits(), TrainingSettings(seed=seed))
        watch = Said()
        result = trainer.train(watch)
        assert trainer.params == result.params >= 100_000
        assert result.bit_exact
        assert watch.texts == [f"training, loss {loss:.3f}" for loss in result.losses]
        assert len(watch.texts) == result.steps == TrainingSettings().steps
        assert result.test_accuracy > 0.92
        assert not result.timed
        for channel in range(device.channels):
            assert device.memory(channel).allocations == 0


def test_training_is_reproducible() -> None:
    results = []
    for seed in (1, 1, 2):
        with Axdimm(GoldenTransport(capacity_bytes=1 << 20)) as device:
            settings = TrainingSettings(steps=5, seed=seed)
            results.append(Trainer(device, load_split_digits(), settings).train())
    assert results[0].losses == results[1].losses != results[2].losses


def test_a_small_network_trains_on_every_backend(backend) -> None:
    settings = TrainingSettings(steps=2, hidden=(17,))
    with Axdimm(backend) as device:
        result = Trainer(device, load_split_digits(), settings).train()
    assert result.bit_exact
    assert sum(channel.params for channel in result.channels) == result.params
    made = figures(result, backend=backend.name)
    if backend.timed:
        assert 0 < made["efficiency"] < 1
        assert made["fabric_cycles"] >= max(entry["fabric_cycles"] for entry in made["channels"])
        assert made["host"]["fabric_cycles_per_second"] > 0


@pytest.mark.parametrize("kind", ["cycles", "rtl"])
def test_a_run_can_be_repeated_to_the_byte(kind: str, tmp_path: Path) -> None:
    """Also on a host whose threads are scheduled in another way."""
    settings = TrainingSettings(steps=3, hidden=(17,))
    outcomes = []
    for number, switch_interval_s in enumerate((5e-3, 1e-6)):
        trace, timeline = tmp_path / f"{number}.csv", tmp_path / f"{number}.json"
        options = BackendOptions(preset="tiny", dram_trace=trace if kind == "rtl" else None)
        before = sys.getswitchinterval()
        sys.setswitchinterval(switch_interval_s)
        try:
            with (
                Axdimm(kind, options=options, timeline=timeline) as device,
                Busy() if number else nullcontext(),
            ):
                result = Trainer(device, load_split_digits(), settings).train()
        finally:
            sys.setswitchinterval(before)
        outcomes.append(
            (
                replace(result, host_seconds=0, device_seconds=0),
                timeline.read_bytes(),
                trace.read_bytes() if trace.exists() else b"",
            )
        )
    assert outcomes[0] == outcomes[1]


class Busy:
    """A thread that keeps the interpreter busy."""

    def __enter__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._over.is_set():
            sum(range(1000))

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.mark.parametrize("tensor", ["p", "m", "v"])
def test_one_wrong_bit_in_any_tensor_is_found(tensor: str) -> None:
    settings = TrainingSettings(steps=3, hidden=(8,))
    with Axdimm(GoldenTransport()) as device:
        params = -(-Trainer(device, load_split_digits(), settings).params // 2)
    # The tensors are allocated in the order p, g, m, v, each rounded up to lines.
    address = "pgmv".index(tensor) * (-(-4 * params // 64) * 64) + 4 * (params - 1)
    spoilt = SpoilingTransport(GoldenTransport(), channel=0, address=address)
    with Axdimm(spoilt) as device, pytest.raises(MismatchError) as caught:
        Trainer(device, load_split_digits(), settings).train()
    (mismatch,) = caught.value.mismatches
    assert (mismatch.step, mismatch.channel, mismatch.tensor) == (1, 0, tensor)
    assert (mismatch.differing, mismatch.first_index) == (1, params - 1)
    assert mismatch.device_bits ^ mismatch.golden_bits == 1
    assert not caught.value.result.bit_exact


@pytest.mark.parametrize("rule", TRAINING_RULES)
def test_other_rules_train_as_well(rule: str) -> None:
    settings = TrainingSettings(steps=8, hidden=(8,))
    with Axdimm(GoldenTransport(rules=(rule, "copy"))) as device:
        result = Trainer(device, load_split_digits(), settings).train()
    assert result.rule == rule
    assert result.bit_exact
    assert result.losses[-1] < result.losses[0]
    made = figures(result, backend="golden")
    assert made["rule"] == rule


def test_ceilings_are_those_of_the_paper() -> None:
    assert ceiling_mparams_per_s(1) == pytest.approx(457.14, abs=0.01)
    assert ceiling_mparams_per_s(2) == pytest.approx(914.29, abs=0.01)


def timed_result() -> TrainingResult:
    channel = ChannelFigures(
        channel=0,
        bit_exact=True,
        params=50_000,
        fabric_cycles=240_000,
        simulated_fabric_cycles=400_000,
        beats_read=125_000,
        beats_written=93_750,
        idle_fabric_cycles=21_250,
        activity=DramActivity(
            data_tck=875_000,
            refresh_tck=60_000,
            row_tck=10_000,
            turn_around_tck=5_000,
            starved_tck=9_912,
            idle_tck=88,
            activates=2000,
            precharges=1900,
            refreshes=300,
            bus_turns=400,
        ),
    )
    return TrainingResult(
        rule="adam",
        bit_exact=True,
        timed=True,
        params=100_000,
        steps=10,
        losses=(2.0, 1.0),
        test_accuracy=0.5,
        fabric_cycles=250_000,
        simulated_fabric_cycles=800_000,
        host_seconds=3.0,
        device_seconds=2.5,
        channels=(channel, replace(channel, channel=1, fabric_cycles=245_000)),
    )


def test_figures_follow_their_definitions() -> None:
    made = figures(timed_result(), backend="rtl")
    # 10^6 updates in 250,000 cycles of 5 ns.
    assert made["mparams_per_s"] == pytest.approx(800)
    assert made["efficiency"] == pytest.approx(0.875)
    assert made["host"]["fabric_cycles_per_second"] == pytest.approx(320_000)
    assert (made["loss_first"], made["loss_last"]) == (2.0, 1.0)
    first, second = made["channels"]
    assert first["mparams_per_s"] == pytest.approx(500_000 / 0.0012 / 1e6)
    assert first["efficiency"] == pytest.approx(first["mparams_per_s"] * 7 / 3200)
    assert second["fabric_cycles"] == 245_000


def test_the_limit_of_refresh_needs_a_clock() -> None:
    result = timed_result()
    assert figures(result, refresh_limit=0.9)["refresh_limit"] == 0.9
    assert figures(replace(result, timed=False), refresh_limit=0.9)["refresh_limit"] is None


def test_the_table_shows_every_figure() -> None:
    table = summary_table(figures(timed_result(), backend="rtl"))
    cells = [cell for row in table.rows for cell in row]
    for expected in ("100,000", "250,000", "800.00 MP/s", "87.5%", "320,000", "50.0%", "3.0 s"):
        assert expected in cells


def test_the_account_is_shown_channel_by_channel() -> None:
    result = timed_result()
    table = activity_table(figures(result, backend="rtl"))
    assert table is not None
    cells = [cell for row in table.rows for cell in row]
    # 960,000 clocks in each channel.
    for expected in ("875,000 (91.15%)", "60,000 (6.25%)", "88 (0.01%)", "960,000", "216,750"):
        assert cells.count(expected) == 2, expected
    untimed = replace(
        result, timed=False, channels=tuple(replace(c, activity=None) for c in result.channels)
    )
    assert activity_table(figures(untimed, backend="golden")) is None


def test_the_loss_curve_counts_whole_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **k: (drawn.append(self), save(self, *a, **k))
    )
    write_loss_curve(tmp_path / "loss.png", "Test", {"module": range(20, 0, -1)})
    (axes,) = drawn[0].axes
    assert all(tick == int(tick) for tick in axes.get_xticks())
