"""Two lines train a model in less memory, and the model is whole whatever goes wrong."""

from __future__ import annotations

import copy
import errno
import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install -e '.[torch]'"
)

from torch import nn

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.torch import AdamW
from sw_driver.torch.memferry import MemFerry
from sw_driver.torch.training import train_in

BUDGETS = {"sentinel": "704KiB", "memferry": "130KiB", "offload": "900KiB"}
"""Less than a step of :func:`layers` takes."""
on_each = pytest.mark.parametrize("policy", BUDGETS)


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(128, 128) for _ in range(4)), nn.LayerNorm(128))


def step(model: nn.Module, optimizer: Any, call: Any = None) -> None:
    optimizer.zero_grad()
    (call or model)(torch.ones(160, 128)).square().mean().backward()
    optimizer.step()


def adam(model: nn.Module) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def values(model: nn.Module) -> list[Any]:
    return [each.detach().clone() for each in model.parameters()]


def same(*models: nn.Module) -> bool:
    return all(map(torch.equal, *map(values, models)))


def plain(steps: int, *, module_from: int = 99, to: int = 99) -> nn.Module:
    """A plainly trained model, on the module's arithmetic from one step to another."""
    model = layers()
    optimizer = adam(model)
    for _ in range(min(steps, module_from)):
        step(model, optimizer)
    if module_from < steps:
        state = optimizer.state_dict()
        with AdamW(model.parameters(), lr=1e-2, device="golden") as there:
            there.load_state_dict(state)
            for _ in range(module_from, to):
                step(model, there)
            state = there.state_dict()["state"]
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        for _ in range(to, steps):
            step(model, optimizer)
    return model


@on_each
def test_bits_are_those_of_training_without_also_after_it(policy: str) -> None:
    model = layers()
    optimizer = adam(model)
    step(model, optimizer)  # its state moves, too
    with train_in(model, optimizer, budget=BUDGETS[policy], policy=policy) as made:
        for _ in range(6):
            step(model, optimizer)
        report = made.report()
    assert report["back_bytes"] > 0
    assert report["peak_bytes"] <= report["budget_bytes"]
    for one in model.parameters():
        assert one.untyped_storage().nbytes() == one.nbytes  # memory of its own
    step(model, optimizer)
    model(torch.ones(160, 128)).sum().backward()
    on_module = {"module_from": 1, "to": 7} if policy == "offload" else {}
    assert same(model, plain(8, **on_module))
    assert "__getstate__" not in vars(model)
    assert not model._forward_pre_hooks
    with pytest.raises(InvalidArgumentError, match="is closed: make another"):
        made.__enter__()
    made.close()


@on_each
def test_a_state_that_is_loaded_takes_the_place_of_the_one_before(policy: str) -> None:
    def trained(model: nn.Module, optimizer: Any) -> nn.Module:
        step(model, optimizer)
        state = copy.deepcopy(optimizer.state_dict())
        step(model, optimizer)
        for _ in range(2):
            optimizer.load_state_dict(copy.deepcopy(state))
            step(model, optimizer)
        return model

    model = layers()
    optimizer = adam(model)
    with train_in(model, optimizer, budget=BUDGETS[policy], policy=policy):
        trained(model, optimizer)
    other = layers()
    if policy == "offload":
        with AdamW(other.parameters(), lr=1e-2, device="golden") as there:
            trained(other, there)
    else:
        trained(other, adam(other))
    assert same(model, other)


def test_a_plan_by_rule_copies_the_largest_layers_that_fit() -> None:
    model = nn.Sequential(
        nn.Embedding(64, 32), nn.Linear(32, 64), nn.Linear(64, 128), nn.Linear(128, 8),
        nn.LayerNorm(8),
    )  # fmt: skip
    sizes = {1: 64 * 32 * 4 + 256, 2: 64 * 128 * 4 + 512, 3: 128 * 8 * 4 + 256}
    for budget, copied in ((sizes[2] + sizes[3], {"2", "3"}), (sizes[2] - 1, {"1", "3"}), (0, ())):
        with MemFerry(model, adam(model), budget=budget) as ferry:
            found = ferry.report()["layers"]
        assert {name for name, each in found.items() if each["mode"] == "GFGB"} == {*copied}


@on_each
@pytest.mark.parametrize("way", ["wrapped", "in place", "call"])
def test_what_is_compiled_trains(policy: str, way: str) -> None:
    torch.compiler.reset()
    model = layers()
    optimizer, given, call = adam(model), model, model
    if way == "in place":
        model.compile(backend="eager")
    else:
        call = torch.compile(model, backend="eager")
        given = call if way == "wrapped" else model
    with (
        warnings.catch_warnings(record=True, action="always") as warned,
        train_in(given, optimizer, budget=BUDGETS[policy], policy=policy) as made,
    ):
        for _ in range(4):
            step(model, optimizer, call)
    uncompiled = [one for one in warned if "runs uncompiled" in str(one.message)]
    assert len(uncompiled) == (policy == "sentinel" and way != "call")
    assert made.report()["back_bytes"] > 0
    assert same(model, plain(4, **{"module_from": 0, "to": 4} if policy == "offload" else {}))


def test_an_optimizer_in_a_wrapper() -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer: Any) -> None:
            self.optimizer = optimizer

        param_groups = property(lambda self: self.optimizer.param_groups)

    model = layers()
    optimizer = adam(model)
    with train_in(model, Wrapper(Wrapper(optimizer)), budget="50%") as made:
        for _ in range(4):
            step(model, optimizer)
    assert made.report()["steps"]["profiled"] == 2


@on_each
def test_what_is_refused_leaves_the_model_whole(policy: str, tmp_path: Path) -> None:
    def refused(match: str, given: Any = None, make: Any = adam, **changes: Any) -> None:
        model = given or layers()
        before = [each.data_ptr() for each in model.parameters()]
        arguments = {"policy": policy, "budget": BUDGETS[policy], **changes}
        with pytest.raises(InvalidArgumentError, match=match) as raised:
            train_in(model, make(model), **arguments)
        assert "\n" not in str(raised.value)
        assert before == [each.data_ptr() for each in model.parameters()]
        assert not model._forward_pre_hooks
        if given is None:
            optimizer = adam(model)
            step(model, optimizer)
            assert same(model, plain(1))

    refused("policy is 'sentinal': did you mean sentinel.* expected one of", policy="sentinal")
    refused("budget is '12 pints': expected a number of bytes, ", budget="12 pints")
    refused("0.weight is on meta, without memory: give", given=layers().to("meta"))
    if policy == "sentinel":
        refused(r"budget is 64KiB: .*65536|budget is 63KiB: expected 65536", budget="63KiB")
        refused(f"slow is '{tmp_path}/no/such': No such file", slow=f"{tmp_path}/no/such")
        (tmp_path / "used").touch()
        refused("File exists: expected 'host', a folder, or", slow=tmp_path / "used")
    elif policy == "offload":
        refused(f"slow is '{tmp_path}/no/such': No such file", slow=f"{tmp_path}/no/such")
        lbfgs = lambda model: torch.optim.LBFGS(model.parameters())  # noqa: E731
        refused("optimizer is LBFGS: expected one of torch.optim .*AdamW", make=lbfgs)
    else:
        refused("slow is '/tmp': expected 'host', as memferry's", slow="/tmp")
        plan = {"modes": {str(each): "GFGB" for each in range(5)}, "gradients_on_gpu": []}
        refused("budget is 1KiB, but the plan's copies take 26", budget="1KiB", plan=plan)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step after it is that of plain training with the same values."""
    model, other = layers(), layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    theirs = torch.optim.SGD(other.parameters(), lr=1e-2)
    full, write = False, os.pwrite

    def pwrite(*args: Any) -> int:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(*args)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with train_in(model, optimizer, budget="500KiB", slow=tmp_path):
        step(model, optimizer)
        full = True
        refusal = "No space left on device, so a tensor stays in memory; give slow= a place"
        with pytest.raises((OSError, torch.OutOfMemoryError), match=refusal) as raised:
            step(model, optimizer)
        assert "\n" not in str(raised.value)
        full = False
        optimizer.zero_grad()
        other.load_state_dict(model.state_dict())
        step(model, optimizer)
    step(other, theirs)
    assert same(model, other)


@on_each
def test_a_report_is_a_table_and_the_last_step_a_timeline(policy: str, tmp_path: Path) -> None:
    model = layers()
    optimizer = adam(model)
    with train_in(model, optimizer, budget=BUDGETS[policy], policy=policy) as made:
        for _ in range(4):
            step(model, optimizer)
        before = made.report()["back_bytes"]
        step(model, optimizer)
        report, text = made.report(), str(made)
    assert json.loads(json.dumps(report)) == report
    assert report["peak_bytes"] <= report["budget_bytes"]
    for name in ("budget_bytes", "peak_bytes", "out_bytes", "back_bytes"):
        assert re.search(rf"^{name[:-6]} +{report[name]:,} bytes$", text, re.M)
    assert re.search(rf"^waited +{report['waited_ms']:,} ms$", text, re.M)
    assert f"{report['hits']:,} of {report['hits'] + report['misses']:,} uses" in text
    assert max(map(len, text.splitlines())) <= 80
    written = json.loads(made.timeline(tmp_path / "step.json").read_text())
    slices = [each for each in written["traceEvents"] if each["ph"] == "X"]
    moved = sum(each["args"]["nbytes"] for each in slices if each["cat"] == "back")
    assert moved == report["back_bytes"] - before
    if policy != "offload":
        assert [each["name"] for each in slices[:3]] == ["forward", "backward", "update"]
        begins, ends = slices[0]["ts"], slices[2]["ts"] + slices[2]["dur"]
        assert all(begins <= each["ts"] <= ends for each in slices)
    with pytest.raises(InvalidArgumentError, match="is a folder"):
        made.timeline(tmp_path)
