"""The store on a module: bits whatever is evicted, counts, the order of eviction, failures."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from golden.rules import reference
from hw_tests.driver.conftest import EVERY_RULE
from hw_tests.driver.torch.offloading.reference_store import same
from hw_tests.driver.transports import TransportWrapper, of_kernel
from sw_driver.axdimm import Axdimm
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

from sw_driver.torch.offloading import ModuleStore

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


def write(store: ModuleStore, place: Any, values: Array) -> None:
    store.write(place, values.ctypes.data, values.nbytes).wait()


def read(store: ModuleStore, place: Any) -> Array:
    values = np.zeros(place.nbytes // 4, np.float32)
    store.read(place, values.ctypes.data, values.nbytes).wait()
    return values


class Program:
    """Random calls to a store, each with its golden result."""

    def __init__(self, store: ModuleStore, seed: int, largest: int) -> None:
        self.store = store
        self.largest = largest
        self.chance = random.Random(seed)
        self.rules: list[str] = []
        self.places: list[dict[str, Any]] = []
        self.golden: list[dict[str, Array]] = []
        self.read: list[tuple[Any, Array, Array]] = []
        self.times: list[int] = []
        self.seeds = iter(range(1_000_000 * seed, 1_000_000 * (seed + 1)))

    def add(self, rule: str) -> None:
        count = self.chance.randint(1, self.largest)
        self.rules.append(rule)
        self.times.append(0)
        names = [each for each in reference(rule).inputs if each != "g"]
        places: dict[str, Any] = {}
        golden = {}
        for name in names:
            places[name] = self.store.take(4 * count, beside=places.get("p"))
            golden[name] = noise(count, next(self.seeds))
            golden[name] = np.abs(golden[name]) if name in "vx" else golden[name]
            write(self.store, places[name], golden[name].copy())
        self.places.append(places)
        self.golden.append(golden)

    def step(self) -> None:
        number = self.chance.randrange(len(self.rules))
        calls = [self.send, self.fetch, self.write, self.update, self.discard]
        self.chance.choices(calls, [4, 4, 1, 10 * ("g" in self.golden[number]), 1])[0](number)
        if self.chance.random() < 0.03:
            self.store.begin_iteration()

    def send(self, number: int) -> None:
        places, golden = self.places[number], self.golden[number]
        if "g" not in places:
            places["g"] = self.store.take(places["p"].nbytes, beside=places["p"])
        golden["g"] = noise(len(golden["p"]), next(self.seeds))
        given = golden["g"].copy()
        write(self.store, places["g"], given)
        given[:] = np.nan  # it has been taken over

    def update(self, number: int) -> None:
        golden, places, rule = self.golden[number], self.places[number], self.rules[number]
        self.times[number] += 1
        values = hyperparameters(rule, self.times[number])
        self.store.run(rule, places, len(golden["p"]), values)
        chosen = reference(rule)
        golden.update(chosen.step(golden, chosen.constants(**values)))

    def fetch(self, number: int) -> None:
        golden, places = self.golden[number], self.places[number]
        name = self.chance.choice(sorted(golden))
        target = np.zeros(len(golden[name]), np.float32)
        job = self.store.read(places[name], target.ctypes.data, target.nbytes)
        self.read.append((job, target, golden[name].copy()))

    def write(self, number: int) -> None:
        golden = self.golden[number]
        name = self.chance.choice(sorted(golden))
        golden[name] = np.abs(noise(len(golden[name]), next(self.seeds)))
        write(self.store, self.places[number][name], golden[name].copy())

    def discard(self, number: int) -> None:
        if "g" in self.places[number]:
            place = self.places[number].pop("g")
            self.store.give(place, place.nbytes)
            del self.golden[number]["g"]

    def check(self) -> None:
        for job, target, expected in self.read:
            job.wait()
            assert same(target, expected)
        for places, golden in zip(self.places, self.golden, strict=True):
            for name, place in places.items():
                assert same(read(self.store, place), golden[name])


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
    with closing(ModuleStore(device, capacity_bytes=capacity, placement=placement)) as store:
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
    with closing(ModuleStore(cycles, capacity_bytes=6 * 1024)) as store:
        program = Program(store, 7, 250)
        for rule in ("adam", "sgd", "momentum", "adam", "amsgrad") * 2:
            program.add(rule)
        for _ in range(150):
            program.step()
        program.check()
        store.drain()
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
        assert over("module->nvme") == sum(each.bytes_written for each in files)
        fetched = over("nvme->module", "nvme->host")
        assert fetched == sum(each.bytes_read for each in files)
        assert len(copied) == 5
        assert counted.nvme_bytes > 0
        assert all(time > 0 for time in counted.kernel_ns)


def filled(store: ModuleStore, count: int, number: int) -> list[dict[str, Any]]:
    """Parameters, each with a gradient and of the rule sgd."""
    made = []
    for key in range(number):
        place = store.take(4 * count, name="abcdefgh"[key])
        write(store, place, noise(count, key))
        made.append({"p": place})
    store.begin_iteration()
    return made


def send(store: ModuleStore, places: dict[str, Any], seed: int) -> None:
    count = places["p"].nbytes // 4
    if "g" not in places:
        name = f"the gradient of {places['p'].name}"
        places["g"] = store.take(4 * count, beside=places["p"], name=name)
    write(store, places["g"], noise(count, seed))


def update(store: ModuleStore, places: dict[str, Any]) -> Any:
    run = store.run("sgd", places, places["p"].nbytes // 4, hyperparameters("sgd", 1))
    place = places.pop("g")
    store.give(place, place.nbytes)
    return run


def test_the_same_program_counts_and_takes_the_same_again(tmp_path: Path) -> None:
    found = []
    for number in range(2):
        with Axdimm("cycles", options=EVERY_RULE) as device:
            folder = tmp_path / str(number)
            folder.mkdir()
            store = ModuleStore(registered(device, folder), capacity_bytes=30 * 1024)
            these = filled(store, 3000, 8)
            store.drain()
            began = device.simulated_ns
            for places in reversed(these):
                send(store, places, 9)
                update(store, places)
                read(store, places["p"])
            store.drain()
            found.append((store.statistics(), device.simulated_ns - began))
            store.close()
    assert found[0] == found[1]
    assert found[0][0].evictions > 8


def test_one_channel_computes_while_the_other_copies(cycles: Axdimm) -> None:
    times = []
    for keys in ((0, 2), (1, 3), (0, 1, 2, 3)):
        with closing(ModuleStore(cycles)) as store:
            these = filled(store, 20_000, 4)
            store.drain()
            began = cycles.simulated_ns
            for key in keys:
                send(store, these[key], key)
                update(store, these[key])
            store.drain()
            times.append(cycles.simulated_ns - began)
            kernels = store.statistics().kernel_ns
    # Kernels run beside each other and beside the copies, which follow each other on one link.
    assert times[2] < 0.6 * sum(times[:2])
    assert sum(kernels) > times[2]


# The order of eviction. Tensors are ten lines long, and there is one channel.

COUNT = 10 * LINE
NBYTES = 4 * COUNT


@contextmanager
def small(
    device: Axdimm, room: int, number: int, folder: Path
) -> Iterator[tuple[ModuleStore, list[dict[str, Any]]]]:
    """A store with room for some tensors, and parameters in it."""
    if not device.storage.links:
        device.RegisterStorage(folder / "nvme", capacity_bytes=1 << 20)
    with closing(ModuleStore(device, capacity_bytes=NBYTES * room)) as store:
        yield store, filled(store, COUNT, number)


@pytest.mark.parametrize("another_iteration", [False, True])
def test_what_was_updated_in_the_iteration_goes_first(
    single: Axdimm, tmp_path: Path, another_iteration: bool
) -> None:
    with small(single, 4, 3, tmp_path) as (store, these):
        send(store, these[0], 3)
        update(store, these[0])
        if another_iteration:
            store.begin_iteration()
        send(store, these[1], 4)
        send(store, these[2], 5)  # no room: the first was used after the second, but updated
        assert [each["p"].here for each in these] == [
            another_iteration,
            not another_iteration,
            True,
        ]


def test_what_was_used_longest_ago_goes_first(single: Axdimm, tmp_path: Path) -> None:
    with small(single, 3, 2, tmp_path) as (store, these):
        for key in (1, 0):
            send(store, these[key], 3)
            update(store, these[key])
        store.begin_iteration()
        read(store, these[1]["p"])
        for key in (1, 0):
            send(store, these[key], 4)
        assert [each["p"].here for each in these] == [False, True]


def test_what_is_gathered_is_not_evicted_for_the_rest(single: Axdimm, tmp_path: Path) -> None:
    with small(single, 3, 3, tmp_path) as (store, these):
        for places in these[:2]:
            send(store, places, 3)
        assert [each["p"].here for each in these] == [False, False, True]
        update(store, these[0])
        counted = store.statistics()
        assert these[0]["p"].here
        assert counted.copied_bytes["nvme->module"] == NBYTES
        assert counted.evictions == 3
        assert counted.peak_module_bytes == [3 * NBYTES]


def test_pieces_too_small_for_what_would_fit(single: Axdimm, tmp_path: Path) -> None:
    single.RegisterStorage(tmp_path / "nvme", capacity_bytes=1 << 20)
    sizes = [LINE, 5 * LINE, LINE]  # room for the gradient of the second is in two pieces
    with closing(ModuleStore(single, capacity_bytes=11 * 64)) as store:
        these = []
        for key, size in enumerate(sizes):
            these.append({"p": store.take(4 * size)})
            write(store, these[-1]["p"], noise(size, key))
        send(store, these[1], 3)
        update(store, these[1])
        chosen = reference("sgd")
        golden = chosen.step(
            {"p": noise(sizes[1], 1), "g": noise(sizes[1], 3)},
            chosen.constants(**hyperparameters("sgd", 1)),
        )
        for key, size in enumerate(sizes):
            wanted = golden["p"] if key == 1 else noise(size, key)
            assert same(read(store, these[key]["p"]), wanted)
        assert store.statistics().evictions > 0


def test_large_tensors_that_fill_a_channel_to_the_last_byte(single: Axdimm, tmp_path: Path) -> None:
    count = 5 * 1024  # 20 KB each: in different banks they would leave gaps
    single.RegisterStorage(tmp_path / "nvme", capacity_bytes=1 << 20)
    with closing(ModuleStore(single, capacity_bytes=2 * 4 * count)) as store:
        these = filled(store, count, 2)
        for seed in range(2):
            for places in these:
                send(store, places, seed)
                update(store, places)
        assert store.statistics().peak_module_bytes == [8 * count]


def test_a_read_gets_what_was_there_at_its_call(cycles: Axdimm, tmp_path: Path) -> None:
    count = 20_000
    registered(cycles, tmp_path)
    with closing(ModuleStore(cycles, capacity_bytes=8 * count)) as store:
        these = filled(store, count, 4)
        send(store, these[2], 4)  # sends 0 to storage
        update(store, these[2])
        store.drain()
        assert not these[0]["p"].here
        targets = [np.empty(count, np.float32) for _ in range(2)]
        send(store, these[1], 5)
        update(store, these[1])  # sends 3 to storage
        jobs = [
            store.read(these[key]["p"], target.ctypes.data, target.nbytes)
            for key, target in zip((3, 0), targets, strict=True)
        ]
        for key in (0, 2):  # brings 0 back, changes it, and sends it to storage again
            send(store, these[key], 6)
            update(store, these[key])
        assert [each["p"].here for each in these] == [False, True, True, False]
        for job in jobs:
            job.wait()
        assert same(targets[0], noise(count, 3))
        assert same(targets[1], noise(count, 0))
        assert not same(read(store, these[0]["p"]), targets[1])


def test_what_storage_has_already_is_not_written_again(single: Axdimm, tmp_path: Path) -> None:
    with small(single, 2, 2, tmp_path) as (store, these):
        for places in these:
            send(store, places, 3)
        for places in these:  # the second gradient goes to storage for the first, and comes back
            store.run("sgd", places, COUNT, hyperparameters("sgd", 1))
        before = store.statistics()
        filled(store, COUNT, 2)  # the second parameter goes, and its gradient
        after = store.statistics()
        assert after.evictions == before.evictions + 2
        assert after.evictions_without_write == before.evictions_without_write + 1
        written = after.copied_bytes - before.copied_bytes
        assert written == {"host->module": 2 * NBYTES, "module->nvme": NBYTES}


def test_storage_of_gradients_is_used_again(single: Axdimm, tmp_path: Path) -> None:
    with small(single, 2, 3, tmp_path) as (store, these):
        for seed in range(3):
            for places in these:
                send(store, places, seed)
            for places in these:
                update(store, places)
        assert store.statistics().nvme_bytes <= 6 * NBYTES  # of parameters and their gradients


def test_channels_in_turn_or_by_what_they_hold(golden: Axdimm) -> None:
    sizes = [100 * LINE, LINE, LINE, LINE]
    for placement, expected in (("round_robin", [0, 1, 0, 1]), ("by_bytes", [0, 1, 1, 1])):
        with closing(ModuleStore(golden, placement=placement)) as store:  # type: ignore[arg-type]
            assert [store.take(4 * size).room.number for size in sizes] == expected


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


def assert_failed(store: ModuleStore, places: dict[str, Any], error: type[Exception]) -> None:
    """Every use of the store says so."""
    values = np.zeros(COUNT, np.float32)
    calls: list[Callable[[], Any]] = [
        lambda: write(store, places["p"], values),
        lambda: read(store, places["p"]),
        lambda: store.run("sgd", places, COUNT, hyperparameters("sgd", 1)),
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
    with small(single, 2, 2, tmp_path) as (store, these):
        if name == "preadv":
            send(store, these[1], 3)  # the first parameter goes to storage
            store.drain()
        broken[name] = True
        send(store, these[0], 3)
        run = store.run("sgd", these[0], COUNT, hyperparameters("sgd", 1))
        with pytest.raises((StreamFailedError, StorageError), match="the drive is broken"):
            run.wait()
        assert_failed(store, these[0], StorageError)
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
    with Axdimm(transport) as device, small(device, 4, 3, tmp_path) as (store, these):
        for key in (0, 2):
            send(store, these[key], 3)
        store.drain()
        transport.faulty = True
        runs = [update(store, these[key]) for key in (0, 2)]
        with pytest.raises(DeviceFault):
            runs[0].wait()
        assert_failed(store, these[0], DeviceFault)


def test_full_storage_costs_nothing(single: Axdimm, tmp_path: Path) -> None:
    store = ModuleStore(
        single, capacity_bytes=3 * NBYTES, storage=tmp_path / "nvme", storage_bytes=3 * 4096
    )
    these = filled(store, COUNT, 6)  # three of them in storage
    with pytest.raises(OutOfMemoryError, match=r"d cannot go to storage: no room for 640"):
        send(store, these[0], 3)
    store.drain()
    for key, places in enumerate(these):
        assert same(read(store, places["p"]), noise(COUNT, key))
    store.give(these[5].pop("p"), NBYTES)
    send(store, these[4], 3)
    update(store, these[4]).wait()
    store.close()


def test_without_storage_a_full_module_is_an_error(single: Axdimm) -> None:
    with closing(ModuleStore(single, capacity_bytes=3 * NBYTES)) as store:
        these = filled(store, COUNT, 3)
        full = r"channel 0 is full and a cannot go to storage, as none is registered: .* 1920 "
        with pytest.raises(OutOfMemoryError, match=full):
            send(store, these[0], 3)
        store.give(these.pop()["p"], NBYTES)
        send(store, these[0], 3)
        update(store, these[0]).wait()


def test_a_channel_too_small_for_an_update_is_refused_at_once(single: Axdimm) -> None:
    with closing(ModuleStore(single, capacity_bytes=4 * NBYTES)) as store:
        before = store.statistics()
        with pytest.raises(
            OutOfMemoryError, match="x need 2816 bytes of one channel at once, channel 0 has 2560"
        ):
            store.take(NBYTES + 4, name="x", sizes=4 * [NBYTES + 4])
        assert store.statistics() == before


def test_misuse_changes_nothing(golden: Axdimm) -> None:
    with pytest.raises(
        InvalidArgumentError, match="placement is 'x': expected 'round_robin' or 'by"
    ):
        ModuleStore(golden, placement="x")  # type: ignore[arg-type]
    with pytest.raises(
        InvalidArgumentError, match="capacity_bytes is 63: expected an integer of at l"
    ):
        ModuleStore(golden, capacity_bytes=63)
    kept = golden.MallocAxdimm(64, 1)
    with pytest.raises(OutOfMemoryError):
        ModuleStore(golden, capacity_bytes=golden.memory(0).free_bytes)
    golden.FreeAxdimm(kept)
    assert golden.memory(0).allocations == golden.memory(1).allocations == 0


def test_what_is_closed_says_so(golden: Axdimm) -> None:
    store = ModuleStore(golden)
    place = store.take(64)
    write(store, place, noise(16, 0))
    store.close()
    store.close()
    with pytest.raises(ClosedError, match="the store was closed"):
        read(store, place)
    with closing(ModuleStore(golden)) as store:
        place = store.take(64)
        write(store, place, noise(16, 0))
        golden.close()
        with pytest.raises(ClosedError, match="the device was closed"):
            read(store, place)
