"""Speeds of this machine: that Adam is computed, what follows from rates, and what is printed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hw.rules import rule
from hw_tests.driver.adam import adam_constants, adam_step
from hw_tests.driver.refusals import assert_refused
from sw_driver.axdimm.rulejob import hyperparameters_of
from sw_driver.cli import main
from sw_driver.experiments.measure import adam, rates, report
from sw_driver.experiments.measure.report import settings
from sw_driver.machine.files import read_machine_file
from sw_driver.machine.parts import Figure, measured
from sw_driver.system.compare.bases import machine_of

SMALL = ["--parameters", "3000", "--repetitions", "3", "--threads", "2", "--drive-bytes", "33MiB"]
ON_GPU = {
    **{f"gpu.{name}tflop_per_s": rate for name, rate in (("", 50), ("tf32_", 400), ("fp16_", 700))},
    "gpu.bf16_tflop_per_s": 720,
    "gpu.gb_per_s": 3000,
    "pcie.read_gb_per_s": 50,
    "gpu.launch_ns": 4000,
}
ON_CPU = {
    "host.capacity_bytes": 2**41,
    "cpu.tflop_per_s": 4,
    "cpu.bf16_tflop_per_s": 9,
    "host.copy_gb_per_s": 400,
    "cpu.adam_gb_per_s": 300,
    "drive.read_gb_per_s": 6,
}


def operands(count: int) -> list[np.ndarray]:
    """p, g, m and v: ordinary values, subnormal ones and infinities."""
    rng = np.random.default_rng(3)
    arrays = [rng.normal(0, 1e-2, count).astype(np.float32) for _ in range(4)]
    arrays[3] **= 2
    for array in arrays:
        array[rng.integers(0, count, count // 10)] = np.float32(1e-40)
        array[rng.integers(0, count, count // 100)] = np.float32("inf")
    return arrays


def test_numpy_computes_the_golden_step() -> None:
    p, g, m, v = operands(5000)
    expected = p, m, v
    step = adam.numpy_adam(p := p.copy(), g, m := m.copy(), v := v.copy())
    for t in (1, 2):
        hyperparameters = {**hyperparameters_of(rule("adam"), 1), "t": t}
        expected = adam_step(expected[0], g, *expected[1:], adam_constants(**hyperparameters))
        with np.errstate(all="ignore"):
            step(t)
        for result, wanted in zip((p, m, v), expected, strict=True):
            np.testing.assert_array_equal(result, wanted)


def test_torch_computes_nearly_the_golden_step() -> None:
    pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    p, g = (rng.normal(0, 0.1, 1000).astype(np.float32) for _ in range(2))
    state = p.copy(), np.zeros_like(p), np.zeros_like(p)
    step = adam.torch_adam(p, g, threads=2)
    for t in range(1, 4):
        step(t)
        constants = adam_constants(**hyperparameters_of(rule("adam"), t))
        state = adam_step(state[0], g, *state[1:], constants)
    np.testing.assert_allclose(p, state[0], rtol=1e-4, atol=1e-6)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make products and copies take milliseconds; of all folders ``/`` is in memory."""
    kinds = {Path("/"): "tmpfs"}
    monkeypatch.setattr(report, "filesystem", lambda folder: ("", kinds.get(folder, "ext4")))
    monkeypatch.setattr(rates, "SIZES", (8, 16))
    monkeypatch.setattr(rates, "COPY_BYTES", 1 << 20)
    monkeypatch.setattr(rates, "_WINDOW_S", 0.01)


def test_json_and_file_have_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    words = ["--gpu", "rtx4090", "--out", str(path), "--drive", str(tmp_path)]
    assert main(["measure", "--json", *SMALL, *words]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    document = json.loads(output.out)
    assert document["files"] == [str(path)]
    assert [*tmp_path.iterdir()] == [path]
    results = document["results"]
    assert all(rate["value"] > 0 for rate in results["rates"].values())
    assert results["cpu"][0]["library"] == f"numpy {np.__version__}"
    for row in results["cpu"]:
        assert len(row["seconds"]) == 3
        assert row["mparams_per_s"] == pytest.approx(3000 / sorted(row["seconds"])[1] / 1e6)
        assert row["gb_per_s"] == pytest.approx(28 * row["mparams_per_s"] / 1e3)
    file, keys = read_machine_file(path), machine_of(str(path)).keys
    assert file.base == "rtx4090"
    assert {"cpu.gb_per_s", "cpu.memory_share", "cpu.tflop_per_s"} <= {*file.figures}
    for key, figure in file.figures.items():
        assert keys[key] == figure
        assert figure.mark == "measured"
        assert "nearmem measure, 20" in figure.source
    best = max(row["gb_per_s"] for row in results["cpu"])
    assert machine_of(str(path)).device("cpu").bytes_per_s == pytest.approx(best * 1e9, rel=1e-3)
    # Without a base the file is written, too, and says what to do.
    assert main(["measure", *SMALL, "--out", str(path), "--drive", str(tmp_path)]) == 0
    assert "No GPU was measured, so compare needs a base: give --gpu" in capsys.readouterr().out
    assert_refused(capsys, ["compare", "gpt-tiny", "--machine", str(path)], ["has no base"])


@pytest.mark.parametrize("installed", [True, False])
def test_the_table_names_each_library(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    installed: bool,
) -> None:
    if installed:
        pytest.importorskip("torch")
    else:
        monkeypatch.setitem(sys.modules, "torch", None)
    command = ["measure", *SMALL, "--drive", str(tmp_path)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    for words in ("numpy", "140.32", "Adam(fused=True)" if installed else "pip install"):
        assert words in printed
    assert main([*command, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def figures(*values: dict[str, float]) -> dict[str, Figure]:
    return {key: measured(value, "a clock") for group in values for key, value in group.items()}


def values(made: dict[str, Figure]) -> dict[str, float]:
    return {key: figure.value for key, figure in made.items()}


def test_a_known_gpu_keeps_its_peaks_and_has_measured_shares() -> None:
    made = values(settings(figures(ON_GPU, ON_CPU), "h100x8", is_known=True))
    share = 720 / 989.4
    assert "gpu.bf16_tflop_per_s" not in made
    assert "gpu.gb_per_s" not in made
    assert made["gpu.product_share"] == share
    assert made["gpu.fp16_tflop_per_s"] * share == pytest.approx(700)
    assert made["gpu.memory_share"] == 3000 / 3350
    assert (made["pcie.read_gb_per_s"], made["gpu.launch_ns"]) == (50, 4000)
    # Eight GPUs share the host.
    assert (made["cpu.gb_per_s"], made["cpu.memory_share"]) == (400 / 8, 300 / 400)
    assert (made["cpu.tflop_per_s"], made["host.capacity_bytes"]) == (4 / 8, 2**41 // 8)
    assert made["drive.read_gb_per_s"] == made["nvme.read_gb_per_s"] == 6 / 8
    fast = figures(ON_GPU, ON_CPU, {"gpu.gb_per_s": 4000})
    faster = values(settings(fast, "h100", is_known=True))
    assert (faster["gpu.gb_per_s"], faster["gpu.memory_share"]) == (4000, 1)


def test_another_gpu_has_measured_peaks() -> None:
    made = values(settings(figures(ON_GPU, ON_CPU), "h100", is_known=False))
    assert (made["gpu.bf16_tflop_per_s"], made["gpu.product_share"]) == (720, 1)
    assert (made["gpu.gb_per_s"], made["gpu.memory_share"]) == (3000, 1)
    assert "gpu.bf16_tflop_per_s" not in settings(figures(ON_GPU, ON_CPU), "v100", is_known=False)


def test_without_a_base_only_the_host_is_known() -> None:
    made = settings(figures(ON_GPU, ON_CPU), "", is_known=False)
    assert {key.partition(".")[0] for key in made} == {"host", "cpu", "drive", "nvme"}


class HostAsGpu:
    """PyTorch with the host's memory in place of a GPU's: the calls, not their times."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        device = SimpleNamespace(major=8, total_memory=1 << 30, multi_processor_count=2)
        self.cuda = SimpleNamespace(
            synchronize=lambda: None, get_device_properties=lambda number: device
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)

    def ones(self, size: int, dtype: Any, **_: Any) -> Any:
        return self._torch.ones(size, dtype=dtype)

    def randn(self, *sizes: int, device: str) -> Any:
        return self._torch.randn(*sizes)


def check_gpu(made: dict[str, Figure]) -> None:
    assert {*ON_GPU, "pcie.write_gb_per_s", "gpu.multiprocessors", "gpu.capacity_bytes"} <= {*made}
    base = machine_of("h100", "bf16-mixed")
    cpu = figures(ON_CPU)
    changed = base.override(settings(made | cpu, "h100", is_known=False))
    assert changed.device("gpu").bytes_per_s == pytest.approx(made["gpu.gb_per_s"].value * 1e9)


def test_calls_of_a_gpu_are_those_of_pytorch() -> None:
    check_gpu(rates.gpu_rates(HostAsGpu(pytest.importorskip("torch"))))


def test_a_gpu_is_measured() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU to measure")
    check_gpu(rates.gpu_rates(torch))


def test_a_drive_behind_the_page_cache_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_DIRECT", raising=False)
    made = rates.drive_rates(tmp_path, 1 << 20)
    for name in ("write", "read"):
        assert "with the page cache in between" in made[f"drive.{name}_gb_per_s"].source
    assert not [*tmp_path.iterdir()]


def test_a_full_drive_is_named_and_left_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    words = [str(tmp_path), "No space left"]
    assert_refused(capsys, ["measure", *SMALL, "--quiet", "--drive", str(tmp_path)], words)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("options", "phrases"),
    [
        (["--parameters", "0"], ["'0'", "from 1"]),
        (["--parameters", str(1 << 36)], [str(1 << 36), "--parameters"]),
        (["--gpu", "rtx4080"], ["--gpu is 'rtx4080': did you mean rtx4090"]),
        (["--gpu", "rtx4090x2"], ["--gpu is 'rtx4090x2'", "give rtx4090"]),
        (["--gpu", "mine.toml"], ["--gpu is 'mine.toml': expected one of v100"]),
        (["--drive", "no/folder"], ["--drive is 'no/folder': expected a folder"]),
        (["--drive", "/"], ["--drive is '/', in memory"]),
        (["--out", "mine.json"], ["--out is 'mine.json'", ".toml"]),
    ],
    ids=" ".join,
)
def test_refusals_take_one_line(
    capsys: pytest.CaptureFixture[str], options: list[str], phrases: list[str]
) -> None:
    assert_refused(capsys, ["measure", "--quiet", *options], phrases)


def test_the_older_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(capsys, ["baseline", "--no-module"], ["baseline is now measure"])
