"""Models larger than the device's memory: built, run, trained and saved without changing them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from hw.rules import rule
from sw_driver.axdimm import Axdimm
from sw_driver.device.errors import AxdimmError, InvalidArgumentError, shown
from sw_driver.files import replacing
from sw_driver.numbers import check_integer, check_name, check_size
from sw_driver.torch import ModuleOptimizer
from sw_driver.torch.copies import PlainCopies, as_copies
from sw_driver.torch.moves import Moves, Watched, table
from sw_driver.torch.residency import Held, Policy, Residency
from sw_driver.torch.step import untraced

from .optimizer import OffloadedOptimizer, offloaded
from .store import ChannelChoice, ModuleStore, Place

__all__ = ["DeviceMemory", "Offloading"]

_FORM = "a positive number of bytes, a size such as '12GiB', or None"

_PARAMETER = 0
"""Slot of a parameter's record; other tensors have none."""

M = TypeVar("M", bound=nn.Module)

Use = tuple[Held | None, tuple[bool, bool]]
"""A parameter, and whether it was used in the backward pass and with gradients enabled.

The two flags tell a layer's recomputation in the backward pass from its backward pass.
"""

START: tuple[Use, Held | None] = ((None, (False, False)), None)


class DeviceMemory(Residency):
    """Account of the tensors that PyTorch's operations make, as in a GPU's memory.

    While it is entered, every tensor that an operation returns counts with its whole storage until
    the storage is freed: parameters, activations, gradients, optimizer state, intermediate results.
    Tensors made elsewhere are the host's (data sets, NumPy arrays). On a CPU with the compiled
    guard, memory inside operations counts, too. Operations of other threads do not count.

    Parameters
    ----------
    budget: most bytes in memory at a time, also as ``"12GiB"``; None for no limit. Beyond it
        ``torch.OutOfMemoryError`` names the requested bytes, the free bytes and the budget.
    kind: device type of the tensors that count, ``"cpu"`` or ``"cuda"``.

    Raises
    ------
    InvalidArgumentError: for a budget that is no positive size, or if the kind is unknown.

    Examples
    --------
    >>> import torch
    >>> with DeviceMemory(10_000):
    ...     small, large = torch.ones(1000), torch.ones(2000)
    Traceback (most recent call last):
        ...
    torch.OutOfMemoryError: no room for 8000 bytes on the device, for aten.ones.default: ...
    """

    def __init__(
        self, budget: int | str | None = None, policy: Policy | None = None, *, kind: str = "cpu"
    ) -> None:
        check_name("the device's type", kind, ("cpu", "cuda"))
        budget_bytes = None if budget is None else check_size("budget", budget, form=_FORM)
        super().__init__(None, policy, budget_bytes, least_bytes=1, kind=kind)


class Offloading(Policy):
    """Training of a model with parameters, gradients and optimizer state on a module.

    They are on the device's memory only while an operation uses them, or soon will: a parameter is
    fetched before the first operation on it or a view of it, and leaves when an operation uses
    another one, unless it will be used soon. The next uses are predicted from the last time that
    the same two parameters were used one after the other, in the same pass. A gradient leaves once
    autograd has all of it. Other tensors stay on the device.

    Parameters
    ----------
    device: the opened module, which stays open.
    kind: an optimizer class of :mod:`sw_driver.torch`.
    options: arguments of that class, for all parameters.
    budget: most bytes of the model's device, see :class:`DeviceMemory`. A CUDA GPU has its own.
    capacity_bytes, placement, storage, storage_bytes: the module's memory and what is behind it,
        see :class:`~sw_driver.torch.offloading.store.ModuleStore`.
    prefetch: number of parameters fetched ahead of their use.
    model_device: type of the model's device, ``"cpu"`` or ``"cuda"``.

    Raises
    ------
    TypeError, ValueError, InvalidArgumentError: for an invalid argument.
    OutOfMemoryError, StorageError: without as much memory on the module, or for its storage.

    Examples
    --------
    >>> import torch
    >>> from nearmem import Axdimm
    >>> from nearmem.torch import Adam
    >>> with Axdimm("golden") as device, Offloading(device, Adam, lr=0.1) as platform:
    ...     platform.take(torch.nn.Linear(64, 64))(torch.ones(1, 64)).sum().backward()
    ...     platform.optimizer().step()
    >>> platform.report()["host_to_module_bytes"]
    66560
    """

    def __init__(
        self,
        device: Axdimm,
        kind: type[ModuleOptimizer],
        *,
        budget: int | str | None = None,
        capacity_bytes: int | None = None,
        placement: ChannelChoice = "round_robin",
        storage: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        storage_bytes: int | None = None,
        prefetch: int = 4,
        model_device: str = "cpu",
        **options: Any,
    ) -> None:
        self._ahead = check_integer("prefetch", prefetch, 0, error=ValueError)
        self._kind, self._options = offloaded(kind), options
        self.device = device
        example = torch.zeros(1, dtype=torch.float32, device="cpu")
        probe = self._kind([example], device=self, **options)
        self._tensors = len(rule(probe.rule_name(probe.param_groups[0])).tensors)
        """Number of tensors that a parameter's update needs."""
        self.memory = DeviceMemory(budget, self, kind=model_device)
        """Account of the model's device."""
        self.store = ModuleStore(
            device,
            capacity_bytes=capacity_bytes,
            placement=placement,
            storage=storage,
            storage_bytes=storage_bytes,
            kind=model_device,
        )
        self.moves = Moves()
        """Moves of tensors, by step."""
        self._watched = Watched(self.store, self.moves)
        self.model: nn.Module | None = None
        """Model returned by :meth:`build` or :meth:`take`."""
        self.fetches = 0
        self.prefetches = 0
        """Fetches that started before an operation needed them."""
        self._optimizer: OffloadedOptimizer | None = None
        self._hooks: list[Any] = []
        self._here: dict[Held, None] = {}
        """Tensors on the device that may leave, in the order of their arrival."""
        self._current: set[Held] = set()
        self._place = START
        self._followed: dict[tuple[Use, Held | None], Use] = {}
        """Use that followed last time, by a use and the parameter before it."""
        self._building = False
        """True while a model is built: nothing leaves by itself, and no order is learnt."""
        self._closed = False
        try:
            self.memory.__enter__()
        except BaseException:
            self.store.close()
            raise

    @property
    def peak_bytes(self) -> int:
        """Peak of the device's memory in bytes."""
        return self.memory.peak_bytes

    def report(self) -> dict[str, Any]:
        """Return the totals so far, ready for JSON; the simulated time is None without a clock."""
        moved = self.store.statistics()
        routes = {
            f"{route.replace('->', '_to_')}_bytes": nbytes
            for route, nbytes in sorted(moved.copied_bytes.items())
        }
        timed = self.device.transport.timed
        return {
            **self.memory.report(),
            "hits": self.prefetches,
            "misses": self.fetches - self.prefetches,
            "fetches": self.fetches,
            "prefetches": self.prefetches,
            **routes,
            "evictions": moved.evictions,
            "simulated_ns": round(self.device.simulated_ns) if timed else None,
        }

    def __str__(self) -> str:
        return table("Offloading", self.report())

    def timeline(self, path: str | Path) -> Path:
        """Write when tensors moved in the last step, and return the file.

        The file is for https://ui.perfetto.dev, or a picture if its name ends in ``.svg`` or
        ``.png``. Times are the host's; the module's own are in the device's ``timeline``. Raises
        ``InvalidArgumentError`` for a path that cannot be written.
        """
        return self.moves.write(path, "Offloading")

    def __enter__(self) -> Self:
        if self._closed:
            raise InvalidArgumentError("this policy is closed: make another")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "Offloading belongs to its module: copy the model, which gives a plain model, or save()"
        )

    def close(self) -> None:
        """Bring all tensors back beyond any budget, and free the module's memory.

        What was in a module that has failed is NaN. Calling it twice does no harm.
        """
        if self._closed:
            return
        self.memory.check_thread()
        self._closed = True
        for hook in self._hooks:
            hook.remove()
        if self.model is not None:
            self._copies.close()
        self._forget_all()
        self.memory.close()
        self.store.close()

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

        def registered(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
            if parameter is not None:
                if last and last[0] is not module:
                    self._release()
                last[:] = [module]
                self._hold(f"{type(module).__name__}.{name}", parameter)

        hook = register_module_parameter_registration_hook(registered)
        self._building = True
        try:
            return self.take(make(*args, **options))
        except BaseException:
            self._forget_all()
            raise
        finally:
            hook.remove()
            self._building = False

    def take(self, model: M) -> M:
        """Move the parameters of a model to the module, and return the model.

        Those that are not in FP32, not contiguous or without memory of their own stay on the
        device; an update copies them there and back.

        Raises
        ------
        RuntimeError: if there is a model already.
        InvalidArgumentError: for parameters of another policy or device, and after ``close()``.
        OutOfMemoryError: if the module and its storage are full.
        """
        self._check_free()
        if not isinstance(model, nn.Module):
            raise TypeError(f"model is {shown(model)}: expected a torch Module")
        for name, parameter in model.named_parameters():
            self._release()
            self._hold(name, parameter)
        self._release()
        for parameter in model.parameters():
            if parameter.requires_grad and not nn.parameter.is_lazy(parameter):
                self._hooks.append(parameter.register_post_accumulate_grad_hook(self._came))
        self._hooks.append(model.register_state_dict_post_hook(as_copies))
        self._copies = PlainCopies(model, self._hooks)
        self.model = model
        return model

    def optimizer(self, params: Any = None, **options: Any) -> OffloadedOptimizer:
        """Return the optimizer of the model's parameters, or of ``params`` as in PyTorch.

        ``options`` add to those of the policy. Raises the class's errors, and ``RuntimeError``
        without a model or for a second optimizer.
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
        self.send_states(self._optimizer.state)
        return self._optimizer

    # Checkpoints.

    def save(self, path: str | Path, **more: Any) -> None:
        """Write model, optimizer and ``more`` for ``torch.load``, completely or not at all.

        ``"model"`` and ``"optimizer"`` are state dicts that plain PyTorch loads. ``more`` has to
        consist of types that ``torch.load`` accepts by default: tensors, numbers, strings, lists
        and dicts. On return the file is on the disk. Raises ``OSError``, and ``RuntimeError``
        without an optimizer.
        """
        model, optimizer = self._both()
        content = {**more, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
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

        Raises ``ValueError`` for another or an incomplete file, ``OSError``, ``RuntimeError``
        without an optimizer, and the errors of ``load_state_dict``.
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
        self._release()
        optimizer.load_state_dict(content["optimizer"])
        return content

    def _both(self) -> tuple[nn.Module, OffloadedOptimizer]:
        if self.model is None or self._optimizer is None:
            raise RuntimeError("there is nothing to save or load: make model and optimizer() first")
        return self.model, self._optimizer

    # Called by the optimizer.

    def name_of(self, parameter: Tensor) -> str:
        """Return a parameter's name in the model."""
        named = self.model.named_parameters() if self.model is not None else ()
        return next((name for name, one in named if one is parameter), "a parameter")

    def send(self, tensor: Tensor, parameter: Tensor) -> None:
        """Let a tensor of a parameter leave for the parameter's channel, if it can leave."""
        own = self.memory.of(parameter)
        held = self._managed(tensor, own.place if own is not None else None)
        if held is not None:
            self._release([held])

    def send_states(self, states: Mapping[Any, Any]) -> None:
        """Let the tensors of an optimizer's state leave."""
        for parameter, state in states.items():
            for key, value in state.items():
                if isinstance(value, Tensor) and key != "step":
                    self.send(value, parameter)

    @contextmanager
    def places(
        self, tensors: Mapping[str, Tensor], outputs: Iterable[str]
    ) -> Iterator[dict[str, Place]]:
        """Give the places of an update's tensors, which have its results afterwards.

        A tensor that cannot be on the parameter's channel is copied there, and back.
        """
        places: dict[str, Place] = {}
        away: dict[str, Held] = {}
        try:
            for name, tensor in tensors.items():
                beside = next(iter(places.values()), None)
                held = self._managed(tensor, beside)
                if held is not None and held.place.room is not (beside or held.place).room:
                    held = None
                if held is not None:
                    self._release([held])
                if held is not None and not held.here:
                    away[name], places[name] = held, held.place
                else:
                    values = tensor.detach().to(self.memory.kind, torch.float32)
                    values = values.resolve_neg().contiguous()
                    places[name] = self.store.take(values.nbytes, beside=beside)
                    self.store.write(places[name], values.data_ptr(), values.nbytes)
            yield places
            for name in outputs:
                if name in away:
                    away[name].copied = None
                else:
                    values = torch.empty(
                        tensors[name].shape, dtype=torch.float32, device=self.memory.kind
                    )
                    self.store.read(places[name], values.data_ptr(), values.nbytes).wait()
                    tensors[name].copy_(values)
        finally:
            for name in places.keys() - away.keys():
                self.store.give(places[name], places[name].nbytes)

    def restart(self) -> None:
        """Begin an iteration: fetch the parameters that its first operations used last time."""
        self.store.begin_iteration()
        self._place = START
        self._current.clear()
        self._look_ahead(self._next())

    # Called by the residency.

    def before(self, func: Any, used: list[Held]) -> int:
        """Fetch what an operation uses and what comes soon after; let the rest leave."""
        touched = [held for held in used if held.place is not None]
        new = [held for held in touched if held not in self._current or not held.here]
        if not new:
            return 0
        self._current, ahead = set(touched), []
        training = torch._C._current_graph_task_id() != -1, torch.is_grad_enabled()
        if not self._building:
            for held in new:
                if held.slot == _PARAMETER:
                    self._followed[self._place] = use = held, training
                    self._place = use, self._place[0][0]
            ahead = self._next()
            self._release(held for held in [*self._here] if held not in {*touched, *ahead})
        for held in new:
            if not held.here:
                self._fetch(held)
        self._look_ahead(ahead)
        return 0

    def victim(self, residency: Residency, stay: Collection[Held]) -> Held | None:
        """Return what was fetched for the latest use, even if it is still on its way."""
        there = (one for one in reversed(self._here) if one.here and one not in stay)
        latest = next(filter(residency.can_leave, there), None)
        return latest or super().victim(residency, stay)

    def freed(self, held: Held) -> None:
        """Forget a tensor that was freed."""
        self._here.pop(held, None)
        self._current.discard(held)

    # Helpers.

    def _next(self) -> list[Held]:
        """Return the parameters that were used next when this place was last passed."""
        place, ahead = self._place, []
        for _ in range(2 * self._ahead):
            use = self._followed.get(place)
            if use is None or len(ahead) == self._ahead:
                break
            if use[0] is not None and not (use[0].gone or use[0] in {*self._current, *ahead}):
                ahead.append(use[0])
            place = use, place[0][0]
        return ahead

    def _look_ahead(self, ahead: list[Held]) -> None:
        for held in ahead:
            if not held.here:
                if not self._fetch(held):
                    break
                self.prefetches += 1

    def _fetch(self, held: Held) -> bool:
        came = self.memory.fetch(held)
        if came:
            self.fetches += 1
            self._here[held] = None
        return came

    def _release(self, these: Iterable[Held] | None = None) -> None:
        """Free the device's memory of these tensors, or of all; changes go to the store."""
        for held in [*self._here] if these is None else these:
            if held.here and self.memory.can_leave(held):
                self.memory.drop(held)
            self._here.pop(held, None)
            self._current.discard(held)

    def _managed(self, tensor: Tensor, beside: Place | None, name: str = "") -> Held | None:
        """Return the record of a tensor that may leave; None unless it fills a storage alone."""
        plain = (
            tensor.layout is torch.strided
            and tensor.dtype is torch.float32
            and tensor.is_contiguous()
            and not tensor.is_neg()
        )
        held = self.memory.held(tensor) if plain else None
        if held is None or held.nbytes != tensor.nbytes:
            return None
        if held.place is None:
            sizes = [held.nbytes] * (self._tensors if name and tensor.requires_grad else 1)
            place = self.store.take(
                held.nbytes, beside=beside, name=name or "a tensor", sizes=sizes
            )
            held.name, held.store, held.place = name, self._watched, place
            self._here[held] = None
        return held

    def _hold(self, name: str, parameter: nn.Parameter) -> None:
        """Take over a parameter on the device; it leaves when others are used."""
        if nn.parameter.is_lazy(parameter):
            return  # it comes with its first update
        self.memory.adopt([parameter])
        if (held := self._managed(parameter, None, name)) is not None:
            held.name, held.slot = name, _PARAMETER

    @untraced
    def _came(self, parameter: Tensor) -> None:
        """Let a gradient leave that autograd has just accumulated.

        After a hook that returns a value this is that value, without a gradient.
        """
        if isinstance(parameter, Tensor) and parameter.is_leaf and parameter.grad is not None:
            with torch.no_grad():
                self.send(parameter.grad, parameter)

    def _forget_all(self) -> None:
        for held in self.memory:
            if held.place is not None:
                storage = held.storage()
                self.freed(held)
                try:
                    self.memory.forget(held)
                except AxdimmError:
                    if storage is not None:
                        like = torch.empty(0, dtype=torch.float32, device=storage.device)
                        like.set_(storage).fill_(torch.nan)  # type: ignore[call-overload]

    def _check_free(self) -> None:
        if self._closed:
            raise InvalidArgumentError("this policy is closed: make another")
        self.memory.check_thread()
        if self.model is not None:
            raise RuntimeError(
                "this Offloading has a model already: make another one, with its own capacity_bytes"
            )
