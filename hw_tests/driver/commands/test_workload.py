"""``nearmem workload``: what it prints and writes."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from hw_tests.driver.refusals import assert_refused
from sw_driver.cli import main
from sw_driver.workload import load_trace

USERS = """\
import torch
from torch import nn

def net():
    print("printed")
    return nn.Linear(4, 2), torch.zeros(8, 4), lambda model, batch: model(batch).sum()
"""


def test_a_shipped_network_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workload", "gpt-tiny"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert "parameters; peak memory" in output.out
    assert "when all kinds together have most" in " ".join(output.out.split())
    for title in (
        "Operations",
        "Tensors",
        "Tensors by the number of stages",
        "at 14 TFLOP/s, 900 GB/s and 5,000 ns",
    ):
        assert title in output.out


def test_a_network_of_ones_own_is_captured_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")
    (tmp_path / "users.py").write_text(USERS)
    what = f"{tmp_path}/users.py:net"
    arguments = ["workload", what, "--rule", "sgd", "--json", "--out", str(tmp_path / "out")]
    written = []
    for _ in range(2):
        assert main(arguments) == 0
        figures = json.loads(capsys.readouterr().out)
        written.append([Path(file).read_bytes() for file in figures["files"]])
    assert written[0] == written[1]
    picture, trace = map(Path, figures["files"])
    assert (picture.name, trace.name) == ("users.net.svg", "users.net.json.gz")
    for word in ("forward", "backward", "update", "activation"):
        assert f"{word} -->" in picture.read_text()
    assert figures["results"]["phases"][0] == {
        "phase": "forward",
        "operations": 2,
        "flops": 2 * 8 * 4 * 2 + 8 * 2,
        "nbytes": 4 * (2 + 8 * 4 + 4 * 2 + 8 * 2) + 4 * (8 * 2 + 1),
    }
    origin = load_trace(trace).origin
    assert (origin["model"], origin["rule"]) == ("users.py:net", "sgd")
    assert main(["workload", str(trace), "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    # It is there already, and so is its rule.
    assert_refused(capsys, ["workload", str(trace), "--rule", "sgd"], ["'sgd'", "leave it out"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gpt-tny"], ["'gpt-tny'", "did you mean gpt-tiny", "FILE.py:FUNCTION"]),
        pytest.param(
            ["/no/such.py:net"],
            ["'/no/such.py'", "No such file"],
            marks=pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed"),
        ),
        (["/no/such.json.gz"], ["'/no/such.json.gz'", "expected one of"]),
        (["/"], ["'/'", "Is a directory"]),
        ([], ["WORKLOAD"]),
    ],
)
def test_refusals_take_one_line(
    arguments: list[str], said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(capsys, ["workload", *arguments], said)
