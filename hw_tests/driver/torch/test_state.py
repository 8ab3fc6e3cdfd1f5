"""State that programs move between parameters, parameters and groups that they change by hand."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

from torch.nn import Parameter

from hw_tests.driver.torch.side_by_side import CASES
from hw_tests.driver.torch.test_optimizer import bits, close, set_gradients
from sw_driver.axdimm import Axdimm
from sw_driver.torch import SGD, Adam

Change = Callable[[Any, list[Any]], None]
"""What a program does between steps to an optimizer and the first group's parameters."""


def put(optimizer: Any, given: list[Any], index: int, values: Any, state: Any) -> None:
    """Has another parameter in the place of one, with this state."""
    given[index] = Parameter(values)
    optimizer.param_groups[0]["params"][index] = given[index]
    optimizer.state[given[index]] = state


def each(state: Any, change: Callable[[Any], Any]) -> Any:
    """A state with its tensors changed, but the number of steps."""
    return {key: value if key == "step" else change(value) for key, value in state.items()}


def moved(optimizer: Any, given: list[Any]) -> None:
    put(optimizer, given, 0, given[0].detach().clone(), optimizer.state.pop(given[0]))


def grown(optimizer: Any, given: list[Any]) -> None:
    def more(values: Any) -> Any:
        return torch.cat([values, values[:2] + 0.25])

    for index in (0, 1, 2):
        state = each(optimizer.state.pop(given[index]), more)
        put(optimizer, given, index, more(given[index].detach()), state)


def pruned(optimizer: Any, given: list[Any]) -> None:
    state = optimizer.state.pop(given[1])
    for key in set(state) - {"step"}:
        state[key] = state[key][::2]
    put(optimizer, given, 1, given[1].detach()[::2].clone(), state)


def swapped(optimizer: Any, given: list[Any]) -> None:
    one, other = given[0], given[2]
    optimizer.state[one], optimizer.state[other] = optimizer.state[other], optimizer.state[one]


def deleted(optimizer: Any, given: list[Any]) -> None:
    del optimizer.state[given[2]]


def copied(optimizer: Any, given: list[Any]) -> None:
    for index, how in enumerate(
        (copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s)))
    ):
        state = optimizer.state.pop(given[index])
        put(optimizer, given, index, given[index].detach().clone(), how(state))
        state.clear()


def resized(optimizer: Any, given: list[Any]) -> None:
    given[1].data = torch.cat([given[1].data, torch.ones(7)])
    state = optimizer.state[given[1]]
    for key in set(state) - {"step"}:
        state[key] = torch.cat([state[key], torch.ones(7)])


def left_out(optimizer: Any, given: list[Any]) -> None:
    """The parameter comes back, with its state, after a step without it."""
    group = optimizer.param_groups[0]["params"]
    if len(group) == 4:
        del group[2]
    else:
        group.insert(2, given[2])


def held(optimizer: Any, given: list[Any]) -> None:
    """A state that the program keeps through a step goes to another parameter then."""
    if (state := optimizer.__dict__.pop("held", None)) is None:
        optimizer.__dict__["held"] = optimizer.state.pop(given[0])
    else:
        del optimizer.state[given[2]]
        put(optimizer, given, 2, given[2].detach().clone(), state)


def trained(optimizer: Any, given: list[Any], change: Change, between: Any = None) -> list[Any]:
    """Steps with changes between; ``between`` them another optimizer goes on from its state."""
    for step in range(5):
        if step in (2, 3):
            change(optimizer, given)
            if between is not None:
                optimizer = between(optimizer)
        set_gradients(given, step)
        if step == 2:
            given[1].grad = None
        optimizer.step()
    tensors = optimizer.state_dict()["state"]
    return [*given, *(tensors[index][key] for index in sorted(tensors) for key in tensors[index])]


def parameters() -> list[Any]:
    torch.manual_seed(3)
    return [Parameter(torch.randn(shape)) for shape in ((9, 3), (40,), (9, 3), (2, 2))]


CHANGES = [moved, grown, pruned, swapped, deleted, copied, resized, left_out, held]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("rule", ["amsgrad", "momentum"])
def test_state_is_that_of_its_parameter(golden: Axdimm, rule: str, change: Change) -> None:
    name, options = CASES[rule]
    kind = getattr(sys.modules["sw_driver.torch"], name)
    gc.collect()
    before = [golden.memory(channel).allocated_bytes for channel in range(2)]

    def begun_again(optimizer: Any) -> Any:
        again = kind(optimizer.param_groups, device=golden, **options)
        again.load_state_dict(optimizer.state_dict())
        return again

    found, given = [], []
    for between in (begun_again, None) if change not in (held, left_out) else (None,):
        given = parameters()
        found.append(bits(trained(kind(given, device=golden, **options), given, change, between)))
    assert found[0] == found[-1]
    theirs = parameters()
    trained(getattr(torch.optim, name)(theirs, **options), theirs, change)
    close(given, theirs)
    gc.collect()  # optimizers that were not closed free their memory, too
    assert [golden.memory(channel).allocated_bytes for channel in range(2)] == before


def test_state_that_is_moved_beside_a_step_has_the_step(golden: Axdimm) -> None:
    found = []
    for beside in (False, True):
        given = parameters()
        with Adam(given, device=golden) as optimizer:
            for step in range(3):
                set_gradients(given, step)
                handle = optimizer.step_async()
                if not beside:
                    handle.wait()
                if step == 1:
                    state = optimizer.state.pop(given[0])
                    handle.wait()
                    put(optimizer, given, 0, given[0].detach().clone(), state)
            tensors = optimizer.state_dict()["state"][0]
            found.append(bits([*given, *(tensors[key] for key in sorted(tensors))]))
            assert tensors["step"] == 3
    assert found[0] == found[1]


def test_state_may_be_of_another_optimizer(golden: Axdimm) -> None:
    """As in PyTorch, two have one state of a parameter then."""

    def train(kind: Any, given: list[Any], **how: Any) -> None:
        one, other = kind(given[:2], lr=0.1, **how), kind(given[:2], lr=0.3, **how)
        for step, optimizer in enumerate((one, other, other, one, other)):
            set_gradients(given, step)
            # The next step has to wait for one that is under way.
            (optimizer.step_async if how and step in (2, 3) else optimizer.step)()
            if step == 0:
                other.state.update(one.state)
        assert one.state[given[0]]["step"] == 5

    given, theirs = parameters(), parameters()
    train(Adam, given, device=golden)
    train(torch.optim.Adam, theirs)
    close(given, theirs)


def test_a_state_is_of_one_parameter_in_a_step(golden: Axdimm) -> None:
    given, theirs = parameters(), parameters()
    with Adam(given, device=golden) as optimizer:
        both = (given, optimizer), (theirs, torch.optim.Adam(theirs))
        for own, of_own in both:
            set_gradients(own, 0)
            of_own.step()
            of_own.state[own[2]] = of_own.state[own[0]]
        before = bits(given)
        for step in (optimizer.step, optimizer.step_async, lambda: optimizer.clip_grad_norm(1.0)):
            with pytest.raises(ValueError, match=r"state of parameter 2 .* of parameter 0 .* too"):
                step()
        assert bits(given) == before
        for index in (0, 2, 0):
            for own, of_own in both:
                set_gradients(own, 7)
                own[index].grad = None
                of_own.step()
    close(given, theirs)


def test_negative_views_are_taken(golden: Axdimm) -> None:
    whole = torch.complex(torch.ones(5), torch.arange(5.0))
    given, gradient = Parameter(whole.conj().imag), whole.conj().imag
    assert given.is_neg()
    assert gradient.is_neg()
    with SGD([given], lr=0.5, device=golden) as optimizer:
        for _ in range(2):
            given.grad = gradient.clone() if given.grad is None else torch._neg_view(torch.ones(5))
            optimizer.step()
    assert whole.imag.tolist() == [-0.5, 0.0, 0.5, 1.0, 1.5]


@pytest.mark.parametrize("share", [1, 2, 3])
def test_memory_of_what_is_gone_is_freed(share: int) -> None:
    """Three parameters fill the module; ``share`` of them are replaced before each step."""
    given = [Parameter(torch.ones(12_000 + each)) for each in range(3)]
    with Adam(given, device="golden:tiny") as optimizer:
        device = optimizer.device
        used = []
        for step in range(30):
            for index in range(share if step else 0):
                state = optimizer.state.pop(given[index], {})
                put(optimizer, given, index, given[index].detach().clone(), state)
            set_gradients(given[: 3 if step % 2 else 2], step)
            optimizer.step()
            used.append(sum(device.memory(channel).allocated_bytes for channel in range(2)))
        assert max(used) <= 4 * (4 * 36_003 + 6 * 1024)
        assert optimizer.state[given[0]]["step"] == 30


def test_memory_of_a_step_that_is_given_up_is_freed() -> None:
    """An optimizer may be gone, as after Ctrl-C, while its step is under way."""
    with Axdimm("cycles") as device:
        used = []
        for _ in range(4):
            optimizer = Adam([Parameter(torch.ones(4000))], device=device)
            for beside in (False, True):
                set_gradients(optimizer.param_groups[0]["params"], 1)
                handle = optimizer.step_async()
                if not beside:
                    handle.wait()
            del optimizer, handle
            gc.collect()
            used.append(device.memory(0).allocated_bytes)
        assert used[1:] == used[:1] * 3


def ones(*shape: int, **how: Any) -> Any:
    return Parameter(torch.ones(shape, **how))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda group, _: [group.pop("lr"), group.pop("betas")], "group 1 lacks betas, lr: add it"),
        (lambda group, _: group.pop("params"), "group 1 lacks params: add it"),
        (lambda group, _: group.update(params=ones(2)), "group 1 has no list of parameters"),
        (lambda group, _: group.update(fused=True), "fused is True"),
        (lambda group, _: group.update(lr=-1.0), "lr is -1"),
        (lambda group, _: group.update(amsgrad=True), "needs the rule amsgrad"),
        (lambda group, _: group.update(params=[2 * ones(2)]), "parameter 0 of group 1 is a Tensor"),
        (lambda group, _: group["params"].append("p"), "parameter 1 of group 1 is a str"),
        (lambda group, given: group["params"].append(given), "0 of group 0 and .* 1 of group 1"),
        (
            lambda group, given: group["params"].append(given[1:]),
            "0 of group 0 and .* 1 of group 1",
        ),
        (lambda group, _: group["params"].append(ones(1, dtype=torch.complex64)), "complex64"),
        (
            lambda group, _: group["params"].append(torch.ones(1).expand(2).requires_grad_()),
            "1 of group 1 share memory",
        ),
    ],
)
def test_groups_put_in_by_hand_are_checked(change: Any, words: str) -> None:
    given, other = ones(3), ones(2)
    with Adam([given], device="golden:tiny") as optimizer:
        set_gradients([given, other], 0)
        optimizer.step()
        before = bits([given]), repr(optimizer.state_dict())
        group = {**optimizer.param_groups[0], "params": [other]}
        change(group, given.detach())
        optimizer.param_groups.append(group)
        with pytest.raises((TypeError, ValueError), match=words):
            optimizer.step()
        del optimizer.param_groups[1]
        assert (bits([given]), repr(optimizer.state_dict())) == before
        optimizer.param_groups.append({**optimizer.param_groups[0], "params": [other], "lr": 1.0})
        set_gradients([given, other], 1)
        optimizer.step()
    for each, lr, steps in ((given, 1e-3, 2), (other, 1.0, 1)):
        alone = [ones(*each.shape)]
        with Adam(alone, lr=lr, device="golden:tiny") as optimizer:
            for step in range(2 - steps, 2):
                set_gradients([ones(3), *alone] if each is other else alone, step)
                optimizer.step()
        assert bits(alone) == bits([each])


def test_state_of_another_shape_is_refused(golden: Axdimm) -> None:
    given = parameters()
    with Adam(given, device=golden) as optimizer:
        set_gradients(given, 0)
        optimizer.step()
        for spoil in (
            lambda: put(optimizer, given, 0, torch.ones(9, 4), optimizer.state.pop(given[0])),
            lambda: setattr(given[1], "data", torch.ones(41)),
            lambda: optimizer.state[given[3]].update(exp_avg=torch.ones(1)),
        ):
            spoil()
        set_gradients(given, 1)
        before = bits(given)
        for index, shapes in ((0, "9, 3.*9, 4"), (1, "40,.*41,"), (3, "1,.*2, 2")):
            with pytest.raises(ValueError, match=rf"exp_avg in .* parameter {index} .*{shapes}"):
                optimizer.step()
            del optimizer.state[given[index]]
        assert bits(given) == before
        optimizer.step()
        assert [optimizer.state[each]["step"] for each in given] == [1, 1, 2, 1]


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        (lambda x: x[::2], lambda x: x[1::2], True),
        (lambda x: x[::2], lambda x: x[2::3], False),
        (lambda x: x.view(4, 12)[:, :5], lambda x: x.view(4, 12)[:, 5:], True),
        (lambda x: x.view(4, 12)[:, :5], lambda x: x.view(4, 12)[1:, 4:], False),
        (lambda x: x.view(6, 8)[:, 3], lambda x: x.view(6, 8)[::2, 2], True),
        (lambda x: x.view(6, 8).t(), lambda x: x[47:], False),
        (lambda x: x[:10], lambda x: x[10:].view(2, 19), True),
        (lambda x: x.as_strided((3, 2), (1, 1)), lambda x: x[20:], False),
    ],
)
def test_views_may_interleave_but_not_overlap(
    golden: Axdimm, one: Any, other: Any, apart: bool
) -> None:
    base = torch.arange(48.0)
    given = [Parameter(view(base)) for view in (one, other)]
    if not apart:
        with pytest.raises(ValueError, match="share memory"):
            SGD(given, lr=1.0, device=golden)
        return
    wanted = [each.detach() - torch.ones_like(each) for each in given]
    with SGD(given, lr=1.0, device=golden) as optimizer:
        for each in given:
            each.grad = torch.ones_like(each)
        optimizer.step()
    assert bits(given) == bits(wanted)
    assert (base != torch.arange(48.0)).sum() == sum(each.numel() for each in given)
