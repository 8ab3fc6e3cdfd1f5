"""GPUs as they are used today: rates by format, and the shares of them that training reaches.

Peak rates are those of dense products with sums in FP32. ``product_share`` is the largest measured
product as a share of the peak; ``sustained_share`` is what is left of it in a training step, where
power and heat bound the clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .parts import Device, Figure, assumed, calibrated, given
from .processors import A100, H100, RTX_4090, V100

__all__ = ["CUDA_NAMES", "GPUS", "Gpu"]

_REACHED = assumed(0.85, "copies and sums on GPUs reach 80 to 90 % of the data sheet's bandwidth")
_ATTENTION = assumed(
    0.6,
    "FlashAttention-2 (arXiv 2307.08691) reaches 50 to 73 % of an A100's peak in the forward pass "
    "and up to 63 % in the backward pass, of the work that a causal mask leaves: some 53 % of the "
    "peak for long sequences, of which products reach 87 %. On an H100 it is as much of the "
    "products that training keeps: 335 TFLOP/s are published there",
)
_MAMF = "stas00/ml-engineering, table of maximum achievable matmul FLOPS"
_LI = "mli/transformers-benchmarks, matmul of the largest size"
_STEPS = "one number for the GPU, from published training steps of"


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU with its memory and its links, as sold."""

    device: Device
    capacity_bytes: Figure
    pcie: int
    """Generation of its PCIe x16 link."""
    nvlink_gb_per_s: Figure | None = None
    """Rate of all NVLinks together, each way, in 10^9 bytes/s; None without NVLink."""
    watts: Figure


def _gpu(
    name: str,
    base: Device,
    *,
    multiprocessors: int,
    tflop_per_s: Mapping[str, float],
    product_share: Figure,
    sustained_share: Figure,
    gib: float,
    pcie: int,
    watts: int,
    nvlink: int = 0,
    **others: Figure,
) -> Gpu:
    """Return a GPU; rates, memory, links and power are those of its data sheet."""
    sheet = f"NVIDIA {name} data sheet"
    rates = {
        f"{dtype}_tflop_per_s".removeprefix("fp32_"): given(
            rate, f"{sheet}: {dtype.upper()}, dense" + ", sums in FP32" * (dtype != "fp32")
        )
        for dtype, rate in tflop_per_s.items()
    }
    return Gpu(
        device=replace(
            base,
            **rates,
            **others,
            multiprocessors=given(multiprocessors, f"{sheet}: streaming multiprocessors"),
            product_share=product_share,
            attention_share=_ATTENTION,
            sustained_share=sustained_share,
            memory_share=_REACHED,
        ),
        capacity_bytes=given(round(gib * 2**30), f"{sheet}: {gib:g} GB"),
        pcie=pcie,
        nvlink_gb_per_s=given(nvlink, f"{sheet}: NVLink, {nvlink} GB/s each way")
        if nvlink
        else None,
        watts=given(watts, f"{sheet}: power of the whole board or module"),
    )


def _bandwidth(name: str, gb_per_s: float) -> Figure:
    return given(gb_per_s, f"NVIDIA {name} data sheet: memory bandwidth")


def _halves(rate: float, tf32: float, fp8: float | None = None) -> dict[str, float]:
    """Return the rates of a GPU with BF16 at the rate of FP16."""
    rates = {"tf32": tf32, "fp16": rate, "bf16": rate}
    return rates if fp8 is None else {**rates, "fp8": fp8}


_A100 = {
    "multiprocessors": 108,
    "tflop_per_s": _halves(312, 156),
    "product_share": given(271.2 / 312, f"{_MAMF}: A100 SXM, BF16, 271.2 TFLOP/s"),
    "sustained_share": calibrated(
        0.86, f"{_STEPS} MPT (mosaicml/llm-foundry) and Llama (meta-pytorch/torchtune)"
    ),
    "pcie": 4,
    "watts": 400,
    "nvlink": 300,
}
_H100 = {
    "multiprocessors": 132,
    "tflop_per_s": _halves(989.4, 494.7, 1978.9),
    "product_share": given(794.5 / 989.4, f"{_MAMF}: H100 SXM, BF16, 794.5 TFLOP/s"),
    "fp8_share": given(1402.6 / 1978.9, f"{_MAMF}: H100 SXM, FP8, 1,402.6 TFLOP/s"),
    "sustained_share": calibrated(0.7, f"{_STEPS} MPT (mosaicml/llm-foundry)"),
    "pcie": 5,
    "watts": 700,
    "nvlink": 450,
}
_WORKSTATION = {
    "sustained_share": assumed(0.9, "cards with coolers of their own; no step was used"),
    "pcie": 4,
}
_A6000_SHARE = given(95 / 154.8, f"{_LI}: A6000, FP16, 95 TFLOP/s")

GPUS: Mapping[str, Gpu] = {
    "v100": _gpu(
        "V100 SXM2",
        V100,
        multiprocessors=80,
        tflop_per_s={"fp32": 15.7, "fp16": 125},
        product_share=given(95 / 125, f"{_LI}: V100, FP16, 95 TFLOP/s"),
        sustained_share=calibrated(0.8, f"{_STEPS} GPT (Oneflow-Inc/DLPerf)"),
        gib=32,
        pcie=3,
        watts=300,
        nvlink=150,
    ),
    "a100-40": _gpu(
        "A100 40GB SXM", replace(A100, gb_per_s=_bandwidth("A100 40GB SXM", 1555)), gib=40, **_A100
    ),
    "a100": _gpu("A100 80GB SXM", A100, gib=80, **_A100),
    "h100": _gpu("H100 SXM", H100, gib=80, **_H100),
    "h100-96": _gpu(
        "H100 96GB SXM of 500 W",
        replace(H100, gb_per_s=given(2400, "pytorch/torchtitan, benchmarks: HBM2e, 2.4 TB/s")),
        gib=96,
        **_H100
        | {
            "watts": 500,
            "sustained_share": assumed(
                round(_H100["sustained_share"].value * (500 / 700) ** (1 / 3), 3),
                "the H100's; power grows with the third power of the clock",
            ),
        },
    ),
    "h200": _gpu(
        "H200 SXM", replace(H100, gb_per_s=_bandwidth("H200 SXM", 4800)), gib=141, **_H100
    ),
    "rtx3090": _gpu(
        "RTX 3090",
        replace(RTX_4090, gb_per_s=_bandwidth("RTX 3090", 936), cache_bytes=None),
        multiprocessors=82,
        tflop_per_s={"fp32": 35.6, **_halves(71.2, 35.6)},
        product_share=assumed(0.95, "as cards of the next generation, whose FP32 sums are as slow"),
        gib=24,
        watts=350,
        **_WORKSTATION,
    ),
    "rtx4090": _gpu(
        "RTX 4090",
        RTX_4090,
        multiprocessors=128,
        tflop_per_s=_halves(165.2, 82.6, 330.3),
        product_share=given(
            161 / 165.2, "a fork of mli/transformers-benchmarks: FP16, 161 TFLOP/s"
        ),
        gib=24,
        watts=450,
        **_WORKSTATION,
    ),
    "rtx4070tis": _gpu(
        "RTX 4070 Ti SUPER",
        replace(RTX_4090, gb_per_s=_bandwidth("RTX 4070 Ti SUPER", 672), cache_bytes=None),
        multiprocessors=66,
        tflop_per_s={"fp32": 44.1, **_halves(88.2, 44.1, 176.4)},
        product_share=assumed(161 / 165.2, "as the RTX 4090, of the same generation"),
        gib=16,
        watts=285,
        **_WORKSTATION,
    ),
    "a5000": _gpu(
        "RTX A5000",
        replace(RTX_4090, gb_per_s=_bandwidth("RTX A5000", 768), cache_bytes=None),
        multiprocessors=64,
        tflop_per_s={"fp32": 27.8, **_halves(111.1, 55.6)},
        product_share=replace(
            _A6000_SHARE, mark="assumed", source="as the A6000, of the same chip"
        ),
        gib=24,
        watts=230,
        **_WORKSTATION,
    ),
    "a6000": _gpu(
        "RTX A6000",
        replace(RTX_4090, gb_per_s=_bandwidth("RTX A6000", 768), cache_bytes=None),
        multiprocessors=84,
        tflop_per_s={"fp32": 38.7, **_halves(154.8, 77.4)},
        product_share=_A6000_SHARE,
        gib=48,
        watts=300,
        **_WORKSTATION,
    ),
}
"""GPUs by name. V100 is the SXM2 module; papers have the slower PCIe card."""

CUDA_NAMES: Mapping[str, str] = {
    "Tesla V100-SXM2-16GB": "v100",
    "Tesla V100-SXM2-32GB": "v100",
    "NVIDIA A100-SXM4-40GB": "a100-40",
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H200": "h200",
    "NVIDIA GeForce RTX 3090": "rtx3090",
    "NVIDIA GeForce RTX 4090": "rtx4090",
    "NVIDIA GeForce RTX 4070 Ti SUPER": "rtx4070tis",
    "NVIDIA RTX A5000": "a5000",
    "NVIDIA RTX A6000": "a6000",
}
"""GPUs by the names that CUDA has for them; cards on PCIe and in laptops have other rates."""
