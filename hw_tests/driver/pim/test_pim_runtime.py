"""The runtime's scheduler on the CPU and the pools, with the time of the cycle model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise, repeat
from typing import Any, Literal

import numpy as np
import pytest

from hw.pim.config import configure
from sw_driver.device.clock import finished
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.experiments.pim.training import training_config
from sw_driver.pim.backends.cycles import CyclesPim
from sw_driver.pim.backends.golden import GoldenPim
from sw_driver.pim.descriptor import Opcode
from sw_driver.pim.device import Pim
from sw_driver.pim.opencl import Context, Event, Kernel, Place, Platform
from sw_driver.pim.placing import work_on
from sw_driver.pim.registers import pool_map
from sw_driver.pim.runtime import Scheduler

CONFIG = configure(preset="tiny", bank_bytes=1 << 17)


def places(events: Sequence[Event]) -> list[str]:
    return [event.place for event in events]


@pytest.mark.parametrize("principle", ["literal", "earliest"])
def test_random_programs_are_as_one_after_the_other(
    principle: Literal["literal", "earliest"],
) -> None:
    """Sums of random buffers in place of others: a missing dependence would show in the values, and
    twice the same program takes the same time."""
    times = []
    for _ in range(2):
        rng = np.random.default_rng(3)
        with Pim(CyclesPim(CONFIG)) as pim:
            context = Context(Platform(pim), cpu_ns=lambda enqueued: 500 * (1 + len(enqueued.name)))
            buffers = [context.buffer(str(number), (2, 16)) for number in range(5)]
            values = [rng.standard_normal((2, 16)).astype(np.float32) for _ in buffers]
            for name in "01234":
                work = work_on(Opcode.ADD, a=buffers[0], b=buffers[0], result=buffers[1])
                context.kernel(name, works=[work])
            scheduler = Scheduler(context, ["0", "1", "2"], principle=principle)
            for buffer, value in zip(buffers, values, strict=True):
                scheduler.enqueue_write(buffer, value)
            events = []
            for _ in range(40):
                a, b = (int(size) for size in rng.integers(0, 5, 2))
                result = int(rng.choice(list({*range(5)} - {a, b})))
                work = work_on(Opcode.ADD, a=buffers[a], b=buffers[b], result=buffers[result])
                kernel = context.kernel(str(result), works=[work])
                events.append(scheduler.enqueue_kernel(kernel))
                values[result] = values[a] + values[b]
            scheduler.finish()
            for buffer, value in zip(buffers, values, strict=True):
                np.testing.assert_array_equal(pim.read_tensor(buffer), value)
            assert {event.place for event in events if event.label in "34"} == {"cpu"}
            assert set(places(events)) == {"pools", "cpu"}
            on_cpu = sorted(
                (event.running, event.ended) for event in events if event.place == "cpu"
            )
            assert all(a[1] <= b[0] for a, b in pairwise(on_cpu))
            times.append([(event.place, event.running, event.ended) for event in events])
    assert times[0] == times[1]


@pytest.mark.parametrize(
    ("cpu_ns", "literal", "earliest"),
    [
        # The CPU is slower than to wait for the pools, and faster than these.
        (320_000, ["pools", "cpu", "cpu"], ["pools", "pools", "pools"]),
        (32, ["pools", "cpu", "cpu"], ["cpu", "cpu", "cpu"]),
        # Some 18,900 cycles are expected of the pools, 28,100 of the CPU: twice the pools' is more.
        (90_000, ["pools", "cpu", "cpu"], ["pools", "cpu", "pools"]),
    ],
)
def test_principles_by_hand(cpu_ns: int, literal: list[str], earliest: list[str]) -> None:
    """Three products that need nothing of each other, of which one takes all units for some
    20,000 cycles: literally the second and the third find the pools busy."""
    for principle, expected in (("literal", literal), ("earliest", earliest)):
        with Pim(CyclesPim(CONFIG)) as pim:
            context = Context(Platform(pim), cpu_ns=lambda _: cpu_ns)
            x = context.buffer("x", (64, 64))
            ys = [context.buffer("y", (64, 64)) for _ in range(3)]
            works = [[work_on(Opcode.MATMUL, a=x, b=x, result=y)] for y in ys]
            kernels = [context.kernel("product", works=part) for part in works]
            scheduler = Scheduler(context, ["product"], principle=principle)  # type: ignore[arg-type]
            events = [scheduler.enqueue_kernel(kernel) for kernel in kernels]
            scheduler.finish()
            assert places(events) == expected
            # Where it is no candidate it is the CPU's.
            other = Scheduler(context, [], principle=principle)
            event = other.enqueue_kernel(kernels[0])
            other.finish()
            assert event.place == "cpu"


def test_the_last_time_counts() -> None:
    """A kernel whose cost on the CPU is announced wrongly goes to the pools the second time."""
    costs = chain([1, 320_000], repeat(1))
    with Pim(CyclesPim(CONFIG)) as pim:
        context = Context(Platform(pim), cpu_ns=lambda _: next(costs))
        x, y = (context.buffer(name, (2, 16)) for name in "xy")
        kernel = context.kernel("sum", works=[work_on(Opcode.ADD, a=x, b=x, result=y)])
        scheduler = Scheduler(context, ["sum"])
        events = []
        for _ in range(2):
            events.append(scheduler.enqueue_kernel(kernel))
            scheduler.finish()
        assert places(events) == ["cpu", "pools"]


def test_a_barrier() -> None:
    with Pim(CyclesPim(CONFIG)) as pim:
        context = Context(Platform(pim))
        x, y = (context.buffer(name, (2, 16)) for name in "xy")
        kernel = context.kernel("sum", works=[work_on(Opcode.ADD, a=x, b=x, result=y)])
        scheduler = Scheduler(context, ["sum"])
        held = scheduler.enqueue_write(x, np.ones((2, 16), np.float32))
        barrier = scheduler.enqueue_barrier()
        behind = scheduler.enqueue_write(y, np.zeros((2, 16), np.float32))
        scheduler.finish()
        assert held.ended <= barrier.ended <= behind.submitted
        read = scheduler.enqueue_read(y, [scheduler.enqueue_kernel(kernel)])
        assert read.wait().max() == 2
        with pytest.raises(InvalidArgumentError, match=r"principle is 'latest'.*literal, earliest"):
            Scheduler(context, [], principle="latest")  # type: ignore[arg-type]


def test_what_others_failed_with_is_waited_for() -> None:
    """A product is under way when one that the pool refuses has failed: what reads its result is
    still behind it."""
    with Pim(CyclesPim(CONFIG)) as pim:
        context = Context(Platform(pim))
        x, y, z = (context.buffer(name, (64, 64)) for name in "xyz")
        product = context.kernel("product", works=[work_on(Opcode.MATMUL, a=x, b=x, result=y)])
        overlap = [work_on(Opcode.ADD, a=z, b=z, result=z[:, ::-1])]
        refused = context.kernel("refused", works=overlap)
        scheduler = Scheduler(context, ["refused", "product"], principle="literal")
        scheduler.enqueue_write(x, np.ones((64, 64), np.float32))
        scheduler.finish()
        scheduler.enqueue_kernel(refused)
        scheduler.enqueue_kernel(product)
        with pytest.raises(ValueError, match="overlap"):
            scheduler.finish()
        assert scheduler.enqueue_read(y).wait().min() == 64


def test_a_failure_is_forgotten() -> None:
    """What is behind a failure fails with it, until recover()."""
    with Pim(CyclesPim(CONFIG)) as pim:
        context = Context(Platform(pim))
        x, y = (context.buffer(name, (4, 16)) for name in "xy")
        wrong = context.kernel("wrong", works=[work_on(Opcode.ADD, a=x, b=x, result=x[:, ::-1])])
        right = context.kernel("right", works=[work_on(Opcode.ADD, a=x, b=x, result=y)])
        scheduler = Scheduler(context, ["wrong", "right"])
        failed, behind = (scheduler.enqueue_kernel(kernel) for kernel in (wrong, right))
        with pytest.raises(ValueError, match="overlap"):
            behind.wait()
        assert scheduler.recover() is failed.error
        assert scheduler.recover() is None
        scheduler.enqueue_kernel(right).wait()
        scheduler.finish()


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        (["nosuch"], "a candidate is 'nosuch': expected one of relu, wait"),
        (["rely"], "a candidate is 'rely': did you mean relu"),
        ("relu", "candidates is 'relu': expected a list of names of kernels, such as"),
        (5, "candidates is 5: expected a list of names"),
        ([5], "a candidate is 5: expected one of relu, wait"),
    ],
)
def test_what_are_no_candidates(candidates: Any, message: str) -> None:
    with Pim(GoldenPim(CONFIG)) as pim:
        context = Context(Platform(pim))
        with pytest.raises(InvalidArgumentError, match="context has no kernels: make them first"):
            Scheduler(context, ["relu"])
        x, y = (context.buffer(name, (4, 16)) for name in "xy")
        for name in ("relu", "wait"):
            context.kernel(name, "relu", (x, y, 64), "rw")
        with pytest.raises(InvalidArgumentError, match=message):
            Scheduler(context, candidates)


class WithCores(GoldenPim):
    """Says that it has the cores of its configuration."""

    def read_register(self, offset_bytes: int) -> int:
        value = super().read_register(offset_bytes)
        geometry = pool_map()["geometry"]
        if offset_bytes == geometry.offset_bytes:
            value |= self.config.cores << geometry["cores"].lsb
        return value


@pytest.mark.parametrize("is_candidate", [True, False])
@pytest.mark.parametrize("principle", ["literal", "earliest"])
def test_a_kernel_goes_where_it_has_a_form(
    principle: Literal["literal", "earliest"],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_candidate: bool,
) -> None:
    """One that the cpu lacks stays on the cores, also when all of these are busy."""
    monkeypatch.setattr(Pim, "pim_prog", lambda *_: 0)  # the model has no cores
    monkeypatch.setattr(Pim, "wait", lambda *_: None)
    with Pim(WithCores(training_config(2))) as pim:
        context = Context(Platform(pim))
        x, y = (context.buffer(name, (1, 16)) for name in "xy")
        kernel = context.kernel("wait", "barrier", (x, 1), "b")
        other = context.kernel("relu", "relu", (x, y, 16), "rw")
        assert (kernel.devices, other.devices) == (["cores"], ["cores", "cpu"])
        scheduler = Scheduler(context, ["wait"] * is_candidate, principle=principle)
        assert not scheduler.enqueue_kernel(kernel).over

        def choose(kernel: Kernel) -> Place:
            with context.domain.clock:  # whose steps these are
                return finished(scheduler._choose(kernel))

        chosen = []
        for turn in range(5):
            for core in context.places[1:3]:
                core.holder = core if turn > 1 else None
            chosen.append(choose(kernel).device)
            assert choose(other).device == "cpu"
        assert chosen == ["cores"] * 5
        context.places[1].holder = None  # the first core is free, the last is not
        assert choose(kernel).number == 0
