"""Gradients on the module: a program that reads them from parameters gets them back or an error."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, MutableMapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sw_driver.torch import residency

from .policy import Stored

__all__ = ["StoreState", "gradient_of", "guarded", "set_gradient"]

_gradient: Any = torch._C.TensorBase.grad  # pyright: ignore[reportAttributeAccessIssue]

_BETWEEN = "torch.", residency.__name__
"""Prefixes of modules that may call between the program and a gradient."""

_AROUND = "wrapper", "decorate_context", "handle_torch_function", "read"
"""Functions of these modules that only call others."""


class _Used(Tensor):
    """A gradient that its update has used: not None, but every use of it raises an error."""

    words: str

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        used = next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, cls))
        raise RuntimeError(f"{_habit(func)} uses the gradient of {used.words}")

    __torch_dispatch__ = __torch_function__


class _Guarded:
    """A parameter with gradients on the module; it precedes its class among the bases."""

    _own_class: type[nn.Parameter]

    def __new__(cls, *args: Any, **options: Any) -> Any:
        return cls._own_class(*args, **options)  # a copy is a plain parameter

    @property
    def grad(self) -> Tensor | None:
        """Gradient, brought back from the module; after the update an object that stands for it."""
        stored = _trained(self)
        if stored is not None and (words := stored.optimizer.bring_back(stored)):
            used = torch.Tensor._make_subclass(
                _Used, torch.empty(0, dtype=torch.float32, device="cpu")
            )
            used.words = words
            return used
        return gradient_of(self)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        stored = _trained(self)
        if stored is not None:
            stored.optimizer.drop(stored)
        set_gradient(self, value)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    _grad = grad  # as Tensor has it

    def register_post_accumulate_grad_hook(self, hook: Any) -> Any:
        """Register a hook, to run before the hook that sends the gradient to the module."""
        register: Any = self._own_class.register_post_accumulate_grad_hook
        handle = register(self, hook)
        stored = _trained(self)
        if stored is not None:
            stored.hook.remove()
            stored.hook = register(self, stored.optimizer.take)
        return handle


class StoreState(MutableMapping[Any, Any]):
    """The ``state`` of an optimizer with its state in the store; using it raises an error."""

    def _refuse(self, *_: Any) -> NoReturn:
        raise RuntimeError(
            "optimizer.state is empty, since the state is in the store: read it from "
            "optimizer.state_dict(), and change it with optimizer.load_state_dict()"
        )

    __getitem__ = __setitem__ = __delitem__ = __contains__ = _refuse

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def __iter__(self) -> Iterator[Any]:
        return iter([()] * len(self))

    def __len__(self) -> int:
        return self._refuse() if self._optimizer.has_stepped else 0


@functools.cache
def guarded(own_class: type[nn.Parameter]) -> type[nn.Parameter]:
    """Return the subclass of ``own_class`` for parameters with gradients on the module."""
    return type(own_class.__name__, (_Guarded, own_class), {"_own_class": own_class})


def gradient_of(parameter: Any) -> Tensor | None:
    """Return the gradient that autograd has left in a parameter's ``grad``."""
    return _gradient.__get__(parameter)


def set_gradient(parameter: Any, value: Tensor | None) -> None:
    """Set a parameter's ``grad`` for autograd."""
    _gradient.__set__(parameter, value)


def _trained(parameter: Any) -> Stored | None:
    """Return the record of a parameter that an optimizer trains in a store, None for others."""
    held = residency.held_of(parameter)
    stored = held.place if held is not None else None
    return stored if isinstance(stored, Stored) and stored.optimizer is not None else None


def _habit(func: Any) -> str:
    """Return the name of the function of PyTorch that the program has called."""
    name = getattr(func, "__name__", str(func))
    if name in ("__get__", "__set__"):
        name = f".{func.__self__.__name__}"
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_BETWEEN):
        called = frame.f_code.co_name
        if not called.startswith(("_", "<")) and called not in _AROUND:
            name = called
        frame = frame.f_back
    return name if name.startswith(".") else f"{name}()"
