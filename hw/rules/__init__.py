"""The update rules, each a file of this folder that defines a ``RULE``."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from hw.rules.update_rule import UpdateRule

__all__ = ["PAPER_RULES", "RULES", "register", "rule"]

PAPER_RULES = ("adam",)
"""Names of the rules that the paper's kernel computes."""

RULES: dict[str, UpdateRule] = {}
"""The rules of this folder by their names."""

_OTHERS: dict[str, UpdateRule] = {}


def register(rule: UpdateRule) -> UpdateRule:
    """Lets kernels be built with a rule that has no file here; the driver does not know it.

    Raises ``ValueError`` if another rule has the name.
    """
    if (RULES | _OTHERS).get(rule.name, rule) != rule:
        raise ValueError(f"there is another rule called {rule.name!r}: give each its own name")
    _OTHERS[rule.name] = rule
    return rule


def rule(name: str) -> UpdateRule:
    """The rule called ``name``; ``ValueError`` if there is none."""
    known = RULES | _OTHERS
    if name not in known:
        raise ValueError(f"no update rule {name!r}; known: {', '.join(known)}")
    return known[name]


for _module in iter_modules(__path__):
    _found = getattr(import_module(f"{__name__}.{_module.name}"), "RULE", None)
    if _found is not None:
        RULES[_found.name] = _found
