"""A GPT trained on the module and by PyTorch."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

from hw_tests.driver.refusals import assert_refused
from hw_tests.driver.transports import SpoilingTransport
from sw_driver.axdimm import Axdimm, BackendOptions
from sw_driver.axdimm.backends.golden import GoldenTransport
from sw_driver.cli import main
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.experiments.training import gpt
from sw_driver.experiments.training.data import MODULE_BYTES, MODULES, load_library_text
from sw_driver.experiments.training.gpt import Gpt, GptSettings, GptTrainer
from sw_driver.experiments.training.report import figures, summary_table
from sw_driver.experiments.training.trainer import TRAINING_RULES, MismatchError, TrainingResult

SMALL = {"batch_windows": 4, "context": 16, "layers": 1, "width": 8, "heads": 2}
TEXT = load_library_text()


def train(device: Axdimm, steps: int) -> tuple[TrainingResult, dict[str, Any]]:
    trainer = GptTrainer(device, TEXT, GptSettings(steps=steps, **SMALL))
    return trainer.train(), trainer.context()


def test_the_text_is_that_of_the_modules() -> None:
    assert len(TEXT.train) == (len(MODULES) - 1) * MODULE_BYTES
    tested = Path(sysconfig.get_path("stdlib"), f"{MODULES[-1]}.py").read_bytes()
    assert bytes(TEXT.test.astype(np.uint8)) == tested[:MODULE_BYTES]


def test_the_gpt_has_a_million_parameters_and_does_not_see_what_comes() -> None:
    model = Gpt(GptSettings())
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_032_576
    windows = torch.arange(64)[None]
    changed = windows.clone()
    changed[0, 40] = 200
    differs = (model(windows) != model(changed)).any(dim=2)[0]
    assert not differs[:40].any()
    assert differs[40:].all()


@pytest.mark.parametrize("rule", TRAINING_RULES)
def test_losses_fall_as_those_of_pytorch(rule: str) -> None:
    options = BackendOptions(preset="tiny", settings={"rules": (rule,)})
    with Axdimm("cycles", options=options) as device:
        result, context = train(device, 12)
        for channel in range(device.channels):
            assert device.memory(channel).allocations == 0
    assert (result.rule, result.bit_exact, result.steps) == (rule, True, 12)
    assert sum(channel.params for channel in result.channels) == result.params
    assert result.losses[-1] < result.losses[0]
    assert list(result.losses) == context["losses"]["module"]
    # Rounding differs; where a second moment or a sign is of what is nearly 0, it shows.
    assert context["torch"]["largest_difference"] < 1e-5
    found = figures(result, backend="cycles", **context)
    assert 0 < found["efficiency"] < 1
    first, later = context["step_ns"]["first"], context["step_ns"]["later"]
    assert first["copy"] > later["copy"] > 0
    cycles = (first["kernel"] + 11 * later["kernel"]) / 5
    assert cycles == pytest.approx(result.fabric_cycles)
    assert "a later step, copies" in [row[0] for row in summary_table(found).rows]


def test_pytorch_trains_a_model_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = type("Idle", (), {"step": lambda self: None})
    monkeypatch.setattr(GptTrainer, "_others_optimizer", lambda self, arguments: idle())
    with Axdimm("golden:tiny") as device:
        result, context = train(device, 3)
    assert result.bit_exact
    assert context["losses"]["torch"][0] == result.losses[0]
    assert context["torch"]["largest_difference"] > 1e-3


def test_a_training_can_be_repeated() -> None:
    losses = []
    for seed in (1, 1, 2):
        with Axdimm("golden:tiny") as device:
            settings = GptSettings(steps=2, seed=seed, **SMALL)
            losses.append(GptTrainer(device, TEXT, settings).train().losses)
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("tensor", ["p", "m", "v"])
def test_one_wrong_bit_in_any_tensor_is_found(tensor: str) -> None:
    with Axdimm("golden:tiny") as device:
        result, _ = train(device, 1)
    lines = sum(-(-parameter.numel() // 16) for parameter in Gpt(GptSettings(**SMALL)).parameters())
    # The tensors are allocated in the order p, g, m, v. The first parameter, the embedding of the
    # bytes, is on channel 0: element 10 of it.
    address = "pgmv".index(tensor) * (lines // 2) * 64 + 40
    assert result.channels[0].params <= lines // 2 * 16
    with (
        Axdimm(SpoilingTransport(GoldenTransport(), channel=0, address=address)) as device,
        pytest.raises(MismatchError) as caught,
    ):
        train(device, 3)
    (mismatch,) = caught.value.mismatches
    assert (mismatch.step, mismatch.channel) == (1, 0)
    assert mismatch.tensor == f"{tensor} of bytes.weight"
    assert (mismatch.differing, mismatch.first_index) == (1, 10)
    assert [channel.bit_exact for channel in caught.value.result.channels] == [False, True]


def test_refuses_a_rule_of_no_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(gpt._OPTIMIZERS, "sgd")
    with (
        Axdimm(GoldenTransport(rules=("sgd",))) as device,
        pytest.raises(InvalidArgumentError, match="sgd: choose one of adam, "),
    ):
        train(device, 1)


def test_the_command_trains_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpt, "GptSettings", lambda **job: GptSettings(**job, **SMALL))
    command = ["sim", "--model", "gpt", "--optimizer", "lion", "--steps", "3"]
    assert main([*command, "--out", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "report.json").read_text())
    found, workload = document["results"], document["workload"]
    assert (workload["model"], found["rule"], found["backend"]) == ("gpt", "lion", "cycles")
    assert len(found["losses"]["torch"]) == found["steps"] == 3
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    output = capsys.readouterr()
    assert "loss.png" in output.out
    assert output.err == ""
    assert main([*command, "--out", str(tmp_path), "--json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["results"]["losses"] == found["losses"]
    assert output.err == ""


def test_the_command_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["sim", "--model", "gpt", "--backend", "golden", "--out", str(tmp_path)]
    assert_refused(capsys, [*command, "--config", "tiny", "--quiet"], ["--capacity-mib"])
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert_refused(capsys, command, ["argparse.py", "0 bytes", "sources of its standard library"])
    assert not list(tmp_path.iterdir())
