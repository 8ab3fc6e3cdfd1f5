"""Passes of the PIM with long sums in the cycle model: extrapolated against followed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from golden.cycles.pim import pool as model
from golden.cycles.pim.form import form_of
from golden.pim import Descriptor
from hw.pim.config import configure
from sw_driver.cli import main
from sw_driver.pim.backends.cycles import CyclesPim
from sw_driver.pim.device import Pim
from sw_driver.pim.layers import Convolution, FullyConnected, Layer
from sw_driver.pim.measure import Job, Run, run_jobs
from sw_driver.pim.planning import planned

CONFIG = configure("tiny", bank_bytes=1 << 20, buffer_bytes=65536)

FILTERS = Convolution(
    images=48, channels=4, height=9, width=9, filters=8, filter_height=3, filter_width=3, padding=1
)
LARGE_IMAGE = replace(FILTERS, images=1, height=112, width=112)
DENSE = FullyConnected(samples=32, inputs=8000, outputs=4)
UNEQUAL = Convolution(
    images=1,
    channels=2,
    height=5,
    width=5,
    filters=2000,
    filter_height=3,
    filter_width=3,
    stride=2,
    padding=1,
)
SUMS = {"images": (FILTERS, "backward-filter"), "taps": (LARGE_IMAGE, "backward-filter")} | {
    "inputs": (DENSE, "forward"),
    "works": (UNEQUAL, "backward-input"),
}


def job_of(layer: Layer, name: str) -> Job:
    return Job.of("layer", name, layer, CONFIG)


def run_of(job: Job) -> tuple[Run, int]:
    """The run, and how many of its cycles were extrapolated."""
    with Pim(CyclesPim(CONFIG, computes=False)) as device:
        run = run_jobs(device, [job], inputs=False)
        assert isinstance(device.transport, CyclesPim)
        return run, device.transport.extrapolated_cycles


@pytest.mark.parametrize("kind", SUMS)
def test_costs_are_those_of_the_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(*SUMS[kind])
    monkeypatch.setattr(model, "USUAL_EVENTS", 10**9)
    expected, none = run_of(job)
    assert none == 0
    monkeypatch.setattr(model, "USUAL_EVENTS", 2000)
    run, extrapolated = run_of(job)
    assert extrapolated > run.ends[0] // 10
    # Works beside each other get in each other's way more or less, as they meet; such that
    # take about as long may end in another order, and leave other banks to those that follow.
    off = 0.03 if len(job.program.works) > 1 else 0.02
    assert run.ends == pytest.approx(expected.ends, rel=off)
    ones, others = (
        sorted(each.records, key=lambda record: record.work) for each in (run, expected)
    )
    cycles = [sum(each.cycles or 0 for each in records) for records in (ones, others)]
    assert cycles[0] == pytest.approx(cycles[1], rel=off)
    for one, other in zip(ones, others, strict=True):
        assert (one.work, one.multiplications) == (other.work, other.multiplications)
        assert len(one.banks) == len(other.banks)
        assert one.bytes_read == pytest.approx(other.bytes_read, rel=0.02)
        assert one.bytes_written == pytest.approx(other.bytes_written, rel=0.02)


@pytest.mark.parametrize("kind", SUMS)
def test_chunks_cover_a_tile(kind: str) -> None:
    for work in job_of(*SUMS[kind]).program.works:
        form = form_of(Descriptor.decode(planned(work, CONFIG).encode_bytes()))
        chunks = [form.chunk(number) for number in range(form.chunks)]
        at = [(each.channel, each.tap) for each in chunks]
        assert at == sorted(set(at))
        assert sum(each.length for each in chunks) == form.channels * form.taps
        assert [each.complete for each in chunks] == [False] * (len(at) - 1) + [True]
        # What repeats begins with a channel.
        assert form.period == 1 or all(not each.tap for each in chunks[:: form.period])


def test_the_command_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "USUAL_EVENTS", 2000)
    options = ["pim", "--backend", "cycles", "--fully-connected", "8,20000,8"]
    assert main([*options, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert 0 < figures["extrapolated_cycles"] < figures["cycles"]
    (layer,) = figures["layers"]
    assert layer["multiplications"] == 8 * 20000 * 8
    assert main(options) == 0
    assert "are extrapolated from" in " ".join(capsys.readouterr().out.split())
    assert main([*options[:-1], "8,30,8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["extrapolated_cycles"] == 0
