"""The figures: the rate that is fitted, and their arithmetic, again and by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sw_driver.system.errors import EngineError
from sw_driver.system.hetero_pim import figures, runs
from sw_driver.system.hetero_pim.configurations import CPU, GPU, HETERO
from sw_driver.system.hetero_pim.energy import Energy
from sw_driver.system.hetero_pim.figures import ALEXNET, DCGAN, VGG
from sw_driver.system.hetero_pim.runs import (
    CALIBRATED,
    CALIBRATED_RATE,
    Case,
    Step,
    Steps,
    calibrated_rate,
    simulate,
)


def quiet(_: str) -> None:
    pass


STEPS = Steps(changes={}, progress=quiet)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "NETWORKS", (VGG, ALEXNET))


def test_the_calibrated_rate_is_the_least() -> None:
    gpu_ns = STEPS.run(CALIBRATED, VGG, configuration=GPU).step_ns
    assert STEPS.run(STEPS.rate, VGG).step_ns <= gpu_ns < STEPS.run(STEPS.rate - 1, VGG).step_ns
    assert STEPS.rate == CALIBRATED_RATE


def test_a_gpu_that_no_rate_reaches_is_refused() -> None:
    with pytest.raises(EngineError, match="with 1024 operations a cycle of each unit vgg-19 takes"):
        calibrated_rate({"gpu.tflop_per_s": "1000", "gpu.gb_per_s": "100000"}, quiet)


@pytest.mark.usefixtures("two")
def test_figure11_is_its_own_contradiction() -> None:
    """1 / 1.36 = a + b / 2 and 1 / 1.37 = a + b / 4 make a + b 0.746, of AlexNet 1.314."""
    made = figures.figure11({}, quiet)
    (why,) = {each.excluded for each in made.quoted.values() if each.excluded}
    assert "1.34 times as fast as the GPU at 1x, those of AlexNet 0.76" in why
    claim = made.claims["2x over GPU, alexnet-32"]
    fast = Case(network=ALEXNET, unit_rate=STEPS.rate, frequency=2)
    times = [simulate(replace(fast, configuration=each), quiet).step_ns for each in (GPU, HETERO)]
    assert claim.ours == pytest.approx(times[0] / times[1])
    assert made.claims["2x is faster than 1x, predicted"].texts[0] == "2"


@pytest.mark.usefixtures("two")
def test_figure13_counts_launches() -> None:
    """Of 16 convolutions 31 gradients are recursive, each with one phase of a core before the
    pools': RC has the second launched by the core, in 277 ns more."""
    made = figures.figure13({}, quiet)
    why = made.claims["RC and OP over neither, most"].excluded
    assert "696 ns and one by a core 973, so that for 31 kernels of VGG-19 RC changes" in why
    assert " us by +9;" in why


def test_two_networks_side_by_side() -> None:
    first, second, sequential_ns, both_ns = figures.side_by_side(
        STEPS, CALIBRATED, DCGAN, "word2vec"
    )
    alone = STEPS.run(CALIBRATED, DCGAN, steps=first).made.total_ns
    other = STEPS.run(CALIBRATED, "word2vec", configuration=figures.REST, share=1)
    assert sequential_ns == alone + second * other.step_ns
    assert max(alone + 1, second * other.step_ns) <= both_ns < sequential_ns


def test_what_is_not_offered_runs_on_the_cpu() -> None:
    """With no share of the time all of it does; with all of it the step is sooner over."""
    none, some, every = (
        simulate(Case(network=ALEXNET, unit_rate=48, share=each), quiet) for each in (0, 0.9, 1)
    )
    assert set(none.made.places.values()) == {"cpu"}
    assert none.step_ns == simulate(Case(network=ALEXNET, configuration=CPU), quiet).step_ns
    assert every.step_ns < some.step_ns < none.step_ns


def test_products_of_energy_and_delay() -> None:
    energy = Energy(host=3, gpu=0, cores=1, pools=1, memory=1)
    second: Any = SimpleNamespace(step_ns=2 * 10**9)
    made = Step(second, energy)
    assert (made.watts, made.edp) == (3, 12)


@pytest.fixture
def alexnet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, with units of 48 operations a cycle in the calibrated column."""
    monkeypatch.setattr(figures, "NETWORKS", (ALEXNET,))
    monkeypatch.setattr(runs, "calibrated_rate", lambda *_: 48)


@pytest.mark.usefixtures("alexnet")
def test_figures_of_energy_again(tmp_path: Path) -> None:
    made = figures.figure9({}, quiet)
    case = Case(network=ALEXNET, unit_rate=48)
    cpu, gpu, ours = (
        simulate(replace(case, configuration=each), quiet) for each in (CPU, GPU, HETERO)
    )
    row = next(row for row in made.rows if row["rate"] == "calibrated")
    gpu_j = gpu.step_ns * (85 + 0.3 * 250) / 1e9  # at V-D's use of the GPU
    assert row["GPU, J"].ours == pytest.approx(gpu_j)  # type: ignore[union-attr]
    host_j = ours.step_ns * 85 / 1e9
    assert host_j < row["Hetero PIM, J"].ours < 1.2 * host_j  # type: ignore[union-attr,operator]
    assert made.claims["CPU over Hetero PIM, least"].ours == pytest.approx(
        row["CPU, J"].ours / row["Hetero PIM, J"].ours  # type: ignore[union-attr,operator]
    )
    assert row["CPU, J"].ours == pytest.approx(cpu.step_ns * 85 / 1e9, rel=0.03)  # type: ignore[union-attr]
    assert made.claims["GPU takes more than Hetero PIM, predicted"].verdict == "excluded"

    claims = figures.figure17({}, quiet).claims
    assert claims["energy-delay product is least at 4x, calibrated"].verdict == "met"
    fast = simulate(replace(case, frequency=4), quiet)
    fast_w = 85 + (row["Hetero PIM, J"].ours - host_j) / fast.step_ns * 1e9  # type: ignore[union-attr,operator]
    power = claims["power of GPU over that at 4x, least"].ours
    assert power == pytest.approx(160 / fast_w, rel=0.02)

    made = figures.figure14({}, quiet)
    assert made.draw is not None
    (picture,) = made.draw(tmp_path / "shares")
    assert "J, in % of the sum" in picture.read_text()
    both = made.claims["neither over RC and OP, most"]
    assert both.ours == pytest.approx(1, rel=0.02)
    assert both.verdict == "excluded"
