"""``nearmem pim``: what it refuses, what it prints with and without a clock, its figures."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any, get_args

import pytest

from hw.pim.config import PIM_PRESETS, PimConfig
from hw_tests.driver.pim.pim_doubles import RacingPim, StuckPim, TimedPim
from hw_tests.driver.refusals import assert_refused
from sw_driver.cli import main
from sw_driver.commands import pim as command
from sw_driver.experiments.pim import measure, networks, validation
from sw_driver.experiments.pim.measure import Job
from sw_driver.experiments.pim.networks import named_layer
from sw_driver.experiments.pim.validation import starts
from sw_driver.pim import backends, lowering
from sw_driver.pim.backends import rtl
from sw_driver.pim.backends.cycles import CyclesPim
from sw_driver.pim.device import Pim
from sw_driver.pim.layers import Convolution, FullyConnected, Layer
from sw_driver.pim.lowering import Program, lower

OWN = ["--convolution", "2,3,10,10", "--filters", "4,3,3"]
SMALL = ["--most-products", "100000"]


@pytest.mark.parametrize(
    ("options", "phrases"),
    [
        (["--network", "lenet"], ["no network 'lenet'", "one of alexnet, vgg-19"]),
        (["--layer", "conv9"], ["alexnet has no layer 'conv9'", "conv1, conv2", "fc8"]),
        (["--layer", "conv1", "--layer", "x"], ["'x'"]),
        (["--images", "0"], ["'0'", "from 1"]),
        (["--most-products", "-1"], ["'-1'", "at least 0"]),
        *(
            ([*job, "--backend", "rtk"], ["--backend is 'rtk': did you mean rtl?", "golden, rtl"])
            for job in ([], ["--train"], ["--pairs"], ["--validate", "2"])
        ),
        (["--config", "huge"], ["'huge'", "paper"]),
        (["--backend", "cycles", "--dram-trace", "x.csv"], ["'x.csv'", "cycles", "'rtl'"]),
        (["--dram-trace", "/nowhere/x.csv"], ["'/nowhere'", "create it"]),
        (["--validate", "1", "--dram-trace", "x.csv"], ["--validate has", "--dram-trace out"]),
        (["--pairs"], ["--pairs", "golden", "--backend cycles"]),
        (["--pairs", "--backend", "cycles", "--layer", "fc6"], ["--pairs", "--layer out"]),
        (["--pairs", "--backend", "cycles", *OWN], ["--pairs", "--convolution out"]),
        (["--pairs", "--backend", "cycles", "--pass", "bias"], ["--pairs", "--pass out"]),
        (["--pairs", "--validate", "1"], ["--validate has its own runs", "--pairs out"]),
        (["--cores", "2"], ["--cores, --steps, --out and --runtime", "add --train"]),
        (
            ["--train", "--layer", "conv1"],
            ["--train has its own network", "leave --layer out"],
        ),
        (["--train", "--most-products", "9"], ["--train has its own", "--most-products out"]),
        (["--train", "--seed", "9"], ["--train has", "no random values", "--seed out"]),
        (["--train", "--backend", "cycles"], ["--train runs in RTL", "--backend cycles"]),
        (["--train", "--backend", "golden"], ["golden has no cores", "leave --backend golden out"]),
        (
            ["--validate", "2", "--backend", "rtl"],
            ["--validate has its own", "leave --backend out"],
        ),
        (["--validate", "2", "--layer", "conv1"], ["--validate has its own", "leave --layer out"]),
        (["--validate", "2", "--pass", "bias"], ["--validate has its own", "leave --pass out"]),
        (["--train", "--set", "cores=4"], ["--train sets cores and rings", "--cores N"]),
        (["--train", "--cores", "5"], ["'5'", "from 1 to 4"]),
        (["--train", "--set", "bank_bytes=1024"], ["no room for 1 cores", "bank_bytes"]),
        (["--sequences"], ["--sequences", "--validate N"]),
        (["--pass", "sideways"], ["sideways", "backward-filter"]),
        (["--seed", "x"], ["'x'"]),
        (["--convolution", "1,2,3"], ["'1,2,3'", "IMAGES,CHANNELS,HEIGHT,WIDTH"]),
        (["--convolution", "1,2,3,x"], ["'1,2,3,x'", "4 integers"]),
        (["--convolution", "1,2,3,4"], ["--filters"]),
        (["--stride", "2"], ["--convolution"]),
        ([*OWN, "--stride", "1,2"], ["'1,2'", "integer"]),
        ([*OWN, "--dilation", "6"], ["dilation of 6", "10 x 10"]),
        ([*OWN, "--padding", "1,2"], ["'1,2'", "an integer, or 4 integers TOP,BOTTOM,LEFT,RIGHT"]),
        ([*OWN, "--padding", "1,2,3,65536"], ["padding is 65536"]),
        ([*OWN, "--layer", "conv1"], ["--convolution", "--layer", "one kind"]),
        ([*OWN, "--images", "2"], ["--images", "one kind"]),
        ([*OWN, "--fully-connected", "1,2,3"], ["--fully-connected excludes", "leave these out"]),
        (["--fully-connected", "1,2"], ["SAMPLES,INPUTS,OUTPUTS"]),
        (["--fully-connected", "0,2,2"], ["samples is 0"]),
        ([*OWN, "--groups", "2"], ["groups is 2", "channels, 3"]),
        (["--convolution", "1,1,2,2", "--filters", "1,3,3"], ["3 x 3", "2 x 2"]),
        (
            [
                *("--backend", "cycles", "--pass", "backward-filter", "--most-products", "0"),
                *("--network", "vgg-19", "--layer", "fc6", "--layer", "conv1_2"),
            ],
            ["conv1_2 backward-filter", "alone", "--images"],
        ),
        (["--fully-connected", "1,70000,70000"], ["no room for weights", "smaller"]),
    ],
    ids=" ".join,
)
def test_refusals_take_one_line(
    capsys: pytest.CaptureFixture[str], options: list[str], phrases: list[str]
) -> None:
    assert_refused(capsys, ["pim", *options], phrases)


def test_passes_are_those_of_the_driver() -> None:
    assert get_args(command.Pass) == lowering.PASSES


def test_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pim", "--help"]) == 0
    assert "--most-products" in capsys.readouterr().out


def test_without_a_clock(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pim", *SMALL]) == 0
    output = capsys.readouterr()
    printed = " ".join(output.out.split())
    for words in ("alexnet conv1 forward", "scaled from", "32 x 3 x 227 x 227", "has no clock"):
        assert words in printed
    for words in ("GFLOP/s │", "utilisation of units", "Banks:", "bit for bit"):
        assert words not in printed


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    sides = ["--padding", "0,3,2,1", "--dilation", "2"]
    assert main(["pim", *OWN, *sides, "--pass", "backward-filter", "--json"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    document = json.loads(output.out)
    figures, workload = document["results"], document["workload"]
    assert document["machine"]["bank_bytes"] == figures["bank_bytes"]
    assert workload["layers"] == [f"convolution, {figures['layers'][0]['sizes']}"]
    assert (workload["pass"], workload["seed"]) == ("backward-filter", 1)
    assert figures["backend"] == "golden"
    assert (figures["cycles"], figures["busy"], figures["wrong_results"]) == (None, None, None)
    (layer,) = figures["layers"]
    assert (layer["layer"], layer["pass"]) == ("convolution", "backward-filter")
    assert layer["multiplications"] == 4 * 3 * 3 * 3 * 2 * 9 * 9
    assert layer["bytes_read"] == layer["least_bytes_read"] == 4 * (2 * 3 * 100 + 2 * 4 * 81)
    assert layer["cycles"] is None
    assert len(layer["records"]) == layer["works"] == 1


def test_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pim", *OWN, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend in which every work takes a thousand cycles, one after the other."""
    monkeypatch.setitem(backends.PIM_BACKENDS, "timed", lambda config, _: TimedPim(config))


def figures_of(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["pim", "--backend", "timed", "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)["results"]


@pytest.mark.usefixtures("timed")
def test_figures_of_one_work(capsys: pytest.CaptureFixture[str]) -> None:
    figures = figures_of(capsys, "--fully-connected", "8,100,200")
    (layer,) = figures["layers"]
    operations = 8 * 200 * (100 + 99)
    assert layer["cycles"] == figures["cycles"] == 1000
    assert layer["utilisation"] == pytest.approx(operations / 444 / 1000)
    assert layer["gflop_per_s"] == pytest.approx(operations / 3.2e-6 / 1e9)
    assert layer["compute_bound_cycles"] == pytest.approx(8 * 200 * 100 / 222)
    moved = 4 * (8 * 100 + 100 * 200 + 8 * 200)
    assert layer["memory_bound_cycles"] == pytest.approx(moved / 1024)
    assert layer["memory_bound_share"] == pytest.approx(moved / 1024 / 1000)
    assert figures["compute_bound_share"] == pytest.approx(8 * 200 * 100 / 222 / 1000)
    busy = {bank for bank, share in enumerate(figures["busy"]) if share}
    assert busy == set(layer["records"][0]["banks"])
    assert all(share in (0, 1) for share in figures["busy"])
    assert figures["wrong_results"] == 0
    (record,) = layer["records"]
    assert record["seen_cycle"] - record["offer_cycle"] == figures["cycles_to_seen"] == 1000


@pytest.mark.usefixtures("timed")
def test_figures_of_several_layers(capsys: pytest.CaptureFixture[str]) -> None:
    figures = figures_of(capsys, "--layer", "conv2", "--layer", "conv3", "--layer", "fc7", *SMALL)
    first, second, third = figures["layers"]
    assert [layer["works"] for layer in figures["layers"]] == [2, 1, 1]
    assert figures["cycles"] == 4000
    # All were offered at the beginning and completed one after the other.
    assert [layer["cycles"] for layer in (first, second, third)] == [2000, 1000, 1000]
    operations = sum(layer["multiplications"] + layer["additions"] for layer in figures["layers"])
    assert figures["utilisation"] == pytest.approx(operations / 444 / 4000)
    # The first layer ended when its two works had, and the others had done nothing.
    of_first = first["multiplications"] + first["additions"]
    assert figures["utilisation_together"] == pytest.approx(of_first / 444 / 2000)
    assert figures["wrong_results"] == 0
    held = [record["banks"] for layer in figures["layers"] for record in layer["records"]]
    for bank, share in enumerate(figures["busy"]):
        assert share == pytest.approx(0.25 * sum(bank in banks for banks in held))


@pytest.mark.usefixtures("timed")
def test_more_works_than_slots(capsys: pytest.CaptureFixture[str]) -> None:
    figures = figures_of(capsys, *OWN, "--pass", "backward-input", "--stride", "3")
    (layer,) = figures["layers"]
    assert layer["works"] == len(layer["records"]) == 27
    assert layer["multiplications"] == sum(record["multiplications"] for record in layer["records"])
    assert figures["cycles"] == 27_000


def test_works_that_complete_while_others_are_offered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their counters are there until all other slots have been taken."""
    monkeypatch.setitem(backends.PIM_BACKENDS, "racing", lambda config, _: RacingPim(config))
    options = ["--backend", "racing", "--pass", "backward-input", "--stride", "2", "--json"]
    assert main(["pim", *OWN, *options]) == 0
    figures = json.loads(capsys.readouterr().out)["results"]
    (layer,) = figures["layers"]
    assert len(layer["records"]) == layer["works"] > 8
    assert figures["wrong_results"] == 0


@pytest.mark.usefixtures("timed")
def test_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert figures_of(capsys, "--layer", "conv1", *SMALL)["utilisation_together"] is None
    assert main(["pim", "--backend", "timed", "--layer", "conv1", *SMALL]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for words in (
        "1,000",
        "utilisation of units",
        "GFLOP/s",
        "share of compute bound",
        "share of memory bound",
        "Banks: number, units, share of the time busy",
        "31 (16)",
        "100%",
        "bit for bit",
    ):
        assert words in printed
    assert "no clock" not in printed
    assert "Utilisation" not in printed
    assert "The host saw completion 1,000 cycles after the first write of the" in printed

    layers = ["--layer", "conv2", "--layer", "conv3", *SMALL]
    figures = figures_of(capsys, *layers)
    assert main(["pim", "--backend", "timed", *layers]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert figures["utilisation_together"] != figures["utilisation"]
    assert (
        f"Utilisation of all units: {figures['utilisation_together']:.1%} until the first "
        f"layer ended, {figures['utilisation']:.1%} in the whole run."
    ) in printed


@pytest.mark.usefixtures("timed")
def test_pairs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [("alexnet", "fc7", "conv1", "forward"), ("vgg-19", "fc8", "conv2_1", "backward-input")]
    monkeypatch.setattr(networks, "PAIRS", pairs)

    def on_few_units(layer: Layer, pass_name: str, config: PimConfig, **options: Any) -> Program:
        program = lower(layer, pass_name, config, **options)
        units = 241 if pass_name == "forward" and isinstance(layer, Convolution) else config.units
        return replace(program, works=tuple(replace(work, units=units) for work in program.works))

    # Not always all banks, so that what is held is not the share of the banks.
    monkeypatch.setattr(measure, "lower", on_few_units)
    run = ["pim", "--backend", "timed", "--pairs", *SMALL]
    assert main([*run, "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)["results"]
    for figures, (network, *names, pass_name) in zip(measured, pairs, strict=True):
        layers_run = [(layer["layer"], layer["pass"]) for layer in figures["layers"]]
        assert layers_run == [(f"{network} {name}", pass_name) for name in names]
        # The first takes 1000 cycles, then the second does.
        first, second = (layer["records"][0]["banks"] for layer in figures["layers"])
        units = figures["bank_units"]
        shares = [sum(units[bank] for bank in banks) / 444 for banks in (first, second)]
        assert figures["held_together"] == pytest.approx(shares[0])
        assert figures["held"] == pytest.approx(sum(shares) / 2)
        operations = [layer["multiplications"] + layer["additions"] for layer in figures["layers"]]
        assert figures["utilisation"] == pytest.approx(sum(operations) / 444 / 2000)
    assert main(run) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for figures in measured:
        shares = ("held_together", "held", "utilisation_together", "utilisation")
        assert " ".join(f"{figures[name]:.1%}" for name in shares) in printed


def test_a_wrong_result_of_a_pair_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(backends.PIM_BACKENDS, "timed", lambda config, _: TimedPim(config))
    monkeypatch.setattr(networks, "PAIRS", [("alexnet", "fc7", "fc8", "forward")])
    monkeypatch.setattr(measure, "check_bits", lambda *_, **__: 3)
    assert main(["pim", "--backend", "timed", "--pairs", *SMALL]) == 1
    assert "3 results differ" in capsys.readouterr().err


def test_layers_side_by_side_lie_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Job] = []
    really = measure.run_jobs

    def watched(device: Pim, jobs: list[Job], **options: Any) -> measure.Run:
        seen.extend(jobs)
        return really(device, jobs, **options)

    monkeypatch.setattr(measure, "run_jobs", watched)
    layers = [option for name in ("conv2", "fc7", "conv5") for option in ("--layer", name)]
    assert main(["pim", "--quiet", *layers, *SMALL]) == 0
    placed = [job.program.tensors.values() for job in seen]
    ends = [
        (
            min(tensor.address_bytes for tensor in job),
            max(tensor.at(*(extent - 1 for extent in tensor.shape)) + 4 for tensor in job),
        )
        for job in placed
    ]
    assert len(ends) == 3
    assert all(stop <= start for (_, stop), (start, _) in pairwise(ends))


def test_values_depend_on_the_seed() -> None:
    config = PIM_PRESETS["tiny"]
    layer = FullyConnected(samples=2, inputs=8, outputs=4)
    job = Job.of("", "forward", layer, config)
    results = []
    for seed in (1, 2, 1):
        with Pim(backends.open_pim("golden", config)) as device:
            measure.run_jobs(device, [job, job], seed=seed)
            results.append(device.read_tensor(job.program.tensors["y"]).tolist())
    assert results[0] == results[2] != results[1]


def test_a_layer_too_large_for_the_simulated_stack(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "SIMULATED_BANK_BYTES", 1 << 10)
    for inputs, bank_bytes in ((10, 1 << 10), (300, 1 << 14)):
        options = ["--config", "tiny", "--fully-connected", f"2,{inputs},20", "--json"]
        assert main(["pim", *options]) == 0
        assert json.loads(capsys.readouterr().out)["results"]["bank_bytes"] == bank_bytes


def test_a_wrong_result_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoil(device: TimedPim) -> None:
        layer = named_layer("alexnet", "conv1", images=32).scaled(100_000)
        address = lowering.lower(layer, "forward", device.config).tensors["y"].address_bytes
        device.write_memory(address, device.read_memory(address, 1) ^ 1)

    monkeypatch.setitem(
        backends.PIM_BACKENDS, "timed", lambda config, _: TimedPim(config, spoil=spoil)
    )
    assert main(["pim", "--backend", "timed", *SMALL]) == 1
    assert "nearmem: 1 results differ" in capsys.readouterr().err


def test_a_device_that_hangs_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(backends.PIM_BACKENDS, "stuck", lambda config, _: StuckPim(config))
    assert main(["pim", "--backend", "stuck", *OWN, "--quiet"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("nearmem: the device failed: waiting for work 8: nothing has happened")
    assert error.count("\n") == 1


def test_the_seed_changes_every_start_of_a_validation() -> None:
    begun = [set(starts(seed)) for seed in range(301)]
    assert begun[1] == set(range(0, 2400, 300))
    assert all(len(banks) == 8 and not banks & begun[1] for banks in (begun[0], *begun[2:]))


def test_the_seed_changes_a_validation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is compared does not matter here: the model stands for the RTL, too.
    monkeypatch.setattr(rtl, "RtlPim", lambda config, announce: CyclesPim(config, computes=False))

    def cycles(seed: int, *more: str) -> list[int]:
        options = ["--config", "tiny", "--most-products", "20000", "--seed", str(seed), "--json"]
        assert main(["pim", "--validate", "1", *options, *more]) == 0
        report = json.loads(capsys.readouterr().out)["results"]
        return [run["rtl"]["cycles"] for run in report["compared"]]

    assert cycles(1) == cycles(1) != cycles(2)
    assert cycles(1, "--sequences") == cycles(1, "--sequences") != cycles(2, "--sequences")


def test_presets(capsys: pytest.CaptureFixture[str]) -> None:
    for preset, config in PIM_PRESETS.items():
        options = ["--fully-connected", "2,30,20", "--config", preset, "--json"]
        assert main(["pim", *options]) == 0
        figures = json.loads(capsys.readouterr().out)["results"]
        assert (figures["units"], figures["banks"]) == (config.units, config.banks)


def test_a_layer_in_the_cycle_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pim", "--backend", "cycles", *SMALL, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["results"]
    (layer,) = figures["layers"]
    assert figures["wrong_results"] is None
    assert figures["simulated_cycles_per_host_second"] is None
    # Besides the work, 24 writes of its descriptor and the check of that.
    assert 24 * 3 + 72 < figures["cycles_to_seen"] - layer["cycles"] < 500
    assert layer["cycles"] > layer["compute_bound_cycles"]
    assert layer["bytes_read"] >= layer["least_bytes_read"]


@pytest.mark.parametrize("limit", [None, "MOST_ERROR", "MOST_MEDIAN_ERROR"])
def test_the_cycle_model_against_rtl(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], limit: str | None
) -> None:
    if limit is not None:
        monkeypatch.setattr(validation, limit, -1.0)
    status = main(["pim", "--config", "tiny", "--validate", "2", "--json"])
    report = json.loads(capsys.readouterr().out)["results"]
    assert status == (0 if limit is None else 1)
    assert len(report["compared"]) == 2
    for run in report["compared"]:
        assert run["error"] == run["model"]["cycles"] / run["rtl"]["cycles"] - 1
        for name in ("multiplications", "additions"):
            assert run["model"][name] == run["rtl"][name]
        assert run["rtl"]["multiplications"] + run["rtl"]["additions"] > 0
    assert report["largest_error"] == max(abs(run["error"]) for run in report["compared"])
