"""The update rules, each a file of this folder that defines a ``RULE``."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from hw.rules.update_rule import UpdateRule

__all__ = ["PAPER_RULES", "RULES", "register", "rule"]

PAPER_RULES = ("adam",)
"""What the paper's kernel computes."""

RULES: dict[str, UpdateRule] = {}
"""The rules by their names."""


def register(rule: UpdateRule) -> UpdateRule:
    """Makes ``rule`` known by its name; ``ValueError`` if another one has it."""
    if RULES.setdefault(rule.name, rule) != rule:
        raise ValueError(f"there is another rule called {rule.name!r}: give each its own name")
    return rule


def rule(name: str) -> UpdateRule:
    """The rule called ``name``; ``ValueError`` if there is none."""
    if name not in RULES:
        raise ValueError(f"no update rule {name!r}; known: {', '.join(RULES)}")
    return RULES[name]


for _module in iter_modules(__path__):
    _found = getattr(import_module(f"{__name__}.{_module.name}"), "RULE", None)
    if _found is not None:
        register(_found)
