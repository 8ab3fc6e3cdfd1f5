"""Models larger than the device's memory: built, run, trained and saved without changing them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from hw.rules import rule
from sw_driver.device.errors import InvalidArgumentError, shown
from sw_driver.files import replacing
from sw_driver.torch import ModuleOptimizer
from sw_driver.torch.copies import PlainCopies
from sw_driver.torch.moves import table
from sw_driver.torch.residency import held_of

from .optimizer import OffloadedOptimizer, offloaded
from .policy import DeviceMemory, ParameterPolicy, Stored

__all__ = ["Offloading"]

STATELESS = "sgd"
"""Rule that frozen parameters are stored for, if the module has it: it keeps no state."""

M = TypeVar("M", bound=nn.Module)


class Offloading:
    """Training of a model with parameters, gradients and optimizer state in a store.

    Enter it with ``with``: PyTorch's operations of the same thread then fetch the tensors they
    need. Leaving calls :meth:`close`.

    Parameters
    ----------
    store: an opened :class:`~sw_driver.torch.offloading.store.TensorStore`, which stays open.
    kind: an optimizer class of :mod:`sw_driver.torch`.
    options: arguments of that class, for all parameters.
    budget: most bytes of the device's memory, see
        :class:`~sw_driver.torch.offloading.policy.DeviceMemory`. A CUDA GPU has its own.
    prefetch: number of parameters fetched ahead of their use.
    early_updates: run an update when the gradient has arrived, not only in ``step()``.
    device: device of the model, ``"cpu"`` or ``"cuda"``.

    Raises
    ------
    TypeError, ValueError, InvalidArgumentError: for an invalid argument.

    Examples
    --------
    >>> import torch
    >>> from nearmem import Axdimm, BackendOptions
    >>> from nearmem.torch import Adam, TensorStore
    >>> rules = BackendOptions(settings={"rules": ("adam", "sum_squares", "fill", "accumulate")})
    >>> with Axdimm("golden", options=rules) as device, TensorStore(device) as store:
    ...     with Offloading(store, Adam) as platform:
    ...         print(platform.take(torch.nn.Linear(64, 64))(torch.ones(1, 64)).shape)
    torch.Size([1, 64])
    """

    def __init__(
        self,
        store: Any,
        kind: type[ModuleOptimizer],
        *,
        budget: int | str | None = None,
        prefetch: int = 4,
        early_updates: bool = True,
        device: str = "cpu",
        **options: Any,
    ) -> None:
        if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 0:
            raise ValueError(
                f"prefetch is {shown(prefetch)}: expected a number of parameters from 0 on"
            )
        if not isinstance(early_updates, bool):
            raise ValueError(f"early_updates is {shown(early_updates)}: expected a bool")
        self.store = store
        self.early_updates = early_updates
        self._kind, self._options = offloaded(kind), options
        example = torch.zeros(1, dtype=torch.float32, device="cpu")
        probe = self._kind([example], device=None, **options)
        group = probe.param_groups[0]
        self.rule = probe.rule_name(group)
        """Name of the update rule."""
        self.tensors = rule(self.rule).tensors
        """Names of the update rule's tensors."""
        self._initial = {name: probe.initial(group) for name in self.tensors if name not in "pg"}
        self.memory = DeviceMemory(budget, kind=device)
        self.residency = ParameterPolicy(store, self.memory, self._add, prefetch)
        self.model: nn.Module | None = None
        """Model returned by :meth:`build` or :meth:`take`."""
        if not hasattr(store, "fetch"):
            raise TypeError(f"store is {shown(store)}: expected an opened TensorStore")
        self._optimizer: OffloadedOptimizer | None = None
        self._hooks: list[Any] = []
        self._thread: int | None = None
        self._number = 0

    @property
    def peak_bytes(self) -> int:
        """Peak of the device's memory in bytes."""
        return self.memory.peak_bytes

    def report(self) -> dict[str, Any]:
        """Return totals of the device's memory, ready for JSON.

        The store's ``statistics()`` has those of the module.
        """
        fetched, ahead = self.residency.fetches, self.residency.prefetches
        return {
            **self.memory.report(),
            "hits": ahead,
            "misses": fetched - ahead,
            "fetches": fetched,
            "prefetches": ahead,
        }

    def __str__(self) -> str:
        return table("Offloading", self.report())

    def timeline(self, path: str | Path) -> Path:
        """Write when parameters moved in the last step, and return the file.

        The file is for https://ui.perfetto.dev, or a picture if its name ends in ``.svg`` or
        ``.png``. Times are the host's; the module's own are in the device's ``timeline``. Raises
        ``InvalidArgumentError`` for a path that cannot be written.
        """
        return self.residency.moves.write(path, "Offloading")

    def __enter__(self) -> Self:
        self.memory.__enter__()
        self._thread = threading.get_ident()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "Offloading belongs to its store: copy the model, which gives a plain model, or save()"
        )

    def close(self) -> None:
        """Remove all hooks from the model, and bring its parameters back beyond any limit.

        Calling it twice does no harm.
        """
        if self._optimizer is not None:
            self._optimizer.close()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self.model is not None:
            self.model.__dict__.pop("zero_grad", None)
            self._copies.close()
        self._thread = None
        for stored in self.residency:
            self.residency.forget(stored)
        self.memory.close()

    # The model.

    def build(self, make: Callable[..., M], *args: Any, **options: Any) -> M:
        """Return the model of ``make(*args, **options)``, which is never on the device as a whole.

        Parameters leave as they are initialised. They are bit for bit those of plain construction,
        since the operations are the same. Raises as :meth:`take` does.
        """
        self._check_free()
        if not callable(make):
            raise TypeError(f"make is {shown(make)}: expected a function that returns a model")
        last: list[nn.Module] = []
        owners: dict[int, str] = {}

        def registered(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
            name = f"{type(module).__name__}.{name}"
            if parameter is not None and self._is_new(name, parameter, owners):
                if last and last[0] is not module:
                    self.residency.release()
                last[:] = [module]
                self.residency.hold(name, parameter)

        hook = register_module_parameter_registration_hook(registered)
        self.residency.building = True
        try:
            return self.take(make(*args, **options))
        except BaseException:
            for stored in self.residency:
                self.residency.forget(stored)
            raise
        finally:
            hook.remove()
            self.residency.building = False

    def take(self, model: M) -> M:
        """Move the parameters of a model to the store, and return the model.

        Raises
        ------
        RuntimeError: outside ``with``, or if there is a model already.
        TypeError: for a parameter that is not in FP32.
        ValueError: for a parameter that is offloaded already, shares memory with another, is not
            contiguous or not initialised, or is on another device.
        OutOfMemoryError: if the module and its storage are full.
        """
        self._check_free()
        if not isinstance(model, nn.Module):
            raise TypeError(f"model is {shown(model)}: expected a torch Module")
        parameters = dict(model.named_parameters())
        owners: dict[int, str] = {}
        new = [name for name, one in parameters.items() if self._is_new(name, one, owners)]
        for name in new:
            self.residency.release()
            self.residency.hold(name, parameters[name])
        names = {parameter: name for name, parameter in parameters.items()}
        for stored in self.residency:
            if stored.parameter in names:
                stored.name = stored.held.name = names[stored.parameter]
            else:
                self.residency.forget(stored)  # replaced while the model was built
        self.residency.release()
        self._hooks.append(model.register_forward_pre_hook(self._before_forward))
        self._hooks.append(model.register_state_dict_pre_hook(partial(self._before_state)))
        self._hooks.append(model.register_load_state_dict_pre_hook(partial(self._before_load)))
        for module in model.modules():
            self._hooks.append(module.register_state_dict_post_hook(partial(self._fill)))
        self._copies = PlainCopies(
            model, self._hooks, names=("zero_grad",), check=self._before_state
        )
        self.model = model
        # Gradients are on the module, so PyTorch's own zero_grad() would not discard them.
        model.zero_grad = partial(self._zero_grad, model)  # type: ignore[method-assign]
        return model

    def optimizer(self, params: Any = None, **options: Any) -> OffloadedOptimizer:
        """Return the optimizer of the model's parameters, or of ``params`` as in PyTorch.

        ``options`` add to those of the platform. Raises the class's errors, ``RuntimeError``
        without a model or for a second optimizer, and ``ValueError`` for other parameters or
        another rule.
        """
        if self.model is None or self._optimizer is not None:
            raise RuntimeError(
                "there is no model: build() or take() one first"
                if self.model is None
                else "there is an optimizer already: give it groups, or add_param_group()"
            )
        if params is None:
            params = [one for one in self.model.parameters() if one.requires_grad]
        self._optimizer = self._kind(params, device=self, **{**self._options, **options})
        return self._optimizer

    def find(self, parameter: Tensor) -> Stored | None:
        """Return the record of an offloaded parameter, None for another one."""
        known = isinstance(parameter, Tensor) and not nn.parameter.is_lazy(parameter)
        held = held_of(parameter) if known else None
        return held.place if held is not None and held.residency is self.memory else None

    # Checkpoints.

    def save(self, path: str | Path, **more: Any) -> None:
        """Write model, optimizer and ``more`` for ``torch.load``, completely or not at all.

        ``"model"`` and ``"optimizer"`` are state dicts that plain PyTorch loads. ``more`` has to
        consist of types that ``torch.load`` accepts by default: tensors, numbers, strings, lists
        and dicts. On return the file is on the disk. Raises ``OSError``, and ``RuntimeError``
        without an optimizer and between ``backward()`` and ``step()``.
        """
        model, optimizer = self._both()
        state = optimizer.state_dict()
        content = {**more, "model": model.state_dict(), "optimizer": state}
        path = Path(path)
        with replacing(path) as part, part.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def load(self, path: str | Path) -> dict[str, Any]:
        """Load a checkpoint of :meth:`save`, and return it.

        An iteration in progress is discarded. Raises ``ValueError`` for another or an incomplete
        file, ``OSError``, ``RuntimeError`` without an optimizer, and the errors of
        ``load_state_dict``.
        """
        model, optimizer = self._both()
        path = Path(path)
        try:
            content = torch.load(path, map_location="cpu")
        except Exception as error:
            if isinstance(error, OSError) and error.filename is not None:
                raise
            words = str(error).split("\n")[0] or type(error).__name__
            raise ValueError(f"{path} is no checkpoint of save(), or not whole: {words}") from error
        if not isinstance(content, dict) or not {"model", "optimizer"} <= content.keys():
            raise ValueError(f"{path} is no checkpoint of save(): expected model and optimizer")
        model.load_state_dict(content["model"])
        self.residency.release()
        optimizer.load_state_dict(content["optimizer"])
        return content

    def _both(self) -> tuple[nn.Module, OffloadedOptimizer]:
        if self.model is None or self._optimizer is None:
            raise RuntimeError("there is nothing to save or load: make model and optimizer() first")
        return self.model, self._optimizer

    # Hooks and checks.

    def _add(self, stored: Stored, values: NDArray[np.float32]) -> Any:
        self._number += 1
        name = f"{stored.name} ({self._number})"  # two modules may have parameters of one name
        if not stored.parameter.requires_grad:
            with suppress(InvalidArgumentError):
                key = self.store.add(name, values, rule=STATELESS)
                stored.stateless = self.rule != STATELESS
                return key
        return self.store.add(name, values, rule=self.rule, initial_state=self._initial)

    def _zero_grad(self, model: nn.Module, set_to_none: bool = True) -> None:
        if self._optimizer is not None:
            self._optimizer.zero_grad(set_to_none)
        nn.Module.zero_grad(model, set_to_none)

    def _fill(self, module: nn.Module, state: dict[str, Any], prefix: str, _: object) -> None:
        """Put copies of the parameters' values into a state dict."""
        for name in module._parameters:
            if prefix + name in state:
                state[prefix + name] = self.memory.copied(state[prefix + name])

    def _before_state(self, *_: object) -> None:
        for stored in self.residency:
            if stored.hyperparameters is not None:
                raise RuntimeError(
                    f"state_dict() between backward() and step(), or a copy: {stored.name} is "
                    "updated already, and others are not; call step() first"
                )

    def _before_load(self, *_: object) -> None:
        if self._optimizer is not None:
            self._optimizer.give_up()

    def _before_forward(self, *_: object) -> None:
        if threading.get_ident() != self._thread:
            raise RuntimeError(
                "the model is offloaded in another thread: run it in the one that entered its "
                "Offloading"
            )

    def _check_free(self) -> None:
        if self._thread != threading.get_ident():
            raise RuntimeError("Offloading is not entered in this thread: use it within with")
        if self.model is not None:
            raise RuntimeError(
                "this Offloading has a model already: open another one with a store of its own"
            )

    def _is_new(self, name: str, parameter: nn.Parameter, owners: dict[int, str]) -> bool:
        """Return whether a parameter still has to be stored, and make it its memory's owner.

        Raises an error for a parameter that cannot be stored.
        """
        stored = self.find(parameter)
        if stored is not None and stored.parameter is parameter:
            return False
        if nn.parameter.is_lazy(parameter):
            raise ValueError(f"{name} is not initialised: run the model once before")
        if parameter.dtype != torch.float32:
            raise TypeError(f"{name} is {parameter.dtype}: expected torch.float32")
        if parameter.device.type != self.memory.kind:
            raise ValueError(
                f"{name} is on {parameter.device}: expected it on {self.memory.kind}, the "
                "device of this Offloading"
            )
        nbytes = 4 * parameter.numel()
        held = held_of(parameter)
        if held is not None and held.residency is not self.memory and held.place is not None:
            raise ValueError(f"{name} is offloaded already, by another Offloading: close that one")
        storage = parameter.untyped_storage()
        other = owners.setdefault(storage._cdata, name)
        if other is not name and nbytes:
            raise ValueError(
                f"{name} shares memory with {other}: register one Parameter in both places"
            )
        if not parameter.is_contiguous():
            raise ValueError(f"{name} is not contiguous: register parameter.contiguous()")
        if storage.nbytes() != nbytes:
            raise ValueError(
                f"{name} lies in memory of {storage.nbytes()} bytes, of which it is {nbytes}: "
                "expected memory of its own; register a clone()"
            )
        return nbytes > 0
