"""Training steps under the framework of Kim et al., section 5, simulated on a machine.

Parameters and optimizer states are in the memory of the device that updates them, spread over its
channels. Those without room there are on NVMe. A parameter is fetched into the GPU before a layer
computes with it, in the forward and again in the backward pass, and freed after that. A gradient
leaves the GPU once it is complete and the step no longer needs the parameter. Then the parameter
and its states are gathered beside it, and updated. While a channel's kernel runs, nothing else
accesses its memory (3.2).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sw_driver.numbers import check_integer
from sw_driver.workload import Op, Profile, Trace

from ..clock import EngineEvent, ProcessSteps, Semaphore
from ..driving import Policy, drive
from ..engine import Engine
from ..errors import NoRoomError
from ..memory import Account
from ..outcome import Outcome
from ..residency import Residency
from .settings import FrameworkSettings
from .tensors import Key, Parameter, lifetimes, placed

__all__ = ["Framework", "Update"]

Update = Callable[[Engine, int, int], ProcessSteps]
"""Process of an update, from the engine, the channel's number and the number of elements."""

_STREAM = "parameters to the GPU"
"""Queue in which parameters and gradients take turns."""


@dataclass(kw_only=True)
class _Channel:
    number: int
    memory: Account
    busy: Semaphore
    """Held by its kernel, or by a transfer from or to it."""
    arrivals: Semaphore
    """Count of the parameters in ``arrived``."""
    arrived: deque[Parameter] = field(default_factory=deque)
    """Parameters with gradients in the channel."""
    trained: int = 0
    """Number of its parameters that have gradients."""
    gradients: Account = field(init=False)
    """Account of the memory for gradients; more would leave no room for an update."""


class Framework(Policy):
    """Runs training steps of ``trace`` on the machine of ``engine``.

    Raises :class:`~sw_driver.system.errors.NoRoomError` if a memory is too small for what must be
    there at once. Raises :class:`~sw_driver.device.errors.DeadlockError` if tensors in a memory
    wait for others that have no room there.

    Parameters
    ----------
    memories: memories of the machine, one for each channel; the GPU's is ``gpu``, the drives'
        ``nvme``.
    update: process of an update, once all its tensors are in its channel.
    """

    def __init__(
        self,
        engine: Engine,
        trace: Trace,
        settings: FrameworkSettings,
        *,
        memories: Sequence[str],
        update: Update,
    ) -> None:
        self.engine, self.trace, self.settings = engine, trace, settings
        self._update = update
        self._nvme = engine.memory("nvme")
        gpu = engine.machine.device("gpu")
        self._profile = Profile({"gpu": gpu.cost})
        clock = engine.clock
        self._runtime = Semaphore(clock)
        check_integer("the number of memories", len(memories))
        self._channels = [
            _Channel(
                number=number,
                memory=engine.memory(name),
                busy=Semaphore(clock),
                arrivals=Semaphore(clock, 0),
            )
            for number, name in enumerate(memories)
        ]
        self._offloads = engine.queue(_STREAM)
        self._parameters = placed(trace, settings.formats, len(self._channels))
        self.residency = Residency(
            engine,
            self._size,
            name=self._name,
            leaves={
                channel.memory.name: partial(self._leaves, channel.memory.name)
                for channel in self._channels
            },
            carry=self._transfer,
        )
        self._fill()
        self._first, self._last, self._complete = lifetimes(trace)
        for numbers in self._complete.values():
            for number in numbers:
                self._channels[self._parameters[number].channel].trained += 1
        self._read = {
            op.id: [self._parameters[key] for key in op.reads if key in self._parameters]
            for op in trace.ops
        }
        self._moved: dict[str, int] = {}
        self._gradients_ns = 0

    def step(self) -> Outcome:
        """Simulate the next training step.

        ``marks_ns`` has the end of the forward pass, and the arrival of the last gradient in its
        channel.
        """
        engine = self.engine
        self._moved = {}
        self._gradients_ns = engine.now_ns
        self._nvme.peak_bytes = self._nvme.capacity_bytes - self._nvme.free_bytes
        for parameter in self._parameters.values():
            parameter.updated = False
        for channel in self._channels:
            engine.process(self._updates(channel), f"updates of channel {channel.number}")
        step = drive(
            engine, self.trace, self, ahead_ops=self.settings.ahead_ops, cost=self._profile.ns
        )
        marks_ns = {**step.marks_ns, "gradients": self._gradients_ns - step.begin_ns}
        return replace(step, moved_bytes=dict(self._moved), marks_ns=marks_ns)

    # Places

    def _fill(self) -> None:
        """Place everything before the first step: in its channel, or on NVMe when that is full."""
        for parameter in self._parameters.values():
            memory = self._channels[parameter.channel].memory
            for key in parameter.kept:
                fits = parameter.sizes[key[1]] <= memory.free_bytes
                self.residency.put(key, memory.name if fits else "nvme")
        for channel in self._channels:
            memory = channel.memory
            trained = [
                parameter
                for parameter in self._parameters.values()
                if parameter.channel == channel.number and parameter.gradient_bytes
            ]
            update = max((sum(parameter.sizes.values()) for parameter in trained), default=0)
            limit_bytes = memory.capacity_bytes - update
            for parameter in trained:
                if parameter.gradient_bytes > limit_bytes:
                    raise NoRoomError(
                        f"memory {memory.name!r} of {memory.capacity_bytes} bytes cannot hold the "
                        f"gradient of {parameter.name} beside an update, "
                        f"{parameter.gradient_bytes} and {update} bytes: raise "
                        f"{memory.name}.capacity_bytes to at least "
                        f"{parameter.gradient_bytes + update}"
                    )
            name = f"{memory.name} beside an update"
            channel.gradients = Account(
                self.engine.clock,
                name,
                limit_bytes,
                None,
                None,
                setting=f"{memory.name}.capacity_bytes",
            )

    def _name(self, key: Any) -> str:
        return str(key) if isinstance(key, int) else f"{self._parameters[key[0]].name} {key[1]}"

    def _size(self, key: Any, place: str) -> int:
        if isinstance(key, int):
            return self.trace.tensors[key].nbytes
        parameter = self._parameters[key[0]]
        if place == "gpu":
            return parameter.nbytes
        return parameter.gradient_bytes if key[1] == "g" else parameter.sizes[key[1]]

    def _leaves(self, place: str) -> list[tuple[Key, str]]:
        """Return the tensors that may leave a place, in order; gradients stay.

        Those updated in this iteration leave first (5.3), then the least recently used.
        """
        held = [key for key in self.residency.held(place) if key[1] != "g"]
        held.sort(key=lambda key: not self._parameters[key[0]].updated)
        return [(key, "nvme") for key in held]

    # Transfers

    def _transfer(self, key: Any, source: str, target: str) -> ProcessSteps:
        """Move a tensor, once the runtime and a channel that takes part are free.

        The GPU converts formats, so the narrower format moves.
        """
        channel = self._channels[self._parameters[key[0]].channel]
        takes_part = channel.memory.name in (source, target)
        if target == "gpu":
            kind = "fetch" if takes_part else "fetch from nvme"
        else:
            kind = {"gpu": "gradient", "nvme": "gather"}.get(source, "evict")
        locks = [*([channel.busy] if takes_part else []), self._runtime]
        for lock in locks:
            yield lock.acquire()
        nbytes = min(self._size(key, source), self._size(key, target))
        yield self.engine.transfer(nbytes, source, target, kind)
        for lock in locks:
            lock.release()
        self._moved[kind] = self._moved.get(kind, 0) + nbytes

    # The passes

    def place(self, op: Op) -> str | None:
        """Return the GPU, or None for updates."""
        return None if op.phase == "update" else "gpu"

    def before(self, op: Op) -> Iterable[EngineEvent]:
        """Request room for new tensors, and the parameters that the operation reads."""
        if op.phase == "update":
            return ()
        waits: list[EngineEvent] = []
        for parameter in self._read[op.id]:
            waits.append(self.residency.copy(parameter.key, "gpu", _STREAM))
            self.residency.pin(parameter.key, "gpu")
        return waits + [self.residency.room(key, "gpu") for key in self._first[op.id]]

    def after(self, op: Op) -> None:
        """Free tensors that are no longer needed, and send gradients away."""
        for key in self._last[op.id]:
            self.residency.free(key, "gpu")
        for parameter in self._read[op.id]:
            if not self.residency.unpin(parameter.key, "gpu"):
                self.residency.free(parameter.key, "gpu")
        for number in self._complete.get(op.id, ()):
            parameter = self._parameters[number]
            self._offloads.call(partial(self._send, parameter), parameter.name)

    # Gradients and updates

    def _send(self, parameter: Parameter) -> ProcessSteps:
        channel = self._channels[parameter.channel]
        yield channel.gradients.room(parameter.gradient_bytes, parameter.number)
        yield self.residency.move((parameter.number, "g"), channel.memory.name)
        self._gradients_ns = self.engine.now_ns
        channel.arrived.append(parameter)
        channel.arrivals.release()

    def _updates(self, channel: _Channel) -> ProcessSteps:
        """Update a channel's parameters in the order in which their gradients arrive."""
        for _ in range(channel.trained):
            yield channel.arrivals.acquire()
            yield from self._update_one(channel, channel.arrived.popleft())

    def _update_one(self, channel: _Channel, parameter: Parameter) -> ProcessSteps:
        place = channel.memory.name
        for key in parameter.kept:
            self.residency.pin(key, place)
        for key in parameter.kept:
            yield self.residency.move(key, place)
        yield channel.busy.acquire()
        yield from self._update(self.engine, channel.number, parameter.count)
        channel.busy.release()
        parameter.updated = True
        self.residency.free((parameter.number, "g"), place)
        channel.gradients.give(parameter.number)
        for key in parameter.kept:
            self.residency.touch(key, place)
            self.residency.unpin(key, place)
