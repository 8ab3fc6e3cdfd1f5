"""Draws the pictures of the documentation: ``make figures``.

Block diagrams come from ``diagrams.py``. Plots show what the cycle model finds now, and, of what
takes minutes, the figures in ``measured.json``, which ``--measure`` measures again. The same
sources give the same files.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from diagrams import DIAGRAMS

from sw_driver.cli import interruptible
from sw_driver.files import write_whole

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="make figures", description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE.parent / "pictures", metavar="DIR")
    parser.add_argument("--diagrams", action="store_true", help="only the block diagrams")
    parser.add_argument(
        "--measure",
        nargs="*",
        metavar="WHAT",
        help="measure again what takes minutes: what is named of measured.json, or all of it",
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, draw in DIAGRAMS.items():
        path = arguments.out / f"{name}.svg"
        write_whole(path, str(draw()))
        print(path)
    if not arguments.diagrams:
        from plots import MEASURED, write_plots

        measure = arguments.measure
        if measure is not None and not {*measure} <= {*MEASURED}:
            parser.error(f"--measure {' '.join(measure)}: expected some of {' '.join(MEASURED)}")
        measure = [*MEASURED] if measure == [] else measure or []
        for path in write_plots(arguments.out, HERE / "measured.json", measure=measure):
            print(path)
    return 0


if __name__ == "__main__":  # the cycle model's processes import this file, too
    sys.exit(interruptible(main))
