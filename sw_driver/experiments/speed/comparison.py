"""The same kernel in other simulations, which are run by the development part of the project."""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["ComparisonError", "compare", "missing"]

_MODULE = "hw_tests.speed"
_NEEDED = ("cocotb", "cocotbext")

_ROOT = Path(__file__).parents[3]
"""The project's folder, unless only the packages were installed."""


class ComparisonError(RuntimeError):
    """A simulation to compare with failed."""


def missing() -> list[str]:
    """What a comparison needs and is not there: packages, or the folder with the tests."""
    tests = [] if (_ROOT / "hw_tests").is_dir() else ["the project's folder with hw_tests"]
    return tests + [name for name in _NEEDED if importlib.util.find_spec(name) is None]


def compare(
    preset: str,
    driven: dict[str, Any],
    *,
    repetitions: int,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> list[dict[str, Any]]:
    """Runs the preset's kernel in each of the other simulations, one after the other.

    ``driven`` are the figures of :func:`sw_driver.experiments.speed.driven.measure_driven`, from
    the same run of the command. Of each simulation: ``name``, ``parameters`` and ``fabric_cycles``
    of a repetition, ``repetitions``, the median ``fabric_cycles_per_host_second``, and how many
    times faster a channel is through the driver (``ratio_one_channel``, either on one core) and all
    channels together are (``ratio``). ``progress`` is told the name of the simulation that began or
    ended, how many are done, and of how many. Raises :class:`ComparisonError`.
    """
    command = [sys.executable, "-m", _MODULE, "--config", preset]
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    rows = []
    total = 0
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [*command, "--repetitions", str(repetitions)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            message = json.loads(line)
            if "total" in message:
                total = message["total"]
            else:
                rows.append(_row(message, driven))
            progress(message["name"], len(rows), total)
        status = process.wait()
        if status:
            errors.seek(0)
            tail = " | ".join(errors.read().strip().splitlines()[-3:])
            raise ComparisonError(f"'{' '.join(command[1:])}' failed: {tail}")
    return rows


def _row(message: dict[str, Any], driven: dict[str, Any]) -> dict[str, Any]:
    times = message["host_seconds"]
    speed = statistics.median(message["fabric_cycles"] / seconds for seconds in times)
    return {
        "name": message["name"],
        "parameters": message["parameters"],
        "fabric_cycles": message["fabric_cycles"],
        "repetitions": len(times),
        "fabric_cycles_per_host_second": speed,
        "ratio_one_channel": driven["one_channel_fabric_cycles_per_host_second"] / speed,
        "ratio": driven["fabric_cycles_per_host_second"] / speed,
    }
