"""The pool's registers: addresses, contents, rings, cores; their description."""

from __future__ import annotations

from itertools import pairwise

import pytest

from golden.pim.descriptor import Cause
from hw.csr.register_map import load_registers
from hw.pim.config import configure
from hw.pim.core.layouts import CoreCause
from hw.pim.memory.host_memory import HostCause
from hw.pim.registers.pool_registers import (
    CORE_BYTES,
    CORES_OFFSET_BYTES,
    PIM_RDL,
    REGISTERS_ADDR_WIDTH,
    RING_BYTES,
    RINGS_OFFSET_BYTES,
    SLOT_BYTES,
    SLOTS_OFFSET_BYTES,
    PoolRegisters,
    busy_window,
    kept_window,
)
from hw.pim.work.status import SlotState
from hw_tests.bench import run_bench


def test_pool_registers() -> None:
    run_bench(
        PoolRegisters(configure("tiny", rings=3, cores=2)),
        top="pool_registers",
        module="hw_tests.pim.registers.pool_registers_bench",
    )


@pytest.mark.parametrize(
    ("top", "register", "field", "meanings"),
    [
        ("pim_ring", "tail", "cause", {cause.name: cause.value for cause in Cause}),
        (
            "pim_pool",
            "host_error",
            "cause",
            {cause.name: cause.value for cause in HostCause},
        ),
        ("pim_core", "status", "cause", {cause.name: cause.value for cause in CoreCause}),
        ("pim_slot", "state", "state", {state.name: state.value for state in SlotState}),
    ],
)
def test_encodings(top: str, register: str, field: str, meanings: dict[str, int]) -> None:
    encoding = load_registers(top, PIM_RDL)[register][field].encoding
    assert dict(encoding) == {name.lower(): value for name, value in meanings.items()}


def test_everything_has_its_place() -> None:
    """What can be written is in the lower half of a register."""
    pool, ring, core, slot = (
        load_registers(f"pim_{name}", PIM_RDL) for name in ("pool", "ring", "core", "slot")
    )
    places = [
        range(max(register.offset_bytes for register in pool.registers) + 8),
        kept_window(),
        busy_window(),
        range(RINGS_OFFSET_BYTES, RINGS_OFFSET_BYTES + 5 * RING_BYTES),
        range(CORES_OFFSET_BYTES, CORES_OFFSET_BYTES + 4 * CORE_BYTES),
        range(SLOTS_OFFSET_BYTES, 1 << REGISTERS_ADDR_WIDTH),
    ]
    for before, after in pairwise(places):
        assert before.stop <= after.start
    assert len(busy_window()) == 8 * 32
    assert max(register.offset_bytes for register in ring.registers) + 8 <= RING_BYTES
    assert max(register.offset_bytes for register in core.registers) + 8 <= CORE_BYTES
    assert max(register.offset_bytes for register in slot.registers) + 8 <= SLOT_BYTES
    for register in (*pool.registers, *ring.registers, *core.registers, *slot.registers):
        for field in register.fields:
            assert not field.sw_writable or field.lsb + field.width <= 32
