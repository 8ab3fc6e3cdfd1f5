"""``nearmem compare``: what it prints, writes and refuses."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hw_tests.driver.refusals import assert_refused
from hw_tests.driver.system.sentinel.steps import a_step
from sw_driver.cli import main
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.machine.gpus import GPUS
from sw_driver.report import Report
from sw_driver.system.compare import page
from sw_driver.system.compare.bases import BASES, IDLE_KEYS, named
from sw_driver.system.compare.comparison import compare
from sw_driver.system.compare.device import RECOMPUTED
from sw_driver.system.compare.page import report
from sw_driver.system.compare.systems import SYSTEMS
from sw_driver.system.compare.variation import outcomes
from sw_driver.system.reproduction import MARKS
from sw_driver.workload import load_trace, peak_bytes
from sw_driver.workload.precision import in_precision
from sw_driver.workload.trace import TraceError
from sw_driver.workload.training import Training

FIELDS = [
    "network", "training", "machine", "system", "step_ns", "memory_bytes", "least_bytes",
    "parts_ns", "energy_j", "largest_parameters", "mark", "reason", "assumes",
]  # fmt: skip


PAPERS = ("--precision", "fp32")


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Systems run in this process, since others take seconds to begin."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert main(["compare", *words, "--all", "--json"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return json.loads(output.out)


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict]:
    return document(capsys, *words)["results"]


def lines(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """Lines of the first screen, none of them longer than 80."""
    assert main(["compare", *words]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert max(map(len, shown)) <= 80
    return shown


def test_json_is_a_row_of_each_system(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "gpt-tiny", *PAPERS)
    assert [each["system"] for each in found] == [each.name for each in SYSTEMS]
    several = ("DDP", "ZeRO-1", "ZeRO-2", "FSDP (ZeRO-3)")
    assert [row["system"] for row in found if row["reason"]] == [*several]
    for row in found:
        assert [*row] == FIELDS
        if row["reason"]:
            assert "several GPUs: give a machine such as h100x8" in row["reason"]
            continue
        assert sum(row["parts_ns"].values()) == row["step_ns"] > 0
        assert row["mark"] in MARKS
        paged = ("host",) if row["system"] == "8-bit optimizer, paged" else ()
        for place, nbytes in row["least_bytes"].items():
            assert place in paged or nbytes <= row["memory_bytes"][place], row
    first = found[0]
    assert first["memory_bytes"] == {"gpu": peak_bytes(load_trace("gpt-tiny"))}
    assert first["parts_ns"]["waiting"] == 0
    assert {row["training"] for row in found} == {"fp32"}
    assert found == rows(capsys, "gpt-tiny", *PAPERS, "--machine", "v100", "--memory", "32GiB")


def test_settings_change_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """With 600 kB of memory all is still on the GPU, with 500 it is not."""
    changes = ["--memory", "600000", "--set", "pcie.read_gb_per_s=1"]
    slower = rows(capsys, "gpt-tiny", *PAPERS, *changes)
    steps = {row["system"]: row["step_ns"] for row in rows(capsys, "gpt-tiny", *PAPERS)}
    slow_steps = {row["system"]: row["step_ns"] for row in slower}
    assert slow_steps["all on the GPU"] == steps["all on the GPU"]
    assert slow_steps["MemFerry"] > steps["MemFerry"]
    small = rows(capsys, "gpt-tiny", *PAPERS, "--memory", "500e3")
    assert small[0]["step_ns"] is None
    assert small[0]["energy_j"] is None
    assert re.search(r"at least .* of GPU memory", small[0]["reason"])
    assert small[0]["memory_bytes"] == small[0]["least_bytes"]
    assert small[0]["least_bytes"] == {"gpu": peak_bytes(load_trace("gpt-tiny"))}


def test_the_first_screen_has_80_columns_and_twelve_rows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever COLUMNS says, as here nothing is a terminal."""
    shown = lines(capsys, "gpt-tiny", "--memory", "300e3")
    for columns in ("40", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        assert lines(capsys, "gpt-tiny", "--memory", "300e3") == shown
    assert shown[0].startswith("gpt-tiny, fp16-mixed, 1 x v100 with 293.0 KiB: does not fit")
    names = [line[1:21].strip() for line in shown if re.search(r" (yes|no) ", line)]
    assert 8 <= len(names) <= 12
    assert len({*names}) == len(names)
    fits = [" yes " in line for line in shown if re.search(r" (yes|no) ", line)]
    assert fits == sorted(fits, reverse=True)
    assert not any(line.startswith("- DDP") for line in shown)
    quiet = lines(capsys, "gpt-tiny", "--memory", "300e3", "--quiet")
    begin = shown.index(quiet[0])
    assert quiet == shown[begin : begin + len(quiet)]
    assert "where the time goes" not in " ".join(quiet)


def test_several_machines_are_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    shown = lines(capsys, "gpt-tiny", "--machine", "v100", "--machine", "rtx4090")
    (heading,) = (line for line in shown if line.split() == ["v100", "rtx4090"])
    both = shown[shown.index(heading) :]
    (nodes,) = (line.split() for line in both if line.strip().startswith("MC-DLA's memory-nodes "))
    assert nodes[-1] == "no"
    assert float(nodes[-2].replace(",", "")) > 1000
    assert "- MC-DLA's memory-nodes on rtx4090: no memory-nodes on this GPU" in shown
    results = document(capsys, "gpt-tiny", "--machine", "v100", "--machine", "rtx4090")
    assert [*results["machine"]] == ["v100", "rtx4090"]
    assert {row["machine"] for row in results["results"]} == {"v100", "rtx4090"}
    alone = rows(capsys, "gpt-tiny", "--machine", "rtx4090")
    assert [row for row in results["results"] if row["machine"] == "rtx4090"] == [
        {**row, "assumes": other["assumes"]}
        for row, other in zip(alone, results["results"][len(alone) :], strict=True)
    ]


@pytest.mark.soak
def test_all_systems_can_be_given_what_recomputes(capsys: pytest.CaptureFixture[str]) -> None:
    plain = rows(capsys, "gpt3-xl", *PAPERS)
    made = document(capsys, "gpt3-xl", *PAPERS, "--checkpoint", "full")
    again, sentence = made["results"], "A block keeps only its input; the rest of it is computed"
    (number,) = (n for n, text in enumerate(made["assumptions"], 1) if text.startswith(sentence))
    assert RECOMPUTED not in made["assumptions"]
    assert not any("Nothing is computed again" in text for text in made["assumptions"])
    for one, other in zip(plain, again, strict=True):
        assert (other["network"], other["training"]) == ("gpt3-xl", "fp32, checkpoint full")
        assert number in other["assumes"]
        assert other["least_bytes"].get("gpu", 0) <= one["least_bytes"].get("gpu", 0)
        if other["step_ns"] is not None:
            assert sum(other["parts_ns"].values()) == other["step_ns"]
            assert other["parts_ns"]["recomputing"] > 0
    assert again[1]["system"] == "recomputation"
    for key in ("step_ns", "parts_ns", "memory_bytes", "largest_parameters"):
        assert again[0][key] == again[1][key]


def test_keys_on_which_nothing_depends_are_known() -> None:
    """With others, and with much less memory for more to move, no row is another."""
    trace = load_trace("word2vec")
    small = BASES["v100"].override({"gpu.capacity_bytes": "100e6"})
    assert {*IDLE_KEYS} <= {*small.keys}
    values = dict(zip(sorted(IDLE_KEYS), ("at_once", "1", "apart", "apart"), strict=True))
    assert outcomes((trace, small)) == outcomes((trace, small.override(values)))


def test_a_person_sees_who_runs_who_cannot_and_what_is_assumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a" / "b"
    words = ["compare", "word2vec", "gpt-tiny", "--memory", "50e6", *PAPERS]
    assert main([*words, "--out", str(out)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for said in (
        "word2vec, fp32, 1 x v100 with 47.7 MiB: does not fit plainly; fastest that fits: ",
        "; least GPU memory: ",
        "fits step samples /s GPU elsewhere energy bound by",
        "all on the GPU no 98.1",
        "Memory in MiB; energy a sample",
        "where the time goes computing",
        "- all on the GPU: needs at least 98.1 MiB of GPU memory, which has 47.7 MiB",
        "gpt-tiny, fp32, 1 x v100 with 47.7 MiB: fits plainly; fastest that fits: ",
        "energy a token",
        "--all shows them.",
    ):
        assert said in shown
    assert "Assumed:" not in shown
    pictures = ["pareto.svg", "parts.svg", "sensitivity.svg"]
    assert sorted(each.name for each in (out / "compare").iterdir()) == pictures
    text = (out / "compare.md").read_text()
    command = "nearmem compare word2vec gpt-tiny --machine v100 --precision=fp32 --set=gpu.capacity"
    assert command in text
    assert "## word2vec, fp32\n" in text
    assert all(f"(compare/{picture})" in text for picture in pictures)
    assert all(f"compare/{picture}" in shown for picture in pictures)
    assert main([*words, "--out", str(tmp_path / "again"), "--quiet"]) == 0
    alone = " ".join(capsys.readouterr().out.split())
    assert alone.startswith("fits step samples /s")
    assert "does not fit" not in alone
    assert "compare.md" not in alone
    for file in [out / "compare.md", out / "compare.html", *(out / "compare").iterdir()]:
        again = tmp_path / "again" / file.relative_to(out)
        assert again.read_bytes() == file.read_bytes(), file.name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gpt-tinny"], ["'gpt-tinny'", "did you mean gpt-tiny"]),
        (["gpt-tiny", "gpt3"], ["'gpt3'", "did you mean gpt3-xl"]),
        (["gpt-tiny", "--machine", "v10"], ["--machine is 'v10'", "did you mean v100"]),
        (["gpt-tiny", "--memory", "1KiB"], ["no system can run it; smallest need: ", "take a "]),
        (["gpt-tiny", "--memory", "0"], ["'0'", "an integer of at least 1, such as 16GiB"]),
        (["gpt-tiny", "--memory=-1GiB"], ["'-1GiB'", "an integer of at least 1"]),
        (["gpt-tiny", "--memory", "nan"], ["'nan'", "an integer of at least 1"]),
        (["gpt-tiny", "--set", "pcie.read_gb_per_s"], ["--set is ", "KEY=VALUE"]),
        (
            ["gpt-tiny", "--set", "cpu.gb_per_s=1", "--set", "cpu.gb_per_s=2"],
            ["--set has 'cpu.gb_per_s' twice", "give it once"],
        ),
        (["gpt-tiny", "--set", "pci.read_gb_per_s=1"], ["'pci.read_gb_per_s'", "did you mean"]),
        (["gpt-tiny", "--set", "pcie.read_gb_per_s=nan"], ["pcie.read_gb_per_s is 'nan'"]),
        (["gpt-tiny", "--set", "pcie.read_gb_per_s=0"], ["pcie.read_gb_per_s is 0"]),
        (["gpt-tiny", "--set", "gpu.gb_per_s=-3"], ["gpu.gb_per_s is -3"]),
        (["gpt-tiny", "--set", "host.capacity_bytes=0"], ["host.capacity_bytes is 0"]),
        (
            ["gpt-tiny", "--machine", "rtx4090", "--set", "node.read_gb_per_s=3"],
            ["rtx4090: the key is 'node.read_gb_per_s'"],
        ),
        (
            ["gpt-tiny", "--memory", "1GiB", "--set", "gpu.capacity_bytes=1GiB"],
            ["--memory is 1073741824", "gpu.capacity_bytes", "leave one out"],
        ),
        (["gpt-tiny", "--set", "gpu.cache_bytes=1"], ["'gpu.cache_bytes'", "nothing depends"]),
        (["gpt-tiny", "--rule", "sgd"], ["--rule is now --optimizer", "--optimizer sgd"]),
        (["gpt-tiny", "--recompute"], ["--recompute is now --checkpoint full"]),
        (
            ["gpt-tiny", "--precision", "bf16-mixed"],
            [
                "'bf16-mixed'",
                "v100 has no rate for BF16, only for FP32, FP16",
                "one of fp32, fp16-mixed, fp16, or give another --machine",
            ],
        ),
        (
            ["gpt-tiny", "--precision", "tf32"],
            [
                "'tf32'",
                "v100 has no rate for TF32, only for FP32, FP16",
                "one of fp32, fp16-mixed, fp16, or give another --machine",
            ],
        ),
        (
            ["gpt-tiny", "--precision", "fp8-mixed", "--machine", "a100"],
            [
                "'fp8-mixed'",
                "a100 has no rate for FP8",
                "fp32, tf32, bf16-mixed, fp16-mixed, bf16, fp16, or give",
            ],
        ),
        (["gpt-tiny", "--precision", "fp4"], ["precision is 'fp4'", "expected one of fp32, tf32"]),
        (["gpt-tiny", "--checkpoint", "ful"], ["checkpoint is 'ful'", "one of none, full"]),
        (["gpt-tiny", "--optimizer", "adm"], ["optimizer is 'adm'", "did you mean adam"]),
        (["gpt-tiny", "--trainable", "lora"], ["trainable is 'lora'", "one of all, lora:RANK"]),
        (["gpt-tiny", "--accumulate", "0"], ["'0'", "an integer of at least 1"]),
        (["gpt-tiny", "--loss-chunks", "7"], ["chunks is 7", "expected a divisor of the 32"]),
        (["gpt-tiny", "--shard", "ddp"], ["'ddp' with 1 GPUs", "or shard none", "as h100x8"]),
        (
            ["gpt-tiny", "--machine", "h100x8", "--shard", "none"],
            ["'none' with 8 GPUs", "expected shard as one of ddp, zero1"],
        ),
        (
            ["gpt-tiny", "--tensor-parallel", "2"],
            ["gpus is 1, with tensor_parallel 2", "a multiple of 2", "as h100x8"],
        ),
        (["gpt-tiny", "--machine", "h100x9"], ["'h100x9'", "up to a number of 8"]),
        (["gpt-tiny", "--machine", "h100x0"], ["'h100x0'", "up to a number of 8"]),
        (["gpt-tiny", "--in-backward"], ["in_backward without an optimizer"]),
        (["gpt-tiny", "--workers", "2"], ["--workers is '2'", "without --break-even"]),
        (["gpt-tiny", "--out", "/dev/null"], ["/dev/null"]),
    ],
)
def test_refusals_take_one_line(
    arguments: list[str], said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(capsys, ["compare", *arguments], said)


def test_what_is_no_training_step_has_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a_step(2, sizes={}).save(tmp_path / "nothing.json.gz")
    assert_refused(capsys, ["compare", f"{tmp_path}/nothing.json.gz"], ["has no operation"])
    a_step(1, (0, "p0 > a0"), (1, "a0 >"), sizes={"p0": 4, "a0": 8}).save(tmp_path / "no.json.gz")
    for row in rows(capsys, f"{tmp_path}/no.json.gz"):
        assert bool(row["reason"]) == (row["step_ns"] is None), row
    (tmp_path / "users.py").write_text("")
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "sw_driver.workload.capture", raising=False)
    assert_refused(capsys, ["compare", f"{tmp_path}/users.py:net"], ["PyTorch"])


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison of the GPU alone and MemFerry, which are soon done."""
    systems = [system for system in SYSTEMS if system.name in ("all on the GPU", "MemFerry")]
    monkeypatch.setattr(page, "SYSTEMS", systems)


@pytest.mark.parametrize("machine", [*GPUS, "h100x8"])
def test_a_machine_has_the_precision_that_is_usual(machine: str, two: None) -> None:
    made = report(["gpt-tiny"], machine=machine)
    usual = "fp16-mixed" if machine == "v100" else "bf16-mixed"
    words = f"{usual}, zero3" if machine == "h100x8" else usual
    assert {row["training"] for row in made.results} == {words}
    gpu, gpus = named(machine)
    assert str(made.parts[0]).startswith(f"gpt-tiny, {words}, {gpus} x {gpu} with ")
    assert any(text.startswith(f"With {usual}, PyTorch's autocast") for text in made.assumptions)
    assert not any("fp32" in text for text in made.assumptions)


def assumed(made: Report, *beginnings: str) -> list[bool]:
    return [any(text.startswith(one) for text in made.assumptions) for one in beginnings]


def test_the_assumptions_are_those_of_the_run() -> None:
    rates = "An operation takes its launch", "A product takes a time by its format"
    masters = "Instead of autocast's copies the GPU has parameters and gradients in 16 bits"
    shown = {"everything": True, "shows_assumptions": True}
    papers = report(["gpt-tiny"], training=Training(precision="fp32"), **shown)
    ours = report(["gpt-tiny"], machine="h100", **shown)
    eight = report(["gpt-tiny"], machine="h100x8", **shown)
    assert assumed(papers, *rates, masters) == [True, False, False]
    assert assumed(ours, *rates, masters) == [False, True, True]
    assert assumed(eight, *rates, masters) == [False, True, False]
    several = (
        "The figures are of one GPU; all 8",
        "Collectives run",
        "Energy is the full power of one",
    )
    for made in (papers, ours, eight):
        assert assumed(made, *several, "One GPU") == [made is eight] * 3 + [made is not eight]
        units = "Liu et al.'s machine replaces GPU and host"
        assert assumed(made, units) == [made is papers]
        used = {number for row in made.results for number in row["assumes"]}
        general = next(part for part in made.parts if str(part).startswith("Assumptions 1 to "))
        last = int(str(general).split()[3])
        assert used == {*range(last + 1, len(made.assumptions) + 1)}


def test_a_pim_of_fp32_says_so() -> None:
    made = report(["gpt-tiny"], machine="rtx4090", everything=True)
    reasons = [row["reason"] for row in made.results if "PIM" in row["system"]]
    assert len(reasons) == 2
    for reason in reasons:
        assert reason.endswith("its units compute in FP32: give --precision fp32")


def test_a_pim_of_fp32_cannot_be_given_what_was_captured_in_less() -> None:
    trace = in_precision(load_trace("gpt-tiny"), "bf16")
    half = replace(trace, origin={"batch": 1})
    for row in compare(half, BASES["a100"], SYSTEMS[-2:], lambda _: None):
        assert row.reason.endswith("its units compute in FP32: capture the step in FP32")


def test_a_step_in_other_formats_stays_as_it_was_captured(tmp_path: Path, two: None) -> None:
    trace, file = in_precision(load_trace("gpt-tiny"), "bf16"), f"{tmp_path}/half.json.gz"
    captured = {key: value for key, value in trace.origin.items() if key != "applied"}
    replace(trace, origin=captured).save(Path(file))
    made = report([file, "gpt-tiny"], machine="h100", everything=True)
    assert [row["training"] for row in made.results] == ["as captured"] * 2 + ["bf16-mixed"] * 2
    assert assumed(made, "As captured, ", "With bf16-mixed, ") == [True, True]
    for precision in ("bf16-mixed", "fp32"):
        with pytest.raises(TraceError, match=r"captured in bf16 already: capture it in FP32"):
            report([file], machine="h100", training=Training(precision=precision))
    with pytest.raises(
        InvalidArgumentError, match="v100 has no rate for BF16, only for FP32, FP16: capture it in"
    ):
        report([file])


def test_a_step_of_several_gpus_needs_them(tmp_path: Path, two: None) -> None:
    file = f"{tmp_path}/eight.json.gz"
    Training(gpus=8).apply(load_trace("gpt-tiny")).save(Path(file))
    with pytest.raises(TraceError, match="is a step of 8 GPUs already, and h100 has 1"):
        report([file], machine="h100")
    with pytest.raises(InvalidArgumentError, match="gpus is 2, and the machine h100x8 has 8"):
        report(["gpt-tiny"], machine="h100x8", training=Training(gpus=2))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            "--precision=bf16-mixed --trainable=lora:2 --checkpoint=full --optimizer=adamw8bit "
            "--loss-chunks=2 --compile --shard=ddp --accumulate=2",
            "bf16-mixed, lora:2, checkpoint full, adamw8bit, 2 micro-batches, ddp, loss in 2 "
            "chunks, compiled",
        ),
        (
            "--optimizer=lion --in-backward --tensor-parallel=2",
            "bf16-mixed, lion in the backward pass, tensor parallel 2, zero3",
        ),
        (
            "--fused-loss --loss-chunks=2",
            "bf16-mixed, zero3, fused loss in 2 chunks",
        ),
        ("--fused-loss", "bf16-mixed, zero3, fused loss"),
    ],
)
def test_all_choices_are_in_the_title_and_in_the_command(
    options: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compare", "gpt-tiny", "--machine", "h100x4", *options.split()]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    title = f"gpt-tiny, {words}"
    assert f"{title}, 4 x h100 with 80.0 GiB" in shown
    text = (tmp_path / "compare.md").read_text()
    assert f"## {title}\n" in text
    (command,) = (line for line in text.splitlines() if line.startswith("nearmem "))
    assert {*options.split()} < {*command.split()}
    assert main([*command.removesuffix(" --out DIR").split()[1:]]) == 0
    assert shown.startswith(" ".join(capsys.readouterr().out.split()))


def test_the_help_has_the_default_machine_as_it_is_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["compare", "--help"]) == 0
    assert "[default: v100]" in capsys.readouterr().out
