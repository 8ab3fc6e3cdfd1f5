"""NVMe storage: bytes, striping, direct I/O, locks, and every way in which storage fails."""

from __future__ import annotations

import errno
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sw_driver.axdimm.timing import NvmeTiming
from sw_driver.device.errors import (
    ClosedError,
    DeviceInUseError,
    InvalidArgumentError,
    OutOfMemoryError,
    StorageError,
)
from sw_driver.device.link import LinkTiming
from sw_driver.device.memory import Memory, NvmePointer
from sw_driver.device.storage import NvmeStorage

BLOCK = 4096
STRIPE = 128 * 1024
TIMEOUT_S = 60

Bytes = NDArray[np.uint8]


def noise(nbytes: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def get(memory: NvmeStorage, pointer: NvmePointer, nbytes: int | None = None) -> Bytes:
    data = np.zeros(pointer.nbytes if nbytes is None else nbytes, np.uint8)
    memory.read(pointer, data)
    return data


@pytest.fixture
def memory() -> Iterator[NvmeStorage]:
    memory = NvmeStorage(device=1, timing=NvmeTiming())
    yield memory
    memory.close()


@pytest.fixture(params=["direct", "buffered"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether files that are registered now are opened for direct transfers."""
    if request.param == "buffered":
        real_open = os.open

        def without_direct(path: Any, flags: int, *rest: Any, **more: Any) -> int:
            if flags & os.O_DIRECT:
                raise OSError(errno.EINVAL, "no direct I/O here")
            return real_open(path, flags, *rest, **more)

        monkeypatch.setattr(os, "open", without_direct)
    return request.param == "direct"


def register(
    memory: NvmeStorage, folder: Path, count: int = 1, nbytes: int = 4 << 20
) -> list[Path]:
    paths = [folder / f"nvme{number}" for number in range(count)]
    for number, path in enumerate(paths):
        assert memory.register(path, capacity_bytes=nbytes) == number
    return paths


class Faults:
    """Stands before ``os.preadv`` and ``os.pwritev``; each call asks ``plan`` what to do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plan: Callable[[str, int, Bytes], int | None] = lambda *_: None
        for name in ("preadv", "pwritev"):
            monkeypatch.setattr(os, name, self._before(name, getattr(os, name)))

    def _before(self, name: str, real: Callable[..., int]) -> Callable[..., int]:
        def call(descriptor: int, buffers: list[Any], offset: int) -> int:
            moved = self.plan(name, descriptor, buffers[0])
            return real(descriptor, buffers, offset) if moved is None else moved

        return call


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


def fail(failing: str, error: BaseException, path: Path | None = None) -> Any:
    """A plan: calls of ``failing`` raise, those of the file at ``path`` only if it is given."""

    def plan(name: str, descriptor: int, _: Bytes) -> None:
        if name == failing and path in (None, Path(os.readlink(f"/proc/self/fd/{descriptor}"))):
            raise error

    return plan


BROKEN = OSError(errno.EIO, os.strerror(errno.EIO))


# Bytes


@pytest.mark.parametrize("count", [1, 3])
def test_random_transfers_agree_with_an_array(
    memory: NvmeStorage, tmp_path: Path, either: bool, count: int
) -> None:
    register(memory, tmp_path, count)
    direct = {each.direct for each in memory.statistics()}
    if either and direct == {False}:
        pytest.skip(f"the file system of {tmp_path} has no direct I/O")
    assert direct == {either}
    rng = random.Random(count)
    live: list[tuple[NvmePointer, Bytes]] = []
    for step in range(60):
        if len(live) < 4 or rng.random() < 0.1:
            nbytes = int(2 ** rng.uniform(0, 19.5))
            pointer = memory.allocate(nbytes, rng.choice([None, *range(count)]))
            shadow = noise(nbytes, step)
            memory.write(pointer, shadow)
            live.append((pointer, shadow))
        if len(live) > 6:
            pointer, shadow = live.pop(rng.randrange(len(live)))
            assert np.array_equal(get(memory, pointer), shadow)
            memory.free(pointer)
        pointer, shadow = rng.choice(live)
        start, end = sorted(rng.choices(range(shadow.size + 1), k=2))
        shadow[start:end] = noise(end - start, 1000 + step)
        memory.write(pointer + start, shadow[start:end])
        pointer, shadow = rng.choice(live)
        start, end = sorted(rng.choices(range(shadow.size + 1), k=2))
        assert np.array_equal(get(memory, pointer + start, end - start), shadow[start:end])
    for pointer, shadow in live:
        assert np.array_equal(get(memory, pointer), shadow)
        memory.free(pointer)
    assert all(each.free_bytes == each.total_bytes for each in memory.statistics())


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_byte_lies_where_the_layout_says(
    memory: NvmeStorage, tmp_path: Path, count: int
) -> None:
    paths = register(memory, tmp_path, count)
    # So the shares of the striped allocation start elsewhere on each.
    bases = [(number + 1) * BLOCK for number in range(count)]
    before = [memory.allocate(base, number) for number, base in enumerate(bases)]
    data = noise(5 * STRIPE + 12345)
    pointer = memory.allocate(data.size)
    after = [memory.allocate(BLOCK, number) for number in range(count)]
    for each in (*before, *after):
        memory.write(each, np.full(each.nbytes, 0xA5, np.uint8))
    for start in range(0, data.size, 99_999):
        memory.write(pointer + start, data[start : start + 99_999])
    files = [np.fromfile(path, np.uint8) for path in paths]
    place = np.arange(data.size)
    unit, within = place // STRIPE, place % STRIPE
    for number in range(count):
        here = unit % count == number
        offsets = bases[number] + unit[here] // count * STRIPE + within[here]
        assert np.array_equal(files[number][offsets], data[here])
        assert np.all(files[number][: bases[number]] == 0xA5)
    for each in (*before, *after):
        assert np.all(get(memory, each) == 0xA5)
    expected = 0 if count == 1 else -1
    assert pointer.channel == expected
    assert len({each.free_bytes + (number + 1) * BLOCK for number, each in
                enumerate(memory.statistics())}) == 1, "the shares differ"  # fmt: skip


def test_storage_registered_later_takes_part_in_later_allocations(
    memory: NvmeStorage, tmp_path: Path
) -> None:
    register(memory, tmp_path)
    early = memory.allocate(4 * STRIPE)
    memory.register(tmp_path / "late", capacity_bytes=4 << 20)
    late = memory.allocate(4 * STRIPE)
    assert (early.channel, late.channel) == (0, -1)
    shares = [each.total_bytes - each.free_bytes for each in memory.statistics()]
    assert shares == [6 * STRIPE, 2 * STRIPE]


def test_pointers_to_striped_memory_do_not_overlap(memory: NvmeStorage, tmp_path: Path) -> None:
    register(memory, tmp_path, 2)
    first, second = memory.allocate(5000), memory.allocate(5000)
    assert first.address + 5000 <= second.address


# Failed transfers


def test_a_failed_read_leaves_the_destination(
    memory: NvmeStorage, tmp_path: Path, either: bool, faults: Faults
) -> None:
    paths = register(memory, tmp_path, 3)
    pointer = memory.allocate(6 * STRIPE)
    data = noise(pointer.nbytes)
    memory.write(pointer, data)
    faults.plan = fail("preadv", BROKEN, paths[1])
    destination = np.full(pointer.nbytes, 0x5A, np.uint8)
    with pytest.raises(StorageError, match=f"read of .*{paths[1]}: Input/output error") as caught:
        memory.read(pointer, destination)
    assert np.all(destination == 0x5A)
    assert caught.value.details["errno"] == errno.EIO
    # What is on the others can be read, and all of it when the fault is gone.
    assert np.array_equal(get(memory, pointer, STRIPE), data[:STRIPE])
    faults.plan = lambda *_: None
    assert np.array_equal(get(memory, pointer), data)


@pytest.mark.parametrize("name", ["preadv", "pwritev"])
@pytest.mark.parametrize("error", [BROKEN, KeyboardInterrupt("stop")], ids=["io", "interrupt"])
def test_after_a_failed_write_an_allocation_can_only_be_freed(
    memory: NvmeStorage, tmp_path: Path, either: bool, faults: Faults, name: str, error: Any
) -> None:
    paths = register(memory, tmp_path, 2)
    before, pointer, after = (memory.allocate(3 * STRIPE) for _ in range(3))
    data = noise(3 * STRIPE)
    for each in (before, pointer, after):
        memory.write(each, data)
    faults.plan = fail(name, error, paths[0])
    with pytest.raises(KeyboardInterrupt if error is not BROKEN else StorageError):
        memory.write(pointer + 100, data[: 2 * STRIPE])
    faults.plan = lambda *_: None
    destination = np.full(10, 0x5A, np.uint8)
    uses: list[Callable[[], object]] = [
        lambda: memory.read(pointer + 2 * STRIPE, destination),
        lambda: memory.write(pointer, data),
        lambda: memory.legs(pointer, 1, writing=False),
    ]
    for use in uses:
        with pytest.raises(StorageError, match=rf"0x60000 .* used .*{error.args[-1]}.* free it"):
            use()
    assert np.all(destination == 0x5A)
    for each in (before, after):
        assert np.array_equal(get(memory, each), data)
    memory.free(pointer)
    again = memory.allocate(3 * STRIPE)
    memory.write(again, data)
    assert np.array_equal(get(memory, again), data)
    free = [each.free_bytes for each in memory.statistics()]
    for each in (before, after, again):
        memory.free(each)
    assert [each.free_bytes - 6 * STRIPE for each in memory.statistics()] == free


def test_a_short_transfer_is_a_failed_one(
    memory: NvmeStorage, tmp_path: Path, either: bool, faults: Faults
) -> None:
    [path] = register(memory, tmp_path)
    pointer = memory.allocate(8 * BLOCK)
    memory.write(pointer, noise(8 * BLOCK))
    faults.plan = lambda name, _, buffer: len(buffer) - BLOCK if name == "pwritev" else None
    with pytest.raises(StorageError, match=f"write of 32768 .*{path}: only 28672 were moved"):
        memory.write(pointer, noise(8 * BLOCK))
    faults.plan = lambda *_: None
    pointer = memory.allocate(8 * BLOCK)
    memory.write(pointer, noise(8 * BLOCK))
    os.truncate(path, pointer.address + BLOCK)
    with pytest.raises(StorageError, match=r"only 4096 were moved: .* the file was cut"):
        get(memory, pointer)


# Registration


def test_an_existing_file_has_the_capacity_of_its_size(memory: NvmeStorage, tmp_path: Path) -> None:
    path = tmp_path / "odd"
    path.write_bytes(bytes(3 * BLOCK + 100))
    memory.register(str(path))
    [statistics] = memory.statistics()
    assert (statistics.total_bytes, statistics.path) == (3 * BLOCK, str(path))
    memory.allocate(3 * BLOCK)
    assert path.stat().st_size == 3 * BLOCK + 100


def test_of_a_longer_file_only_so_much_is_used_and_a_shorter_one_is_extended(
    memory: NvmeStorage, tmp_path: Path
) -> None:
    longer, shorter, new = tmp_path / "longer", tmp_path / "shorter", tmp_path / "new"
    longer.write_bytes(bytes(8 * BLOCK))
    shorter.write_bytes(b"kept")
    for path in (longer, shorter, new):
        memory.register(path, capacity_bytes=4 * BLOCK + 100)
    assert [each.total_bytes for each in memory.statistics()] == [4 * BLOCK] * 3
    assert longer.stat().st_size == 8 * BLOCK
    assert shorter.read_bytes() == b"kept".ljust(4 * BLOCK, b"\0")
    assert new.stat().st_mode & 0o777 == 0o600


def test_what_is_no_storage_is_refused(memory: NvmeStorage, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.write_bytes(bytes(BLOCK - 1))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    cases: list[tuple[Any, int | None, str]] = [
        (tmp_path / "missing", None, "No such file.* capacity_bytes to create"),
        (small, None, "has 4095 bytes, expected at least 4096"),
        (small / "below", None, "Not a directory"),
        ("a\0b", None, "null"),
        (7, None, "'7' cannot be used .* not int"),
        (tmp_path / "no" / "where", BLOCK, "No such file"),
        (tmp_path / ("x" * 300), BLOCK, "File name too long"),
        ("a\0b", BLOCK, "null"),
    ]
    for capacity in (None, BLOCK):
        cases.append((loop, capacity, "symbolic links"))
        for path in (tmp_path, fifo, tmp_path / "socket", "/dev/full"):
            cases.append((path, capacity, "neither a regular file nor a block device"))
    for path, capacity, message in cases:
        with pytest.raises(StorageError, match=message) as caught:
            memory.register(path, capacity_bytes=capacity)
        if isinstance(path, Path):
            assert str(path) in str(caught.value)
    assert not memory.statistics()


@pytest.mark.parametrize("capacity", [0, BLOCK - 1, -BLOCK, 1e6, "1M"])
def test_a_capacity_must_be_a_block_at_least(
    memory: NvmeStorage, tmp_path: Path, capacity: Any
) -> None:
    with pytest.raises(InvalidArgumentError, match="capacity_bytes"):
        memory.register(tmp_path / "new", capacity_bytes=capacity)
    assert not list(tmp_path.iterdir())


def test_nothing_is_registered_twice(memory: NvmeStorage, tmp_path: Path) -> None:
    paths = register(memory, tmp_path, 2)
    symbolic, hard = tmp_path / "symbolic", tmp_path / "hard"
    symbolic.symlink_to(paths[1])
    hard.hardlink_to(paths[1])
    for path in (paths[1], symbolic, hard):
        for capacity in (None, 8 << 20):
            for other in (memory, NvmeStorage(device=2, timing=NvmeTiming())):
                with pytest.raises(DeviceInUseError, match=f"{path}' is in use: .*already, by"):
                    other.register(path, capacity_bytes=capacity)
    assert paths[1].stat().st_size == 4 << 20
    assert len(memory.statistics()) == 2


HOLDER = """
import sys, time
from sw_driver.device.storage import NvmeStorage
from sw_driver.axdimm.timing import NvmeTiming
memory = NvmeStorage(device=1, timing=NvmeTiming())
memory.register(sys.argv[1])
print("ready", flush=True)
time.sleep(60)
"""


def test_another_process_locks_its_storage_until_it_is_killed(
    memory: NvmeStorage, tmp_path: Path
) -> None:
    path = tmp_path / "shared"
    path.write_bytes(bytes(4 * BLOCK))
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "ready\n"
            with pytest.raises(DeviceInUseError, match=f"{path}.* by this or another process"):
                memory.register(path)
        finally:
            holder.send_signal(signal.SIGKILL)
    memory.register(path)


def test_closing_unlocks_also_while_a_forked_process_lives(tmp_path: Path) -> None:
    memory, other = (
        NvmeStorage(device=1, timing=NvmeTiming()),
        NvmeStorage(device=2, timing=NvmeTiming()),
    )
    [path] = register(memory, tmp_path)
    descriptor = memory._storages[0]._file.fileno()
    with subprocess.Popen(["sleep", "60"], pass_fds=[descriptor]) as child:
        try:
            memory.close()
            other.register(path)
        finally:
            child.kill()
            other.close()


def test_a_block_device_is_storage(memory: NvmeStorage, tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(bytes(1 << 20))
    try:
        device = subprocess.run(
            ["losetup", "--find", "--show", str(image)], check=True, capture_output=True, text=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no block device can be had here: {getattr(error, 'stderr', None) or error}")
    try:
        with pytest.raises(StorageError, match=r"1048576 bytes, expected at least 1052672"):
            memory.register(device, capacity_bytes=(1 << 20) + BLOCK)
        memory.register(device)
        assert memory.statistics()[0].total_bytes == 1 << 20
        pointer = memory.allocate(100_000)
        memory.write(pointer + 1, noise(99_999))
        assert np.array_equal(get(memory, pointer + 1), noise(99_999))
        another_node = tmp_path / "node"
        os.mknod(another_node, 0o60600, os.stat(device).st_rdev)
        for node in (device, another_node):
            with pytest.raises(DeviceInUseError, match="or mounted"):
                memory.register(node)
        memory.close()
    finally:
        memory.close()
        subprocess.run(["losetup", "--detach", device], check=True)


# Allocation


def test_sizes_and_channels_are_checked(memory: NvmeStorage, tmp_path: Path) -> None:
    for channel in (None, 0):
        with pytest.raises(InvalidArgumentError, match="call RegisterStorage"):
            memory.allocate(100, channel)
    register(memory, tmp_path, 2)
    wrong: list[Any] = [2, -1, 1.0, "0", True]
    for channel in wrong:
        with pytest.raises(InvalidArgumentError, match="0 to 1"):
            memory.allocate(100, channel)
    sizes: list[Any] = [0, -1, 1.5]
    for nbytes in sizes:
        with pytest.raises(InvalidArgumentError, match=str(nbytes)):
            memory.allocate(nbytes)
    assert not len(memory.allocations)


def test_out_of_memory_says_what_is_free_where_and_takes_nothing(
    memory: NvmeStorage, tmp_path: Path
) -> None:
    for number, blocks in enumerate((100, 40)):
        memory.register(tmp_path / str(number), capacity_bytes=blocks * BLOCK)
    memory.allocate(BLOCK, 0)
    before = memory.statistics()
    with pytest.raises(OutOfMemoryError, match=f"{82 * BLOCK} bytes: on storage 1, ") as caught:
        memory.allocate(82 * BLOCK)
    assert "163840 of 163840 bytes are free, 163840 of them in one piece" in str(caught.value)
    assert caught.value.details["nbytes"] == 82 * BLOCK
    assert caught.value.details["free_bytes"] == 40 * BLOCK
    with pytest.raises(OutOfMemoryError, match=r"no room for 167936 bytes: on storage 1, "):
        memory.allocate(41 * BLOCK, 1)
    free = [(each.free_bytes, each.allocations) for each in before]
    assert [(each.free_bytes, each.allocations) for each in memory.statistics()] == free
    memory.allocate(40 * BLOCK, 1)


def test_statistics_count(memory: NvmeStorage, tmp_path: Path, faults: Faults) -> None:
    register(memory, tmp_path, 2)
    pointer = memory.allocate(3 * STRIPE)
    memory.allocate(100, 1)
    memory.write(pointer + 10, noise(3 * STRIPE - 10))
    get(memory, pointer + 10, STRIPE)
    faults.plan = fail("pwritev", BROKEN)
    with pytest.raises(StorageError):
        memory.write(pointer, noise(100))
    first, second = memory.statistics()
    assert (first.allocations, second.allocations) == (1, 2)
    assert (first.bytes_written, second.bytes_written) == (2 * STRIPE - 10, STRIPE)
    assert (first.bytes_read, second.bytes_read) == (STRIPE - 10, 10)
    assert first.free_bytes == (4 << 20) - 2 * STRIPE
    assert second.free_bytes == (4 << 20) - 2 * STRIPE - BLOCK


# Time


def test_each_storage_is_occupied_for_its_share(memory: NvmeStorage, tmp_path: Path) -> None:
    slow = LinkTiming(read_gb_per_s=2.0, write_gb_per_s=0.5, latency_us=10)
    memory.register(tmp_path / "a", capacity_bytes=4 << 20)
    memory.register(tmp_path / "b", capacity_bytes=4 << 20, timing=slow)
    assert [each.name for each in memory.links] == ["nvme0", "nvme1"]
    pointer = memory.allocate(3 * STRIPE)
    legs = memory.legs(pointer + 1000, 2 * STRIPE, writing=True)
    assert [each.link for each in legs] == list(memory.links)
    durations = [each.duration_ns for each in legs]
    assert durations == pytest.approx([70e3 + STRIPE / 3.45, 10e3 + STRIPE / 0.5])
    [leg] = memory.legs(pointer + STRIPE, 100, writing=False)
    assert leg.link is memory.links[1]
    assert leg.duration_ns == pytest.approx(10e3 + 50)
    [leg] = memory.legs(memory.allocate(1 << 20, 0), 1 << 20, writing=False)
    assert leg.duration_ns == pytest.approx(70e3 + (1 << 20) / 3.45)


# Closing


def test_after_closing_everything_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    memory = NvmeStorage(device=1, timing=NvmeTiming())
    paths = register(memory, tmp_path, 3)
    pointer = memory.allocate(4 * STRIPE)
    memory.write(pointer, noise(4 * STRIPE))
    memory.close()
    memory.close()
    uses: list[Callable[[], object]] = [
        lambda: memory.read(pointer, np.zeros(1, np.uint8)),
        lambda: memory.write(pointer, noise(1)),
        lambda: memory.legs(pointer, 1, writing=True),
        lambda: memory.allocate(1),
        lambda: memory.free(pointer),
        lambda: memory.register(paths[0]),
    ]
    for use in uses:
        with pytest.raises(ClosedError):
            use()
    assert set(os.listdir("/proc/self/fd")) == before
    assert memory.statistics()[0].bytes_written == 2 * STRIPE
    again: Memory = NvmeStorage(device=2, timing=NvmeTiming())
    assert isinstance(again, NvmeStorage)
    for path in paths:
        again.register(path)
    again.close()
