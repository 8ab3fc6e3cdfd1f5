"""Copies between all pairs of the four memories, on every backend, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hw_tests.driver.transports import WatchedTransport
from sw_driver.axdimm import Axdimm, copies
from sw_driver.device import errors
from sw_driver.device import storage as nvme

KINDS = ("Host", "Axdimm", "Gpu", "Nvme")
PAIRS = list(product(KINDS, KINDS))
SIZE = 10_000


@pytest.fixture
def runtime(device: Axdimm, tmp_path: Path) -> Iterator[Axdimm]:
    """An opened device with two registered files."""
    for name in ("one", "two"):
        device.RegisterStorage(tmp_path / name, capacity_bytes=4 << 20)
    yield device
    device.storage.close()


class Memory:
    """An allocation of one kind, filled with random bytes, whose contents can be looked at."""

    def __init__(self, runtime: Axdimm, kind: str, nbytes: int, seed: int, channel: int) -> None:
        self._runtime = runtime
        self._kind = kind
        malloc = getattr(runtime, f"Malloc{kind}")
        self.pointer = malloc(nbytes, channel) if kind == "Axdimm" else malloc(nbytes)
        self.start = np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)
        getattr(runtime, f"MemcpyHost2{kind}")(self.pointer, self.start, nbytes)

    def contents(self) -> np.ndarray:
        result = np.empty(self.start.size, dtype=np.uint8)
        getattr(self._runtime, f"Memcpy{self._kind}2Host")(result, self.pointer, result.size)
        return result


@pytest.mark.parametrize(("source", "destination"), PAIRS, ids=map("2".join, PAIRS))
def test_every_pair(
    runtime: Axdimm, source: str, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "COPY_CHUNK_BYTES", 4096)
    src = Memory(runtime, source, SIZE, 1, channel=0)
    dst = Memory(runtime, destination, SIZE, 2, channel=1)
    copy = getattr(runtime, f"Memcpy{source}2{destination}")
    expected = dst.start.copy()
    rng = np.random.default_rng(3)
    for _ in range(6):
        nbytes = int(rng.integers(0, SIZE))
        at, to = (int(rng.integers(0, SIZE - nbytes + 1)) for _ in range(2))
        handle = copy(dst.pointer + to, src.pointer + at, nbytes)
        assert handle.done
        assert handle.progress.done == handle.progress.total == nbytes
        assert handle.progress.unit == "bytes"
        assert handle.ended >= handle.began
        expected[to : to + nbytes] = src.start[at : at + nbytes]
    assert np.array_equal(dst.contents(), expected)
    assert np.array_equal(src.contents(), src.start)
    for memory, kind in ((src, source), (dst, destination)):
        getattr(runtime, f"Free{kind}")(memory.pointer)


@pytest.mark.parametrize(("source", "destination"), PAIRS, ids=map("2".join, PAIRS))
def test_pointers_of_other_kinds_are_refused(
    runtime: Axdimm, source: str, destination: str
) -> None:
    pointers = {kind: Memory(runtime, kind, 64, 1, channel=0) for kind in KINDS}
    copy = getattr(runtime, f"Memcpy{source}2{destination}")
    for other in KINDS:
        wrong = pointers[other].pointer
        # A pointer is no buffer either.
        refusal = (errors.PointerError, errors.InvalidArgumentError)
        if other != source:
            with pytest.raises(refusal, match="Pointer"):
                copy(pointers[destination].pointer, wrong, 64)
        if other != destination:
            with pytest.raises(refusal, match="Pointer"):
                copy(wrong, pointers[source].pointer, 64)
    for memory in pointers.values():
        assert np.array_equal(memory.contents(), memory.start)


@pytest.mark.parametrize("kind", KINDS)
def test_misuse_of_every_kind(runtime: Axdimm, kind: str) -> None:
    memory = Memory(runtime, kind, 100, 1, channel=0)
    copy_in = getattr(runtime, f"MemcpyHost2{kind}")
    free = getattr(runtime, f"Free{kind}")
    for offset, nbytes in ((0, 101), (-1, 1), (100, 1)):
        with pytest.raises(errors.RangeError):
            copy_in(memory.pointer + offset, bytes(200), nbytes)
    with pytest.raises(errors.InvalidArgumentError, match="nbytes is -1"):
        copy_in(memory.pointer, bytes(200), -1)
    with pytest.raises(errors.PointerError, match="1 bytes into its allocation"):
        free(memory.pointer + 1)
    with pytest.raises(errors.InvalidArgumentError, match="nbytes is 0"):
        getattr(runtime, f"Malloc{kind}")(0, 0)
    with pytest.raises(errors.InvalidArgumentError, match="channel is 17"):
        getattr(runtime, f"Malloc{kind}")(64, 17)
    free(memory.pointer)
    with pytest.raises(errors.PointerError, match="was freed"):
        copy_in(memory.pointer, bytes(100), 100)
    with pytest.raises(errors.PointerError, match="was freed"):
        free(memory.pointer)


@pytest.mark.parametrize("kind", KINDS)
def test_overlapping_copies_are_refused(runtime: Axdimm, kind: str) -> None:
    memory = Memory(runtime, kind, 1000, 1, channel=0)
    copy = getattr(runtime, f"Memcpy{kind}2{kind}")
    for to, at, nbytes in ((0, 0, 1), (0, 10, 11), (500, 400, 101)):
        with pytest.raises(errors.RangeError, match=str(nbytes)):
            copy(memory.pointer + to, memory.pointer + at, nbytes)
    copy(memory.pointer, memory.pointer + 500, 500)
    expected = memory.start.copy()
    expected[:500] = expected[500:]
    assert np.array_equal(memory.contents(), expected)


def test_overlapping_buffers_are_refused(runtime: Axdimm) -> None:
    data = np.arange(100, dtype=np.uint8)
    with pytest.raises(errors.RangeError):
        runtime.MemcpyHost2Host(data[10:], data, 50)
    runtime.MemcpyHost2Host(data[50:], data, 50)
    assert np.array_equal(data[50:], data[:50])


@pytest.mark.parametrize(("source", "destination"), PAIRS, ids=map("2".join, PAIRS))
def test_a_copy_of_no_bytes_is_nothing(
    runtime: Axdimm, watched: WatchedTransport, source: str, destination: str
) -> None:
    src = Memory(runtime, source, SIZE, 1, channel=0)
    dst = Memory(runtime, destination, SIZE, 2, channel=1)
    runtime.SetArbiterAcc(1)
    copy = getattr(runtime, f"Memcpy{source}2{destination}")
    lines, changes = watched.link_lines, watched.changes
    assert copy(dst.pointer, src.pointer, 0).progress.fraction == 1
    assert (watched.link_lines, watched.changes) == (lines, changes)
    # Another copy has the link.
    queued = runtime.MemcpyHost2Axdimm(
        runtime.MallocAxdimm(SIZE, 0), bytes(SIZE), SIZE, stream=runtime.stream(0)
    )
    now = watched.domain.program_now
    handle = copy(dst.pointer, src.pointer, 0)
    assert watched.domain.program_now == now
    # Handles of a backend without a time have 0, although held runs of other tests advanced it.
    assert handle.began == handle.ended == (now if watched.timed else 0)
    queued.wait()
    runtime.SetArbiterNormal(1)


def test_options_are_checked(runtime: Axdimm) -> None:
    memory = Memory(runtime, "Axdimm", 64, 1, channel=0)
    gpu = Memory(runtime, "Gpu", 64, 1, channel=0)
    with pytest.raises(errors.InvalidArgumentError, match=r"'later'.*raise, wait"):
        runtime.MemcpyHost2Axdimm(memory.pointer, bytes(64), 64, modes="later")
    with pytest.raises(errors.InvalidArgumentError, match="backdoor"):
        runtime.MemcpyHost2Gpu(gpu.pointer, bytes(64), 64, backdoor=True)
    with pytest.raises(errors.InvalidArgumentError, match="stream"):
        runtime.MemcpyHost2Gpu(gpu.pointer, bytes(64), 64, stream="0")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unknown"):
        runtime.MemcpyHost2Gpu(gpu.pointer, bytes(64), 64, unknown=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("direction", ["Nvme2Axdimm", "Axdimm2Nvme"])
def test_a_copy_that_fails_in_the_middle_leaves_both_sides_defined(
    runtime: Axdimm, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "COPY_CHUNK_BYTES", 4096)
    kinds = direction.split("2")
    src = Memory(runtime, kinds[0], SIZE, 1, channel=0)
    dst = Memory(runtime, kinds[1], SIZE, 2, channel=0)
    name = "read" if kinds[0] == "Nvme" else "write"
    inner: Callable[..., None] = getattr(nvme.NvmeStorage, name)
    calls = 0

    def failing(self: Any, *arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise errors.StorageError("injected")
        inner(self, *arguments)

    monkeypatch.setattr(nvme.NvmeStorage, name, failing)
    with pytest.raises(errors.StorageError) as caught:
        getattr(runtime, f"Memcpy{direction}")(dst.pointer, src.pointer, SIZE)
    assert caught.value.details["copied_bytes"] == 4096
    expected = dst.start.copy()
    expected[:4096] = src.start[:4096]
    assert np.array_equal(dst.contents(), expected)
    assert np.array_equal(src.contents(), src.start)
    # Nothing is in use any more.
    getattr(runtime, f"Memcpy{direction}")(dst.pointer, src.pointer, SIZE)
    assert np.array_equal(dst.contents(), src.start)
    getattr(runtime, f"Free{kinds[0]}")(src.pointer)
    getattr(runtime, f"Free{kinds[1]}")(dst.pointer)
