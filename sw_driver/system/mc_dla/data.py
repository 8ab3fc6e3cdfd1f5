"""Figures of the paper that are not judged, each with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from ..reproduction import Datum

__all__ = ["DATA"]

DATA: Sequence[Datum] = ()
