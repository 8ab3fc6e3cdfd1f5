"""Copies and pickles of a model under each policy are plain models, and the policy goes on."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install -e '.[torch]'"
)

from torch import nn
from torch.optim.swa_utils import AveragedModel

from hw_tests.driver.torch.odd_models import Dropping, batches, loss_of
from hw_tests.driver.torch.policies import POLICIES
from hw_tests.driver.torch.test_policies import on_each, same, states, step


def saved(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    assert b"sw_driver" not in file.getvalue()
    file.seek(0)
    return torch.load(file, weights_only=False)


def pickled(model: Any) -> Any:
    content = pickle.dumps(model)
    assert b"sw_driver" not in content
    return pickle.loads(content)


def by_parts(model: Any) -> Any:
    """Return a new model of deep copies of the parts."""
    made = copy.copy(model)
    made._modules = {name: copy.deepcopy(each) for name, each in model._modules.items()}
    own = {name: copy.deepcopy(each) for name, each in model._parameters.items()}
    made._parameters = own
    return made


WAYS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": pickled,
    "torch.save": saved,
    "AveragedModel": lambda model: AveragedModel(model).module,
    "in a container": lambda model: copy.deepcopy(nn.ModuleList([model]))[0],
    "part by part": by_parts,
}


@pytest.mark.parametrize("way", WAYS)
@on_each
def test_copies_are_plain_and_the_model_goes_on(name: str, way: str, tmp_path: Path) -> None:
    ends, alone = [], []
    for begin, copies in ((POLICIES[name][0], True), (POLICIES[name][1], False)):
        torch.manual_seed(1)
        model = Dropping()
        with ExitStack() as stack:
            optimizer = begin(stack, model, tmp_path)
            for batch in batches(2):
                step(model, optimizer, batch)
            if copies:
                made = WAYS[way](model)
                assert made is not model
                check_plain(made)
                assert same([*made.state_dict().values()], [*model.state_dict().values()])
            else:
                made = Dropping()
                made.load_state_dict(model.state_dict())
            alone.append(trained_alone(made))
            torch.manual_seed(2)
            for batch in batches(3, seed=1):
                step(model, optimizer, batch)
            ends.append(states(model, optimizer))
        if copies:  # and it is of use without the policy, too
            made.load_state_dict(model.state_dict())
            trained_alone(made)
    assert same(*alone)
    assert same(*ends)


@on_each
def test_copies_before_the_backward_pass_are_no_changes(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))
    with ExitStack() as stack:
        optimizer = POLICIES[name][0](stack, model, tmp_path)
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.ones(8, 64)).square().mean()
            for each in model.parameters():
                version = each._version
                assert all((repr(each), each.tolist(), pickle.dumps(each)))
                assert each._version == version
            model.state_dict()
            loss.backward()
            optimizer.step()


def check_plain(model: nn.Module) -> None:
    for module in model.modules():
        own = vars(module)
        assert not {"__getstate__", "zero_grad", "forward"} & own.keys()
        hooks = [value for name, value in own.items() if "_hooks" in name]
        assert len(hooks) > 5
        assert not any(hooks)
    for each in model.parameters():
        assert type(each) is nn.Parameter
        assert not each._backward_hooks
        assert not each._post_accumulate_grad_hooks
        assert each.untyped_storage().nbytes() == each.nbytes


def trained_alone(model: Any) -> list[Any]:
    torch.manual_seed(3)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for batch in batches(3, seed=2):
        losses += step(model.train(), optimizer, batch)
    return [*losses, *(each.detach().clone() for each in model.parameters())]


@on_each
def test_shallow_copies_share_what_they_are_of(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = Dropping().eval()
    with ExitStack() as stack:
        optimizer = POLICIES[name][0](stack, model, tmp_path)
        for batch in batches(2):
            step(model, optimizer, batch)
        with torch.no_grad():
            [batch] = batches(1)
            made = copy.copy(model)
            assert torch.equal(loss_of(made, batch), loss_of(model, batch))
        assert [*map(id, made.parameters())] == [*map(id, model.parameters())]


@pytest.mark.parametrize("name", ["sentinel", "memferry", "overlay"])
def test_copies_of_a_model_with_its_optimizer(name: str, tmp_path: Path) -> None:
    results = []
    for begin in POLICIES[name]:
        torch.manual_seed(1)
        model = Dropping()
        with ExitStack() as stack:
            optimizer = begin(stack, model, tmp_path)
            step(model, optimizer, *batches(1))
            made, updating = copy.deepcopy((model, optimizer))
            torch.manual_seed(2)
            for batch in batches(2):
                step(made, updating, batch)
            results.append(states(made, updating))
            torch.manual_seed(2)
            for batch in batches(2):
                step(model, optimizer, batch)
            results.append(states(model, optimizer))
    assert all(same(results[0], each) for each in results[1:])


def test_a_copy_lies_beside_the_budget(tmp_path: Path) -> None:
    with ExitStack() as stack:
        torch.manual_seed(1)
        model = Dropping()
        nbytes = sum(each.nbytes for each in model.parameters())
        optimizer = POLICIES["offloading"][0](stack, model, tmp_path)
        step(model, optimizer, *batches(1))
        memory = optimizer._platform.memory
        memory.budget_bytes = nbytes
        optimizer._platform._release()
        made = copy.deepcopy(model)
        assert memory.used_bytes <= nbytes
        assert same([*made.state_dict().values()], [*model.state_dict().values()])
        del made


def test_an_offloaded_optimizer_has_no_copy(tmp_path: Path) -> None:
    with ExitStack() as stack:
        optimizer = POLICIES["offloading"][0](stack, Dropping(), tmp_path)
        with pytest.raises(TypeError, match=r"cannot be copied or pickled: save its state_dict"):
            copy.deepcopy(optimizer)
