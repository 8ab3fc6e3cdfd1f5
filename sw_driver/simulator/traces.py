"""Output files of a simulation: DRAM command traces and waveforms."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from hw.dram.presets import DramPart
from hw.pim.vault.timing import VaultPart
from sw_driver.files import replacing

__all__ = ["is_whole_fst", "merge_dram_traces", "trace_head"]

_FST_NAMES = {4, 6, 7}
"""Block types of the signal hierarchy in FST, one for each compression."""

COLUMNS = "tck,channel,command,bank_group,bank,row,column"


def trace_head(kind: str, part: DramPart | VaultPart, columns: str) -> str:
    """Return the header of a trace: part, geometry and timing in one line, then the columns."""
    description = " ".join(
        f"{name}={value}"
        for values in (asdict(part.geometry), asdict(part.timing))
        for name, value in values.items()
    )
    return f"# nearmem {kind} trace v1 preset={part.name} {description}\n{columns}\n"


def is_whole_fst(path: Path) -> bool:
    """Return True if a waveform is complete: all blocks are whole and the hierarchy is there.

    A block is one byte of type, eight bytes of length that include themselves, and data.
    """
    kinds = []
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        place = 0
        while place + 9 <= size:
            file.seek(place)
            kinds.append(file.read(1)[0])
            place += 1 + int.from_bytes(file.read(8), "big")
    return place == size and bool(_FST_NAMES & {*kinds})


def _rows(path: Path) -> Iterator[tuple[int, str]]:
    with path.open() as lines:
        for line in lines:
            yield int(line.partition(",")[0]), line


def merge_dram_traces(parts: Sequence[Path], target: Path, part: DramPart) -> None:
    """Merge the channels' traces ``parts`` by time into ``target``.

    The first line names the DRAM part, its geometry and its timing, the second the columns.
    ``tck`` counts a channel's clocks from the end of its reset.
    """
    with replacing(target) as part_file, part_file.open("w") as output:
        output.write(trace_head("dram", part, COLUMNS))
        for _, line in heapq.merge(*(_rows(path) for path in parts)):
            output.write(line)
