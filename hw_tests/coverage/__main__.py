"""``python -m hw_tests.coverage``: which lines, branches and bits of the hardware benches reach.

python -m hw_tests.coverage                              # all benches
python -m hw_tests.coverage hw_tests/stream/test_fifo.py # these alone, without a goal
python -m hw_tests.coverage --again                      # the page alone, of the last run
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

from hw_tests.coverage.points import FOLDER, HW, merged
from hw_tests.coverage.table import GOALS_PERCENT, Reached, check_gaps, load_gaps, reached
from sw_driver.report import Table

ROOT = HW.parent
PLACE = ROOT / "build" / "coverage"
GAPS = Path(__file__).with_name("gaps.toml")


def main(arguments: Sequence[str] | None = None) -> int:
    """Count points, write a page; return 0 if the goals are met, 1 if not or if a bench fails."""
    parser = argparse.ArgumentParser(prog="python -m hw_tests.coverage", description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE", help="test files; all benches if none")
    parser.add_argument("--again", action="store_true", help="write the page of the last run again")
    parser.add_argument("--jobs", default="auto", help="benches at a time")
    options = parser.parse_args(arguments)
    points = PLACE / "points"
    code = 0
    if not options.again:
        shutil.rmtree(points, ignore_errors=True)
        code = run_benches(options.files or bench_files(), options.jobs, points)
    table = reached(merged(points))
    argued, errors = check_gaps(table, load_gaps(GAPS))
    shares = {kind: share_percent(table, kind, argued) for kind in GOALS_PERCENT}
    page = PLACE / "index.html"
    page.write_text(page_of(table, argued))
    print(files_table(table).markdown)
    for kind, percent in shares.items():
        goal = GOALS_PERCENT[kind]
        plain = share_percent(table, kind, set())
        print(f"{kind}: {percent:.1f} %, goal {goal} %; {plain:.1f} % with {len(argued)} places")
    print(page)
    if options.files:
        return code
    short = [kind for kind, percent in shares.items() if percent < GOALS_PERCENT[kind]]
    errors += [f"{kind} miss their goal: see the page, reach or argue them" for kind in short]
    print(*errors, sep="\n", file=sys.stderr)
    return int(bool(code or errors))


def bench_files() -> list[str]:
    """Return the test files that run a bench, but for those of benches and coverage themselves."""
    tests = sorted((ROOT / "hw_tests").rglob("test_*.py"))
    return [
        file.relative_to(ROOT).as_posix()
        for file in tests
        if re.search(r"\brun_bench\(|_bench\"$", file.read_text(), re.MULTILINE)
        if file.name not in ("test_bench.py", "test_coverage.py")
    ]


def run_benches(files: Sequence[str], jobs: str, points: Path) -> int:
    """Run test files so that their benches count points; return pytest's status."""
    environment = {
        **os.environ,
        FOLDER: str(points),
        "NEARMEM_CACHE_DIR": str(PLACE / "cache"),
    }
    command = ["-m", "pytest", "-q", "--numprocesses", jobs, "--dist", "loadfile", *files]
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=environment).returncode


def share_percent(
    table: dict[str, dict[str, Reached]], kind: str, argued: set[tuple[str, int]]
) -> float:
    """Return the share of points reached, without missed ones at ``argued`` places."""
    hit = sum(len(kinds[kind].hit) for kinds in table.values())
    missed = sum(
        (file, number) not in argued
        for file, kinds in table.items()
        for number, _ in kinds[kind].missed
    )
    return 100 * hit / max(hit + missed, 1)


def files_table(table: dict[str, dict[str, Reached]]) -> Table:
    """Return a table with a row for each file."""

    def cell(points: Reached) -> str:
        total = len(points.hit) + len(points.missed)
        return f"{len(points.hit)} of {total}" if total else "-"

    return Table(
        headings=["file", "lines", "branches", "toggles"],
        rows=[[file, *map(cell, kinds.values())] for file, kinds in table.items()],
    )


_STYLE = """body{font:15px sans-serif;margin:2em} td,th{padding:1px 12px;text-align:right}
td:first-child,th:first-child{text-align:left} pre{margin:0}
.argued{color:#777} .missed{color:#b00}"""


def page_of(table: dict[str, dict[str, Reached]], argued: set[tuple[str, int]]) -> str:
    """Return an HTML page: the table by file, then what is missed in each, with its source."""
    rows = files_table(table)
    body = ["<h1>Coverage of the hardware</h1><table><tr>"]
    body += [f"<th>{heading}</th>" for heading in rows.headings]
    for row in rows.rows:
        body.append(f'</tr><tr><td><a href="#{row[0]}">{row[0]}</a></td>')
        body += [f"<td>{cell}</td>" for cell in row[1:]]
    body.append("</tr></table>")
    for file, kinds in table.items():
        lines = (ROOT / file).read_text().splitlines()
        missed = sorted({*kinds["lines"].missed, *kinds["branches"].missed})
        if missed:
            body.append(f'<h2 id="{file}">{file}</h2>')
        for number, outcome in missed:
            state = "argued" if (file, number) in argued else "missed"
            text = escape(f"{number:5} {outcome:<12} {lines[number - 1]}")
            body.append(f'<pre class="{state}">{text}</pre>')
    head = f"<!doctype html><meta charset=utf-8><title>Coverage</title><style>{_STYLE}</style>"
    return head + "\n".join(body)


if __name__ == "__main__":
    sys.exit(main())
