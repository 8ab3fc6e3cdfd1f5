"""Registers of a channel: those of its arbiter and of its kernel."""

from __future__ import annotations

from pathlib import Path

from hw.csr.register_map import RegisterMap, load_registers
from hw.kernel.registers import kernel_text
from hw.rules import PAPER_RULES

__all__ = ["arbiter_map", "registers_text"]

_ARBITER_RDL = Path(__file__).with_name("arbiter.rdl")


def arbiter_map() -> RegisterMap:
    """Return the map of the arbiter's registers."""
    return load_registers("axdimm_arbiter", _ARBITER_RDL)


def registers_text(rules: tuple[str, ...] = PAPER_RULES, narrow: bool = False) -> str:
    """Return the description of a channel's registers in SystemRDL.

    Raises ``ValueError`` for a constant with the name of another register.
    """
    return f"{_ARBITER_RDL.read_text()}\n{kernel_text(rules, narrow)}"
