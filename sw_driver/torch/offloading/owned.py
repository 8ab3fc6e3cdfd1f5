"""Offloading of a model with PyTorch's optimizer, onto a simulated module made for it."""

from __future__ import annotations

import inspect
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MethodType, SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

import sw_driver.torch
from hw.rules import rule
from sw_driver.axdimm import Axdimm, BackendOptions
from sw_driver.axdimm.transport import WINDOW_BYTES
from sw_driver.device.errors import InvalidArgumentError, shown
from sw_driver.numbers import check_size
from sw_driver.torch import ModuleOptimizer
from sw_driver.torch.parameters import check_training

from .optimizer import offloaded
from .policy import Offloading

__all__ = ["OwnedOffloading"]

_CHANNELS = 2
"""Channels of the module."""

_CALLS = "step", "state_dict", "load_state_dict", "add_param_group"
"""Calls of PyTorch's optimizer that the module's answers."""

_HOOKS = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"


class OwnedOffloading(Offloading):
    """Offloading that PyTorch's optimizer trains by, with a module and storage of its own.

    The optimizer's calls go to the module's optimizer of the same name until :meth:`close`, which
    gives the optimizer its state.

    Parameters
    ----------
    slow
        Place of what the module has no room for: ``"host"`` for a module that has room for all, a
        folder, or the path of a new file. With a place on disk the module is as large as the
        budget, or as the largest parameter's tensors if these are larger.
    module
        Backend that simulates the module.
    options
        Arguments of :class:`~sw_driver.torch.offloading.policy.Offloading`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        budget: int | str | None = None,
        slow: str | Path = "host",
        module: str = "golden",
        **options: Any,
    ) -> None:
        check_training(model, optimizer)
        budget_bytes = None if budget is None else check_size("budget", budget)
        kind, given = _of_module(optimizer)
        example = torch.zeros(1, dtype=torch.float32, device="cpu")
        probe = offloaded(kind)([example], device=SimpleNamespace(device=None), **given)
        name = probe.rule_name(probe.param_groups[0])
        # One more than the rule has, for a gradient that is not on the module.
        tensors = len(rule(name).tensors) + 1
        sizes = [tensors * -(-4 * one.numel() // 64) * 64 for one in model.parameters()]
        largest_bytes, total_bytes = max(sizes, default=64), sum(sizes)
        room_bytes = largest_bytes + total_bytes // _CHANNELS
        with ExitStack() as stack:
            storage = None
            if slow != "host":
                room_bytes = min(max(largest_bytes, (budget_bytes or 0) // _CHANNELS), room_bytes)
                storage = stack.enter_context(_Storage(slow, 2 * total_bytes + (1 << 20)))
            settings = {
                "rules": (name,),
                "capacity_bytes": 1 << (room_bytes + 2 * WINDOW_BYTES - 1).bit_length(),
            }
            self.device = stack.enter_context(
                Axdimm(module, options=BackendOptions(settings=settings))
            )
            super().__init__(
                self.device,
                kind,
                budget=budget_bytes,
                capacity_bytes=room_bytes,
                placement="by_bytes",
                storage=storage,
                model_device=next((one.device.type for one in model.parameters()), "cpu"),
                **given,
                **options,
            )
            stack.push(lambda *error: error[0] is not None and Offloading.close(self))
            self.take(model)
            self._train_by(optimizer)
            self._owned = stack.pop_all()

    def _train_by(self, optimizer: Optimizer) -> None:
        keys = {*inspect.signature(self._kind).parameters, "params"}
        own = optimizer.param_groups
        groups = [{key: group[key] for key in group if key in keys} for group in own]
        made: Any = self.optimizer(groups)
        made.state.update(optimizer.state)
        self.send_states(made.state)
        for hooks in _HOOKS:
            setattr(made, hooks, getattr(optimizer, hooks))

        def share() -> None:
            optimizer.param_groups, optimizer.state = made.param_groups, made.state

        def call(name: str) -> Any:
            def called(_: Optimizer, *args: Any, **keywords: Any) -> Any:
                if name == "load_state_dict":
                    optimizer.state = defaultdict(dict)  # the state before leaves the module first
                try:
                    return getattr(made, name)(*args, **keywords)
                finally:
                    share()

            return MethodType(called, optimizer)

        share()
        self._given, self._own_groups, self._made = optimizer, own, made
        for name in _CALLS:
            setattr(optimizer, name, call(name))

    def close(self) -> None:
        """Give the model its parameters and the optimizer its state, and close the module."""
        if self._closed:
            return
        super().close()
        for name in _CALLS:
            vars(self._given).pop(name, None)
        for own, group in zip(self._own_groups, self._made.param_groups, strict=False):
            own.update({key: group[key] for key in own.keys() & group.keys() - {"params"}})
        self._given.param_groups = self._own_groups
        self._owned.close()


def _of_module(optimizer: Optimizer) -> tuple[type[ModuleOptimizer], dict[str, Any]]:
    """Return the module's class for PyTorch's optimizer, and its options."""
    kind = type(optimizer)
    name = kind.__name__ if kind.__module__.startswith("torch.optim") else ""
    known = [other for other in sw_driver.torch.__all__ if hasattr(torch.optim, other)]
    if name not in known:
        raise InvalidArgumentError(
            f"optimizer is {kind.__name__}: expected one of torch.optim that the module has, "
            + ", ".join(known)
        )
    made: Any = getattr(sw_driver.torch, name)
    takes = inspect.signature(made).parameters
    return made, {key: value for key, value in optimizer.defaults.items() if key in takes}


class _Storage:
    """File for the module's storage, which is removed at the end."""

    def __init__(self, slow: str | Path, nbytes: int) -> None:
        if not isinstance(slow, str | Path) or not str(slow):
            raise InvalidArgumentError(
                f"slow is {shown(slow)}: expected 'host', a folder, or the path of a new file"
            )
        self._nbytes, self._stack = nbytes, ExitStack()
        self._path = Path(slow)

    def __enter__(self) -> Path:
        path = self._path
        try:
            if path.is_dir():
                path = Path(self._stack.enter_context(TemporaryDirectory(dir=path))) / "nvme.img"
            with path.open("xb") as file:
                self._stack.callback(path.unlink, missing_ok=True)
                file.truncate(self._nbytes)
        except OSError as error:
            raise InvalidArgumentError(
                f"slow is {shown(str(self._path))}: {error.strerror}: expected 'host', a folder, "
                "or the path of a new file"
            ) from None
        return path

    def __exit__(self, *_: object) -> None:
        self._stack.close()
