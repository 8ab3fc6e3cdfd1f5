"""Two machines of Yao et al., Section V-A: a GPU on PCIe 3.0, and CPU cores that run the update.

The paper names the GPUs, the cores and the PCIe generation. The rate of a copy is measured on a
V100; a kernel that reads the host's memory is taken to reach the same. The host's memory bounds
Adam, but the paper gives no rate for it: the rate is that of DeepSpeed's Adam on other machines.
"""

from __future__ import annotations

from dataclasses import replace

from .machine import Machine
from .measured import ADAM_BYTES, V100_PCIE
from .parts import Device, Figure, Memory, assumed, given, link
from .processors import A100, V100

__all__ = ["MEMFERRY_A100", "MEMFERRY_V100"]

_ADAM_CORES = 48
_ADAM_GB_PER_S = ADAM_BYTES * 10 / 2.57
_ADAM = (
    "ZeRO-Offload (Ren et al., ATC 2021), Table 4: DeepSpeed's Adam does 10 billion parameters, of "
    f"{ADAM_BYTES} bytes each, in 2.57 s on the {_ADAM_CORES} cores of a DGX-2"
)


def _machine(name: str, gpu: Device, gpu_bytes: int, cores: int, gb_per_s: Figure) -> Machine:
    latency_ns = V100_PCIE["latency_ns"]
    return Machine(
        name=name,
        memories=(
            Memory(
                name="gpu", capacity_bytes=given(gpu_bytes, f"paper, V-A: {gpu_bytes >> 30} GB")
            ),
            Memory(
                name="host",
                capacity_bytes=assumed(1 << 40, "more than 16 bytes of any parameter there"),
            ),
        ),
        devices=(
            replace(gpu, cache_bytes=None),  # no result here depends on it
            Device(
                name="cpu",
                memory="host",
                tflop_per_s=assumed(
                    cores * 0.0704, "AVX2 at 2.2 GHz, two FMA of 8 FP32 a cycle: no bound of Adam's"
                ),
                gb_per_s=gb_per_s,
                launch_ns=assumed(0, "a call of a function"),
            ),
        ),
        links=(link("pcie", "host", "gpu", V100_PCIE["read_gb_per_s"], latency_ns),),
    )


MEMFERRY_V100 = _machine(
    "memferry_v100", V100, 32 << 30, 12,
    assumed(_ADAM_GB_PER_S * 12 / _ADAM_CORES, f"{_ADAM}; paper, V-A: 12 cores, a quarter of it"),
)  # fmt: skip
"""One V100."""

MEMFERRY_A100 = _machine(
    "memferry_a100", A100, 80 << 30, 128,
    assumed(_ADAM_GB_PER_S, f"{_ADAM}; paper, V-A: 128 cores, taken to have no more memory"),
)  # fmt: skip
"""One A100 of eight."""
