"""The compiled guard: what it does without Python, and that it may fail at any place."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn

import sw_driver.torch.guard
from hw_tests.driver.torch.odd_models import MODELS, batches, loss_of
from sw_driver.torch.guard import ANSWER, RESULTS, load
from sw_driver.torch.residency import Residency
from sw_driver.torch.sentinel import Sentinel
from sw_driver.torch.stores import HostStore

LEAST_BYTES = 1 << 10
STEPS = 9


def trained(make: Any, budget: str | None, **options: Any) -> tuple[list[Any], int]:
    """Return losses, parameters, buffers and states, and the operations without Python."""
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **options)
    policy = Sentinel(model, optimizer, budget=budget, least_bytes=LEAST_BYTES) if budget else None
    values: list[Any] = []
    for batch in batches(STEPS, make):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        values.append(loss.detach())
    skipped = 0
    if policy is not None:
        state = policy._residency.state
        skipped = state.skipped if state is not None else 0
        assert policy.report()["peak_bytes"] <= policy.budget_bytes
        policy.close()
    states = [value for state in optimizer.state.values() for value in state.values()]
    return [*values, *model.state_dict().values(), *states], skipped


@pytest.mark.parametrize("make", MODELS[:-1], ids=lambda make: make.__name__)
@pytest.mark.parametrize("options", [{}, {"fused": True}], ids=["each", "fused"])
def test_bits_are_those_of_the_python_mode(make: Any, options: Any, monkeypatch: Any) -> None:
    plain, _ = trained(make, None, **options)
    for budget in "100%", "75%":
        guarded, skipped = trained(make, budget, **options)
        assert skipped > STEPS * 10
        assert all(map(torch.equal, guarded, plain))
    with monkeypatch.context() as python:
        python.setattr(sw_driver.torch.guard, "load", lambda: None)
        watched, skipped = trained(make, "75%", **options)
    assert skipped == 0
    assert all(map(torch.equal, watched, plain))


def layers(count: int = 4) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(count)))


class _Changing(nn.Module):
    """Does the same in all steps but one."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.layers, self.change, self.count = layers(), change, 0

    def forward(self, x: Any) -> Any:
        x = self.layers[:2](x)
        self.count += 1
        if self.count == 6:
            if self.change == "operator":
                x = x.sin()
            elif self.change == "error":
                torch.mm(x, x[:, :3])
        if self.change == "results":
            x = x[x.detach()[:, 0] > (0 if self.count == 6 else -1e9)]
        return self.layers[2:](x)


@pytest.mark.parametrize("change", ["operator", "results", "error"])
def test_a_step_that_goes_on_otherwise_has_the_same_bits(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = []
    diverged = Sentinel.diverged

    def noting(self: Sentinel, reason: int, new: Any) -> None:
        reasons.append(reason)
        diverged(self, reason, new)

    monkeypatch.setattr(Sentinel, "diverged", noting)
    results = []
    for budget in None, "70%":
        model = _Changing(change)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        policy = (
            Sentinel(model, optimizer, budget=budget, least_bytes=LEAST_BYTES) if budget else None
        )
        results.append([])
        for number in range(9):
            optimizer.zero_grad()
            x = torch.randn(32, 64, generator=torch.Generator().manual_seed(number))
            try:
                loss = model(x).square().mean()
            except RuntimeError:
                continue
            loss.backward()
            optimizer.step()
            results[-1].append(loss.detach())
        if policy is not None:
            assert policy.report()["peak_bytes"] <= policy.budget_bytes
            policy.close()
        results[-1] += model.state_dict().values()
    assert all(map(torch.equal, *results))
    assert {"operator": 1, "results": RESULTS, "error": 1}[change] in reasons


def test_memory_inside_operations_counts_and_is_refused_there() -> None:
    residency = Residency(budget=1 << 21, least_bytes=64)
    with residency:
        values = torch.ones(256, 256)
        before = residency.used_bytes
        torch.linalg.svdvals(values)
        assert residency.peak_bytes >= before + values.nbytes  # a copy that LAPACK overwrites
        residency.budget_bytes = before + 525_312 + 1000  # its results fit
        with pytest.raises(
            torch.OutOfMemoryError, match=r"no room for 262144 bytes .* needs a budget"
        ):
            torch.linalg.svdvals(values)
        assert residency.used_bytes == before
        residency.close()


def mappings() -> int:
    """Return the number of the process's mappings, which Linux limits."""
    return Path("/proc/self/maps").read_text().count("\n")


def test_freed_pages_serve_later_blocks_without_overlaps() -> None:
    lot = random.Random(1)
    residency = Residency(budget=24 << 20, least_bytes=1 << 16)
    values: list[tuple[Any, int]] = []
    before = mappings()
    with residency:
        residency.enter_guard()
        for _ in range(3):
            for number in range(400):
                nbytes = 4 * lot.randrange(1 << 14, 1 << 20)
                while values and residency.used_bytes + nbytes > 23 << 20:
                    value, content = values.pop(lot.randrange(len(values)))
                    assert (value == content).all()
                    del value
                values.append((torch.full((nbytes // 4,), number, dtype=torch.int32), number))
        assert all((value == content).all() for value, content in values)
        assert mappings() - before < 600  # pieces of 64 KiB would be 384
        values.clear()
    residency.close()
    assert mappings() - before < 50


def test_small_freed_blocks_give_their_pages_to_large_ones() -> None:
    residency = Residency(budget=28 << 20, least_bytes=1 << 16)
    with residency:
        residency.enter_guard()
        for count in 24, 6, 8, 16:  # of 1, 4, 3 and 1.5 MiB
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            values = [
                torch.full(((24 << 18) // count,), count, dtype=torch.int32) for _ in range(count)
            ]
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
            assert all((value == count).all() for value in values)
            assert count == 24 or faults < 100  # 6,144 pages are used
            del values
    residency.close()


def test_kept_pages_leave_where_small_blocks_need_the_budget() -> None:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    residency = Residency(budget=64 << 20, least_bytes=1 << 12)
    with residency:
        residency.enter_guard()
        before = resident_bytes()
        large = torch.ones(60 << 18)
        del large
        small = [torch.ones(1 << 13) for _ in range(40 << 5)]  # 40 MiB
        assert resident_bytes() - before < 80 << 20
        del small  # 1,280 records die at once
    residency.close()


@pytest.mark.parametrize("budget", ["100%", "50%"])
def test_steps_like_one_before_need_no_new_pages(budget: str) -> None:
    model = nn.Sequential(*(nn.Conv2d(16, 16, 3, padding=1) for _ in range(8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    policy = Sentinel(model, optimizer, budget=budget)
    values = torch.randn(8, 16, 64, 64)  # 2 MiB, as each layer's results
    faults: list[int] = []
    for _ in range(16):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        optimizer.zero_grad()
        model(values).square().mean().backward()
        optimizer.step()
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    policy.close()
    step_pages = 16 * values.nbytes // resource.getpagesize()
    assert min(faults[4:]) < step_pages // 8


def test_ctrl_c_while_room_is_made_inside_an_operation() -> None:
    residency = Residency(HostStore(), budget=1 << 20, least_bytes=64)
    answer, asked = residency._answer, []

    def ask(*given: Any) -> int:
        asked.append(given)
        return answer(*given) if len(asked) > 1 else 0  # as if a signal came at its beginning

    with residency:
        values, other = torch.ones(256, 256), torch.ones(256, 256)
        residency.budget_bytes = 900_000  # svdvals() takes 525,312 bytes inside
        account = residency._account
        assert account is not None
        account.ask = ANSWER(ask)
        with pytest.raises(KeyboardInterrupt):
            torch.linalg.svdvals(values)
        assert len(asked) == 2
        assert residency.peak_bytes <= residency.budget_bytes
        assert other.sum() == 256 * 256
        residency.close()


@pytest.mark.parametrize("at", [0, 1])
def test_ctrl_c_before_an_operation_ends_its_count(at: int, monkeypatch: Any) -> None:
    guard, calls = load(), []
    assert guard is not None
    count = guard.call.count

    def interrupted(account: Any) -> Any:
        before = count(account)
        calls.append(account)
        if len(calls) == at + 1:
            raise KeyboardInterrupt
        return before

    with Residency(budget=1 << 20) as residency:
        with monkeypatch.context() as during:
            during.setattr(guard.call, "count", interrupted)
            with pytest.raises(KeyboardInterrupt):
                torch.ones(256, 256)
        assert count(None) is None
        residency.close()


class _Wide(nn.Module):
    """Takes memory inside an operation; small and large buffers count the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(32, 32), nn.BatchNorm1d(32)
        self.calls: Any
        self.register_buffer("calls", torch.zeros(1024))
        self.register_buffer("unchanged", torch.ones(1024))

    def forward(self, x: Any) -> Any:
        self.calls.add_(1)  # a step of any size begins like this
        x = self.norm(self.layer(x))
        return x.sum() + torch.linalg.svdvals(x).sum()


def test_a_step_refused_inside_an_operation_leaves_all_as_it_was() -> None:
    model = _Wide()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with Sentinel(model, optimizer, budget=40_000, least_bytes=LEAST_BYTES) as policy:

        def step(batch: int) -> None:
            optimizer.zero_grad()
            model(torch.randn(batch, 32)).backward()
            optimizer.step()

        for _ in range(3):
            step(16)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with pytest.raises(torch.OutOfMemoryError, match="it needs a budget"):
            step(200)
        after = model.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
        step(16)
        assert policy.report()["peak_bytes"] <= 40_000


def test_a_large_buffer_that_a_step_changes_is_copied_in_the_next_ones() -> None:
    model = _Wide()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with Sentinel(model, optimizer, budget=10**6, least_bytes=LEAST_BYTES) as policy:
        out_bytes = []
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(16, 32)).backward()
            optimizer.step()
            out_bytes.append(policy.report()["out_bytes"])
    assert out_bytes == [number * model.calls.nbytes for number in range(4)]


class _Counting(nn.Module):
    """Counts its calls in a small and a large buffer."""

    def __init__(self) -> None:
        super().__init__()
        for number, size in enumerate((1, 1024)):
            self.register_buffer(str(number), torch.zeros(size))

    def forward(self, x: Any) -> Any:
        for count in self.buffers():
            count.add_(1)
        return x


def test_an_update_refused_in_its_middle_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = layers().append(_Counting())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with Sentinel(model, optimizer, budget=10**6, least_bytes=LEAST_BYTES) as policy:

        def forward(batch: int) -> None:
            optimizer.zero_grad()
            model(torch.randn(batch, 64)).square().mean().backward()

        for _ in range(2):
            forward(8)
            optimizer.step()
        state = {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in optimizer.state[model[0].weight].items()
        }
        before = {name: value.clone() for name, value in model.state_dict().items()}
        forward(16)  # a step like none before
        calls = [0]
        needs = policy.before

        def before_operation(func: Any, used: Any) -> int | None:
            if policy._run is not None and policy._run.updates >= 0:
                calls[0] += 1
                if calls[0] == 20:
                    return 10**7
            return needs(func, used)

        monkeypatch.setattr(policy, "before", before_operation)
        with pytest.raises(torch.OutOfMemoryError):
            optimizer.step()
        monkeypatch.undo()
        after = model.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
        restored = optimizer.state[model[0].weight]
        assert all(bool((restored[name] == state[name]).all()) for name in state)
        forward(8)
        optimizer.step()


@pytest.mark.usefixtures("guard")
@pytest.mark.parametrize("foreach", [False, True], ids=["each", "foreach"])
@pytest.mark.parametrize("lacking", [None, 3, 10])
def test_an_update_that_goes_on_otherwise_is_completed(lacking: int | None, foreach: bool) -> None:
    results = []
    for budget in None, 300_000:
        model = layers()
        optimizer = torch.optim.RAdam(model.parameters(), lr=1e-2, foreach=foreach)
        policy: Any = budget and Sentinel(model, optimizer, budget=budget, least_bytes=LEAST_BYTES)
        for number in range(9):
            optimizer.zero_grad()
            model(torch.full((8, 64), number / 9)).square().mean().backward()
            if policy is None or lacking is None or number != 5:
                optimizer.step()
                continue
            # RAdam's sixth update differs after its first operations, which nothing can undo.
            calls, needs = iter(range(1, 1000)), policy.before
            policy.before = lambda *given: 10**6 * (next(calls) == lacking) or needs(*given)  # noqa: B023
            with pytest.raises(torch.OutOfMemoryError, match="step is complete and correct"):
                optimizer.step()
            del policy.before
        if policy is not None:
            policy.close()
        states = [value for state in optimizer.state.values() for value in state.values()]
        results.append([*model.state_dict().values(), *states])
    assert all(map(torch.equal, *results))


def test_without_a_compiler_the_python_mode_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    load.cache_clear()
    monkeypatch.setenv("CXX", "no-such-compiler")
    try:
        with pytest.warns(UserWarning, match=r"some 30 us longer.*no-such-compiler"):
            assert load() is None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert load() is None
    finally:
        load.cache_clear()


def run(text: str) -> subprocess.CompletedProcess[str]:
    begin = """
    import json, os, sys, torch, signal, threading, warnings
    from torch import nn
    from sw_driver.torch.sentinel import Sentinel
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6)))
    optimizer = torch.optim.AdamW(model.parameters())
    def step():
        optimizer.zero_grad()
        model(torch.ones(64, 256)).square().mean().backward()
        optimizer.step()
    """
    code = textwrap.dedent(begin) + textwrap.dedent(text)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_an_interpreter_ends_in_the_middle_of_a_step() -> None:
    ended = run("""
    policy = Sentinel(model, optimizer, budget="60%")
    for _ in range(4): step()
    loss = model(torch.ones(64, 256)).square().mean()
    print(policy._residency.state.skipped > 0)
    """)
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr


def test_ctrl_c_and_a_fork_in_the_middle_of_steps() -> None:
    ended = run("""
    policy = Sentinel(model, optimizer, budget="60%")
    for _ in range(4): step()
    interrupted = 0
    for number in range(30):
        timer = threading.Timer(0.0005 * number, signal.raise_signal, [signal.SIGINT])
        try:
            timer.start()
            step()
            timer.join()
            for _ in range(10**4): pass
        except KeyboardInterrupt:
            interrupted += 1
    child = os.fork()
    if not child:
        os._exit(int(torch.ones(1 << 20).sum() != 1 << 20))
    print(json.dumps([interrupted > 20, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]))
    step()
    policy.close()
    print(all(bool(one.isfinite().all()) for one in model.parameters()))
    """)
    lines = ended.stdout.splitlines()
    assert (json.loads(lines[0]), lines[1]) == ([True, 0], "True"), ended.stderr


def test_threads_do_not_use_what_a_step_without_python_has_made() -> None:
    ended = run("""
    policy = Sentinel(model, optimizer, budget="60%")
    for _ in range(4): step()
    optimizer.zero_grad()
    hidden = model[:3](torch.ones(64, 256))
    made = []
    def use():
        try: made.append(hidden.detach().sum())
        except Exception as error: made.append(type(error).__name__)
    thread = threading.Thread(target=use)
    thread.start(); thread.join()
    print(made, policy._residency.state.skipped > 0)
    """)
    assert ended.stdout == "['InvalidArgumentError'] True\n", ended.stderr
