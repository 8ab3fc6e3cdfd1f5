"""Copies and pickles of a model under a policy: plain models without the policy's hooks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import Tensor, nn

from .residency import held_of

__all__ = ["PlainCopies", "as_copies"]


class PlainCopies:
    """Copies and pickles of a model, and of its parts, without a policy's hooks.

    Parameters
    ----------
    hooks: handles of the policy's hooks of modules.
    names: attributes that the policy has set.
    check: raises if no copy can be made now.
    """

    def __init__(
        self,
        model: nn.Module,
        hooks: Iterable[Any],
        *,
        names: Iterable[str] = (),
        check: Callable[[], None] | None = None,
    ) -> None:
        self._numbers = {hook.id for hook in hooks}
        self._names, self._check = {"__getstate__", *names}, check
        self._modules = [*map(weakref.ref, model.modules())]
        for reference in self._modules:
            # `copy`, `pickle` and `torch.save` call it for an object's content.
            vars(reference())["__getstate__"] = partial(self._state, reference)

    def close(self) -> None:
        """Restore the model as it was."""
        for reference in self._modules:
            if (module := reference()) is not None:
                vars(module).pop("__getstate__", None)
        self._modules.clear()

    def _state(self, reference: Callable[[], Any]) -> Any:
        module: Any = reference()
        if self._check is not None:
            self._check()
        own_class: Any = type(module)
        state = own_class.__getstate__(module)
        if not isinstance(state, dict):
            return state
        plain = {name: value for name, value in state.items() if name not in self._names}
        for name, value in plain.items():
            if "_hooks" in name and isinstance(value, dict) and value.keys() & self._numbers:
                kept = {key: hook for key, hook in value.items() if key not in self._numbers}
                plain[name] = type(value)(kept)
        return plain


def as_copies(module: nn.Module, state: dict[str, Any], *_: object) -> None:
    """Replace the tensors of a state dict by copies.

    Savers take tensors at one address for a shared storage, and addresses change as tensors move.
    """
    for name, value in state.items():
        if isinstance(value, Tensor) and (held := held_of(value)) is not None:
            state[name] = held.residency.copied(value)
