"""Adam on the CPU: bit-exactness of its kernel, bytes that are counted, what the command prints."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pytest

from hw.rules import rule
from hw_tests.driver.adam import adam_constants, adam_step
from hw_tests.driver.conftest import PRESET
from hw_tests.driver.refusals import assert_refused
from sw_driver.cli import main
from sw_driver.experiments.baseline import library as library_module
from sw_driver.experiments.baseline import machine, measure
from sw_driver.experiments.baseline.check import Operands, differing, special_operands
from sw_driver.experiments.baseline.frameworks import numpy_adam, torch_adam
from sw_driver.experiments.baseline.library import CpuLibrary, Variant, aligned_floats
from sw_driver.experiments.baseline.measure import Loop, ceiling_of
from sw_driver.experiments.baseline.report import PAPER_ROWS
from sw_driver.experiments.baseline.traffic import ADAM, COPY, READ, TRIAD, Traffic
from sw_driver.experiments.figures import fitting_mparams_per_s
from sw_driver.experiments.rulejob import hyperparameters_of
from sw_driver.simulator.compiler import CompilerError, native_target, run_compiler
from sw_driver.transport import Transport

CONSTANTS = {
    "ordinary": adam_constants(1e-3, 0.9, 0.999, 1e-8, 0.01, t=3),
    "first step, no weight decay": adam_constants(1e-2, 0.9, 0.999, 1e-8, 0.0, t=1),
    "eps of 0, betas of 0": adam_constants(1.0, 0.0, 0.0, 0.0, 0.5, t=10**9),
    "subnormal and huge": adam_constants(1e-40, 0.5, 0.99, 1e-44, 3e38, t=2),
}


@pytest.fixture(scope="module")
def exact() -> CpuLibrary:
    return CpuLibrary(Variant.EXACT)


def placed(operands: Operands, count: int) -> Operands:
    """The first values of each operand, with some more behind them, on lines of 64 bytes."""
    p, g, m, v = (aligned_floats(count + 16) for _ in range(4))
    for array, values in zip((p, g, m, v), operands, strict=True):
        array[:] = values[: count + 16]
    return p, g, m, v


@pytest.mark.parametrize("streaming", [False, True], ids=["plain", "streaming"])
@pytest.mark.parametrize("name", CONSTANTS)
def test_every_bit_is_that_of_the_golden_model(
    exact: CpuLibrary, name: str, streaming: bool
) -> None:
    operands = special_operands(seed=7, random_count=20_000)
    wrong = differing(exact, operands, CONSTANTS[name], threads=2, streaming=streaming)
    assert wrong == 0


@pytest.mark.parametrize("streaming", [False, True], ids=["plain", "streaming"])
@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_all_counts_and_splits(exact: CpuLibrary, threads: int, streaming: bool) -> None:
    constants = CONSTANTS["ordinary"]
    operands = special_operands(seed=threads, random_count=1000)
    shuffled = np.random.default_rng(3).permutation(operands[0].size)
    operands = tuple(array[shuffled] for array in operands)
    for count in [*range(41), 16 * 5 * 7, 16 * 5 * 7 + 1]:
        arrays = placed(operands, count)
        before = [array.copy() for array in arrays]
        p, g, m, v = (array[:count] for array in arrays)
        exact.adam(p, g, m, v, constants, threads=threads, streaming=streaming)
        expected = adam_step(*(array[:count] for array in before), constants)
        wanted = [before[1], *before[:1], *before[2:]]
        for array, values in zip(wanted[1:], expected, strict=True):
            array[:count] = values
        for array, values in zip((arrays[1], arrays[0], *arrays[2:]), wanted, strict=True):
            different = np.flatnonzero(array.view(np.uint32) != values.view(np.uint32))
            assert not different.size, f"{count} parameters: {different}"


def test_special_operands_meet_each_other() -> None:
    operands = special_operands(seed=1, random_count=10)
    for array in operands:
        assert np.isnan(array).any()
        assert np.isinf(array).any()
        assert ((array != 0) & (np.abs(array) < 2.0**-126)).any()
    p, g, m, v = operands
    for one, other in ((p, g), (m, v), (g, v)):
        assert (np.isinf(one) & np.isnan(other)).any()


@pytest.mark.parametrize(("threads", "streaming"), [(1, False), (3, False), (1, True), (3, True)])
@pytest.mark.parametrize("count", [1, 16, 100, 1000])
def test_bandwidth_loops_do_what_they_say(
    exact: CpuLibrary, count: int, threads: int, streaming: bool
) -> None:
    rng = np.random.default_rng(1)
    p, g, m, v, target = (aligned_floats(count) for _ in range(5))
    for array in (p, g, m, v):
        array[:] = rng.random(count, dtype=np.float32)
    exact.run("copy", target, g, threads=threads, settings=(streaming,))
    np.testing.assert_array_equal(target, g)
    exact.run("triad", target, m, v, threads=threads, settings=(streaming,))
    np.testing.assert_allclose(target, m + 3 * v, rtol=1e-6)
    bits = np.bitwise_xor.reduce(g.view(np.uint32))
    assert exact.run("read", g, threads=threads) == bits
    sums = [array + g for array in (p, m, v)]
    exact.run("update", p, g, m, v, threads=threads)
    for array, wanted in zip((p, m, v), sums, strict=True):
        np.testing.assert_array_equal(array, wanted)
    pattern = np.arange(7, dtype=np.float32)
    exact.run("fill", target, pattern, threads=threads, settings=(len(pattern),))
    np.testing.assert_array_equal(target, np.resize(pattern, count))


def test_the_kernels_are_vectorised(exact: CpuLibrary) -> None:
    assert exact.vector_bytes["plain"] >= 16
    if exact.streams:
        assert exact.vector_bytes["streaming"] >= 16


def test_the_fast_variant_leaves_the_process_its_subnormal_numbers() -> None:
    fast = CpuLibrary(Variant.FAST)
    operands = special_operands(seed=1, random_count=1000)
    p, g, m, v = placed(operands, 1000)
    fast.adam(p, g, m, v, CONSTANTS["ordinary"])
    tiny = np.float32(1e-40)
    assert tiny * np.float32(0.5) != 0


def numpy_result(operands: Operands, constants: Mapping[str, np.float32]) -> Operands:
    p, g, m, v = (array.copy() for array in operands)
    with np.errstate(all="ignore"):
        numpy_adam(p, g, m, v)(constants)
    return p, g, m, v


@pytest.mark.parametrize("name", CONSTANTS)
def test_numpy_computes_the_same_step(name: str) -> None:
    operands = special_operands(seed=3, random_count=5000)
    p, _, m, v = numpy_result(operands, CONSTANTS[name])
    for result, wanted in zip((p, m, v), adam_step(*operands, CONSTANTS[name]), strict=True):
        np.testing.assert_array_equal(result, wanted)


def test_torch_computes_the_same_step() -> None:
    pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    p, g = (rng.normal(0, 0.1, 1000).astype(np.float32) for _ in range(2))
    state = p.copy(), np.zeros_like(p), np.zeros_like(p)
    hyperparameters = hyperparameters_of(rule("adam"), 1)
    del hyperparameters["t"]
    step = torch_adam(p, g, **hyperparameters)
    assert step is not None
    for t in range(1, 4):
        step(2)
        state = adam_step(state[0], g, *state[1:], adam_constants(**hyperparameters, t=t))
    np.testing.assert_allclose(p, state[0], rtol=1e-4, atol=1e-6)


def test_bytes_of_each_loop() -> None:
    assert (ADAM.read_bytes, ADAM.written_bytes) == (16, 12)
    assert [ADAM.moved_bytes(streaming=how) for how in (False, True)] == [28, 28]
    assert [COPY.moved_bytes(streaming=how) for how in (False, True)] == [12, 8]
    assert [TRIAD.moved_bytes(streaming=how) for how in (False, True)] == [16, 12]
    assert [READ.moved_bytes(streaming=how) for how in (False, True)] == [8, 8]
    assert (ADAM.counted_bytes, COPY.counted_bytes, TRIAD.counted_bytes) == (28, 8, 12)


def test_the_papers_ceilings_follow_from_its_bandwidths() -> None:
    for bandwidth, row in zip((6.4, 25.6), PAPER_ROWS, strict=True):
        ceiling = fitting_mparams_per_s(bandwidth)
        assert ceiling == pytest.approx(row["ceiling_mparams_per_s"], abs=0.005)
        assert row["mparams_per_s"] / ceiling == pytest.approx(row["efficiency"], abs=0.0005)


def loop(name: str, traffic: Traffic, *seconds: float, streaming: bool) -> Loop:
    return Loop(
        name=name, threads=1, values=10**9, traffic=traffic, run=lambda step: None,
        streaming=streaming, seconds=list(seconds),
    )  # fmt: skip


def test_rates_are_those_of_the_median() -> None:
    row = loop("copy", COPY, 5.0, 1.0, 2.0, 4.0, 3.0, streaming=False)
    assert row.quartiles_seconds == (2.0, 4.0)
    assert row.mparams_per_s == pytest.approx(1000 / 3)
    assert row.mparams_per_s_quartiles == pytest.approx((250, 500))
    assert row.counted_gb_per_s == pytest.approx(8 / 3)
    assert row.moved_gb_per_s == pytest.approx(12 / 3)
    assert loop("copy", COPY, 3.0, 1.0, streaming=True).quartiles_seconds == (1.0, 3.0)


def test_the_ceiling_is_of_loops_whose_traffic_is_certain() -> None:
    plain = loop("copy", COPY, 1.0, streaming=False)
    streaming = loop("copy, streaming", COPY, 0.9, streaming=True)
    update = loop("Adam's traffic alone", ADAM, 2.9, streaming=False)
    assert plain.moved_gb_per_s > update.moved_gb_per_s > streaming.moved_gb_per_s
    assert ceiling_of([plain, streaming, update]) is update
    assert ceiling_of([plain]) is plain


def test_the_cache_is_the_largest_that_is_told(
    tmp_path: machine.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index, size in enumerate(("32K", "1024K", "64M")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
    monkeypatch.setattr(machine, "_CACHES", tmp_path)
    monkeypatch.setenv("PATH", "")
    assert machine.this_machine().last_level_cache_bytes == 64 << 20
    monkeypatch.setattr(machine, "_CACHES", tmp_path / "none")
    assert machine.this_machine().last_level_cache_bytes == 0


def test_the_build_key_tells_the_processor() -> None:
    assert "__cplusplus" in native_target()
    assert "-march=" in native_target()
    with pytest.raises(CompilerError, match=r"g\+\+ failed: .*no-such-file"):
        run_compiler(["/no-such-file.cpp"])


def test_no_compiler_fails_the_job(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sw_driver.simulator.compiler.COMPILER", "g++-of-nowhere")
    assert main(["baseline", "--no-module", "--parameters", "100"]) == 1
    assert capsys.readouterr().err == (
        "nearmem: 'g++-of-nowhere' was not found: install the C++ compiler\n"
    )


def test_a_kernel_that_differs_fails_the_job(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = library_module._VARIANT_FLAGS
    monkeypatch.setitem(flags, Variant.EXACT, flags[Variant.FAST])
    assert main(["baseline", "--no-module", "--parameters", "100"]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "differs from the golden model in" in output.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--parameters", "0"], ["'0'", "from 1"]),
        (["--parameters", str(1 << 36)], [str(1 << 36), "--parameters"]),
        (["--repetitions", "0"], ["'0'", "from 1"]),
        (["--threads", "many"], ["'many'", "integer"]),
        (["--backend", "fpga"], ["'fpga'", "rtl"]),
        (["--backend", "golden"], ["'golden'", "--no-module"]),
        (["--config", "huge"], ["'huge'", "axdimm"]),
    ],
    ids=" ".join,
)
def test_refusals_take_one_line(
    capsys: pytest.CaptureFixture[str], options: list[str], said: list[str]
) -> None:
    assert_refused(capsys, ["baseline", "--quiet", *options], said)


def test_json_is_all_that_is_printed(
    capsys: pytest.CaptureFixture[str], backend: Transport
) -> None:
    if backend.name != "rtl":
        pytest.skip("only the RTL has a speed")
    options = ["--config", PRESET, "--module-parameters", "2000", "--threads", "2"]
    small = ["--parameters", "5000", "--repetitions", "2"]
    assert main(["baseline", "--json", *options, *small]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    values = json.loads(output.out)
    assert values["bytes_per_parameter"] == {
        "read": 16, "written": 12, "write_allocate": 0, "total": 28
    }  # fmt: skip
    assert values["parameters"] == 5000
    assert values["working_set_bytes"] == 80_000
    assert values["smallest_working_set_bytes"] == 40_000
    assert values["repetitions"] == 2
    assert {row["threads"] for row in values["cpu"]} == {1, 2}
    assert {row["name"] for row in values["cpu"]} >= {"C++", "numpy"}
    ceiling = values["ceiling"]
    assert ceiling["mparams_per_s"] == pytest.approx(ceiling["gb_per_s"] * 1e3 / 28)
    loops = [row for row in values["bandwidth"] if row["name"] == values["copy_ceiling"]["loop"]]
    assert values["copy_ceiling"]["gb_per_s"] in [row["gb_per_s"] for row in loops]
    assert values["copy_ceiling"]["mparams_per_s"] <= ceiling["mparams_per_s"]
    for row in values["cpu"]:
        assert row["bit_exact"] is (row["name"] in ("C++", "C++, streaming"))
        assert row["efficiency"] == pytest.approx(row["mparams_per_s"] / ceiling["mparams_per_s"])
        assert row["gb_per_s"] == pytest.approx(28 * row["mparams_per_s"] / 1e3)
        assert len(row["seconds"]) == 2
    for row in values["bandwidth"]:
        moved = row["gb_per_s"] / row["counted_gb_per_s"]
        assert moved == pytest.approx(row["moved_bytes_per_value"] / row["counted_bytes_per_value"])
    module = values["module"]
    assert module["bit_exact"] is True
    assert module["backend"] == "rtl"
    assert module["ceiling_mparams_per_s"] == pytest.approx(914.29, abs=0.01)
    assert 0 < module["efficiency"] < 1
    assert values["module_ratio"].keys() == {"1", "2"}
    assert values["paper_ratio"] == pytest.approx(5.63, abs=0.01)


def test_tables_show_the_papers_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baseline", "--no-module", "--parameters", "3000", "--repetitions", "1"]) == 0
    printed = capsys.readouterr().out
    for words in ("140.32", "228.57", "61.4%", "789.38", "914.29", "86.3%", "28 bytes", "torch"):
        assert words in printed


def test_a_small_working_set_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_last_level_cache_bytes", lambda: 2 * 4 * 3000)
    command = ["baseline", "--no-module", "--repetitions", "1"]
    assert main([*command, "--parameters", "3000"]) == 0
    assert "may be figures of the cache" in " ".join(capsys.readouterr().out.split())
    assert main([*command, "--parameters", "3001"]) == 0
    assert "may be figures of the cache" not in " ".join(capsys.readouterr().out.split())


def test_a_fast_kernel_that_pays_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(loops: list[Loop], repetitions: int, track: object) -> None:
        for each in loops:
            each.seconds.extend([speed.get(each.name, 2.0)] * 3)

    monkeypatch.setattr(measure, "_time", timed)
    for seconds, pays in ((1.0, True), (2.0, False)):
        speed = {"C++, fast": seconds}
        result = measure.measure_cpu(100, repetitions=3, threads=2)
        assert result.fast_pays is pays
        names = [row.name for row in result.adam]
        assert ("C++, fast" in names) is pays
        assert all(row.bit_exact is False for row in result.adam if row.name == "C++, fast")
