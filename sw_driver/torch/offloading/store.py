"""Parameters and optimizer state on the module's channels, with storage behind them.

This is the part of the paper's framework (sections 5.2 and 5.3) that needs no PyTorch: placement
and eviction of tensors, and the copies that run meanwhile.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from copy import deepcopy
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hw.rules import RULES
from hw.rules.update_rule import UpdateRule
from sw_driver.axdimm import Axdimm, KernelRun
from sw_driver.axdimm.hyperparameters import checked_hyperparameters, rule_constants
from sw_driver.axdimm.launch import options_for
from sw_driver.axdimm.transport import LINE_BYTES
from sw_driver.device.errors import (
    BusyError,
    ClosedError,
    InvalidArgumentError,
    StreamFailedError,
    shown,
)
from sw_driver.device.memory import checked_size
from sw_driver.device.streams import Handle, Stream
from sw_driver.device.tensors import byte_view

from .channel import ChannelRoom, Entry, Kept, StoreStatistics, padded_bytes

__all__ = ["ChannelChoice", "TensorStore"]

ChannelChoice = Literal["round_robin", "by_bytes"]
"""Choice of a parameter's channel: in turn (paper section 5.2), or that with the fewest bytes."""

Values = NDArray[np.float32]

VALUE_BYTES = 4
"""Bytes of a value; all values on the module are in FP32."""


class TensorStore:
    """Parameters with their gradients and optimizer state on a module, evicted to storage.

    Calls only queue operations and return handles; results do not depend on when handles are waited
    for. Operations on a channel run in the order of the calls, so one channel computes while the
    other copies. Copies from storage to the host run beside both. Placement is decided in the call,
    so it is deterministic. One thread at a time may call.

    When a channel is full, parameters updated in this iteration are evicted first (paper section
    5.3), and of these the least recently used. Operands of an operation are never evicted for it.

    After a failed operation the store refuses further ones: a half-done step has no consistent
    state, and training has to go on from a checkpoint.

    Parameters
    ----------
    device: the opened module. It stays open when the store is closed.
    capacity_bytes: bytes of each channel to use; None for the largest free piece.
    placement: see :data:`ChannelChoice`.
    storage: file or files to register as storage, striped over; None for the storage that the
        device has registered. Without any, a full channel raises :class:`OutOfMemoryError`.
    storage_bytes: bytes of each file to use, see
        :meth:`~sw_driver.axdimm.device.Axdimm.RegisterStorage`.

    Raises
    ------
    InvalidArgumentError, OutOfMemoryError, StorageError, DeviceInUseError: as their names say.

    Examples
    --------
    >>> import numpy as np
    >>> from nearmem import Axdimm
    >>> with Axdimm("golden") as device, TensorStore(device, capacity_bytes=1 << 16) as store:
    ...     weights = store.add("weights", np.ones(256, np.float32), rule="adam")
    ...     print(store.on_module(weights), store.statistics().peak_module_bytes)
    True [3072, 0]
    """

    def __init__(
        self,
        device: Axdimm,
        *,
        capacity_bytes: int | None = None,
        placement: ChannelChoice = "round_robin",
        storage: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        storage_bytes: int | None = None,
    ) -> None:
        known = get_args(ChannelChoice)
        if placement not in known:
            raise InvalidArgumentError(
                f"placement is {shown(placement)}: expected {' or '.join(map(repr, known))}",
                option="placement",
            )
        if not isinstance(device, Axdimm):
            raise InvalidArgumentError(f"device is {shown(device)}: expected an opened Axdimm")
        if storage is not None and not isinstance(storage, str | os.PathLike | Sequence):
            raise InvalidArgumentError(f"storage is {shown(storage)}: expected a path, or several")
        if storage_bytes is not None:
            checked_size("storage_bytes", storage_bytes, minimum=1)
            if not storage:
                raise InvalidArgumentError(
                    f"storage_bytes is {storage_bytes}, but there is no storage: give its path"
                )
        if capacity_bytes is None and any(
            device.memory(channel).largest_free_bytes < LINE_BYTES
            for channel in range(device.channels)
        ):
            raise InvalidArgumentError(
                "device has no memory left: close the store that has it, or give each one a "
                "capacity_bytes"
            )
        sizes = [
            device.memory(channel).largest_free_bytes if capacity_bytes is None else capacity_bytes
            for channel in range(device.channels)
        ]
        self._device = device
        self._placement = placement
        self._closed = False
        self._entries: list[Entry] = []
        self._keys: dict[str, int] = {}
        self._clock = 0
        self._statistics = StoreStatistics(
            peak_module_bytes=[0] * len(sizes), kernel_ns=[0.0] * len(sizes)
        )
        self._fetches = device.new_stream("of a store, from storage")
        self._rooms: list[ChannelRoom] = []
        files = [storage] if isinstance(storage, str | os.PathLike) else storage or ()
        with ExitStack() as made:
            for number, size in enumerate(sizes):
                size = checked_size("capacity_bytes", size, minimum=LINE_BYTES)
                size -= size % LINE_BYTES
                self._rooms.append(ChannelRoom(device, number, size, self._statistics))
                made.callback(self._rooms[-1].close)
            for file in files:
                device.RegisterStorage(file, capacity_bytes=storage_bytes)
            made.pop_all()

    # State of the store.

    @property
    def failure(self) -> BaseException | None:
        """Error of the first failed operation; None while the store is sound."""
        failures = (stream.failure for stream in self._streams)
        return next((failure for failure in failures if failure is not None), None)

    def statistics(self) -> StoreStatistics:
        """Return the counts, as they are when all queued operations have ended; does not wait."""
        for room in self._rooms:
            room.count()
        return deepcopy(self._statistics)

    def on_module(self, key: int, tensor: str = "p") -> bool:
        """Return whether a tensor is on the module after all queued operations."""
        return self._tensor(self._entry(key), tensor).here

    # Training.

    def add(
        self,
        name: str,
        values: Values,
        *,
        rule: str,
        initial_state: Mapping[str, float] | None = None,
    ) -> int:
        """Place a parameter and the state of its rule on one channel; return its key.

        Tensors that the channel has no room for go straight to storage. State begins at 0, or at
        the value in ``initial_state`` by the tensor's name. The values may be reused on return.

        Raises :class:`InvalidArgumentError` for a rule that the kernel lacks, a name in use, state
        that the rule lacks, and invalid values. Raises :class:`OutOfMemoryError`, also if the
        channel could not hold parameter, state and gradient together. Nothing has changed then.
        """
        self._check_sound()
        if not isinstance(name, str):
            raise InvalidArgumentError(f"the parameter's name is {shown(name)}: expected text")
        if name in self._keys:
            raise InvalidArgumentError(
                f"the store has a parameter {name!r}: give each its own name"
            )
        if not isinstance(initial_state, Mapping | None):
            raise InvalidArgumentError(
                f"initial_state is {shown(initial_state)}: expected numbers by names of tensors"
            )
        shape, initial = _shape(values), dict(initial_state or {})
        number = self._next_channel()
        chosen = self._rule(rule, number)
        _check_optimizer(name, chosen, initial)
        entry = Entry(name, chosen, shape, math.prod(shape), number)
        self._check_end(entry, values)
        nbytes = VALUE_BYTES * entry.count
        names = chosen.tensors
        entry.tensors = {tensor: Kept(f"{name}.{tensor}", nbytes, entry) for tensor in names}
        room = self._rooms[number]
        room.check_fits(name, len(entry.tensors) * padded_bytes(nbytes))
        lasting = entry.lasting
        try:
            for tensor in lasting.values():
                if not room.take(tensor):
                    room.slot(tensor)
        except BaseException:
            for tensor in lasting.values():
                room.free_slot(tensor)
                room.forget(tensor)
            raise
        handles = []
        for role, tensor in lasting.items():
            state = np.full(shape, initial.get(role, 0.0), np.float32)
            handles.append(room.put(tensor, values if role == "p" else state))
        self._use(*lasting.values())
        key = self._keys[name] = len(self._entries)
        self._entries.append(entry)
        for handle in handles:
            handle.wait()
        return key

    def fetch(self, key: int, target: Values) -> Handle[None]:
        """Copy a parameter to an array of the host.

        It comes from the module if it is there, else straight from storage, beside the channels'
        work.
        """
        entry = self._sound(key)
        self._check_end(entry, target, writable=True)
        self._use(entry.tensors["p"])
        return self._get(entry, entry.tensors["p"], target)

    def receive(self, key: int, gradient: Values, *, measure: bool = False) -> Handle[None]:
        """Copy a gradient to the module; the source may be reused after the handle's ``wait``.

        Further gradients before :meth:`update` are added on the module, by the rule ``accumulate``.
        With ``measure`` the module adds up the squares at once, so that :meth:`norm` need not bring
        the gradient back.
        """
        entry = self._sound(key)
        self._check_end(entry, gradient)
        room, there = self._rooms[entry.channel], entry.gradient
        new = there
        if measure:
            self._rule("sum_squares", entry.channel)
        if there.known:
            self._rule("accumulate", entry.channel)
            new = Kept(f"{entry.name}'s further gradient", there.nbytes, entry)
        self._use(there, new)
        try:
            room.gather([there, new])
            handle = room.put(new, gradient)
            if new is not there:
                room.run("accumulate", {"a": there, "g": new}, {"scale": 1.0})
            entry.squares = None
            if measure:
                self._measure(entry)
        finally:
            if new is not there or not new.known:
                room.forget(new)
        return handle

    def norm(self, keys: Iterable[int] | None = None) -> float:
        """Return the norm of all received gradients, or of those of ``keys``; waits for it.

        The module adds up the squares of each tensor, by the rule ``sum_squares``; the host adds
        these sums in double precision.
        """
        self._check_sound()
        if not isinstance(keys, Iterable | None):
            raise InvalidArgumentError(f"keys is {shown(keys)}: expected keys of parameters")
        entries = [self._entry(key) for key in keys] if keys is not None else self._entries
        entries = [entry for entry in entries if entry.gradient.known]
        for entry in entries:
            self._rule("sum_squares", entry.channel)
        runs = [entry.squares or self._measure(entry) for entry in entries]
        return math.sqrt(math.fsum(run.wait().sums["squares"] for run in runs))

    def update(
        self, key: int, hyperparameters: Mapping[str, Any], *, scale: float = 1.0
    ) -> KernelRun:
        """Run the parameter's rule on its channel, which gathers the tensors; use up the gradient.

        With a ``scale`` other than 1 the rules ``fill`` and ``accumulate`` first multiply the
        gradient by it, rounded to FP32.

        Raises :class:`InvalidArgumentError` for invalid hyper-parameters and without a gradient,
        and :class:`OutOfMemoryError` if the storage is full; nothing is lost then.
        """
        entry = self._sound(key)
        room = self._rooms[entry.channel]
        if not entry.gradient.known:
            raise InvalidArgumentError(
                f"{entry.name} has no gradient: receive() one before update()", name=entry.name
            )
        rule_constants(entry.rule, checked_hyperparameters(entry.rule, hyperparameters))
        checked_hyperparameters(RULES["accumulate"], {"scale": scale})
        for rule in ("fill", "accumulate") if scale != 1 else ():
            self._rule(rule, entry.channel)
        gradient = used = entry.gradient
        try:
            if scale != 1:
                used = Kept(f"{entry.name}'s scaled gradient", gradient.nbytes, entry)
                self._use(gradient, used)
                room.gather([gradient, used])
                # Adding to -0 keeps the bits of every product.
                room.run("fill", {"y": used}, {"value": -0.0})
                room.run("accumulate", {"a": used, "g": gradient}, {"scale": scale})
            tensors = entry.tensors | {"g": used}
            self._use(*tensors.values())
            room.gather(list(tensors.values()))
            run = room.run(entry.rule.name, tensors, hyperparameters)
        finally:
            if used is not gradient:
                room.forget(used)
        room.forget(gradient)
        entry.updated = True
        return run

    def discard(self, key: int) -> None:
        """Discard the received gradient, if there is one."""
        entry = self._sound(key)
        self._rooms[entry.channel].forget(entry.gradient)

    def begin_iteration(self) -> None:
        """Begin an iteration, in which nothing has been updated yet."""
        for entry in self._entries:
            entry.updated = False

    # State in and out.

    def read(self, key: int, tensor: str = "p") -> NDArray[np.float32]:
        """Return a copy of a tensor's values, after all operations queued for it."""
        entry = self._sound(key)
        chosen = self._tensor(entry, tensor)
        if not chosen.known:
            raise InvalidArgumentError(
                f"{entry.name} has no gradient: none was received", name=entry.name
            )
        values = np.empty(entry.shape, np.float32)
        self._get(entry, chosen, values).wait()
        return values

    def write(self, key: int, tensor: str, values: Values) -> None:
        """Overwrite a parameter or a tensor of its state, where it is."""
        entry = self._sound(key)
        chosen = self._tensor(entry, tensor)
        if chosen is entry.gradient:
            raise InvalidArgumentError(
                f"the gradient of {entry.name} cannot be written: receive() it", name=entry.name
            )
        self._check_end(entry, values)
        self._rooms[entry.channel].put(chosen, values).wait()

    def drain(self) -> None:
        """Wait for all queued operations; raise the error of the first that failed."""
        self._check_open()
        for stream in self._streams:
            stream.wait()

    def close(self) -> None:
        """Let all queued operations end, and free the memory. A second call does nothing.

        It does not raise errors of operations: :meth:`drain` does.
        """
        if self._closed:
            return
        self._closed = True
        with suppress(ClosedError, BusyError):
            for stream in self._streams:  # whether or not it has failed
                with suppress(Exception):
                    stream.wait()
            for entry in self._entries:
                for tensor in entry.tensors.values():
                    self._rooms[entry.channel].free_slot(tensor)
            for room in self._rooms:
                room.close()

    def __enter__(self) -> TensorStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Helpers.

    def _next_channel(self) -> int:
        if self._placement == "round_robin":
            return len(self._entries) % len(self._rooms)
        held = [0] * len(self._rooms)
        for entry in self._entries:
            held[entry.channel] += sum(tensor.nbytes for tensor in entry.lasting.values())
        return held.index(min(held))

    def _get(self, entry: Entry, tensor: Kept, target: Values) -> Handle[None]:
        room = self._rooms[entry.channel]
        if tensor.here:
            return room.get(tensor, target)
        if tensor.writer is not None:
            self._fetches.wait_for(tensor.writer)
        tensor.reader = room.copy("nvme->host", tensor, target, tensor.slot, self._fetches)
        return tensor.reader

    def _measure(self, entry: Entry) -> KernelRun:
        """Bring the gradient to the module, and run the sum of its squares."""
        room = self._rooms[entry.channel]
        self._use(entry.gradient)
        room.gather([entry.gradient])
        entry.squares = room.run("sum_squares", {"g": entry.gradient}, {})
        return entry.squares

    def _use(self, *tensors: Kept) -> None:
        self._clock += 1
        for tensor in tensors:
            tensor.used = self._clock

    @property
    def _streams(self) -> list[Stream]:
        return [*(room.stream for room in self._rooms), self._fetches]

    # Checks.

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the store was closed")

    def _check_sound(self) -> None:
        self._check_open()
        failure = self.failure
        if failure is not None:
            raise StreamFailedError(
                f"the store failed ({failure}): go on in a new one, from what was saved last"
            ) from failure

    def _entry(self, key: int) -> Entry:
        if isinstance(key, bool) or not isinstance(key, int) or not 0 <= key < len(self._entries):
            raise InvalidArgumentError(
                f"no parameter has the key {shown(key)}: {len(self._entries)} have been added",
                key=key,
            )
        return self._entries[key]

    def _sound(self, key: int) -> Entry:
        self._check_sound()
        return self._entry(key)

    def _tensor(self, entry: Entry, name: str) -> Kept:
        if name not in entry.tensors:
            raise InvalidArgumentError(
                f"{entry.name} has no tensor {name!r}: expected one of {', '.join(entry.tensors)}",
                tensor=name,
                rule=entry.rule.name,
            )
        return entry.tensors[name]

    def _rule(self, name: str, channel: int) -> UpdateRule:
        """Return the rule; raise an error if the channel's kernel lacks it."""
        there = self._device.rules(channel)
        if name in there:
            return RULES[name]
        advice = f"there is no such update rule, expected one of {', '.join(RULES)}"
        if name in RULES:
            narrow = self._device.narrow(channel)
            advice = f"open the device with {options_for(name, there, narrow)}"
        raise InvalidArgumentError(
            f"the kernel of channel {channel} has {', '.join(there)}, not {name}: {advice}",
            rule=name,
            channel=channel,
            rules=there,
        )

    def _check_end(self, entry: Entry, values: Values, *, writable: bool = False) -> None:
        """Raise an error for memory that a tensor cannot come from or go to."""
        shape = _shape(values)
        if shape not in (entry.shape, (entry.count,)):
            raise InvalidArgumentError(
                f"{entry.name} has the shape {entry.shape}, the array {shape}",
                shape=entry.shape,
                found=shape,
            )
        byte_view(values, VALUE_BYTES * entry.count, writable=writable)


def _check_optimizer(name: str, rule: UpdateRule, initial_state: Mapping[str, float]) -> None:
    """Raise an error for a rule that is not an optimizer's, and for state that it lacks."""
    if not ({"p", "g"} <= set(rule.inputs) and "p" in rule.outputs and "g" not in rule.outputs):
        raise InvalidArgumentError(
            f"{rule.name} updates no parameter p by a gradient g: give {name} the rule of an "
            "optimizer",
            rule=rule.name,
        )
    state = [tensor for tensor in rule.tensors if tensor not in ("p", "g")]
    for tensor, value in initial_state.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise InvalidArgumentError(
                f"the initial state {shown(tensor)} is {shown(value)}: expected a finite number"
            )
        if tensor not in state:
            raise InvalidArgumentError(
                f"{rule.name} has no state {shown(tensor)}: expected {', '.join(state) or 'none'}",
                tensor=tensor,
                rule=rule.name,
            )


def _shape(values: Any) -> tuple[int, ...]:
    """Return the shape of a non-empty FP32 array.

    Raises :class:`InvalidArgumentError` for anything else.
    """
    if not isinstance(values, np.ndarray) or values.dtype != np.float32 or not values.size:
        kind = (
            f"an array of {values.size} {values.dtype}"
            if isinstance(values, np.ndarray)
            else type(values).__name__
        )
        raise InvalidArgumentError(
            f"the values are {kind}: expected a numpy array of float32, not empty"
        )
    return values.shape
