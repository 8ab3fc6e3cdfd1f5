"""Profiles: by rates, worked by hand, and measured by PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hw_tests.driver.system.sentinel.steps import a_step
from sw_driver.machine.hetero_pim import HETERO_PIM
from sw_driver.system.hetero_pim.profiling import measured, modelled, offered
from sw_driver.system.hetero_pim.ranking import Profiled
from sw_driver.workload.loading import load_workload, with_step
from sw_driver.workload.trace import TraceError, load_trace

TORCH = "PyTorch is not installed: pip install -e '.[torch]'"


def test_times_and_accesses_are_past_the_cache() -> None:
    """Behind 1 KiB, at a byte and a FLOP a ns: the second operation finds what the first made, and
    a fetch goes before each write. What is freed is not written back."""
    machine = HETERO_PIM.override(
        {"cpu.cache_bytes": "1KiB", "cpu.gb_per_s": "1", "cpu.tflop_per_s": "1e-3"}
    )
    sizes = {"p0": 300, "t0": 100, "g0": 65}
    step = a_step(1, (0, "p0 > t0"), (1, "t0 > g0"), sizes=sizes)
    first, second = step.ops
    step = replace(step, ops=(first, replace(second, flops=400)))
    assert modelled(step, machine) == [
        Profiled(operation="MatMul_0", time=300 + 100, accesses=7, kind="MatMul"),
        Profiled(operation="MatMul_1", time=400, accesses=2, kind="MatMul"),
    ]


def test_types_are_offered_whole() -> None:
    rows = [
        Profiled(operation=str(number), time=time, accesses=time, kind=kind)
        for number, (time, kind) in enumerate([(5, "a"), (4, "b"), (4, "b"), (1, "a"), (6, "c")])
    ]
    assert offered(rows, 0.5, types=False) == [0, 4]
    assert offered(rows, 0.4) == [1, 2]
    assert offered(rows, 0.5) == [0, 1, 2, 3]  # a and c have 6
    assert offered([replace(row, kind="") for row in rows], 0.5) == [0, 4]


USERS = """\
import torch
from torch import nn
def net():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(100, 2)
    )
    for each in model.parameters():
        nn.init.constant_(each, 0.01)
    batch = torch.arange(486.0).view(2, 3, 9, 9)
    return model, batch, lambda model, batch: model(batch).square().sum()
def fails():
    def step(model, batch):
        return model(batch if type(batch) is not torch.Tensor else batch.missing).sum()
    return nn.Linear(3, 3), torch.rand(2, 3), step
"""


@pytest.fixture
def users(tmp_path: Path) -> Path:
    (tmp_path / "users.py").write_text(USERS)
    return tmp_path / "users.py"


@pytest.mark.parametrize("rule", ["adam", "sgd", "momentum"])
def test_every_operation_is_measured(rule: str, users: Path) -> None:
    pytest.importorskip("torch", reason=TORCH)
    trace = load_workload(f"{users}:net", rule)
    rows, model = measured(f"{users}:net", trace), modelled(trace)
    assert [replace(profiled, time=1) for profiled in rows] == [
        replace(profiled, time=1) for profiled in model
    ]
    assert all(row.time > 0 for row in rows)
    kinds = [row.kind for row in rows]
    assert [kinds.count(f"Conv2DBackprop{name}") for name in ("Filter", "Input")] == [2, 1]
    assert kinds.count("BiasAddGrad") == 2


def test_measured_steps_are_those_without_marks(users: Path) -> None:
    torch = pytest.importorskip("torch", reason=TORCH)
    from sw_driver.workload.measuring import operation_times

    def trained(build, step):
        made = []

        def built():
            made.append(build())
            return made[0]

        operation_times(built, step, "sgd")
        model, batch = build()
        for _ in range(2):
            model.zero_grad()
            step(model, *batch).backward()
            torch.optim.SGD(model.parameters(), 1e-3).step()
        for ours, plain in zip(made[0][0].parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, plain.grad)
            torch.testing.assert_close(ours, plain)

    with_step(f"{users}:net", trained)


def test_what_cannot_be_measured_is_refused(users: Path) -> None:
    pytest.importorskip("torch", reason=TORCH)
    trace = load_trace("gpt-tiny")
    for function, kind, message in (
        (f"{users}:net", trace, r"has no Gather_0 \(embedding\)"),
        ("mine.json.gz", trace, "the network is 'mine.json.gz'"),
        (f"{users}:fails", load_workload(f"{users}:fails"), "cannot be run: .*missing"),
        ("gpt-tiny", replace(trace, origin={"rule": "rmsprop"}), "whose time is measured is 'rms"),
    ):
        with pytest.raises(TraceError, match=message):
            measured(function, kind)
