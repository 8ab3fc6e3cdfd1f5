"""The pool's registers: addresses, contents, offering a work; their description."""

from __future__ import annotations

import pytest

from golden.pim.descriptor import DESCRIPTOR_BYTES, Cause
from hw.csr.register_map import load_registers
from hw.pim.config import COUNTINGS, PIM_PRESETS
from hw.pim.memory.host_memory import HostCause
from hw.pim.registers.pool_registers import (
    PIM_RDL,
    SLOT_BYTES,
    SLOTS_OFFSET_BYTES,
    PoolRegisters,
    busy_window,
    descriptor_window,
    kept_window,
)
from hw.pim.work.status import SlotState
from hw_tests.bench import run_bench


def test_pool_registers() -> None:
    run_bench(
        PoolRegisters(PIM_PRESETS["tiny"]),
        top="pool_registers",
        module="hw_tests.pim.registers.pool_registers_bench",
    )


@pytest.mark.parametrize(
    ("top", "register", "field", "meanings"),
    [
        ("pim_pool", "cause", "cause", {cause.name: cause.value for cause in Cause}),
        ("pim_pool", "geometry", "counting", {name: at for at, name in enumerate(COUNTINGS)}),
        (
            "pim_pool",
            "host_error",
            "cause",
            {cause.name: cause.value for cause in HostCause},
        ),
        ("pim_slot", "state", "state", {state.name: state.value for state in SlotState}),
    ],
)
def test_encodings(top: str, register: str, field: str, meanings: dict[str, int]) -> None:
    encoding = load_registers(top, PIM_RDL)[register][field].encoding
    assert dict(encoding) == {name.lower(): value for name, value in meanings.items()}


def test_descriptor_has_its_place() -> None:
    window = descriptor_window()
    assert len(window) == DESCRIPTOR_BYTES
    pool = load_registers("pim_pool", PIM_RDL).registers
    assert max(register.offset_bytes for register in pool) + 8 <= window.start
    assert window.stop <= kept_window().start
    assert kept_window().stop <= busy_window().start
    assert len(busy_window()) == 8 * 32
    assert busy_window().stop <= SLOTS_OFFSET_BYTES
    slot = load_registers("pim_slot", PIM_RDL).registers
    assert max(register.offset_bytes for register in slot) + 8 <= SLOT_BYTES
