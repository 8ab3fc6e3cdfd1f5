"""Memories that give nothing of use to a read that meets a write, as block RAMs may."""

from __future__ import annotations

import re

__all__ = ["with_useless_collisions"]

_MEMORY = re.compile(r"\(\* no_rw_check = 1 \*\)\s+(?:\(\*.*\*\)\s+)?reg \[\d+:0\] (\w+) \[")


def with_useless_collisions(verilog: str) -> str:
    """``verilog`` with memories that are declared free of collisions
    (:data:`hw.logic.storage.NEVER_BOTH`) and give the complement of a word that is written while it
    is read. Raises ``ValueError`` if there is no such memory."""
    modules = verilog.split("endmodule")
    found = 0
    for place, module in enumerate(modules):
        for name in _MEMORY.findall(module):
            found += 1
            ((enable, address),) = re.findall(rf" if \((.+)\) {name}\[(.+?)\] <= ", module)

            def useless(read: re.Match[str], enable: str = enable, address: str = address) -> str:
                word, at = read[1], read[2]
                return f"<= ({enable}) && ({address}) == ({at}) ? ~{word} : {word};"

            module, reads = re.subn(rf"<= ({name}\[(.+?)\]);", useless, module)
            if reads != 1:
                raise ValueError(f"{name} has {reads} reads, expected one")
        modules[place] = module
    if not found:
        raise ValueError("no memory is declared free of collisions")
    return "endmodule".join(modules)
