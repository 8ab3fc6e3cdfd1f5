"""Figures of the paper that are not judged, each with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from ..reproduction import Datum, data

__all__ = ["DATA"]

_INPUT = "It is an input of the simulation."

DATA: Sequence[Datum] = (
    *data(
        "Table 4",
        "GB",
        "The paper's sizes of states are 8 bytes a parameter but for this one, as 8 bytes of 2.7 "
        "billion are 21.6 GB.",
        {"states of gpt3-2.7b": 20.2},
        digits=1,
    ),
    *data(
        "Table 5",
        "MP/s",
        _INPUT,
        {
            "CPU, one core, theoretical": 228.57,
            "CPU, one core, measured": 140.32,
            "module, theoretical": 914.29,
        },
    ),
    *data(
        "3.3",
        "cycles",
        "Which operators the paper's unit has is not said, and ours is another design.",
        {"latency of a unit": 128},
        digits=0,
    ),
    *data(
        "3.3",
        "",
        "Which operators the paper's unit has is not said, and ours is another design.",
        {"DSPs of a unit": 31},
        digits=0,
    ),
)
