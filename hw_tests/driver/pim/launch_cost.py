"""``python -m hw_tests.driver.pim.launch_cost PRESET ...``: what starting a work costs.

The smallest work, eight additions on one bank, with pauses of 0 to 63 cycles before it: cycles from
the first write of its descriptor until ``pim_fix`` returns, and until the driver has seen that it
has completed, in RTL and by the cycle model.
"""

from __future__ import annotations

import statistics
import sys

from hw.pim.config import PIM_PRESETS
from sw_driver.pim.backends.cycles import CyclesPim
from sw_driver.pim.backends.rtl import RtlPim
from sw_driver.pim.descriptor import Opcode, StridedTensor, Work
from sw_driver.pim.device import Pim

PAUSES = 64
STEP_CYCLES = 100
"""Between two works, besides the pause; it is no divisor of the time between two refreshes."""


def main(presets: list[str]) -> None:
    """Measures and prints."""
    a, b, result = (StridedTensor(address_bytes=at, strides=(0, 1)) for at in (0, 64, 128))
    work = Work(opcode=Opcode.ADD, a=a, b=b, result=result, rows=1, columns=8)
    for preset in presets:
        for backend in (RtlPim, CyclesPim):
            measured: dict[str, list[int]] = {"offered": [], "seen": [], "the work itself": []}
            with Pim(backend(PIM_PRESETS[preset])) as device:
                for pause in range(PAUSES):
                    device.transport.advance(STEP_CYCLES + pause)
                    begun = device.transport.cycles()
                    number = device.pim_fix([0], work, result, 1)
                    measured["offered"].append(device.transport.cycles() - begun)
                    device.wait(number)
                    measured["seen"].append(device.transport.cycles() - begun)
                    measured["the work itself"].append(device.counters(number).cycles or 0)
            for name, took in measured.items():
                middle = statistics.median(took)
                print(
                    f"{preset} {backend.name}: {name} {middle:g}, {min(took)} to {max(took)} cycles"
                )


if __name__ == "__main__":
    main(sys.argv[1:] or ["tiny"])
