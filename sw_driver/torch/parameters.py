"""Checks of optimizers and of parameters: formats, and memory that is not shared."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sw_driver.device.errors import InvalidArgumentError, shown

__all__ = ["HOOK_RESULT", "ParameterChecks", "check_own_memory", "check_training"]

HOOK_RESULT = (
    "a hook of register_post_accumulate_grad_hook() returned a value, which PyTorch gives to the "
    "next hook in the parameter's place: have the hook return None"
)
"""Error for a gradient that came for something other than a parameter."""

_TRIES: Any = 10**6
"""Limit of the search for an overlap of two views; beyond it they count as overlapping."""


def check_training(model: Any, optimizer: Any) -> None:
    """Raise ``InvalidArgumentError`` unless these are a model and an optimizer for it."""
    for name, value, kind in (("model", model, nn.Module), ("optimizer", optimizer, Optimizer)):
        if not isinstance(value, kind):
            raise InvalidArgumentError(
                f"{name} is {_shown(value)}: expected a torch {kind.__name__}"
            )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise InvalidArgumentError(
                f"{name} is on meta, without memory: give the model memory and values first, by "
                "to_empty(device=...) and load_state_dict()"
            )
    known = {*model.parameters()}
    updated = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if others := sum(parameter not in known for parameter in updated):
        raise InvalidArgumentError(
            f"{others} of the optimizer's {len(updated)} parameters are not the model's: "
            "expected an optimizer of model.parameters()"
        )


def check_own_memory(model: nn.Module) -> None:
    """Raise ``InvalidArgumentError`` if a parameter shares storage with another tensor.

    Weights of a recurrent layer may share one, packed one after the other, as cuDNN keeps them.
    Warn of tensors outside the model in a parameter's storage.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    recurrent = {parameter: layer for layer in layers for parameter in layer.parameters()}
    spans = []
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if not nn.parameter.is_lazy(tensor) and tensor.layout is torch.strided and tensor.numel():
            storage = tensor.untyped_storage()
            begin = storage.data_ptr()
            if begin:  # 0 on "meta"
                spans.append((str(tensor.device), begin, begin + storage.nbytes(), name, tensor))
    last: Any = None
    for span in sorted(spans, key=lambda span: span[:4]):
        where, begin, end, name, tensor = span
        if last is not None and last[0] == where and begin < last[2]:
            both = tensor, last[4]
            owners = {recurrent.get(shared) for shared in both}
            packed = len(owners) == 1 and None not in owners
            if any(isinstance(shared, nn.Parameter) for shared in both) and not packed:
                raise InvalidArgumentError(
                    f"{name} shares memory with {last[3]}, but would get memory of its own: "
                    "register one Parameter in both places, or a clone()"
                )
        if last is None or last[0] != where or end > last[2]:
            last = span
    outside = [
        name
        for name, tensor in model.named_parameters()
        if tensor not in recurrent and not nn.parameter.is_lazy(tensor) and _has_aliases(tensor)
    ]
    if outside:
        warnings.warn(
            f"{', '.join(outside[:3])}{', ...' if len(outside) > 3 else ''}: memory is shared with "
            "tensors outside the model, such as a state_dict() or another model's parameters, "
            "which will not follow: give them a clone(), or register one Parameter",
            stacklevel=3,
        )


def _has_aliases(tensor: Tensor) -> bool:
    """Return whether another tensor that is alive has a tensor's storage."""
    storage: Any = tensor.untyped_storage()  # this reference counts, too
    return bool(storage.data_ptr()) and torch._C._storage_Use_Count(storage._cdata) > 2  # pyright: ignore[reportAttributeAccessIssue]


class ParameterChecks:
    """Checks that parameters can be converted and share no memory.

    Parameters once found separate are not checked again until one of them moves.

    Parameters
    ----------
    dtype: format on the module; warn about other formats that are not FP32.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._apart: list[Any] = []
        self._known = {torch.float32, dtype}
        """Formats without a warning, or with one given already."""

    def check(self, named: Iterable[tuple[str, Any]]) -> None:
        """Check all parameters of an optimizer, given with their names.

        Raises
        ------
        TypeError: a parameter is not a dense leaf tensor of real floating-point numbers.
        ValueError: elements of a parameter, or two parameters, share memory.
        """
        pieces = []
        for name, parameter in named:
            self._check_format(name, parameter)
            if parameter.numel():
                pieces.append((*_place(name, parameter), name))
        if [piece[:2] for piece in pieces] == self._apart:
            return
        before: list[Any] = []
        for piece in sorted(pieces):
            (device, begin, _), place, name = piece
            before = [other for other in before if other[0][0] == device and begin < other[0][2]]
            for _, other, other_name in before:
                if np.may_share_memory(_memory(*other), _memory(*place), max_work=_TRIES):
                    raise ValueError(
                        f"{other_name} and {name} share memory: pass each once, and views that "
                        "overlap as copies"
                    )
            before.append(piece)
        self._apart = [piece[:2] for piece in pieces]

    def _check_format(self, name: str, parameter: Any) -> None:
        if not isinstance(parameter, Tensor) or not (parameter.is_leaf or parameter.retains_grad):
            raise TypeError(
                f"{name} is a {type(parameter).__name__}: expected a leaf tensor, or one that "
                "retains its gradient"
            )
        if parameter.layout is not torch.strided or not parameter.is_floating_point():
            raise TypeError(
                f"{name} is {parameter.dtype}, {parameter.layout}: expected real floating-point "
                "numbers in a dense tensor"
            )
        if parameter.dtype not in self._known:
            self._known.add(parameter.dtype)
            warnings.warn(
                f"{name} is {parameter.dtype}: the module computes in FP32, so such parameters and "
                "their gradients are converted, and results rounded",
                stacklevel=3,
            )


def _place(name: str, parameter: Tensor) -> tuple[Any, Any]:
    """Return device, first and last address of a parameter, and the arguments of `_memory`."""
    reach = 0
    for stride, size in sorted(zip(parameter.stride(), parameter.shape, strict=True)):
        if size > 1 and stride <= reach:
            raise ValueError(f"elements of {name} share memory: pass a contiguous copy")
        reach += stride * (size - 1)
    begin, size = parameter.data_ptr(), parameter.itemsize
    strides = tuple(size * stride for stride in parameter.stride())
    where = str(parameter.device), begin, begin + size * (reach + 1)
    return where, (begin, f"|V{size}", tuple(parameter.shape), strides)


def _memory(begin: int, kind: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """Return an array at an address, for comparisons of memory only; it is not read."""
    place = {"data": (begin, True), "typestr": kind, "shape": shape, "strides": strides}
    return np.asarray(SimpleNamespace(__array_interface__={**place, "version": 3}))


def _shown(value: Any) -> str:
    return type(value).__name__ if isinstance(value, Tensor | nn.Module) else shown(value)
