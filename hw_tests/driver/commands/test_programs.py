"""Whole programs: the docs' example and its time line, and programs killed and started again."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from runpy import run_path
from typing import NamedTuple

import numpy as np
import pytest

from hw_tests.driver.trace_reader import Trace, assert_sound, overlap, read_trace

ROOT = Path(__file__).parents[3]
SECONDS = 60


class Run(NamedTuple):
    figures: tuple[float, float, float]
    printed: str
    trace: Trace


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """The example on each backend that has a clock."""
    main = run_path(str(ROOT / "docs" / "examples" / "double_buffering.py"))["main"]
    runs = {}
    for backend in ("cycles", "rtl"):
        path = tmp_path_factory.mktemp(backend) / "trace.json"
        with redirect_stdout(StringIO()) as printed:
            figures = main(backend, path)
        runs[backend] = Run(figures, printed.getvalue(), read_trace(path))
    return runs


@pytest.mark.parametrize("backend", ["cycles", "rtl"])
def test_one_channel_is_fed_while_the_other_updates(example: dict[str, Run], backend: str) -> None:
    (one_by_one, _, overlapped), printed, trace = example[backend]
    assert "stand-in" in printed
    assert_sound(trace)
    assert trace.metadata["backend"] == backend
    assert list(trace.tracks) == ["channel 0", "channel 1", "host link", "GPU 0 stand-in"]
    for channel in ("channel 0", "channel 1"):
        categories = [each.category for each in trace.tracks[channel]]
        # Two steps of four layers: a copy in, a run and a copy out of each.
        assert categories.count("kernel") == 8
        assert categories.count("copy") == 16
    # In the second step the one channel's kernel works while the other's copies have the link.
    half_ns = max(each.end_ns for each in trace.tracks["host link"]) / 2
    for channel, other in (("channel 0", "channel 1"), ("channel 1", "channel 0")):
        shared_ns = overlap(trace, channel, other, category="kernel", other_category="copy")
        assert shared_ns > 200_000
        assert shared_ns < half_ns
    assert 1.4 < one_by_one / overlapped < 2


def test_both_backends_tell_the_same_time(example: dict[str, Run]) -> None:
    cycles, rtl = (np.array(example[backend].figures) for backend in ("cycles", "rtl"))
    one_by_one, kernels, overlapped = cycles / rtl
    assert one_by_one == pytest.approx(1, abs=0.002)
    assert kernels == pytest.approx(1, abs=0.001)
    assert overlapped == pytest.approx(1, abs=0.002)


PROGRAM = """
import sys
import numpy as np
from sw_driver.axdimm import Axdimm

folder, device = sys.argv[1:]
n = 100_000
with Axdimm(device, timeline=folder + "/trace.json", modes="wait") as device:
    for name in ("one", "two"):
        device.RegisterStorage(f"{folder}/{name}", capacity_bytes=8 << 20)
    stored = device.MallocNvme(4 * n)
    pointers = {name: device.MallocAxdimm(4 * n, 0) for name in "pmvg"}
    print("open", flush=True)
    for step in range(1, 61):
        values = np.full(n, step, np.uint32)
        device.MemcpyHost2Nvme(stored, values, 4 * n)
        print("stored", step, flush=True)
        device.MemcpyNvme2Axdimm(pointers["g"], stored, 4 * n)
        device.RunAdamOnAxdimmAsync(**pointers, nparams=n, lr=0.1, beta1=0.9, beta2=0.9, eps=1.0,
                                    weight_decay=0.0, t=step, channel=0).wait()
print("closed", flush=True)
"""


def test_killed_programs_leave_nothing_behind(tmp_path: Path) -> None:
    rng = random.Random(5)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), "cycles"]
    killed = 0
    for _ in range(5):
        # Of a program that was over before it was killed.
        (tmp_path / "trace.json").unlink(missing_ok=True)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        ) as program:
            assert program.stdout is not None
            assert program.stderr is not None
            # It opens although the one before was killed with everything open.
            assert program.stdout.readline() == "open\n", program.stderr.read()
            time.sleep(rng.random() * 0.3)
            program.kill()
            rest = program.stdout.read()
            killed += program.wait(SECONDS) == -signal.SIGKILL
        steps = [int(line.split()[1]) for line in rest.splitlines() if line.startswith("stored")]
        # What a copy had stored is in the files, or what the one in progress was storing.
        words = np.concatenate([np.fromfile(tmp_path / name, np.uint32) for name in ("one", "two")])
        last = max(steps, default=0)
        found = {int(word) for word in np.unique(words)} - {0}
        assert found <= {*range(1, 61)}
        if steps:
            assert found & {last, last + 1}
        assert not (tmp_path / "trace.json").exists() or "closed" in rest
    assert killed
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=SECONDS)
    assert done.stdout.endswith("closed\n"), done.stderr
    assert_sound(read_trace(tmp_path / "trace.json"))


def test_a_program_that_forgets_to_close_writes_its_time_line(tmp_path: Path) -> None:
    program = """
import sys
from sw_driver.axdimm import Axdimm
device = Axdimm("cycles:tiny", timeline=sys.argv[1])
pointer = device.MallocAxdimm(64, 0)
device.MemcpyHost2Axdimm(pointer, bytes(64), 64)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "trace.json")]
    subprocess.run(command, check=True, cwd=ROOT, timeout=SECONDS)
    trace = read_trace(tmp_path / "trace.json")
    assert_sound(trace)
    assert len(trace.tracks["host link"]) == 1
