"""The optimizers in a program: groups, state dicts, clipping, other formats, refusals."""

from __future__ import annotations

import copy
import gc
import inspect
import math
import pickle
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from golden.rules import reference
from hw_tests.driver.torch.side_by_side import CASES
from hw_tests.driver.transports import TransportWrapper, of_kernel
from sw_driver.axdimm import Axdimm, BackendOptions, open_backend
from sw_driver.device.errors import AxdimmError, ClosedError, InvalidArgumentError, OutOfMemoryError
from sw_driver.device.transport import DeviceFault
from sw_driver.torch import SGD, Adagrad, Adam, AdamW, Lion, RMSprop
from sw_driver.torch.rules import ComputeOptions


def model(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(7, 20), torch.nn.Tanh(), torch.nn.Linear(20, 3))


def set_gradients(parameters: Any, seed: int) -> None:
    torch.manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape).to(parameter.dtype)


def bits(values: Any) -> list[bytes]:
    return [value.detach().contiguous().numpy().tobytes() for value in values]


def close(one: Any, other: Any) -> None:
    torch.testing.assert_close(list(one), list(other), rtol=1e-5, atol=1e-6)


# Training.


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("Adam", {}),
        ("AdamW", {}),
        ("SGD", {"momentum": 0.9}),
        ("RMSprop", {}),
        ("Adagrad", {"initial_accumulator_value": 0.5}),
    ],
)
def test_groups_and_schedulers(golden: Axdimm, kind: str, options: dict[str, Any]) -> None:
    ours, theirs = model(), model()
    found = []
    for net, where in ((ours, {"device": golden}), (theirs, {})):
        source = sys.modules["sw_driver.torch" if where else "torch.optim"]
        groups = [
            {"params": net[0].parameters(), "weight_decay": 0.1},
            {"params": net[2].parameters(), "lr": 0.05},
        ]
        optimizer = getattr(source, kind)(groups, lr=0.01, **options, **where)
        cycle = {"cycle_momentum": kind not in ("RMSprop", "Adagrad")}
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=[0.1, 0.2], total_steps=9, **cycle
        )
        later = torch.nn.Parameter(torch.ones(5))
        for step in range(8):
            if step == 3:
                optimizer.add_param_group({"params": [later], "lr": 0.3})
                scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
            set_gradients([*net.parameters(), later], step)
            optimizer.step()
            scheduler.step()
        found.append([*net.parameters(), later])
        optimizer.zero_grad()
        assert all(each.grad is None for each in net.parameters())
        if where:
            optimizer.close()
    close(*found)


def test_a_closure_is_called_with_gradients_on(golden: Axdimm) -> None:
    net = model()
    with SGD(net.parameters(), lr=0.1, device=golden) as optimizer:

        def closure() -> Any:
            optimizer.zero_grad()
            loss = net(torch.ones(2, 7)).square().sum()
            loss.backward()
            return loss

        losses = [optimizer.step(closure).item() for _ in range(20)]
        assert losses[-1] < 0.1 * losses[0]


def test_many_small_tensors_are_one_run_a_channel(golden: Axdimm) -> None:
    given = [torch.nn.Parameter(torch.ones(10 + each)) for each in range(60)]
    given[7].requires_grad_(False)
    groups = [{"params": given[:30]}, {"params": given[30:40], "lr": 0.5}, {"params": given[40:]}]
    with Adam(groups, device=golden) as optimizer:
        set_gradients([each for each in given if each.requires_grad], 1)
        optimizer.step()
        assert optimizer.last_step is not None
        # The two groups that are alike are one run, cut in two, and the other is one or two.
        assert optimizer.last_step.runs <= 3
        assert optimizer.last_step.parameters == sum(each.numel() for each in given) - 17
        used = [golden.memory(channel).allocated_bytes for channel in range(2)]
        assert abs(used[0] - used[1]) <= 4 * 64
        assert given[7] not in optimizer.state
        before = optimizer.last_step.bytes_to_module
        optimizer.state_dict()  # the state stays where it is
        set_gradients(given[:7], 2)
        for each in given[7:]:
            each.grad = None
        optimizer.step()
        assert optimizer.last_step.bytes_to_module == 4 * 16 * 7 < before
        steps = [optimizer.state[each]["step"].item() for each in (given[0], given[8])]
        assert steps == [2, 1]


def test_what_the_program_does_to_parameters_counts(golden: Axdimm) -> None:
    parameter = torch.nn.Parameter(torch.linspace(-2, 2, 100))
    with SGD([parameter], lr=0.5, device=golden) as optimizer:
        wanted = parameter.detach().numpy().copy()
        rule = reference("sgd")
        for step, change in enumerate(
            [
                lambda: None,
                lambda: parameter.data.clamp_(-1, 1),  # of which PyTorch's version tells nothing
                lambda: parameter.detach().numpy().__setitem__(3, 5.0),
                lambda: torch.nn.Module.load_state_dict(
                    torch.nn.ParameterList([parameter]), {"0": torch.zeros(100)}
                ),
                lambda: setattr(parameter, "data", torch.ones(100)),
                lambda: None,
            ]
        ):
            set_gradients([parameter], step)
            change()
            wanted = parameter.detach().numpy().copy()
            optimizer.step()
            constants = rule.constants(lr=0.5, weight_decay=0)
            assert parameter.grad is not None
            tensors = {"p": wanted, "g": parameter.grad.numpy()}
            assert bits([parameter]) == [rule.step(tensors, constants)["p"].tobytes()]
            assert optimizer.last_step is not None
            changed = step in (0, 1, 2, 3, 4)
            assert optimizer.last_step.bytes_to_module == 4 * 112 * (1 + changed)


def test_two_optimizers_share_a_module(golden: Axdimm) -> None:
    nets = model(1), model(2)
    alone = copy.deepcopy(nets)
    with Adam(nets[0].parameters(), device=golden) as one, SGD(
        nets[1].parameters(), lr=0.1, momentum=0.5, device=golden
    ) as other:  # fmt: skip
        for step in range(3):
            for net, optimizer in zip(nets, (one, other), strict=True):
                set_gradients(net.parameters(), step)
                optimizer.step()
    with Adam(alone[0].parameters()) as one, SGD(
        alone[1].parameters(), lr=0.1, momentum=0.5
    ) as other:  # fmt: skip
        for step in range(3):
            for net, optimizer in zip(alone, (one, other), strict=True):
                set_gradients(net.parameters(), step)
                optimizer.step()
    for net, same in zip(nets, alone, strict=True):
        assert bits(net.parameters()) == bits(same.parameters())


def test_a_step_beside_the_program(module: Axdimm) -> None:
    net, same = model(), model()
    with Adam(net.parameters(), device=module) as optimizer:
        with Adam(same.parameters(), device=module) as other:
            for step in range(3):
                set_gradients(same.parameters(), step)
                other.step()
        set_gradients(net.parameters(), 0)
        before = bits(net.parameters())
        handle = optimizer.step_async()
        optimizer.zero_grad()  # the gradients have been taken
        assert bits(net.parameters()) == before
        handle.wait()
        assert handle.done
        handle.wait()
        assert bits(net.parameters()) != before
        for step in (1, 2):
            set_gradients(net.parameters(), step)
            optimizer.step_async()  # what comes next waits for it
        assert optimizer.state_dict()["state"][0]["step"] == 3
        assert bits(net.parameters()) == bits(same.parameters())
        optimizer.step_async()
    assert bits(net.parameters()) != bits(same.parameters())
    assert optimizer.state_dict()["state"][0]["step"] == 4


def test_hooks_of_steps_beside_the_program(golden: Axdimm) -> None:
    parameter = torch.nn.Parameter(torch.ones(5))
    seen: list[Any] = []

    def note(name: str) -> Any:
        return lambda optimizer, args, kwargs: seen.append(
            (name, args, kwargs, optimizer.param_groups[0]["params"][0][0].item() == 1)
        )

    with Adam([parameter], device=golden) as optimizer:
        parameter.grad = torch.ones(5)
        hooks = [
            optimizer.register_step_pre_hook(note("before")),
            optimizer.register_step_post_hook(note("after")),
            register_optimizer_step_pre_hook(note("all before")),
            register_optimizer_step_post_hook(note("all after")),
        ]
        try:
            handle = optimizer.step_async()
            begun = [("all before", True), ("before", True)]
            assert [(name, old) for name, _, _, old in seen] == begun
            handle.wait()
            handle.wait()
            ended = [("after", False), ("all after", False)]
            assert [(name, old) for name, _, _, old in seen] == begun + ended
            beside, seen[:] = list(seen), []
            with torch.no_grad():
                parameter.fill_(1)
            optimizer.step()
            assert seen == beside
            seen.clear()
            optimizer.step_async()
            optimizer.step_async().wait()  # the one before is completed first
            names = ["all before", "before", "after", "all after"]
            assert [name for name, *_ in seen] == 2 * names
        finally:
            for hook in hooks:
                hook.remove()
        optimizer.register_step_pre_hook(lambda _, args, kwargs: (args, kwargs))
        before = bits([parameter])
        with pytest.raises(RuntimeError, match="step_async takes no arguments"):
            optimizer.step_async()
        assert optimizer.state_dict()["state"][0]["step"] == 4
        assert bits([parameter]) == before


def test_where_the_time_goes() -> None:
    given = [torch.nn.Parameter(torch.ones(20_000))]
    with Adam(given, device="cycles:tiny") as optimizer:
        assert optimizer.last_step is None
        for step in range(2):
            set_gradients(given, step)
            optimizer.step()
        report = optimizer.last_step
        assert report is not None
        assert (report.parameters, report.runs) == (20_000, 2)
        assert report.bytes_to_module == report.bytes_to_host == 4 * 20_000
        assert report.total_ns is not None
        assert report.copy_ns is not None
        assert report.kernel_ns is not None
        # One channel's copies and kernel follow each other; the other's are beside them.
        link_ns = 2 * 80_000 / 6.4
        assert link_ns < report.total_ns < 1.1 * (report.copy_ns + report.kernel_ns)
    with Adam(given, device="golden:tiny") as optimizer:
        optimizer.step()
        assert optimizer.last_step is not None
        assert optimizer.last_step.total_ns is None


def test_rounds_overlap_copies_and_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    parameter = torch.nn.Parameter(torch.ones(600_000))
    results, times = [], []
    for values in (1 << 16, 1 << 30):
        monkeypatch.setattr("sw_driver.torch.shards.ROUND_VALUES", values)
        given = torch.nn.Parameter(parameter.detach().clone())
        with Adam([given], device="cycles") as optimizer:
            for step in range(2):
                set_gradients([given], step)
                optimizer.step()
            report = optimizer.last_step
        results.append(bits([given]))
        assert report is not None
        assert report.total_ns is not None
        times.append(report.total_ns)
    assert results[0] == results[1]
    assert times[0] < 0.95 * times[1]


# Clipping and scaling.


@pytest.mark.parametrize("max_norm", [0.5, 9.0, 1e3])
def test_clipping_by_the_modules_norm(module: Axdimm, max_norm: float) -> None:
    ours, theirs = model(), model()
    set_gradients(ours.parameters(), 1)
    set_gradients(theirs.parameters(), 1)
    wanted = torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_norm)
    with Adam(ours.parameters(), device=module) as optimizer:
        flat = torch.cat(
            [torch.nn.functional.pad(each.grad.ravel(), (0, -each.numel() % 16))
             for each in ours.parameters() if each.grad is not None]
        ).numpy()  # fmt: skip
        half = 16 * (flat.size // 32)
        parts = [flat[:half], flat[half:]]
        sums = [reference("sum_squares").step({"g": part}, {})["squares"] for part in parts]
        norm = optimizer.clip_grad_norm(max_norm)
        assert norm.item() == torch.tensor(math.sqrt(math.fsum(map(float, sums)))).item()
        torch.testing.assert_close(norm, wanted)
        close(
            (each.grad for each in ours.parameters()), (each.grad for each in theirs.parameters())
        )
        optimizer.step()
        assert optimizer.last_step is not None
        moved = flat.nbytes * (4 if norm > max_norm else 3)  # g again only if it was scaled; p m v
        assert optimizer.last_step.bytes_to_module == moved
        next(ours.parameters()).grad.fill_(math.inf)
        with pytest.raises(RuntimeError, match="norm of the gradients is inf"):
            optimizer.clip_grad_norm(max_norm, error_if_nonfinite=True)


def test_clipping_without_the_rule() -> None:
    net = model()
    set_gradients(net.parameters(), 1)
    with Axdimm("golden:tiny") as device, Adam(net.parameters(), device=device) as optimizer:
        wanted = torch.cat([each.grad.ravel() for each in net.parameters()]).norm()
        torch.testing.assert_close(optimizer.clip_grad_norm(0.5), wanted)


def test_the_grad_scaler(golden: Axdimm) -> None:
    ours, theirs = model(), model()
    found = []
    for net in (ours, theirs):
        kind, where = (Adam, {"device": golden}) if net is ours else (torch.optim.Adam, {})
        optimizer = kind(net.parameters(), lr=0.1, **where)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(4):
            optimizer.zero_grad()
            spoilt = math.inf if step == 2 else 1.0
            scaler.scale(net(torch.ones(2, 7)).square().sum() * spoilt).backward()
            scaler.step(optimizer)
            scaler.update()
        found.append((scaler.get_scale(), optimizer.state_dict()["state"][0]["step"].item()))
    assert found == [(512.0, 3.0)] * 2
    close(ours.parameters(), theirs.parameters())


# State.


@pytest.mark.parametrize("rule", CASES)
def test_pytorch_and_the_module_take_turns(golden: Axdimm, rule: str) -> None:
    name, options = CASES[rule]
    kinds = {
        "ours": getattr(sys.modules["sw_driver.torch"], name),
        "theirs": getattr(torch.optim, name),
    }
    taking_turns, alone = model(), model()
    whole = kinds["theirs"](alone.parameters(), **options)
    saved: dict[str, Any] | None = None
    for turn, who in enumerate(["theirs", "ours", "theirs", "ours"]):
        where = {"device": golden} if who == "ours" else {}
        optimizer = kinds[who](taking_turns.parameters(), **options, **where)
        if saved is not None:
            optimizer.load_state_dict(saved)
        for step in range(3 * turn, 3 * turn + 3):
            for net, each in ((taking_turns, optimizer), (alone, whole)):
                set_gradients(net.parameters(), step)
                each.step()
        saved = pickle.loads(pickle.dumps(optimizer.state_dict()))
        assert saved is not None
        wanted = whole.state_dict()
        assert saved["param_groups"] == wanted["param_groups"]
        assert saved["state"].keys() == wanted["state"].keys()
        for number, values in wanted["state"].items():
            assert {k: (v.dtype, v.shape) for k, v in saved["state"][number].items()} == {
                k: (v.dtype, v.shape) for k, v in values.items()
            }
    close(taking_turns.parameters(), alone.parameters())


KILLED = """
import os, signal, sys, torch
from hw_tests.driver.torch.test_optimizer import model, set_gradients
from sw_driver.torch import AdamW
net = model()
optimizer = AdamW(net.parameters(), lr=0.1, device="golden:tiny")
for step in range(9):
    set_gradients(net.parameters(), step)
    optimizer.step()
    if step == 4:
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, sys.argv[1])
    if step == 6:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_resuming_after_a_kill(golden: Axdimm, tmp_path: Path) -> None:
    file = tmp_path / "saved"
    killed = subprocess.run([sys.executable, "-c", KILLED, file], cwd=Path(__file__).parents[3])
    assert killed.returncode == -signal.SIGKILL
    whole, resumed = model(), model(9)
    saved = torch.load(file, weights_only=True)
    resumed.load_state_dict(saved["net"])
    with AdamW(whole.parameters(), lr=0.1, device=golden) as optimizer:
        for step in range(9):
            set_gradients(whole.parameters(), step)
            optimizer.step()
    with AdamW(resumed.parameters(), lr=0.3, device=golden) as optimizer:
        optimizer.load_state_dict(saved["optimizer"])
        for step in range(5, 9):
            set_gradients(resumed.parameters(), step)
            optimizer.step()
    assert bits(resumed.parameters()) == bits(whole.parameters())


def test_state_that_the_program_looks_at_and_changes(golden: Axdimm) -> None:
    ours, theirs = model(), model()
    optimizer = Adam(ours.parameters(), device=golden)
    other = torch.optim.Adam(theirs.parameters())
    for step in range(4):
        set_gradients(ours.parameters(), step)
        set_gradients(theirs.parameters(), step)
        for each, net in ((optimizer, ours), (other, theirs)):
            if step:
                state = each.state[net[0].weight]
                assert set(state) == {"step", "exp_avg", "exp_avg_sq"}
                state["exp_avg"].mul_(0.5)
                state["exp_avg_sq"] = torch.ones(20, 7)
            if step == 3:
                each.state[net[2].weight] = {}  # as if it were new
            each.step()
    close(ours.parameters(), theirs.parameters())
    assert len(optimizer.state_dict()["state"]) == 4
    before = [golden.memory(channel).allocated_bytes for channel in range(2)]
    optimizer.close()
    assert all(golden.memory(each).allocated_bytes < before[each] for each in range(2))
    set_gradients(ours.parameters(), 5)
    set_gradients(theirs.parameters(), 5)
    optimizer.step()  # the module is still open
    other.step()
    close(ours.parameters(), theirs.parameters())
    with pytest.raises(TypeError, match="save its state_dict"):
        copy.deepcopy(optimizer)
    optimizer.close()


# Formats and layouts.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_formats_are_converted(golden: Axdimm, dtype: Any) -> None:
    given = torch.nn.Parameter(torch.linspace(-1, 1, 50).to(dtype))
    rule = reference("adam")
    with pytest.warns(UserWarning, match="parameter 0 of group 0 is torch.*converted"):
        optimizer = Adam([given], lr=0.01, device=golden)
    m = v = np.zeros(50, np.float32)
    for t in range(1, 5):
        set_gradients([given], t)
        assert given.grad is not None
        p, g = given.detach().float().numpy(), given.grad.float().numpy()
        constants = rule.constants(lr=0.01, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0, t=t)
        result = rule.step({"p": p, "g": g, "m": m, "v": v}, constants)
        optimizer.step()
        assert given.dtype == dtype
        assert torch.equal(given, torch.from_numpy(result["p"]).to(dtype))
        m, v = result["m"], result["v"]
        saved = copy.deepcopy(optimizer.state_dict())
        assert saved["state"][0]["exp_avg"].numpy().tobytes() == m.tobytes()
        if t == 2:  # what is saved is all there is
            optimizer.close()
            with pytest.warns(UserWarning, match="converted"):
                optimizer = Adam([given], device=golden)
            optimizer.load_state_dict(saved)
    optimizer.close()


def test_other_layouts(golden: Axdimm) -> None:
    torch.manual_seed(1)
    whole = torch.randn(8, 3, 5, 5)
    given = torch.nn.Parameter(whole.clone(memory_format=torch.channels_last))
    across = torch.nn.Parameter(whole[0, 0].clone().t())
    every_other = torch.nn.Parameter(torch.arange(20.0)[::2])
    plain = [torch.nn.Parameter(each.detach().clone(memory_format=torch.contiguous_format))
             for each in (given, across, every_other)]  # fmt: skip
    assert not across.is_contiguous()
    with Adam([given, across, every_other], device=golden) as one, Adam(
        plain, device=golden
    ) as other:  # fmt: skip
        for step in range(3):
            set_gradients([given, across, every_other], step)
            set_gradients(plain, step)
            one.step()
            other.step()
        assert bits([given, across, every_other]) == bits(plain)
        assert given.is_contiguous(memory_format=torch.channels_last)


def test_a_module_of_its_own_is_large_enough() -> None:
    given = torch.nn.Parameter(torch.ones(300_000))
    with Adam([given], device="golden:tiny") as optimizer:  # a channel of it has 1 MiB otherwise
        set_gradients([given], 1)
        optimizer.step()
        assert optimizer.device.rules(0) == ("adam", "sum_squares")
    with pytest.raises(ClosedError):
        optimizer.step()
    assert optimizer.state_dict()["state"][0]["exp_avg"].shape == (300_000,)


# Refusals.


def bad(**options: Any) -> dict[str, Any]:
    return options


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (AdamW, bad(amsgrad=True), "amsgrad is True"),
        (Adam, bad(amsgrad=True, decoupled_weight_decay=True), "amsgrad is True"),
        (RMSprop, bad(centered=True), "centered is True"),
        (RMSprop, bad(momentum=0.5), "momentum is 0.5"),
        (Adam, bad(foreach=True), "foreach is True"),
        (SGD, bad(fused=True), "fused is True"),
        (Adam, bad(capturable=True), "capturable is True"),
        (Adagrad, bad(differentiable=True), "differentiable is True"),
        (Lion, bad(lr=-1), "lr is -1"),
        (Lion, bad(betas=(0.9, 1.0)), "betas is"),
        (Adam, bad(lr=-1.0), "Invalid learning rate"),
        (SGD, bad(nesterov=True), "Nesterov momentum requires"),
    ],
)
def test_options_without_a_rule(kind: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        kind([torch.nn.Parameter(torch.ones(3))], **options)


def test_options_that_pytorch_allows() -> None:
    given = [torch.nn.Parameter(torch.ones(3))]
    Adam(given, foreach=False, fused=None, maximize=True)
    with pytest.raises(TypeError, match="device is 3: expected an opened Axdimm"):
        Adam(given, device=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="no device 'gold'"):
        Adam(given, device="gold")


def test_parameters_that_cannot_be(golden: Axdimm) -> None:
    base = torch.randn(10)
    whole = torch.nn.Parameter(base)
    for given, kind, words in [
        ([whole, torch.nn.Parameter(base[2:5])], ValueError, "parameter 0 .* and parameter 1"),
        ([("a", whole), ("b", torch.nn.Parameter(base))], ValueError, "'a'.* and .*'b'"),
        ([torch.zeros(1).expand(3).requires_grad_()], ValueError, "elements of parameter 0"),
        ([torch.zeros(3, dtype=torch.complex64, requires_grad=True)], TypeError, "complex64"),
    ]:
        with pytest.raises(kind, match=words):
            Adam(given, device=golden)
    with Adam([whole], device=golden) as optimizer:
        with pytest.raises(ValueError, match="parameter 0 of group 1"):
            optimizer.add_param_group({"params": [torch.nn.Parameter(base[:3])]})
        assert len(optimizer.param_groups) == 1


def snapshot(optimizer: Any) -> Any:
    values = optimizer.state_dict()
    return bits(optimizer.param_groups[0]["params"]), repr(values)


def test_a_refused_step_changes_nothing(golden: Axdimm) -> None:
    net = model()
    with SGD(net.parameters(), lr=0.1, momentum=0.9, device=golden) as optimizer:
        set_gradients(net.parameters(), 1)
        optimizer.step()
        before = snapshot(optimizer)
        group, last = optimizer.param_groups[0], net[2].bias
        good = last.grad
        for spoil, mend, kind, words in [
            (
                lambda: group.update(lr=-1.0),
                lambda: group.update(lr=0.1),
                InvalidArgumentError,
                "lr",
            ),
            (
                lambda: group.update(lr=1e39),
                lambda: group.update(lr=0.1),
                InvalidArgumentError,
                "lr",
            ),
            (
                lambda: group.update(nesterov=True, dampening=0.5),
                lambda: group.update(nesterov=False, dampening=0),
                ValueError,
                "dampening is 0.5",
            ),
            (
                lambda: setattr(last, "grad", last.detach().to_sparse()),
                lambda: setattr(last, "grad", good),
                TypeError,
                "gradient of parameter 3 of group 0 is torch.sparse_coo",
            ),
        ]:
            spoil()
            with pytest.raises(kind, match=words):
                optimizer.step()
            mend()
            assert snapshot(optimizer) == before
        optimizer.step()
        assert snapshot(optimizer) != before


def test_a_module_without_the_rule_or_the_memory() -> None:
    given = [torch.nn.Parameter(torch.ones(30))]
    with Axdimm("golden:tiny") as device:
        with pytest.raises(InvalidArgumentError, match=r"SGD needs the rule momentum.*has adam"):
            SGD(given, momentum=0.9, device=device)
        with Adam(given, device=device) as optimizer:
            set_gradients(given, 1)
            optimizer.step()
            before = snapshot(optimizer)
            optimizer.param_groups[0]["amsgrad"] = True
            with pytest.raises(InvalidArgumentError, match="amsgrad"):
                optimizer.step()
            optimizer.param_groups[0]["amsgrad"] = False
            assert snapshot(optimizer) == before
            large = torch.nn.Parameter(torch.ones(140_000))  # three of four tensors fit
            optimizer.add_param_group({"params": [large]})
            set_gradients([large], 1)
            used = [device.memory(channel).allocated_bytes for channel in range(2)]
            with pytest.raises(OutOfMemoryError):
                optimizer.step()
            assert [device.memory(channel).allocated_bytes for channel in range(2)] == used
            large.grad = None
            del optimizer.param_groups[1]
            assert snapshot(optimizer) == before
            device.close()
            parameters = bits(given)
            with pytest.raises(ClosedError, match="the device was closed"):
                optimizer.step()
            assert bits(given) == parameters
            optimizer.state.clear()


def test_state_dicts_of_others_are_refused(golden: Axdimm) -> None:
    def saved(kind: Any, steps: int = 1, net: Any = None, **options: Any) -> Any:
        net = net or model()
        other = kind(net.parameters(), **options)
        for _ in range(steps):
            set_gradients(net.parameters(), 3)
            other.step()
        return other.state_dict()

    torch_optim = torch.optim
    net = model()
    with (
        Adam(net.parameters(), device=golden) as ours,
        AdamW(model().parameters(), device=golden) as decoupled,
        SGD(model().parameters(), lr=0.1, momentum=0.9, device=golden) as momentum,
    ):
        for each in (ours, decoupled, momentum):
            set_gradients(each.param_groups[0]["params"], 1)
            each.step()
        short = saved(torch_optim.Adam)
        del short["state"][0]["step"]
        part = saved(torch_optim.Adam)
        del part["state"][2]["exp_avg_sq"]
        wrong = saved(torch_optim.Adam)
        wrong["state"][1]["exp_avg"] = torch.zeros(3)
        for optimizer, state, words in [
            (ours, saved(torch_optim.SGD, momentum=0.9), "not one of Adam"),
            (ours, saved(torch_optim.SGD, steps=0), "not one of Adam"),
            (ours, saved(torch_optim.RMSprop), "not one of Adam"),
            (momentum, saved(torch_optim.Adam), "not one of SGD"),
            (decoupled, saved(torch_optim.Adam), "of Adam, which has another weight decay"),
            (ours, saved(torch_optim.AdamW, amsgrad=True), "amsgrad is True"),
            (ours, saved(torch_optim.NAdam), "mu_product"),
            (ours, short, "no step for parameter 0 of group 0"),
            (ours, part, "no exp_avg_sq for parameter 2 of group 0"),
            (ours, wrong, "exp_avg of parameter 1 of group 0 has the shape"),
            (ours, saved(torch_optim.Adam, net=torch.nn.Linear(2, 2)), "match the size"),
        ]:
            before = snapshot(optimizer)
            with pytest.raises(ValueError, match=words):
                optimizer.load_state_dict(state)
            assert snapshot(optimizer) == before


def test_an_optimizer_that_is_collected_in_the_middle_of_a_call() -> None:
    optimizer = Adam(model().parameters(), device="golden:tiny")
    device, refers = optimizer.device, [optimizer]
    refers.append(refers)  # type: ignore[arg-type]
    del optimizer, refers
    with device.transport.domain.clock:
        gc.collect()
        device.memory(0)
    with pytest.raises(ClosedError):
        device.memory(0)


class FailingTransport(TransportWrapper):
    """Its second channel fails when its kernel is asked whether it has ended."""

    fails = False

    def poll_steps(
        self, channel: int, address: int, mask: int, value: int, **times: Any
    ) -> Generator[None, None, int]:
        if self.fails and channel == 1 and of_kernel(self, address):
            raise DeviceFault("burnt")
        return super().poll_steps(channel, address, mask, value, **times)


@pytest.fixture
def failing() -> Iterator[FailingTransport]:
    settings = {"rules": ("adam", "sum_squares")}
    transport = FailingTransport(open_backend("golden:tiny", BackendOptions(settings=settings)))
    yield transport
    transport.close()


def test_a_module_that_fails_in_a_step(failing: FailingTransport) -> None:
    net, same = model(), model()
    with Axdimm(failing) as device, Adam(net.parameters(), device=device) as optimizer:
        set_gradients(net.parameters(), 1)
        optimizer.step()
        saved, before = optimizer.state_dict(), bits(net.parameters())
        failing.fails = True
        set_gradients(net.parameters(), 2)
        with pytest.raises((DeviceFault, AxdimmError), match="burnt"):
            optimizer.step()
        failing.fails = False
        assert bits(net.parameters()) == before
        for call in (optimizer.step, optimizer.state_dict):
            with pytest.raises(RuntimeError, match=r"failed in an earlier step.*burnt"):
                call()
        optimizer.load_state_dict(saved)
        optimizer.step()
    with Adam(same.parameters()) as optimizer:
        for step in (1, 2):
            set_gradients(same.parameters(), step)
            optimizer.step()
    assert bits(net.parameters()) == bits(same.parameters())


# How they look.


@pytest.mark.parametrize("kind", [Adam, AdamW, SGD, Adagrad, RMSprop])
def test_signatures_are_pytorchs(kind: Any) -> None:
    ours = inspect.signature(kind).parameters
    theirs_of = inspect.signature(getattr(torch.optim, kind.__name__)).parameters
    for option, theirs in theirs_of.items():
        if option in ComputeOptions.__annotations__:
            continue
        assert ours[option].default == theirs.default
    model = torch.nn.Linear(2, 2)
    with pytest.raises(TypeError, match="learning_rate"):
        kind(model.parameters(), learning_rate=1.0)


def test_it_says_where_it_computes_and_what_steps_took() -> None:
    model = torch.nn.Linear(8, 8)
    with Adam(model.parameters(), device="cycles") as optimizer:
        assert repr(optimizer).splitlines()[:2] == ["Adam (", "device: cycles, 2 channels"]
        assert optimizer.simulated_ns is None
        taken = []
        for _ in range(3):
            model(torch.ones(8)).sum().backward()
            optimizer.step()
            assert optimizer.last_step is not None
            taken.append(optimizer.last_step.total_ns)
        assert optimizer.simulated_ns == sum(taken)
        said = str(optimizer.last_step)
        assert "72 parameters in 2 runs" in said
        assert f"{taken[-1]:,.0f} ns" in said
        assert len(said) < 160
