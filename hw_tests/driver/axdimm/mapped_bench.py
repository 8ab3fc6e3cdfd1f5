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
import pytest
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, Timer
from cocotb.utils import get_sim_time
from cocotbext.axi import AxiBus, AxiMaster, AxiResp
from numpy.typing import NDArray

from hw_tests.bench import bench_parameters
from hw_tests.driver.adam import adam_constants, adam_step
from hw_tests.stalls import STALLS, pause_channels
from sw_driver.axdimm import Axdimm, MappedTransport
from sw_driver.errors import InvalidOptionError, WrongModeError

SECONDS = 120
"""Of the host, after which something hangs."""


class AxiMap:
    """The channels at consecutive addresses, as a bus before their ports has them."""

    def __init__(self, dut: Any) -> None:
        parameters = bench_parameters()
        self.name = "axi"
        self.capacity = parameters["capacity_bytes"]
        self.nbytes = parameters["channels"] * self.capacity
        self.widths: set[int] = set()
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
        # As a host on PCIe sees an error.
        return read.data if read.resp == AxiResp.OKAY else b"\xff" * nbytes

    def _write(self, offset: int, data: bytes, **how: int) -> None:
        channel, address = divmod(offset, self.capacity)
        self._call(lambda: self._hosts[channel].write(address, data, **how))

    def load(self, offset: int, nbytes: int) -> int:
        self.widths.add(nbytes)
        return int.from_bytes(self._read(offset, nbytes, size=nbytes.bit_length() - 1), "little")

    def store(self, offset: int, value: int, nbytes: int) -> None:
        self.widths.add(nbytes)
        self._write(offset, value.to_bytes(nbytes, "little"), size=nbytes.bit_length() - 1)

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        return np.frombuffer(self._read(offset, nbytes), np.uint8)

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        self._write(offset, data.tobytes())

    def close(self) -> None:
        self.closed = True

    def now(self) -> float:
        return get_sim_time("ps") * 1e-12

    def sleep(self, seconds: float) -> None:
        self._call(lambda: wait(seconds))


async def wait(seconds: float) -> None:
    await Timer(max(1, round(seconds * 1e12)), "ps")


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(word_bytes=[8, 4])
async def adam_through_the_public_api(dut: Any, word_bytes: int) -> None:
    axi = AxiMap(dut)

    def program() -> None:
        transport = MappedTransport(axi, word_bytes=word_bytes, now=axi.now, sleep=axi.sleep)
        with transport, Axdimm(transport) as device:
            assert device.channels == 2
            assert device.configuration(0).read_latency_fabric_cycles == 0
            for channel, count in enumerate((333, 17)):
                step(device, channel, count)
            misuse(device)
        assert axi.closed

    await axi.run(program)
    assert axi.widths == {word_bytes}
    assert dut.violations.value == 0


def step(device: Axdimm, channel: int, count: int) -> None:
    rng = np.random.default_rng(count)
    tensors = {name: rng.standard_normal(count).astype(np.float32) for name in "pgmv"}
    tensors["v"] = np.abs(tensors["v"])
    pointers = {name: device.MallocAxdimm(4 * count, channel) for name in tensors}
    for name, data in tensors.items():
        device.MemcpyHost2Axdimm(pointers[name], data, data.nbytes)
    hyper: dict[str, Any] = {
        "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01, "t": 7,
    }  # fmt: skip
    device.SetArbiterAcc(channel)
    run = device.RunAdamOnAxdimmAsync(**pointers, nparams=count, **hyper, channel=channel)
    result = run.wait()
    device.SetArbiterNormal(channel)
    beats = -(-count // 16)
    assert (result.beats_read, result.beats_written) == (4 * beats, 3 * beats)
    assert result.fabric_cycles >= 7 * beats
    golden = adam_step(**tensors, constants=adam_constants(**hyper))
    for name, expected in zip("pmv", golden, strict=True):
        found = np.empty_like(expected)
        device.MemcpyAxdimm2Host(found, pointers[name], found.nbytes)
        assert np.array_equal(found.view(np.uint32), expected.view(np.uint32)), name


def misuse(device: Axdimm) -> None:
    """What the hardware refuses is told, though the bus does not tell it."""
    pointer = device.MallocAxdimm(4096, 0)
    data = np.arange(4096, dtype=np.uint8)
    device.MemcpyHost2Axdimm(pointer, data, data.nbytes)
    mode = device.transport.capacity_bytes - 4096 + 0x40
    line = np.zeros(64, np.uint8)
    line[0] = 1
    device.transport.write_lines(0, mode, line)  # past the driver
    with pytest.raises(WrongModeError, match="switched past this driver"):
        device.MemcpyAxdimm2Host(np.empty(64, np.uint8), pointer, 64)
    device.SetArbiterNormal(0)
    found = np.empty_like(data)
    device.MemcpyAxdimm2Host(found, pointer, found.nbytes)
    assert np.array_equal(found, data)
    with pytest.raises(InvalidOptionError, match="has no backdoor"):
        device.MemcpyAxdimm2Host(found, pointer, found.nbytes, backdoor=True)
