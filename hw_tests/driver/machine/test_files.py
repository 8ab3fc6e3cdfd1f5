"""Machine files: what is written is read, and what is wrong takes one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hw_tests.driver.refusals import assert_refused
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.machine.files import MachineFile, read_machine_file
from sw_driver.machine.gpus import CUDA_NAMES, GPUS
from sw_driver.machine.parts import Figure, measured
from sw_driver.machine.tiny import TINY
from sw_driver.system.compare.bases import gpu_watts, machine_of, named
from sw_driver.system.compare.page import report

FIGURES = {
    "gpu.launch_ns": measured(4100, 'a "clock", of 2 µs'),
    "gpu.product_share": measured(0.5, "a clock"),
    "pcie.read_gb_per_s": measured(1e-2, "a clock"),
}


def _written(folder: Path, base: str, figures: dict[str, Figure] = FIGURES) -> str:
    path = folder / "mine.toml"
    path.write_text(MachineFile(base=base, figures=figures).text)
    return str(path)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = _written(tmp_path, "h100")
    assert read_machine_file(path) == MachineFile(path=Path(path), base="h100", figures=FIGURES)
    assert read_machine_file(_written(tmp_path, "")).base == ""


def test_a_machine_has_the_figures_of_its_file_and_of_its_base(tmp_path: Path) -> None:
    machine, base = machine_of(_written(tmp_path, "h100x8")), machine_of("h100x8", "bf16-mixed")
    assert machine.name == "h100x8 (mine.toml)"
    assert named(machine.name) == named(_written(tmp_path, "h100x8")) == ("h100", 8)
    assert gpu_watts(machine) == gpu_watts(base)
    changed = {key for key in base.keys if machine.keys[key] != base.keys[key]}
    assert changed == {*FIGURES}
    assert machine.keys["pcie.read_gb_per_s"] == FIGURES["pcie.read_gb_per_s"]


def test_what_training_keeps_of_a_measured_rate_counts_once(tmp_path: Path) -> None:
    kept = GPUS["h100"].device.sustained_share
    device = machine_of(_written(tmp_path, "h100")).device("gpu")
    assert kept is not None
    assert device.product_share is not None
    assert device.product_share.value == 0.5 * kept.value
    assert device.product_share.mark == "calibrated"
    own = FIGURES | {"gpu.sustained_share": measured(1, "a clock")}
    device = machine_of(_written(tmp_path, "h100", own)).device("gpu")
    assert device.product_share is not None
    assert (device.product_share.value, device.product_share.mark) == (0.5, "measured")


def test_a_text_is_a_value_too() -> None:
    half = MachineFile(base="tiny", figures={"ddr.sharing": measured("duplex", "a look")})  # type: ignore[arg-type]
    assert half.applied(TINY).link("ddr").sharing == "duplex"


def test_gpus_have_names_in_cuda() -> None:
    assert {*CUDA_NAMES.values()} == {*GPUS} - {"h100-96"}  # which has the name of others


_MARKED = 'mark = "measured", source = "x"'


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("gpu.tb_per_s = {value = 1, %s}", ["'gpu.tb_per_s': did you mean gpu.gb_per_s"]),
        ('gpu.gb_per_s = {value = "1 TB/s", %s}', ["gpu.gb_per_s is '1 TB/s': expected a number"]),
        ("gpu.product_share = {value = 1.2, %s}", ["product_share is 1.2: expected a share of at"]),
        ("gpu.launch_ns = {value = 1.5, %s}", ["launch_ns is 1.5: expected an integer of 0"]),
        ("gpu.gb_per_s = {value = nan, %s}", ["gb_per_s is nan: expected a number from"]),
        ('pcie.sharing = {value = "hal", %s}', ["pcie.sharing is 'hal': expected one of duplex"]),
        ("gpu.gb_per_s = 3", ["gpu.gb_per_s is 3: expected value, source, mark in braces"]),
        ("gpu.gb_per_s = {value = 3}", ["gpu.gb_per_s is {'value': 3}: expected value, source"]),
        ("gpu.gb_per_s = {value = 3, unit = 1, %s}", ["gpu.gb_per_s: the field is 'unit'"]),
        ('gpu.gb_per_s = {value = 3, source = "x", mark = "new"}', ["mark is 'new'", "measured"]),
        ('gpu.gb_per_s = {value = 3, source = "", mark = "given"}', ["source is ''", "some text"]),
        ("gpu = 3", ["gpu is 3: expected base, or", "as gpu.gb_per_s"]),
        ('bas = "h100"', ["bas is 'h100': expected base, or"]),
        ("gpu.gb_per_s =", ["no TOML file"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_figure_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, phrases: list[str]
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "rtx4090"\n' + text.replace("%s", _MARKED))
    assert_refused(capsys, ["compare", "gpt-tiny", "--machine", str(path)], [str(path), *phrases])


@pytest.mark.parametrize(
    ("base", "phrase"),
    [
        ("rtx4080", "base is 'rtx4080': did you mean rtx4090"),
        ("h100x9", "base is 'h100x9': that host has GPUs up to a number of 8"),
        ("", 'has no base for figures that it lacks: begin it with base = "GPU"'),
    ],
)
def test_a_wrong_base_is_refused(tmp_path: Path, base: str, phrase: str) -> None:
    with pytest.raises(InvalidArgumentError, match=phrase):
        machine_of(_written(tmp_path, base))


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(capsys, ["compare", "gpt-tiny", "--machine", "no.toml"], ["'no.toml': No such"])


def test_machines_of_two_files_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.toml").write_text('base = "a6000"\n')
    machines = [f"--machine={tmp_path}/{name}/m.toml" for name in "ab"]
    names = ["a6000 (m.toml)", "two machines", "give a file another name"]
    assert_refused(capsys, ["compare", "gpt-tiny", *machines], names)


def test_the_title_has_the_number_of_gpus_once(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('base = "v100x8"\n')
    made = report(["gpt-tiny"], machine=str(tmp_path / "mine.toml"))
    assert ", 8 x v100 (mine.toml) with 32.0 GiB: " in str(made.parts[0])
