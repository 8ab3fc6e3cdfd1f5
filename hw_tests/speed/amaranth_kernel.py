"""The Adam kernel in Amaranth's own simulator, on an AXI memory in Python."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
from amaranth.hdl import ClockSignal, DomainRenamer, Fragment, ResetSignal
from amaranth.sim import Simulator
from numpy.typing import NDArray

from hw.kernel import kernel as kernel_module
from hw.kernel.config import KernelConfig
from hw.kernel.kernel import Kernel
from hw.kernel.lanes import Lanes
from hw.kernel.unit import RuleUnit
from hw.logic.delay import Delay
from hw.logic.shared import Shared

from .kernel_job import JobResult, KernelJob

__all__ = ["simulate_in_amaranth"]

_PERIOD = 5e-9
_BEAT_BYTES = 64


_elaborate = Shared.elaborate


def _elaborate_copy(shared: Any, platform: Any) -> Any:
    """Elaborates a :class:`Shared` to a component of its own.

    In Verilog all instances share a module; here a component has one set of signals.
    """
    component = shared.component
    if isinstance(component, Delay):
        shared.component = Delay(width=len(component.i), cycles=component._cycles)
    elif isinstance(component, RuleUnit):
        shared.component = RuleUnit(component.rule)
    else:
        shared.component = type(component)(format=component.format)
    return _elaborate(shared, platform)


class _Lanes(Lanes):
    """The lanes with an enable at each register, all on the one clock.

    Amaranth's simulator would run a clock derived from another a step later than that one, when
    the registers between the two domains have changed already.
    """

    def __init__(self, config: KernelConfig, *, units: Sequence[Any]) -> None:
        super().__init__(replace(config, clocking="enable"), units=units)

    def elaborate(self, platform: Any) -> Fragment:
        fragment = Fragment.get(super().elaborate(platform), platform)
        comb = fragment.statements["comb"]
        comb[:] = [
            statement
            for statement in comb
            if not isinstance(getattr(statement, "lhs", None), ClockSignal | ResetSignal)
        ]
        del fragment.domains["compute"]
        return DomainRenamer({"compute": "sync"})(fragment)


class _Memory:
    """An AXI4 memory of lines, as an RTL process: at most one beat, read or write, a cycle."""

    def __init__(self, axi: Any, memory: NDArray[np.uint8]) -> None:
        self.axi = axi
        raw = memory.tobytes()
        self.lines = [
            int.from_bytes(raw[start : start + _BEAT_BYTES], "little")
            for start in range(0, len(raw), _BEAT_BYTES)
        ]

    def contents(self) -> NDArray[np.uint8]:
        """The bytes."""
        data = b"".join(line.to_bytes(_BEAT_BYTES, "little") for line in self.lines)
        return np.frombuffer(data, np.uint8)

    async def process(self, ctx: Any) -> None:
        axi = self.axi
        sampled = [
            getattr(axi, name)
            for name in (
                "arvalid", "araddr", "arlen", "rready",
                "awvalid", "awaddr", "awlen", "wvalid", "wdata", "bready",
            )
        ]  # fmt: skip
        reads: deque[int] = deque()
        ends: deque[bool] = deque()
        writes: deque[int] = deque()
        write_ends: deque[bool] = deque()
        answers = 0
        rvalid = wready = bvalid = False
        ctx.set(axi.arready, 1)
        ctx.set(axi.awready, 1)
        async for _, _, *values in ctx.tick().sample(*sampled):
            arvalid, araddr, arlen, rready, awvalid, awaddr, awlen, taken, wdata, bready = values
            for valid, address, length, queue, last in (
                (arvalid, araddr, arlen, reads, ends),
                (awvalid, awaddr, awlen, writes, write_ends),
            ):
                if valid:
                    line = address // _BEAT_BYTES
                    queue.extend(range(line, line + length + 1))
                    last.extend(index == length for index in range(length + 1))
            if taken and wready:
                self.lines[writes.popleft()] = wdata
                answers += write_ends.popleft()
            if bvalid and bready:
                answers -= 1
            if rvalid and rready:
                reads.popleft()
                ends.popleft()
            elif rvalid:
                continue
            rvalid = bool(reads)
            ctx.set(axi.rvalid, rvalid)
            if rvalid:
                ctx.set(axi.rdata, self.lines[reads[0]])
                ctx.set(axi.rlast, ends[0])
            wready = bool(writes) and not rvalid
            ctx.set(axi.wready, wready)
            bvalid = answers > 0
            ctx.set(axi.bvalid, bvalid)


async def _write(ctx: Any, lite: Any, offset: int, value: int) -> None:
    ctx.set(lite.awaddr, offset)
    ctx.set(lite.wdata, value)
    ctx.set(lite.wstrb, 0xFF)
    ctx.set(lite.awvalid, 1)
    ctx.set(lite.wvalid, 1)
    ctx.set(lite.bready, 1)
    waiting = {"aw", "w", "b"}
    while waiting:
        moved = [
            channel
            for channel in ("aw", "w", "b")
            if ctx.get(getattr(lite, f"{channel}valid"))
            and ctx.get(getattr(lite, f"{channel}ready"))
        ]
        await ctx.tick()
        for channel in moved:
            waiting.discard(channel)
            ctx.set(getattr(lite, f"{channel}{'ready' if channel == 'b' else 'valid'}"), 0)


async def _read(ctx: Any, lite: Any, offset: int) -> int:
    ctx.set(lite.araddr, offset)
    ctx.set(lite.arvalid, 1)
    ctx.set(lite.rready, 1)
    while True:
        asked = ctx.get(lite.arready)
        answered, value = ctx.get(lite.rvalid), ctx.get(lite.rdata)
        await ctx.tick()
        if asked:
            ctx.set(lite.arvalid, 0)
        if answered:
            ctx.set(lite.rready, 0)
            return value


def simulate_in_amaranth(job: KernelJob) -> JobResult:
    """Runs the job and checks its outputs.

    Raises ``AssertionError`` if they are not the golden model's.
    """
    with (
        mock.patch.object(kernel_module, "Lanes", _Lanes),
        mock.patch.object(Shared, "elaborate", _elaborate_copy),
    ):
        kernel = Kernel(job.config)
        simulator = Simulator(kernel)
    simulator.add_clock(_PERIOD)
    memory = _Memory(kernel.m_axi, job.memory)
    simulator.add_process(memory.process)
    results: list[JobResult] = []

    async def drive(ctx: Any) -> None:
        for offset, value in job.settings:
            await _write(ctx, kernel.s_axi, offset, value)
        start = time.perf_counter()
        await _write(ctx, kernel.s_axi, *job.start)
        await ctx.tick().until(~kernel.busy)
        seconds = time.perf_counter() - start
        job.check(memory.contents())
        cycles = await _read(ctx, kernel.s_axi, job.cycles_offset)
        results.append(
            JobResult(parameters=job.parameters, fabric_cycles=cycles, host_seconds=seconds)
        )

    simulator.add_testbench(drive)
    simulator.run()
    return results[0]
