"""The programmable PIM through the driver: its calls, kernels that fail, cores that are stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hw.pim.registers.pool_registers import RING_BYTES, RINGS_OFFSET_BYTES
from sw_driver.device.errors import (
    InvalidArgumentError,
    KernelError,
    OutOfMemoryError,
    RangeError,
    RefusedWorkError,
    UnknownWorkError,
    WaitTimeoutError,
)
from sw_driver.experiments.pim.training import training_config
from sw_driver.pim.backends import open_pim
from sw_driver.pim.backends.golden import GoldenPim
from sw_driver.pim.backends.rtl import RtlPim
from sw_driver.pim.cores import offset_in, window_of
from sw_driver.pim.descriptor import Opcode
from sw_driver.pim.device import Pim
from sw_driver.pim.firmware.build import compile_image
from sw_driver.pim.placing import PlacedTensor, StackMemory, work_on
from sw_driver.pim.planning import planned
from sw_driver.pim.programs import WINDOW_BYTES, Command, Firmware, Window, work_slots
from sw_driver.pim.registers import ring_map
from sw_driver.pim.ring import driver_place

CONFIG = training_config(4)
FIRST = CONFIG.banks
"""The number of core 0."""
COUNT = 72
Offence = Callable[[Pim, StackMemory], int]
LIMIT_CYCLES = 60_000
LONG = 13_000
"""Elements of a sum that takes longer than a kernel may and a core's start, but not two limits."""


@pytest.fixture
def memory() -> StackMemory:
    return StackMemory(CONFIG)


@pytest.fixture
def pim() -> Iterator[Pim]:
    """A small stack with four cores."""
    with Pim(RtlPim(CONFIG), kernel_limit_cycles=LIMIT_CYCLES) as device:
        yield device


def tensors(memory: StackMemory, *names: str) -> list[PlacedTensor]:
    return [memory.place(name, (1, COUNT)) for name in names]


def values() -> NDArray[np.float32]:
    return np.arange(COUNT, dtype=np.float32)[None] - np.float32(COUNT // 2)


def words_at(pim: Pim, tensor: PlacedTensor, words: list[int]) -> None:
    pim.write_memory(tensor.address_bytes, np.array(words, np.uint32))


def test_table_iii_for_a_core(pim: Pim, memory: StackMemory) -> None:
    x, y, z = tensors(memory, "x", "y", "z")
    pim.write_tensor(x, values())
    assert pim.pim_status(FIRST + 1) == 1  # it has not been started
    first = pim.pim_prog(FIRST + 1, "relu", (x, y, COUNT), (y,))
    second = pim.pim_prog(FIRST + 1, "relu_gradient", (y, x, z, COUNT), (z,))
    assert pim.pim_status(FIRST + 1) == 1
    assert (pim.work_query(first), pim.work_query(second)) == (0, 0)
    places, data = pim.work_info(second)
    assert places == [FIRST + 1]
    banks = [[tensor.address_bytes // 512 % 4] for tensor in (x, y, z)]
    assert (data.inputs, data.outputs) == (sorted(banks[0] + banks[1]), banks[2])
    pim.wait(second)
    assert (pim.work_query(first), pim.work_query(second)) == (1, 1)
    assert pim.pim_status(FIRST + 1) == 0
    assert pim.idle == (1 << FIRST) - 1 | 2 << FIRST
    assert np.array_equal(pim.read_tensor(y), np.maximum(values(), 0))
    assert np.array_equal(pim.read_tensor(z), np.maximum(values(), 0))
    pim.wait(first)
    with pytest.raises(UnknownWorkError, match="nor the last one"):
        pim.kernel_counters(first)


def test_a_recursive_kernel_counts_what_the_pools_do(pim: Pim, memory: StackMemory) -> None:
    x, y, slots = tensors(memory, "x", "y", "slots")
    pim.write_tensor(x, values())
    work = work_on(Opcode.ADD, a=x, b=x, result=y, units=CONFIG.units)
    words_at(pim, slots, work_slots([planned(work, CONFIG)]))
    shown = [window_of(tensor) for tensor in (slots, x, y)]
    kernel = pim.pim_prog(FIRST, "works", (slots, 1), (y,), windows=shown)
    pim.wait(kernel)
    assert np.array_equal(pim.read_tensor(y), 2 * values())
    counters = pim.kernel_counters(kernel)
    assert counters[:4] == (0, 0, COUNT, 0)
    assert 0 < counters.memory_cycles < counters.pool_cycles < counters.cycles
    assert counters.barrier_cycles == 0


def test_what_is_left_is_counted_before_a_kernel_begins(pim: Pim, memory: StackMemory) -> None:
    """Of a program each kernel fills a tensor, which takes long, and then has a work done."""
    x, y, slots = tensors(memory, "x", "y", "slots")
    program = memory.place("program", (2, 35))
    zeros = memory.place("zeros", (1, 1000))
    pim.write_tensor(x, values())
    multiply = work_on(Opcode.SCALEADD, a=x, b=x, result=y, units=CONFIG.units)
    words_at(pim, slots, work_slots([planned(multiply, CONFIG)]))
    shown = [window_of(tensor) for tensor in (slots, zeros, program)]
    at_slots, at_zeros = (offset_in(tensor, shown) for tensor in (slots, zeros))
    no_copy = [0] * 14
    kernel = Command("conv2d_backprop_input", (at_slots, 1, *no_copy, at_zeros, 1000, 0, *no_copy))
    for commands in ([kernel], [kernel] * 2):
        words_at(pim, program, Firmware.of().program(commands))
        started = pim.pim_prog(FIRST, "program", (program, len(commands)), windows=shown)
        seen = []
        while not pim.work_query(started):
            seen.append(pim.kernel_counters(started)[:4])
            pim.transport.advance(200)
        assert seen.count((0, COUNT, 0, COUNT)) > 15
        done = len(commands) * COUNT
        assert pim.kernel_counters(started)[:4] == (done, 0, done, 0)
    assert seen.count((COUNT, COUNT, COUNT, COUNT)) > 15


def test_a_lock_of_two_cores_and_the_host(pim: Pim, memory: StackMemory) -> None:
    """They count in a cached word, which each has to see as the last one left it."""
    place, count, one = tensors(memory, "lock", "count", "one")
    parties, times, turns = 3, 15, 6
    program = memory.place("program", (times, 15))
    words_at(pim, place, [0] * COUNT)
    pim.write_tensor(count, np.zeros((1, COUNT), np.float32))
    pim.write_tensor(one, np.ones((1, COUNT), np.float32))
    # In windows of their own they would push each other out of the cache.
    shown = [Window(place.address_bytes, 0x2000)]
    at_place, at_count, at_one = (offset_in(tensor, shown) for tensor in (place, count, one))
    commands = [
        Command("lock", (at_place, parties)),
        Command("bias", (at_count, at_one, at_count, 1, 1, 1)),
        Command("unlock", (at_place,)),
    ]
    words_at(pim, program, Firmware.of().program(commands) * times)
    for core in (2, 1):
        started = pim.pim_prog(FIRST + core, "unlock", (at_place,), windows=shown)
    pim.wait(started)
    whole = program, times * len(commands)
    kernels = [pim.pim_prog(FIRST + core, "program", whole, windows=shown) for core in (1, 2)]

    def tickets() -> list[list[int]]:
        words = pim.read_memory(place.address_bytes, 32 * parties).view(np.uint32)
        return words.reshape(parties, 8)[:, :2].tolist()

    def mine(*words: int) -> None:
        pim.write_memory(place.address_bytes, np.array([*words, *[0] * 6], np.uint32))

    counted = []
    for _ in range(turns):
        mine(0, 1)
        ticket = 1 + max(number for number, _ in tickets())
        pim.transport.advance(1000)  # others take the same one, and wait for this choice
        mine(ticket, 0)
        while any(chooses or 0 < number < ticket for number, chooses in tickets()[1:]):
            pass
        counted.append(float(pim.read_tensor(count)[0, 0]))
        pim.transport.advance(1000)
        pim.write_memory(count.address_bytes, np.array([counted[-1] + 1], np.float32))
        mine(0, 0)
        pim.transport.advance(1000)
    for kernel in kernels:
        pim.wait(kernel)
    assert pim.read_tensor(count)[0, 0] == 2 * times + turns
    # They were at it at the same time.
    assert turns < counted[-1] < 2 * times


def test_a_core_begins_again_when_the_works_that_it_offered_are_done(
    pim: Pim, memory: StackMemory
) -> None:
    long = memory.place("long", (1, LONG))
    x, y, z, total, program = tensors(memory, "x", "y", "z", "total", "program")
    slots = memory.place("slots", (2, 64))
    pim.write_tensor(x, values())
    works = (
        work_on(Opcode.SUM, a=long.view(1), result=total.view(), units=CONFIG.units),
        work_on(Opcode.ADD, a=x, b=x, result=y, units=CONFIG.units),
    )
    words_at(pim, slots, work_slots(planned(work, CONFIG) for work in works))
    shown = [window_of(tensor) for tensor in (slots, y, z, program)]
    at_slots, at_y, at_z = (offset_in(tensor, shown) for tensor in (slots, y, z))
    commands = [Command("works", (at_slots + 256, 1)), Command("relu", (at_y, at_z, COUNT))]
    words_at(pim, program, Firmware.of().program(commands))
    pim.wait(pim.pim_prog(FIRST, "relu", (x, y, COUNT)))
    with pytest.raises(KernelError, match="limit"):
        pim.wait(pim.pim_prog(FIRST, "works", (slots, 1), windows=shown))
    kernel = pim.pim_prog(FIRST, "program", (program, len(commands)), windows=shown)
    pim.wait(kernel)
    assert np.array_equal(pim.read_tensor(z), np.maximum(2 * values(), 0))
    assert pim.kernel_counters(kernel)[:4] == (0, 0, COUNT, 0)


def endless(pim: Pim, memory: StackMemory) -> int:
    (place,) = tensors(memory, "barrier")
    words_at(pim, place, [0] * COUNT)
    return pim.pim_prog(FIRST, "barrier", (place, 2))


def past_a_tensor(pim: Pim, memory: StackMemory) -> int:
    """By offsets, of which the driver does not know the tensors."""
    shown = [window_of(tensor) for tensor in tensors(memory, "x", "y")]
    offsets = (WINDOW_BYTES, 2 * WINDOW_BYTES)
    return pim.pim_prog(FIRST, "relu", (*offsets, COUNT + 1), windows=shown)


def without_end_of_stack(pim: Pim, memory: StackMemory) -> int:
    """A program that runs itself."""
    (program,) = tensors(memory, "program")
    shown = [window_of(program)]
    at = offset_in(program, shown)
    words_at(pim, program, Firmware.of().program([Command("program", (at, 1))]))
    return pim.pim_prog(FIRST, "program", (program, 1))


OWN_REGISTERS, RING = 0x8000_0000, 0x8001_0000 + RINGS_OFFSET_BYTES + RING_BYTES
TAIL, IDLE = OWN_REGISTERS + 8, OWN_REGISTERS + 12
HEAD = RING + ring_map()["head"].offset_bytes


def poke(address: int, value: int) -> tuple[int, int, int]:
    """Arguments of ``fill`` that write a word anywhere in the core's address space."""
    return (address - 0x4000_0000) % (1 << 32), 1, value


def writes(address: int, value: int) -> Offence:
    """A kernel that writes a word anywhere."""
    return lambda pim, memory: pim.pim_prog(FIRST, "fill", poke(address, value))


def endless_and_idle(pim: Pim, memory: StackMemory) -> int:
    """Says that the core is idle, which ended the limit."""
    program, place = tensors(memory, "program", "barrier")
    words_at(pim, place, [0] * COUNT)
    shown = [window_of(tensor) for tensor in (program, place)]
    wait = Command("barrier", (offset_in(place, shown), 2))
    words_at(pim, program, Firmware.of().program([Command("fill", poke(IDLE, 1)), wait]))
    return pim.pim_prog(FIRST, "program", (program, 2), windows=shown)


def at_another_ring(pim: Pim, memory: StackMemory) -> int:
    return pim.pim_prog(FIRST, "fill", (0x4001_0000 + RINGS_OFFSET_BYTES, 1, 0))


STOPS: dict[Offence, tuple[str, str]] = {
    endless_and_idle: ("limit", f"it took {LIMIT_CYCLES} cycles"),
    # More descriptors than the ring has slots, which are those of any kernel before.
    **{writes(HEAD, head): ("ring", "stopped core 0: ring") for head in (17, 40, 0x8000, 0xFFFF)},
    writes(HEAD, 1): ("stop", "a kernel wrote registers of its ring"),
    writes(RING + ring_map()["interrupt"].offset_bytes, 1): ("register", "at 0x80010868"),
    writes(TAIL, 5): ("tail", "a kernel wrote a wrong count of completed kernels, 5"),
    writes(TAIL, 0xFFFF): ("tail", "a kernel wrote a wrong count of completed kernels, 65535"),
    endless: ("limit", f"it took {LIMIT_CYCLES} cycles"),
    past_a_tensor: (
        "window",
        r"byte 288 of window 1, which shows 288 bytes of the stack from 0x[0-9a-f]+",
    ),
    without_end_of_stack: ("unmapped", "at 0xf"),
    at_another_ring: ("register", "at 0x80010800"),
}


@pytest.mark.parametrize("offend", STOPS, ids=lambda offence: "".join(STOPS[offence]))
def test_a_core_that_is_stopped(pim: Pim, memory: StackMemory, offend: Offence) -> None:
    """The host is told why; pool and other cores go on, and the core does with its next kernel."""
    cause, message = STOPS[offend]
    x, y, z = tensors(memory, "a", "b", "c")
    pim.write_tensor(x, values())
    bad = offend(pim, memory)
    behind = pim.pim_prog(FIRST, "relu", (x, z, COUNT))
    other = pim.pim_prog(FIRST + 3, "relu", (x, y, COUNT))
    with pytest.raises(KernelError, match=message) as stop:
        pim.wait(bad)
    assert stop.value.cause == cause
    with pytest.raises(KernelError, match=f"was not begun: stopped core 0: {cause}"):
        pim.work_query(behind)
    pim.wait(other)
    assert np.array_equal(pim.read_tensor(y), np.maximum(values(), 0))
    assert pim.pim_status(FIRST) == 1
    work = work_on(Opcode.ADD, a=x, b=x, result=z)
    pim.wait(pim.pim_fix(None, work, work.result, CONFIG.units))
    assert np.array_equal(pim.read_tensor(z), 2 * values())
    pim.wait(pim.pim_prog(FIRST, "relu", (x, z, COUNT)))
    assert np.array_equal(pim.read_tensor(z), np.maximum(values(), 0))
    with pytest.raises(KernelError, match=message):
        pim.work_query(bad)
    # Nothing of it is left, in the ring neither: works of the next kernel are its own.
    slots = memory.place("slots", (1, 64))
    sum_of = work_on(Opcode.ADD, a=z, b=x, result=y, units=CONFIG.units)
    words_at(pim, slots, work_slots([planned(sum_of, CONFIG)]))
    pim.wait(pim.pim_prog(FIRST, "works", (slots, 1)))
    assert np.array_equal(pim.read_tensor(y), np.maximum(values(), 0) + values())


FAULTS = {
    "store": ("*(volatile u32 *)0x10000002u = 1;", "misaligned store in run_store at 0x1000"),
    "load": ("(void)*(volatile u16 *)0x10000001u;", "misaligned load in run_load at 0x1000"),
    "word": ('__asm__ volatile(".word 0xffffffff");', "illegal instruction in run_word at 0x1000"),
    "call": ("helper();", "misaligned store in helper at 0x1000"),
    "null": ("*(volatile u32 *)0 = 1;", "unmapped, access fault at 0x0"),
    "far": ("((void (*)(void))0x20000000u)();", "illegal instruction in unknown code at 0x2000"),
}


def test_a_fault_has_its_name_and_the_function(tmp_path: Path) -> None:
    pytest.importorskip("ziglang", reason="it is the extra `firmware`")
    own = tmp_path / "own.c"
    helper = (
        "__attribute__((noinline)) static void helper(void) { *(volatile u16 *)0x10000003u = 1; }"
    )
    kernels = [f"KERNEL({name}, 0) {{ {code} }}" for name, (code, _) in FAULTS.items()]
    own.write_text("\n".join(['#include "pim.h"', helper, *kernels]))
    firmware = Firmware.of(compile_image([own]))
    with Pim(RtlPim(CONFIG), firmware=firmware, kernel_limit_cycles=LIMIT_CYCLES) as pim:
        for name, (_, message) in FAULTS.items():
            with pytest.raises(KernelError, match=f"kernel {name}, .*{message}"):
                pim.wait(pim.pim_prog(FIRST, name, ()))


def test_a_refused_work_fails_its_kernel_alone(pim: Pim, memory: StackMemory) -> None:
    x, slots = tensors(memory, "x", "slots")
    words_at(pim, slots, [77] + [0] * 63)
    bad = pim.pim_prog(FIRST, "works", (slots, 1))
    good = pim.pim_prog(FIRST, "relu", (x, x, COUNT))
    pim.wait(good)
    with pytest.raises(KernelError, match="the pool refused a work of it: opcode") as failure:
        pim.wait(bad)
    assert failure.value.cause == "opcode"


def test_what_the_driver_refuses(pim: Pim, memory: StackMemory) -> None:
    x, y = tensors(memory, "x", "y")
    for number in (FIRST - 1, FIRST + 4):
        with pytest.raises(InvalidArgumentError, match=f"pim_id is {number}: .* from 6 to 9"):
            pim.pim_prog(number, "relu", (x, y, COUNT))
    with pytest.raises(InvalidArgumentError, match=r"no kernel 'gelu': expected one of .*relu"):
        pim.pim_prog(FIRST, "gelu", (x, y, COUNT))
    with pytest.raises(InvalidArgumentError, match="relu has 2 arguments: expected 3"):
        pim.pim_prog(FIRST, "relu", (x, y))
    with pytest.raises(RangeError, match=r"relu uses bytes 0 to 291 of x, which has 288 .* 'x'"):
        pim.pim_prog(FIRST, "relu", (x, y, COUNT + 1))
    with pytest.raises(InvalidArgumentError, match="no window shows a tensor from"):
        pim.pim_prog(FIRST, "relu", (x, y, COUNT), windows=[window_of(x)])
    with pytest.raises(RangeError, match="the driver's ring and the cores' firmware"):
        pim.pim_prog(FIRST, "works", (1 << 27, 1), windows=[Window(driver_place(CONFIG).start, 32)])
    with pytest.raises(InvalidArgumentError, match="both have to be multiples of 32"):
        pim.pim_prog(FIRST, "works", (1 << 27, 1), windows=[Window(x.address_bytes + 4, 32)])
    lists = {"args": None, "ret": (), "windows": None}
    for name, strange in (("args", 5), ("args", None), ("ret", None), ("ret", 5), ("windows", 5)):
        given = {**lists, "args": (x, y, COUNT), name: strange}
        with pytest.raises(InvalidArgumentError, match=f"{name} is {strange}: expected a list"):
            pim.pim_prog(FIRST, "relu", **given)
    with pytest.raises(InvalidArgumentError, match="got None: expected a tensor in the stack"):
        pim.pim_prog(FIRST, "relu", (x, y, COUNT), (None,))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"windows have \(0, 32\): expected a Window"):
        pim.pim_prog(FIRST, "relu", (x, y, COUNT), windows=[(0, 32)])  # type: ignore[list-item]
    with pytest.raises(InvalidArgumentError, match="work_ids is 5: expected works"):
        pim.wait_any(5)  # type: ignore[arg-type]
    eight = [window_of(x[:, at : at + 8]) for at in range(0, 64, 8)]
    with pytest.raises(InvalidArgumentError, match=r"relu has 8 windows, .* has 7 .* give larger"):
        pim.pim_prog(FIRST, "relu", (x, x, COUNT), windows=[*eight[1:], window_of(x)])
    with pytest.raises(UnknownWorkError, match="no core was given a kernel"):
        pim.work_query(1 << 32)
    stuck = endless(pim, memory)
    with pytest.raises(WaitTimeoutError, match="the timeout is 5000; they go on"):
        pim.wait(stuck, timeout_cycles=5000)
    for _ in range(15):
        pim.pim_prog(FIRST, "relu", (x, y, COUNT))
    with pytest.raises(RefusedWorkError, match="16 kernels that have not ended") as refusal:
        pim.pim_prog(FIRST, "relu", (x, y, COUNT))
    assert refusal.value.cause == "full"


def test_what_has_no_cores() -> None:
    with pytest.raises(InvalidArgumentError, match=r"golden has no cores.*take the backend 'rtl'"):
        open_pim("golden", CONFIG)
    with pytest.raises(OutOfMemoryError, match=r"no room for 4 cores.*bank_bytes"):
        Pim(GoldenPim(training_config(4, bank_bytes=1 << 14)))
    for limit in (0, 1 << 32):
        with pytest.raises(InvalidArgumentError, match=f"kernel_limit_cycles is {limit}"):
            Pim(GoldenPim(CONFIG), kernel_limit_cycles=limit)
