"""What the paper says of its results in words (V-A to V-D), for its figures are pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ..reproduction import Cell
from .designs import DC, DESIGNS, DEVICES_OF_A_SOCKET, HC, ORACLE, B, L, S
from .runs import Runs

__all__ = ["BAND", "B_MEANS", "CLAIMS", "S_LEAST", "Claim", "add_claims"]

BAND = 0.10
"""Of the paper's means."""
B_MEANS = {"data": 3.5, "model": 2.1}
"""How fast MC-DLA(B) is beside DC-DLA, by what is split."""
S_LEAST = 1 - 0.24
"""How fast MC-DLA(S) is beside (B) at worst."""
_SOCKET_GB_PER_S = 300
"""Of a socket's memory, in HC-DLA (IV)."""

_Ours = Callable[[Runs], float]


@dataclass(frozen=True)
class Claim:
    """A figure of the paper's, the row and column of a table where it belongs, and what ours is."""

    row: str
    column: str
    paper: float | None
    ours: _Ours
    band: float | None = BAND
    mark: str = "predicted"
    digits: int = 2

    def cell(self, runs: Runs, mark: str = "") -> Cell:
        """Ours beside the paper's, with another mark if one is given."""
        how = {"mark": mark or self.mark, "band": self.band, "digits": self.digits}
        return Cell(ours=self.ours(runs), paper=self.paper, **how)  # type: ignore[arg-type]


def add_claims(rows: list[dict[str, Any]], by: str, claims: Sequence[Claim], runs: Runs) -> None:
    """Puts each claim into the row that has its name in the column ``by``, or into a new one."""
    for claim in claims:
        found = [each for each in rows if each[by] == claim.row]
        if not found:
            rows.append({by: claim.row})
        (found or rows)[-1][claim.column] = claim.cell(runs)


def _speed(design: str, mode: str = "", over: str = DC) -> _Ours:
    return lambda runs: runs.speedup(design, mode, over)


def _extreme(which: Callable[[list[float]], float], design: str, of: str) -> _Ours:
    return lambda runs: which(runs.shares(design, of))


def _times(part: str) -> _Ours:
    """What HC-DLA takes for a part of a step, of what DC-DLA takes."""
    return lambda runs: fmean(
        getattr(runs.result(HC, *each), part) / getattr(runs.result(DC, *each), part)
        for each in runs.each()
    )


def _bound(runs: Runs) -> float:
    """Steps of DC-DLA in which overlaying takes longest."""
    steps = [runs.result(DC, *each) for each in runs.each()]
    return sum(each.overlay_ns > max(each.compute_ns, each.sync_ns) for each in steps)


def _most_of_socket(runs: Runs) -> float:
    """Of the rate of a socket's memory, what HC-DLA uses on the mean of a step."""
    steps = [runs.result(HC, *each) for each in runs.each()]
    moved = (DEVICES_OF_A_SOCKET * each.overlay_bytes / each.total_ns for each in steps)
    return max(each / _SOCKET_GB_PER_S for each in moved)


def _in_order(runs: Runs) -> float:
    speeds = [runs.speedup(design) for design in DESIGNS]
    return float(speeds == sorted(speeds))


_DATA, _MODEL = (_speed(B, mode) for mode in B_MEANS)

CLAIMS = {
    "figure11": (
        Claim("HC-DLA: overlaying, times DC-DLA's", "mean", 1 - 0.88, _times("overlay_ns"), None),
        Claim(
            "HC-DLA: overlaying, less by", "mean", 0.88, lambda runs: 1 - _times("overlay_ns")(runs)
        ),
        Claim("HC-DLA: synchronization, times DC-DLA's", "mean", 1 + 0.90, _times("sync_ns")),
        Claim("DC-DLA: steps with overlaying longest, of 16", "mean", 14, _bound, None, digits=0),
    ),
    "figure12": (
        Claim(
            f"HC-DLA: largest mean, of {_SOCKET_GB_PER_S} GB/s", "mean", 0.92, _most_of_socket, None
        ),
    ),
    "figure13": (
        Claim("mean, data-parallel", B, B_MEANS["data"], _DATA, mark="calibrated"),
        Claim("mean, data-parallel", HC, 1.32, _speed(HC, "data"), None),
        Claim("mean, model-parallel", B, B_MEANS["model"], _MODEL, mark="calibrated"),
        Claim("mean, model-parallel", HC, 1.38, _speed(HC, "model")),
        Claim(
            "arithmetic mean of the two means",
            B,
            2.8,
            lambda runs: fmean((_DATA(runs), _MODEL(runs))),
            mark="calibrated",
        ),
        Claim("(B) of the oracle: mean", B, 0.95, _speed(B, over=ORACLE)),
        Claim("(B) of the oracle: least", B, 0.84, _extreme(min, B, ORACLE)),
        Claim("(B) of the oracle: most", B, 0.99, _extreme(max, B, ORACLE)),
        Claim("of (B): mean", S, 1 - 0.14, _speed(S, over=B)),
        Claim("of (B): mean", L, 0.96, _speed(L, over=B)),
        Claim("of (B): least", S, S_LEAST, _extreme(min, S, B), mark="calibrated"),
        Claim("of (B): least", L, None, _extreme(min, L, B), None),
        Claim("designs in the paper's order, by the mean of both", B, 1, _in_order, 0, digits=0),
    ),
    "choices": (
        Claim("", "(B), data-parallel", B_MEANS["data"], _DATA, None, "calibrated"),
        Claim("", "(B), model-parallel", B_MEANS["model"], _MODEL, None, "calibrated"),
        Claim("", "(B) of the oracle", 0.95, _speed(B, over=ORACLE), None),
        Claim("", "(L) of (B)", 0.96, _speed(L, over=B), None),
        Claim("", "(S) of (B)", 1 - 0.14, _speed(S, over=B), None),
        Claim("", "(S) of (B), least", S_LEAST, _extreme(min, S, B), None, "calibrated"),
    ),
}
"""By the experiment. Those of the choices are a row for each choice, calibrated with ours."""
