"""State of a parameter, mostly on the module."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from torch import Tensor

from .shards import Slot

__all__ = ["ModuleState"]


class ModuleState(MutableMapping[str, Any]):
    """Content of ``optimizer.state[parameter]`` after a step.

    Reading a tensor fetches it to the host, where the program may change it. The next step copies
    it to the module again. A state given to another parameter becomes that parameter's; a copy is a
    plain dict.

    Parameters
    ----------
    here: entries on the host.
    slot: place of the other entries on the module.
    fetch: copies a tensor from the slot.
    settle: completes a step in flight there.
    """

    def __init__(
        self,
        here: Mapping[str, Any],
        slot: Slot,
        fetch: Callable[[Slot, str], Tensor],
        settle: Callable[[], None],
    ) -> None:
        self.here = dict(here)
        self.away: set[str] = set()
        """Names of the tensors on the module."""
        self.slot = slot
        slot.state = weakref.ref(self)
        self._fetch, self._settle = fetch, settle

    def take_to(
        self, slot: Slot, fetch: Callable[[Slot, str], Tensor], settle: Callable[[], None]
    ) -> None:
        """Move the state to another slot, possibly of another optimizer."""
        if self.slot is not slot:
            self.come_home()
            self.slot, self._fetch, self._settle = slot, fetch, settle
            slot.state = weakref.ref(self)

    def moved(self, names: set[str]) -> None:
        """Record that the tensors ``names`` are on the module now."""
        self.away |= names
        for name in names:
            self.here.pop(name, None)

    def snapshot(self) -> dict[str, Any]:
        """Return copies of all entries; tensors on the module stay there."""
        here = {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in self.here.items()
        }
        return here | {name: self._fetch(self.slot, name) for name in sorted(self.away)}

    def come_home(self) -> None:
        """Fetch all tensors before the slot is given to another parameter."""
        self._settle()
        for name in sorted(self.away):
            self[name]

    def __reduce__(self) -> Any:
        return dict, (self.snapshot(),)

    def __getitem__(self, name: str) -> Any:
        if name in self.away:
            self.here[name] = self._fetch(self.slot, name)
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
