"""Under each policy odd models train as without it, to the last bit."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install -e '.[torch]'"
)

from torch import nn

from hw_tests.driver.torch.odd_models import (
    MODELS,
    Buckets,
    Dropping,
    Tied,
    batches,
    loss_of,
)  # fmt: skip
from hw_tests.driver.torch.policies import LEAST_BYTES, POLICIES, RULES, Begin
from sw_driver.axdimm import Axdimm
from sw_driver.device.errors import OutOfMemoryError
from sw_driver.memory_node import DeviceNode
from sw_driver.memory_node.backends.golden import GoldenNetwork
from sw_driver.torch import AdamW
from sw_driver.torch.offloading import Offloading
from sw_driver.torch.overlay import MemoryOverlay
from sw_driver.torch.sentinel import Sentinel

on_each = pytest.mark.parametrize("name", POLICIES)


def states(model: nn.Module, optimizer: Any) -> list[Any]:
    state = optimizer.state_dict()["state"]
    found = [*model.state_dict().values()]
    found += [state[key][name] for key in sorted(state) for name in sorted(state[key])]
    return [torch.as_tensor(each).clone() for each in found]


def same(these: list[Any], those: list[Any]) -> bool:
    return len(these) == len(those) and all(map(torch.equal, these, those))


def step(model: nn.Module, optimizer: Any, *batches: Any) -> list[Any]:
    optimizer.zero_grad()
    found = []
    for batch in batches:
        loss = loss_of(model, batch)
        (loss / len(batches)).backward()
        found.append(loss.detach().clone())
    found.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
    optimizer.step()
    return found


def trained(begin: Begin, make: Any, folder: Path, steps: int) -> list[Any]:
    """A loop with what loops have: accumulation, clipping, a schedule, an evaluation."""
    torch.manual_seed(1)
    model, found = make(), []
    with ExitStack() as stack:
        optimizer = begin(stack, model, folder)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        given = batches(2 * steps * (1 + 2 * (make is Buckets)), make)
        for pair in zip(given[::2], given[1::2], strict=True):
            found += step(model, optimizer, *pair)
            schedule.step()
            with torch.no_grad():
                found.append(loss_of(model.eval(), pair[0]).clone())
            model.train()
        found += states(model, optimizer)
    return [*found, *(each.detach().clone() for each in model.parameters())]


@pytest.mark.parametrize("make", MODELS)
@on_each
def test_bits_are_those_of_training_without(name: str, make: Any, tmp_path: Path) -> None:
    steps = 10 if name == "sentinel" else 4  # which tries its plans from the fourth on
    found, wanted = (trained(begin, make, tmp_path, steps) for begin in POLICIES[name])
    assert same(found, wanted)


@on_each
def test_training_goes_on_without_the_policy_and_back(name: str, tmp_path: Path) -> None:
    policy, plain = POLICIES[name]
    found = []
    for begins in (plain, plain, plain), (policy, plain, policy), (plain, policy, policy):
        saved = io.BytesIO()
        for number, begin in enumerate(begins):
            torch.manual_seed(number)
            model = Dropping()
            with ExitStack() as stack:
                optimizer = begin(stack, model, tmp_path)
                if number:
                    content = torch.load(saved)
                    model.load_state_dict(content["model"])
                    optimizer.load_state_dict(content["optimizer"])
                for batch in batches(2, seed=number):
                    step(model, optimizer, batch)
                content = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                saved = io.BytesIO()
                torch.save(content, saved)
                saved.seek(0)
                found.append(states(model, optimizer))
    assert all(same(found[at], found[at % 3]) for at in range(3, 9))


@on_each
def test_two_models_in_a_process(name: str, tmp_path: Path) -> None:
    """Their steps take turns; the first is done before the second."""
    found: list[list[Any]] = []
    for begin in POLICIES[name]:
        torch.manual_seed(1)
        models, results = [Tied(), Dropping()], []
        with ExitStack() as outer:
            inner = outer.enter_context(ExitStack())
            folders = [tmp_path / str(number) for number in range(2)]
            for each in folders:
                each.mkdir(exist_ok=True)
            optimizers = [
                begin(stack, model, folder)
                for stack, model, folder in zip((outer, inner), models, folders, strict=True)
            ]
            for number, batch in enumerate(batches(8)):
                which = number % 2 if number < 6 else 0
                results += step(models[which], optimizers[which], batch)
                if number == 5:
                    results += states(models[1], optimizers[1])
                    inner.close()
            results += states(models[0], optimizers[0])
        found.append(results)
    assert same(*found)


class Failure(Exception):
    pass


@pytest.mark.parametrize("where", ["forward", "backward", "step"])
@on_each
def test_training_goes_on_after_an_exception(name: str, where: str, tmp_path: Path) -> None:
    def fail(*_: Any) -> None:
        raise Failure

    found = []
    for begin in POLICIES[name]:
        torch.manual_seed(1)
        model = Tied()
        with ExitStack() as stack:
            optimizer: Any = begin(stack, model, tmp_path)
            given = batches(5)
            results = step(model, optimizer, given[0])
            for batch in given[1:3]:
                hook: Any = {
                    "forward": model.middle[1].register_forward_hook,
                    "backward": model.middle[1].register_full_backward_hook,
                    "step": optimizer.register_step_pre_hook,
                }[where](fail)
                with pytest.raises(Failure):
                    step(model, optimizer, batch)
                hook.remove()
            for batch in given[3:]:
                results += step(model, optimizer, batch)
            found.append([*results, *states(model, optimizer)])
    assert same(*found)


def refusing(stack: ExitStack, model: nn.Module, name: str) -> Any:
    """Put a model under a policy of little memory; return its optimizer."""
    if name == "overlay":
        network = GoldenNetwork(devices=2, local_bytes=1 << 15, share_bytes=1 << 20)
        overlay = MemoryOverlay(
            model, DeviceNode(network, 0, page_bytes=4096), least_bytes=LEAST_BYTES
        )
        stack.enter_context(overlay)
        return torch.optim.AdamW(model.parameters())
    if name == "offloading":
        device = stack.enter_context(Axdimm("golden:tiny", options=RULES))
        policy = stack.enter_context(Offloading(device, AdamW, budget=60_000))
        return policy.take(model) and policy.optimizer()
    optimizer = torch.optim.AdamW(model.parameters())
    budget = {"sentinel": 40_000, "sentinel of a share": "70%"}[name]
    stack.enter_context(Sentinel(model, optimizer, budget=budget, least_bytes=64))
    return optimizer


@pytest.mark.parametrize("name", ["sentinel", "sentinel of a share", "overlay", "offloading"])
def test_smaller_batches_train_after_one_that_is_refused(name: str) -> None:
    """The first operation of the refused batch is a norm in training, which writes."""
    sizes = {"sentinel of a share": [32, 48, 32, 512, 32, 48, 32]}.get(name, [32, 48, 512, 32, 48])
    values = {size: torch.randn(size, 32) for size in sizes}
    results = []
    for refuses in True, False:
        torch.manual_seed(1)
        norm = nn.BatchNorm1d(32)
        model = nn.Sequential(norm, nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))
        found = []
        with ExitStack() as stack:
            optimizer = refusing(stack, model, name)
            for size in sizes:
                optimizer.zero_grad()
                if size < 512:
                    loss = model(values[size]).square().mean()
                    loss.backward()
                    optimizer.step()
                    found.append(loss.item())
                elif refuses:
                    before = [each.clone() for each in norm.buffers()]
                    with pytest.raises((torch.OutOfMemoryError, OutOfMemoryError)):
                        model(values[size]).square().mean().backward()
                    if name != "overlay":  # which refuses what the norm saves
                        assert same([*norm.buffers()][:2], before[:2])
                    for each, value in zip(norm.buffers(), before, strict=True):
                        each.copy_(value)
        results.append([torch.tensor(found), *map(torch.clone, model.state_dict().values())])
    assert same(*results)


def train_and_save(name: str, folder: Path, steps: int) -> None:
    """Trains with a checkpoint after each step, from the last on: to be killed at any moment."""
    checkpoint = folder / "checkpoint.pt"
    torch.manual_seed(1)
    model, done = Dropping(), 0
    with ExitStack() as stack:
        optimizer = POLICIES[name][0](stack, model, folder)
        if checkpoint.exists():
            content = torch.load(checkpoint)
            model.load_state_dict(content["model"])
            optimizer.load_state_dict(content["optimizer"])
            done = content["step"]
        print(done, flush=True)
        for number in range(done, steps):
            torch.manual_seed(number)
            step(model, optimizer, *batches(1, seed=number))
            content = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**content, "step": number + 1}, folder / "part.pt")
            (folder / "part.pt").replace(checkpoint)
            print(number + 1, flush=True)


@on_each
def test_what_was_killed_goes_on_from_its_checkpoint(name: str, tmp_path: Path) -> None:
    code = f"from {__name__} import *; train_and_save({name!r}, Path({str(tmp_path)!r}), 6)"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "3\n":
            assert process.poll() is None
        process.kill()
    left = {path.name for path in tmp_path.iterdir()} - {"part.pt"}
    assert left == {"checkpoint.pt"} | ({"nvme.img"} if name == "offloading" else set())
    train_and_save(name, tmp_path, 6)
    torch.manual_seed(1)
    model = Dropping()
    with ExitStack() as stack:
        optimizer = POLICIES[name][1](stack, model, tmp_path)
        for number in range(6):
            torch.manual_seed(number)
            step(model, optimizer, *batches(1, seed=number))
        wanted = states(model, optimizer)
    content = torch.load(tmp_path / "checkpoint.pt")
    state = content["optimizer"]["state"]
    found = [*content["model"].values()]
    found += [state[key][name] for key in sorted(state) for name in sorted(state[key])]
    assert same([torch.as_tensor(each) for each in found], wanted)
