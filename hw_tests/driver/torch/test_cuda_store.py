"""The store of a GPU's tensors, on streams that do their work as late as they may, or early."""

from __future__ import annotations

import ctypes
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install -e '.[torch]'"
)

from hw_tests.driver.torch.odd_models import MODELS, batches, loss_of
from sw_driver.torch.cuda_store import CudaStore, Gpu
from sw_driver.torch.sentinel import Sentinel
from sw_driver.torch.slow_memory import store_at

NBYTES = 1 << 12


class FakeEvent:
    def __init__(self) -> None:
        self.stream: Any = None
        self.over, self.at_ms = False, 0.0

    def query(self) -> bool:
        self.stream.gpu.some()
        return self.over

    def elapsed_time(self, other: FakeEvent) -> float:
        return other.at_ms - self.at_ms


class FakeStream:
    """A queue of work, begun in order; an event of another stream holds all that follows."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu, self.queue = gpu, deque[Any]()

    def record_event(self, event: FakeEvent) -> FakeEvent:
        event.stream = self
        self.queue.append(event)
        self.gpu.settle(self)
        return event

    def wait_event(self, event: FakeEvent) -> None:
        if "wait" not in self.gpu.lacks or self.gpu.lacks["wait"] != (self is self.gpu.present):
            self.queue.append((event,))
        self.gpu.settle(self)

    def synchronize(self) -> None:
        while self.queue:
            self.gpu.advance()

    def can_go_on(self) -> bool:
        return bool(self.queue) and not (
            isinstance(self.queue[0], tuple) and not self.queue[0][0].over
        )

    def go_on(self) -> None:
        work = self.queue.popleft()
        self.gpu.now_ms += 1
        if isinstance(work, FakeEvent):
            work.over, work.at_ms = True, self.gpu.now_ms
        elif callable(work):
            work()


class FakeGpu(Gpu):
    """The host's memory as a GPU's: streams take turns at random.

    With ``eager`` the present stream's work is PyTorch's on the CPU, so it is done when it is
    queued; copies are still late. ``lacks`` leaves out waits: of the present stream if it is true,
    else of the copies' streams.
    """

    def __init__(self, seed: int, *, eager: bool = False, **lacks: bool) -> None:
        self.random, self.eager, self.lacks = random.Random(seed), eager, lacks
        self.now_ms = 0.0
        self.streams: list[FakeStream] = []
        self.present = self.new_stream()

    def new_stream(self) -> FakeStream:
        self.streams.append(FakeStream(self))
        return self.streams[-1]

    def current_stream(self) -> FakeStream:
        return self.present

    def new_event(self) -> FakeEvent:
        return FakeEvent()

    def pinned(self, nbytes: int) -> Any:
        return torch.empty(nbytes, dtype=torch.uint8)

    def memory(self, address: int, nbytes: int) -> Any:
        return torch.frombuffer((ctypes.c_byte * nbytes).from_address(address), dtype=torch.uint8)

    def copy(self, stream: FakeStream, to: Any, source: Any) -> None:
        ends = (to.data_ptr(), source.data_ptr(), to.nbytes)
        stream.queue.append(lambda: ctypes.memmove(*ends))
        # As PyTorch keeps pinned memory, and nobody the GPU's.
        stream.queue.append(lambda kept=(to, source): None)

    def advance(self) -> None:
        ready = [each for each in self.streams if each.can_go_on()]
        assert ready, "all streams wait for each other"
        self.random.choice(ready).go_on()

    def some(self) -> None:
        for _ in range(self.random.randrange(4)):
            if any(each.can_go_on() for each in self.streams):
                self.advance()

    def settle(self, stream: FakeStream) -> None:
        if self.eager and stream is self.present:
            while stream.queue:
                self.advance()


def roundtrips(gpu: FakeGpu, seed: int) -> bool:
    """Whether bytes come back that the present stream makes, moves, and overwrites at once."""
    store, chooses = CudaStore(gpu), random.Random(seed)
    here = [torch.zeros(NBYTES, dtype=torch.uint8) for _ in range(3)]
    places = [store.take(NBYTES) for _ in range(3)]
    wanted, found = [], []

    def work(what: Callable[[], Any]) -> None:
        gpu.present.queue.append(what)

    for number in range(20):
        at, to = chooses.randrange(3), chooses.randrange(3)
        value = number + 1
        work(lambda at=at, value=value: here[at].fill_(value))
        store.write(places[at], here[at].data_ptr(), NBYTES).wait()
        work(lambda at=at: here[at].fill_(0))  # as memory that is others' now
        store.read(places[at], here[to].data_ptr(), NBYTES).wait()
        work(lambda to=to: found.append(here[to].clone()))
        wanted.append(torch.full((NBYTES,), value, dtype=torch.uint8))
    for stream in gpu.streams:
        stream.synchronize()
    store.close()
    return all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("seed", range(20))
def test_each_copy_waits_for_what_it_needs_and_is_waited_for(seed: int) -> None:
    assert roundtrips(FakeGpu(seed), seed)


@pytest.mark.parametrize("present", [True, False])
def test_a_wait_that_lacks_shows(present: bool) -> None:
    right = [roundtrips(FakeGpu(seed, wait=present), seed) for seed in range(20)]
    assert not all(right)


def test_the_host_does_not_wait_and_the_gpus_waits_are_counted() -> None:
    gpu = FakeGpu(1)
    store = CudaStore(gpu)
    here, place = torch.ones(NBYTES, dtype=torch.uint8), store.take(NBYTES)
    job = store.write(place, here.data_ptr(), NBYTES)
    job.wait()
    assert any(each.queue for each in gpu.streams)
    before = store.stalled_ns()
    for stream in gpu.streams:
        stream.synchronize()
    assert job.done()
    assert store.stalled_ns() > before
    waited = store.stalled_ns()
    job.wait()  # of what has ended
    assert store.stalled_ns() == waited


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("seed", [1, 2])
def test_bits_are_those_of_training_without(
    seed: int, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = FakeGpu(seed, eager=True)
    monkeypatch.setattr("sw_driver.torch.sentinel.store_at", lambda *_: CudaStore(gpu))
    results = []
    for budget in None, "70%":
        torch.manual_seed(1)
        model = make()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        policy = budget and Sentinel(model, optimizer, budget=budget, least_bytes=1 << 10)
        found = []
        for batch in batches(8):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            found.append(loss.detach().clone())
        if policy:
            report = policy.report()
            assert report["back_bytes"] > 0
            assert report["peak_bytes"] <= report["budget_bytes"]
            policy.close()
        results.append([*found, *(each.detach().clone() for each in model.parameters())])
    assert all(map(torch.equal, *results))


def test_a_model_on_a_gpu_has_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream(FakeGpu(0)))
    assert isinstance(store_at("host", torch.device("cuda")), CudaStore)
