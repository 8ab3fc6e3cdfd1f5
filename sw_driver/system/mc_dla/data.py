"""Figures of the paper that are not judged, each with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from ..reproduction import Datum, data

__all__ = ["DATA"]

DATA: Sequence[Datum] = (
    *data(
        "II-C",
        "x",
        "Moving at 92 % of HC-DLA's rate throughout contradicts that HC-DLA is only 1.32 to 1.38 "
        "times as fast as DC-DLA, which moves at an eighth of that rate.",
        {"HC-DLA: largest mean of a socket's 300 GB/s": 0.92},
    ),
    *data(
        "V-A",
        "steps",
        "88 % less overlaying needs 9 GB/s over PCIe for each device, and a switch that two "
        "devices share has at most 7.9.",
        {"DC-DLA: steps with overlaying longest, of 16": 14},
        digits=0,
    ),
    *data(
        "V-B",
        "x",
        "It contradicts the speeds of (B) and (S): HC-DLA moves over more links than (S), and what "
        "its collectives can add is less than the difference.",
        {"HC-DLA beside DC-DLA, data-parallel": 1.32},
    ),
    *data(
        "V-B",
        "x",
        "It is not said whether this is data-parallel or model-parallel training, or a mean.",
        {"(B) beside DC-DLA whose traffic is compressed 2.6 times": 2.3},
    ),
    *data(
        "V-D",
        "x",
        "One device moves eight times as much as each of eight, so it would need 26.7 GB/s, and "
        "PCIe 3.0 x16 has 15.75.",
        {"DC-DLA with 4 devices, of one": 1.3, "DC-DLA with 8 devices, of one": 2.7},
    ),
    *data(
        "III-A",
        "GB",
        "It is an input: ten DIMMs by their data sheet.",
        {"smallest memory-node": 80, "largest memory-node": 1300},
        digits=0,
    ),
)
