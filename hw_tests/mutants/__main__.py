"""``python -m hw_tests.mutants``: see whether the tests find faults that are put in on purpose.

python -m hw_tests.mutants                 # 20 mutants, drawn by lot
python -m hw_tests.mutants --seed 7        # those that seed 7 draws
python -m hw_tests.mutants hw/adder-sticky # these alone
python -m hw_tests.mutants --all
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from hw_tests.mutants import ROOT, Mutant, load_mutants

LIMIT_S = 120
"""Processor time of a test with a fault in it, in s; a test that hangs has seen the fault."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Try mutants; return 0 if tests see all of them, 1 if not, 2 for a wrong call."""
    parser = argparse.ArgumentParser(prog="python -m hw_tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants, or areas such as hw")
    parser.add_argument("--count", type=int, default=20, help="mutants that are drawn (20)")
    parser.add_argument("--seed", type=int, help="of the draw; another one each time if left out")
    parser.add_argument("--all", action="store_true", help="try all of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="tries at a time")
    options = parser.parse_args(arguments)
    mutants = load_mutants()
    if options.names:
        known = {mutant.name for mutant in mutants} | {area(mutant) for mutant in mutants}
        if unknown := [name for name in options.names if name not in known]:
            areas = ", ".join(sorted({area(mutant) for mutant in mutants}))
            parser.error(f"no mutant is named {unknown[0]!r}: areas are {areas}")
        mutants = [m for m in mutants if {m.name, area(m)} & {*options.names}]
    elif not options.all:
        seed = options.seed if options.seed is not None else random.randrange(1 << 16)
        mutants = random.Random(seed).sample(mutants, min(options.count, len(mutants)))
        print(f"{len(mutants)} mutants of seed {seed}; again: make mutate SEED={seed}", flush=True)
    if find_spec("torch") is None and any(area(mutant) == "torch" for mutant in mutants):
        mutants = [mutant for mutant in mutants if area(mutant) != "torch"]
        print("PyTorch is not installed (extra 'torch'): its mutants are left out", flush=True)
    tests = sorted({mutant.test for mutant in mutants})
    print(f"without a fault, {len(tests)} tests: ", end="", flush=True)
    if not passes_without_faults(tests, options.jobs):
        return 1
    survivors = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutant, (killed, outcome) in zip(mutants, pool.map(outcome_of, mutants), strict=True):
            print(f"{'killed' if killed else 'ALIVE':<7}{mutant.name:<44} {outcome}", flush=True)
            if not killed:
                survivors.append(mutant)
    for mutant in survivors:
        print(f"\n{mutant.name} in {mutant.file}\n- {mutant.line}\n+ {mutant.becomes}")
        print(f"  again: python -m hw_tests.mutants {mutant.name}")
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} mutants killed")
    return 1 if survivors else 0


def area(mutant: Mutant) -> str:
    """Return the first part of a mutant's name."""
    return mutant.name.partition("/")[0]


def passes_without_faults(tests: Sequence[str], jobs: int) -> bool:
    """Run ``tests`` on the tree as it is; print the log if one does not pass."""
    start = time.monotonic()
    code, log = run_tests(ROOT, ["--numprocesses", str(jobs), "--dist", "loadfile", *tests])
    print(f"{'passed' if code == 0 else 'FAILED'}, {time.monotonic() - start:.0f} s", flush=True)
    if code:
        print(log[-4000:])
    return code == 0


def outcome_of(mutant: Mutant) -> tuple[bool, str]:
    """Try one mutant in a copy of the tree; return whether its test failed, and a remark."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "project"
        copy_tree(root)
        mutant.apply(root)
        code, log = run_tests(root, [mutant.test], limit_s=LIMIT_S)
    took = f"{time.monotonic() - start:.0f} s"
    if code == -signal.SIGKILL:
        return True, f"{took}, ended after {LIMIT_S} s of processor time"
    if code == 1:
        return True, took
    return False, took if code == 0 else f"{took}: pytest ended with {code}: {log[-300:]}"


def copy_tree(root: Path) -> None:
    """Copy the project's files, changed and new ones included, but none that Git ignores."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.split("\0"):
        if name and (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)


def run_tests(
    root: Path, arguments: Sequence[str], limit_s: int = resource.RLIM_INFINITY
) -> tuple[int, str]:
    """Run pytest in the tree at ``root``; return its status and what it printed.

    The status is -9 if it took more processor time than ``limit_s``.
    """
    options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "soak or not soak"]
    command = [sys.executable, "-m", "pytest", *options, *arguments]
    # Builds are kept by their content, so that all copies can share them.
    cache = os.environ.get("NEARMEM_CACHE_DIR", str(ROOT / "build"))
    environment = os.environ | {
        "NEARMEM_CACHE_DIR": cache,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(root),  # for programs that tests start in other folders
    }
    process = subprocess.Popen(
        command, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (limit_s, limit_s))
        log, _ = process.communicate()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, log


if __name__ == "__main__":
    sys.exit(main())
