"""The small network by the runtime: bit for bit, on CPU, cores and pools at once."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Literal

import pytest

from hw.pim.config import configure
from sw_driver.cli import main
from sw_driver.experiments.pim.scheduled import Ran, ScheduledRun, train
from sw_driver.experiments.pim.training import SAMPLES, Batch, training_config
from sw_driver.experiments.training.data import load_split_digits
from sw_driver.pim.backends.golden import GoldenPim
from sw_driver.pim.backends.rtl import RtlPim
from sw_driver.pim.device import Pim

LOSSES = [2.3947, 2.3679, 2.3024]
"""Of the same steps by cores alone, see ``hw_tests/driver/pim/test_pim_training.py``."""


def batches(count: int) -> list[Batch]:
    digits = load_split_digits()
    parts = [slice(SAMPLES * (n % 2), SAMPLES * (n % 2 + 1)) for n in range(count)]
    return [(digits.train_images[part], digits.train_labels[part]) for part in parts]


def scheduled(run: ScheduledRun) -> list[Ran]:
    return [ran_op for ran_op in run.ran if ran_op.step]


@pytest.mark.parametrize("recursive", [True, False])
def test_without_a_clock(recursive: bool) -> None:
    """And without cores: what the pools cannot do is the CPU's."""
    with Pim(GoldenPim(configure(preset="tiny", bank_bytes=1 << 17))) as pim:
        run = train(pim, batches(3), principle="literal", recursive=recursive)
    assert not run.wrong_tensors
    assert run.losses == pytest.approx(LOSSES, abs=1e-4)
    names = [ranked.operation for ranked in run.ranking]
    assert len(names) == 18 + (not recursive)
    by_name = {ranked.operation: ranked for ranked in run.ranking}
    # 256 elements, read and written, at 59 GB/s.
    assert (by_name["Relu"].time, by_name["Relu"].accesses) == (35, 32)
    times = [by_name[candidate].time for candidate in run.candidates]
    whole = sum(ranked.time for ranked in run.ranking)
    assert sum(times[:-1]) < 0.9 * whole <= sum(times)
    assert run.candidates == names[: len(times)]
    assert {action.place for action in run.ran if action.step == 0} == {"cpu"}
    can = {"Conv2D", "BiasAdd", "MatMul", "MatMul_1", "MatMul_2", "ApplyGradientDescent_2"}
    on_pools = {ran_op.operation for ran_op in scheduled(run) if ran_op.place == "pools"}
    assert (
        {"Conv2D", "MatMul"}
        <= on_pools
        <= can | {"ApplyGradientDescent"} | {"Conv2DBackpropFilter/Conv"}
    )


def run_rtl(principle: Literal["literal", "earliest"], **options: int) -> ScheduledRun:
    with Pim(RtlPim(training_config(4))) as pim:
        return train(pim, batches(3), principle=principle, **options)  # type: ignore[arg-type]


@pytest.mark.soak
def test_cpu_cores_and_pools_at_once_in_rtl() -> None:
    """Also a recursive kernel on a core."""
    run = run_rtl("literal")
    assert not run.wrong_tensors
    assert run.losses == pytest.approx(LOSSES, abs=1e-4)
    rows = scheduled(run)
    gradients = [row for row in rows if row.operation == "Conv2DBackpropFilter"]
    assert all(gradient.place.startswith("core ") for gradient in gradients)
    kinds = "core", "cpu", "pools"
    assert tuple(sorted({row.place.split()[0] for row in rows})) == kinds
    for pair in combinations(kinds, 2):
        one, other = ([row for row in rows if row.place.startswith(kind)] for kind in pair)
        assert any(
            a.begin_cycle < b.end_cycle and b.begin_cycle < a.end_cycle for a in one for b in other
        )


def test_pipeline_and_principles_in_rtl() -> None:
    """A CPU that takes 5 us for each call: literally a product is a core's, and the next step
    begins meanwhile if it may; where each ends first the pools have it, and all is sooner."""
    literal = run_rtl("literal", launch_ns=5000)
    alone = run_rtl("literal", launch_ns=5000, pipeline=False)
    earliest = run_rtl("earliest", launch_ns=5000)
    for run, overlap in ((literal, True), (alone, False)):
        begin = min(ran_op.begin_cycle for ran_op in scheduled(run) if ran_op.step == 2)
        assert (begin < run.bounds[2]) == overlap
    took = [trained.bounds[-1] - trained.bounds[1] for trained in (alone, literal, earliest)]
    assert took[0] > 1.1 * took[1]
    assert took[1] > 5 * took[2]
    places = [ran_op.place for ran_op in scheduled(earliest)]
    assert places.count("pools") > len(places) / 4
    assert not any(trained.wrong_tensors for trained in (literal, alone, earliest))


def test_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trained = ["--train", "--cores", "4", "--runtime", "literal"]
    command = ["pim", "--steps", "1", *trained]
    assert main([*command, "--json", "--out", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["workload"] == {"steps": 1, "principle": "literal", "launch_ns": 0}
    report = document["results"]
    assert [step["loss"] for step in report["steps"]] == pytest.approx(LOSSES[:2], abs=1e-4)
    assert sum(ranked["chosen"] for ranked in report["ranking"]) == 12
    conv = report["operations"][18]
    assert (conv["operation"], conv["place"], conv["step"]) == ("Conv2D", "pools", 1)
    drawn = [
        event
        for event in json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
        if event["ph"] == "X"
    ]
    assert len(drawn) == 18
    monkeypatch.setattr("sw_driver.experiments.pim.scheduled.cnn.golden_step", lambda *_: None)
    assert main(command) == 1
    shown = capsys.readouterr()
    assert "Conv2DBackpropFilter" in shown.out
    assert "differ from the golden model's: " in shown.err
    for bad, message in (
        (["--train", "--launch-ns", "5"], "add --runtime"),
        (["--runtime", "literal"], "add --train"),
        ([*command[1:-1], "latest"], "latest"),
        ([*trained, "--steps", "90"], "take fewer --steps"),
    ):
        assert main(["pim", *bad]) == 2
        assert message in capsys.readouterr().err
