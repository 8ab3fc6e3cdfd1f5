"""cocotb tests of a channel whose memory is an AXI4 controller that is not ours."""

from __future__ import annotations

from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import RisingEdge

from hw.axi.bus import Response
from hw_tests.axdimm.module_bench import ACCELERATION, LINE, NORMAL, TB, Job
from hw_tests.axi_memory import CHANNEL_STALLS, memory_maker
from hw_tests.bench import bench_parameters

TIMES = ("data", "refresh", "starved", "row", "turn_around", "idle")
COMMANDS = ("activates", "precharges", "refreshes", "turns")
KERNEL_CAUSES = {"read_error": 6, "write_error": 7}


class AxiTB(TB):
    """Software on the host of one channel, and the channel's memory with random bytes in it."""

    def __init__(self, dut: Any, **settings: Any) -> None:
        super().__init__(dut)
        parameters = bench_parameters()
        seed = cocotb.RANDOM_SEED
        content = np.random.default_rng(seed).bytes(self.capacity)
        self.bytes = np.frombuffer(bytearray(content), np.uint8)
        self.expected = self.bytes.copy()
        self.memory = memory_maker(parameters["habit"])(
            dut, "m_axi", dut.clk, self.bytes, reset=dut.rst, seed=seed,
            stalls=CHANNEL_STALLS[parameters["stalls"]], **settings,
        )  # fmt: skip

    def expect(self, job: Job, tensors: dict[str, bytes]) -> None:
        for name, content in tensors.items():
            self.expected[job.base[name] :][: len(content)] = np.frombuffer(content, np.uint8)

    def compare(self) -> None:
        different = np.flatnonzero(self.bytes != self.expected)
        assert not different.size, f"{different.size} bytes differ, from {different[0]:#x}"


class Watch:
    """Counts the cycles in which a beat moves at the memory's port, and those in which none does
    because the memory owes one or an answer, or does not take one."""

    def __init__(self, dut: Any) -> None:
        self.moving = self.waiting = 0
        self._dut = dut
        self._task = cocotb.start_soon(self._run())

    def stop(self) -> None:
        self._task.cancel()

    def _high(self, *names: str) -> bool:
        return all(int(getattr(self._dut, f"m_axi_{name}").value) for name in names)

    async def _run(self) -> None:
        reads = answers = 0
        while True:
            await RisingEdge(self._dut.clk)
            read, write = self._high("rvalid", "rready"), self._high("wvalid", "wready")
            owes_data = reads or self._high("arvalid")
            if read or write:
                self.moving += 1
            elif answers or self._high("wvalid") or (owes_data and not self._high("rvalid")):
                self.waiting += 1
            reads += self._high("arvalid", "arready") - (read and self._high("rlast"))
            answers += (write and self._high("wlast")) - self._high("bvalid", "bready")


async def check_account(tb: AxiTB, watch: Watch) -> None:
    """The times of the run add up, and say what passed at the port."""
    watch.stop()
    times = {name: await tb.read_register(0, f"arbiter.{name}_tck") for name in TIMES}
    cycles = await tb.read_register(0, "cycles")
    assert sum(times.values()) == 4 * cycles, (times, cycles)
    assert times["refresh"] == times["turn_around"] == 0
    for name in COMMANDS:
        assert await tb.read_register(0, f"arbiter.run_{name}") == 0
    assert await tb.read_register(0, "arbiter.longest_refresh_gap_tck") == 0
    assert times["data"] == 4 * watch.moving > 0
    assert times["row"] == 4 * watch.waiting > 0


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def steps_leave_every_byte_as_it_should_be(dut: Any) -> None:
    tb = AxiTB(dut)
    await tb.start()
    for t, count in enumerate((513, tb.rng.randrange(1, 700)), 1):
        job = Job(tb.rng, count, t)
        await job.store(tb, 0)
        tb.expect(job, job.before)
        await job.begin(tb, 0)
        # Nothing has moved yet: the last request of the host is on its way.
        watch = Watch(dut)
        await job.end(tb, 0)
        await check_account(tb, watch)
        tb.expect(job, job.after)
        tb.compare()
        await job.check(tb, 0)
    assert await tb.read_register(0, "arbiter.overflows") == 0


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def errors_of_the_memory_reach_the_registers(dut: Any) -> None:
    """And nothing hangs: after an error the channel works as before."""
    if bench_parameters()["habit"] == "foreign":
        return  # It has no errors.
    failing: dict[str, set[int]] = {"read": set(), "write": set()}
    tb = AxiTB(
        dut,
        read_error=lambda index: index in failing["read"],
        write_error=lambda index: index in failing["write"],
        error=Response.DECERR if bench_parameters()["stalls"] == "random" else Response.SLVERR,
    )
    await tb.start()
    memory: Any = tb.memory
    for kind in ("read", "write"):
        job = Job(tb.rng, 400, 1)
        await job.store(tb, 0)
        await job.begin(tb, 0)
        done = len(memory.read_cycles) if kind == "read" else len(memory.writes)
        failing[kind] = {done + tb.rng.randrange(6)}
        status = tb.kernel["status"]
        while (value := await tb.read_register(0, "status")) & status["busy"].mask:
            pass
        assert status["cause"].extract(value) == KERNEL_CAUSES[f"{kind}_error"]
        assert status["error"].extract(value) == 1
        await tb.set_mode(0, NORMAL)
        failing[kind] = set()
        # The same again, without it.
        job = Job(tb.rng, 100, 2)
        await job.store(tb, 0)
        await job.begin(tb, 0)
        await job.end(tb, 0)
        await job.check(tb, 0)
    # A host that reads gets no data: the answer is late, and counts as such.
    late = await tb.read_register(0, "arbiter.late_reads")
    failing["read"] = {len(memory.read_cycles)}
    first = len(tb.host.answers)
    await tb.host.request(tb.line(0, 5 * LINE))
    assert await tb.read_register(0, "arbiter.status") == NORMAL != ACCELERATION
    assert tb.host.answers[first].late
    assert await tb.read_register(0, "arbiter.late_reads") == late + 1
