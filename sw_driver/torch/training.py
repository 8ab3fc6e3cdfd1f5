"""One way to train a model in less memory, whatever the policy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, Self

from torch import nn
from torch.optim import Optimizer

from sw_driver.device.errors import InvalidArgumentError, shown
from sw_driver.numbers import check_name

from .memferry import MemFerry
from .offloading.owned import OwnedOffloading
from .sentinel import Sentinel

__all__ = ["TrainingPolicy", "train_in"]


class TrainingPolicy(Protocol):
    """A policy that trains a model in less memory, until it is closed."""

    def report(self) -> dict[str, Any]:
        """Return the totals so far, ready for JSON."""
        ...

    def timeline(self, path: Path | str) -> Path:
        """Write the last step's moves as a trace for https://ui.perfetto.dev."""
        ...

    def close(self) -> None:
        """Bring everything back, and leave model and optimizer as they would be without."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def _sentinel(model: Any, optimizer: Any, budget: Any, slow: Any, options: Any) -> TrainingPolicy:
    return Sentinel(model, optimizer, budget=budget, slow=slow, **options)


def _memferry(model: Any, optimizer: Any, budget: Any, slow: Any, options: Any) -> TrainingPolicy:
    if slow != "host":
        raise InvalidArgumentError(
            f"slow is {shown(slow)}: expected 'host', as memferry's GPU reads the host's memory"
        )
    return MemFerry(model, optimizer, budget=budget, **options)


def _offload(model: Any, optimizer: Any, budget: Any, slow: Any, options: Any) -> TrainingPolicy:
    return OwnedOffloading(model, optimizer, budget=budget, slow=slow, **options)


_POLICIES: dict[str, Callable[[Any, Any, Any, Any, Any], TrainingPolicy]] = {
    "sentinel": _sentinel,
    "memferry": _memferry,
    "offload": _offload,
}


def train_in(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    budget: int | str,
    policy: str = "sentinel",
    slow: str | Path = "host",
    **options: Any,
) -> TrainingPolicy:
    """Train a model in less memory from now on; return the policy, which ``with`` closes.

    The training loop stays as it is. Wrappers of the optimizer, such as ``accelerate``'s, and of
    the model, such as ``torch.compile``'s, may be given.

    Parameters
    ----------
    budget
        Most memory of the model's device: bytes, or a size such as ``"12GiB"``; for ``"sentinel"``
        also a share of a step's peak, such as ``"25%"``.
    policy
        ``"sentinel"``, ``"memferry"`` or ``"offload"``: see
        :class:`~sw_driver.torch.sentinel.Sentinel`, :class:`~sw_driver.torch.memferry.MemFerry` and
        :class:`~sw_driver.torch.offloading.owned.OwnedOffloading`.
    slow
        Place of what is elsewhere: ``"host"``, a folder, or the path of a new file.
    options
        Further arguments of the policy's class.

    Raises
    ------
    InvalidArgumentError
        For an invalid argument. The model is as before then.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    >>> with train_in(model, optimizer, budget="1MiB") as policy:
    ...     model(torch.ones(64, 256)).square().mean().backward()
    ...     optimizer.step()
    >>> policy.report()["budget_bytes"]
    1048576
    """
    check_name("policy", policy, _POLICIES)
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    parts = model.modules() if isinstance(model, nn.Module) else ()
    if policy == "sentinel" and any(map(_is_compiled, parts)):
        warnings.warn(
            "under policy 'sentinel' a model of torch.compile runs uncompiled: expect the plain "
            "model's speed",
            stacklevel=2,
        )
    model = getattr(model, "_orig_mod", model)  # what torch.compile() wraps
    return _POLICIES[policy](model, optimizer, budget, slow, options)


def _is_compiled(module: nn.Module) -> bool:
    wrapped = hasattr(module, "_orig_mod")
    return wrapped or getattr(module, "_compiled_call_impl", None) is not None
