"""``python -m hw_tests.driver.pim.long_sums [rtl]``: what cutting long sums into pieces brings.

By the cycle model: cycles of one work, and of what ``split`` makes of it from the first offer
until the last is seen to have completed, with the shares of all adders and of 1,024 bytes a cycle
if each operand is read once. With ``rtl`` four shapes in RTL beside the model; the memory must be
the same bit for bit, and the result that of the sum as one work.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

from hw.pim.config import PIM_PRESETS, PimConfig
from sw_driver.pim.backends.cycles import CyclesPim
from sw_driver.pim.backends.golden import GoldenPim
from sw_driver.pim.backends.rtl import RtlPim
from sw_driver.pim.descriptor import ELEMENT_BYTES, Opcode, Work
from sw_driver.pim.device import Pim
from sw_driver.pim.placing import StackMemory, work_on
from sw_driver.pim.reductions import split

BY_MODEL = [
    *((Opcode.SUM, 1, length) for length in (10_000, 1 << 16, 1 << 20, 1 << 22)),
    *((Opcode.SUM, *shape) for shape in ((96, 12_100), (64, 50_176), (16, 4_096), (256, 256))),
    *((Opcode.SUM, *shape) for shape in ((3_072, 1_024), (1 << 16, 16))),
    *((Opcode.DOT, 1, length) for length in (10_000, 1 << 16, 1 << 20, 1 << 22)),
    *((Opcode.DOT, *shape) for shape in ((16, 1 << 16), (256, 256), (1_000, 1_000), (1 << 16, 16))),
    *((Opcode.MATVEC, *shape) for shape in ((1, 1 << 16), (16, 1 << 16), (64, 1 << 14))),
    *((Opcode.MATVEC, *shape) for shape in ((256, 256), (100, 100), (1_024, 1_024))),
    *((Opcode.MATVEC, *shape) for shape in ((4_096, 1_024), (1 << 16, 16))),
]
IN_RTL = [
    (Opcode.SUM, 1, 1 << 16),
    (Opcode.SUM, 96, 1_000),
    (Opcode.DOT, 3, 10_001),
    (Opcode.MATVEC, 16, 4_096),
]
IDLE_CYCLES = 500
"""Before the first offer."""


def main(rtl: bool) -> None:
    """Measures and prints, a line for each shape."""
    config = replace(PIM_PRESETS["paper"], bank_bytes=1 << 21)
    for opcode, rows, length in IN_RTL if rtl else BY_MODEL:
        memory = StackMemory(config)
        whole = _work(memory, opcode, rows, length)
        works = split(whole, config, lambda size, on=memory: on.place("", (size,)).address_bytes)
        name = f"{opcode.name} {rows:,} x {length:,}"
        if rtl:
            end = memory.place("", (1,)).address_bytes
            print(f"{name}, {len(works)} works: {_compared(config, whole, works, end)}", flush=True)
            continue
        one, cycles = (
            _run(CyclesPim(config, computes=False), works_run)[0] for works_run in ([whole], works)
        )
        read = rows * length * (2 if opcode == Opcode.DOT else 1)
        moved_bytes = ELEMENT_BYTES * (read + rows + (length if opcode == Opcode.MATVEC else 0))
        adders = rows * (length - 1) / sum(config.placement.adders) / cycles
        print(
            f"{name}: {one:,} cycles as one work, {cycles:,} as {len(works)}, {adders:.1%} of the "
            f"adders, {moved_bytes / 1024 / cycles:.1%} of the bandwidth",
            flush=True,
        )


def _work(memory: StackMemory, opcode: Opcode, rows: int, length: int) -> Work:
    a = memory.place("a", (rows, length))
    result = memory.place("result", (rows,))
    b = memory.place("b", (rows if opcode == Opcode.DOT else 1, length))
    if opcode == Opcode.SUM:
        return work_on(opcode, a=a, result=result)
    if opcode == Opcode.DOT:
        return work_on(opcode, a=a, b=b, result=result)
    return work_on(opcode, a=a.in_columns, b=b, result=result.in_columns)


def _run(transport: GoldenPim | RtlPim, works: list[Work], end: int = 0) -> tuple[int, np.ndarray]:
    """Cycles of a single work, or of several from the first offer until all are seen to have
    completed; and the striped memory up to ``end`` after them, which had random values."""
    config = transport.config
    with Pim(transport) as device:
        start = config.striped_start_bytes
        size = max(0, end - start) // ELEMENT_BYTES
        values = np.random.default_rng(1).standard_normal(size).astype(np.float32)
        device.write_memory(start, values)
        if transport.timed:
            transport.advance(IDLE_CYCLES)
        begun = transport.cycles()
        ids: list[int] = []
        for one in works:
            if len(ids) >= config.works:
                device.wait(ids[-config.works])
            ids.append(device.pim_fix(None, one, one.result, one.units or config.units))
        for work_id in ids:
            device.wait(work_id)
        cycles = transport.cycles() - begun
        if len(works) == 1:
            cycles = device.counters(ids[0]).cycles or 0
        return cycles, device.read_memory(start, ELEMENT_BYTES * size)


def _compared(config: PimConfig, whole: Work, works: list[Work], end: int) -> str:
    model, _ = _run(CyclesPim(config, computes=False), works)
    rtl, memory = _run(RtlPim(config), works, end)
    _, golden = _run(GoldenPim(config), works, end)
    _, once = _run(GoldenPim(config), [whole], end)
    result = whole.span("result")
    begin, end = (place - config.striped_start_bytes for place in (result.start, result.stop))
    if (
        not np.array_equal(memory, golden)
        or memory[begin:end].tobytes() != once[begin:end].tobytes()
    ):
        raise AssertionError("the memory is not the golden model's")
    return f"{model:,} cycles by the model, {rtl:,} in RTL, every bit the same"


if __name__ == "__main__":
    main("rtl" in sys.argv[1:])
