"""How far data has to go: files and calls that a small copy and a small step pass."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

from hw.pim.config import configure
from sw_driver.axdimm import Axdimm
from sw_driver.pim.backends import open_pim
from sw_driver.pim.device import Pim
from sw_driver.simulator.sources import ROOT

PACKAGES = tuple(f"{ROOT / package}/" for package in ("sw_driver", "hw", "golden"))


def passed(call: Callable[[], object]) -> tuple[int, int]:
    """Files of the project that a call passes, and calls of their functions, generators resumed
    included. It is made once before, so that nothing is counted that is done only once."""
    call()
    files: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGES):
            files.append(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return len({Path(file) for file in files}), len(files)


def copy_to_the_module() -> tuple[int, int]:
    with Axdimm("golden:tiny") as device:
        pointer, data = device.MallocAxdimm(64, 0), np.zeros(64, np.uint8)
        return passed(lambda: device.MemcpyHost2Axdimm(pointer, data, 64))


def step_of_adam() -> tuple[int, int]:
    with Axdimm("golden:tiny") as device:
        p, m, v, g = (device.MallocAxdimm(4 * 64, 0) for _ in range(4))
        device.SetArbiterAcc(0)
        settings = (1e-3, 0.9, 0.999, 1e-8, 0.0, 1)
        return passed(lambda: device.RunAdamOnAxdimmAsync(p, m, v, g, 64, *settings, 0).wait())


def write_to_the_pim() -> tuple[int, int]:
    with Pim(open_pim("golden", configure("tiny"))) as device:
        data = np.zeros(64, np.uint8)
        return passed(lambda: device.write_memory(0, data))


@pytest.mark.parametrize(
    ("way", "files", "calls"),
    [(copy_to_the_module, 9, 64), (step_of_adam, 18, 850), (write_to_the_pim, 9, 47)],
)
def test_the_way_does_not_grow(way: Callable[[], tuple[int, int]], files: int, calls: int) -> None:
    found_files, found_calls = way()
    assert found_files <= files
    assert found_calls <= calls
