"""The PIM's low-level API over its registers: works, status, refusals, consistency, waiting."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from hw.pim.config import PIM_PRESETS
from hw.pim.registers.pool_registers import RINGS_OFFSET_BYTES
from hw_tests.driver.pim.pim_doubles import MisstatingPim, SlowCheckPim, StuckPim
from sw_driver.device.errors import (
    DeviceTimeoutError,
    IncompatibleDeviceError,
    InvalidArgumentError,
    RangeError,
    RefusedWorkError,
    UnknownWorkError,
    WaitTimeoutError,
)
from sw_driver.device.transport import DeviceFault
from sw_driver.pim.backends import PIM_BACKENDS, open_pim
from sw_driver.pim.backends.cycles import CyclesPim
from sw_driver.pim.backends.golden import GoldenPim
from sw_driver.pim.descriptor import Opcode, StridedTensor, TilingPlan, Work
from sw_driver.pim.device import Pim
from sw_driver.pim.placing import PlacedTensor
from sw_driver.pim.planning import planned
from sw_driver.pim.registers import PoolRegisters, pool_map, ring_map
from sw_driver.pim.ring import Completion, Ring, ring_place
from sw_driver.pim.transport import QUIET_LIMIT_CYCLES

TAIL = RINGS_OFFSET_BYTES + ring_map()["tail"].offset_bytes
SEED = int(os.environ.get("NEARMEM_TEST_SEED", "1"))
CONFIG = PIM_PRESETS["tiny"]
BANK = CONFIG.bank_bytes
UNITS = CONFIG.units


@pytest.fixture(params=sorted(PIM_BACKENDS))
def device(request: pytest.FixtureRequest) -> Iterator[Pim]:
    """A small stack: six banks, 28 units, four slots."""
    # As it is opened by name it computes nothing.
    cycles = request.param == "cycles"
    with Pim(CyclesPim(CONFIG) if cycles else open_pim(request.param, CONFIG)) as opened:
        yield opened


def at(address_bytes: int, *strides: int) -> StridedTensor:
    return StridedTensor(address_bytes=address_bytes, strides=strides)


def add(a: int, b: int, result: int, count: int = 8) -> Work:
    """Adds ``count`` values at two addresses."""
    return Work(
        opcode=Opcode.ADD,
        a=at(a, 0, 1),
        b=at(b, 0, 1),
        result=at(result, 0, 1),
        rows=1,
        columns=count,
    )


def product(a: int, b: int, result: int, size: int = 32) -> Work:
    """A product of square matrices, which takes some time."""
    return Work(
        opcode=Opcode.MATMUL,
        a=at(a, size, 1),
        b=at(b, size, 1),
        result=at(result, size, 1),
        rows=size,
        columns=size,
        length=size,
    )


def offer(device: Pim, work: Work, units: int = UNITS) -> int:
    return device.pim_fix(None, work, work.result, units)


def floats(device: Pim, address: int, count: int = 8) -> NDArray[np.float32]:
    return device.read_memory(address, 4 * count).view(np.float32)


def fill(device: Pim, address: int, value: float, count: int = 8) -> None:
    device.write_memory(address, np.full(count, value, np.float32))


def test_a_work_on_units(device: Pim) -> None:
    fill(device, 0, 1.5)
    fill(device, 64, 2.25)
    work = offer(device, add(0, 64, BANK))
    device.wait(work)
    assert device.work_query(work) == 1
    assert device.state(work) == "completed"
    assert floats(device, BANK).tolist() == [3.75] * 8
    counters = device.counters(work)
    assert counters[:4] == (0, 0, 8, 0)
    assert counters.bytes_read >= 64
    assert counters.bytes_written >= 32
    assert (counters.cycles is None) == (not device.transport.timed)


def test_named_banks_and_where_data_is(device: Pim) -> None:
    # Operands that reach from bank 0 to 2, and one in bank 4; the result in bank 5.
    work = replace(add(0, 4 * BANK, 0, 3), a=at(2 * BANK, 0, -BANK // 4))
    ret = at(5 * BANK, 0, 1)
    number = device.pim_fix([3, 1], work, ret, 2)
    device.wait(number)
    assert device.work_info(number) == ([1, 3], ([0, 1, 2, 4], [5]))


def test_status_and_idle_while_a_work_runs(device: Pim) -> None:
    banks = CONFIG.banks
    assert device.idle == (1 << banks) - 1
    work = product(0, BANK, 2 * BANK)
    number = device.pim_fix([2, 4], work, work.result, 2)
    assert device.state(number) == "running"
    left = device.counters(number)
    assert left.multiplications_done + left.multiplications_left == 32**3
    assert left.multiplications_left > 0
    idle = device.idle
    assert [idle >> pim & 1 for pim in range(banks + 1)] == [1, 1, 0, 1, 0, 1, 0]
    questions = 1
    while not device.work_query(number):
        questions += 1
    assert questions > 1 or not device.transport.timed  # without a clock each completes a work
    device.wait(number)
    assert [device.pim_status(pim) for pim in range(banks + 1)] == [0] * banks + [1]
    assert device.counters(number)[:4] == (32**3, 0, 32 * 32 * 31, 0)


def test_results_are_visible_as_a_whole(device: Pim) -> None:
    rng = np.random.default_rng(SEED)
    values = rng.standard_normal(1024).astype(np.float32)
    for address in (0, BANK):
        device.write_memory(address, values)
    fill(device, 2 * BANK, 7, 1024)
    work = product(0, BANK, 2 * BANK)
    number = offer(device, work)
    seen = floats(device, 2 * BANK, 1024)
    device.wait(number)
    after = floats(device, 2 * BANK, 1024)
    matrix = values.reshape(32, 32).astype(np.float64)
    np.testing.assert_allclose(after.reshape(32, 32), matrix @ matrix, atol=1e-4)
    assert (seen == 7).all() or (seen == after).all()


def test_dependent_works_follow_each_other(device: Pim) -> None:
    fill(device, 0, 1)
    chain = [offer(device, add(64 * n, 64 * n, 64 * (n + 1))) for n in range(3)]
    over = offer(device, add(64, 64, 0))  # which the first one reads
    device.wait(over)
    assert [device.work_query(work) for work in chain] == [1, 1, 1] or device.transport.timed
    for work in chain:
        device.wait(work)
    assert floats(device, 192).tolist() == [8] * 8
    assert floats(device, 0).tolist() == [4] * 8


def test_random_works_are_as_one_after_the_other(device: Pim) -> None:
    rng = np.random.default_rng(SEED)
    memory = rng.standard_normal(256).astype(np.float32)
    device.write_memory(0, memory)
    last = 0
    for _ in range(24):
        a, b, result = (8 * int(place) for place in rng.integers(0, 32, 3))
        if result in (a, b):
            continue
        memory[result : result + 8] = memory[a : a + 8] + memory[b : b + 8]
        while True:
            try:
                last = offer(device, add(4 * a, 4 * b, 4 * result), int(rng.integers(1, UNITS + 1)))
                break
            except RefusedWorkError as refusal:
                if refusal.cause != "full":
                    raise
                device.wait_any([last])
    while device.idle != (1 << CONFIG.banks) - 1:
        device.wait(last)
        device.transport.advance(64)
    assert (floats(device, 0, 256).view(np.uint32) == memory.view(np.uint32)).all()


def test_the_pool_takes_banks_until_they_have_the_units(device: Pim) -> None:
    """A work has no more than its groups, seven units for each result of a 2 x 2 filter."""
    work = Work(
        opcode=Opcode.CONV2D,
        a=at(0, 0, 0, 32, 1),
        b=at(BANK, 0, 0, 2, 1),
        rows=31,
        columns=31,
        images=1,
        filters=1,
        channels=1,
        height=32,
        width=32,
        filter_height=2,
        filter_width=2,
        stride=1,
        dilation=1,
    )
    ret = at(2 * BANK, 0, 0, 31, 1)
    banks = []
    for units in (20, 14, 6):
        number = device.pim_fix(None, work, ret, units)
        banks.append(device.work_info(number)[0])
        device.wait(number)
    assert banks == [[0, 1, 2, 3, 4], [0, 1, 2], [0, 1]]
    one = replace(work, rows=1, columns=1)
    assert device.work_info(device.pim_fix(None, one, ret, 20))[0] == [0, 1]


REFUSED = [
    ("opcode", replace(add(0, 64, 128), opcode=5), None, 1),
    ("reserved", replace(add(0, 64, 128), length=1), None, 1),
    ("size", replace(add(0, 64, 128), rows=0), None, 1),
    ("misaligned", add(2, 64, 128), None, 1),
    ("out_of_range", add(0, 6 * BANK - 28, 128), None, 1),
    ("overlap", add(0, 64, 68), None, 1),
    ("banks", add(0, 64, 128), [6], 1),
    ("units", add(0, 64, 128), None, UNITS + 1),
    ("units", add(0, 64, 128), None, 0),
    ("plan", replace(add(0, 64, 128), plan=TilingPlan(chunk=10)), None, 1),
]


@pytest.mark.parametrize(("cause", "work", "banks", "number"), REFUSED)
def test_refused_works_leave_everything_as_it_was(
    device: Pim, cause: str, work: Work, banks: list[int] | None, number: int
) -> None:
    values = np.random.default_rng(SEED).integers(0, 256, 512).astype(np.uint8)
    device.write_memory(0, values)
    with pytest.raises(RefusedWorkError, match=f"the pool refused the work: {cause}") as refusal:
        device.pim_fix(banks, work, work.result, number)
    assert refusal.value.cause == refusal.value.details["cause"] == device.cause == cause
    assert (device.read_memory(0, 512) == values).all()
    assert device.idle == (1 << CONFIG.banks) - 1
    device.wait(offer(device, add(0, 64, 128)))
    assert device.cause == "none"


def test_reserved_words_are_refused(device: Pim) -> None:
    for word in range(28, 32):
        words = add(0, 64, 128).encode()
        words[3], words[word] = 1, 1
        ring = Ring(device.transport, 0, ring_place(CONFIG))
        ring.write(words)
        while (taken := ring.taken()) is None:
            device.transport.advance(64)
        assert taken == ("reserved", 0)


def test_a_full_pool(device: Pim) -> None:
    works = [offer(device, product(0, BANK, 2 * BANK)) for _ in range(CONFIG.works)]
    message = "is full: 4 works have not completed, and it holds 4"
    with pytest.raises(RefusedWorkError, match=message) as refusal:
        offer(device, add(0, 64, 128))
    assert refusal.value.cause == "full"
    assert device.cause == "none"
    for number in range(CONFIG.works):  # below the first id, though all slots have been taken
        with pytest.raises(UnknownWorkError, match=f"not given out the id {number}"):
            device.work_query(number)
    device.wait(works[0])
    assert offer(device, add(0, 64, 128)) not in works


def test_ids_outlive_their_slots(device: Pim) -> None:
    works = []
    for _ in range(CONFIG.works + 1):
        works.append(offer(device, add(0, 64, 128)))
        device.wait(works[-1])
    assert len(set(works)) == len(works)
    assert [device.work_query(work) for work in works] == [1] * len(works)
    old = next(work for work in works if (works[-1] - work) % CONFIG.works == 0)
    for call in (device.work_info, device.counters):
        with pytest.raises(UnknownWorkError, match=f"work {old} has completed, and work"):
            call(old)
    assert device.state(old) == "completed"


@pytest.mark.parametrize("number", [0, 3, -4, 8, 1000])
def test_ids_that_were_not_given_out(device: Pim, number: int) -> None:
    assert offer(device, add(0, 64, 128)) == CONFIG.works
    for call in (device.work_query, device.work_info, device.counters, device.wait, device.state):
        with pytest.raises(UnknownWorkError, match=f"not given out the id {number}"):
            call(number)


def test_there_is_no_programmable_pim(device: Pim) -> None:
    with pytest.raises(InvalidArgumentError, match=r"no programmable PIM .*6.*pim_fix"):
        device.pim_prog(6, "relu", (0, 0, 0))
    assert device.pim_status(6) == 1


@pytest.mark.parametrize("number", [-1, 7])
def test_refuses_unknown_pims(device: Pim, number: int) -> None:
    with pytest.raises(
        InvalidArgumentError, match=f"pim_id is {number}: expected an integer from 0"
    ):
        device.pim_status(number)


@pytest.mark.parametrize(
    ("banks", "number", "message"),
    [
        ([1, 1], 2, "different banks"),
        ([1, 2], 3, "num_pim = 3"),
        ([], 0, "one at least"),
        ([-1], 1, "no bank -1: expected 0 to 5"),
        ([32], 1, "no bank 32"),
    ],
)
def test_refuses_lists_of_banks(device: Pim, banks: list[int], number: int, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        device.pim_fix(banks, add(0, 64, 128), at(128, 0, 1), number)


def test_memory_and_tensors(device: Pim) -> None:
    rng = np.random.default_rng(SEED)
    # Over the border of two banks, and with gaps, which stay as they are.
    tensor = PlacedTensor(address_bytes=BANK - 40, shape=(3, 5), strides=(BANK // 4 + 3, 1))
    fill(device, BANK - 44, 9, 20)
    values = rng.standard_normal((3, 5)).astype(np.float32)
    device.write_tensor(tensor, values)
    assert (device.read_tensor(tensor) == values).all()
    assert floats(device, BANK - 44, 7).tolist() == [9, *values[0].tolist(), 9]
    assert floats(device, tensor.at(2), 5).tolist() == values[2].tolist()


@pytest.mark.parametrize(
    ("address", "nbytes", "error", "message"),
    [
        (2, 4, InvalidArgumentError, "4 bytes at 0x2"),
        (0, 6, InvalidArgumentError, "6 bytes at 0x0"),
        (6 * BANK - 4, 8, RangeError, "not within the local memory, 0x0 to 0x17fff, or"),
        (8 * BANK - 4, 8, RangeError, "or the striped memory, 0x20000 to 0x2ffff"),
        (12 * BANK - 4, 8, RangeError, "not within"),
        (-4, 4, RangeError, "not within"),
    ],
)
def test_refuses_places_that_are_none(
    device: Pim, address: int, nbytes: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        device.read_memory(address, nbytes)
    with pytest.raises(error, match=message):
        device.write_memory(address, np.zeros(nbytes, np.uint8))


def test_the_device_refuses_memory_that_no_bank_holds(device: Pim) -> None:
    registers = PoolRegisters(device.transport)
    with pytest.raises(DeviceFault, match="reading 64 bytes at 0x17fe0: the device refused it"):
        device.transport.read_memory(6 * BANK - 32, 64)
    with pytest.raises(DeviceFault, match=r"writing 8 bytes at 0x30000: .* 0x20000 to 0x2ffff"):
        device.transport.write_memory(12 * BANK, np.ones(8, np.uint8))
    assert registers.pool.read_field("host_errors") == 2
    assert registers.pool.read_field("host_error", "address") == 12 * BANK
    assert registers.pool.read_field("host_error", "write") == 1


def test_what_is_kept_stays(device: Pim) -> None:
    """A slot's registers as they were, and of the next work when they are kept again."""
    registers = PoolRegisters(device.transport)
    first = offer(device, add(0, 64, 128))
    device.wait(first)
    registers.pool.write("snapshot", first)
    names = ("id", "state", "banks", "additions_done", "additions_left")
    kept = [registers.kept.read_field(name) for name in names]
    assert kept[0] == first
    assert kept[3:] == [8, 0]
    for _ in range(CONFIG.works):
        second = offer(device, add(0, 64, 128, count=16))
        device.wait(second)
    assert [registers.kept.read_field(name) for name in names] == kept
    registers.pool.write("snapshot", second % CONFIG.works)
    assert [registers.kept.read_field(name) for name in ("id", "additions_done")] == [second, 16]


def test_refuses_values_that_do_not_fit(device: Pim) -> None:
    tensor = PlacedTensor(address_bytes=0, shape=(2, 3), strides=(3, 1))
    for values in (np.zeros((3, 2), np.float32), np.zeros((2, 3), np.float64)):
        with pytest.raises(InvalidArgumentError, match=r"expected float32 of shape \(2, 3\)"):
            device.write_tensor(tensor, values)
    with pytest.raises(InvalidArgumentError, match="not contiguous"):
        device.write_memory(0, np.zeros((4, 4), np.float32)[:, ::2])


def test_a_wait_that_is_too_short(device: Pim) -> None:
    number = offer(device, product(0, BANK, 2 * BANK))
    with pytest.raises(WaitTimeoutError, match=rf"work {number}: .* 0 cycles.*running") as late:
        device.wait(number, timeout_cycles=0)
    assert late.value.details["timeout_cycles"] == 0
    device.wait(number, timeout_cycles=1_000_000)


def test_a_wait_ends_with_its_work(device: Pim) -> None:
    """No more time passes than it takes to see it."""
    work = product(0, BANK, 2 * BANK)
    begin = device.transport.cycles()
    number = device.pim_fix([1], work, work.result, 1)
    device.wait(number)
    end = device.transport.cycles()
    if device.transport.timed:
        cycles = device.counters(number).cycles
        assert cycles is not None
        assert cycles > 1000
        assert 0 < end - begin - cycles < 300


def test_the_ring_goes_round_among_refused_works(device: Pim) -> None:
    """More descriptors than slots, good and bad ones, before the first completions are looked
    at; one that runs for long does not keep the others waiting."""
    long = offer(device, product(0, BANK, 2 * BANK))
    bad = add(0, 64, 68)
    for turn in range(4 * CONFIG.works):
        for _ in range(turn % 3):
            with pytest.raises(RefusedWorkError, match="overlap"):
                device.pim_fix([5], bad, bad.result, 1)
        fill(device, 4 * BANK, turn)
        short = replace(add(4 * BANK, 4 * BANK, 4 * BANK + 64), banks=0)
        while True:
            try:
                number = device.pim_fix([5], short, short.result, 1)
                break
            except RefusedWorkError as refusal:
                if refusal.cause != "full":
                    raise
                device.transport.advance(64)
        device.wait(number)
        assert floats(device, 4 * BANK + 64).tolist() == [2 * turn] * 8
    device.wait(long)
    assert device.idle == (1 << CONFIG.banks) - 1


def test_the_counts_of_the_ring_wrap_around() -> None:
    transport = GoldenPim(CONFIG)
    ring = transport._rings.rings[0]
    ring.head = ring.tail = ring.completions = 65536 - 5
    device = Pim(transport)
    for _ in range(4):
        works = [offer(device, add(0, 64, 128)) for _ in range(CONFIG.works)]
        with pytest.raises(RefusedWorkError, match="the pool is full"):
            offer(device, add(0, 64, 128))
        for work in works:
            device.wait(work)
    assert ring.head == ring.tail == ring.completions == 4 * CONFIG.works - 5


def test_a_device_that_is_opened_again() -> None:
    """Its ring goes on where it was."""
    transport = CyclesPim(CONFIG)
    for _ in range(3):
        device = Pim(transport)
        works = [offer(device, add(0, 64, 128)) for _ in range(3)]
        for work in works:
            device.wait(work)


def test_the_ring_is_not_written_over(device: Pim) -> None:
    place = ring_place(CONFIG)
    assert len(place) == 256 * CONFIG.works
    device.wait(offer(device, add(0, 64, 128)))
    before = device.read_memory(place.start, len(place))
    for address in (place.start - 4, place.start, place.stop - 8):
        with pytest.raises(RangeError, match=rf"overlap the driver's ring, {place.start:#x} to"):
            device.write_memory(address, np.ones(2, np.uint32))
        with pytest.raises(RefusedWorkError, match=r"overlaps the driver's.*: put it") as refusal:
            offer(device, add(0, 64, address, 2))
        assert refusal.value.cause == "out_of_range"
    device.write_memory(place.start - 8, np.ones(2, np.uint32))
    assert (device.read_memory(place.start, len(place)) == before).all()


def test_a_completion_that_was_written_over(device: Pim) -> None:
    """What another one writes into the ring is not taken for a completion."""
    works = [offer(device, add(0, 64, 128)) for _ in range(2)]
    while PoolRegisters(device.transport).rings[0].read_field("completions", "count") < 2:
        device.transport.advance(64)
    place = ring_place(CONFIG).start
    device.transport.write_memory(place + 192, np.full(12, 7, np.uint8))
    with pytest.raises(
        DeviceFault, match=rf"count completion 1, but at {place + 192:#x} there is 1799"
    ):
        device.wait(works[1])


def test_rings_side_by_side(device: Pim) -> None:
    """Works of two rings that depend on each other, refused ones among them: none is lost, and
    those of a ring are done in its order. Together they are more than the pool holds, so that
    rings wait; both go round several times."""
    transport, rng = device.transport, np.random.default_rng(SEED)
    shared, own, constants = 0, (512, 1024), 2048
    memory = np.ones(1024, np.float32)
    device.write_memory(0, memory)
    places = [range(5 * BANK, 5 * BANK + 2048), range(6 * BANK - 512, 6 * BANK)]
    rings = [Ring(transport, number, place) for number, place in enumerate(places)]
    works: list[list[Work]] = [[], []]
    ended: list[dict[int, Completion]] = [{}, {}]
    while sum(map(len, ended)) < 80:
        for number, ring in enumerate(rings):
            for completion in ring.completions():
                assert completion.descriptor not in ended[number]
                ended[number][completion.descriptor] = completion
            if ring.is_full or sum(map(len, works)) == 80:
                continue
            kind = rng.choice(("shared", "doubled", "raised", "refused"))
            place = shared if kind == "shared" else own[number]
            second = place if kind == "doubled" else constants
            work = planned(replace(add(place, second, place), units=UNITS), CONFIG)
            # What would be computed of it if it were not refused would be seen.
            work = replace(work, banks=1) if kind == "refused" else work
            assert ring.write(work.encode()) == len(works[number])
            works[number].append(work)
            if not work.banks:
                memory[place // 4 :][:8] += memory[second // 4 :][:8]
        transport.advance(int(rng.integers(1, 200)))
    for number in (0, 1):
        assert sorted(ended[number]) == list(range(len(works[number])))
        for descriptor, work in enumerate(works[number]):
            completion = ended[number][descriptor]
            assert (completion.cause, completion.id == 0) == (
                (8, True) if work.banks else (0, False)
            )
    ids = [
        completion.id for completion in (*ended[0].values(), *ended[1].values()) if completion.id
    ]
    assert len(set(ids)) == len(ids) > 40
    if transport.computes:
        assert (floats(device, 0, 1024)[: 2056 // 4] == memory[: 2056 // 4]).all()


def test_a_work_that_never_ends() -> None:
    transport = StuckPim(CONFIG)
    device = Pim(transport)
    number = offer(device, add(0, 64, 128))
    with pytest.raises(DeviceTimeoutError, match=rf"work {number}: nothing .* 8 additions left"):
        device.wait(number)
    assert QUIET_LIMIT_CYCLES <= transport.waited_cycles < 1.1 * QUIET_LIMIT_CYCLES
    with pytest.raises(WaitTimeoutError, match="after 1000 cycles"):
        device.wait(number, timeout_cycles=1000)


def test_a_check_that_takes_its_time() -> None:
    device = Pim(SlowCheckPim(CONFIG))
    with pytest.raises(RefusedWorkError, match="overlap"):
        offer(device, add(0, 64, 68))
    works = [offer(device, add(0, 64, 128)) for _ in range(2)]
    assert works == [CONFIG.works, CONFIG.works + 1]


def misstating(register: str, value: int) -> MisstatingPim:
    return MisstatingPim(CONFIG, offset_bytes=pool_map()[register].offset_bytes, value=value)


def test_a_check_that_never_ends() -> None:
    device = Pim(MisstatingPim(CONFIG, offset_bytes=TAIL, value=0))
    with pytest.raises(DeviceTimeoutError, match="the check of a descriptor: nothing has"):
        offer(device, add(0, 64, 128))


@pytest.mark.parametrize(
    ("register", "value", "message"),
    [
        ("identity", 0x4E445841, "identifies itself"),
        ("geometry", 0, "was made with .*'rows': 0"),
        ("bank_memory", 1 << 13, "'bank_bytes': 8192"),
    ],
)
def test_refuses_other_devices(register: str, value: int, message: str) -> None:
    with pytest.raises(IncompatibleDeviceError, match=message):
        Pim(misstating(register, value))
