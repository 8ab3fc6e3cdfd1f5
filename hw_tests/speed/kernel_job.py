"""A job for the Adam kernel on an AXI memory: what every simulation of it is given."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from golden.rules import reference
from hw.axdimm.config import configure
from hw.kernel.config import KernelConfig
from hw.kernel.kernel import Kernel
from hw.kernel.registers import kernel_map
from hw_tests.bench import run_bench

__all__ = ["JobResult", "KernelJob", "simulate_in_cocotb"]

_MEMORY_BYTES = 1 << 22
_TENSORS = ("p", "g", "m", "v")
_OUTPUTS = ("p", "m", "v")


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """A job that was simulated and gave the golden model's bits."""

    parameters: int
    fabric_cycles: int
    """That the kernel counted, from START to DONE."""
    host_seconds: float

    @property
    def fabric_cycles_per_host_second(self) -> float:
        """Speed of the simulation."""
        return self.fabric_cycles / self.host_seconds


class KernelJob:
    """``rounds`` blocks of each tensor, updated in place; ``blocks`` lie behind each other.

    ``memory`` are the bytes before the job; ``settings`` the registers to write, offset in bytes
    and value, before ``START``. ``ValueError`` if the tensors do not fit.
    """

    @staticmethod
    def config_of(preset: str) -> KernelConfig:
        """The preset's kernel, for a memory that every simulation can hold."""
        config = configure(preset)
        return config.with_capacity(min(_MEMORY_BYTES, config.capacity_bytes)).kernel

    def __init__(self, config: KernelConfig, rounds: int) -> None:
        registers = kernel_map()
        self.config = config
        self.parameters = rounds * config.block_bytes // 4
        nbytes = 4 * self.parameters
        if len(_TENSORS) * nbytes > config.memory_bytes:
            raise ValueError(
                f"{rounds} rounds take {len(_TENSORS) * nbytes} bytes, the memory has "
                f"{config.memory_bytes}: run fewer rounds"
            )
        self._addresses = {name: nbytes * index for index, name in enumerate(_TENSORS)}
        golden = reference("adam")
        constants = golden.constants(
            lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01, t=3
        )
        rng = np.random.default_rng(1)
        tensors = {name: rng.random(self.parameters, dtype=np.float32) for name in _TENSORS}
        self.memory = np.zeros(1 << config.address_width, np.uint8)
        for name, values in tensors.items():
            self._tensor(self.memory, name)[:] = values
        self._expected = golden.step(tensors, constants)
        values = {
            "count": self.parameters,
            **{f"{name}_in": address for name, address in self._addresses.items()},
            **{f"{name}_out": self._addresses[name] for name in _OUTPUTS},
            **{name: int(np.float32(value).view(np.uint32)) for name, value in constants.items()},
        }
        self.settings = [(registers[name].offset_bytes, value) for name, value in values.items()]
        self.start = (registers["control"].offset_bytes, 1)
        self.cycles_offset = registers["cycles"].offset_bytes

    def _tensor(self, memory: NDArray[np.uint8], name: str) -> NDArray[np.float32]:
        address = self._addresses[name]
        return memory[address : address + 4 * self.parameters].view(np.float32)

    def check(self, memory: NDArray[np.uint8]) -> None:
        """Raises ``AssertionError`` if the outputs in ``memory`` are not the golden model's."""
        for name, expected in self._expected.items():
            result = self._tensor(memory, name)
            wrong = np.flatnonzero(result.view(np.uint32) != expected.view(np.uint32))
            assert not wrong.size, f"{wrong.size} values of {name} differ, the first: {wrong[0]}"


def simulate_in_cocotb(preset: str, rounds: int, repetitions: int) -> list[JobResult]:
    """Runs :class:`KernelJob` under Verilator several times, driven by cocotb.

    The model is compiled with the optimization of the driver's. Raises ``AssertionError`` if the
    simulation fails or the outputs are not the golden model's.
    """
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        run_bench(
            Kernel(KernelJob.config_of(preset)),
            top="kernel",
            module="hw_tests.speed.cocotb_kernel_bench",
            parameters={
                "preset": preset,
                "rounds": rounds,
                "repetitions": repetitions,
                "results": str(results),
            },
            build_args=["--x-initial", "fast", "--noassert", "-CFLAGS", "-O2"],
            test_seconds=None,
        )
        return [JobResult(**values) for values in json.loads(results.read_text())]
