"""Host and GPU memory: pages of the process, the stand-in, CUDA against a double and a real GPU.

Nothing here needs a GPU. What :class:`~sw_driver.device.tensors.CudaMemory` asks of PyTorch is
checked against a double whose CUDA is the host's memory: it shows that copies come after what was
queued before and that errors become the driver's, not that CUDA behaves as the double does. The
test with a real GPU is skipped where there is none, and says so.
"""

from __future__ import annotations

import importlib.util
import mmap
import random
import re
import resource
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sw_driver.axdimm.timing import GpuTiming, NvmeTiming
from sw_driver.device import errors
from sw_driver.device.link import LinkTiming
from sw_driver.device.memory import AllocationTable, Memory
from sw_driver.device.tensors import CudaMemory, GpuStandIn, HostMemory, import_torch, open_gpu

DEVICE = 7
CAPACITY = 1 << 20


class Double(ModuleType):
    """PyTorch with ``gpus`` pretended GPUs, whose memory is the host's.

    What is in ``queued`` is done when the GPU is waited for, which fails with ``failure``.
    """

    __version__ = "0+double"

    def __init__(self, gpus: int = 1, capacity: int = CAPACITY) -> None:
        super().__init__("torch")
        self.__spec__ = ModuleSpec("torch", None)
        self.real: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
        self.uint8, self.float32 = self.real.uint8, self.real.float32
        self.from_numpy = self.real.from_numpy
        self.capacity = capacity
        self.queued: list[Callable[[], Any]] = []
        self.failure: RuntimeError | None = None
        self.cuda = SimpleNamespace(
            is_available=lambda: gpus > 0,
            device_count=lambda: gpus,
            get_device_name=lambda gpu: f"Double {gpu}",
            mem_get_info=self.mem_get_info,
            synchronize=self.synchronize,
            OutOfMemoryError=self.real.OutOfMemoryError,
        )

    def mem_get_info(self, gpu: int) -> tuple[int, int]:
        if self.failure:
            raise self.failure
        return self.capacity - 100, self.capacity

    def synchronize(self, gpu: int) -> None:
        if self.failure:
            raise self.failure
        while self.queued:
            self.queued.pop(0)()

    def empty(self, size: int, *, dtype: Any, device: str) -> Any:
        assert device.startswith("cuda:")
        if size > self.capacity - 100:
            raise self.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate ...")
        return self.real.full((size,), 0xA5, dtype=dtype)


def double_cuda(torch: Double) -> CudaMemory:
    """Opens the GPU of the double, as the driver would."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", torch)
        import_torch.cache_clear()
        memory = open_gpu(DEVICE, GpuTiming())
        import_torch.cache_clear()
    assert isinstance(memory, CudaMemory)
    return memory


def stand_in(capacity_bytes: int = CAPACITY) -> GpuStandIn:
    return GpuStandIn(
        DEVICE, timing=GpuTiming(), reason="for the test", capacity_bytes=capacity_bytes
    )


@pytest.fixture(autouse=True)
def fresh_search_for_torch() -> Iterator[None]:
    import_torch.cache_clear()
    yield
    import_torch.cache_clear()


KINDS: dict[str, Callable[[], Any]] = {
    "host": lambda: HostMemory(DEVICE),
    "stand-in": stand_in,
    "double": lambda: double_cuda(Double()),
}


@pytest.fixture(params=KINDS)
def memory(request: pytest.FixtureRequest) -> Iterator[Any]:
    memory = KINDS[request.param]()
    yield memory
    memory.close()


def some_bytes(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)


def read(memory: Memory, pointer: Any, nbytes: int) -> np.ndarray:
    destination = np.empty(nbytes, dtype=np.uint8)
    memory.read(pointer, destination)
    return destination


# Every memory.


def test_random_writes_read_back_as_in_a_numpy_shadow(memory: Memory) -> None:
    rng = random.Random(1)
    shadows: list[tuple[Any, np.ndarray]] = []
    for step in range(600):
        if len(shadows) < 3 or rng.random() < 0.1:
            content = some_bytes(rng.randint(1, 20_000), step)
            pointer = memory.allocate(content.size, None)
            memory.write(pointer, content)
            shadows.append((pointer, content))
        elif len(shadows) > 12:
            pointer, _ = shadows.pop(rng.randrange(len(shadows)))
            memory.free(pointer)
        else:
            pointer, shadow = rng.choice(shadows)
            start = rng.randrange(shadow.size)
            count = rng.randint(1, shadow.size - start)
            if rng.random() < 0.5:
                shadow[start : start + count] = some_bytes(count, step)
                memory.write(pointer + start, shadow[start : start + count])
            else:
                np.testing.assert_array_equal(
                    read(memory, pointer + start, count), shadow[start : start + count]
                )
    for pointer, shadow in shadows:
        np.testing.assert_array_equal(read(memory, pointer, shadow.size), shadow)
        memory.free(pointer)
    assert len(memory.allocations) == 0


def test_allocations_do_not_overlap_and_start_on_a_page_on_the_host(memory: Memory) -> None:
    pointers = [memory.allocate(nbytes, 0) for nbytes in (1, 64, 4095, 4096, 4097, 70_000)]
    ends = 0
    for pointer in sorted(pointers, key=lambda pointer: pointer.address):
        assert pointer.address >= ends
        ends = pointer.address + pointer.nbytes
        if not isinstance(memory, CudaMemory):
            assert pointer.address % mmap.PAGESIZE == 0


@pytest.mark.parametrize("nbytes", [0, -1, 1.5, "4096", None])
def test_a_size_is_a_positive_integer(memory: Any, nbytes: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="nbytes"):
        memory.allocate(nbytes)
    assert len(memory.allocations) == 0


@pytest.mark.parametrize("channel", [1, -1, 0.0, "0"])
def test_there_is_one_channel(memory: Any, channel: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=r"channel is .*expected 0 or None"):
        memory.allocate(64, channel)
    assert len(memory.allocations) == 0
    assert memory.allocate(64, None).channel == memory.allocate(64, 0).channel == 0


@pytest.mark.parametrize("nbytes", [1 << 60, 1 << 64])
def test_more_than_there_is_is_refused_and_leaves_no_trace(memory: Any, nbytes: int) -> None:
    kept = memory.allocate(100)
    with pytest.raises(errors.OutOfMemoryError, match=str(nbytes)) as refusal:
        memory.allocate(nbytes)
    assert refusal.value.details["nbytes"] == nbytes
    assert len(memory.allocations) == 1
    assert memory.allocated_bytes == 100
    memory.write(kept, some_bytes(100))
    np.testing.assert_array_equal(read(memory, kept, 100), some_bytes(100))


def test_a_closed_memory_refuses_and_closes_again(memory: Any) -> None:
    pointer = memory.allocate(64)
    memory.close()
    memory.close()
    data = np.zeros(64, dtype=np.uint8)
    for call in (
        lambda: memory.allocate(64),
        lambda: memory.free(pointer),
        lambda: memory.read(pointer, data),
        lambda: memory.write(pointer, data),
    ):
        with pytest.raises(errors.ClosedError, match=memory.name.split()[0]):
            call()
    assert memory.allocated_bytes == 0


# Pages of the process.


@pytest.fixture(params=["host", "stand-in"])
def mapped(request: pytest.FixtureRequest) -> Iterator[Any]:
    memory = KINDS[request.param]()
    yield memory
    memory.close()


@pytest.fixture
def maps(monkeypatch: pytest.MonkeyPatch) -> weakref.WeakSet[mmap.mmap]:
    """The mappings that are alive of those made during the test."""
    alive: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()

    class Counted(mmap.mmap):
        def __new__(cls, *arguments: Any, **options: Any) -> Any:
            made = super().__new__(cls, *arguments, **options)
            alive.add(made)
            return made

    monkeypatch.setattr("sw_driver.device.tensors.mmap.mmap", Counted)
    return alive


def test_ten_thousand_allocations_leave_nothing_behind(
    mapped: Any, maps: weakref.WeakSet[mmap.mmap]
) -> None:
    rng = random.Random(2)
    live: list[Any] = []
    most = 0
    for _ in range(10_000):
        live.append(mapped.allocate(rng.randint(1, 30_000)))
        most = max(most, len(maps))
        if len(live) > 20:
            mapped.free(live.pop(rng.randrange(len(live))))
    assert len(maps) == len(live) == len(mapped.allocations) == 20
    assert most == 21
    assert mapped.allocated_bytes == sum(pointer.nbytes for pointer in live)
    for pointer in live:
        mapped.free(pointer)
    assert len(maps) == mapped.allocated_bytes == 0


def test_an_array_is_the_memory(mapped: Any) -> None:
    pointer = mapped.allocate(4 * 100 + 3)
    array = mapped.array(pointer, np.float32)
    assert array.shape == (100,)
    assert not array.any()
    array[:] = np.arange(100)
    np.testing.assert_array_equal(
        read(mapped, pointer, 400), np.arange(100, dtype=np.float32).view(np.uint8)
    )
    inner = mapped.array(pointer + 40, np.float32, 5)
    np.testing.assert_array_equal(inner, np.arange(10, 15))
    mapped.write(pointer + 40, np.array([-1], dtype=np.float32).view(np.uint8))
    assert array[10] == inner[0] == -1
    assert mapped.array(pointer).size == 403
    assert mapped.array(pointer + 403, np.float64).size == 0
    odd = mapped.array(pointer + 1, np.float32, 2)
    odd[:] = 2.5
    np.testing.assert_array_equal(mapped.array(pointer + 1, np.float32, 2), [2.5, 2.5])


def test_an_array_outlives_its_allocation_and_the_pointer_does_not(
    mapped: Any, maps: weakref.WeakSet[mmap.mmap]
) -> None:
    pointer = mapped.allocate(1 << 16)
    array = mapped.array(pointer, np.float64)
    mapped.free(pointer)
    array[:] = 3.0
    assert array.sum() == 3.0 * (1 << 13)
    with pytest.raises(errors.PointerError, match="was freed"):
        mapped.array(pointer)
    assert len(maps) == 1
    del array
    assert len(maps) == 0


def test_arrays_out_of_range_are_refused(mapped: Any) -> None:
    pointer = mapped.allocate(100)
    for place, count in ((pointer, 26), (pointer + 4, 25), (pointer + 101, 0), (pointer - 4, None)):
        with pytest.raises(errors.RangeError):
            mapped.array(place, np.float32, count)
    with pytest.raises(errors.InvalidArgumentError, match="count"):
        mapped.array(pointer, np.float32, -1)
    for dtype in (object, "V0"):
        with pytest.raises(errors.InvalidArgumentError, match="dtype"):
            mapped.array(pointer, dtype)


def test_host_memory_occupies_nothing() -> None:
    host = HostMemory(DEVICE)
    assert host.name == "host"
    assert list(host.links) == host.legs(host.allocate(64), 64, writing=True) == []
    host.close()


# The stand-in.


def test_the_stand_in_says_so_everywhere() -> None:
    gpu = stand_in()
    pointer = gpu.allocate(100)
    assert gpu.name == "gpu stand-in (host memory)"
    assert gpu.description == "stand-in in host memory: for the test"
    assert repr(gpu) == (
        "<gpu stand-in (host memory): 1 allocations of 100 bytes, "
        "stand-in in host memory: for the test>"
    )
    assert [link.name for link in gpu.links] == ["GPU 0 stand-in"]
    for refused in (
        lambda: gpu.allocate(CAPACITY),
        lambda: gpu.allocate(10, 1),
        lambda: gpu.read("no pointer", np.zeros(1, dtype=np.uint8)),
    ):
        with pytest.raises(errors.AxdimmError, match=r"gpu stand-in \(host memory\)"):
            refused()
    gpu.free(pointer)


def test_the_stand_in_has_a_capacity() -> None:
    gpu = stand_in(capacity_bytes=1000)
    first = gpu.allocate(600)
    with pytest.raises(errors.OutOfMemoryError, match="400 of 1000 bytes are free") as refusal:
        gpu.allocate(401)
    assert refusal.value.details == {"nbytes": 401, "free_bytes": 400, "capacity_bytes": 1000}
    gpu.allocate(400)
    gpu.free(first)
    gpu.allocate(600)


def test_memory_of_the_stand_in_is_taken_as_it_is_touched() -> None:
    gpu = stand_in(capacity_bytes=16 << 30)
    peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pointers = [gpu.allocate(1 << 30) for _ in range(8)]
    for pointer in pointers:
        gpu.write(pointer + (1 << 29), some_bytes(4096))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_before
    assert grown < 1 << 18, f"{grown} KiB for eight pages"
    gpu.close()


# The choice between the two.


@pytest.fixture
def torch_not_imported() -> Iterator[None]:
    """As if PyTorch had not been imported yet; what the test imports as it is forgotten."""
    imported = sys.modules.pop("torch", None)
    yield
    sys.modules.pop("torch", None)
    if imported is not None:
        sys.modules["torch"] = imported


def torch_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)


def test_without_pytorch_there_is_the_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    gpu = open_gpu(DEVICE, GpuTiming())
    assert isinstance(gpu, GpuStandIn)
    assert gpu.reason == "PyTorch is not installed (pip install -e '.[torch]')"
    assert gpu.reason in repr(gpu)
    with pytest.raises(errors.GpuError, match=r"gpu stand-in .*\.\[torch\].*array"):
        gpu.tensor(gpu.allocate(64), None)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise OSError('libcudart.so.13: cannot open')", r"OSError: libcudart.so.13: cannot open"),
        ("import no_such_module_xyz", "No module named 'no_such_module_xyz'"),
        ("raise RuntimeError('first line\\nsecond')", r"RuntimeError: first line\)$"),
        ("", "has no attribute '__version__'"),
    ],
)
@pytest.mark.usefixtures("torch_not_imported")
def test_with_a_broken_pytorch_there_is_the_stand_in(
    source: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_that(tmp_path, monkeypatch, source)
    gpu = open_gpu(DEVICE, GpuTiming())
    assert isinstance(gpu, GpuStandIn)
    assert re.search(reason, gpu.reason)
    assert gpu.reason in repr(gpu)
    # What PyTorch says to a second attempt in the same process does not hide the cause.
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('initialized only once')")
    assert open_gpu(DEVICE, GpuTiming()).reason == gpu.reason


def test_with_pytorch_but_no_gpu_there_is_the_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", Double(gpus=0))
    gpu = open_gpu(DEVICE, GpuTiming())
    assert isinstance(gpu, GpuStandIn)
    assert gpu.reason == "PyTorch 0+double finds no CUDA GPU"


def test_with_a_gpu_that_cannot_be_used_there_is_the_stand_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = Double()
    torch.failure = RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable")
    monkeypatch.setitem(sys.modules, "torch", torch)
    gpu = open_gpu(DEVICE, GpuTiming())
    assert isinstance(gpu, GpuStandIn)
    assert "busy or unavailable" in gpu.reason


def test_pytorch_is_not_imported_before_it_is_asked_for() -> None:
    program = (
        "import sys; import sw_driver.device.tensors as gpu;"
        "from sw_driver.device.tensors import HostMemory;"
        "HostMemory(1).allocate(64); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


# CUDA, against the double.


def test_copies_come_after_what_the_program_queued_before() -> None:
    torch = Double()
    gpu = double_cuda(torch)
    pointer = gpu.allocate(64)
    tensor = gpu.tensor(pointer, torch.uint8)
    torch.queued.append(lambda: tensor.fill_(17))
    assert (read(gpu, pointer, 64) == 17).all()
    torch.queued.append(lambda: tensor.fill_(18))
    gpu.write(pointer, np.frombuffer(bytes([19] * 64), np.uint8))  # which is read-only
    assert (tensor == 19).all()


def test_channels_are_gpus() -> None:
    torch = Double(gpus=3)
    gpu = double_cuda(torch)
    assert gpu.name == "gpu"
    assert gpu.reason is None
    assert gpu.description == "Double 0, Double 1, Double 2"
    assert [link.name for link in gpu.links] == ["GPU 0", "GPU 1", "GPU 2"]
    pointer = gpu.allocate(64, 2)
    assert pointer.channel == 2
    gpu.write(pointer, some_bytes(64))
    np.testing.assert_array_equal(read(gpu, pointer, 64), some_bytes(64))
    assert [leg.link for leg in gpu.legs(pointer, 64, writing=True)] == [gpu.links[2]]
    with pytest.raises(errors.InvalidArgumentError, match="from 0 to 2"):
        gpu.allocate(64, 3)
    assert repr(gpu) == ("<gpu: 1 allocations of 64 bytes, Double 0, Double 1, Double 2>")


def test_when_the_gpu_is_full_the_message_has_the_sizes() -> None:
    gpu = double_cuda(Double(capacity=5000))
    with pytest.raises(errors.OutOfMemoryError, match="4900 of 5000 bytes are free") as refusal:
        gpu.allocate(4950)
    assert refusal.value.details == {
        "nbytes": 4950,
        "gpu": 0,
        "free_bytes": 4900,
        "capacity_bytes": 5000,
    }
    gpu.allocate(4900)


def test_errors_of_cuda_become_the_drivers() -> None:
    torch = Double()
    gpu = double_cuda(torch)
    pointer = gpu.allocate(100)
    gpu.write(pointer, np.zeros(100, dtype=np.uint8))
    torch.failure = RuntimeError(
        "CUDA error: an illegal memory access\nCUDA kernel errors might be"
    )
    destination = np.full(50, 7, dtype=np.uint8)
    for call, what in (
        (lambda: gpu.write(pointer + 10, some_bytes(50)), "write"),
        (lambda: gpu.read(pointer + 10, destination), "read"),
        (lambda: gpu.allocate(50), "allocation"),
    ):
        with pytest.raises(
            errors.GpuError,
            match=rf"^{what} of 50 bytes on GPU 0 \(Double 0\) failed: .* memory access$",
        ) as failure:
            call()
        assert failure.value.details == {"gpu": 0, "nbytes": 50}
        assert failure.value.__cause__ is torch.failure
    assert (destination == 7).all()
    assert len(gpu.allocations) == 1
    torch.failure = None
    assert not read(gpu, pointer, 100).any()


def test_tensors_are_the_memory() -> None:
    torch = Double()
    gpu = double_cuda(torch)
    pointer = gpu.allocate(403)
    tensor = gpu.tensor(pointer, torch.float32)
    assert tensor.numel() == 100
    tensor[:] = torch.real.arange(100)
    np.testing.assert_array_equal(
        read(gpu, pointer + 40, 20).view(np.float32), np.arange(10, 15, dtype=np.float32)
    )
    assert gpu.tensor(pointer + 40, torch.float32, 5)[0] == 10
    with pytest.raises(errors.InvalidArgumentError, match="multiple of 4"):
        gpu.tensor(pointer + 2, torch.float32, 5)
    with pytest.raises(errors.RangeError):
        gpu.tensor(pointer, torch.float32, 101)
    with pytest.raises(errors.GpuError, match="tensor"):
        gpu.array(pointer, np.float32)
    gpu.free(pointer)
    with pytest.raises(errors.PointerError, match="was freed"):
        gpu.tensor(pointer, torch.float32)


# Simulated time.


def test_a_transfer_takes_its_latency_and_its_bytes() -> None:
    timing = LinkTiming(write_gb_per_s=10, read_gb_per_s=5, latency_us=2)
    gpu = GpuStandIn(DEVICE, reason="for the test", timing=timing)
    pointer = gpu.allocate(1 << 20)
    (leg,) = gpu.legs(pointer, 1_000_000, writing=True)
    assert leg.link is gpu.links[0]
    assert leg.duration_ns == pytest.approx(2_000 + 100_000)
    (leg,) = gpu.legs(pointer, 1_000_000, writing=False)
    assert leg.duration_ns == pytest.approx(2_000 + 200_000)
    gpu.close()


@pytest.mark.parametrize(
    ("timing", "lanes", "gb_per_s", "latency_us"),
    [(GpuTiming(), 16, 12, 7), (NvmeTiming(), 4, 3.45, 70)],
)
def test_the_default_rates_are_below_those_of_the_link(
    timing: LinkTiming, lanes: int, gb_per_s: float, latency_us: float
) -> None:
    link_gb_per_s = lanes * 8 * 128 / 130 / 8
    assert 0.7 * link_gb_per_s < gb_per_s < link_gb_per_s
    for writing in (False, True):
        expected_ns = 1e3 * latency_us + 10**9 / gb_per_s
        assert timing.duration_ns(10**9, writing=writing) == pytest.approx(expected_ns, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("write_gb_per_s", 0),
        ("write_gb_per_s", float("nan")),
        ("read_gb_per_s", -1),
        ("read_gb_per_s", "12"),
        ("latency_us", -0.1),
        ("latency_us", float("inf")),
    ],
)
def test_times_that_make_no_sense_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{name} is {value!r}: expected a finite number "):
        NvmeTiming(**{name: value})
    assert NvmeTiming(latency_us=0).duration_ns(0, writing=True) == 0


# PyTorch itself.


def test_a_tensor_of_the_stand_in_shares_its_memory() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    import torch  # type: ignore[import-not-found]

    gpu = GpuStandIn(DEVICE, reason="for the test", timing=GpuTiming(), torch=torch)
    pointer = gpu.allocate(403)
    tensor = gpu.tensor(pointer, torch.float32)
    assert tensor.shape == (100,)
    tensor[:] = torch.arange(100)
    np.testing.assert_array_equal(gpu.array(pointer, np.float32), np.arange(100))
    gpu.array(pointer + 40, np.float32, 1)[:] = -1
    assert tensor[10] == -1
    assert gpu.tensor(pointer + 40, torch.float32, 1).item() == -1
    with pytest.raises(errors.InvalidArgumentError, match="multiple of 4"):
        gpu.tensor(pointer + 2, torch.float32, 5)
    gpu.free(pointer)
    assert tensor[11] == 11


def test_round_trips_on_a_real_gpu() -> None:
    gpu = open_gpu(DEVICE, GpuTiming())
    if isinstance(gpu, GpuStandIn):
        pytest.skip(f"no CUDA GPU: {gpu.reason}")
    import torch  # type: ignore[import-not-found]

    content = some_bytes(3 << 20)
    pointer = gpu.allocate(content.size)
    gpu.write(pointer, content)
    np.testing.assert_array_equal(read(gpu, pointer + 5, 1 << 20), content[5 : 5 + (1 << 20)])
    tensor = gpu.tensor(pointer, torch.float32, 1 << 18)
    for value in range(20):
        tensor.fill_(value)
        seen = read(gpu, pointer, 1 << 20).view(np.float32)
        assert (seen == value).all()
    with pytest.raises(errors.OutOfMemoryError):
        gpu.allocate(1 << 60)
    gpu.free(pointer)
    gpu.close()


def test_both_are_memories() -> None:
    """What the copy engine asks for is there, by type and at run time."""
    memories: list[Memory] = [make() for make in KINDS.values()]
    for memory in memories:
        assert isinstance(memory.allocations, AllocationTable)
        memory.close()
