"""Parameters and optimizer state on the module's channels, with storage behind them.

The part of the paper's framework (sections 5.2 and 5.3) that needs no PyTorch: where tensors are,
what is evicted for what, and what is copied meanwhile.
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

__all__ = ["Placement", "TensorStore"]

Placement = Literal["round_robin", "by_bytes"]
"""How parameters go to channels: in turn (paper section 5.2), or to that with the fewest bytes so
far."""

Values = NDArray[np.float32]

VALUE_BYTES = 4
"""Bytes of a value, which is in FP32, as all that is on the module."""


class TensorStore:
    """Parameters with their gradients and optimizer state on a module, evicted to storage.

    Calls only queue what is to be done, and return handles; results do not depend on when they are
    waited for. All that touches a channel is done in the order of the calls, so that one channel
    computes while the other copies; parameters come from storage beside that. Where tensors go is
    decided at the call, so it is the same each time. One thread at a time may call.

    When a channel is full, what was updated in this iteration is evicted first (paper section 5.3),
    and of that what was used longest ago. What an operation works on is never evicted for its sake.

    If an operation fails, the store takes and gives no more: a half-done step has no consistent
    state, and training goes on from what was saved before.

    Parameters
    ----------
    device: the opened module. It stays open when the store is closed.
    capacity_bytes: how much of each channel to use; None is the largest piece that is free.
    placement: see :data:`Placement`.
    storage: file or files to register as storage, striped over; None is what the device has
        registered. Without any, what finds no room raises :class:`OutOfMemoryError`.
    storage_bytes: how much of each file, see
        :meth:`~sw_driver.axdimm.device.Axdimm.RegisterStorage`.

    Raises
    ------
    InvalidArgumentError, OutOfMemoryError, StorageError, DeviceInUseError: as their names say.
    """

    def __init__(
        self,
        device: Axdimm,
        *,
        capacity_bytes: int | None = None,
        placement: Placement = "round_robin",
        storage: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        storage_bytes: int | None = None,
    ) -> None:
        known = get_args(Placement)
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

    # What is there.

    @property
    def failure(self) -> BaseException | None:
        """What the first operation raised that failed; None while the store is sound."""
        return next((each.failure for each in self._streams if each.failure is not None), None)

    def statistics(self) -> StoreStatistics:
        """What was done so far, as it is when all that is queued has ended; does not wait."""
        for room in self._rooms:
            room.count()
        return deepcopy(self._statistics)

    def on_module(self, key: int, tensor: str = "p") -> bool:
        """Whether a tensor is on the module when all that is queued has been carried out."""
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
        """Places a parameter and the state of its rule on one channel; returns its key.

        What the channel has no room for goes straight to storage. State begins at 0 or what
        ``initial_state`` says by the tensor's name. The values may be reused at the return.

        Raises :class:`InvalidArgumentError` for a rule that the kernel has not, a name that is
        there, state that the rule has not and values that are none, and :class:`OutOfMemoryError`,
        also if the channel could not hold parameter, state and gradient together; nothing is
        changed then.
        """
        self._check_sound()
        if not isinstance(name, str):
            raise InvalidArgumentError(f"the parameter's name is {shown(name)}: expected words")
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
        entry.tensors = {each: Kept(f"{name}.{each}", nbytes, entry) for each in chosen.tensors}
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
        for each, tensor in lasting.items():
            state = np.full(shape, initial.get(each, 0.0), np.float32)
            handles.append(room.put(tensor, values if each == "p" else state))
        self._use(*lasting.values())
        key = self._keys[name] = len(self._entries)
        self._entries.append(entry)
        for handle in handles:
            handle.wait()
        return key

    def fetch(self, key: int, target: Values) -> Handle[None]:
        """Copies a parameter to an array of the host.

        From the module if it is there, else straight from storage, beside what the channels do.
        """
        entry = self._sound(key)
        self._check_end(entry, target, writable=True)
        self._use(entry.tensors["p"])
        return self._get(entry, entry.tensors["p"], target)

    def receive(self, key: int, gradient: Values, *, measure: bool = False) -> Handle[None]:
        """Copies a gradient to the module; the source may be reused after the handle's ``wait``.

        Further ones before the :meth:`update` are added to it on the module, by the rule
        ``accumulate``. ``measure`` has the module add up the squares at once, so that :meth:`norm`
        need not bring the gradient back for it.
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
        """The norm of all gradients that were received, or those of ``keys``; waits for it.

        The module adds up the squares of each tensor, by the rule ``sum_squares``; the host adds
        these, in double.
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
        """Has the parameter's channel gather its tensors and run its rule; the gradient is gone.

        With another ``scale`` than 1 the gradient is first multiplied by it, rounded to FP32, by
        the rules ``fill`` and ``accumulate``.

        Raises :class:`InvalidArgumentError` for hyper-parameters, and if no gradient was received,
        :class:`OutOfMemoryError` if the storage is full; nothing is lost then.
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
                # Added to -0, every product keeps its bits.
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
        """Forgets the gradient that was received, if there is one."""
        entry = self._sound(key)
        self._rooms[entry.channel].forget(entry.gradient)

    def begin_iteration(self) -> None:
        """Nothing has been updated yet in the iteration that begins."""
        for entry in self._entries:
            entry.updated = False

    # State in and out.

    def read(self, key: int, tensor: str = "p") -> NDArray[np.float32]:
        """A copy of a tensor's values, after all that is queued for it."""
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
        """Overwrites a parameter or a tensor of its state, where it is."""
        entry = self._sound(key)
        chosen = self._tensor(entry, tensor)
        if chosen is entry.gradient:
            raise InvalidArgumentError(
                f"the gradient of {entry.name} cannot be written: receive() it", name=entry.name
            )
        self._check_end(entry, values)
        self._rooms[entry.channel].put(chosen, values).wait()

    def drain(self) -> None:
        """Waits for all that is queued. Raises what the first that failed raised."""
        self._check_open()
        for stream in self._streams:
            stream.wait()

    def close(self) -> None:
        """Lets all that is queued end and frees the memory. Closing again does no harm.

        Does not tell of failures: :meth:`drain` does.
        """
        if self._closed:
            return
        self._closed = True
        with suppress(ClosedError, BusyError):
            for stream in self._streams:  # whatever comes of it
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

    # Parts of these.

    def _next_channel(self) -> int:
        if self._placement == "round_robin":
            return len(self._entries) % len(self._rooms)
        held = [0] * len(self._rooms)
        for entry in self._entries:
            held[entry.channel] += sum(each.nbytes for each in entry.lasting.values())
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
        """The sum of squares of the gradient, which is brought to the module for it."""
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
        """The rule, which the channel's kernel has."""
        there = self._device.rules(channel)
        if name in there:
            return RULES[name]
        advice = f"there is no such update rule, known are {', '.join(RULES)}"
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
        """Raises what is wrong with memory that a tensor comes from or goes to."""
        found = _shape(values)
        if found not in (entry.shape, (entry.count,)):
            raise InvalidArgumentError(
                f"{entry.name} has the shape {entry.shape}, the array {found}",
                shape=entry.shape,
                found=found,
            )
        byte_view(values, VALUE_BYTES * entry.count, writable=writable)


def _check_optimizer(name: str, rule: UpdateRule, initial_state: Mapping[str, float]) -> None:
    """Raises for a rule that is no optimizer's, and for state that it has not."""
    if not ({"p", "g"} <= set(rule.inputs) and "p" in rule.outputs and "g" not in rule.outputs):
        raise InvalidArgumentError(
            f"{rule.name} updates no parameter p by a gradient g: give {name} the rule of an "
            "optimizer",
            rule=rule.name,
        )
    state = [each for each in rule.tensors if each not in ("p", "g")]
    for each, value in initial_state.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise InvalidArgumentError(
                f"the initial state {shown(each)} is {shown(value)}: expected a finite number"
            )
        if each not in state:
            raise InvalidArgumentError(
                f"{rule.name} has no state {shown(each)}: expected {', '.join(state) or 'none'}",
                tensor=each,
                rule=rule.name,
            )


def _shape(values: Any) -> tuple[int, ...]:
    """The shape of a non-empty array of FP32. Raises :class:`InvalidArgumentError` for anything
    else."""
    if not isinstance(values, np.ndarray) or values.dtype != np.float32 or not values.size:
        what = (
            f"an array of {values.size} {values.dtype}"
            if isinstance(values, np.ndarray)
            else type(values).__name__
        )
        raise InvalidArgumentError(
            f"the values are {what}: expected a numpy array of float32, not empty"
        )
    return values.shape
