"""Sentinel for real: what it learns of steps, and that nothing is lost by what goes wrong."""

from __future__ import annotations

import json
import re
import warnings
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install -e '.[torch]'"
)

from torch import nn
from torch.utils.checkpoint import checkpoint

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.system.sentinel.steps import MigrationPlan, StepRecord
from sw_driver.torch.sentinel import _MOST_CALLS, Sentinel, _Kind
from sw_driver.torch.stores import HostStore, Job

pytestmark = pytest.mark.usefixtures("guard")

LEAST_BYTES = 1 << 10


def layers(count: int = 6) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(count)))


def step(model: nn.Module, optimizer: Any, batch: int = 32) -> float:
    optimizer.zero_grad()
    loss = model(torch.ones(batch, 64)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def sentinel(
    model: nn.Module, optimizer: Any, budget: int | str = "50%", **options: Any
) -> Sentinel:
    return Sentinel(model, optimizer, budget=budget, least_bytes=LEAST_BYTES, **options)


def values(model: nn.Module) -> list[Any]:
    return [each.detach().clone() for each in model.state_dict().values()]


def assert_same(these: list[Any], those: list[Any]) -> None:
    assert len(these) == len(those)
    assert all(map(torch.equal, these, those))


def test_plans_are_tried_for_two_steps_each_and_the_fastest_is_kept() -> None:
    plans = [MigrationPlan(name=name, leaving={}, asks={}) for name in "abc"]
    kind = _Kind(StepRecord(), to_try=plans[:])
    for plan, ns in zip(plans, (30, 10, 20), strict=True):
        for each in (5, ns):  # the first begins with what another has left
            assert kind.plan is plan
            kind.tried(each)
    kind.tried(5)
    assert kind.plan is plans[1]


class Prompt(HostStore):
    """Whose copies are over when they have begun, so that nothing is late."""

    def write(self, place: Any, address: int, nbytes: int) -> Job:
        job = super().write(place, address, nbytes)
        job.wait()
        return job

    def read(self, place: Any, address: int, nbytes: int) -> Job:
        job = super().read(place, address, nbytes)
        job.wait()
        return job


@pytest.mark.parametrize("name", ["as there is room", "intervals of 1 layer"])
def test_a_step_by_plan_finds_what_it_needs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = StepRecord.plans

    def only(step: StepRecord, fast_bytes: int, *_: object) -> list[MigrationPlan]:
        # So slow a step leaves intervals of all lengths.
        return [each for each in plans(step, fast_bytes, 1, 1) if each.name == name]

    monkeypatch.setattr(StepRecord, "plans", only)
    monkeypatch.setattr("sw_driver.torch.sentinel.store_at", lambda *_: Prompt())
    model = layers()
    optimizer = torch.optim.AdamW(model.parameters())
    found = []
    with sentinel(model, optimizer) as policy:
        for _ in range(8):
            step(model, optimizer)
            found.append(policy.report())
    # The first has no states yet; the second is profiled with them, the third runs on demand.
    assert found[-1]["steps"] == {"profiled": 2, "on demand": 1, name: 5}
    demand = [after["on_demand"] - before["on_demand"] for before, after in pairwise(found)]
    assert min(demand[:2]) > 0
    assert demand[2:] == [0] * 5
    assert found[-1]["peak_bytes"] <= found[-1]["budget_bytes"]
    assert found[-1]["budget_bytes"] == found[-1]["peak_without_bytes"] // 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU with CUDA")
@pytest.mark.parametrize("slow", ["host", "file"])
def test_bits_are_those_of_training_without_on_a_gpu(slow: str, tmp_path: Path) -> None:
    found = []
    for budget in (None, "50%"):
        model = layers().cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.ones(32, 64, device="cuda")

        def train(model: nn.Module = model, optimizer: Any = optimizer, x: Any = x) -> None:
            for _ in range(8):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()

        if budget is None:
            train()
        else:
            where = tmp_path if slow == "file" else slow
            with sentinel(model, optimizer, budget, slow=where) as policy:
                train()
            report = policy.report()
            assert report["back_bytes"] > 0
            assert report["peak_bytes"] <= report["budget_bytes"]
        found.append(values(model))
    assert_same(*found)


def _raising(*_: object) -> None:
    raise KeyError


def _fails_forward(model: nn.Sequential) -> None:
    with model[3].register_forward_hook(_raising):
        model(torch.ones(32, 64))


def _fails_backward(model: nn.Sequential) -> None:
    loss = model(torch.ones(32, 64)).square()
    loss.register_hook(_raising)
    loss.mean().backward()


def _fails_in_an_operation(model: nn.Sequential) -> None:
    torch.mv(model(torch.ones(32, 64)), torch.ones(3))


@pytest.mark.parametrize("fails", [_fails_forward, _fails_backward, _fails_in_an_operation])
def test_a_step_with_an_exception_is_not_learnt(fails: Any) -> None:
    results = []
    for budget in (None, "60%"):
        model = layers()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        policy = sentinel(model, optimizer, budget) if budget else None
        results.append([step(model, optimizer) for _ in range(2)])
        with pytest.raises((KeyError, RuntimeError)):
            fails(model)
        results[-1] += [step(model, optimizer) for _ in range(8)]
        if policy is not None:
            steps = policy.report()["steps"]
            # What a hook of a tensor raises is not seen: then the step is one of a kind.
            hidden = fails is _fails_backward
            assert (steps["profiled"], steps.get("failed", 0)) == (1 + hidden, 1 - hidden)
            policy.close()
    assert results[0] == results[1]


def test_a_known_step_that_is_dropped_after_its_backward_pass_is_not_learnt() -> None:
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with sentinel(model, optimizer, "60%") as policy:
        for _ in range(4):
            step(model, optimizer)
        for update in False, True, True:  # such as a scaler skips for infinite gradients
            optimizer.zero_grad()
            model(torch.ones(32, 64)).square().mean().backward()
            if update:
                optimizer.step()
        steps = policy.report()["steps"]
    assert (steps["profiled"], steps.get("failed", 0)) == (1, 1)


@pytest.mark.parametrize("fails", [_fails_forward, _fails_in_an_operation])
def test_a_share_is_not_of_what_a_step_had_that_failed(fails: Any) -> None:
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with sentinel(model, optimizer, "90%") as policy:
        for _ in range(3):
            step(model, optimizer, batch=4)
        before = policy.budget_bytes
        with pytest.raises((KeyError, RuntimeError)):
            fails(model)
        assert policy.budget_bytes == before
        step(model, optimizer, batch=4)


def test_steps_of_ten_lengths_have_a_plan_each() -> None:
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    batches = [8 * each for each in range(1, 11)] * 4
    with sentinel(model, optimizer, 150_000) as policy:
        found = [step(model, optimizer, each) for each in batches]
        steps = policy.report()["steps"]
    assert steps["profiled"] == 10
    assert sum(steps.values()) == 40
    again = layers()
    optimizer = torch.optim.SGD(again.parameters(), lr=1e-2)
    assert found == [step(again, optimizer, each) for each in batches]


def test_a_model_that_is_another_in_each_step_trains_on_demand() -> None:
    class Deeper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.count = layers(), 0

        def forward(self, x: Any) -> Any:
            self.count += 1
            for _ in range(self.count):
                x = self.layers(x)
            return x

    results = []
    for budget in (None, "60%"):
        model = Deeper()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        policy = sentinel(model, optimizer, budget) if budget else None
        results.append([step(model, optimizer) for _ in range(5)])
        if policy is not None:
            assert "no step was like one before" in str(policy)
            policy.close()
    assert results[0] == results[1]


class Routed(nn.Module):
    """A trained layer, and two frozen ones that the program chooses, in one operation or two."""

    def __init__(self, at_once: bool) -> None:
        super().__init__()
        self.at_once = at_once
        self.first = nn.Linear(64, 64)
        self.experts = nn.ModuleList(nn.Linear(64, 64).requires_grad_(False) for _ in range(2))
        self.chosen = 0, 0

    def forward(self, inputs: Any) -> Any:
        values = self.first(inputs)
        weights: Any = [self.experts[number].weight for number in self.chosen]
        one, other = weights
        return values @ (one @ other) if self.at_once else values @ one @ other


@pytest.mark.parametrize("at_once", [True, False])
def test_equal_operations_on_other_storages_are_another_step(at_once: bool) -> None:
    found = []
    for budget in ("70%", None):
        torch.manual_seed(1)
        model = Routed(at_once)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        policy = sentinel(model, optimizer, budget) if budget else None
        for number in range(12):
            model.chosen = 0, number // 3 % 2
            step(model, optimizer)
        if policy is not None:
            assert policy.report()["steps"]["profiled"] == 2
            policy.close()
        found.append(values(model))
    assert_same(*found)


def test_too_little_is_said_with_the_least_that_is_enough() -> None:
    def trained(budget: int | None) -> tuple[nn.Module, str]:
        model = layers()
        optimizer = torch.optim.Adam(model.parameters())
        policy = sentinel(model, optimizer, budget) if budget else None
        error = ""
        try:
            for _ in range(6):
                step(model, optimizer)
        except torch.OutOfMemoryError as caught:
            error = str(caught)
        if policy is not None:
            policy.close()
        return model, error

    model, error = trained(20_000)
    once = layers()
    step(once, torch.optim.Adam(once.parameters()))
    assert_same(values(model), values(once))
    found = re.match(r"a step needs (\d+) bytes of fast memory .* is 20000: give that many", error)
    assert found is not None
    least = int(found[1])
    # In Adam's update a matrix of 16 KiB, its state, and what is made.
    assert least == 3 * 64 * 64 * 4
    assert f"needs {least} bytes" in trained(least - 1)[1]
    model, error = trained(least)
    assert not error
    assert_same(values(model), values(trained(None)[0]))


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}])
def test_optimizers_of_all_parameters_at_once(options: dict[str, bool]) -> None:
    results = []
    for budget in (None, "50%"):
        model = layers()
        optimizer = torch.optim.AdamW(model.parameters(), **options)
        policy = sentinel(model, optimizer, budget) if budget else None
        results.append([step(model, optimizer) for _ in range(6)])
        if policy is not None:
            assert policy.statistics.peak_bytes <= policy.budget_bytes
            policy.close()
    assert results[0] == results[1]


def test_state_is_loaded_and_groups_are_added_while_it_trains() -> None:
    results = []
    for budget in (None, "50%"):
        model, more, file = layers(), layers(1), BytesIO()
        whole = nn.Sequential(model, more)
        optimizer = torch.optim.AdamW(model.parameters())
        policy = sentinel(whole, optimizer, budget) if budget else None
        step(whole, optimizer)
        torch.save([whole.state_dict(), optimizer.state_dict()], file)
        optimizer.add_param_group({"params": more.parameters(), "lr": 1e-2})
        losses = [step(whole, optimizer) for _ in range(4)]
        del optimizer.param_groups[1:]
        file.seek(0)
        for each, state in zip((whole, optimizer), torch.load(file), strict=True):
            each.load_state_dict(state)
        results.append(losses + [step(whole, optimizer) for _ in range(4)])
        if policy is not None:
            assert policy.statistics.peak_bytes <= policy.budget_bytes
            policy.close()
    assert results[0] == results[1]


def test_a_state_dict_has_what_tensors_share_once() -> None:
    model = layers()
    model[5].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with sentinel(model, optimizer):
        step(model, optimizer)
        state = model.state_dict()
        step(model, optimizer)
    assert state["0.weight"].data_ptr() == state["5.weight"].data_ptr()
    assert not torch.equal(state["0.weight"], model[0].weight)  # a copy of then


def test_it_reports_prints_and_draws(tmp_path: Path, guard: str) -> None:
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with sentinel(model, optimizer, 100_000, slow=tmp_path) as policy:
        with pytest.raises(ValueError, match="train for one, then plot"):
            policy.plot(tmp_path / "step")
        for _ in range(4):
            step(model, optimizer)
        drawn = policy.plot(tmp_path / "step").read_text("utf-8")
        report = json.loads(json.dumps(policy.report()))
        text = str(policy)
    assert "<svg" in drawn
    assert report["budget_bytes"] == 100_000
    assert report["out_bytes"] == policy.statistics.bytes_out
    assert text.startswith("Sentinel: 4 steps\nbudget        100,000 bytes\n")
    assert text.endswith("\nsteps: 1 profiled, 1 on demand, 2 as there is room")
    # Six matrices of 16 KiB, their gradients, and the gradient of an activation. The guard counts
    # memory inside operations, too: a second one of these.
    inside_bytes = 32 * 64 * 4 * (guard == "compiled")
    assert report["peak_without_bytes"] == 12 * 16384 + 32 * 64 * 4 + inside_bytes


@pytest.mark.parametrize("budget", [0, -1, True, 1.5, "0%", "101%", "x%", "x", None])
def test_budgets_that_are_none(budget: Any) -> None:
    model = layers()
    with pytest.raises(InvalidArgumentError, match=r"expected a number of bytes, a size"):
        Sentinel(model, torch.optim.SGD(model.parameters()), budget=budget)


def test_a_model_of_two_policies() -> None:
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with sentinel(model, optimizer):
        with pytest.raises(InvalidArgumentError, match="another policy"):
            sentinel(model, optimizer)
        step(model, optimizer)
    with sentinel(model, optimizer) as policy:
        step(model, optimizer)
    with pytest.raises(InvalidArgumentError, match="this policy is closed"), policy:
        pass


def test_two_models_whose_steps_overlap() -> None:
    """What is made from nothing in the one's step, outside of its calls, is not its own."""
    results = []
    for budget in (None, "60%"):
        models = [layers(), layers(3)]
        optimizers = [torch.optim.AdamW(each.parameters()) for each in models]
        policies = [
            sentinel(*both, budget) for both in zip(models, optimizers, strict=True) if budget
        ]
        results.append([])
        for _ in range(5):
            losses = [model(torch.ones(32, 64)).square().mean() for model in models]
            for loss, optimizer in zip(losses, optimizers, strict=True):
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                results[-1].append(loss.item())
        for each in policies:
            each.close()
    assert results[0] == results[1]


def test_all_of_what_was_there_at_most_is_enough() -> None:
    """What dies right after the operation that needed most counts, too."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 512), nn.LogSoftmax(-1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with sentinel(model, optimizer, "100%") as policy:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(64, 8))[:, 0].mean().backward()
            optimizer.step()
        report = policy.report()
    assert report["least_budget_bytes"] <= report["budget_bytes"] == report["peak_without_bytes"]


def test_the_least_budget_is_enough() -> None:
    """What an operation takes inside counts, also if it has others leave meanwhile."""
    least = []
    for budget in ("100%", 0):
        convolutions = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        model = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), *convolutions)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        with sentinel(model, optimizer, budget or least[0]) as policy:
            for _ in range(4):
                step(model, optimizer, batch=256)
            least.append(policy.report()["least_budget_bytes"])
    assert least[0] == least[1]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_derivatives_of_functions() -> None:
    results = []
    for budget in (None, "50%"):
        model = layers()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        policy = sentinel(model, optimizer, budget) if budget else None
        x = torch.ones(32, 64)
        for _ in range(4):
            step(model, optimizer)
            slopes = torch.func.grad(
                lambda given: torch.func.functional_call(model, given, x).square().mean()  # noqa: B023
            )({name: each.detach() for name, each in model.named_parameters()})
            results.append(slopes["0.weight"].sum())
            results.append(torch.func.jvp(model, (x,), (x,))[1].sum())
        if policy is not None:
            policy.close()
    assert results[:8] == results[8:]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_model_that_is_checkpointed_as_a_whole(reentrant: bool) -> None:
    results = []
    for budget in (None, "60%"):
        model = layers()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        policy = sentinel(model, optimizer, budget) if budget else None
        for _ in range(5):
            optimizer.zero_grad()
            x = torch.ones(32, 64, requires_grad=True)
            checkpoint(model, x, use_reentrant=reentrant).square().mean().backward()
            optimizer.step()
        if policy is not None:
            policy.close()
            assert "failed" not in policy.report()["steps"]
        results.append(values(model))
    assert_same(*results)


def test_a_model_is_exported_between_steps() -> None:
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with sentinel(model, optimizer) as policy:
        step(model, optimizer)
        exported = torch.export.export(model, (torch.ones(32, 64),)).module()
        with torch.no_grad():
            assert torch.equal(exported(torch.ones(32, 64)), model(torch.ones(32, 64)))
        step(model, optimizer)
        assert policy.report()["steps"] == {"profiled": 1, "on demand": 1}


def test_an_operation_beyond_the_budget_names_the_argument() -> None:
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with sentinel(model, optimizer, 1 << 17):
        step(model, optimizer)
        with pytest.raises(torch.OutOfMemoryError, match=r"; it needs a budget of at least [0-9]+"):
            step(model, optimizer, batch=1 << 10)


def test_an_update_in_place_makes_nothing() -> None:
    model = nn.Embedding(300, 64, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    least = 300 * 64 * 4 + 32 * 64 * 4  # the table, and the gradient of 32 rows
    with sentinel(model, optimizer, least) as policy:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.arange(32)).sum().backward()
            optimizer.step()
        assert policy.report()["least_budget_bytes"] == least


def unseen(kind: str, steps: int, warned: bool = True) -> Sentinel:
    """Train in a way that does not end a step of the policy; it says so, once."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    given, other = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    sentinel = Sentinel(model, given, budget="100%", least_bytes=1 << 10)
    with sentinel, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(steps):
            call = model.forward if kind == "forward" else model
            call(torch.ones(4, 64)).square().mean().backward()
            if kind == "other":
                other.step()
            elif kind == "data":
                for each in model.parameters():
                    each.data.sub_(each.grad, alpha=0.1)
            elif kind != "no step" and (kind != "accumulation" or number % 9 == 8):
                given.step()
            if kind not in ("no step", "accumulation") or number % 9 == 8:
                model.zero_grad()
            run = sentinel._run
            assert run is None or len(run.step.functions) < 60 * _MOST_CALLS
    texts = [str(each.message) for each in caught]
    assert len(texts) == warned
    assert all("Sentinel sees no whole step" in each for each in texts)
    return sentinel


@pytest.mark.parametrize("kind", ["forward", "other", "data"])
def test_steps_that_go_past_it_are_told_and_kept_no_longer(kind: str) -> None:
    unseen(kind, 3 if kind == "forward" else 4)
    sentinel = unseen(kind, 20)
    assert sentinel._run is None or len(sentinel._run.step.functions) < 100
    unseen(kind, 2, warned=False)


def test_calls_without_a_step_fill_no_memory() -> None:
    sentinel = unseen("no step", _MOST_CALLS + 2)
    assert sentinel._run is not None
    assert len(sentinel._run.step.functions) < 600
    seen = unseen("accumulation", 45, warned=False).report()["steps"]
    assert seen == {"profiled": 1, "on demand": 4}
