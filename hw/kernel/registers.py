"""Registers of a kernel: those of ``kernel.rdl`` and those that the rules add."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

from hw.csr.register_map import RegisterMap, parse_registers
from hw.narrow.formats import most_tensors
from hw.rules import PAPER_RULES, rule
from hw.rules.update_rule import UpdateRule

__all__ = [
    "WINDOW_ADDR_WIDTH",
    "WINDOW_BYTES",
    "kernel_map",
    "kernel_text",
    "union",
]

WINDOW_ADDR_WIDTH = 12
"""Width of the addresses in a register window, in bits."""

WINDOW_BYTES = 1 << WINDOW_ADDR_WIDTH
"""Bytes of a register window. The arbiter's window is at the top of a channel's addresses, the
kernel's below it."""

_KERNEL_RDL = Path(__file__).with_name("kernel.rdl")
_NARROW_RDL = Path(__file__).with_name("narrow.rdl")
_NARROW_MARK = "// @narrow: what kernels with narrow formats have comes here.\n"


@cache
def kernel_map(rules: tuple[str, ...] = PAPER_RULES, narrow: bool = False) -> RegisterMap:
    """Return the registers of a kernel with ``rules``, and with narrow formats or without.

    Tensors and constants with the same name share their registers.
    """
    return parse_registers("axdimm_kernel", kernel_text(rules, narrow))


def kernel_text(rules: tuple[str, ...] = PAPER_RULES, narrow: bool = False) -> str:
    """Return the description of a kernel's registers in SystemRDL.

    Raises ``ValueError`` for a constant with the name of another register.
    """
    chosen = [rule(name) for name in rules]
    text = _KERNEL_RDL.read_text()
    if narrow:
        text = text.replace(_NARROW_MARK, _NARROW_RDL.read_text().lstrip())
    taken = {register.name for register in parse_registers("axdimm_kernel", text).registers}
    for marker, added in (("settings", _settings(chosen, narrow)), ("sums", _sums(chosen))):
        place = next(line for line in text.splitlines(True) if f"// @{marker}:" in line)
        lines = []
        for kind, name, title in added:
            if name in taken:
                raise ValueError(
                    f"{name!r} of a rule is a register already, of every kernel or of a tensor; "
                    "give the constant another name"
                )
            taken.add(name)
            # Escaped, since a constant may be named like a keyword of the language, such as w.
            lines.append(rf'    {kind} \{name}; \{name}->name = "{title}";' + "\n")
        text = text.replace(place, "".join(lines))
    return text


def union(names: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Return all names once, in the order of their first occurrence."""
    return tuple(dict.fromkeys(chain.from_iterable(names)))


def _settings(rules: list[UpdateRule], narrow: bool) -> Iterator[tuple[str, str, str]]:
    most = most_tensors(narrow)
    described = [most.tensors(update_rule) for update_rule in rules]
    for way, verb, tensors in (
        ("in", "loaded", map(most.loads, rules)),
        ("out", "stored", map(most.stores, rules)),
    ):
        for name in union(tensors):
            titles = union(
                [tensors_of_rule[name]] for tensors_of_rule in described if name in tensors_of_rule
            )
            yield "address_reg", f"{name}_{way}", f"{', '.join(titles)}: {verb}"
    for name in union(update_rule.constants for update_rule in rules):
        titles = union(
            [update_rule.constants[name]] for update_rule in rules if name in update_rule.constants
        )
        yield "constant_reg", name, "; ".join(titles)


def _sums(rules: list[UpdateRule]) -> Iterator[tuple[str, str, str]]:
    for name in union(update_rule.sums for update_rule in rules):
        yield "sum_reg", f"sum_{name}", f"Sum of {name}"
