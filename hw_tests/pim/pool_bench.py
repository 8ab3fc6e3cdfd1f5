"""cocotb test of the pool as one component: the driver offers works and compares memory.

Parameters: ``preset``, ``stalls`` of the host's port to the memory.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.task import bridge, resume
from cocotb.triggers import ClockCycles
from cocotb.utils import get_sim_time
from numpy.typing import NDArray

from golden.pim import Opcode
from hw.pim.config import BEAT_BYTES, PIM_PRESETS, PimConfig
from hw.pim.memory.memory_port import HOST_TAG_BITS, host_response_layout, memory_request_layout
from hw_tests.bench import bench_parameters
from hw_tests.lite_master import LiteMaster
from hw_tests.pim.bank.bank_works import bank_works, dense_work
from hw_tests.pim.overlapping_works import check_overlapping_works
from hw_tests.pim.plans import planned
from hw_tests.stalls import STALLS
from hw_tests.streams import StreamSink, StreamSource, pack, unpack
from sw_driver.device.clock import Domain
from sw_driver.pim.device import Pim
from sw_driver.pim.transport import PimTransport

PARAMETERS = bench_parameters()

_PERIOD_NS = 2


class BenchTransport(PimTransport):
    """A :class:`~sw_driver.pim.transport.PimTransport` over the members of ``dut``."""

    name = "bench"
    timed = True
    computes = True

    def __init__(self, dut: Any, config: PimConfig, pause: float) -> None:
        self.config = config
        self.domain = Domain()
        self._dut = dut
        self._registers = LiteMaster(dut, "s_axi", dut.clk)
        self._request = memory_request_layout(config, tag_bits=HOST_TAG_BITS)
        self._response = host_response_layout(tag_bits=HOST_TAG_BITS)
        self._asked = StreamSource(dut, "host_request", dut.clk, pause=pause)
        self._answered = StreamSink(dut, "host_response", dut.clk, pause=pause)

    @resume
    async def read_register(self, offset_bytes: int) -> int:
        value, response = await self._registers.read(offset_bytes)
        assert response == 0
        return value

    @resume
    async def write_register(self, offset_bytes: int, value: int) -> None:
        assert await self._registers.write(offset_bytes, value) == 0

    @resume
    async def read_memory(self, address_bytes: int, nbytes: int) -> NDArray[np.uint8]:
        beats = await self._ask(address_bytes, nbytes // BEAT_BYTES)
        return np.frombuffer(b"".join(beats), np.uint8)

    @resume
    async def write_memory(self, address_bytes: int, data: NDArray[np.uint8]) -> None:
        await self._ask(address_bytes, data.size // BEAT_BYTES, data)

    @resume
    async def post_memory(self, address_bytes: int, data: NDArray[np.uint8]) -> None:
        await self._ask(address_bytes, data.size // BEAT_BYTES, data)

    async def _ask(
        self, address_bytes: int, count: int, data: NDArray[np.uint8] | None = None
    ) -> list[bytes]:
        """Reads so many whole beats, or writes them; what was answered."""
        found = [b""] * count
        tags = 1 << HOST_TAG_BITS
        for begin in range(0, count, tags):
            part = range(begin, min(begin + tags, count))
            del self._answered.taken[:], self._answered.cycles[:]
            for beat in part:
                new = b"" if data is None else data[BEAT_BYTES * beat :][:BEAT_BYTES].tobytes()
                self._asked.queue.append(
                    pack(
                        self._request,
                        data=int.from_bytes(new, "little"),
                        strobe=(1 << len(new)) - 1,
                        address=address_bytes // BEAT_BYTES + beat,
                        tag=beat % tags,
                        write=int(data is not None),
                    )
                )
            while len(self._answered.taken) < len(part):
                await ClockCycles(self._dut.clk, 1)
            answers = [unpack(self._response, each) for each in self._answered.taken]
            assert sorted(each["tag"] for each in answers) == [beat % tags for beat in part]
            for answer in answers:
                assert answer["write"] == int(data is not None)
                assert not answer["error"]
                found[begin + answer["tag"]] = answer["data"].to_bytes(BEAT_BYTES, "little")
        return found

    @resume
    async def advance(self, cycles: int) -> None:
        await ClockCycles(self._dut.clk, cycles)

    def cycles(self) -> int:
        return int(get_sim_time("ns")) // _PERIOD_NS

    def close(self) -> None:
        pass


@cocotb.test()
async def test_works(dut: Any) -> None:
    """Works of all kinds, on all banks: memory and counters are the golden model's."""
    dut.rst.value = 1
    cocotb.start_soon(Clock(dut.clk, _PERIOD_NS, unit="ns").start())
    config = PIM_PRESETS[PARAMETERS["preset"]]
    transport = BenchTransport(dut, config, STALLS[PARAMETERS["stalls"]])
    await ClockCycles(dut.clk, 2)
    dut.rst.value = 0
    works = bank_works(config, random.Random(PARAMETERS["stalls"]), small=10)
    one = planned(dense_work(Opcode.MUL, rows=2, columns=40), config)
    works += [replace(one, units=0, banks=1 << bank) for bank in range(config.banks)]

    def run() -> int:
        return check_overlapping_works(Pim(transport), works, seed=1)

    assert await bridge(run)() == (1 << config.banks) - 1
    assert not dut.violation.value
