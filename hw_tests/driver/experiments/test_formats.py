"""Runs in each format on the RTL: what they store, their DRAM commands, and the time that is
predicted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden.dram_map import DramAddressMap
from golden.dram_timing import check_trace
from hw.narrow.formats import MIXTURES, Formats
from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.backends import BackendOptions, module_config
from sw_driver.axdimm.rulejob import RuleJob
from sw_driver.axdimm.runs import RunResult

FORMATS = [
    *MIXTURES.values(),
    Formats(copy="bf16"),
    Formats(parameters="bf16", states="linear", copy="fp32", skip_not_finite=True),
]
COUNTS = [256, 11 * 4096 + 512]
"""A block, and some rounds of which the last is not full."""
SETTINGS = {"channels": 1, "rules": ("adam",)}


@dataclass(frozen=True, kw_only=True)
class Run:
    job: RuleJob
    result: RunResult
    addresses: dict[str, int]
    exact: bool


def runs_on(backend: str, **options: Any) -> list[Run]:
    """Runs of all formats and counts, one after the other, on tensors of their own."""
    simulated = []
    with Axdimm(
        backend, options=BackendOptions(preset="axdimm_narrow", settings=SETTINGS, **options)
    ) as device:
        for formats, count in product(FORMATS, COUNTS):
            job = RuleJob(device, count, formats=formats)
            (result,) = job.step(1)
            (pointers,) = job.tensors
            addresses = {name: pointer.address for name, pointer in pointers.items()}
            simulated.append(
                Run(job=job, result=result, addresses=addresses, exact=job.bit_exact())
            )
    return simulated


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trace") / "commands.csv"


@pytest.fixture(scope="module")
def runs(trace: Path) -> list[Run]:
    return runs_on("rtl", dram_trace=trace)


def test_every_bit_is_the_golden_models(runs: list[Run]) -> None:
    assert all(run.exact for run in runs)


def test_cycles_are_predicted(runs: list[Run]) -> None:
    for rtl, model in zip(runs, runs_on("cycles"), strict=True):
        where = f"{rtl.job.formats}, {rtl.job.parameters} parameters"
        assert model.addresses == rtl.addresses
        activities = [rtl.result.activity, model.result.activity]
        times = [activity.times_tck for activity in activities if activity is not None]
        assert times[0] == times[1], where
        for name in ("fabric_cycles", "idle_fabric_cycles", "beats_read", "beats_written"):
            assert getattr(model.result, name) == getattr(rtl.result, name), where


@pytest.mark.parametrize("gradients", ["fp32", "bf16"])
def test_cycles_of_skipped_runs_are_predicted(gradients: str) -> None:
    formats = Formats(gradients=gradients, states="dynamic", skip_not_finite=True)
    infinity = np.full(2, 0x7F80, np.uint16)
    results_by_backend: dict[str, list[RunResult]] = {"rtl": [], "cycles": []}
    for backend in results_by_backend:
        options = BackendOptions(preset="axdimm_narrow", settings=SETTINGS)
        with Axdimm(backend, options=options) as device:
            for count in COUNTS:
                job = RuleJob(device, count, formats=formats)
                (pointers,) = job.tensors
                device.MemcpyHost2Axdimm(pointers["g"], infinity, infinity.nbytes, backdoor=True)
                results_by_backend[backend] += job.step(1)
    assert all(result.skipped for result in results_by_backend["rtl"])
    assert results_by_backend["rtl"] == results_by_backend["cycles"]


def test_dram_commands_keep_the_standard_and_move_each_tensor_once(
    runs: list[Run], trace: Path
) -> None:
    lines = trace.read_text().splitlines()
    assert check_trace(lines).violations == []
    moved: Counter[tuple[str, ...]] = Counter()
    for line in lines[2:]:
        _, _, command, *place = line.split(",")
        moved[command, *place] += command in ("RD", "WR")
    config = module_config(BackendOptions(preset="axdimm_narrow", settings=SETTINGS))
    geometry = config.part.geometry
    places = DramAddressMap(
        bank_groups=geometry.bank_groups,
        banks_per_group=geometry.banks_per_group,
        rows=geometry.rows,
        columns=geometry.columns,
    )
    wanted: Counter[tuple[str, ...]] = Counter()
    for run in runs:
        formats, rule, count = run.job.formats, run.job.rule, run.job.parameters
        loads = [*formats.loads(rule), *(["g"] if formats.skip_not_finite else [])]
        for command, names in (("RD", loads), ("WR", formats.stores(rule))):
            for name in names:
                nbytes = formats.tensor_bytes(rule, name, count)
                first = run.addresses[name]
                for address in range(first, first + nbytes, 64):
                    wanted[command, *map(str, places.decode(address))] += 1
    assert +moved == wanted
