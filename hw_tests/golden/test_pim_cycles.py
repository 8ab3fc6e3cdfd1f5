"""The PIM's cycle model: plans as the hardware's front makes them, beats of walks against a loop
over every element, tiles, extrapolation, and whole works against RTL."""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from itertools import product
from statistics import fmean

import pytest

from golden.cycles.pim import Pool
from golden.cycles.pim import pool as model
from golden.cycles.pim.form import form_of
from golden.cycles.pim.walks import Image, Walk, pattern_of
from golden.pim import Descriptor, Opcode, Tensor
from hw.pim.config import configure
from hw.pim.vault_timing import vault_part
from hw_tests.pim.front_reference import FrontReference
from hw_tests.pim.front_works import Works
from sw_driver.pim.backends.cycles import pool_cycle_config
from sw_driver.pim.descriptor import Tensor as DriverTensor
from sw_driver.pim.descriptor import Work
from sw_driver.pim.validation import compare_works, draw


@pytest.mark.parametrize("preset", ["tiny", "paper", "pairs"])
def test_plans_are_the_hardwares(preset: str) -> None:
    config = configure(preset)
    cycles = pool_cycle_config(config, vault_part("hmc2"))
    reference, works = FrontReference(config), Works(config, 5)
    sizes = product((1, 3, 7, 13, 32, 33, 800), (1, 3, 7, 13, 32, 33, 800), (8, 100, 1000))
    products = [_matmul(*each, config.units) for each in sizes]
    for work in [*products, *(works.small() for _ in range(60))]:
        fields, form = reference.of(work), form_of(work, cycles)
        plan = asdict(form.plan)
        assert plan == {name: fields[f"work.plan.{name}"] for name in plan}, work
        names = ("outer1", "outer2", "first", "second")
        assert form.extents == tuple(fields[name] for name in names), work


def _beats(walk: Walk, address: int) -> int:
    """Beats that are asked for, element by element: neighbours share one where they may."""
    beats, last = 0, None
    image = walk.image
    taps = walk.tap_rows * walk.tap_columns
    for vector in range(walk.vectors):
        for k in range(walk.length):
            c, rest = divmod(walk.tap + k, taps)
            u, v = divmod(rest, walk.tap_columns)
            first_u, first_v = divmod(walk.tap, walk.tap_columns)
            at = address + vector * walk.vector + c * walk.channel
            at += (u - first_u) * walk.row + (v - first_v) * walk.column
            inside = True
            if image is not None:
                y = image.y + (u - first_u) * image.dilation
                x = image.x + (v - first_v) * image.dilation + vector * image.vector_x
                inside = 0 <= y < image.height and 0 <= x < image.width
            place = (vector, c, u, at // 8) if inside else None
            beats += place is not None and place != last
            last = place
    return beats


def test_a_walk_asks_for_every_beat_once_a_row() -> None:
    rng = random.Random(3)
    for _ in range(300):
        rows, columns = rng.randint(1, 4), rng.randint(1, 12)
        image = None
        if rng.random() < 0.6:
            image = Image(
                y=rng.randint(-2, 3),
                x=rng.randint(-3, 3),
                vector_x=rng.randint(1, 3),
                dilation=1,
                height=rng.randint(1, 6),
                width=rng.randint(1, 12),
            )
        walk = Walk(
            vectors=rng.randint(1, 5),
            vector=rng.randint(20, 60),
            length=rng.randint(1, 2 * rows * columns),
            column=1,
            row=rng.randint(columns + 1, 40),
            channel=500,
            tap_rows=rows,
            tap_columns=columns,
            image=image,
        )
        address = rng.randrange(2000)
        assert pattern_of(walk, address)[0].beats == _beats(walk, address), (walk, address)


def _matmul(rows: int, columns: int, length: int, config_units: int) -> Descriptor:
    return Descriptor(
        opcode=Opcode.MATMUL,
        units=config_units,
        rows=rows,
        columns=columns,
        length=length,
        a=Tensor(address_bytes=0, strides=(length, 1)),
        b=Tensor(address_bytes=1 << 20, strides=(1, length)),
        result=Tensor(address_bytes=1 << 21, strides=(columns, 1)),
    )


def test_what_repeats_is_extrapolated(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure("tiny", bank_bytes=1 << 20)
    cycles = pool_cycle_config(config, vault_part("hmc2"))
    work = _matmul(400, 60, 64, config.units)
    runs = []
    for usual in (10**9, 5000):
        monkeypatch.setattr(model, "USUAL_EVENTS", usual)
        pool = Pool(cycles)
        runs.append(pool.offer(work))
        pool.run()
        assert (pool.skipped > 0) == (usual == 5000)
    whole, extrapolated = runs
    assert extrapolated.cycles == pytest.approx(whole.cycles, rel=0.02)
    assert extrapolated.beats_read == pytest.approx(whole.beats_read, rel=0.02)
    assert sum(each.products for each in whole.banks) == 400 * 60 * 64


def test_an_element_that_repeats_is_read_once_a_tile() -> None:
    config = configure("tiny", bank_bytes=1 << 20)
    pool = Pool(pool_cycle_config(config, vault_part("hmc2")))
    dense, repeated = (
        Tensor(address_bytes=address, strides=strides)
        for address, strides in ((0, (512, 1)), (1 << 20, (8, 0)))
    )
    work = Descriptor(
        opcode=Opcode.ADD,
        units=config.units,
        rows=4,
        columns=512,
        a=dense,
        b=repeated,
        result=replace(dense, address_bytes=1 << 21),
    )
    run = pool.offer(work)
    pool.run()
    assert run.beats_written == 4 * 512 // 8
    assert run.beats_read == 4 * 512 // 8 + sum(each.tiles for each in run.banks)


def test_few_large_tiles_are_followed_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure("tiny", bank_bytes=1 << 20)
    monkeypatch.setattr(model, "USUAL_EVENTS", 2000)
    pool = Pool(pool_cycle_config(config, vault_part("hmc2")))
    run = pool.offer(_matmul(96, 6, 2000, config.units))
    pool.run()
    assert pool.skipped == 0
    assert max(each.tiles for each in run.banks) < 10


def test_works_take_as_long_as_in_rtl() -> None:
    config = configure("tiny")
    comparisons = list(compare_works(config, draw(config, 40, seed=2, most_products=8000)))
    # Where banks compete for a vault, a cycle's difference may grow.
    assert sum(each.model == each.rtl for each in comparisons) >= 36
    assert fmean(abs(each.error) for each in comparisons) < 0.01


def test_rtl_reads_an_element_that_repeats_once_a_tile() -> None:
    config = configure("tiny")
    a, b, result = (
        DriverTensor(address_bytes=address, strides=strides)
        for address, strides in ((0, (128, 1)), (4096, (1, 0)), (8192, (128, 1)))
    )
    work = Work(opcode=Opcode.ADD, units=config.units, rows=2, columns=128, a=a, b=b, result=result)
    (compared,) = compare_works(config, [work])
    assert compared.rtl == compared.model
    assert compared.rtl.bytes_read < 1.5 * compared.rtl.bytes_written
