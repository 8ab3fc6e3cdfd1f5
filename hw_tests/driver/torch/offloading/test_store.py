"""The tensor store: bits whatever is evicted, what is counted, who is evicted, what goes wrong."""

from __future__ import annotations

import errno
import math
import os
import random
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hw_tests.driver.conftest import EVERY_RULE
from hw_tests.driver.torch.offloading.reference_store import ReferenceStore, same
from hw_tests.driver.transports import TransportWrapper, of_kernel
from sw_driver.axdimm import Axdimm, BackendOptions
from sw_driver.axdimm.backends import open_backend
from sw_driver.device.errors import (
    ClosedError,
    InvalidArgumentError,
    OutOfMemoryError,
    StorageError,
    StreamFailedError,
)
from sw_driver.device.transport import DeviceFault

pytest.importorskip("torch", reason="PyTorch is not installed")

from sw_driver.torch.offloading import TensorStore

HYPERPARAMETERS: dict[str, dict[str, Any]] = {
    "adam": {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.01},
    "amsgrad": {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.0},
    "momentum": {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.0},
    "sgd": {"lr": 0.1, "weight_decay": 0.01},
}
LINE = 16
"""Values of a line."""

Array = NDArray[np.float32]


def hyperparameters(rule: str, t: int) -> dict[str, Any]:
    return HYPERPARAMETERS[rule] | ({} if rule == "sgd" else {"t": t})


def noise(count: int, seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=count).astype(np.float32)


def registered(device: Axdimm, folder: Path) -> Axdimm:
    """The device with storage in two files."""
    for number in range(2 - len(device.storage.links)):
        device.RegisterStorage(folder / f"nvme{number}", capacity_bytes=4 << 20)
    return device


class Program:
    """Random calls to a store, each with what has to come of it."""

    def __init__(self, store: TensorStore, seed: int, largest: int) -> None:
        self.store = store
        self.largest = largest
        self.chance = random.Random(seed)
        self.reference = ReferenceStore()
        self.fetched: list[tuple[Any, Array, Array]] = []
        self.times: list[int] = []
        self.seeds = iter(range(1_000_000 * seed, 1_000_000 * (seed + 1)))
        self.counts: list[int] = []

    def add(self, rule: str) -> None:
        key, count = len(self.counts), self.chance.randint(1, self.largest)
        self.counts.append(count)
        self.times.append(0)
        initial = {} if rule == "sgd" else {"m": 0.5}
        values = noise(count, next(self.seeds))
        assert self.store.add(str(key), values, rule=rule, initial_state=initial) == key
        self.reference.add(str(key), values, rule, **initial)
        values[:] = np.nan  # it has been taken over

    def step(self) -> None:
        key = self.chance.randrange(len(self.counts))
        own = self.reference.tensors[str(key)]
        calls: list[Callable[[int], None]] = [self.receive, self.fetch, self.read, self.other]
        weights = [4, 3, 1, 1]
        if "g" in own:
            calls.append(self.update)
            weights.append(10)
        self.chance.choices(calls, weights)[0](key)

    def receive(self, key: int) -> None:
        gradient = noise(self.counts[key], next(self.seeds))
        handle = self.store.receive(key, gradient, measure=self.chance.random() < 0.3)
        self.reference.receive(str(key), gradient)
        if self.chance.random() < 0.3:
            handle.wait()
            gradient[:] = np.nan

    def update(self, key: int) -> None:
        self.times[key] += 1
        scale = self.chance.choice([1.0, 1.0, 0.7])
        given = hyperparameters(self.reference.rules[str(key)], self.times[key])
        self.store.update(key, given, scale=scale)
        self.reference.update(str(key), scale, **given)

    def fetch(self, key: int) -> None:
        target = np.zeros(self.counts[key], np.float32)
        expected = self.reference.tensors[str(key)]["p"].copy()
        self.fetched.append((self.store.fetch(key, target), target, expected))

    def read(self, key: int) -> None:
        own = self.reference.tensors[str(key)]
        name = self.chance.choice(sorted(own))
        assert same(self.store.read(key, name), own[name])

    def other(self, key: int) -> None:
        own = self.reference.tensors[str(key)]
        match self.chance.choice(["norm", "write", "begin", "discard"]):
            case "norm":
                assert self.store.norm() == self.reference.norm()
            case "write":
                name = self.chance.choice(sorted({*own} - {"g"}))
                own[name] = noise(self.counts[key], next(self.seeds))
                self.store.write(key, name, own[name])
            case "discard":
                self.store.discard(key)
                own.pop("g", None)
            case _:
                self.store.begin_iteration()

    def check(self) -> None:
        for handle, target, expected in self.fetched:
            handle.wait()
            assert same(target, expected)
        check(self.store, self.reference)


SMALL = (250, 6 * 1024)
LARGE = (9000, 200 << 10)
"""Largest tensor, in values, and a channel's bytes. Large ones are staggered over the banks."""


@pytest.mark.parametrize(
    ("sizes", "seed"), [(SMALL, 0), (SMALL, 1), (LARGE, 2)], ids=["small", "small again", "large"]
)
@pytest.mark.parametrize("placement", ["round_robin", "by_bytes"])
def test_random_programs_give_the_golden_bits(
    device: Axdimm, tmp_path: Path, sizes: Any, placement: Any, seed: int
) -> None:
    largest, capacity = sizes
    registered(device, tmp_path)
    before = [device.memory(channel).free_bytes for channel in range(2)]
    with TensorStore(device, capacity_bytes=capacity, placement=placement) as store:
        program = Program(store, seed, largest)
        for rule in ("adam", "sgd", "momentum", "adam", "amsgrad") * 2:
            program.add(rule)
        for _ in range(150):
            program.step()
        program.check()
        counted = store.statistics()
        assert counted.evictions > 10
        assert counted.copied_bytes["nvme->host"] > 0
        assert all(0.6 * capacity < peak <= capacity for peak in counted.peak_module_bytes)
    assert [device.memory(channel).free_bytes for channel in range(2)] == before
    assert all(not each.allocations for each in device.storage.statistics())


def test_what_is_counted_is_what_the_driver_counted(cycles: Axdimm, tmp_path: Path) -> None:
    registered(cycles, tmp_path)
    with TensorStore(cycles, capacity_bytes=6 * 1024) as store:
        program = Program(store, 7, 250)
        for rule in ("adam", "sgd", "momentum", "adam", "amsgrad") * 2:
            program.add(rule)
        for _ in range(150):
            program.step()
        program.check()
        counted = store.statistics()
        copied = counted.copied_bytes
        links = [cycles.copied_bytes(channel) for channel in range(2)]
        files = cycles.storage.statistics()

        def over(*routes: str) -> int:
            assert all(copied[route] for route in routes), copied
            return sum(copied[route] for route in routes)

        to_module = over("host->module", "nvme->module")
        assert to_module == sum(each.link_to_device for each in links)
        from_module = over("module->host", "module->nvme")
        assert from_module == sum(each.link_to_host for each in links)
        written = over("module->nvme", "host->nvme")
        assert written == sum(each.bytes_written for each in files)
        fetched = over("nvme->module", "nvme->host")
        assert fetched == sum(each.bytes_read for each in files)
        assert set(copied) == {
            *("host->module", "nvme->module", "module->host"),
            *("module->nvme", "host->nvme", "nvme->host"),
        }
        assert 0 < counted.nvme_bytes == counted.peak_nvme_bytes
        assert all(time > 0 for time in counted.kernel_ns)


def test_the_same_program_counts_and_takes_the_same_again(tmp_path: Path) -> None:
    found = []
    for number in range(2):
        with Axdimm("cycles", options=EVERY_RULE) as device:
            folder = tmp_path / str(number)
            folder.mkdir()
            with TensorStore(registered(device, folder), capacity_bytes=60 * 1024) as store:
                for key in range(8):
                    store.add(str(key), noise(3000, key), rule="adam")
                store.drain()
                began = device.simulated_ns
                for key in reversed(range(8)):
                    store.receive(key, noise(3000, key))
                    store.update(key, hyperparameters("adam", 1))
                    store.fetch(key, np.empty(3000, np.float32))
                store.drain()
                found.append((store.statistics(), device.simulated_ns - began))
    assert found[0] == found[1]
    assert found[0][0].evictions > 8


def test_one_channel_computes_while_the_other_copies(cycles: Axdimm) -> None:
    count, times = 20_000, []
    for keys in ((0, 2), (1, 3), (0, 1, 2, 3)):
        with TensorStore(cycles) as store:
            for key in range(4):
                store.add(str(key), noise(count, key), rule="sgd")
            began = cycles.simulated_ns
            for key in keys:
                store.receive(key, noise(count, key))
                store.update(key, hyperparameters("sgd", 1))
            store.drain()
            times.append(cycles.simulated_ns - began)
            kernels = store.statistics().kernel_ns
    # Kernels run beside each other and beside the copies, which follow each other on one link.
    assert times[2] < 0.6 * sum(times[:2])
    assert sum(kernels) > times[2]


def check(store: TensorStore, reference: ReferenceStore) -> None:
    """All that a store has is what the golden rules have."""
    for key, own in enumerate(reference.tensors.values()):
        for tensor, expected in own.items():
            assert same(store.read(key, tensor), expected), (key, tensor)


# Who is evicted. Tensors are ten lines long, and there is one channel.

COUNT = 10 * LINE
NBYTES = 4 * COUNT


def filled(device: Axdimm, tensors: int, rules: str, folder: Path) -> TensorStore:
    """A store with room for so many tensors, and parameters a, b and so on with these rules."""
    if not device.storage.links:
        device.RegisterStorage(folder / "nvme", capacity_bytes=1 << 20)
    store = TensorStore(device, capacity_bytes=NBYTES * tensors)
    for key, rule in enumerate(rules.split()):
        store.add("abc"[key], noise(COUNT, key), rule=rule)
    store.begin_iteration()
    return store


@pytest.mark.parametrize(
    ("another_iteration", "loaded"),
    [(False, 0), (True, 2)],
)
def test_what_was_updated_in_the_iteration_goes_first(
    single: Axdimm, tmp_path: Path, another_iteration: bool, loaded: int
) -> None:
    with filled(single, 4, "sgd sgd sgd", tmp_path) as store:
        store.receive(0, noise(COUNT, 3))
        store.update(0, hyperparameters("sgd", 1))
        if another_iteration:
            store.begin_iteration()
        store.receive(1, noise(COUNT, 4))
        store.receive(2, noise(COUNT, 5))  # no room: a was used after b, but updated
        assert [store.on_module(key) for key in range(3)] == [bool(loaded), not loaded, True]
        store.update(1, hyperparameters("sgd", 1))
        store.update(2, hyperparameters("sgd", 1))
        assert store.statistics().copied_bytes["nvme->module"] == loaded * NBYTES


def test_what_was_used_longest_ago_goes_first(single: Axdimm, tmp_path: Path) -> None:
    with filled(single, 3, "sgd sgd", tmp_path) as store:
        for key in (1, 0):
            store.receive(key, noise(COUNT, 3))
            store.update(key, hyperparameters("sgd", 1))
        store.begin_iteration()
        store.fetch(1, np.empty(COUNT, np.float32)).wait()
        store.receive(1, noise(COUNT, 4))
        store.receive(0, noise(COUNT, 5))
        assert [store.on_module(key) for key in range(2)] == [False, True]


def test_state_that_a_fetch_does_not_need_is_not_used_by_it(single: Axdimm, tmp_path: Path) -> None:
    with filled(single, 3, "momentum sgd", tmp_path) as store:
        for key in (1, 0):
            store.fetch(key, np.empty(COUNT, np.float32)).wait()
        store.receive(1, noise(COUNT, 4))
        assert [store.on_module(*each) for each in ((0, "p"), (0, "m"), (1, "p"))] == [1, 0, 1]


def test_what_is_gathered_is_not_evicted_for_the_rest(single: Axdimm, tmp_path: Path) -> None:
    with filled(single, 4, "adam adam", tmp_path) as store:
        assert store.statistics().copied_bytes["host->nvme"] == 2 * NBYTES  # m and v of b
        store.receive(1, noise(COUNT, 3))
        store.update(1, hyperparameters("adam", 1))
        counted = store.statistics()
        assert counted.evictions == 3  # the tensors of a
        assert counted.copied_bytes["module->nvme"] == 3 * NBYTES
        assert counted.copied_bytes["nvme->module"] == 2 * NBYTES
        assert all(store.on_module(1, name) for name in "pmv")
        assert counted.peak_module_bytes == [4 * NBYTES]
        assert counted.peak_nvme_bytes == 5 * NBYTES


def test_pieces_too_small_for_what_would_fit(single: Axdimm, tmp_path: Path) -> None:
    single.RegisterStorage(tmp_path / "nvme", capacity_bytes=1 << 20)
    with TensorStore(single, capacity_bytes=12 * 64) as store:
        sizes = [LINE, 6 * LINE, LINE]  # room for the gradient of the second is in two pieces
        for key, size in enumerate(sizes):
            store.add(str(key), noise(size, key), rule="sgd")
        reference = ReferenceStore()
        reference.add("1", noise(sizes[1], 1), "sgd")
        for step in range(3):
            store.receive(1, noise(sizes[1], step))
            store.update(1, hyperparameters("sgd", 1))
            reference.receive("1", noise(sizes[1], step))
            reference.update("1", **hyperparameters("sgd", 1))
        for key in (0, 2):
            assert same(store.read(key), noise(LINE, key))
        assert same(store.read(1), reference.tensors["1"]["p"])
        assert store.statistics().evictions == 3


def test_large_tensors_that_fill_a_channel_to_the_last_byte(single: Axdimm, tmp_path: Path) -> None:
    count = 5 * 1024  # 20 KB each: in different banks they would leave gaps
    single.RegisterStorage(tmp_path / "nvme", capacity_bytes=1 << 20)
    reference = ReferenceStore()
    with TensorStore(single, capacity_bytes=4 * 4 * count) as store:
        for key in range(2):
            store.add(str(key), noise(count, key), rule="adam")
            reference.add(str(key), noise(count, key), "adam")
        for t in (1, 2):
            for key in range(2):
                store.receive(key, noise(count, 9))
                store.update(key, hyperparameters("adam", t))
                reference.receive(str(key), noise(count, 9))
                reference.update(str(key), **hyperparameters("adam", t))
        check(store, reference)


def test_a_fetch_gets_what_was_there_when_it_was_asked_for(cycles: Axdimm, tmp_path: Path) -> None:
    count = 20_000
    registered(cycles, tmp_path)
    with TensorStore(cycles, capacity_bytes=8 * count) as store:
        for key in range(4):
            store.add(str(key), noise(count, key), rule="sgd")
        store.receive(2, noise(count, 4))  # sends 0 to storage
        store.update(2, hyperparameters("sgd", 1))
        store.drain()
        assert not store.on_module(0)
        targets = [np.empty(count, np.float32) for _ in range(2)]
        store.receive(1, noise(count, 5))
        store.update(1, hyperparameters("sgd", 1))  # sends 3 to storage
        store.fetch(3, targets[0])  # waits for that, and the next behind it
        store.fetch(0, targets[1])
        for key in (0, 2):  # brings 0 back, changes it, and sends it to storage again
            store.receive(key, noise(count, 6))
            store.update(key, hyperparameters("sgd", 1))
        assert [store.on_module(key) for key in range(4)] == [False, True, True, False]
        store.drain()
        assert same(targets[0], noise(count, 3))
        assert same(targets[1], noise(count, 0))
        assert not same(store.read(0), targets[1])


def test_a_scaled_gradient_is_the_product_whatever_its_sign(golden: Axdimm) -> None:
    zeros = np.array([0.0, -0.0], np.float32)
    values, gradient = np.repeat(zeros, 2), np.tile(zeros, 2)
    reference = ReferenceStore()
    with TensorStore(golden) as store:
        store.add("a", values, rule="sgd")
        reference.add("a", values, "sgd")
        store.receive(0, gradient)
        reference.receive("a", gradient)
        store.update(0, hyperparameters("sgd", 1), scale=0.5)
        reference.update("a", 0.5, **hyperparameters("sgd", 1))
        assert same(store.read(0), reference.tensors["a"]["p"])


def test_what_storage_has_already_is_not_written_again(single: Axdimm, tmp_path: Path) -> None:
    with filled(single, 2, "sgd sgd sgd", tmp_path) as store:
        reference = ReferenceStore()
        for key, name in enumerate("abc"):
            reference.add(name, noise(COUNT, key), "sgd")
            store.receive(key, noise(COUNT, 3 + key))
            reference.receive(name, noise(COUNT, 3 + key))
        # For its sum each gradient takes the place of the one before the last.
        assert store.norm() == reference.norm()
        counted = store.statistics()
        assert counted.copied_bytes["module->nvme"] == 5 * NBYTES  # a, b and the gradients
        assert (counted.evictions, counted.evictions_without_write) == (6, 1)
        assert store.norm([0, 2]) > 0
        assert store.statistics() == counted  # the sums are known


def test_squares_that_are_added_up_at_once_bring_nothing_back(
    single: Axdimm, tmp_path: Path
) -> None:
    with filled(single, 2, "sgd sgd sgd", tmp_path) as store:
        for key in range(3):
            store.receive(key, noise(COUNT, 3 + key), measure=True)
        assert store.norm() > 0
        assert not store.statistics().copied_bytes["nvme->module"]
        store.receive(0, noise(COUNT, 9))  # from now on the sum is another
        before = store.norm()
        store.discard(0)
        assert store.norm() < before


def test_storage_of_gradients_is_used_again(single: Axdimm, tmp_path: Path) -> None:
    with filled(single, 2, "sgd sgd sgd", tmp_path) as store:
        for _ in range(3):
            for key in range(3):
                store.receive(key, noise(COUNT, 3))
            for key in range(3):
                store.update(key, hyperparameters("sgd", 1), scale=0.5)
        counted = store.statistics()
        assert counted.peak_nvme_bytes <= 6 * NBYTES  # of three parameters and their gradients


def test_channels_in_turn_or_by_what_they_hold(golden: Axdimm) -> None:
    sizes = [100 * LINE, LINE, LINE, LINE]
    for placement, expected in (("round_robin", [0, 1, 0, 1]), ("by_bytes", [0, 1, 1, 1])):
        with TensorStore(golden, placement=placement) as store:
            peaks = [0, 0]
            for key, (size, channel) in enumerate(zip(sizes, expected, strict=True)):
                store.add(str(key), noise(size, key), rule="sgd")
                peaks[channel] += 4 * size
                assert store.statistics().peak_module_bytes == peaks


# What goes wrong.


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Whether the system's ``pwritev`` and ``preadv`` fail."""
    fails = {"pwritev": False, "preadv": False}

    def before(name: str, real: Callable[..., int]) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            if fails[name]:
                raise OSError(errno.EIO, "the drive is broken")
            return real(*arguments)

        return call

    for name in fails:
        monkeypatch.setattr(os, name, before(name, getattr(os, name)))
    return fails


def assert_failed(store: TensorStore, error: type[Exception]) -> None:
    """It says so, whatever it is asked for."""
    values = np.zeros(COUNT, np.float32)
    calls: list[Callable[[], Any]] = [
        lambda: store.add("new", values, rule="sgd"),
        lambda: store.fetch(0, values),
        lambda: store.receive(0, values),
        lambda: store.update(0, {}),
        lambda: store.read(0),
        lambda: store.write(0, "p", values),
        lambda: store.norm(),
    ]
    for call in calls:
        with pytest.raises(StreamFailedError, match=r"the store failed .*go on in a new one"):
            call()
    with pytest.raises(error):
        store.drain()


@pytest.mark.parametrize("name", ["pwritev", "preadv"])
def test_storage_that_fails(
    single: Axdimm, tmp_path: Path, broken: dict[str, bool], name: str
) -> None:
    with filled(single, 3, "momentum sgd", tmp_path) as store:
        if name == "preadv":
            store.receive(1, noise(COUNT, 3))  # the parameter of a goes to storage
            store.drain()
        broken[name] = True
        handle = store.receive(0, noise(COUNT, 3))
        update = store.update(0, hyperparameters("momentum", 1))
        for each in (handle, update):
            with pytest.raises((StreamFailedError, StorageError), match="the drive is broken"):
                each.wait()
        assert_failed(store, StorageError)
    assert single.memory(0).allocations == len(single.storage.allocations) == 0


class FaultyTransport(TransportWrapper):
    """Breaks down in the next run when it is told to."""

    faulty = False

    def poll_steps(
        self, channel: int, address: int, mask: int, value: int, **times: Any
    ) -> Generator[None, None, int]:
        if self.faulty and of_kernel(self, address):
            raise DeviceFault("the kernel broke down")
        return super().poll_steps(channel, address, mask, value, **times)


def test_a_run_that_fails(tmp_path: Path) -> None:
    transport = FaultyTransport(open_backend("golden", EVERY_RULE))
    with Axdimm(transport) as device, filled(device, 4, "adam sgd sgd", tmp_path) as store:
        for key in (0, 2):
            store.receive(key, noise(COUNT, 3))
        store.drain()
        transport.faulty = True
        run = store.update(0, hyperparameters("adam", 1))
        store.update(2, hyperparameters("sgd", 1))
        with pytest.raises(DeviceFault):
            run.wait()
        assert_failed(store, DeviceFault)


def test_full_storage_costs_nothing(single: Axdimm, tmp_path: Path) -> None:
    with TensorStore(
        single, capacity_bytes=3 * NBYTES, storage=tmp_path / "nvme", storage_bytes=3 * 4096
    ) as store:
        for key in range(4):  # the last goes to storage
            store.add("abcd"[key], noise(COUNT, key), rule="sgd")
        store.receive(3, noise(COUNT, 3))  # and the first
        with pytest.raises(OutOfMemoryError, match=r"e.m cannot go to storage: no room for 640"):
            store.add("e", noise(COUNT, 4), rule="momentum")
        assert store.statistics().nvme_bytes == 2 * NBYTES
        for _ in range(2):  # there is room for the scaled gradient, but not for the parameter, too
            with pytest.raises(OutOfMemoryError, match=r"c.p cannot go to storage: no room for"):
                store.update(3, hyperparameters("sgd", 1), scale=0.5)
        store.drain()
        for key in range(4):
            assert same(store.read(key), noise(COUNT, key))
        assert same(store.read(3, "g"), noise(COUNT, 3))
        store.discard(3)
        store.receive(1, noise(COUNT, 5))
        store.update(1, hyperparameters("sgd", 1)).wait()


def test_without_storage_a_full_module_is_an_error(single: Axdimm) -> None:
    with TensorStore(single, capacity_bytes=3 * NBYTES) as store:
        store.add("a", noise(COUNT, 0), rule="momentum")
        full = r"channel 0 is full and b.m cannot go to storage, as none is registered: .* 1920 "
        with pytest.raises(OutOfMemoryError, match=full):
            store.add("b", noise(COUNT, 1), rule="momentum")
        store.receive(0, noise(COUNT, 2))
        store.update(0, hyperparameters("momentum", 1)).wait()
        store.add("b", noise(COUNT, 1), rule="sgd")
        with pytest.raises(OutOfMemoryError, match=r"a.p cannot go to storage"):
            store.receive(0, noise(COUNT, 2))
        assert same(store.read(1), noise(COUNT, 1))


def test_a_channel_too_small_for_an_update_is_refused_at_once(
    single: Axdimm, tmp_path: Path
) -> None:
    with filled(single, 4, "sgd", tmp_path) as store:
        before = store.statistics()
        with pytest.raises(
            OutOfMemoryError, match="x need 2816 bytes of one channel at once, channel 0 has 2560"
        ):
            store.add("x", noise(COUNT + 1, 0), rule="adam")
        assert store.statistics() == before
        assert store.add("x", noise(COUNT, 0), rule="adam") == 1


def test_rules_that_the_module_has_not() -> None:
    options = BackendOptions(preset="tiny", settings={"rules": ("adam", "copy")})
    with Axdimm("golden", options=options) as device, TensorStore(device) as store:
        values = noise(COUNT, 0)
        with pytest.raises(InvalidArgumentError, match=r"has adam, copy, not sgd: open the device"):
            store.add("a", values, rule="sgd")
        with pytest.raises(InvalidArgumentError, match=r"not adamm: there is no such update rule"):
            store.add("a", values, rule="adamm")
        with pytest.raises(InvalidArgumentError, match="copy updates no parameter p"):
            store.add("a", values, rule="copy")
        key = store.add("a", values, rule="adam")
        with pytest.raises(InvalidArgumentError, match="not sum_squares"):
            store.receive(key, values, measure=True)
        store.receive(key, values)
        with pytest.raises(InvalidArgumentError, match="not accumulate"):
            store.receive(key, values)
        with pytest.raises(InvalidArgumentError, match="not sum_squares"):
            store.norm()
        with pytest.raises(InvalidArgumentError, match="not fill"):
            store.update(key, hyperparameters("adam", 1), scale=0.5)
        store.update(key, hyperparameters("adam", 1)).wait()


def test_misuse_changes_nothing(golden: Axdimm) -> None:
    values = noise(COUNT, 0)
    with TensorStore(golden) as store:
        key = store.add("a", values, rule="momentum")
        store.receive(key, values)
        store.drain()
        before = store.statistics()
        short, wide = values[1:].copy(), values.astype(np.float64)
        cases: list[tuple[str, Callable[[], Any]]] = [
            ("has a parameter 'a'", lambda: store.add("a", values, rule="sgd")),
            (
                "momentum has no state 'v': expected m",
                lambda: store.add("b", values, rule="momentum", initial_state={"v": 1.0}),
            ),
            ("160 float64: expected", lambda: store.add("b", wide, rule="sgd")),
            ("0 float32: expected", lambda: store.add("b", short[:0], rule="sgd")),
            ("are list: expected", lambda: store.receive(0, [1.0])),  # type: ignore[arg-type]
            ("float64: expected", lambda: store.receive(0, wide)),
            ("contiguous", lambda: store.receive(0, np.repeat(values, 2)[::2])),
            (r"\(160,\), the array \(159,\)", lambda: store.fetch(0, short)),
            ("no parameter has the key 1", lambda: store.fetch(1, values)),
            ("no parameter has the key 'a'", lambda: store.read("a")),  # type: ignore[arg-type]
            ("a has no tensor 'v': .* p, g, m", lambda: store.read(0, "v")),
            ("cannot be written", lambda: store.write(0, "g", values)),
            ("'weight_decay' is missing", lambda: store.update(0, {"lr": 1.0})),
            (
                "scale is nan",
                lambda: store.update(0, hyperparameters("momentum", 1), scale=math.nan),
            ),
        ]
        for message, call in cases:
            with pytest.raises(InvalidArgumentError, match=message):
                call()
        read_only = values.copy()
        read_only.flags.writeable = False
        with pytest.raises(InvalidArgumentError, match="read-only"):
            store.fetch(0, read_only)
        assert store.statistics() == before
        store.update(0, hyperparameters("momentum", 1))
        with pytest.raises(InvalidArgumentError, match=r"a has no gradient: receive\(\) one"):
            store.update(0, hyperparameters("momentum", 2))
        with pytest.raises(InvalidArgumentError, match="a has no gradient: none was received"):
            store.read(0, "g")
    with pytest.raises(
        InvalidArgumentError, match="placement is 'x': expected 'round_robin' or 'by"
    ):
        TensorStore(golden, placement="x")  # type: ignore[arg-type]
    with pytest.raises(
        InvalidArgumentError, match="capacity_bytes is 63: expected an integer of at l"
    ):
        TensorStore(golden, capacity_bytes=63)
    kept = golden.MallocAxdimm(64, 1)
    with pytest.raises(OutOfMemoryError):
        TensorStore(golden, capacity_bytes=golden.memory(0).free_bytes)
    golden.FreeAxdimm(kept)
    assert golden.memory(0).allocations == golden.memory(1).allocations == 0


def test_what_is_closed_says_so(golden: Axdimm) -> None:
    values = noise(COUNT, 0)
    store = TensorStore(golden)
    store.add("a", values, rule="sgd")
    store.close()
    store.close()
    for call in (store.drain, lambda: store.read(0), lambda: store.receive(0, values)):
        with pytest.raises(ClosedError, match="the store was closed"):
            call()
    with TensorStore(golden) as store:
        store.add("a", values, rule="sgd")
        golden.close()
        for call in (lambda: store.read(0), lambda: store.receive(0, values)):
            with pytest.raises(ClosedError, match="the device was closed"):
                call()
