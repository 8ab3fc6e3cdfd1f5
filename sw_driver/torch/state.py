"""The state of a parameter, most of which is on the module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from torch import Tensor

__all__ = ["ModuleState"]


class ModuleState(MutableMapping[str, Any]):
    """What ``optimizer.state[parameter]`` is after a step.

    A tensor that is asked for is fetched, and then is the host's: the next step takes it to the
    module again, with what the program has changed in it.

    Parameters
    ----------
    here: entries that are the host's.
    fetch: copies a tensor from the module.
    """

    def __init__(self, here: Mapping[str, Any], fetch: Callable[[str], Tensor]) -> None:
        self.here = dict(here)
        self.away: set[str] = set()
        """Names of the tensors that are on the module."""
        self._fetch = fetch

    def moved(self, names: set[str]) -> None:
        """Notes that the tensors ``names`` are on the module now."""
        self.away |= names
        for name in names:
            self.here.pop(name, None)

    def snapshot(self) -> dict[str, Any]:
        """All entries, as copies; what is on the module stays there."""
        here = {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in self.here.items()
        }
        return here | {name: self._fetch(name) for name in sorted(self.away)}

    def __getitem__(self, name: str) -> Any:
        if name in self.away:
            self.here[name] = self._fetch(name)
            self.away.discard(name)
        return self.here[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.away.discard(name)
        self.here[name] = value

    def __delitem__(self, name: str) -> None:
        if name in self.away:
            self.away.discard(name)
        else:
            del self.here[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self.here, *sorted(self.away)])

    def __len__(self) -> int:
        return len(self.here) + len(self.away)
