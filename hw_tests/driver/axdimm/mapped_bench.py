"""The driver on a memory map behind which is the module's RTL with its AXI4 ports.

The driver's program runs in a thread. Each access to the map is a transaction on AXI, as a
processor or a DMA engine makes it; the simulation stands still in between.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles
from cocotbext.axi import AxiBus, AxiMaster, AxiResp
from numpy.typing import NDArray

from hw_tests.bench import bench_parameters
from hw_tests.driver.axdimm.test_adam import Update
from hw_tests.stalls import STALLS, pause_channels
from sw_driver.axdimm import Axdimm, MappedTransport
from sw_driver.axdimm.backends.mapped import MappedFile

SECONDS = 120
"""Of the host, after which something hangs."""

SIMULATED_MHZ = 0.02
"""At which the simulation is ample for the driver's limits, which pass by the host's clock."""


class AxiMap(MappedFile):
    """The channels at consecutive addresses, as a bus before their ports has them."""

    def __init__(self, dut: Any) -> None:
        parameters = bench_parameters()
        self.name = "axi"
        self.capacity = parameters["capacity_bytes"]
        self.nbytes = parameters["channels"] * self.capacity
        self.closed = False
        self._dut = dut
        self._calls: queue.Queue[Any] = queue.Queue()
        self._hosts = []
        for channel in range(parameters["channels"]):
            prefix = f"s_axi{channel}"
            logging.getLogger(f"cocotb.{dut._name}.{prefix}").setLevel(logging.WARNING)
            host = AxiMaster(AxiBus.from_prefix(dut, prefix), dut.clk, dut.rst)
            pause_channels(host, STALLS[parameters["stalls"]], prefix)
            self._hosts.append(host)

    async def run(self, program: Callable[[], None]) -> None:
        """Runs the program, and the simulation for what it asks for."""
        failures: list[BaseException] = []

        def thread() -> None:
            try:
                program()
            except BaseException as error:
                failures.append(error)
            finally:
                self._calls.put(None)

        Clock(self._dut.clk, 5, unit="ns").start()
        self._dut.rst.value = 1
        await ClockCycles(self._dut.clk, 4)
        self._dut.rst.value = 0
        threading.Thread(target=thread).start()
        while (call := self._calls.get(timeout=SECONDS)) is not None:
            make, answer = call
            answer.put(await make())
        for failure in failures:
            raise failure

    def _call(self, make: Callable[[], Any]) -> Any:
        answer: queue.Queue[Any] = queue.Queue()
        self._calls.put((make, answer))
        return answer.get(timeout=SECONDS)

    def _read(self, offset: int, nbytes: int, **how: int) -> bytes:
        channel, address = divmod(offset, self.capacity)
        read = self._call(lambda: self._hosts[channel].read(address, nbytes, **how))
        assert read.resp == AxiResp.OKAY
        return read.data

    def _write(self, offset: int, data: bytes, **how: int) -> None:
        channel, address = divmod(offset, self.capacity)
        written = self._call(lambda: self._hosts[channel].write(address, data, **how))
        assert written.resp == AxiResp.OKAY

    def load(self, offset: int) -> int:
        return int.from_bytes(self._read(offset, 8, size=3), "little")

    def store(self, offset: int, value: int) -> None:
        self._write(offset, value.to_bytes(8, "little"), size=3)

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        return np.frombuffer(self._read(offset, nbytes), np.uint8)

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        self._write(offset, data.tobytes())

    def close(self) -> None:
        self.closed = True


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def adam_through_the_public_api(dut: Any) -> None:
    axi = AxiMap(dut)

    def program() -> None:
        rng = np.random.default_rng(1)
        transport = MappedTransport(axi, fabric_mhz=SIMULATED_MHZ)
        with transport, Axdimm(transport) as device:
            assert device.channels == 2
            assert device.configuration(0).read_latency_fabric_cycles == 0
            for channel, count in enumerate((333, 17)):
                expected = np.zeros(transport.capacity_bytes, np.uint8)
                update = Update(device, channel, count, rng)
                update.upload(expected)
                result = update.run()
                beats = -(-count // 16)
                assert (result.beats_read, result.beats_written) == (4 * beats, 3 * beats)
                assert result.fabric_cycles >= 7 * beats
                update.expect(expected)
                for pointer in update.tensors.values():
                    found = np.empty(4 * count, np.uint8)
                    device.MemcpyAxdimm2Host(found, pointer, found.nbytes)
                    assert np.array_equal(found, expected[pointer.address :][: found.nbytes])
        assert axi.closed

    await axi.run(program)
    assert dut.violations.value == 0
