"""Storages elsewhere: every operation finds the bytes it would have found without."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.torch.residency import Policy, Residency, held_of
from sw_driver.torch.slow_memory import store_at
from sw_driver.torch.stores import HostStore, Job

pytestmark = pytest.mark.usefixtures("guard")


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 64)
        self.mixed = nn.Linear(64, 64)
        self.out = nn.Linear(64, 40, bias=False)
        self.out.weight = self.words.weight
        self.still = nn.Linear(64, 64).requires_grad_(False)

    def forward(self, x: Any) -> Any:
        h = self.mixed(self.words(x))
        return self.out(h + self.still(torch.relu_(self.mixed(h)))).mean(1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 64)
        self.lstm = nn.LSTM(64, 64, num_layers=2, batch_first=True, dropout=0.1)
        self.out = nn.Linear(64, 40)

    def forward(self, x: Any) -> Any:
        return self.out(self.lstm(self.words(x))[0][:, -1])


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 64)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(3)
        )
        self.out = nn.Linear(64, 40)

    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.training):
            h = self.words(x)
            for n, block in enumerate(self.blocks):
                h = checkpoint(block, h, use_reentrant=n == 1) if self.training else block(h)
            return self.out(h.mean(1)).float()


def test_a_hosts_places_are_kept_within_what_was_in_use_at_a_time() -> None:
    store = HostStore()
    first = store.take(1000)
    store.give(first, 1000)
    assert store.take(1000) is first
    store.give(first, 1000)
    gone = weakref.ref(first)
    del first
    places = [store.take(nbytes) for nbytes in (400, 500)]
    assert gone() is None  # 1,900 bytes would be more than ever in use
    for place, nbytes in zip(places, (400, 500), strict=True):
        store.give(place, nbytes)
    assert store.take(400) is places[0]
    assert store.take(500) is places[1]
    store.close()


class Now(HostStore):
    """Copies at once, or fails."""

    fails = False

    def write(self, place: Any, address: int, nbytes: int) -> Job:
        return self._do(self._write, place, address, nbytes)

    def read(self, place: Any, address: int, nbytes: int) -> Job:
        return self._do(self._read, place, address, nbytes)

    def _do(self, copied: Callable[..., None], *args: Any) -> Job:
        if not self.fails:
            copied(*args, None)
        return self

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        if self.fails:
            raise OSError("no space left")


@pytest.fixture
def residency() -> Any:
    with Residency(Now(), budget=1 << 20, least_bytes=64) as entered:
        yield entered
        entered.close()


def empty(residency: Residency) -> None:
    """Has everything leave."""
    for held in residency:
        residency.drop(held)


def trained(
    make: Callable[[], nn.Module], where: str | None = None, budget_bytes: int = 0, **options: Any
) -> tuple[list[Any], Residency | None]:
    torch.manual_seed(1)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **options)
    residency = None
    if where is not None:
        residency = Residency(store_at(where), budget=budget_bytes, least_bytes=1 << 10)
        residency.adopt(model.parameters())
        residency.__enter__()
    results: list[Any] = []
    for _ in range(3):
        words = torch.randint(40, (8, 16))
        loss = nn.functional.cross_entropy(model(words), words[:, 0])
        loss.backward()
        foreach = options.get("foreach")
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=foreach)
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            results += [loss.item(), model(words)]
        model.train()
    if residency is not None:
        residency.close()
    states = optimizer.state_dict()["state"].values()
    return [*results, *model.parameters(), *(s[k] for s in states for k in sorted(s))], residency


def assert_same(these: list[Any], those: list[Any]) -> None:
    assert len(these) == len(those)
    for this, that in zip(these, those, strict=True):
        assert torch.equal(torch.as_tensor(this), torch.as_tensor(that))


@pytest.mark.parametrize(
    ("make", "where", "budget_bytes", "options"),
    [
        (Tied, "host", 150_000, {}),
        (Tied, "file", 150_000, {"foreach": True}),
        (Recurrent, "file", 1_400_000, {"fused": True}),
        (Attending, "file", 400_000, {"amsgrad": True}),
    ],
)
def test_bits_are_those_of_training_without(
    make: Any, where: str, budget_bytes: int, options: Any, tmp_path: Path
) -> None:
    where = str(tmp_path) if where == "file" else where
    found, residency = trained(make, where, budget_bytes, **options)
    assert residency is not None
    assert residency.statistics.bytes_back > residency.live_bytes
    assert residency.peak_bytes <= budget_bytes
    assert_same(found, trained(make, **options)[0])
    assert not [*tmp_path.iterdir()]


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:torch.quantize")
def test_storages_of_all_kinds_come_back(residency: Residency) -> None:
    dense = torch.arange(64.0)
    sparse = torch.eye(64).to_sparse()
    rows = torch.eye(64).to_sparse_csr()
    conjugate = (torch.ones(64, dtype=torch.complex64) * (1 + 2j)).conj()
    quantized = torch.quantize_per_tensor(torch.ones(64), 1.0, 0, torch.qint8)
    nested = torch.nested.nested_tensor([torch.ones(20, 8)], layout=torch.jagged)
    grown = torch.empty(0)
    torch.add(dense, 1, out=grown)
    assert held_of(grown) is not None
    sums: tuple[Callable[[], Any], ...] = (
        lambda: (sparse @ dense[:, None]).sum() - 1952,
        lambda: (rows @ dense).sum() - 1952,
        lambda: conjugate.imag.sum() + 192,
        lambda: torch.dequantize(quantized).sum(),
        lambda: (nested * 0.4).values().sum(),
        lambda: grown.sum() - 2016,
        lambda: torch.func.vmap(lambda x: x + 1)(dense).sum() - 2016,
        lambda: torch.func.grad(lambda x: x.sum())(dense).sum(),
        lambda: torch.compile(lambda x: x.sum() - 1952, backend="eager")(dense),
        lambda: dense.set_(grown.untyped_storage(), 0, (64,)).sum() - 2016,
        lambda: dense.resize_(65).fill_(1).sum() - 1,
    )
    for each in sums:
        empty(residency)
        assert not any(held.here for held in residency)
        assert each().item() == pytest.approx(64)


def test_what_reads_memory_itself_finds_it(residency: Residency) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    model[1].weight = model[0].weight
    first = model[0].weight.tolist()
    residency.adopt(model.parameters())
    empty(residency)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    copies = [pickle.loads(pickle.dumps(model))]
    assert model[0].weight.tolist() == first
    assert "Parameter" in repr(model[0].weight)
    assert not any(held.here for held in residency)
    copies.append(copy.deepcopy(model))
    empty(residency)
    model[0].weight.data_ptr()
    assert residency.of(model[0].weight).here
    file.seek(0)
    loaded = torch.load(file)
    assert loaded["0.weight"].data_ptr() == loaded["1.weight"].data_ptr()
    assert loaded["0.weight"].tolist() == first
    for each in copies:
        assert each[0].weight is each[1].weight
        assert each[0].weight.tolist() == first


@pytest.mark.parametrize("read", [np.asarray, np.from_dlpack])
def test_memory_that_was_handed_out_stays(residency: Residency, read: Any) -> None:
    values = torch.arange(100.0)
    empty(residency)
    array = read(values)
    with pytest.raises(RuntimeError):
        residency.drop(residency.of(values))
    residency.budget_bytes = 500
    with pytest.raises(torch.OutOfMemoryError, match=r"400 bytes .*\(400 were handed out"):
        values.add(1)
    assert array[99] == 99


def test_each_storage_has_one_residency(residency: Residency) -> None:
    mine = torch.ones(100)
    other = Residency(Now(), budget=1 << 20, least_bytes=64).__enter__()
    theirs = torch.ones(100)
    assert residency.of(mine)
    assert other.of(theirs)
    assert residency.of(mine + 1)
    with pytest.raises(InvalidArgumentError, match="two policies"):
        mine.add_(theirs)
    with pytest.raises(InvalidArgumentError, match="another policy"):
        other.adopt([torch.empty(0), mine])
    other.takes = False
    assert other.of(theirs + 1) is None
    assert residency.of(torch.ones(100))
    empty(residency)
    empty(other)
    other.close()
    assert theirs.sum() == mine.sum() == 100


def test_other_modes_are_entered_after_it_and_left_in_any_order(residency: Residency) -> None:
    values = torch.ones(64, 64)
    with FlopCounterMode(display=False) as flops:
        empty(residency)
        (values @ values).sum()
        residency.close()
        second = Residency(Now(), least_bytes=64).__enter__()
        values = values @ values
        empty(second)
    assert values.sum() == 64**3
    second.close()
    assert flops.get_total_flops() == 2 * 2 * 64**3
    with FlopCounterMode(display=False), pytest.raises(InvalidArgumentError, match="FlopCounter"):
        Residency().__enter__()


def test_threads_and_copies_of_the_process_are_refused(residency: Residency) -> None:
    values = torch.ones(100)
    empty(residency)
    raised = []

    def use(*calls: Callable[[], object]) -> None:
        for call in calls:
            with pytest.raises(InvalidArgumentError) as error:
                call()
            raised.append(error)

    def enter() -> None:
        with Residency():
            values.add(1)

    everything = (values.numpy, values.tolist, residency.check_thread, residency.close, enter)
    thread = threading.Thread(target=use, args=everything)
    thread.start()
    thread.join()
    assert len(raised) == 5
    child = os.fork()
    if not child:
        try:
            use(lambda: values + 1, values.tolist, values.numpy)
            os._exit(len(raised))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 8
    assert values.sum() == 100


def test_a_copy_of_the_process_has_no_budget() -> None:
    with Residency(Now(), budget=1 << 12, least_bytes=64) as residency:
        values = torch.ones(512)
        child = os.fork()
        if not child:
            try:
                residency.takes = True  # as the hooks of a policy have it
                os._exit(int(torch.ones(2048)[:512].add(values).sum()) % 255)
            finally:
                os._exit(255)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1024 % 255
        residency.close()


def test_tensors_without_bytes_are_traced(residency: Residency) -> None:
    weight = torch.ones(64, 64)
    empty(residency)
    with FakeTensorMode(allow_non_fake_inputs=True):
        layer = torch.nn.Linear(64, 32)
        assert layer(torch.ones(4, 64) @ weight).detach().shape == (4, 32)
    graph = make_fx(lambda given: (given @ given).sum(), tracing_mode="fake")(weight)
    assert graph(weight) == 64**3


def test_a_store_that_fails_loses_nothing(residency: Residency) -> None:
    first, second = torch.ones(100), torch.ones(100)
    residency.drop(residency.of(first))
    store: Any = residency.store
    store.fails = True
    for call in (first.sum, residency.close, lambda: residency.drop(residency.of(second))):
        with pytest.raises(OSError, match="no space left"):
            call()
        assert (residency.of(first).here, residency.of(second).here) == (False, True)
        assert residency.used_bytes == 400
    residency.budget_bytes = 500
    others = [torch.ones(10), torch.ones(10)]
    with pytest.raises(OSError, match="no space left"):
        residency.adopt([others[0], torch.from_numpy(np.ones(100)).clone(), others[1]])
    assert not any(map(residency.of, others))
    store.fails = False
    assert first.sum() == second.sum() == 100


def test_what_can_be_made_again_needs_no_store(residency: Residency) -> None:
    values = torch.ones(100)
    twice = values * 2

    def make() -> Any:
        residency.bring(values)
        return values * 2

    held = residency.of(twice)
    residency.store, held.make = None, make
    residency.drop(held)
    assert twice.sum() == 200
    assert residency.statistics.bytes_made == 400
    twice += 1
    with pytest.raises(InvalidArgumentError, match="no store"):
        residency.drop(held)
    held.make = lambda: values[:50].clone()
    residency.drop(held)
    with pytest.raises(InvalidArgumentError, match=r"200 bytes were recomputed for .* 400"):
        twice.sum()
    held.make = lambda: values * 3
    assert twice.sum() == 300


def test_nothing_leaves_if_the_policy_says_so(residency: Residency) -> None:
    class Keeping(Policy):
        def victim(self, residency: Residency, stay: Any) -> None:
            return None

    residency.policy, residency.budget_bytes = Keeping(), 1000
    values = torch.ones(100)
    with pytest.raises(torch.OutOfMemoryError, match=r"no room for 800 bytes .* 600 of 1000"):
        torch.cat([values, values])
    del values
    assert torch.ones(240).sum() == 240
    assert residency.peak_bytes == 960


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_anywhere_loses_nothing() -> None:
    """At some of the calls of Python and C, as these are where CPython takes signals."""
    first = [torch.full((100,), float(n)) for n in range(4)]

    def step(tensors: list[Any]) -> list[float]:
        for n in range(4):
            tensors[n].add_(tensors[(n + 2) % 4] @ tensors[n] * 0)
        return [(each * 2).sum().item() for each in tensors]

    expected = step(first)
    calls, at, interrupted = 0, 0, 0

    def profile(frame: Any, event: str, called: object) -> None:
        nonlocal calls
        calls += called is not sys.setprofile
        if calls == at and called is not sys.setprofile:
            signal.raise_signal(signal.SIGINT)

    while calls >= at or not interrupted:
        tensors = [each.clone() for each in first]
        residency = Residency(Now(), budget=1300, least_bytes=64)
        residency.adopt(tensors)
        with residency:
            calls, at = 0, at + 61
            try:
                sys.setprofile(profile)
                step(tensors)
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                sys.setprofile(None)
            assert residency.used_bytes == sum(held.nbytes for held in residency if held.here)
            assert residency.used_bytes <= 1300
            assert all(held.here or held.stored for held in residency)
            assert step(tensors) == expected
            residency.close()
    assert interrupted > 10


GROWTH = """
import json, sys, torch
from torch import nn
from sw_driver.torch.residency import Residency
from sw_driver.torch.slow_memory import store_at

def status(name):
    lines = open("/proc/self/status")
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) << 10

base = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8)))
optimizer = torch.optim.AdamW(model.parameters())
if sys.argv[1:]:
    residency = Residency(store_at(sys.argv[1]), budget=40 << 20)
    residency.adopt(model.parameters())
    residency.__enter__()
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(512, 1024)).square().mean().backward()
    optimizer.step()
print(json.dumps(status("VmHWM") - base))
"""


def test_the_process_grows_by_the_budget_and_little_more(tmp_path: Path) -> None:
    def growth(*args: str) -> int:
        made = subprocess.run(
            [sys.executable, "-c", GROWTH, *args], capture_output=True, text=True, check=True
        )
        return json.loads(made.stdout)

    assert growth() > 140 << 20
    assert growth(str(tmp_path)) < 72 << 20


def statistics_after(call: Callable[[Any, Any, Any], object], where: Residency | None) -> list[Any]:
    """Statistics of 64 features after two calls, between which everything leaves."""
    torch.manual_seed(1)
    found = [torch.zeros(64), torch.ones(64)]
    for _ in range(2):
        if where is not None:
            empty(where)
        call(torch.randn(8, 64, 3), *found)
    return [each.tolist() for each in found]


@pytest.mark.parametrize(
    "call",
    [
        lambda x, *s: nn.functional.batch_norm(x, *s, training=True),
        lambda x, *s: nn.functional.instance_norm(x, *s),
        lambda x, *s: torch.batch_norm_update_stats(x, *s, 0.1),
        lambda x, *s: torch.inference_mode()(nn.functional.batch_norm)(x, *s, training=True),
        lambda x, *s: torch.inference_mode()(nn.functional.instance_norm)(x, *s),
    ],
)
def test_what_operators_write_without_saying_so_is_kept(residency: Residency, call: Any) -> None:
    found = statistics_after(call, residency)
    residency.close()
    assert found == statistics_after(call, None)


def test_collectives_keep_their_memory(residency: Residency) -> None:
    from torch import distributed

    store = distributed.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        values = torch.ones(100)
        empty(residency)
        work: Any = distributed.all_reduce(values, async_op=True)
        with pytest.raises(RuntimeError, match="handed out"):
            residency.drop(residency.of(values))
        work.wait()
    finally:
        distributed.destroy_process_group()
    assert values.sum() == 100


def test_a_refused_operation_leaves_no_mark(residency: Residency) -> None:
    mean, variance, values = torch.zeros(25), torch.ones(25), torch.randn(8, 25)
    residency.budget_bytes = 1300
    before = residency.most_needed_bytes, residency.live_bytes, residency.most_live_bytes
    refused: tuple[Callable[[], object], ...] = (
        lambda: nn.functional.batch_norm(values, mean, variance, training=True),
        lambda: torch.cat([values, values]),
        lambda: values.add_(torch.ones(3)),
        lambda: torch.empty(1000),
    )
    for call in refused:
        with pytest.raises(RuntimeError):
            call()
        after = residency.most_needed_bytes, residency.live_bytes, residency.most_live_bytes
        assert after == before
        assert residency.used_bytes == sum(held.nbytes for held in residency if held.here)
    assert mean.tolist() == [0.0] * 25
    with pytest.raises(torch.OutOfMemoryError):
        residency._make_room(10_000, "nothing")
    assert residency.most_needed_bytes == before[0]


@pytest.mark.parametrize("inference", [False, True])
def test_what_inference_mode_made_is_as_ever(residency: Residency, inference: bool) -> None:
    def saved(values: Any) -> list[Any]:
        file = io.BytesIO()
        torch.save(values, file)
        file.seek(0)
        return torch.load(file).tolist()

    calls: tuple[Callable[[Any], Any], ...] = (
        lambda x: x.tolist(), repr, lambda x: f"{x[0, 0]:.2f}", lambda x: x.sum().item(), saved,
        lambda x: copy.deepcopy(x).tolist(), lambda x: pickle.loads(pickle.dumps(x)).tolist(),
        lambda x: x.T.contiguous().tolist(), lambda x: x.clone().tolist(), lambda x: repr(x[:2]),
        lambda x: x.is_inference(), lambda x: repr(x.conj()),
    )  # fmt: skip
    with torch.inference_mode():
        values = torch.arange(64.0).view(8, 8)
        weight = nn.Parameter(torch.ones(8, 8))
        plain = residency.copied(values)
    assert plain.is_inference()
    for call in calls:
        for mode in torch.inference_mode(inference), torch.no_grad():
            with mode:
                empty(residency)
                assert call(values) == call(plain)
    with torch.inference_mode(inference):
        assert "requires_grad=True" in repr(weight)
        assert values.numpy().tolist() == plain.numpy().tolist()


def test_memory_is_not_shared_with_other_processes(residency: Residency) -> None:
    values, model = torch.ones(100), nn.Linear(64, 64)
    residency.adopt(model.parameters())
    context = torch.multiprocessing.get_context("spawn")
    one_end, _ = context.Pipe()
    calls: tuple[Callable[[], object], ...] = (
        values.share_memory_,
        values.untyped_storage().share_memory_,
        values.untyped_storage()._share_filename_cpu_,
        model.share_memory,
        lambda: context.Queue().put({"it": [values[3:]]}),
        lambda: context.JoinableQueue().put(model),
        lambda: context.SimpleQueue().put(values.detach()),
        lambda: one_end.send(values.untyped_storage()),
    )
    for call in calls:
        empty(residency)
        with pytest.raises(InvalidArgumentError, match="shared with another process"):
            call()
        assert values.untyped_storage().is_shared() is False
        assert (values.sum(), model.weight.isfinite().all()) == (100, True)
    empty(residency)
    own = copy.deepcopy(values.detach())
    queue = context.Queue()
    queue.put(own.share_memory_())
    assert queue.get(timeout=60).sum() == 100


def test_memory_of_other_processes_and_files_stays(residency: Residency, tmp_path: Path) -> None:
    with torch.utils._python_dispatch._disable_current_modes():
        shared = torch.ones(100).share_memory_()
        mapped = torch.from_file(str(tmp_path / "file"), shared=True, size=100)
    others = (
        shared,
        mapped,
        torch.from_numpy(np.ones(100)),
        torch.frombuffer(bytearray(400), dtype=torch.uint8),
    )
    assert residency.adopt(others) == []
    assert [residency.of(each.add_(1)) for each in others] == [None] * 4


@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_storages_are_what_they_would_be(residency: Residency) -> None:
    values = torch.ones(100)
    storage = values.untyped_storage()
    typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=values.dtype, _internal=True)
    for change in lambda: storage.fill_(0), lambda: storage.__setitem__(3, 64):
        empty(residency)
        change()
        empty(residency)
    assert len(storage) == storage.nbytes() == storage.size() == 400
    empty(residency)
    assert (storage[3], sum(storage.tolist())) == (64, 64)
    empty(residency)
    assert storage.clone()[3] == 64
    empty(residency)
    assert (typed[0], typed.tolist()[1]) == (values[0], values[1])
    empty(residency)
    torch.UntypedStorage(400).copy_(storage)
    empty(residency)
    storage.resize_(800)
    assert residency.of(values).nbytes == 800
    empty(residency)
    assert values[0] == 2.0
    storage.resize_(0)
    assert (residency.of(values), residency.used_bytes) == (None, 0)


def test_other_threads_use_what_may_leave_not_at_all(residency: Residency) -> None:
    weight = nn.Parameter(torch.ones(10, 10))
    residency.adopt([weight])
    loss = (weight * weight).sum()
    copied = copy.deepcopy(weight.detach())
    average = torch.from_numpy(np.ones((10, 10), np.float32))

    def used() -> list[str]:
        calls: tuple[Callable[[], object], ...] = (
            weight.sum, loss.backward, lambda: average.add_(weight.detach()), lambda: weight[0],
            lambda: weight.data.zero_(), lambda: repr(weight), lambda: weight.untyped_storage()[0],
            lambda: residency.copied(weight), lambda: residency.bring(weight),
            lambda: torch.to_dlpack(weight.detach()), lambda: copy.deepcopy(weight),
        )  # fmt: skip
        for call in calls:
            with pytest.raises(InvalidArgumentError, match=r"copy.deepcopy\(tensor.detach\(\)\)"):
                call()
        return [str(copied.sum().item()), str(average.add_(copied).sum().item())]

    for pool in EARLY, ThreadPoolExecutor(1):
        for leaves in False, True:
            if leaves:
                empty(residency)
            with torch.no_grad():
                average.fill_(1)
            assert pool.submit(used).result() == ["100.0", "200.0"]
    assert weight.sum() == 100
    residency.close()
    assert EARLY.submit(weight.sum).result() == 100


def test_sizes_of_what_writes_are_known_from_calls_alike() -> None:
    class Knows(Policy):
        def before(self, func: Any, used: Any) -> int:
            return 1  # less than it makes

    def normalized(size: int) -> Any:
        mean, var = torch.zeros(4), torch.ones(4)
        return mean, torch.native_batch_norm(
            torch.ones(size, 4), None, None, mean, var, True, 0.1, 1e-5
        )

    with Residency(Now(), Knows(), budget=1 << 14, least_bytes=64) as residency:
        for size in 16, 256, 16, 256:
            mean, _ = normalized(size)
            assert mean[0] == pytest.approx(0.1)
        for _ in range(2):
            mean, var, values = torch.zeros(4), torch.ones(4), torch.ones(600, 4)
            with pytest.raises(torch.OutOfMemoryError):
                torch.native_batch_norm(values, None, None, mean, var, True, 0.1, 1e-5)
            assert mean.sum() == 0  # it was refused before it wrote
            del values
        assert len(residency._known_bytes) == 3
        residency.close()


def test_threads_have_a_mode_only_beside_a_residency() -> None:
    pools = [ThreadPoolExecutor(1)]

    def modes() -> list[str]:
        found = [pool.submit(_get_current_dispatch_mode).result() for pool in pools]
        return [type(each).__name__ for each in (*found, _get_current_dispatch_mode())]

    assert modes() == ["NoneType"] * 2
    for count in 3, 5:
        residency = Residency(Now(), least_bytes=64).__enter__()
        values = torch.ones(100)
        empty(residency)
        pools.append(ThreadPoolExecutor(1))  # begins while it is there; the next one, while not
        assert modes() == ["_Watch"] * count
        residency.close()
        pools.append(ThreadPoolExecutor(1))
        assert modes() == ["NoneType"] * (count + 1)
        assert values.sum() == 100
        assert pools[0].submit(values.sum).result() == 100


def test_a_thread_that_has_closed_its_residency_keeps_off_that_of_another() -> None:
    pool = ThreadPoolExecutor(1)
    first = pool.submit(Residency(Now(), least_bytes=64).__enter__).result()
    residency = Residency(Now(), least_bytes=64).__enter__()
    values = torch.ones(100)
    empty(residency)
    pool.submit(first.close).result()
    with pytest.raises(InvalidArgumentError, match="another thread or process"):
        pool.submit(values.sum).result()
    residency.close()
    assert pool.submit(values.sum).result() == 100
    assert pool.submit(_get_current_dispatch_mode).result() is None


EARLY = ThreadPoolExecutor(1)
"""A thread that runs before there is a residency."""
EARLY.submit(int).result()
