"""Processors and their last-level caches, each attached to a memory of its own.

A CPU is taken to reach half of its peak FLOP/s with fused multiply-add (FMA). That is its peak
without FMA. TensorFlow's release builds of the papers' years use AVX but no FMA
(tensorflow/tensorflow, issue 19584); later CPUs are taken to reach the same share. A GPU's rate is
that of its data sheet.
"""

from __future__ import annotations

from .parts import Device, Figure, assumed, given

__all__ = ["A100", "H100", "RTX_4090", "V100", "XEON_8480", "XEON_E5_2630_V3", "XEON_E5_2670_V3"]

_LAUNCH = assumed(5_000, "some 5 us from a framework's call to the kernel's begin")


def _xeon(
    model: str,
    cores: int,
    ghz: float,
    cache_mib: int,
    gb_per_s: Figure,
    vector: tuple[str, int] = ("AVX2", 8),
) -> Device:
    """Return a CPU socket.

    ``vector`` is the extension's name and the FP32 lanes of an FMA unit; a core has two such units.
    """
    extension, lanes = vector
    tflop_per_s = cores * ghz * 2 * 2 * lanes / 1000
    return Device(
        name="cpu",
        memory="host",
        tflop_per_s=assumed(
            tflop_per_s / 2,
            f"half of {tflop_per_s:.4f}; Intel: {model} has {cores} cores of {ghz} GHz; "
            f"{extension}: two FMA of {lanes} FP32 a cycle",
        ),
        gb_per_s=gb_per_s,
        launch_ns=assumed(0, "a call of a function"),
        cache_bytes=given(cache_mib << 20, f"Intel: {model}'s last level of cache"),
    )


XEON_E5_2670_V3 = _xeon(
    "E5-2670 v3", 12, 2.3, 30, given(68, "Intel: E5-2670 v3: four channels of DDR4-2133")
)
"""CPU of Sentinel's Table 2, one of two sockets."""

XEON_E5_2630_V3 = _xeon(
    "E5-2630 v3", 8, 2.4, 20,
    assumed(59, "Intel: E5-2630 v3: four channels of DDR4-1866; the paper has 16 GB of DDR4"),
)  # fmt: skip
"""CPU of the heterogeneous PIM's Table IV."""

XEON_8480 = _xeon(
    "Platinum 8480+", 56, 2.0, 105,
    given(307.2, "Intel: Platinum 8480+: eight channels of DDR5-4800"), ("AVX-512", 16),
)  # fmt: skip
"""CPU of the first generation that supports CXL memory."""

V100 = Device(
    name="gpu",
    memory="gpu",
    tflop_per_s=given(14, "NVIDIA V100 data sheet: single precision, V100 PCIe"),
    gb_per_s=given(900, "NVIDIA V100 data sheet: memory bandwidth, V100 PCIe"),
    launch_ns=_LAUNCH,
    cache_bytes=given(6 << 20, "NVIDIA V100 white paper, Table 1: 6144 KB of L2"),
)

A100 = Device(
    name="gpu",
    memory="gpu",
    tflop_per_s=given(19.5, "NVIDIA A100 data sheet: FP32, without tensor cores"),
    gb_per_s=given(2039, "NVIDIA A100 data sheet: SXM4, 80 GB"),
    launch_ns=_LAUNCH,
    cache_bytes=given(40 << 20, "NVIDIA A100 white paper: 40960 KB of L2"),
)

H100 = Device(
    name="gpu",
    memory="gpu",
    tflop_per_s=given(67, "NVIDIA H100 data sheet: SXM5, FP32, without tensor cores"),
    gb_per_s=given(3350, "NVIDIA H100 data sheet: SXM5"),
    launch_ns=_LAUNCH,
    cache_bytes=given(50 << 20, "NVIDIA H100 white paper: 50 MB of L2, taken to be MiB"),
)

RTX_4090 = Device(
    name="gpu",
    memory="gpu",
    tflop_per_s=given(82.6, "NVIDIA Ada white paper: GeForce RTX 4090, FP32, no tensor cores"),
    gb_per_s=given(1008, "NVIDIA Ada white paper: GeForce RTX 4090"),
    launch_ns=_LAUNCH,
    cache_bytes=given(72 << 20, "NVIDIA Ada white paper: 73,728 KB of L2"),
)
