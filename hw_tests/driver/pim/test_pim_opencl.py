"""Queues, events and kernels on the CPU and the pools; those of cores are run in RTL by the
training of ``system/hetero_pim``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from hw.pim.config import configure
from sw_driver.device.errors import (
    InvalidArgumentError,
    KernelError,
    RefusedWorkError,
    StreamFailedError,
)
from sw_driver.pim.backends.cycles import CyclesPim
from sw_driver.pim.backends.golden import GoldenPim
from sw_driver.pim.descriptor import Opcode
from sw_driver.pim.device import Pim
from sw_driver.pim.opencl import CommandQueue, Context, Kernel, Platform, host_ns
from sw_driver.pim.placing import PlacedTensor, work_on

CONFIG = configure(preset="tiny", bank_bytes=1 << 17)
CPU_NS = 32_000
"""10,000 cycles of 3.2 ns."""


class Made:
    """A context with a buffer of 4 x 16 and what doubles it, to another, by works or as kernels."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.x, self.y, self.z = (context.buffer(name, (4, 16)) for name in "xyz")
        self.double = context.kernel("double", works=[added(self.x, self.x, self.y)])
        self.relu = context.kernel("relu", "relu", (self.y, self.z, 64), "rw")
        self.queues = {name: CommandQueue(context, name) for name in context.platform.devices}


def added(a: PlacedTensor, b: PlacedTensor, result: PlacedTensor) -> Any:
    return work_on(Opcode.ADD, a=a, b=b, result=result)


VALUES = np.arange(-32, 32, dtype=np.float32).reshape(4, 16)


@pytest.fixture(params=[GoldenPim, CyclesPim])
def made(request: pytest.FixtureRequest) -> Iterator[Made]:
    with Pim(request.param(CONFIG)) as pim:
        yield Made(Context(Platform(pim), cpu_ns=lambda _: CPU_NS))


@pytest.fixture
def timed() -> Iterator[Made]:
    with Pim(CyclesPim(CONFIG)) as pim:
        yield Made(Context(Platform(pim), cpu_ns=lambda _: CPU_NS))


def test_devices_are_the_papers() -> None:
    config = configure(preset="paper", bank_bytes=1 << 17)
    with Pim(GoldenPim(config)) as pim:
        devices = Platform(pim).devices
        assert {name: each[1:] for name, each in devices.items()} == {
            "pools": (32, 444),
            "cpu": (8, 8),
        }


@pytest.mark.parametrize("device", ["pools", "cpu"])
def test_a_kernel_computes_the_same_everywhere(made: Made, device: str) -> None:
    """In an order that only wait lists give, over three queues."""
    cpu, other = made.queues["cpu"], made.queues[device]
    written = cpu.enqueue_write(made.x, VALUES)
    doubled = other.enqueue_kernel(made.double, [written])
    third = CommandQueue(made.context, "cpu")
    read = third.enqueue_read(made.z, [third.enqueue_kernel(made.relu, [doubled])])
    assert not read.over
    with pytest.raises(InvalidArgumentError, match="double has not ended: wait for it"):
        _ = doubled.profile
    np.testing.assert_array_equal(read.wait(), np.maximum(2 * VALUES, 0))
    assert (doubled.over, doubled.place) == (True, device)


def test_a_part_of_buffers(made: Made) -> None:
    """Four elements of 64; the others stay."""
    queue = made.queues["cpu"]
    queue.enqueue_write(made.y, -VALUES)
    queue.enqueue_kernel(made.context.kernel("some", "relu", (made.y, made.z, 4), "rb"))
    expected = np.zeros(64, np.float32)
    expected[:4] = [32, 31, 30, 29]
    np.testing.assert_array_equal(queue.enqueue_read(made.z).wait().ravel(), expected)


def test_times_by_hand(timed: Made) -> None:
    """Two kernels of 10,000 cycles on the CPU follow each other, in whichever queues they are; a
    work of the pools runs beside them, and its event tells when it was queued."""
    queues, context = timed.queues, timed.context
    start = context.domain.program_now
    first = queues["cpu"].enqueue_kernel(timed.relu)
    second = CommandQueue(context, "cpu").enqueue_kernel(timed.relu)
    beside = queues["pools"].enqueue_kernel(timed.double)
    behind = queues["pools"].enqueue_kernel(timed.double, [first])
    for each in queues.values():
        each.finish()
    second.wait()
    assert [first.running, first.ended] == [start, start + 10_000]
    assert [second.running, second.ended] == [start + 10_000, start + 20_000]
    assert beside.running == start
    assert 100 < beside.ended - start < 1000
    assert (behind.submitted, behind.running) == (start + 10_000, start + 10_000)
    begin_ns = int(3.2 * (start + 10_000))
    assert second.profile[:2] == (int(3.2 * start),) * 2
    assert second.profile[2:] == (begin_ns, int(3.2 * (start + 20_000)))


def test_waiting_stops_where_others_begin(timed: Made) -> None:
    """Two kernels on the CPU beside a product that takes the pools longer: what waits for that does
    not hold the second one up for more than a look at a few registers."""
    context = timed.context
    x, y = (context.buffer(name, (64, 64)) for name in "ab")
    product = context.kernel("product", works=[work_on(Opcode.MATMUL, a=x, b=x, result=y)])
    long = timed.queues["pools"].enqueue_kernel(product)
    first, second = (timed.queues["cpu"].enqueue_kernel(timed.relu) for _ in range(2))
    second.wait()
    assert not long.over
    assert second.ended - first.ended - 10_000 < 16


def test_a_barrier_and_what_was_written_before(made: Made) -> None:
    queue = made.queues["pools"]
    values = VALUES.copy()
    queue.enqueue_write(made.x, values)
    values[...] = 0
    doubled = queue.enqueue_kernel(made.double)
    barrier = queue.enqueue_barrier()
    assert not doubled.over
    barrier.wait()
    assert doubled.over
    np.testing.assert_array_equal(queue.enqueue_read(made.y).wait(), 2 * VALUES)


def test_more_works_than_the_pool_holds(made: Made) -> None:
    """And on the CPU one after the other, in the order of the works."""
    context, x, y = made.context, made.x, made.y
    works = [added(x[:1], x[:1], y[:1])]
    works += [added(y[:1], x[:1], y[:1]) for _ in range(2 * CONFIG.works)]
    many = context.kernel("many", works=works)
    for device in many.devices:
        queue = made.queues[device]
        queue.enqueue_write(x, VALUES)
        queue.enqueue_kernel(many)
        read = queue.enqueue_read(y)
        np.testing.assert_array_equal(read.wait()[0], (2 + 2 * CONFIG.works) * VALUES[0])
        queue.enqueue_write(y, VALUES)


def test_a_result_with_gaps_leaves_these_alone(made: Made) -> None:
    """A column, by the host, which reads and writes whole spans."""
    queue = made.queues["cpu"]
    for buffer in (made.x, made.y):
        queue.enqueue_write(buffer, VALUES)
    column = made.y[:, 3:4]
    queue.enqueue_kernel(
        made.context.kernel("one", works=[added(made.x[:, :1], made.x[:, :1], column)])
    )
    expected = VALUES.copy()
    expected[:, 3] = 2 * VALUES[:, 0]
    np.testing.assert_array_equal(queue.enqueue_read(made.y).wait(), expected)


def test_what_the_host_writes_behind_a_tensor_is_lost(made: Made) -> None:
    queue = made.queues["cpu"]
    for buffer in (made.x, made.y, made.z):
        queue.enqueue_write(buffer, VALUES)
    queue.enqueue_kernel(made.context.kernel("long", "relu", (made.x, made.y, 10**6), "rw"))
    np.testing.assert_array_equal(queue.enqueue_read(made.z).wait(), VALUES)


def test_the_hosts_time_by_hand(made: Made) -> None:
    """307.2 GFLOP/s and 59 GB/s: its bytes decide, or its operations."""
    assert made.double.nbytes == 3 * 256
    assert host_ns(made.double) == 14
    assert host_ns(made.double, launch_ns=5000) == 5014
    big = made.context.buffer("big", (64, 64))
    square = work_on(Opcode.MATMUL, a=big, b=big, result=made.context.buffer("square", (64, 64)))
    operations = 64 * 64 * 127
    assert host_ns(made.context.kernel("square", works=[square])) == -(-operations * 10 // 3072)


def test_a_failure_is_of_those_behind_it(made: Made) -> None:
    """On its queue, and of those that wait for it; others go on."""
    x, pools = made.x, made.queues["pools"]
    wrong = made.context.kernel("wrong", works=[added(x, x, x[:, ::-1])])
    failed = pools.enqueue_kernel(wrong)
    behind = pools.enqueue_kernel(made.double)
    other = made.queues["cpu"].enqueue_kernel(made.relu, [failed])
    with pytest.raises(ValueError, match="the pool refused the work: overlap"):
        pools.finish()
    with pytest.raises(StreamFailedError, match="double was not carried out"):
        behind.wait()
    with pytest.raises(ValueError, match="overlap"):
        other.wait()
    assert failed.failed
    assert other.failed
    CommandQueue(made.context, "pools").enqueue_kernel(made.double).wait()


def test_what_the_pools_refuse_the_cpu_refuses(made: Made) -> None:
    x = made.x
    before = made.queues["cpu"].enqueue_read(x).wait()
    wrong = made.context.kernel("wrong", works=[added(x, x, x[:, ::-1])])
    with pytest.raises(RefusedWorkError, match="work 0 of wrong was refused: overlap; give"):
        made.queues["cpu"].enqueue_kernel(wrong).wait()
    queue = CommandQueue(made.context, "cpu")
    np.testing.assert_array_equal(queue.enqueue_read(x).wait(), before)


def refusals(made: Made, other: Made) -> list[tuple[Callable[[], Any], str]]:
    queue, context = made.queues["pools"], made.context
    foreign = other.queues["cpu"].enqueue_barrier()
    return [
        (lambda: queue.enqueue_kernel(made.relu), "relu has no form for the pools: .* cpu"),
        (lambda: CommandQueue(context, "cores"), "'cores': .*expected one of pools, cpu"),
        (lambda: queue.enqueue_barrier([foreign]), "no event or kernel of this"),
        (lambda: queue.enqueue_kernel(other.double), "no event or kernel of"),
        (lambda: queue.enqueue_barrier([3]), "3 is no event"),  # type: ignore[list-item]
        (lambda: queue.enqueue_write(made.x, VALUES[0]), r"\(16,\), the buffer .*4, 16"),
        (
            lambda: queue.enqueue_write(made.x, VALUES.astype(np.int32)), "int32 .* float32"
        ),
        (lambda: context.kernel("a", "relu", (made.x, made.y, 64), "r"), "2 tensors, and uses 'r'"),
        (lambda: context.kernel("a", "relu", (made.x, made.y, 64), "rx"), "uses 'rx': expected r"),
        (lambda: context.kernel("a", "relv", (made.x,), "r"), "no kernel 'relv'"),
        (lambda: context.kernel("a", "relu", (made.x, made.y, 64, 1), "rw"), "4 arguments"),
        (lambda: context.kernel("a"), "a does nothing: give a command, or works"),
    ]  # fmt: skip


def test_what_is_refused(made: Made) -> None:
    with Pim(GoldenPim(CONFIG)) as pim:
        for call, message in refusals(made, Made(Context(Platform(pim)))):
            with pytest.raises(InvalidArgumentError, match=message):
                call()


def test_a_kernel_that_fails_on_the_host(made: Made) -> None:
    """The same cause as on a core: a program of a kernel that there is not."""
    command = made.context.buffer("command", (4,))
    made.queues["cpu"].enqueue_write(command, np.array([999, 0, 0, 0], np.uint32).view(np.float32))
    kernel: Kernel = made.context.kernel("odd", "program", (command, 1), "r")
    with pytest.raises(KernelError, match="odd failed on the host with cause 1"):
        made.queues["cpu"].enqueue_kernel(kernel).wait()
