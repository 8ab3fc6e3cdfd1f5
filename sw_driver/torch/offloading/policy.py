"""Memory of a device that trains, and the policy for parameters in it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sw_driver.device.errors import AxdimmError
from sw_driver.numbers import check_name, check_size
from sw_driver.torch.moves import Moves, Watched
from sw_driver.torch.residency import Held, Policy, Residency
from sw_driver.torch.stores import Job, Store

__all__ = ["DeviceMemory", "ParameterPolicy", "Stored"]

_FORM = "a positive number of bytes, a size such as '12GiB', or None"


class DeviceMemory(Residency):
    """Account of the tensors that PyTorch's operations make, as in a GPU's memory.

    While it is entered, every tensor that an operation returns counts with its whole storage until
    the storage is freed: parameters, activations, gradients, optimizer state, intermediate results.
    Tensors made elsewhere are the host's (data sets, NumPy arrays). Workspace inside operations and
    operations of other threads do not count.

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

    def __init__(self, budget: int | str | None = None, *, kind: str = "cpu") -> None:
        check_name("the device's type", kind, ("cpu", "cuda"))
        budget_bytes = None if budget is None else check_size("budget", budget, form=_FORM)
        super().__init__(budget=budget_bytes, least_bytes=1, kind=kind)


@dataclass(eq=False)
class Stored:
    """A parameter in the store, with its history in this iteration and before.

    The tensor itself stays valid, with its shape and its place in autograd's graph.
    """

    name: str
    parameter: torch.nn.Parameter
    held: Held
    key: Any = None
    """Key of the parameter in the store, set when it first leaves the device."""
    stateless: bool = False
    """True if the parameter was frozen when it was stored, without optimizer state."""
    group: int = 0
    """Number of the parameter's group."""
    steps: int = 0
    """Number of updates of the parameter."""
    gradients: int = 0
    """Gradients of the parameter in this iteration."""
    uses: int = 0
    """Training operations of this iteration that used the parameter."""
    hyperparameters: dict[str, float] | None = None
    """Hyper-parameters of this iteration's update, once it is queued."""
    usual: tuple[int, int] = 0, 0
    """Peak numbers of gradients and uses of the parameter in earlier iterations."""
    spent: bool = False
    """True if PyTorch would still have the gradient of an earlier iteration."""
    negated: bool = False
    """True if the gradients in the store are negated."""
    optimizer: Any = None
    """Optimizer that trains the parameter."""
    hook: Any = None
    """Handle of the hook that sends the parameter's gradients."""

    @property
    def keeps_gradient(self) -> bool:
        """True if the parameter has a gradient outside its ``grad``."""
        return self.gradients > 0 or self.spent


Use = tuple[Stored | None, tuple[bool, bool]]
"""A parameter, and whether it was used in the backward pass and with gradients enabled.

The two flags tell a layer's recomputation in the backward pass from its backward pass.
"""

START: tuple[Use, Stored | None] = ((None, (False, False)), None)


class ParameterPolicy(Policy):
    """Policy that brings parameters to the device for operations; other tensors stay there.

    A parameter is fetched before the first operation on it or a view of it. It leaves when an
    operation uses another parameter, unless it will be used soon. The next uses are predicted from
    the last time that the same two parameters were used one after the other, in the same pass.

    Parameters
    ----------
    store: a :class:`~sw_driver.torch.offloading.store.TensorStore`.
    add: puts a parameter into the store for the first time and returns its key.
    ahead: number of parameters fetched before they are needed.
    """

    def __init__(
        self,
        store: Any,
        memory: Residency,
        add: Callable[[Stored, NDArray[np.float32]], Any],
        ahead: int,
    ) -> None:
        memory.policy = self
        self._memory = memory
        self.moves = Moves()
        """Parameters' moves, by step."""
        self._module = Watched(_ModuleStore(store, add, memory.kind), self.moves)
        self._ahead = ahead
        self._stored: dict[Stored, None] = {}
        """All parameters; those on the device are in the order of their arrival."""
        self._current: set[Stored] = set()
        self._place = START
        self._followed: dict[tuple[Use, Stored | None], Use] = {}
        """Use that followed last time, by a use and the parameter before it."""
        self.fetches = 0
        self.prefetches = 0
        """Fetches that started before an operation needed them."""
        self.building = False
        """True while a model is built: nothing leaves by itself, and no order is learnt."""

    def __iter__(self) -> Iterator[Stored]:
        return iter([*self._stored])

    def hold(self, name: str, parameter: torch.nn.Parameter) -> Stored:
        """Take over a parameter on the device; it leaves when others are used."""
        held = self._memory.held(parameter)
        if held is None:
            raise _handed_out(name)
        held.name, held.store, held.place = name, self._module, Stored(name, parameter, held)
        self._stored[held.place] = None
        return held.place

    def forget(self, stored: Stored) -> None:
        """Stop managing a parameter, and leave it in memory.

        Its values are NaN if they were in a store that has failed.
        """
        self.freed(stored.held)
        try:
            self._memory.forget(stored.held)
        except AxdimmError:
            with torch.no_grad():
                stored.parameter.fill_(torch.nan)

    def restart(self) -> None:
        """Begin an iteration: fetch the parameters that its first operations used last time."""
        self._place = START
        for stored in self._stored:
            stored.spent |= stored.gradients > 0
            stored.uses, stored.gradients, stored.hyperparameters = 0, 0, None
        self._current.clear()
        self._look_ahead(self._next())

    def release(self, these: Iterable[Stored] | None = None) -> None:
        """Free the device's memory of these parameters, or of all; changes go to the store."""
        for stored in self if these is None else these:
            if stored.held.here:
                try:
                    self._memory.drop(stored.held)
                except RuntimeError as error:
                    raise _handed_out(stored.name) from error
                self._current.discard(stored)

    # Called by the residency.

    def before(self, func: Any, used: list[Held]) -> int:
        touched = [held.place for held in used if held.place is not None]
        if touched:
            self._use(touched)
        return 0

    def freed(self, held: Held) -> None:
        self._stored.pop(held.place, None)
        self._current.discard(held.place)

    def victim(self, residency: Residency, stay: Collection[Held]) -> Held | None:
        idle = [one for one in self if one.held.here and one not in self._current]
        self.release(idle)
        return idle[0].held if idle else None

    # Helpers.

    def _use(self, touched: list[Stored]) -> None:
        training = torch._C._current_graph_task_id() != -1, torch.is_grad_enabled()
        for stored in touched:
            if stored.hyperparameters is not None:
                raise RuntimeError(
                    f"{stored.name} is used again, but was updated when as many of its gradients "
                    "had come as in the iterations before: have early_updates=False where "
                    "iterations differ, and call step() before anything else. Go on from a "
                    "checkpoint"
                )
            stored.uses += any(training)
        new = [one for one in touched if one not in self._current or not one.held.here]
        if not new:
            return
        self._current, ahead = set(touched), []
        if not self.building:
            for stored in new:
                self._followed[self._place] = use = stored, training
                self._place = use, self._place[0][0]
            ahead = self._next()
            self.release(one for one in self if one not in {*touched, *ahead})
        for stored in new:
            if not stored.held.here:
                if stored.held.nbytes > self._memory.free_bytes:
                    self.victim(self._memory, ())
                self._fetch(stored)
        self._look_ahead(ahead)

    def _next(self) -> list[Stored]:
        """Return the parameters that were used next when this place was last passed."""
        place, ahead = self._place, []
        for _ in range(2 * self._ahead):
            use = self._followed.get(place)
            if use is None or len(ahead) == self._ahead:
                break
            if use[0] in self._stored and use[0] not in self._current and use[0] not in ahead:
                ahead.append(use[0])
            place = use, place[0][0]
        return ahead

    def _look_ahead(self, ahead: list[Stored]) -> None:
        for stored in ahead:
            if not stored.held.here:
                if not self._fetch(stored):
                    break
                self.prefetches += 1

    def _fetch(self, stored: Stored) -> bool:
        came = self._memory.fetch(stored.held)
        if came:
            self.fetches += 1
            self._stored[stored] = self._stored.pop(stored)
        return came


class _ModuleStore(Store):
    """Adapter of a :class:`~sw_driver.torch.offloading.store.TensorStore` to a residency.

    A place is a :class:`Stored`.
    """

    def __init__(self, store: Any, add: Any, kind: str) -> None:
        self._store, self._add, self._kind = store, add, kind

    def write(self, place: Stored, address: int, nbytes: int) -> Job:
        def copy() -> None:
            values = self._memory(address, nbytes).cpu().numpy()
            if place.key is None:
                place.key = self._add(place, values.reshape(place.parameter.shape))
            else:
                self._store.write(place.key, "p", values)

        return _Waited(copy)

    def read(self, place: Stored, address: int, nbytes: int) -> Job:
        memory = self._memory(address, nbytes)
        landing = memory if memory.is_cpu else torch.empty_like(memory, device="cpu")
        handle = self._store.fetch(place.key, landing.numpy())

        def copy() -> None:
            handle.wait()
            memory.copy_(landing)  # does nothing if they are the same

        return _Waited(copy)

    def _memory(self, address: int, nbytes: int) -> torch.Tensor:
        """Return FP32 values in the device's memory."""
        count = nbytes // 4
        if self._kind == "cpu":
            values = (ctypes.c_float * count).from_address(address)
            return torch.from_numpy(np.ctypeslib.as_array(values))
        interface = {"shape": (count,), "typestr": "<f4", "data": (address, False), "version": 3}
        values = SimpleNamespace(__cuda_array_interface__=interface)
        return torch.as_tensor(values, dtype=torch.float32, device=self._kind)


@dataclass(frozen=True)
class _Waited(Job):
    """A copy that the training thread ends; polling it would take simulated time."""

    copy: Callable[[], None]

    def done(self) -> bool:
        return False

    def wait(self) -> None:
        self.copy()


def _handed_out(name: str) -> RuntimeError:
    return RuntimeError(
        f"{name} cannot leave the device, for its memory was handed out: give others a copy, such "
        "as p.detach().clone().numpy()"
    )
