"""``python -m hw_tests.formal``: prove the claims, see twins fail and covers reached.

python -m hw_tests.formal                 # all of them
python -m hw_tests.formal fifo-4 fifo-8   # these alone
python -m hw_tests.formal --table         # and print the table of docs/formal.md
python -m hw_tests.formal --mutants       # or which of make mutate's faults the claims see
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from hw_tests.formal import PROPERTIES, Proof, load_proofs
from hw_tests.mutants import ROOT, load_mutants


class Result(NamedTuple):
    """Outcome of one check."""

    name: str
    good: bool
    text: str
    seconds: float = 0
    """Processor time."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if all is as it should be, 1 if not, 2 for a wrong call."""
    parser = argparse.ArgumentParser(prog="python -m hw_tests.formal", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="proofs; all if left out")
    parser.add_argument("--folder", type=Path, default=PROPERTIES, help="of files of properties")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time")
    parser.add_argument("--no-twins", action="store_true", help="proofs and covers alone")
    parser.add_argument("--table", action="store_true", help="print the table of the results")
    parser.add_argument("--mutants", action="store_true", help="try faults of hw_tests/mutants")
    options = parser.parse_args(arguments)
    if find_spec("pyosys") is None:
        print("pyosys is missing, with which properties are proven: pip install -e '.[formal]'")
        return 2
    proofs: dict[str, tuple[Path, Proof]] = {}
    failed = []
    for file in sorted(options.folder.glob("*.py")):
        try:
            proofs |= {name: (file, proof) for name, proof in load_proofs(file).items()}
        except Exception as error:
            failed.append(Result(file.stem, False, f"is no file of properties: {error!r}"))
            print(f"FAILED {file.stem}: {failed[-1].text}")
    if not failed and (unknown := [name for name in options.names if name not in proofs]):
        parser.error(f"no proof is named {unknown[0]!r}: there are {', '.join(proofs)}")
    chosen = [proofs[name] for name in options.names or proofs if name in proofs]
    if options.mutants:
        return try_mutants(chosen)
    count = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = [pool.submit(prove, file, proof) for file, proof in chosen]
        twins = [
            pool.submit(try_twin, file, proof, claim)
            for file, proof in chosen
            for claim in ([] if options.no_twins else proof.twins)
        ]
        for run in [*runs, *twins]:
            for result in run.result():
                count += 1
                word = "good" if result.good else "FAILED"
                print(f"{word:<7}{result.name:<50} {result.seconds:6.1f} s  {result.text}")
                sys.stdout.flush()
                failed += [] if result.good else [result]
    print("\n".join(f"FAILED {result.name}: {result.text}" for result in failed))
    print(f"{count} checks of {len(chosen)} proofs, {len(failed)} failed")
    if options.table:
        first: dict[str, str] = {}
        for (_, proof), run in zip(chosen, runs, strict=True):
            name = first.setdefault(proof.reductions, proof.name)
            print(
                row(proof, run.result(), proof.reductions if name == proof.name else f"as `{name}`")
            )
    return 1 if failed else 0


def row(proof: Proof, results: Sequence[Result], reductions: str) -> str:
    """Return the row of a proof in the documentation's table."""
    engine = proof.engine.partition(" ")[0]
    engine = engine if proof.bound is None else f"bmc3, {proof.bound} cycles"
    claims = ", ".join(f"`{name}`" for name in proof.names("assert"))
    seconds = f"{results[0].seconds:.1f}"
    return f"| `{proof.name}` | {claims} | {engine} | {seconds} | {reductions} |"


def prove(file: Path, proof: Proof) -> list[Result]:
    """Prove the claims of ``proof``, and reach its covers."""
    with tempfile.TemporaryDirectory() as folder:
        if broken := write_models(file, proof, ROOT, Path(folder)):
            return [Result(proof.name, False, f"does not compile: {broken}")]
        engine = proof.engine if proof.bound is None else f"bmc3 -F {proof.bound}"
        # `ind` is the step alone, and scorr would take lemmas from it; `sat` proves what scorr has
        # left without registers.
        step = engine.startswith("ind")
        engine = f"bmc3 -F 8; {engine}" if step else f"scorr; {engine}; sat"
        results = [solve(proof, Path(folder), "claims", f"orpos; {engine}", proof.name)]
        if not results[0].good and "cycle" in results[0].text:
            # Which of them is it?
            alone = (solve(proof, Path(folder), n, f"bmc3 -F {proof.reach}") for n in proof.twins)
            results += [one for one in alone if one.text.startswith("reached")][:1]
        for name in proof.names("cover"):
            result = solve(proof, Path(folder), name, f"bmc3 -F {proof.reach}")
            reached = result.text.startswith("reached")
            text = result.text if reached else f"not reached, {result.text}"
            results.append(result._replace(good=reached, text=text))
        return results


def try_twin(file: Path, proof: Proof, claim: str) -> list[Result]:
    """See that ``claim`` fails with the fault of its twin."""
    name = f"{proof.name} twin of {claim}"
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "project"
        for part in ("hw", "hw_tests/formal", "hw_tests/mutants"):
            shutil.copytree(ROOT / part, root / part)
        shutil.copy2(ROOT / "hw_tests/__init__.py", root / "hw_tests")
        try:
            proof.twins[claim].apply(root)
        except (OSError, ValueError) as error:
            return [Result(name, False, str(error))]
        if broken := write_models(file, proof, root, Path(temporary)):
            return [Result(name, False, f"does not compile: {broken}")]
        result = solve(proof, Path(temporary), claim, f"bmc3 -F {proof.reach}", name)
        fails = result.text.startswith("reached")
        text = result.text.replace("reached", "fails") if fails else f"holds, {result.text}"
        return [result._replace(good=fails, text=text)]


def try_mutants(chosen: Sequence[tuple[Path, Proof]]) -> int:
    """Print which claims see the mutants in files that have one of their twins."""
    seen = []
    for mutant in load_mutants():
        runs = [
            (file, replace(proof, limit_s=10, twins=dict.fromkeys(proof.twins, mutant)), claim)
            for file, proof in chosen
            if mutant.file in {fault.file for fault in proof.twins.values()}
            for claim in proof.twins
        ]
        if runs:
            results = (try_twin(*run)[0] for run in runs)
            first = next((result.name for result in results if result.good), "")
            print(f"{mutant.name:<50} {first.replace(' twin of', '') or 'not seen'}", flush=True)
            seen.append(first)
    print(f"{len(seen)} mutants, {len([*filter(None, seen)])} seen")
    return 0


def write_models(file: Path, proof: Proof, root: Path, folder: Path) -> str:
    """Write the models of a proof from the source at ``root``; return what went wrong."""
    command = [sys.executable, "-m", "hw_tests.formal.model", file, proof.name, folder]
    code, log, _ = run_limited(command, root, folder / "model.log", 60)
    lines = [line for line in log.splitlines() if "rror" in line or "SIG" in line]
    return "" if code == 0 else (lines or [f"exit status {code}"])[-1]


def solve(proof: Proof, folder: Path, model: str, commands: str, name: str = "") -> Result:
    """Run ``commands`` of yosys-abc on a model."""
    import pyosys

    tool = Path(pyosys.__file__).parent / "yosys-abc"
    script = f"read_aiger {folder}/{model}.aig; fold; {commands}"  # folds assumptions in
    log_file = folder / f"{model}.log"
    code, log, seconds = run_limited([tool, "-c", script], folder, log_file, proof.limit_s)
    name = name or f"{proof.name} {model}"
    if match := re.search(r"was asserted in frame (\d+)", log):
        return Result(name, False, f"reached in cycle {match[1]}", seconds)
    if re.search(r"Property proved|Networks are equivalent|UNSATISFIABLE", log):
        return Result(name, True, "proven", seconds)
    if match := re.search(r"No output asserted in (\d+) frames", log):
        return Result(name, int(match[1]) == proof.bound, f"holds for {match[1]} cycles", seconds)
    if code < 0:
        return Result(name, False, f"timeout, more than {proof.limit_s} s", seconds)
    return Result(name, False, f"undecided: {log.strip()[-200:]}", seconds)


def run_limited(
    command: Sequence[object], where: Path, log: Path, limit_s: int
) -> tuple[int, str, float]:
    """Run a command; return its status, what it wrote and its processor time."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*map(str, command)], cwd=where, stdout=file, stderr=subprocess.STDOUT
        )
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (limit_s, limit_s))
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, log.read_text(errors="replace"), usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(main())
