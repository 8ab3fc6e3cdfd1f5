"""Which parameters are in the device's memory: fetched before an operation, ahead of it, freed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from sw_driver.device.errors import AxdimmError
from sw_driver.torch.step import Interrupts

from .memory import DeviceMemory, tensors_in

__all__ = ["Held", "Residency"]

NOT_COPIED = (
    "an offloaded model's parameters lie in a store, so that it can be neither copied nor pickled: "
    "save its state_dict(), or load that into another model"
)

DETACH = torch.ops.aten.detach.default
"""An operation mostly of state dicts and programs that look at a parameter, not of the model."""

Use = tuple["Held | None", tuple[bool, bool]]
"""A parameter, and how it was used: whether in the backward pass, and whether to be differentiated.

A layer that is computed again in the backward pass differs from its backward pass by that."""

START: tuple[Use, Held | None] = ((None, (False, False)), None)


@dataclass(eq=False)
class Held:
    """A parameter that lives in the store; its storage is empty while it is not on the device.

    The tensor itself stays what it is, with its shape and its place in autograd's graph: views of
    it, and what autograd and checkpoints have saved of it, share the storage, and so come and go
    with it.
    """

    name: str
    parameter: torch.nn.Parameter
    storage: torch.UntypedStorage
    flat: torch.Tensor
    nbytes: int
    kind: type[torch.nn.Parameter]
    """The parameter's class before it was held."""
    key: Any = None
    """The parameter's key in the store, from when it first left the device."""
    stateless: bool = False
    """Whether the parameter was frozen when it was stored, without the optimizer's state."""
    fetch: Any = None
    """The handle of the copy that fetches the parameter, while it is under way."""
    landing: torch.Tensor | None = None
    """Host memory that the parameter goes through to a device that the store cannot write to
    itself."""
    dirty: bool = True
    """Whether an operation has written to the parameter since it was fetched."""
    updated: bool = False
    """Whether the parameter's update has been queued in this iteration."""
    uses: int = 0
    """Operations of this iteration's training that had the parameter among their arguments."""

    @property
    def moved(self) -> bool:
        """Whether the program gave the parameter other memory."""
        return self.parameter.untyped_storage()._cdata != self.storage._cdata


class Residency(TorchDispatchMode):
    """Sees every operation while it is entered, forward and backward, and has its parameters there.

    A parameter is fetched before the first operation that has it, or a view of it, among its
    arguments, and leaves the device when an operation with another parameter comes, unless it is
    among those that will be used next. Which these are it knows from the last time that the same
    two parameters were used one after the other, in the same pass.

    Parameters
    ----------
    store: a :class:`~sw_driver.torch.offloading.store.TensorStore`.
    add: puts a parameter into the store for the first time and returns its key.
    ahead: how many parameters are fetched before they are needed.
    """

    def __init__(
        self,
        store: Any,
        memory: DeviceMemory,
        add: Callable[[Held, NDArray[np.float32]], Any],
        ahead: int,
    ) -> None:
        super().__init__()
        self._store = store
        self._memory = memory
        self._add = add
        self._ahead = ahead
        self._held: dict[int, Held] = {}
        self._kinds: dict[type, type] = {}
        """The class of a parameter that is held, by its class before."""
        self._resident: dict[Held, None] = {}
        self._current: set[Held] = set()
        self._place = START
        self._followed: dict[tuple[Use, Held | None], Use] = {}
        """What was used next after a use and the parameter before it."""
        self.fetches = 0
        self.prefetches = 0
        """Fetches that began before an operation needed them."""
        self.detached_empty = False
        """Whether ``detach()`` fetches nothing, because it is known what the result is for."""
        self.building = False
        """Whether a model is being built: nothing then leaves by itself, and no order is learnt."""
        memory.relief = self._relieve

    def __iter__(self) -> Any:
        return iter(list(self._held.values()))

    def find(self, tensor: torch.Tensor) -> Held | None:
        """The parameter whose storage ``tensor`` has."""
        return self._held.get(tensor.untyped_storage()._cdata)

    def hold(self, name: str, parameter: torch.nn.Parameter) -> Held:
        """Takes a parameter that is on the device; it leaves when others are used."""
        storage = parameter.untyped_storage()
        flat = parameter.detach().view(-1)
        kind = type(parameter)
        held = Held(name, parameter, storage, flat, storage.nbytes(), kind)
        if kind not in self._kinds:
            self._kinds[kind] = _held_kind(self, kind)
        parameter.__class__ = self._kinds[kind]
        self._held[storage._cdata] = held
        self._resident[held] = None
        return held

    def values(self, held: Held) -> NDArray[np.float32]:
        """A copy of a parameter's values for the host."""
        if held in self._resident:
            self._land(held)
            cpu = held.storage.device.type == "cpu"
            values = self._array(held) if cpu else held.flat.cpu().numpy()
            return values.reshape(held.parameter.shape).copy()
        return self._store.read(held.key, "p")

    def forget(self, held: Held) -> None:
        """Leaves a parameter to itself, with its values; these are NaN if they are in a store that
        has failed."""
        del self._held[held.storage._cdata]
        try:
            if held in self._resident:
                self._land(held)
            else:
                held.storage.resize_(held.nbytes)
                held.flat.copy_(torch.from_numpy(self._store.read(held.key)).view(-1))
        except AxdimmError:
            held.flat.fill_(torch.nan)
        held.parameter.__class__ = held.kind
        self._resident.pop(held, None)
        self._current.discard(held)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        found = [self.find(each) for each in tensors_in((args, kwargs))]
        touched = list(dict.fromkeys(each for each in found if each is not None))
        if touched and not (self.detached_empty and func is DETACH):
            self._use(touched, learning=func is not DETACH)
        result = func(*args, **kwargs)
        if touched and func._schema.is_mutable:
            given = dict(zip((each.name for each in func._schema.arguments), args, strict=False))
            for argument in func._schema.arguments:
                if argument.alias_info is not None and argument.alias_info.is_write:
                    values = (given | kwargs).get(argument.name)
                    for held in filter(None, map(self.find, tensors_in((values,)))):
                        held.dirty = True
        return result

    def restart(self) -> None:
        """An iteration begins: what its first operations used before is fetched."""
        self._place = START
        for held in self._held.values():
            held.uses, held.updated = 0, False
        self._current.clear()
        self._look_ahead(self._next())

    def release(self, these: Iterable[Held] | None = None) -> None:
        """Frees the device's memory of these parameters, or of all; what was written goes to the
        store."""
        for held in list(self._resident if these is None else these):
            if held not in self._resident:
                continue
            self._land(held)
            if held.dirty:
                values = self.values(held)
                if held.key is None:
                    held.key = self._add(held, values)
                else:
                    self._store.write(held.key, "p", values)
                held.dirty = False
            with Interrupts():  # memory is there as long as it is resident
                try:
                    held.storage.resize_(0)
                except RuntimeError as error:
                    raise RuntimeError(
                        f"{held.name} cannot leave the device, for its memory was handed out "
                        f"({error}): give others a copy, such as p.detach().clone().numpy()"
                    ) from error
                del self._resident[held]
                self._current.discard(held)
                self._memory.count(held.storage, held.name)

    def _use(self, touched: list[Held], *, learning: bool) -> None:
        how = torch._C._current_graph_task_id() != -1, torch.is_grad_enabled()
        for held in touched:
            if held.updated:
                raise RuntimeError(
                    f"{held.name} is used again, but was updated when as many of its gradients "
                    "had come as in the iterations before: have early_updates=False where "
                    "iterations differ, and call step() before anything else. Go on from a "
                    "checkpoint"
                )
            held.uses += learning and any(how)
        new = [held for held in touched if held not in self._current.intersection(self._resident)]
        if new:
            self._current = set(touched)
            ahead = []
            if not self.building:
                for held in new if learning else ():
                    self._followed[self._place] = use = held, how
                    self._place = use, self._place[0][0]
                ahead = self._next()
                self.release([each for each in self._resident if each not in {*touched, *ahead}])
            for held in new:
                self._fetch(held)
            self._look_ahead(ahead)
        for held in touched:
            self._land(held)

    def _next(self) -> list[Held]:
        """What was used next when this place was last passed."""
        place, found = self._place, []
        for _ in range(2 * self._ahead):
            use = self._followed.get(place)
            if use is None or len(found) == self._ahead:
                break
            if use[0] not in self._current and use[0] not in found:
                found.append(use[0])
            place = use, place[0][0]
        return found

    def _look_ahead(self, ahead: list[Held]) -> None:
        for held in ahead:
            if held not in self._resident:
                if held.nbytes > self._memory.free_bytes:
                    break
                self._fetch(held)
                self.prefetches += 1

    def _fetch(self, held: Held) -> None:
        if held in self._resident:
            return
        self._memory.room(held.nbytes, held.name)
        with Interrupts():  # and as long as a copy to it is queued
            held.storage.resize_(held.nbytes)
            if held.storage.device.type != "cpu":
                held.landing = torch.empty(held.flat.shape, dtype=torch.float32, device="cpu")
            try:
                held.fetch = self._store.fetch(held.key, self._array(held))
            except BaseException:
                held.storage.resize_(0)
                raise
            self._resident[held] = None
            self._memory.count(held.storage, held.name)
            self.fetches += 1

    def _land(self, held: Held) -> None:
        """Waits until a fetched parameter is there."""
        if held.fetch is not None:
            held.fetch.wait()
            held.fetch = None
            if held.landing is not None:
                held.flat.copy_(held.landing)

    def _relieve(self) -> None:
        self.release([held for held in self._resident if held not in self._current])

    def _array(self, held: Held) -> NDArray[np.float32]:
        """The memory of a parameter that the store copies to. Tensor.numpy() would forbid to free
        it."""
        address = (held.flat if held.landing is None else held.landing).data_ptr()
        count = held.nbytes // 4
        return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


def _held_kind(residency: Residency, kind: type) -> type:
    """The class of held parameters of ``kind``, for what reads memory without PyTorch's operations.

    Printing does, and ends the program where there is no memory. It takes no room on the device.
    """

    class Offloaded(kind):
        def _copied(self) -> torch.Tensor:
            held = residency.find(self)  # None if the program gave it other memory
            return self.detach() if held is None else torch.from_numpy(residency.values(held))

        def __repr__(self) -> str:
            return repr(torch.nn.Parameter(self._copied(), self.requires_grad))

        def tolist(self) -> Any:
            return self._copied().tolist()

        def numpy(self, *, force: bool = False) -> NDArray[Any]:
            self.detach()  # fetches it
            return super().numpy(force=force)

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            result = super().__deepcopy__(memo)
            result.__class__ = kind
            return result

        def __reduce_ex__(self, protocol: Any) -> Any:
            raise TypeError(NOT_COPIED)

    return Offloaded
