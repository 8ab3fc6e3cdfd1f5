"""Queues, events and kernels on the CPU and the pools; those of cores are run in RTL by the
training of ``system/hetero_pim``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hw.pim.config import configure
from sw_driver.device.errors import (
    BusyError,
    InvalidArgumentError,
    KernelError,
    PointerError,
    RefusedWorkError,
    StreamFailedError,
)
from sw_driver.pim.backends.cycles import CyclesPim
from sw_driver.pim.backends.golden import GoldenPim
from sw_driver.pim.descriptor import Opcode, StridedTensor
from sw_driver.pim.device import Pim
from sw_driver.pim.firmware.build import compile_library
from sw_driver.pim.opencl import CommandQueue, Context, Kernel, Platform, host_ns
from sw_driver.pim.placing import PlacedTensor, work_on
from sw_driver.pim.programs import WINDOW_BYTES, Command, Firmware
from sw_driver.pim.runtime import Scheduler

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
        assert {name: figures[1:] for name, figures in devices.items()} == {
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
    for queue in queues.values():
        queue.finish()
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


def refusals(made: Any, other: Made) -> list[tuple[Callable[[], Any], str]]:
    queue, context = made.queues["pools"], made.context
    foreign = other.queues["cpu"].enqueue_barrier()
    return [
        (lambda: queue.enqueue_kernel(made.relu), "relu has no form for the pools: .* cpu"),
        (lambda: CommandQueue(context, "cores"), "'cores': .*expected one of pools, cpu"),
        (lambda: queue.enqueue_barrier([foreign]), "which is no event of this context"),
        (lambda: queue.enqueue_kernel(other.double), "no event or kernel of"),
        (lambda: queue.enqueue_barrier([3]), "wait_for has 3, which is no event"),
        (lambda: queue.enqueue_write(made.x, VALUES[0]), r"\(16,\): expected .*4, 16"),
        (
            lambda: queue.enqueue_write(made.x, VALUES.astype(np.int32)), "int32 .* float32"
        ),
        (lambda: context.kernel("a", "relu", (made.x, made.y, 64), "r"), "2 tensors, and uses 'r'"),
        (lambda: context.kernel("a", "relu", (made.x, made.y, 64), "rx"), "uses 'rx': expected r"),
        (lambda: context.kernel("a", "relv", (made.x,), "r"), "no kernel 'relv'"),
        (lambda: context.kernel("a", "relu", (made.x, made.y, 64, 1), "rw"), "4 arguments"),
        (lambda: context.kernel("a"), "a does nothing: give a command, or works"),
        (lambda: queue.enqueue_barrier(5), "wait_for is 5: expected a list of events, such as"),
        (lambda: queue.enqueue_barrier(foreign), "expected a list of events, such as"),
        (lambda: queue.enqueue_kernel(5), "5 is no event or kernel of this context: make it"),
        (lambda: queue.enqueue_read("x"), "got 'x': expected a buffer, or a part of one"),
        (lambda: queue.enqueue_write(3, VALUES), "got 3: expected a buffer"),
        (lambda: queue.enqueue_write(made.x, VALUES.tolist()), "got a list of values: expected a"),
        (lambda: queue.enqueue_write(other.x, VALUES), "the buffer 'x' belongs to another"),
        (lambda: context.kernel("a", "relu", (other.x, made.y, 64), "rw"), "belongs to another"),
        (lambda: context.kernel("a", works=[3]), "works have 3: expected what work_on returns"),
        (lambda: context.kernel("a", works=3), "works is 3: expected a list"),
        (lambda: context.kernel("a", "relu", 3), "arguments is 3: expected a list"),
        (lambda: context.buffer("a", 16), "the shape of a is 16: expected extents, such as"),
        (lambda: context.buffer("a", (4, -1)), "one of the shape of a is -1"),
        (lambda: context.buffer(5, (4,)), "a buffer's name is 5: expected a string"),
        (lambda: context.kernel("a", "relu", (made.x, made.y, 64), None), "uses None: expected r"),
        (lambda: context.kernel("a", "relu", (made.x, made.y, 64), ["r", "w"]), "expected r, w or"),
        (lambda: context.kernel("a", ["relu"], (made.x, made.y, 1), "rw"), r"no kernel \['relu'\]"),
        (lambda: context.kernel(5, "relu", (made.x, made.y, 64), "rw"), "a kernel's name is 5"),
        (lambda: Context(context.platform, cpu_ns=5), "cpu_ns is 5: expected a function of a"),
        (lambda: Context(context.platform, cpu_ns=None), "cpu_ns is None: expected a function"),
        (lambda: made.x[1], r"indices are 1: expected slices, such as \[1:2\], of 2 indices"),
        (lambda: made.x[1:, 1:, 1:], "expected slices"),
        (lambda: made.x[1.5:], "slice indices must be integers"),
        (lambda: made.x.view(2), "an index is 2: expected an integer from 0 to 1"),
        (lambda: replace(made.x, strides=(1,)), r"the strides are \(1,\): expected a stride"),
        (lambda: replace(made.x, shape=None), "the shape is None: expected extents"),
        (lambda: replace(made.x, address_bytes="x"), "address_bytes is 'x'"),
        (lambda: work_on(99, a=made.x, result=made.y), "the opcode is 99: expected one of Opcode"),
        (lambda: work_on(Opcode.ADD, a=made.x, result=made.y), "ADD's b is None: expected a buf"),
        (lambda: work_on(Opcode.ADD, d=made.x, result=made.y), "what ADD is given is 'd'"),
        (lambda: added(made.x, made.x[:2], made.y), "ADD's b has 2 rows, another operand of it 4"),
        (lambda: context.pim.pim_fix(5, made.double.works[0], StridedTensor(), 1), "pim_ids is 5"),
        (lambda: context.pim.write_tensor(None, VALUES), "got None: expected a tensor in the"),
        (lambda: context.pim.write_tensor(made.x, [1.0]), "got a list of values: expected a numpy"),
        (lambda: context.pim.read_tensor(5), "got 5: expected a tensor in the stack"),
        (lambda: Pim(None), "transport is None: expected one, such as GoldenPim"),
        (lambda: Pim(GoldenPim(CONFIG), firmware=b"a"), "firmware is b'a': expected a Firmware"),
        (lambda: Firmware.of("a.bin"), "the image is 'a.bin': expected bytes"),
        (lambda: Firmware.of().words(Command("relu", None)), "relu's arguments are None: expected"),
        (lambda: Firmware.of().slot(Command("relu", (0, 0, 0)), [(-32, 32)]), "address.* is -32"),
        (lambda: CommandQueue(made, "cpu"), "expected a Context"),
        (lambda: Context(context.pim), "expected a Platform"),
        (lambda: Platform(context), "expected a Pim"),
    ]  # fmt: skip


def test_what_is_refused(made: Made) -> None:
    with Pim(GoldenPim(CONFIG)) as pim:
        for call, message in refusals(made, Made(Context(Platform(pim)))):
            with pytest.raises(InvalidArgumentError, match=message):
                call()


@pytest.mark.parametrize("value", [None, "5", -5, float("nan"), float("inf"), 1e30, True])
def test_what_is_no_time_of_the_host(value: Any) -> None:
    """When the kernel runs, and when a scheduler asks what it would take."""
    with Pim(CyclesPim(CONFIG)) as pim:
        made = Made(Context(Platform(pim), cpu_ns=lambda _: value))
        ran = made.queues["cpu"].enqueue_kernel(made.relu)
        scheduled = Scheduler(made.context, ["relu"]).enqueue_kernel(made.relu)
        for event in (ran, scheduled):
            with pytest.raises(InvalidArgumentError, match=r"cpu_ns returns for relu is .*: exp"):
                event.wait()


def test_integers_of_numpy(made: Made) -> None:
    """As shapes, as elements of a small type, whose product it does not hold, and as banks."""
    queue = made.queues["cpu"]
    for shape in (np.array([4, 16]), (np.int8(100), np.uint8(100)), [np.int64(3)]):
        buffer = made.context.buffer("a", shape)  # type: ignore[arg-type]
        values = np.ones([int(extent) for extent in shape], np.float32)
        queue.enqueue_write(buffer, values)
        assert queue.enqueue_read(buffer).wait().sum() == values.size
        assert {type(number) for number in (*buffer.shape, *buffer.strides)} == {int}
    part = made.x[np.int64(1) : np.int64(3)]
    assert replace(part, address_bytes=np.int64(part.address_bytes)) == part
    assert type(replace(part, address_bytes=np.int64(4)).address_bytes) is int
    work, pim = made.double.works[0], made.context.pim
    pim.wait(pim.pim_fix(np.array([0, 1]), work, work.result, 2))  # type: ignore[arg-type]


def test_lists_are_the_programs(made: Made) -> None:
    """They are copied at the call: what is done with them afterwards changes nothing, and what can
    be read once is read once."""
    context, x, y, z = made.context, made.x, made.y, made.z
    works, arguments, shape = [added(x, x, y)], [y, z, 64], [4, 16]
    strides = [16, 1]
    part = PlacedTensor(address_bytes=y.address_bytes, shape=[4, 16], strides=strides)  # type: ignore[arg-type]
    work = replace(
        added(x, x, y), result=StridedTensor(address_bytes=y.address_bytes, strides=strides)
    )  # type: ignore[arg-type]
    kernels = [
        context.kernel("double", works=works),
        context.kernel("double", works=(one_work for one_work in works)),  # type: ignore[arg-type]
        context.kernel("double", works=[work]),
    ]
    relus = [
        context.kernel("relu", "relu", arguments, "rw"),
        context.kernel("relu", "relu", (argument for argument in arguments), "rw"),  # type: ignore[arg-type]
        context.kernel("relu", "relu", [part, z, 64], "rw"),
    ]
    other = context.buffer("other", shape)  # type: ignore[arg-type]
    works.clear()
    shape.clear()
    arguments[2], strides[0] = 1, 0
    pools, cpu = made.queues["pools"], made.queues["cpu"]
    cpu.enqueue_write(other, VALUES).wait()
    for double, relu in zip(kernels, relus, strict=True):
        for buffer in (y, z):
            cpu.enqueue_write(buffer, np.zeros_like(VALUES)).wait()
        written = VALUES.copy()
        before = [cpu.enqueue_write(x, written)]
        written[...] = 0
        doubled = pools.enqueue_kernel(double, before)
        before.clear()
        before.append(doubled)
        ran = cpu.enqueue_kernel(relu, (event for event in before))  # type: ignore[arg-type]
        before.append(ran)  # which would wait for itself
        np.testing.assert_array_equal(cpu.enqueue_read(z).wait(), np.maximum(2 * VALUES, 0))


def test_a_queue_that_failed_recovers(made: Made) -> None:
    """As its message says: what is queued then is carried out."""
    x, pools = made.x, made.queues["pools"]
    failed = pools.enqueue_kernel(made.context.kernel("wrong", works=[added(x, x, x[:, ::-1])]))
    with pytest.raises(RefusedWorkError):
        pools.finish()
    with pytest.raises(StreamFailedError, match=r"was not queued; recover\(\) forgets the failure"):
        pools.enqueue_kernel(made.double)
    assert pools.recover() is failed.error
    assert pools.recover() is None
    pools.enqueue_write(x, VALUES)
    pools.enqueue_kernel(made.double)
    np.testing.assert_array_equal(pools.enqueue_read(made.y).wait(), 2 * VALUES)
    pools.finish()


def test_memory_is_given_back(made: Made) -> None:
    """More buffers and kernels, one after the other, than would have room together."""
    context, queue = made.context, made.queues["pools"]
    free = [*context.memory._holes]
    some = 3 * sum(map(len, free)) // (4 * 64 * 64)
    for _ in range(9):
        with context.buffer("large", (some // 4, 64 * 4)) as large, context.buffer("r", (4,)) as r:
            total = work_on(Opcode.ADD, a=large[:1, :4], b=large[:1, :4], result=r.flat)
            with context.kernel("kernel", works=[total]) as kernel:
                queue.enqueue_kernel(kernel).wait()
    assert context.memory._holes == free
    # In whatever order, holes become one again.
    several = [context.buffer(str(number), (200,)) for number in range(5)]
    for number in (3, 1, 4, 0, 2):
        several[number].release()
    assert context.memory._holes == free
    with pytest.raises(InvalidArgumentError, match="double does nothing"):
        context.kernel("double")
    wide = added(made.x, made.x, replace(made.y, address_bytes=0))
    with pytest.raises(InvalidArgumentError, match="over which far spreads"):
        context.kernel(
            "far", works=[replace(wide, result=replace(wide.result, address_bytes=1 << 40))]
        )
    assert context.memory._holes == free


def test_what_was_released_is_refused(made: Made) -> None:
    """And also what another buffer has the place of."""
    context, pim = made.context, made.context.pim
    x, part, queue = made.x, made.x[:1], made.queues["pools"]
    reads_x = context.kernel("reads_x", works=[added(x, x, made.z)])
    work = added(x, x, made.y)
    with pytest.raises(InvalidArgumentError, match="is no whole buffer: release the one"):
        part.release()
    x.release()
    assert context.buffer("another", (4, 16)).address_bytes == x.address_bytes
    for call in (
        x.release,
        lambda: queue.enqueue_write(x, VALUES),
        lambda: queue.enqueue_read(part),
        lambda: queue.enqueue_kernel(reads_x),
        lambda: context.kernel("new", works=[work]),
        lambda: context.kernel("new", "relu", (x.flat, made.y, 64), "rw"),
        lambda: pim.write_tensor(x, VALUES),
        lambda: pim.read_tensor(part),
        lambda: pim.pim_fix(None, work, work.result, 1),
    ):
        with pytest.raises(PointerError, match="the buffer 'x' was released: make another one"):
            call()
    made.double.check()
    made.relu.release()
    for call in (made.relu.release, lambda: made.queues["cpu"].enqueue_kernel(made.relu)):
        with pytest.raises(PointerError, match="the kernel 'relu' was released"):
            call()


def test_what_is_in_use_is_not_released(timed: Made) -> None:
    """The message's way out is one."""
    written = timed.queues["cpu"].enqueue_write(timed.x, VALUES)
    doubled = timed.queues["pools"].enqueue_kernel(timed.double, [written])
    for held in (timed.x, timed.y, timed.double):
        with pytest.raises(
            BusyError, match="which has not ended: wait for its event, then release"
        ):
            held.release()
    doubled.wait()
    for held in (timed.x, timed.y, timed.double):
        held.release()


def test_a_program_on_the_host_has_the_numbers_of_the_cores(made: Made) -> None:
    """Those of a library that has its kernels in another order, and none of some."""
    context, firmware = made.context, made.context.pim.firmware
    y, z = made.y, made.z
    (start,) = {context.kernel("p", "relu", (y, z, 64), "rw").window.address_bytes}
    at_y, at_z = (WINDOW_BYTES + tensor.address_bytes - start for tensor in (y, z))
    program = context.buffer("program", (1, 9))
    words = firmware.program(
        [Command("fill", (at_z, 64, 0x40000000)), Command("relu", (at_y, at_z, 4))]
    )
    queue = made.queues["cpu"]
    queue.enqueue_write(program, np.array([[*words[:9]]], np.uint32).view(np.float32))
    queue.enqueue_write(y, VALUES)
    kernel = context.kernel("whole", "program", (program, 1, y, z)[:2], "r")
    assert kernel.devices == ["cpu"]
    for command, message in (("relu", "a write of byte 0 of"), ("barrier", "no such kernel")):
        arguments = (WINDOW_BYTES, WINDOW_BYTES, 1) if command == "relu" else (WINDOW_BYTES, 2)
        words = firmware.program([Command(command, arguments)])
        values = np.zeros((1, 9), np.uint32)
        values[0, : len(words)] = words
        queue.enqueue_write(program, values.view(np.float32))
        with pytest.raises(KernelError, match=message):
            queue.enqueue_kernel(kernel).wait()
        queue.recover()
    # A program that runs itself.
    words = firmware.program([Command("program", (WINDOW_BYTES, 1))])
    queue.enqueue_write(program, np.array([[*words, *[0] * 5]], np.uint32).view(np.float32))
    with pytest.raises(KernelError, match="with a stack of more than 65536 bytes"):
        queue.enqueue_kernel(kernel).wait()


OWN = """
#include "pim.h"
KERNEL(twice, 3) { for (u32 i = 0; i < a[2]; i++) put(FLOATS(a[1]) + i, 2.0f * FLOATS(a[0])[i]); }
KERNEL(divide, 3) { WORDS(a[0])[0] = a[1] / a[2]; }
"""


def test_kernels_of_ones_own(tmp_path: Path) -> None:
    """The host has them if the context has their library, and only then."""
    source = tmp_path / "own.c"
    source.write_text(OWN)
    library = compile_library(tmp_path / "own.so", [source])
    kernels = Firmware.of().kernels
    firmware = Firmware({"twice": 3, "divide": 3, **kernels})
    with Pim(GoldenPim(CONFIG), firmware=firmware) as pim:
        without, context = Context(Platform(pim)), Context(Platform(pim), library=library)
        x, y = (without.buffer(name, (16,)) for name in "xy")
        with pytest.raises(InvalidArgumentError, match=r"twice: no device has the kernel 'twice'"):
            without.kernel("twice", "twice", (x, y, 16), "rw")
        with pytest.raises(InvalidArgumentError, match="no device has the kernel 'barrier'"):
            without.kernel("wait", "barrier", (x, 2), "b")
        x, y = (context.buffer(name, (16,)) for name in "xy")
        queue = CommandQueue(context, "cpu")
        queue.enqueue_write(x, np.arange(16, dtype=np.float32))
        kernel = context.kernel("twice", "twice", (x, y, 16), "rw")
        assert kernel.devices == ["cpu"]
        queue.enqueue_kernel(kernel)
        np.testing.assert_array_equal(queue.enqueue_read(y).wait(), 2 * np.arange(16))
        for arguments, uses, message in (
            ((x, y, 17), "rw", "a read of byte 64 of the buffer 'x', which has 64 bytes, outside"),
            ((x, y, 1 << 30), "rw", "a read of byte 64 of the buffer 'x'"),
            ((x, y, 16), "rr", "a write of byte 0 of the buffer 'y', which is only read"),
        ):
            with pytest.raises(KernelError, match=message):
                queue.enqueue_kernel(context.kernel("own", "twice", arguments, uses)).wait()
            queue.recover()
        with pytest.raises(KernelError, match="own failed on the host with a division by zero"):
            queue.enqueue_kernel(context.kernel("own", "divide", (x, 1, 0), "b")).wait()
        with pytest.raises(InvalidArgumentError, match="expected what compile_library returned"):
            Context(Platform(pim), library="own.so")  # type: ignore[arg-type]


def test_a_kernel_that_fails_on_the_host(made: Made) -> None:
    """The same cause as on a core: a program of a kernel that there is not."""
    command = made.context.buffer("command", (4,))
    made.queues["cpu"].enqueue_write(command, np.array([999, 0, 0, 0], np.uint32).view(np.float32))
    kernel: Kernel = made.context.kernel("odd", "program", (command, 1), "r")
    with pytest.raises(KernelError, match="odd failed on the host with cause 1"):
        made.queues["cpu"].enqueue_kernel(kernel).wait()
