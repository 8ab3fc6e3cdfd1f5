"""The PIM's simulated time: clocks of its own and shared ones, threads, interrupts, closing."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hw.pim.config import PIM_PRESETS, configure
from sw_driver.axdimm import Axdimm
from sw_driver.device.clock import Clock, Domain, Steps
from sw_driver.device.errors import ClosedError, DeadlockError
from sw_driver.device.streams import Handle, Stream
from sw_driver.pim.backends.cycles import CyclesPim
from sw_driver.pim.backends.golden import GoldenPim
from sw_driver.pim.backends.rtl import RtlPim
from sw_driver.pim.descriptor import Opcode, StridedTensor, Work
from sw_driver.pim.device import Pim
from sw_driver.pim.transport import ACCESS_CYCLES

SEED = int(os.environ.get("NEARMEM_TEST_SEED", "1"))
CONFIG = PIM_PRESETS["tiny"]
FAST = configure("tiny", clock_mhz=437.5)
"""A cycle of it is no whole number of picoseconds."""
BANK = CONFIG.bank_bytes

TIMED = [CyclesPim, RtlPim]
ALL = [GoldenPim, *TIMED]
Backend = type[GoldenPim] | type[RtlPim]


def product(size: int, result: int = 2 * BANK) -> Work:
    a, b, ret = (StridedTensor(address_bytes=at, strides=(size, 1)) for at in (0, BANK, result))
    return Work(opcode=Opcode.MATMUL, a=a, b=b, result=ret, rows=size, columns=size, length=size)


def offer(pim: Pim, size: int) -> int:
    work = product(size)
    return pim.pim_fix([2], work, work.result, 1)


@pytest.mark.parametrize("backend", TIMED)
def test_devices_on_one_clock_have_one_time(backend: Backend) -> None:
    """While a program waits for one, the time of the other passes, to the picosecond."""
    clock = Clock()
    with Pim(backend(CONFIG), clock) as one, Pim(CyclesPim(FAST), clock) as other:
        work = offer(one, 32)
        short = offer(other, 4)
        one.wait(work)
        now_ps = clock.now
        assert now_ps == one.transport.cycles() * 3200
        assert other.transport.cycles() < 1000
        assert other.work_query(short)
        other.wait(short)
        for waits, period_ps in ((one, 3200), (other, 1e6 / 437.5)):
            waits.wait(offer(waits, 16))
            now_ps = clock.now
            assert now_ps == int(waits.transport.cycles() * period_ps)
            asking = other if waits is one else one
            seen = asking.transport.domain.cycles(now_ps)
            assert asking.idle == 0b111111
            assert asking.transport.cycles() == seen + ACCESS_CYCLES
            assert clock.now == asking.transport.domain.ticks(seen + ACCESS_CYCLES)


def test_completions_do_not_hold_up_time() -> None:
    """Time passes for other devices even before a completed work is queried."""
    clock = Clock()
    with Pim(RtlPim(CONFIG), clock) as idle, Pim(CyclesPim(CONFIG), clock) as busy:
        work = offer(idle, 4)
        busy.wait(offer(busy, 32))
        begin = busy.transport.cycles()
        assert idle.transport.cycles() < begin - 5000
        assert idle.work_query(work)
        assert begin < idle.transport.cycles() < begin + 20


def test_a_module_copies_while_a_work_is_waited_for() -> None:
    """And the work goes on while a longer copy is."""
    clock = Clock()
    with Pim(CyclesPim(CONFIG), clock) as pim, Axdimm("cycles:tiny", clock=clock) as module:
        stream = module.stream(0)
        target, source = module.MallocAxdimm(1 << 19, 0), module.MallocHost(1 << 19)
        work = offer(pim, 32)
        short = module.MemcpyHost2Axdimm(target, source, 64, stream=stream)
        pim.wait(work)
        assert short.over
        assert 0 < short.ended * 5000 < clock.now == pim.transport.cycles() * 3200
        work = offer(pim, 4)
        begin_cycles = pim.transport.cycles()
        module.MemcpyHost2Axdimm(target, source, 1 << 19, stream=stream).wait()
        assert pim.transport.cycles() == begin_cycles
        assert pim.work_query(work)
        copied_ps = 5000 * 2 * (1 << 19) // 64
        assert 3200 * (pim.transport.cycles() - begin_cycles) > 0.9 * copied_ps


@pytest.mark.parametrize("backend", TIMED)
def test_devices_on_their_own_clocks_have_their_own_time(backend: Backend) -> None:
    with Pim(backend(CONFIG)) as one, Pim(CyclesPim(CONFIG)) as other:
        work = offer(other, 4)
        begin = other.transport.cycles()
        one.wait(offer(one, 32))
        assert one.transport.domain.program_now == one.transport.cycles() > begin + 5000
        assert other.transport.cycles() == begin
        assert not other.work_query(work)
        assert other.transport.cycles() == begin + ACCESS_CYCLES


@pytest.mark.parametrize("backend", ALL)
def test_the_hosts_time_changes_nothing(backend: Backend) -> None:
    """Pauses between the calls."""
    seen = []
    for longest_s in (0, 2e-3, 5e-3):
        pauses, now = random.Random(), []
        with Pim(backend(CONFIG)) as pim:
            for size in (4, 9, 16, 12):
                for call in (
                    lambda size=size: pim.write_memory(0, np.full(64, size, np.float32)),
                    lambda size=size: pim.wait(offer(pim, size)),
                    lambda: pim.idle,
                    lambda: pim.read_memory(2 * BANK, 64),
                ):
                    call()
                    time.sleep(pauses.random() * longest_s)
                    now.append(pim.transport.cycles())
        seen.append(now)
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][-1] > 5000 or not pim.transport.timed


@pytest.mark.parametrize("backend", ALL)
def test_threads_share_a_device(backend: Backend) -> None:
    """Each has works and memory of its own."""
    with Pim(backend(CONFIG)) as pim, ThreadPoolExecutor() as threads:

        def use(thread: int) -> None:
            at = thread * BANK
            a, ret = (
                StridedTensor(address_bytes=address, strides=(0, 1)) for address in (at, at + 64)
            )
            work = Work(opcode=Opcode.ADD, a=a, b=a, result=ret, rows=1, columns=8)
            for turn in range(20):
                pim.write_memory(at, np.full(8, 10 * turn + thread, np.float32))
                number = pim.pim_fix([thread], work, ret, 1)
                pim.wait(number)
                result = pim.read_memory(at + 64, 32).view(np.float32)
                assert result.tolist() == [2 * (10 * turn + thread)] * 8

        list(threads.map(use, range(3), timeout=60))


class InterruptedPim(CyclesPim):
    """Is interrupted by Ctrl-C in the middle of the first step."""

    interrupted = False

    def advance(self, cycles: int) -> None:
        if not self.interrupted:
            self.interrupted = True
            os.kill(os.getpid(), signal.SIGINT)
        super().advance(cycles)


def test_an_interrupt_ends_a_call() -> None:
    """An offer and a wait: what was offered goes on."""
    with Pim(InterruptedPim(CONFIG)) as pim:
        pim.write_memory(0, np.ones(BANK // 2, np.float32))
        with pytest.raises(KeyboardInterrupt):
            offer(pim, 8)
        number = offer(pim, 16)
        assert number == CONFIG.works + 1
        pim.transport.interrupted = False  # type: ignore[attr-defined]
        with pytest.raises(KeyboardInterrupt):
            pim.wait(number)
        assert pim.state(number) != "completed"
        pim.wait(number)
        assert pim.state(number - 1) == "completed"
        assert pim.read_memory(2 * BANK, 1024).view(np.float32).tolist() == [16] * 256


def called_back(clock: Clock, callback: Callable[[], None]) -> None:
    """Call ``callback`` after 1000 ps, in the thread that waits."""
    domain = Domain(clock, mhz=1e6)
    handle: Handle[None] = Handle("a pause", domain)

    def steps() -> Steps:
        domain.now += 1000
        yield

    handle.add_done_callback(callback)
    with clock:
        Stream("other", domain).submit(handle, steps)


@pytest.mark.parametrize(
    ("backend", "name"), [(CyclesPim, "wait"), (RtlPim, "wait"), (RtlPim, "read_memory")]
)
def test_a_callback_may_close_the_device(backend: Backend, name: str) -> None:
    """The call that it comes in ends."""
    clock = Clock()
    pim = Pim(backend(CONFIG), clock)
    number = offer(pim, 32)
    called_back(clock, pim.close)
    with pytest.raises(ClosedError, match=f"was closed during the PIM's {name}"):
        _ = pim.wait(number) if name == "wait" else pim.read_memory(2 * BANK, 4096)


@pytest.mark.parametrize("backend", TIMED)
def test_a_callback_does_not_wait(backend: Backend) -> None:
    """But another thread may, whose call is not mixed with the one that is under way."""
    clock, idle, refusals = Clock(), [], []
    with Pim(backend(CONFIG), clock) as pim, ThreadPoolExecutor() as threads:

        def elsewhere() -> None:
            with pytest.raises(DeadlockError) as refusal:
                _ = pim.idle
            refusals.append(str(refusal.value))
            idle.append(threads.submit(lambda: pim.idle).result(60))

        number = offer(pim, 32)
        called_back(clock, elsewhere)
        pim.wait(number)
    assert refusals == [
        "a callback waits for the PIM's idle: it may queue operations, not wait for them"
    ]
    assert idle == [0b111111]


def test_a_fork_has_no_device() -> None:
    with Pim(GoldenPim(CONFIG)) as pim:
        child = os.fork()
        if child == 0:
            try:
                pim.close()
                _ = pim.idle
            except ClosedError:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert pim.idle == 0b111111
