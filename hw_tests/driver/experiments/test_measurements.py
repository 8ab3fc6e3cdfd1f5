"""Published measurements beside predictions: rows, their steps, values by hand, and bad rows."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from sw_driver.cli import main
from sw_driver.experiments.measurements.predictions import Prediction, predict
from sw_driver.experiments.measurements.report import report
from sw_driver.experiments.measurements.rows import COLUMNS, SHIPPED, Row, RowError, read_rows
from sw_driver.experiments.measurements.steps import kind_of, model_of, step_of
from sw_driver.machine.gpus import GPUS
from sw_driver.report import Table

TINY = Row(
    id="a1", model="GPT tiny", params="-", layers="2", hidden="64", heads="2", seq="16",
    micro_batch="2", accum="1", gpus="1", gpu="A100-80GB", link="none", precision="bf16 pure",
    optimizer="AdamW", offload="none", checkpointing="no", metric="tokens/s", value="1000",
    unit="tok/s", source="https://github.com/a/b/blob/main/c.md (a note)",
)  # fmt: skip
ROWS, BAD = read_rows(SHIPPED)
BY_ID = {row.id: row for row in ROWS}
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")


def _file(path: Path, *rows: Row) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([COLUMNS, *([getattr(row, name) for name in COLUMNS] for row in rows)])
    return path


def test_shipped_rows_are_whole_and_have_an_address() -> None:
    assert len(ROWS) == 57
    assert not BAD
    for row in ROWS:
        assert row.source.startswith("https://"), row.id
        assert all(end > 0 for end in row.span), row.id
        kind_of(row)


def test_a_row_is_a_model_a_training_and_a_machine() -> None:
    step = step_of(BY_ID["m07"])
    assert (step.config.n_layers, step.config.d_model, step.config.batch) == (32, 4096, 16)
    assert step.config.context == 4096
    assert step.training.precision == "bf16-mixed"
    assert step.training.checkpoint == "full"
    assert (step.training.gpus, step.training.scheme, step.micro_batches) == (8, "zero3", 2)
    assert step.gpu == "a100"
    assert step.is_fused
    far = step_of(BY_ID["m12"])
    assert far.network is not None
    assert far.network.value == 200  # 1600 Gb/s
    tuned = step_of(BY_ID["k05"]).training
    assert tuned.in_backward
    assert tuned.compiled
    assert (tuned.optimizer, tuned.loss_chunks) == ("adamw", 8)
    assert step_of(BY_ID["e01"]).micro_batches == 16  # 128 samples on 8 GPUs
    assert step_of(BY_ID["u04"]).training.trainable == "lora:16"
    narrow = replace(BY_ID["q01"], precision="int4 Q-LoRA")
    assert step_of(narrow).training.trainable == "qlora:16"
    assert not step_of(BY_ID["o01"]).is_fused
    assert step_of(BY_ID["t01"]).gpu == "h100-96"
    assert step_of(BY_ID["s03"], "ZeRO-Infinity").system == "ZeRO-Infinity"
    drives = {name: float(text) for name, text in step_of(BY_ID["s01"]).changes.items()}
    assert drives["drive.gb_per_s"] == pytest.approx(42)  # six of 7 GB/s


@pytest.mark.parametrize(
    ("model", "sizes", "group", "inner"),
    [
        ("Llama 3.1 8B", ("32", "4096", "32/8 kv"), 4, 14336),
        ("Llama 2 13B", ("40", "5120", "40"), 1, 13760),
        ("Falcon-7B", ("32", "4544", "71/1 kv"), 71, 18176),
        ("Llama 3.1 405B 405853388800", ("126", "16384", "128/8 kv"), 16, 53248),
        ("Megatron GPT 1.7B", ("24", "2304", "24"), 1, 9216),
    ],
)
def test_a_model_has_the_sizes_of_its_row(
    model: str, sizes: tuple[str, ...], group: int, inner: int
) -> None:
    fields = dict(zip(("layers", "hidden", "heads"), sizes, strict=True))
    params = model.rpartition(" ")[2] if model.endswith("00") else "-"
    config = model_of(replace(TINY, model=model, params=params, **fields))
    assert (str(config.n_layers), str(config.d_model)) == sizes[:2]
    assert (config.group, config.d_inner) == (group, inner)


@needs_torch
def test_a_tiny_step_is_launches_and_bytes() -> None:
    """Two blocks of width 64 are so small that no operation is bound by its arithmetic."""
    ((one,), left_out) = predict([TINY])
    assert not left_out
    step, gpu = step_of(TINY), GPUS["a100"].device
    from sw_driver.workload.capture import capture_config

    ops = step.training.apply(capture_config("tiny", step.config)).ops
    least_ns, bytes_per_s = gpu.launch_ns.value, 2039e9 * 0.85
    step_s = sum(max(least_ns, op.nbytes * 1e9 / bytes_per_s) for op in ops) / 1e9
    assert one.value == pytest.approx(2 * 16 / step_s, rel=0.02)
    rows = [
        replace(TINY, id="a2", metric="s/iter", unit="s"),
        replace(TINY, id="a3", metric="ms/iter", unit="ms", accum="5"),
        replace(TINY, id="a4", metric="peak memory", unit="MiB"),
        replace(TINY, id="a5", metric="speedup", unit="x", offload="none over none"),
        replace(TINY, id="a6", accum="5"),
    ]
    seconds, five, memory, ratio, rate = (other.value for other in predict(rows)[0])
    assert seconds == pytest.approx(2 * 16 / one.value)
    assert 1000 * seconds < five < 5000 * seconds  # one update
    assert rate == pytest.approx(5 * 2 * 16 / five * 1000)
    # 16-bit parameters, gradients and two moments of two blocks, an embedding, and 16 positions.
    parameters = 2 * (12 * 64**2 + 13 * 64) + 2 * 64 + (50304 + 16) * 64
    assert 8 * parameters < memory * 2**20 < 8 * parameters + 4 * 2**20 + 12 * 32 * 50304
    assert ratio == 1


@needs_torch
def test_a_measurement_beyond_large_products_is_named() -> None:
    ((one,), _) = predict([replace(TINY, layers="1", hidden="8192", seq="2048", value="1")])
    assert one.is_possible
    assert one.value < one.bound < 2 * one.value
    assert not replace(one, row=replace(one.row, value=str(round(1.01 * one.bound)))).is_possible


def test_errors_of_values_and_of_ranges() -> None:
    made = Prediction(row=replace(TINY, value="100"), kind="offload", value=85, bound=200)
    assert made.error == pytest.approx(-0.15)
    assert made.is_good
    ranged = replace(made, row=replace(TINY, value="80..90"))
    assert ranged.error == 0
    assert replace(ranged, value=99).error == pytest.approx(0.1)
    assert not ranged.is_counted
    single = replace(made, row=replace(TINY, value="100", unit="x"), value=77.5)
    assert single.is_good
    assert not replace(single, value=76).is_good


@needs_torch
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"gpu": "Z9"}, "gpu is 'Z9': expected one of a100-40"),
        ({"micro_batch": "-"}, "micro_batch is not given"),
        ({"seq": "-3"}, "seq is '-3': expected a number"),
        ({"accum": "0"}, "accum is '0': expected a whole number of at least 1"),
        ({"value": "fast"}, "value is 'fast': expected a number, or two as 1.8..2.3"),
        ({"value": "0"}, "expected a number above 0"),
        ({"metric": "colour"}, "metric is 'colour'"),
        ({"unit": "miles"}, "unit is 'miles'"),
        ({"optimizer": "Shampoo"}, "optimizer is 'Shampoo'"),
        ({"checkpointing": "maybe"}, "checkpointing is 'maybe'"),
        ({"model": "ResNet"}, "model is 'ResNet'"),
        ({"link": "TP8 PP4"}, "pipeline parallelism"),
        ({"heads": "3"}, "d_model is 64"),
        ({"precision": "fp8 mixed"}, "no rate for FP8"),
        ({"gpus": "12"}, "host"),
    ],
)
def test_a_bad_row_is_left_out_with_a_reason(changes: dict[str, str], text: str) -> None:
    made, left_out = predict([replace(TINY, **changes), replace(TINY, id="a9")])
    assert [one.row.id for one in made] == ["a9"]
    ((name, reason),) = left_out
    assert name == "a1"
    assert text in reason
    assert "\n" not in reason


@needs_torch
def test_the_command_goes_on_without_bad_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _file(tmp_path / "rows.csv", TINY, replace(TINY, id="a2", gpu="Z9"))
    file.write_text(file.read_text() + "a3,GPT\n")
    assert main(["validate", "training", "--rows", str(file), "--out", str(tmp_path / "o")]) == 0
    output = capsys.readouterr()
    assert "1 of 3 rows are predicted, 2 left out" in output.out
    assert max(map(len, output.out.partition("By source")[0].splitlines())) <= 80
    assert "a2 is left out: gpu is 'Z9'" in output.err
    assert "a3 is left out: has 2 fields of 20" in output.err
    page = (tmp_path / "o" / "validation.md").read_text()
    assert "|a1|GPT tiny|a100|tok/s|1,000|" in page
    assert "- a3 is left out" in page
    assert "|a/b|1|" in page
    assert f"\nnearmem validate training --rows {file} --out DIR\n" in page
    assert "The band is 15 % on either side" in page
    assert (tmp_path / "o" / "validation" / "validation.svg").exists()
    assert main(["validate", "training", "--rows", str(file), "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert results["rows"][0]["measured"] == [1000, 1000]
    assert [row["id"] for row in results["left_out"]] == ["a3", "a2"]
    assert main(["validate", "training", "--rows", str(file), "--quiet"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("id,model\n1,x\n", "has no column params, layers"),
        (",".join(COLUMNS), "has no rows"),
        (",".join(COLUMNS) + "\nq,x\n", "no row of 1 can be predicted; q: has 2 fields"),
        ("", "has no column"),
    ],
)
def test_a_file_without_a_usable_row_is_refused(
    content: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "rows.csv").write_text(content)
    assert main(["validate", "training", "--rows", str(file)]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


@needs_torch
def test_rows_that_count_nowhere_make_a_page_without_a_plot(tmp_path: Path) -> None:
    inputs = [row for row in ROWS if kind_of(row) == "input"][:1]
    made = report(_file(tmp_path / "rows.csv", *inputs), folder=tmp_path / "o")
    assert [file.name for file in made.files] == ["validation.md"]
    assert "validation.svg" not in made.files[0].read_text()
    assert not (tmp_path / "o" / "validation").exists()


def test_without_pytorch_the_command_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["validate", "training", "--quiet"]) == 2
    assert capsys.readouterr().err == (
        "nearmem: PyTorch, without which a row's step cannot be captured, is not installed: "
        "pip install -e '.[torch]'\n"
    )


def test_a_file_that_cannot_be_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", "training", "--rows", str(tmp_path / "none.csv")]) == 2
    assert "none.csv" in capsys.readouterr().err
    (binary := tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RowError, match="no CSV file"):
        read_rows(binary)


@needs_torch
def test_the_page_is_as_made(tmp_path: Path) -> None:
    """It has every row; those that take little time are made again."""
    page = (SHIPPED.parents[3] / "docs" / "validation.md").read_text()
    missing = [row.id for row in ROWS if f"|{row.id}|" not in page and f"- {row.id} is" not in page]
    assert not missing
    few = [row for row in ROWS if row.id[0] in "xo"]
    made = report(_file(tmp_path / "few.csv", *few))
    tables = [part for part in made.parts if isinstance(part, Table)]
    lines = [f"|{'|'.join(cells)}|" for table in tables for cells in table.rows]
    lines = [line for line in lines if line.split("|")[1] in {row.id for row in few}]
    assert len(lines) == len(few)
    assert not [line for line in lines if line not in page]
