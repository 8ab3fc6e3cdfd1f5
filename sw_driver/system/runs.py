"""Runs that experiments share: each is simulated once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from types import ModuleType
from typing import Any, Generic, TypeVar

from .reproduction import Changes, Experiment, Progress

__all__ = ["Case", "Runs", "experiments"]

R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Case(Generic[R]):
    """A step that experiments ask for. Fields may be records, mappings, and what can be hashed."""

    network: str
    changes: Changes = field(default_factory=dict)
    """Of the machine."""

    def simulate(self) -> R:
        """Return what comes out; for a system to say."""
        raise NotImplementedError

    def result(self, progress: Progress) -> R:
        """Return what comes out, which equal cases find once in a process; it is told before."""
        key = _key(self)
        if key not in _results:
            progress(str(self))
            _results[key] = self.simulate()
        return _results[key]


_results: dict[Hashable, Any] = {}


def _key(value: Any) -> Hashable:
    if is_dataclass(value):
        return type(value), *(_key(getattr(value, each.name)) for each in fields(value))
    if isinstance(value, Mapping):
        return frozenset((name, _key(each)) for name, each in value.items())
    return value


@dataclass(frozen=True, kw_only=True)
class Runs:
    """What an experiment is given: changes of the machine, as ``--set`` has them, and who is told
    what is being done."""

    changes: Changes = field(default_factory=dict)
    progress: Progress = lambda _: None


def experiments(
    runs: Callable[..., Runs], module: ModuleType
) -> dict[str, Callable[[Changes, Progress], Experiment]]:
    """Return the public functions of a module by name, in its order, each of which makes an
    experiment of ``runs``."""

    def made(name: str, changes: Changes, progress: Progress) -> Experiment:
        return getattr(module, name)(runs(changes=changes, progress=progress))

    return {name: partial(made, name) for name in vars(module) if name in module.__all__}
