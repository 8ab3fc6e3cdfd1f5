"""Passes of the PIM with shortened sums in the cycle model, against all of them."""

from __future__ import annotations

import json
from dataclasses import replace
from math import ceil

import pytest

from golden.pim import Descriptor
from hw.pim.config import configure
from sw_driver.cli import main
from sw_driver.experiments.pim import shortening
from sw_driver.experiments.pim.measure import Job, Run, run_jobs
from sw_driver.pim.backends.cycles import CyclesPim
from sw_driver.pim.descriptor import Work
from sw_driver.pim.device import Pim
from sw_driver.pim.layers import Convolution, FullyConnected, Layer
from sw_driver.pim.planning import planned
from sw_driver.predict.pim.form import Form, form_of

CONFIG = configure("tiny", bank_bytes=1 << 20, buffer_bytes=65536)

FILTERS = Convolution(
    images=16, channels=4, height=9, width=9, filters=40, filter_height=3, filter_width=3, padding=1
)
LARGE_IMAGE = replace(FILTERS, images=1, height=32, width=32)
DENSE = FullyConnected(samples=32, inputs=1600, outputs=12)
UNEQUAL = Convolution(
    images=1,
    channels=8,
    height=5,
    width=5,
    filters=400,
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


def form_of_work(work: Work) -> Form:
    return form_of(Descriptor.decode(planned(work, CONFIG).encode_bytes()))


def whole(job: Job) -> Run:
    with Pim(CyclesPim(CONFIG, computes=False)) as device:
        return run_jobs(device, [job], inputs=False)


@pytest.mark.parametrize("kind", SUMS)
def test_costs_are_those_of_the_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(*SUMS[kind])
    expected = whole(job)
    form = max(map(form_of_work, job.program.works), key=lambda shape: shape.tile_cycles)
    monkeypatch.setattr(shortening, "TILE_CYCLES", form.tile_cycles // 6)
    done = []
    run = shortening.run_shortened(CONFIG, job, completed=lambda: done.append(1))
    assert run.shortened
    assert not expected.shortened
    longer = CyclesPim(CONFIG, computes=False, shortened=(form.tile_cycles // 6, 3))
    assert any(longer.products(work) < work.operations[0] for work in job.program.works)
    # Works beside each other get in each other's way more or less, as they meet; such that
    # take about as long may end in another order, and leave other banks to those that follow.
    off = 0.03 if len(job.program.works) > 1 else 0.02
    assert run.ends == pytest.approx(expected.ends, rel=off)
    assert len(done) == 2 * len(job.program.works)
    ones, others = (
        sorted(outcome.records, key=lambda record: record.work) for outcome in (run, expected)
    )
    cycles = [sum(run_record.cycles or 0 for run_record in records) for records in (ones, others)]
    assert cycles[0] == pytest.approx(cycles[1], rel=off)
    for one, other in zip(ones, others, strict=True):
        assert (one.work, one.multiplications) == (other.work, other.multiplications)
        assert len(one.banks) == len(other.banks)
        assert one.bytes_read == pytest.approx(other.bytes_read, rel=0.02)
        assert one.bytes_written == pytest.approx(other.bytes_written, rel=0.02)


@pytest.mark.parametrize("kind", SUMS)
def test_chunks_cover_a_tile(kind: str) -> None:
    for work in job_of(*SUMS[kind]).program.works:
        form = form_of_work(work)
        at = [(chunk.channel, chunk.tap) for chunk in form.followed_chunks()]
        assert at == sorted(set(at))
        assert sum(chunk.length for chunk in form.followed_chunks()) == form.products
        assert form.products == form.channels * form.taps
        assert [chunk.complete for chunk in form.followed_chunks()] == [False] * (len(at) - 1) + [1]
        for short in (
            form.shortened(1),
            form.shortened(form.tile_cycles // 6, 3),
            form.shortened(form.tile_cycles // 2),
        ):
            followed = list(short.followed_chunks())
            assert len(followed) == (short.followed or form.chunks)
            assert len(followed) < form.chunks or form.chunks <= 12
            assert {*followed} <= {*form.followed_chunks()}
            assert followed[-1].complete
            assert short.products == sum(chunk.length for chunk in followed)
            # Of channels of few chunks whole ones.
            if form.channels > 4 and ceil(form.taps / (1 << form.plan.chunk)) <= 4:
                assert short.products % form.taps == 0
        assert form.shortened(2 * form.tile_cycles) is form


def test_the_command_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shortening, "LONG_CYCLES", 500)
    monkeypatch.setattr(shortening, "TILE_CYCLES", 500)
    options = ["pim", "--backend", "cycles", "--fully-connected", "8,20000,8"]
    assert main([*options, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["results"]
    assert figures["shortened"]
    (layer,) = figures["layers"]
    assert layer["multiplications"] == 8 * 20000 * 8
    assert main(options) == 0
    assert "costs are extrapolated" in " ".join(capsys.readouterr().out.split())
    assert main([*options[:-1], "8,30,8", "--json"]) == 0
    assert not json.loads(capsys.readouterr().out)["results"]["shortened"]
