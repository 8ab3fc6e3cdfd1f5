"""The registers as the register map describes them, below the driver."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from hw.kernel.registers import kernel_map
from hw_tests.driver.adam import adam_constants, adam_step
from hw_tests.driver.device_memory import fill, snapshot
from sw_driver.axdimm.registers import ChannelRegisters, arbiter_registers, kernel_registers
from sw_driver.axdimm.transport import Transport, kernel_window
from sw_driver.device.transport import DeviceFault

COUNT = 40
TENSORS = {"p": 0x1000, "g": 0x2000, "m": 0x3000, "v": 0x4000}
CONSTANTS = adam_constants(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01, t=3)


def set_mode(transport: Transport, channel: int, name: str) -> None:
    arbiter = arbiter_registers(transport, channel)
    code = arbiter["mode"]["mode"].code(name)
    arbiter.write("mode", code)
    arbiter.poll("status", {"mode": code, "draining": 0}, interval=4, timeout=100_000)


@pytest.fixture
def kernel(backend: Transport) -> Iterator[ChannelRegisters]:
    """The registers of channel 0's kernel, in acceleration mode, with settings that are fine."""
    set_mode(backend, 0, "acceleration")
    window = kernel_registers(backend, 0)
    window.write_many(settings())
    yield window
    window.poll("status", {"busy": 0}, interval=16, timeout=1_000_000)
    set_mode(backend, 0, "normal")


def settings(**changes: int) -> dict[str, int]:
    return {
        "count": COUNT,
        **{f"{name}_in": address for name, address in TENSORS.items()},
        **{f"{name}_out": TENSORS[name] for name in "pmv"},
        **{name: int(value.view(np.uint32)) for name, value in CONSTANTS.items()},
        **changes,
    }


def run(kernel: ChannelRegisters) -> dict[str, int]:
    """Starts and returns the fields of the status at the end."""
    kernel.write("control", 1)
    status = kernel.poll("status", {"busy": 0}, interval=16, timeout=1_000_000)
    return {field.name: field.extract(status) for field in kernel["status"].fields}


def cause(name: str) -> int:
    return kernel_map()["status"]["cause"].code(name)


def expected_memory(memory: np.ndarray) -> np.ndarray:
    """``memory`` after a run with :func:`settings`."""
    expected = memory.copy()
    words = expected.view(np.float32)
    p, g, m, v = (words[address // 4 :][:COUNT] for address in TENSORS.values())
    for view, data in zip((p, m, v), adam_step(p, g, m, v, CONSTANTS), strict=True):
        view[:] = data
    return expected


def refusals(capacity_bytes: int) -> dict[str, tuple[str, dict[str, int]]]:
    end = kernel_window(capacity_bytes)
    size = -(-4 * COUNT // 64) * 64
    tensors = [name for name in settings() if name.endswith(("_in", "_out"))]
    return {
        "no parameters": ("zero_count", {"count": 0}),
        **{f"{name} unaligned": ("unaligned", {name: 0x5004}) for name in tensors},
        **{f"{name} past the end": ("out_of_range", {name: end - size + 64}) for name in tensors},
        "count past the end": ("out_of_range", {"count": capacity_bytes // 4}),
        "largest count": ("out_of_range", {"count": (1 << 40) - 1}),
        "p_out on g_in": ("overlap", {"p_out": TENSORS["g"]}),
        "p_out into p_in": ("overlap", {"p_out": TENSORS["p"] + 64}),
        "v_out ends in m_in": ("overlap", {"v_out": TENSORS["m"] - size + 64}),
        "m_out is v_out": ("overlap", {"m_out": 0x5000, "v_out": 0x5000}),
        "p_out into m_out": ("overlap", {"p_out": 0x5000, "m_out": 0x5040}),
    }


@pytest.mark.parametrize("case", list(refusals(1 << 20)))
def test_settings_that_are_refused(backend: Transport, kernel: ChannelRegisters, case: str) -> None:
    name, changes = refusals(backend.capacity_bytes)[case]
    memory = snapshot(backend)[0]
    run(kernel)
    done_before = kernel.read_many(["cycles", "beats_read", "beats_written"])
    backend.backdoor_write(0, 0, memory)
    kernel.write_many(settings(**changes))
    status = run(kernel)
    assert (status["error"], status["cause"]) == (1, cause(name))
    assert kernel.read_many(list(done_before)) == done_before
    assert np.array_equal(snapshot(backend)[0], memory)
    # The next run with good settings is not affected.
    kernel.write_many(settings())
    status = run(kernel)
    assert (status["done"], status["error"], status["cause"]) == (1, 0, cause("none"))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"p_out": 0x5000, "m_out": 0x6000, "v_out": 0x7000},
        {"p_out": 0x1100, "m_out": 0x3000 - 192, "v_out": 0x40C0},
    ],
    ids=["in place", "elsewhere", "just beside"],
)
def test_settings_that_are_accepted(
    backend: Transport, kernel: ChannelRegisters, changes: dict[str, int]
) -> None:
    memory = fill(backend, np.random.default_rng(2))[0]
    kernel.write_many(settings(**changes))
    status = run(kernel)
    assert (status["done"], status["error"], status["cause"]) == (1, 0, cause("none"))
    expected = memory.copy()
    results = expected_memory(memory)
    for name in "pmv":
        address = settings(**changes)[f"{name}_out"]
        expected[address:][: 4 * COUNT] = results[TENSORS[name] :][: 4 * COUNT]
    assert np.array_equal(snapshot(backend)[0], expected)


def test_settings_are_taken_over_at_start(backend: Transport, kernel: ChannelRegisters) -> None:
    memory = fill(backend, np.random.default_rng(3))[0]
    kernel.write("control", 1)
    kernel.write_many(dict.fromkeys(settings(), 0))
    kernel.poll("status", {"busy": 0, "error": 0}, interval=16, timeout=1_000_000)
    assert np.array_equal(snapshot(backend)[0], expected_memory(memory))


def test_start_during_a_run(backend: Transport, kernel: ChannelRegisters) -> None:
    if not backend.timed:
        pytest.skip("without a clock a run is over when START returns")
    memory = fill(backend, np.random.default_rng(4))[0]
    kernel.write("control", 1)
    status = run(kernel)
    assert (status["done"], status["error"]) == (1, 1)
    assert status["cause"] == cause("start_while_busy")
    assert np.array_equal(snapshot(backend)[0], expected_memory(memory))


def test_settings_read_back(kernel: ChannelRegisters) -> None:
    assert kernel.read_many(list(settings())) == settings()
    kernel.write("count", (1 << 64) - 1)
    assert kernel.read("count") == (1 << 40) - 1


def test_registers_that_are_read_only_stay(backend: Transport, kernel: ChannelRegisters) -> None:
    run(kernel)
    names = ["status", "beats_read", "beats_written"]
    before = kernel.read_many(names)
    kernel.write_many(dict.fromkeys(names, (1 << 64) - 1))
    assert kernel.read_many(names) == before
    arbiter = arbiter_registers(backend, 0)
    names = ["id", "capacity", "config"]
    before = arbiter.read_many(names)
    arbiter.write_many(dict.fromkeys(names, (1 << 64) - 1))
    assert arbiter.read_many(names) == before


def test_the_host_cannot_reach_the_dram_in_acceleration_mode(
    backend: Transport, kernel: ChannelRegisters
) -> None:
    arbiter = arbiter_registers(backend, 0)
    before = arbiter.read_many(["refused", "host_reads", "host_writes"])
    memory = snapshot(backend)[0]
    backend.write_lines(0, 0x1000, np.full(128, 0x5A, dtype=np.uint8))
    with pytest.raises(DeviceFault):
        backend.read_lines(0, 0x1000, 64)
    after = arbiter.read_many(["refused", "host_reads", "host_writes"])
    # A read that is not answered may have been tried more than once.
    assert after["refused"] >= before["refused"] + 3
    assert (after["host_reads"], after["host_writes"]) == (
        before["host_reads"],
        before["host_writes"],
    )
    assert np.array_equal(snapshot(backend)[0], memory)


def test_the_kernel_cannot_be_reached_in_normal_mode(backend: Transport) -> None:
    set_mode(backend, 1, "acceleration")
    kernel = kernel_registers(backend, 1)
    kernel.write("count", 77)
    set_mode(backend, 1, "normal")
    memory = backend.backdoor_read(1, 0, backend.capacity_bytes)
    refused = arbiter_registers(backend, 1).read("refused")
    kernel.write("count", 78)
    assert arbiter_registers(backend, 1).read("refused") == refused + 1
    with pytest.raises(DeviceFault):
        kernel.read("count")
    assert np.array_equal(backend.backdoor_read(1, 0, backend.capacity_bytes), memory)
    set_mode(backend, 1, "acceleration")
    assert kernel.read("count") == 77
    set_mode(backend, 1, "normal")


def test_the_arbiter_counts_lines(backend: Transport) -> None:
    arbiter = arbiter_registers(backend, 1)
    before = arbiter.read_many(["host_reads", "host_writes"])
    backend.write_lines(1, 0, np.zeros(640, dtype=np.uint8))
    backend.read_lines(1, 128, 192)
    after = arbiter.read_many(["host_reads", "host_writes", "overflows", "late_reads"])
    assert after["host_writes"] == before["host_writes"] + 10
    # Late reads are repeated.
    assert after["host_reads"] >= before["host_reads"] + 3
    assert after["overflows"] == 0


def test_channels_have_modes_of_their_own(backend: Transport) -> None:
    set_mode(backend, 1, "acceleration")
    assert arbiter_registers(backend, 0).read_field("status", "mode") == 0
    assert arbiter_registers(backend, 1).read_field("status", "mode") == 1
    backend.write_lines(0, 0, np.full(64, 7, dtype=np.uint8))
    assert backend.read_lines(0, 0, 64)[0] == 7
    set_mode(backend, 1, "normal")
