"""Training with parameters in a store: the bits of training without one, and what is refused."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import random
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

from torch import nn
from torch.nn import functional

import sw_driver.torch
from hw_tests.driver.conftest import EVERY_RULE
from hw_tests.driver.torch.offloading.models import MODELS, Plain, Shared, Tied, batches, loss_of
from hw_tests.driver.torch.offloading.reference_store import same
from sw_driver.axdimm import Axdimm, BackendOptions
from sw_driver.device.errors import AxdimmError, InvalidArgumentError, OutOfMemoryError
from sw_driver.torch.offloading import DeviceMemory, Offloading
from sw_driver.torch.residency import held_of

CAPACITY_BYTES = 20 << 10
"""Of a channel: as much as the largest tensor with its state, and less than all of a model."""
LARGER_BYTES = {"Shared": 40 << 10, "Checkpointed": 30 << 10}
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("AdamW", {"lr": 0.01}),
    "adam": ("Adam", {"lr": 0.01, "weight_decay": 0.1}),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "maximize": True}),
    "sgd": ("SGD", {"lr": 0.1}),
    "lion": ("Lion", {"lr": 1e-3}),
}


@contextmanager
def offloading(
    folder: Path,
    rule: str = "adamw",
    *,
    backend: str = "golden:tiny",
    opened: BackendOptions | None = None,
    capacity_bytes: int = CAPACITY_BYTES,
    **how: Any,
) -> Iterator[Offloading]:
    kind, options = RULES[rule]
    opened = opened or BackendOptions(settings={"rules": (rule,)})
    file = folder / "nvme.img"
    file.write_bytes(bytes(1 << 20))
    with ExitStack() as stack:
        device = stack.enter_context(Axdimm(backend, options=opened))
        how = {**options, "capacity_bytes": capacity_bytes, "storage": file, **how}
        yield stack.enter_context(Offloading(device, getattr(sw_driver.torch, kind), **how))


def seeded(make: Callable[[], Any]) -> Any:
    torch.manual_seed(7)
    return make()


def plain_of(model: nn.Module, rule: str) -> Plain:
    options = {"maximize": False, **RULES[rule][1]}
    optimizer = torch.optim.SGD(model.parameters())
    for group in optimizer.param_groups:
        group.update({"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, **options})
    if rule == "adamw":
        optimizer.param_groups[0]["weight_decay"] = 1e-2
    if rule == "lion":
        optimizer.param_groups[0]["betas"] = (0.9, 0.99)
    return Plain(optimizer, rule)


def check_same(state: dict[str, Any], plain: nn.Module) -> None:
    for name, wanted in plain.state_dict().items():
        assert same(state[name].detach().clone().numpy(), wanted.detach().numpy()), name


def check_state(platform: Offloading, optimizer: Any, plain: Plain, other: nn.Module) -> None:
    model = platform.model
    assert model is not None
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        for tensor, wanted in plain.state.get(theirs, {}).items():
            found = optimizer.state[mine][optimizer.state_keys[tensor]]
            assert same(found.clone().numpy(), wanted)


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("rule", ["adamw", "momentum"])
def test_steps_are_those_of_training_without_it(make: Any, rule: str, tmp_path: Path) -> None:
    other = seeded(make)
    plain = plain_of(other, rule)
    capacity_bytes = LARGER_BYTES.get(make.__name__, CAPACITY_BYTES)
    with offloading(tmp_path, rule, capacity_bytes=capacity_bytes) as platform:
        model = seeded(lambda: platform.build(make))
        check_same(model.state_dict(), other)
        optimizer = platform.optimizer()
        for number, batch in enumerate(batches(6)):
            losses = []
            for trained in (model, other):
                torch.manual_seed(number)
                losses.append(loss_of(trained, batch))
                losses[-1].backward()
            assert losses[0].item() == losses[1].item()
            optimizer.step()
            plain.step()
            optimizer.zero_grad()
            check_same(model.state_dict(), other)
        check_state(platform, optimizer, plain, other)
        assert platform.store.statistics().evictions > 10


@pytest.mark.parametrize("seed", range(8))
def test_bits_do_not_depend_on_how_it_is_done(seed: int, tmp_path: Path) -> None:
    """Random models, rules, prefetch depths, micro-batches, clipping, rates and evaluation."""
    choice = random.Random(seed)
    make, rule = choice.choice(MODELS), choice.choice(list(RULES))
    micro, clipped = choice.choice([1, 1, 2, 3]), choice.random() < 0.4
    other = seeded(make)
    plain = plain_of(other, rule)
    with offloading(
        tmp_path, rule, prefetch=choice.choice([0, 1, 2, 5, 50]),
        capacity_bytes=choice.choice([40, 60, 100]) << 10,
    ) as platform:  # fmt: skip
        if choice.random() < 0.5:
            model = seeded(lambda: platform.build(make))
        else:
            model = platform.take(seeded(make))
        optimizer = platform.optimizer()
        schedules = [
            torch.optim.lr_scheduler.ExponentialLR(each, 0.8)
            for each in (optimizer, plain.optimizer)
        ]
        given = iter(batches(100, seed))
        for number in range(5):
            for _ in range(micro - (number == 2 and micro > 1)):
                batch = next(given)
                for trained in (model, other):
                    torch.manual_seed(number)
                    (loss_of(trained, batch) / micro).backward()
            if clipped:
                limit = 1e3 if number in (1, 4) else 0.3
                norms = [
                    nn.utils.clip_grad_norm_(each.parameters(), limit) for each in (model, other)
                ]
                assert norms[0].item() == norms[1].item()
            optimizer.step()
            plain.optimizer._opt_called = True
            plain.step()
            for schedule in schedules:
                schedule.step()
            optimizer.zero_grad()
            if choice.random() < 0.5:
                batch = next(given)
                with torch.no_grad():
                    for each in (model, other):
                        each.eval()
                    assert torch.equal(model(batch), other(batch))
                    for each in (model, other):
                        each.train()
        check_same(model.state_dict(), other)
        check_state(platform, optimizer, plain, other)


def test_backends_agree(tmp_path: Path) -> None:
    found = []
    for backend in ("golden", "rtl"):
        how = {"backend": backend, "opened": EVERY_RULE}
        with offloading(tmp_path, "adam", prefetch=3, **how) as platform:
            model = seeded(lambda: platform.build(Tied))
            optimizer = platform.optimizer()
            for batch in batches(3):
                loss_of(model, batch).backward()
                optimizer.clip_grad_norm(0.3)
                optimizer.step()
                optimizer.zero_grad()
            counts = platform.store.statistics()
            found.append((model.state_dict(), optimizer.state_dict(), counts.copied_bytes))
    (one, state, routes), (other, others, same_routes) = found
    assert routes == same_routes
    for name, values in one.items():
        assert torch.equal(values, other[name])
    for number, values in state["state"].items():
        for key, tensor in values.items():
            assert torch.equal(tensor, others["state"][number][key])


def test_losses_are_close_to_pytorchs_own(tmp_path: Path) -> None:
    other = seeded(Tied)
    theirs = torch.optim.AdamW(other.parameters(), lr=0.01)
    with offloading(tmp_path) as platform:
        model = seeded(lambda: platform.build(Tied))
        optimizer = platform.optimizer()
        losses = []
        for batch in batches(3) * 10:
            optimizer.zero_grad()
            theirs.zero_grad()
            both = loss_of(model, batch), loss_of(other, batch)
            for loss in both:
                loss.backward()
            optimizer.step()
            theirs.step()
            losses.append([each.item() for each in both])
    mine, wanted = zip(*losses, strict=True)
    assert np.abs(np.subtract(mine, wanted)).max() < 1e-3
    assert mine[-1] < 0.6 * mine[0]


def test_state_that_pytorch_begins_with_is_the_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"lr": 0.01, "initial_accumulator_value": 0.3, "lr_decay": 0.1}
    monkeypatch.setitem(RULES, "adagrad", ("Adagrad", options))
    other = seeded(Tied)
    theirs = torch.optim.Adagrad(other.parameters(), **options)
    with offloading(tmp_path, "adagrad") as platform:
        model = seeded(lambda: platform.build(Tied))
        mine = platform.optimizer()
        for batch in batches(3):
            for trained, optimizer in ((model, mine), (other, theirs)):
                loss_of(trained, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
        torch.testing.assert_close(dict(model.state_dict()), dict(other.state_dict()))
        torch.testing.assert_close(mine.state_dict()["state"], theirs.state_dict()["state"])


def test_groups_have_their_own_options(tmp_path: Path) -> None:
    other = seeded(Tied)
    plain = plain_of(other, "adamw")
    [group] = plain.optimizer.param_groups
    parameters = group["params"]
    plain.optimizer.param_groups = [
        {**group, "params": parameters[:2], "lr": 0.3},
        {**group, "params": parameters[2:], "weight_decay": 0.5},
    ]
    with offloading(tmp_path) as platform:
        model = seeded(lambda: platform.build(Tied))
        mine = list(model.parameters())
        optimizer = platform.optimizer([{"params": mine[:2], "lr": 0.3}])
        optimizer.add_param_group({"params": mine[2:], "weight_decay": 0.5})
        for batch in batches(3):
            loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            loss_of(other, batch).backward()
            plain.step()
        check_same(model.state_dict(), other)


# When and where.


def test_parameters_are_fetched_ahead_once_the_order_is_known(tmp_path: Path) -> None:
    for ahead in (0, 2):
        with offloading(tmp_path, prefetch=ahead) as platform:
            model = seeded(lambda: platform.build(Tied))
            optimizer = platform.optimizer()
            late = []
            for batch in batches(3):
                counts = platform
                before = counts.fetches - counts.prefetches
                loss_of(model, batch).backward()
                late.append(counts.fetches - counts.prefetches - before)
                optimizer.step()
                optimizer.zero_grad()
            assert late[2] == (0 if ahead else late[0])
            assert late[0] > 0


def test_a_parameter_leaves_as_it_is_made(tmp_path: Path) -> None:
    def many() -> nn.Module:
        return nn.Sequential(*(nn.Linear(24, 24) for _ in range(10)))

    with offloading(tmp_path) as platform:
        model = platform.build(many)
        of_one = 4 * (24 * 24 + 24)
        assert platform.peak_bytes < 2 * of_one + 64
        assert platform.memory.used_bytes == 0
        assert not any(held_of(each).here for each in model.parameters())


def test_a_limit_that_ends_plain_training_is_enough(tmp_path: Path) -> None:
    limit = 30_000

    def many() -> nn.Module:
        return nn.Sequential(*(nn.Linear(24, 24) for _ in range(12)))

    def train(model: nn.Module, optimizer: Any) -> None:
        for _ in range(3):
            model(torch.ones(2, 24)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    def train_plainly() -> None:
        model = many()
        train(model, torch.optim.AdamW(model.parameters()))

    with DeviceMemory() as memory:
        train_plainly()
    assert memory.peak_bytes > 3 * limit
    with DeviceMemory(limit), pytest.raises(torch.OutOfMemoryError) as raised:
        train_plainly()
    said = rf"for (\d+) bytes .*: (\d+) of {limit} bytes are free; it needs .* at least (\d+)"
    found = re.search(said, str(raised.value))
    assert found is not None
    nbytes, free_bytes, least = map(int, found.groups())
    assert least == limit - free_bytes + nbytes
    with offloading(tmp_path, budget=limit, prefetch=50) as platform:
        model = platform.build(many)
        train(model, platform.optimizer())
        assert 0.5 * limit < platform.peak_bytes <= limit
        report = platform.report()
        assert report["budget_bytes"] == limit
        assert report["peak_bytes"] == platform.peak_bytes
        assert report["peak_without_bytes"] > limit
        assert re.search(rf"^fetches +{platform.fetches}$", str(platform), re.MULTILINE)


def test_the_program_may_write_parameters(tmp_path: Path) -> None:
    with offloading(tmp_path) as platform:
        model = seeded(lambda: platform.build(Tied))
        with torch.no_grad():
            for each in model.parameters():
                each.mul_(2).clamp_(-1, 1)
        other = seeded(Tied)
        with torch.no_grad():
            for each in other.parameters():
                each.mul_(2).clamp_(-1, 1)
        check_same(model.state_dict(), other)
        assert torch.equal(model.places.detach().sum(), other.places.detach().sum())


def test_a_state_dict_stays_as_it_was(tmp_path: Path) -> None:
    other = seeded(Tied)
    with offloading(tmp_path) as platform:
        model = seeded(lambda: platform.build(Tied))
        optimizer = platform.optimizer()
        kept = model.state_dict()
        loss_of(model, batches(1)[0]).backward()
        optimizer.step()
        check_same(kept, other)
        assert not torch.equal(kept["places"], model.state_dict()["places"])


def test_models_of_two_platforms_are_made_and_trained_within_both(tmp_path: Path) -> None:
    def trained(model: nn.Module, optimizer: Any) -> dict[str, Any]:
        for batch in batches(2):
            optimizer.zero_grad()
            loss_of(model, batch + 0).backward()
            optimizer.step()
        return model.state_dict()

    folders = [tmp_path / each for each in "ab"]
    with ExitStack() as stack:
        platforms = []
        for folder in folders:
            folder.mkdir()
            platforms.append(stack.enter_context(offloading(folder)))
        models = [seeded(lambda: platforms[0].build(Tied)), seeded(Tied)]
        platforms[1].take(models[1])
        first, second = (
            trained(model, platform.optimizer())
            for model, platform in zip(models, platforms, strict=True)
        )
    assert all(map(torch.equal, first.values(), second.values()))
    with offloading(tmp_path) as platform:
        model = seeded(lambda: platform.build(Tied))
        check_same(trained(model, platform.optimizer()), models[0])


@pytest.mark.parametrize("prefetch", [0, 4])
def test_parameters_are_read_without_an_operation(prefetch: int, tmp_path: Path) -> None:
    """As printing does, whether they are away, on their way or here; nothing moves for it."""
    other = seeded(Tied)
    with offloading(tmp_path, prefetch=prefetch) as platform:
        model = seeded(lambda: platform.build(Tied))
        platform.optimizer()
        fetches, peak = platform.fetches, platform.peak_bytes
        for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
            assert repr(mine) == f"{mine}" == repr(theirs)
            assert mine.tolist() == theirs.tolist()
            assert torch.equal(pickle.loads(pickle.dumps(mine)), theirs)
        assert (platform.fetches, platform.peak_bytes) == (fetches, peak)
        copied = copy.deepcopy(model.places)
        assert repr(copied) == repr(other.places)
        assert torch.equal(pickle.loads(pickle.dumps(copied)), other.places)
        assert same(model.places.requires_grad_(False).numpy(), other.places.detach().numpy())
    assert type(model.places) is nn.Parameter


def test_close_takes_hooks_off_and_gives_parameters_back(tmp_path: Path) -> None:
    with offloading(tmp_path) as platform:
        model = seeded(lambda: platform.build(Tied))
        optimizer = platform.optimizer()
        loss_of(model, batches(1)[0]).backward()
        optimizer.step()
        state = model.state_dict()
        platform.close()
        platform.close()
        check_same(state, model)
        for module in model.modules():
            assert not module._forward_pre_hooks
            assert not module._state_dict_hooks
            assert not module._state_dict_pre_hooks
        fetches = platform.fetches
        loss_of(model, batches(1)[0]).backward()
        assert all(each.grad is not None for each in model.parameters())
        assert platform.fetches == fetches
    assert not nn.modules.module._global_parameter_registration_hooks


def test_a_drive_that_fails_ends_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a backward pass: all say so, and no parameter passes for a good one."""

    def broken(*_: Any) -> int:
        raise OSError(errno.EIO, "the drive is broken")

    with offloading(tmp_path) as platform:
        model = seeded(lambda: platform.build(Tied))
        optimizer = platform.optimizer()
        loss_of(model, batches(1)[0]).backward()
        optimizer.step()
        optimizer.zero_grad()
        platform.save(tmp_path / "checkpoint.pt")

        def step() -> None:
            loss_of(model, batches(1)[0]).backward()
            optimizer.step()

        with monkeypatch.context() as patched:
            patched.setattr(os, "pwritev", broken)
            with pytest.raises(AxdimmError, match="the drive is broken"):
                step()
            for call in (optimizer.step, lambda: model(batches(1)[0])):
                with pytest.raises((RuntimeError, AxdimmError), match="the drive is broken"):
                    call()
    saved = torch.load(tmp_path / "checkpoint.pt")["model"]
    lost = {name for name, values in model.state_dict().items() if values.isnan().all()}
    assert lost
    for name in saved.keys() - lost:
        assert same(model.state_dict()[name].numpy(), saved[name].numpy())


# What is odd, and what is refused.


def layers(kind: str = "") -> nn.Module:
    """Two layers; a parameter of some kinds cannot leave the device."""
    torch.manual_seed(5)
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    if kind == "transposed":
        first.weight = nn.Parameter(first.weight.detach().T)
    elif kind == "part of more memory":
        first.weight = nn.Parameter(torch.randn(3, 8, 8)[1])
    elif kind == "given to NumPy":
        assert first.weight.detach().numpy().shape == (8, 8)
    elif kind == "frozen":
        first.requires_grad_(False)
    model = nn.Sequential(first, second)
    return model.bfloat16() if kind == "of half precision" else model


KINDS = (
    "of half precision", "transposed", "part of more memory", "given to NumPy", "frozen",
)  # fmt: skip


def as_on_the_module(
    platform: Offloading, make: Callable[[], Any], train: Callable[[Any, Any], None]
) -> None:
    """Assert that a model trains as with the module's optimizer alone."""
    plain = make()
    theirs = sw_driver.torch.AdamW(plain.parameters(), lr=0.01, device=platform.device)
    torch.manual_seed(8)
    train(plain, theirs)
    theirs.close()
    for way in (platform.take, platform.build):
        settings = {"budget": 6000, "lr": 0.01, "capacity_bytes": 8 << 10}
        with Offloading(platform.device, sw_driver.torch.AdamW, **settings) as own:
            model = own.build(make) if way == platform.build else own.take(make())
            torch.manual_seed(8)
            train(model, own.optimizer([*model.parameters()]))
            assert all(map(torch.equal, model.parameters(), plain.parameters()))


def steps(model: Any, optimizer: Any, between: Callable[[int], Any] = lambda _: None) -> None:
    for number in range(3):
        optimizer.zero_grad()
        between(number)
        values = torch.ones(2, 8, dtype=[*model.parameters()][-1].dtype)
        model(values).square().sum().backward()
        optimizer.step()


@pytest.mark.filterwarnings("ignore:.*is torch.bfloat16")
@pytest.mark.parametrize("kind", KINDS)
def test_parameters_that_cannot_leave_train_all_the_same(kind: str, tmp_path: Path) -> None:
    with offloading(tmp_path, capacity_bytes=4096) as platform:
        as_on_the_module(platform, lambda: layers(kind), steps)


@pytest.mark.filterwarnings("ignore:.*is torch.float64")
@pytest.mark.parametrize("change", ["data", "to", "numpy", "thawed", "swapped"])
def test_parameters_that_are_changed_by_hand(change: str, tmp_path: Path) -> None:
    def train(model: Any, optimizer: Any) -> None:
        def between(number: int) -> None:
            if number != 1:
                return
            if change == "data":
                model[0].weight.data = torch.ones(8, 8)
            elif change == "to":
                model.double()
            elif change == "numpy":
                model[0].weight.detach().numpy()[0] = 1
            elif change == "swapped":
                torch.utils.swap_tensors(model[0].bias, nn.Parameter(torch.ones(8)))
            else:
                model.requires_grad_(True)

        steps(model, optimizer, between)

    kind = "frozen" if change == "thawed" else ""
    with offloading(tmp_path, capacity_bytes=4096) as platform:
        as_on_the_module(platform, lambda: layers(kind), train)


def test_a_lazy_model_is_taken_before_its_first_call(tmp_path: Path) -> None:
    def train(model: Any, optimizer: Any) -> None:
        steps(model, optimizer)
        wanted.append([*map(torch.clone, model.parameters())])

    wanted: list[Any] = []
    state: Any = None
    with offloading(tmp_path) as platform:
        for model in (
            platform.take(nn.Sequential(nn.LazyLinear(8))),
            nn.Sequential(nn.Linear(8, 8)),
        ):
            model(torch.ones(2, 8))
            if wanted:
                optimizer: Any = sw_driver.torch.AdamW(
                    model.parameters(), lr=0.01, device=platform.device
                )
                model.load_state_dict(state)
            else:
                optimizer = platform.optimizer()
                state = copy.deepcopy(model.state_dict())
            train(model, optimizer)
            platform.close()
    assert all(map(torch.equal, *wanted))


def test_parameters_that_share_memory_are_updated_in_turn(tmp_path: Path) -> None:
    def sharing() -> Any:
        model: Any = layers()
        model[1].weight = nn.Parameter(model[0].weight.detach())
        return model

    plain = sharing()
    steps(plain, torch.optim.AdamW(plain.parameters(), lr=0.01))
    with offloading(tmp_path) as platform:
        model = platform.take(sharing())
        steps(model, platform.optimizer())
        torch.testing.assert_close(dict(model.state_dict()), dict(plain.state_dict()))
        assert torch.equal(model[0].weight, model[1].weight)


def test_iterations_that_take_another_course(tmp_path: Path) -> None:
    """More uses and gradients than before, and another rate before the step."""

    def train(model: Any, optimizer: Any) -> None:
        steps(model, optimizer)
        for number in range(3):
            values = torch.randn(2, 8)
            for _ in range(number + 1):
                model(values).sum().backward()
            model(values)
            optimizer.param_groups[0]["lr"] = 0.5
            optimizer.step()

    with offloading(tmp_path, capacity_bytes=4096) as platform:
        as_on_the_module(platform, layers, train)


def test_groups_with_other_rules_and_parameters(tmp_path: Path) -> None:
    opened = BackendOptions(settings={"rules": ("adam", "amsgrad")})
    found = []
    with offloading(tmp_path, "adam", opened=opened) as platform:
        for offloads in True, False:
            model, beside = layers(), nn.Parameter(torch.ones(8))
            groups = [
                {"params": [*model.parameters()]},
                {"params": [beside], "amsgrad": True},
            ]
            if offloads:
                optimizer: Any = platform.take(model) and platform.optimizer(groups)
            else:
                optimizer = sw_driver.torch.Adam(
                    groups, lr=0.01, weight_decay=0.1, device=platform.device
                )
            for _ in range(3):
                optimizer.zero_grad()
                (model(torch.ones(2, 8)) * beside).square().sum().backward()
                optimizer.step()
            found.append([*model.parameters(), beside])
            if not offloads:
                optimizer.close()
            else:
                platform.close()
        assert all(map(torch.equal, *found))


def test_models_that_cannot_be_offloaded(tmp_path: Path) -> None:
    model = Tied()
    (tmp_path / "other").mkdir()
    with offloading(tmp_path) as one, offloading(tmp_path / "other") as platform:
        with pytest.raises(InvalidArgumentError, match="a tensor is on meta: expected cpu"):
            one.take(nn.Linear(2, 2, device="meta"))
        one.take(model)
        with pytest.raises(InvalidArgumentError, match=r"a tensor is in another policy"):
            platform.take(model)
        with pytest.raises(RuntimeError, match="has a model already"):
            one.take(model)
        with pytest.raises(TypeError, match="Offloading belongs to its module: copy the model"):
            copy.deepcopy(one)


def test_options_that_are_none(tmp_path: Path) -> None:
    def made(kind: Any = sw_driver.torch.AdamW, **options: Any) -> None:
        Offloading(None, kind, **options)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match=r"expected a class of sw_driver\.torch"):
        made(torch.optim.AdamW)
    with pytest.raises(ValueError, match="prefetch is -1: expected"):
        made(prefetch=-1)
    with pytest.raises(ValueError, match="no update rule has it together"):
        made(amsgrad=True)
    with pytest.raises(ValueError, match="a store has everything in FP32"):
        made(sw_driver.torch.AdamW8bit)
    with pytest.raises(ValueError, match="budget is 0: expected a positive number of bytes"):
        made(budget=0)
    with pytest.raises(InvalidArgumentError, match="device is None: expected an opened Axdimm"):
        made()
    with offloading(tmp_path) as platform:
        with pytest.raises(RuntimeError, match="there is no model"):
            platform.optimizer()
        platform.build(Tied)
        with pytest.raises(RuntimeError, match="there is nothing to save or load"):
            platform.save(tmp_path / "checkpoint.pt")
        with pytest.raises(InvalidArgumentError, match=r"needs the rule adam, .* has adamw: open"):
            Offloading(platform.device, sw_driver.torch.Adam)
        platform.optimizer()
        with pytest.raises(RuntimeError, match="there is an optimizer already"):
            platform.optimizer()
    for use in (platform.__enter__, lambda: platform.build(Tied)):
        with pytest.raises(InvalidArgumentError, match="this policy is closed: make another"):
            use()


def test_memories_that_are_too_small(tmp_path: Path) -> None:
    with (
        offloading(tmp_path, capacity_bytes=8 << 10) as platform,
        pytest.raises(OutOfMemoryError, match=r"Embedding\.weight"),
    ):
        platform.build(Tied)
    with (
        offloading(tmp_path, budget=4000) as platform,
        pytest.raises(torch.OutOfMemoryError, match=r"of 4000 .*; it needs .* at least \d{4}"),
    ):
        platform.build(Tied)
    with offloading(tmp_path) as platform:
        model = platform.build(Tied)
        platform.memory.budget_bytes = 4500
        with pytest.raises(torch.OutOfMemoryError, match=r"on the device, for table\.weight"):
            model.table(torch.zeros(1, dtype=torch.int64))
        platform.memory.budget_bytes = None
        found = model.table(torch.zeros(1, dtype=torch.int64))
        assert torch.equal(found[0], model.state_dict()["table.weight"][0])


def test_gradients_that_are_sparse(tmp_path: Path) -> None:
    with offloading(tmp_path) as platform:
        model = platform.build(lambda: nn.Embedding(20, 4, sparse=True))
        optimizer = platform.optimizer()
        model(torch.tensor([1, 2])).sum().backward()
        with pytest.raises(TypeError, match=r"of weight .*torch.sparse_coo: expected a dense one"):
            optimizer.step()


def test_gradients_that_are_dropped(tmp_path: Path) -> None:
    other = seeded(Shared)
    plain = plain_of(other, "adamw")
    with offloading(tmp_path, capacity_bytes=40 << 10) as platform:
        model = seeded(lambda: platform.build(Shared))
        optimizer = platform.optimizer()
        for number, batch in enumerate(batches(4)):
            loss_of(model, batch).backward()
            loss_of(other, batch).backward()
            if number % 2:
                optimizer.zero_grad()
                plain.optimizer.zero_grad()
            else:
                optimizer.step()
                optimizer.zero_grad()
                plain.step()
        check_same(model.state_dict(), other)


def test_the_models_zero_grad_drops_gradients(tmp_path: Path) -> None:
    def dropped(model: nn.Module) -> nn.Module:
        loss_of(model, batches(1, seed=5)[0]).backward()
        model.zero_grad()
        loss_of(model, batches(1)[0]).backward()
        return model

    plain = dropped(seeded(Tied))
    plain_of(plain, "sgd").step()
    with offloading(tmp_path, "sgd") as platform:
        model = platform.build(seeded, Tied)
        optimizer = platform.optimizer()
        dropped(model)
        optimizer.step()
        check_same(model.state_dict(), plain)


def test_a_graph_from_before_a_step_is_stale(tmp_path: Path) -> None:
    with offloading(tmp_path, "sgd") as platform:
        model = platform.build(seeded, Tied)
        optimizer = platform.optimizer()
        first, second = (loss_of(model, batch) for batch in batches(2))
        first.backward()
        optimizer.step()
        optimizer.zero_grad()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            second.backward()


def test_what_an_offloaded_optimizer_lacks(tmp_path: Path) -> None:
    with offloading(tmp_path) as platform:
        model = platform.build(lambda: nn.Linear(4, 4))
        optimizer = platform.optimizer()
        with pytest.raises(TypeError, match="no step_async"):
            optimizer.step_async()
        with pytest.raises(TypeError, match="no inspect"):
            optimizer.inspect(model.weight, "m")


def test_another_thread(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with offloading(tmp_path) as platform, ThreadPoolExecutor(1) as pool:
        model = platform.build(lambda: nn.Linear(4, 4))
        with pytest.raises(InvalidArgumentError, match="belongs to another thread"):
            pool.submit(model, torch.ones(4)).result()


def test_memory_counts_what_lives() -> None:
    outside = torch.ones(1000)
    with DeviceMemory() as memory:
        view = outside[:10]
        assert memory.used_bytes == 0
        made = view + 1
        other = made.view(2, 5)
        assert memory.used_bytes == 40
        del made
        assert memory.used_bytes == 40
        del other
        assert memory.used_bytes == 0
        parts = functional.dropout(outside, 0.5).chunk(2)
        assert memory.used_bytes == 4000
        del parts
    assert memory.used_bytes == 0
    assert memory.peak_bytes >= 4000


def test_close_brings_back_more_than_the_budget(tmp_path: Path) -> None:
    make = lambda: nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))  # noqa: E731
    with offloading(tmp_path, budget=60_000, capacity_bytes=80_000) as platform:
        model = platform.build(make)
        model(torch.ones(2, 64)).sum().backward()
        optimizer = platform.optimizer()
        optimizer.step()
    assert platform.peak_bytes <= 60_000
    assert all(held_of(each) is None and each.grad.any() for each in model.parameters())
    assert all(each["exp_avg"].any() for each in optimizer.state.values())
