"""Update rules; each file of this folder defines one as ``RULE``."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from hw.rules.update_rule import UpdateRule

__all__ = ["MISTAKES", "PAPER_RULES", "RULES", "RuleFileError", "register", "rule"]

PAPER_RULES = ("adam",)
"""Names of the rules in the paper's kernel."""

RULES: dict[str, UpdateRule] = {}
"""Rules of this folder, by name."""

MISTAKES: dict[str, Exception] = {}
"""Exceptions of the files of this folder that cannot be read, by name. They are raised only when
the rule is used."""


class RuleFileError(ValueError):
    """Error for a file of this folder with a ``RULE`` that is no rule or has another name."""


_OTHERS: dict[str, UpdateRule] = {}


def register(rule: UpdateRule) -> UpdateRule:
    """Register a rule that has no file here, so that kernels can be built with it.

    The driver does not know it. Raises ``ValueError`` if another rule has the name.
    """
    if (RULES | _OTHERS).get(rule.name, rule) != rule:
        raise ValueError(f"there is another rule called {rule.name!r}: give each its own name")
    _OTHERS[rule.name] = rule
    return rule


def rule(name: str) -> UpdateRule:
    """Return the rule called ``name``.

    Raises ``ValueError`` if there is none, and the error of its file if that cannot be read.
    """
    if name in MISTAKES:
        raise MISTAKES[name]
    known = RULES | _OTHERS
    if name not in known:
        raise ValueError(f"no update rule {name!r}; known: {', '.join(known)}")
    return known[name]


for _module in iter_modules(__path__):
    _name = _module.name
    try:
        _file = import_module(f"{__name__}.{_name}")
        _found = getattr(_file, "RULE", None)
        if _found is not None and getattr(_found, "name", None) != _name:
            raise RuleFileError(
                f"{_file.__file__}: RULE is {_found!r:.40}...: expected an UpdateRule with the "
                f"name {_name!r}, as the file has"
            )
    except Exception as _error:
        MISTAKES[_name] = _error
        continue
    if _found is not None:
        RULES[_name] = _found
