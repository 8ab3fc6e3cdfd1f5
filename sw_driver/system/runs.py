"""Results that experiments share; each case is simulated once."""

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
    """A training step that experiments simulate.

    Fields may be dataclasses, mappings, and anything hashable.
    """

    network: str
    changes: Changes = field(default_factory=dict)
    """Changes of the machine."""

    def simulate(self) -> R:
        """Return the result; each system overrides this."""
        raise NotImplementedError

    def result(self, progress: Progress) -> R:
        """Return the result, simulated once in a process for all equal cases.

        ``progress`` gets the case before it is simulated.
        """
        key = _key(self)
        if key not in _results:
            progress(str(self))
            _results[key] = self.simulate()
        return _results[key]


_results: dict[Hashable, Any] = {}


def _key(value: Any) -> Hashable:
    if is_dataclass(value):
        return type(value), *(_key(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, Mapping):
        return frozenset((name, _key(item)) for name, item in value.items())
    return value


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Argument of an experiment.

    ``changes`` are of the machine, as ``--set`` has them. ``progress`` is called with what is being
    done.
    """

    changes: Changes = field(default_factory=dict)
    progress: Progress = lambda _: None

    def simulated(self, case: Callable[..., Case[R]], **fields: Any) -> R:
        """Return the result of a case with the changes and ``fields``."""
        return case(changes=self.changes, **fields).result(self.progress)


def experiments(
    runs: Callable[..., Runs], module: ModuleType
) -> dict[str, Callable[[Changes, Progress], Experiment]]:
    """Return the experiments of a module: its public functions by name, in their order.

    ``runs`` makes the argument of each, such as :class:`Runs`.
    """

    def made(name: str, changes: Changes, progress: Progress) -> Experiment:
        return getattr(module, name)(runs(changes=changes, progress=progress))

    return {name: partial(made, name) for name in vars(module) if name in module.__all__}
