"""Runs that experiments share: each is simulated once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, TypeVar

from .reproduction import Progress

__all__ = ["once"]

S = TypeVar("S")
R = TypeVar("R")


def once(simulate: Callable[[S], R]) -> Callable[[S, Progress], R]:
    """Makes ``simulate``, a function of a frozen record of settings, simulate equal ones once in a
    process. What is returned takes the settings and who is told of them, as text, before that.
    Settings may be records, mappings, and what can be hashed."""
    done: dict[Hashable, R] = {}

    @wraps(simulate)
    def run(settings: S, progress: Progress) -> R:
        key = _key(settings)
        if key not in done:
            progress(str(settings))
            done[key] = simulate(settings)
        return done[key]

    return run


def _key(value: Any) -> Hashable:
    if is_dataclass(value):
        return type(value), *(_key(getattr(value, each.name)) for each in fields(value))
    if isinstance(value, Mapping):
        return frozenset((name, _key(each)) for name, each in value.items())
    return value
