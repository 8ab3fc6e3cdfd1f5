"""Processors with their last level of cache, each at a memory of its own.

The rate of a CPU is half of what its cores do with fused multiplications and additions (FMA): what
they do without, as in TensorFlow's release builds of the papers' years, which use AVX but no FMA
(tensorflow/tensorflow, issue 19584). That of a GPU is its data sheet's.
"""

from __future__ import annotations

from .parts import Device, Figure, assumed, given

__all__ = ["A100", "V100", "XEON_E5_2630_V3", "XEON_E5_2670_V3"]

_FLOP_PER_CYCLE = 2 * 2 * 8
_LAUNCH = assumed(5_000, "some 5 us from a framework's call to the kernel's begin")


def _xeon(model: str, cores: int, ghz: float, cache_mib: int, gb_per_s: Figure) -> Device:
    """A socket."""
    tflop_per_s = cores * ghz * _FLOP_PER_CYCLE / 1000
    return Device(
        name="cpu",
        memory="host",
        tflop_per_s=assumed(
            tflop_per_s / 2,
            f"half of {tflop_per_s:.4f}; Intel: {model} has {cores} cores of {ghz} GHz; AVX2: two "
            "FMA of 8 FP32 a cycle",
        ),
        gb_per_s=gb_per_s,
        launch_ns=assumed(0, "a call of a function"),
        cache_bytes=given(cache_mib << 20, f"Intel: {model}'s last level of cache"),
    )


XEON_E5_2670_V3 = _xeon(
    "E5-2670 v3", 12, 2.3, 30, given(68, "Intel: E5-2670 v3: four channels of DDR4-2133")
)
"""The CPU of Sentinel's Table 2, one of two sockets."""

XEON_E5_2630_V3 = _xeon(
    "E5-2630 v3", 8, 2.4, 20,
    assumed(59, "Intel: E5-2630 v3: four channels of DDR4-1866; the paper has 16 GB of DDR4"),
)  # fmt: skip
"""The CPU of the heterogeneous PIM's Table IV."""

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
