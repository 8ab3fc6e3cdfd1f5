"""What the paper says of its results, in words: its figures are pictures."""

from __future__ import annotations

__all__ = ["CNNS", "PAPER", "TABLE_4", "TABLE_4_WATTS"]

CNNS = ("alexnet", "googlenet", "vgg-e", "resnet-34")

PAPER = {
    "overlay_cut": 0.88,
    "sync_added": 0.90,
    "overlay_bound": 14,
    "hc_bandwidth": 0.92,
    "hc": {"data": 1.32, "model": 1.38},
    "b": {"data": 3.5, "model": 2.1, "both": 2.8},
    "b_of_oracle": 0.95,
    "b_of_oracle_range": (0.84, 0.99),
    "s_of_b": 1 - 0.14,
    "s_of_b_least": 1 - 0.24,
    "l_of_b": 0.96,
    "batches": 2.17,
    "pcie4": 1.38,
    "pcie4_gap": 2.1,
    "tpu": 3.2,
    "dgx2": 2.9,
    "compression": 2.6,
    "compressed_gap": 2.3,
    "scaling": {4: 1.3, 8: 2.7},
}
"""Sections V-A to V-D; shares and times, not per cent."""

TABLE_4: dict[str, tuple[int, float, int, float]] = {
    "8 GB RDIMM": (8, 2.9, 29, 2.8),
    "16 GB RDIMM": (16, 6.6, 66, 2.4),
    "32 GB LRDIMM": (32, 8.7, 87, 3.7),
    "64 GB LRDIMM": (64, 10.2, 102, 6.3),
    "128 GB LRDIMM": (128, 12.7, 127, 10.1),
}
"""GB and W of a DIMM; W and GB/W of a memory-node."""

TABLE_4_WATTS = {
    "8 GB RDIMM": (0.07, 2.6),
    "128 GB LRDIMM": (0.31, 2.1),
}
"""How much more than its 3200 W the system takes, and its speed-up for each watt."""
