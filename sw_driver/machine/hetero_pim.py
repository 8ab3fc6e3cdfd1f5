"""Machine of Liu et al., Table IV: a CPU, a GPU, and a memory stack beside the CPU.

The stack's units and cores are no devices here: their times follow from the RTL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .machine import Machine
from .measured import V100_PCIE
from .parts import Device, Figure, Memory, assumed, given, link
from .processors import XEON_E5_2630_V3

__all__ = ["ARM_MHZ", "ARM_RATE", "GPU_USE", "HETERO_PIM"]

_TABLE_IV = "paper, Table IV"

HETERO_PIM = Machine(
    name="hetero_pim",
    memories=(
        Memory(name="host", capacity_bytes=given(16 << 30, f"{_TABLE_IV}: 16 GB of DDR4")),
        Memory(
            name="stack",
            capacity_bytes=given(8 << 30, "HMC 2.0 specification: the larger of 4 and 8 GB"),
            total_gb_per_s=given(320, "HMC 2.0 specification: 32 vaults of 10 GB/s"),
        ),
        Memory(name="gpu", capacity_bytes=given(11 << 30, f"{_TABLE_IV}: 11 GB of GDDR5X")),
    ),
    devices=(
        replace(XEON_E5_2630_V3, memory="host"),
        Device(
            name="gpu",
            memory="gpu",
            tflop_per_s=given(
                10.752,
                f"{_TABLE_IV}: 28 SMs of 128 cores of 1.5 GHz, a fused multiplication and addition "
                "each (NVIDIA: 11.34 at its boost clock of 1.58)",
            ),
            gb_per_s=given(484, "NVIDIA GTX 1080 Ti: 352 bits of 11 Gb/s"),
            launch_ns=assumed(0, "is in the utilisation of Section V-D"),
            cache_bytes=given(4 << 20, f"{_TABLE_IV}: 4096 KB of L2"),
        ),
    ),
    links=(
        link("ddr", "cpu", "host", XEON_E5_2630_V3.gb_per_s, assumed(90, "of DDR4 at a socket")),
        link(
            "hmc",
            "cpu",
            "stack",
            assumed(
                60,
                "the paper does not say: one of HMC 2.0's four links, 16 lanes of 30 Gb/s each "
                "way; no less than what the CPU has of DDR4",
            ),
            assumed(100, "as of DDR4, and a packet there and back"),
        ),
        link("pcie", "cpu", "gpu", V100_PCIE["read_gb_per_s"], V100_PCIE["latency_ns"]),
    ),
    junctions=("cpu",),
)

_AVERAGES = {
    "inception-v3": 0.62, "resnet-50": 0.44, "alexnet-32": 0.30, "vgg-19": 0.63, "dcgan": 0.28
}  # fmt: skip
_LEAST = assumed(0.28, "not in V-D: the least that is there")
GPU_USE: Mapping[str, Figure] = {
    **{name: given(share, "paper, V-D: the average") for name, share in _AVERAGES.items()},
    "lstm-ptb": _LEAST,
    "word2vec": _LEAST,
}
"""Utilisation of the GPU by each network (0 to 1), by the name of the network's trace."""

ARM_MHZ = given(2000, "paper, IV-D: cores of 2 GHz")
ARM_RATE = given(
    4, "measured on a Cortex-A9 of 1 GHz: 4.0 GFLOP/s, NEON (gruntthepeon.free.fr, 26 May 2011)"
)
"""FP32 operations per core and cycle in matrix products. For other work one is assumed."""
