"""Works that are offered as fast as a pool takes them, against the golden model's one by one."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from golden.pim import Descriptor, Pool, account
from sw_driver.device.clock import finished
from sw_driver.pim.device import Pim
from sw_driver.pim.registers import PoolRegisters

__all__ = ["check_overlapping_works", "random_floats", "words_at"]

_LOOKS = 2000
"""So often works are looked at, 200 cycles apart, before they are given up."""


def random_floats(pim: Pim, seed: int) -> NDArray[np.uint32]:
    """Fills the local memory."""
    rng = np.random.default_rng(seed)
    floats = rng.standard_normal(pim.config.local_bytes // 4).astype(np.float32)
    words: NDArray[np.uint32] = floats.view(np.uint32)
    pim.write_memory(0, words)
    return words


def words_at(pim: Pim, address: int, count: int) -> NDArray[np.uint32]:
    return pim.read_memory(address, 4 * count).view(np.uint32)


def check_overlapping_works(pim: Pim, works: Sequence[Descriptor], seed: int) -> int:
    """Compares all counters and all of the local memory; returns the set of banks that worked.

    The golden model's works complete in the order in which they are offered.
    """
    config, placement = pim.config, pim.config.placement
    memory = random_floats(pim, seed)
    golden = Pool(
        multipliers=placement.multipliers,
        adders=placement.adders,
        bank_bytes=config.bank_bytes,
        slots=len(works),
    )
    golden.memory[: memory.nbytes] = memory.view(np.uint8)
    registers = PoolRegisters(pim.transport)
    running: dict[int, Descriptor] = {}
    banks = 0

    def finish(limit: int) -> int:
        """Looks at the works that have completed, and lets time pass until ``limit`` are left."""
        worked = 0
        for _ in range(_LOOKS):
            completed = [each for each in running if pim.work_query(each)]
            for work_id in completed:
                work, counters = running.pop(work_id), pim.counters(work_id)
                amount = account(work)
                assert counters[:4] == (amount.multiplications, 0, amount.additions, 0), work
                assert counters.bytes_read % 32 == counters.bytes_written % 32 == 0
                assert counters.bytes_read >= 4, work
                assert counters.bytes_written >= 4 * prod(work.extents("result")), work
                worked |= registers.slots[work_id % config.works].read_field("banks")
            # One that was asked for earlier may have completed before these, and the next work
            # would take its slot; not so if none had completed.
            if completed:
                continue
            if len(running) <= limit:
                return worked
            pim.transport.advance(200)
        raise AssertionError(f"works that do not end: {running}")

    for work in works:
        banks |= finish(config.works - 1)
        pim._ring.write(np.frombuffer(work.encode(), "<u4").tolist())
        cause, number = finished(pim._settle())
        assert cause == "none", work
        pim._running.add(number)
        running[number] = work
        golden.finish(golden.submit(work))
    banks |= finish(0)
    found = words_at(pim, 0, memory.size)
    wrong = np.flatnonzero(found != golden.memory.view(np.uint32)[: memory.size])
    assert not wrong.size, f"{wrong.size} words differ, the first: {4 * wrong[0]:#x}"
    return banks
