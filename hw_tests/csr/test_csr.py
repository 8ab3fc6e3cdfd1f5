"""Runs the bench of the register bank and the AXI4-Lite subordinate; their refusals."""

from __future__ import annotations

import pytest
from amaranth.lib.wiring import In, Out

from hw.axdimm.registers import arbiter_map
from hw.csr.bank import CsrBank
from hw.csr.register_map import RegisterMap
from hw.kernel.registers import kernel_map
from hw_tests.bench import run_bench
from hw_tests.csr.csr_sample import ADDR_WIDTH, CsrSample, sample_map

_ONE_FIELD = """
addrmap csr_sample {{
    default regwidth = 64;
    default accesswidth = 64;
    reg {{ field {{ {properties}; }} f[7:0] = 0; }} word @ {offset};
}};
"""


def test_csr_bench() -> None:
    run_bench(CsrSample(), top="csr_sample", module="hw_tests.csr.csr_bench")


@pytest.mark.parametrize("registers", [arbiter_map(), kernel_map()], ids=lambda each: each.name)
def test_ports_follow_the_map(registers: RegisterMap) -> None:
    members = dict(CsrBank(registers, addr_width=ADDR_WIDTH).signature.members)
    del members["bus"]
    for register in registers.registers:
        for field in register.fields:
            if field.sw_writable or field.hw_writable:
                member = members.pop(f"{register.name}_{field.name}")
                assert member.shape == field.width
    assert not members


def test_refuses_fields_that_both_sides_write() -> None:
    both = sample_map(_ONE_FIELD.format(properties="sw = rw; hw = rw", offset=0))
    with pytest.raises(ValueError, match=r"field word\.f must be written by either"):
        CsrBank(both, addr_width=ADDR_WIDTH)


def test_refuses_several_registers_that_software_writes() -> None:
    view = "addrmap view {{ {word} }}; addrmap csr_sample {{ view view[2] @ 0; }};"
    word = "reg { regwidth = 64; field { sw = rw; hw = r; } f[7:0] = 0; } word @ 0;"
    with pytest.raises(ValueError, match="'view_word' is at several offsets"):
        CsrBank(sample_map(view.format(word=word)), addr_width=ADDR_WIDTH)


def test_a_field_that_software_clears_has_two_ports() -> None:
    word = sample_map(_ONE_FIELD.format(properties="sw = rw; hw = w; woclr", offset=0))
    members = CsrBank(word, addr_width=ADDR_WIDTH).signature.members
    assert [members[name].flow for name in ("word_f", "word_f_kept")] == [In, Out]


def test_refuses_misplaced_registers() -> None:
    text = _ONE_FIELD.format(properties="sw = rw; hw = r", offset=8)
    good = sample_map(text)
    CsrBank(good, addr_width=4)
    with pytest.raises(ValueError, match=r"addr_width must be enough .* ends at byte 16, got 3"):
        CsrBank(good, addr_width=3)
