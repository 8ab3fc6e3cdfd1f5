"""The experiments: first come first served, and two channels at work."""

from __future__ import annotations

import json

import numpy as np
import pytest

from golden.rules import reference
from hw.axdimm.config import configure
from hw.rules import rule
from hw_tests.driver.adam import adam_step
from hw_tests.driver.refusals import assert_refused
from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.backends.rtl import VerilatedTransport
from sw_driver.axdimm.registers import arbiter_registers, kernel_registers
from sw_driver.axdimm.rulejob import hyperparameters_of
from sw_driver.cli import main
from sw_driver.experiments.study.parallel import measure_parallel
from sw_driver.experiments.study.sharing import INTERVALS_FABRIC_CYCLES, PATTERNS, measure_sharing

HYPERPARAMETERS = hyperparameters_of(rule("adam"), 1)
LARGER = {"preset": "tiny", "capacity_bytes": 8 << 20}
STREAMED = 0x5A
"""What the transport's stream writes."""


@pytest.mark.soak
def test_shared_dram_keeps_the_data_of_both() -> None:
    """The kernel's results are exact and the host's lines arrive while each works."""
    transport = VerilatedTransport(config=configure("tiny", channels=1), shared=True)
    rng = np.random.default_rng(3)
    count, lines = 20_000, 40
    with Axdimm(transport) as device:
        values = {name: rng.random(count, dtype=np.float32) for name in "pmvg"}
        tensors = {name: device.MallocAxdimm(4 * count, 0) for name in "pmvg"}
        for name, pointer in tensors.items():
            device.MemcpyHost2Axdimm(pointer, values[name], 4 * count)
        buffer = device.MallocAxdimm(64 * lines, 0)
        before = rng.integers(0, 256, 64 * lines, np.uint8)
        device.MemcpyHost2Axdimm(buffer, before, before.nbytes)
        device.SetArbiterAcc(0)
        # Leaves the settings in the registers; t = 1.
        device.RunOnAxdimmAsync("adam", tensors, count, HYPERPARAMETERS, 0).wait()
        kernel = kernel_registers(transport, 0)
        kernel.write("control", 1)
        writes = rng.random(lines) < 0.5
        addresses = buffer.address + 64 * np.arange(lines, dtype=np.uint64)
        latencies, late = transport.stream(0, addresses, writes, interval_fabric_cycles=2)
        assert len(latencies) == lines - writes.sum()
        assert 0 < late <= len(latencies)
        # A read that is in time has its data within the fixed latency.
        fixed = transport.config.read_latency_fabric_cycles
        assert late == np.count_nonzero(latencies > fixed - 2)
        assert kernel.read_field("status", "busy") == 1, "the host was to work beside the kernel"
        kernel.poll("status", {"busy": 0}, interval=16, timeout=1_000_000)
        assert kernel.read_field("status", "cause") == 0
        refused = arbiter_registers(transport, 0).read_field("refused", "count")
        assert refused == 0
        device.SetArbiterNormal(0)
        p, g, m, v = (values[name] for name in "pgmv")
        constants = reference("adam").constants(**HYPERPARAMETERS)
        for _ in range(2):
            p, m, v = adam_step(p, g, m, v, constants)
        for name, wanted in {"p": p, "m": m, "v": v}.items():
            result = np.empty(count, np.float32)
            device.MemcpyAxdimm2Host(result, tensors[name], 4 * count)
            assert (result.view(np.uint32) == wanted.view(np.uint32)).all(), name
        after = np.empty_like(before)
        device.MemcpyAxdimm2Host(after, buffer, after.nbytes)
        expected = before.reshape(lines, 64).copy()
        expected[writes] = STREAMED
        assert (after == expected.ravel()).all()


@pytest.mark.soak
def test_sharing_costs_the_host_its_latency() -> None:
    config = configure(**LARGER, channels=1)
    rows = list(measure_sharing(config, parameters=200_000, window_fabric_cycles=20_000))
    assert len(rows) == 1 + 2 * len(PATTERNS) * len(INTERVALS_FABRIC_CYCLES)
    assert rows[0]["mode"] == "kernel alone"
    for alone, both in zip(rows[1::2], rows[2::2], strict=True):
        assert (alone["mode"], both["mode"]) == ("host alone", "both")
        assert alone["interval_fabric_cycles"] == both["interval_fabric_cycles"]
        assert both["latency_median_ns"] > 5 * alone["latency_median_ns"]
        assert both["host_gb_per_s"] <= alone["host_gb_per_s"] * 1.01
        assert both["late_share"] > 0.85
        assert 0.5 < both["kernel_share"] <= 1.02
        for row in (alone, both):
            assert row["host_gb_per_s"] <= row["offered_gb_per_s"] * 1.01


@pytest.mark.soak
def test_channels_do_not_disturb_each_other() -> None:
    rows = list(measure_parallel(configure(**LARGER), parameters=100_000, copy_bytes=64 * 1024))
    by_work = {(row["channel_0"], row["channel_1"]): row for row in rows}
    alone = by_work["kernel", "idle"]["kernel_mparams_per_s"]
    for other in ("copy to it", "copy from it", "kernel"):
        beside = by_work["kernel", other]["kernel_mparams_per_s"]
        # Refreshes may fall otherwise; 1 in 50 is a batch of them.
        assert beside == pytest.approx(alone, rel=0.02)
    for work in ("copy to it", "copy from it"):
        copy_alone = by_work["idle", work]["copy_gb_per_s"]
        assert by_work["kernel", work]["copy_gb_per_s"] == pytest.approx(copy_alone, rel=0.05)
    # The link is one: two copies at once are half as fast each.
    both = by_work["copy to it", "copy to it"]["copy_gb_per_s"]
    assert both == pytest.approx(by_work["idle", "copy to it"]["copy_gb_per_s"] / 2, rel=0.15)


@pytest.mark.parametrize(
    ("options", "phrases"),
    [
        (["fcfs", "--config", "nonsense"], ["'nonsense'", "axdimm"]),
        (["nonsense"], ["nonsense", "fcfs", "parallel"]),
        (["fcfs", "--window", "3"], ["'3'", "10000"]),
        (["fcfs", "--config", "tiny"], ["4000000 bytes", "--parameters"]),
        (["parallel", "--copy-kib", "1000000"], ["1024000000 bytes", "--copy-kib"]),
        (["parallel", "--config", "tiny", "--parameters", "9000000"], ["--parameters"]),
    ],
)
def test_refuses(
    capsys: pytest.CaptureFixture[str], options: list[str], phrases: list[str]
) -> None:
    assert_refused(capsys, ["study", *options, "--quiet"], phrases)


def test_prints_a_table_and_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"channel_0": "kernel", "channel_1": "idle", "kernel_mparams_per_s": 423.5, "copies": 0}
    monkeypatch.setattr(
        "sw_driver.experiments.study.parallel.measure_parallel",
        lambda *args, **settings: iter([row]),
    )
    assert main(["study", "parallel", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["results"] == [row]
    assert document["machine"]["channels"] == 2
    assert document["workload"]["experiment"] == "parallel"
    assert main(["study", "parallel", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["study", "parallel"]) == 0
    table = capsys.readouterr().out
    assert "kernel" in table
    assert "423.50" in table
