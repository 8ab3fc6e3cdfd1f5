"""Training steps under the framework of Kim et al., section 5, simulated on a machine.

Parameters and optimizer states are in the memory of who updates them, spread over its channels, and
what has no room there is on NVMe. A parameter is fetched into the GPU before a layer computes with
it, in the forward and again in the backward pass, and freed after. A gradient leaves the GPU when
its last part is there and the step needs the parameter no more; then parameter and states are
gathered beside it, and updated. While a channel's kernel runs, nobody else has its memory (3.2).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

from sw_driver.numbers import check_integer
from sw_driver.workload import Op, Profile, Trace

from ..clock import Event, Semaphore, Steps
from ..driving import Policy, drive
from ..engine import Engine
from ..errors import NoRoomError
from ..memory import Account
from .settings import FrameworkSettings

__all__ = ["Framework", "StepResult", "Update"]

Update = Callable[[Engine, int, int], Steps]
"""How a channel updates so many parameters: engine, channel, parameters."""

_Key = tuple[int, str]
"""A parameter's number and which of its tensors: ``p``, a state, or ``g``."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """A training step."""

    forward_ns: int
    backward_ns: int
    """With all updates."""
    peak_nvme_bytes: int
    moved_bytes: dict[str, int]
    """By kind of transfer."""
    kernel_ns: int
    """Of all updates together."""
    gpu_ns: int
    """Of all operations on the GPU together."""

    @property
    def total_ns(self) -> int:
        return self.forward_ns + self.backward_ns


@dataclass(kw_only=True)
class _Parameter:
    number: int
    name: str
    count: int
    channel: _Channel
    sizes: dict[str, int]
    """Bytes of what is kept of it: itself, ``p``, and its states."""
    gradient_bytes: int
    updated: bool = False
    users: int = 0
    """Groups of operations, fetched for or at work, that need it on the GPU."""
    on_gpu: Event | None = None


@dataclass(kw_only=True)
class _Channel:
    number: int
    memory: Account
    busy: Semaphore
    """Held by its kernel, or by a transfer from or to it."""
    changed: Event
    """Happens when there may be room that was not there before."""
    arrivals: Semaphore
    """As many are free as there are in ``arrived``."""
    arrived: deque[_Parameter] = field(default_factory=deque)
    """Parameters whose gradients are there."""
    here: tuple[dict[_Key, int], dict[_Key, int]] = field(default_factory=lambda: ({}, {}))
    """What is not on NVMe, with its bytes, longest unused first: what leaves first, and others."""
    leaving: dict[_Key, Event] = field(default_factory=dict)
    """What is on its way to NVMe, and when it is there."""
    pinned: dict[_Key, int] = field(default_factory=dict)
    """How many need each where it is."""
    trained: int = 0
    """How many of its parameters have gradients."""
    gradient_bytes: int = 0
    gradient_limit_bytes: int = 0
    """More gradients would leave no room for an update."""


class Framework(Policy):
    """Runs training steps of ``trace`` on the machine of ``engine``.

    Raises :class:`~sw_driver.system.errors.NoRoomError` if a memory is too small for what has to be
    there at once, or, if what is there waits for what has no room beside it,
    :class:`~sw_driver.device.errors.DeadlockError`.

    Parameters
    ----------
    memories: of the machine, one for each channel; the GPU's is ``gpu``, the drives' ``nvme``.
    update: how an update takes place, once all it needs is in its channel.
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
        self._gpu, self._nvme = engine.memory("gpu"), engine.memory("nvme")
        gpu = engine.machine.device("gpu")
        self._profile = Profile({"gpu": gpu.cost})
        clock = engine.clock
        self._runtime = Semaphore(clock) if settings.one_transfer else None
        self._turns = None if settings.overlap else Semaphore(clock)
        check_integer("the number of memories", len(memories))
        self._channels = [
            _Channel(
                number=number,
                memory=engine.memory(name),
                busy=Semaphore(clock),
                changed=clock.event(),
                arrivals=Semaphore(clock, 0),
            )
            for number, name in enumerate(memories)
        ]
        self._fetches = engine.queue("parameters to the GPU")
        self._offloads = self._fetches
        if not settings.one_stream:
            self._offloads = engine.queue("gradients from the GPU")
        self._parameters = self._place()
        self._fill()
        self._first, self._last, self._complete = self._lifetimes()
        self._read = {
            op.id: [self._parameters[each] for each in op.reads if each in self._parameters]
            for op in trace.ops
        }
        self._moved: dict[str, int] = {}
        self._kernel_ns = 0

    def step(self) -> StepResult:
        """Simulates the next training step."""
        engine = self.engine
        self._moved, self._kernel_ns = {}, 0
        gpu_before_ns = engine.queue("gpu").busy_ns
        self._nvme.peak_bytes = self._nvme.capacity_bytes - self._nvme.free_bytes
        for parameter in self._parameters.values():
            parameter.updated = False
        for channel in self._channels:
            first, rest = channel.here
            merged = sorted((first | rest).items(), key=lambda each: self._used[each[0]])
            channel.here = ({}, dict(merged))
        for channel in self._channels:
            engine.process(self._updates(channel), f"updates of channel {channel.number}")
        step = drive(
            engine, self.trace, self, ahead_ops=self.settings.ahead_ops, cost=self._profile.ns
        )
        forward_ns = step.phase_ns["forward"]
        return StepResult(
            forward_ns=forward_ns,
            backward_ns=step.total_ns - forward_ns,
            peak_nvme_bytes=self._nvme.peak_bytes,
            moved_bytes=dict(self._moved),
            kernel_ns=self._kernel_ns,
            gpu_ns=engine.queue("gpu").busy_ns - gpu_before_ns,
        )

    # Where things are

    def _place(self) -> dict[int, _Parameter]:
        """Spreads the parameters over the channels, in the order in which they were made."""
        settings, trace = self.settings, self.trace
        states: dict[int, list[int]] = {}
        for tensor in trace.tensors:
            if tensor.kind == "optimizer_state" and tensor.parameter is not None:
                states.setdefault(tensor.parameter, []).append(
                    tensor.nbytes * settings.state_bits // 32
                )
        trained = {each.parameter for each in trace.tensors if each.kind == "gradient"}
        loads = [0] * len(self._channels)
        placed: dict[int, _Parameter] = {}
        for tensor in trace.tensors:
            if tensor.kind != "parameter":
                continue
            number = len(placed) % len(loads)
            if settings.placement == "by_bytes":
                number = loads.index(min(loads))
            sizes = {"p": tensor.nbytes} | {
                f"s{index}": nbytes for index, nbytes in enumerate(states.get(tensor.id, ()))
            }
            loads[number] += sum(sizes.values())
            gradient_bytes = tensor.nbytes * settings.gradient_bits // 32
            placed[tensor.id] = _Parameter(
                number=tensor.id,
                name=tensor.name,
                count=tensor.nbytes // 4,
                channel=self._channels[number],
                sizes=sizes,
                gradient_bytes=gradient_bytes if tensor.id in trained else 0,
            )
        return placed

    def _fill(self) -> None:
        """Puts all where it is before the first step: in its channel, once that is full on NVMe."""
        self._used: dict[_Key, int] = {}
        self._uses = 0
        largest = [0] * len(self._channels)
        for parameter in self._parameters.values():
            channel = parameter.channel
            for name, nbytes in parameter.sizes.items():
                key = parameter.number, name
                if nbytes <= channel.memory.free_bytes:
                    channel.memory.take(key, nbytes)
                    channel.here[1][key] = nbytes
                else:
                    self._nvme.take(key, nbytes)
                self._touch(parameter, name)
            if parameter.gradient_bytes:
                needed = sum(parameter.sizes.values())
                largest[channel.number] = max(largest[channel.number], needed)
        for channel, needed in zip(self._channels, largest, strict=True):
            channel.gradient_limit_bytes = channel.memory.capacity_bytes - needed
            for parameter in self._parameters.values():
                if parameter.channel is channel and (
                    parameter.gradient_bytes > channel.gradient_limit_bytes
                ):
                    raise NoRoomError(
                        f"memory {channel.memory.name!r} of {channel.memory.capacity_bytes} bytes "
                        f"cannot hold the gradient of {parameter.name} beside an update, "
                        f"{parameter.gradient_bytes} and {needed} bytes: raise "
                        f"{channel.memory.name}.capacity_bytes"
                    )

    def _touch(self, parameter: _Parameter, name: str) -> None:
        """Notes that a tensor is used, if it is in its channel."""
        key, (first, rest) = (parameter.number, name), parameter.channel.here
        self._uses += 1
        self._used[key] = self._uses
        if key in first or key in rest:
            nbytes = (first if key in first else rest).pop(key)
            leaves = parameter.updated and self.settings.eviction == "updated_first"
            (first if leaves else rest)[key] = nbytes

    def _pin(self, parameter: _Parameter, names: Iterable[str], change: int) -> None:
        pinned = parameter.channel.pinned
        for name in names:
            key = parameter.number, name
            pinned[key] = pinned.get(key, 0) + change
            if not pinned[key]:
                del pinned[key]
        if change < 0:
            self._changed(parameter.channel)

    def _changed(self, channel: _Channel) -> None:
        happened, channel.changed = channel.changed, self.engine.clock.event()
        happened.succeed()

    def _lifetimes(
        self,
    ) -> tuple[dict[int, list[tuple[Any, int]]], dict[int, list[Any]], dict[int, list[_Parameter]]]:
        """For each operation: what comes to be on the GPU before it, what is freed after it, and
        the parameters whose gradients leave then."""
        trace = self.trace
        ops = [op.id for op in trace.ops if op.phase != "update"]
        first: dict[int, list[tuple[Any, int]]] = {op: [] for op in ops}
        last: dict[int, list[Any]] = {op: [] for op in ops}
        complete: dict[int, list[_Parameter]] = {}
        for tensor in trace.tensors:
            accesses = [op for op in trace.accesses[tensor.id] if op in first]
            if not accesses or tensor.kind in ("parameter", "optimizer_state"):
                continue
            key: Any = tensor.id
            if tensor.kind == "gradient" and tensor.parameter is not None:
                key = tensor.parameter, "g"
                parameter = self._parameters[tensor.parameter]
                # What is updated is no longer what this step computes with.
                uses = [op for op in trace.accesses[tensor.parameter] if op in first]
                complete.setdefault(max(accesses + uses), []).append(parameter)
                parameter.channel.trained += 1
            else:
                last[accesses[-1]].append(key)
            first[accesses[0]].append((key, tensor.nbytes))
        return first, last, complete

    # Moving

    def _transfer(
        self, nbytes: int, source: str, target: str, what: str, channel: _Channel | None = None
    ) -> Steps:
        """Moves bytes, when ``channel`` and the runtime are free to."""
        wanted = (self._turns, channel and channel.busy, self._runtime)
        locks = [lock for lock in wanted if lock is not None]
        for lock in locks:
            yield lock.acquire()
        yield self.engine.transfer(nbytes, source, target, what)
        for lock in locks:
            lock.release()
        self._moved[what] = self._moved.get(what, 0) + nbytes

    def _make_room(self, channel: _Channel, key: _Key, nbytes: int) -> Steps:
        """Takes so much of a channel's memory, as soon as enough has left it."""
        while True:
            full = key[1] == "g" and (
                channel.gradient_bytes + nbytes > channel.gradient_limit_bytes
            )
            if not full and nbytes <= channel.memory.free_bytes:
                channel.memory.take(key, nbytes)
                if key[1] == "g":
                    channel.gradient_bytes += nbytes
                return
            leaving = None if full else self._next_to_leave(channel)
            if leaving is None:
                yield channel.changed
            else:
                yield from self._evict(channel, leaving)

    def _next_to_leave(self, channel: _Channel) -> _Key | None:
        candidates = chain(*channel.here)
        return next((key for key in candidates if key not in channel.pinned), None)

    def _evict(self, channel: _Channel, key: _Key) -> Steps:
        nbytes = next(each.pop(key) for each in channel.here if key in each)
        left = channel.leaving[key] = self.engine.clock.event()
        self._nvme.take(key, nbytes)
        yield from self._transfer(nbytes, channel.memory.name, "nvme", "evict", channel)
        channel.memory.give(key)
        del channel.leaving[key]
        left.succeed()
        self._changed(channel)

    # The passes

    def place(self, op: Op) -> str | None:
        """On the GPU, but for updates."""
        return None if op.phase == "update" else "gpu"

    def before(self, op: Op) -> Iterable[Event]:
        """Room for what it makes, as a framework allocates it, and the parameters that it reads."""
        if op.phase == "update":
            return ()
        waits: list[Event] = []
        for parameter in self._read[op.id]:
            parameter.users += 1
            if parameter.on_gpu is None:
                # Asked for in program order, so that no earlier operation waits for a later one.
                room = self._gpu.room(parameter.sizes["p"], (parameter.number, "p"))
                parameter.on_gpu = self._fetches.call(
                    partial(self._fetch, parameter), parameter.name, [room]
                )
            waits.append(parameter.on_gpu)
        return waits + [self._gpu.room(nbytes, key) for key, nbytes in self._first[op.id]]

    def after(self, op: Op) -> None:
        """Frees what nobody needs any more, and sends gradients away."""
        for key in self._last[op.id]:
            self._gpu.give(key)
        for parameter in self._read[op.id]:
            parameter.users -= 1
            if not parameter.users:
                parameter.on_gpu = None
                self._gpu.give((parameter.number, "p"))
        for parameter in self._complete.get(op.id, ()):
            self._offloads.call(partial(self._send, parameter), parameter.name)

    def _fetch(self, parameter: _Parameter) -> Steps:
        nbytes, channel, key = parameter.sizes["p"], parameter.channel, (parameter.number, "p")
        if key in channel.leaving:
            yield channel.leaving[key]
        self._touch(parameter, "p")
        if channel.memory.holds(key):
            self._pin(parameter, "p", 1)
            yield from self._transfer(nbytes, channel.memory.name, "gpu", "fetch", channel)
            self._pin(parameter, "p", -1)
        else:
            yield from self._transfer(nbytes, "nvme", "gpu", "fetch from nvme")

    # Gradients and updates

    def _send(self, parameter: _Parameter) -> Steps:
        channel, key, nbytes = parameter.channel, (parameter.number, "g"), parameter.gradient_bytes
        yield from self._make_room(channel, key, nbytes)
        yield from self._transfer(nbytes, "gpu", channel.memory.name, "gradient", channel)
        self._gpu.give(key)
        channel.arrived.append(parameter)
        channel.arrivals.release()

    def _updates(self, channel: _Channel) -> Steps:
        """Updates a channel's parameters in the order in which their gradients arrive."""
        for _ in range(channel.trained):
            yield channel.arrivals.acquire()
            yield from self._update_one(channel, channel.arrived.popleft())

    def _update_one(self, channel: _Channel, parameter: _Parameter) -> Steps:
        self._pin(parameter, parameter.sizes, 1)
        for name, nbytes in parameter.sizes.items():
            key = parameter.number, name
            if key in channel.leaving:
                yield channel.leaving[key]
            if not channel.memory.holds(key):
                yield from self._make_room(channel, key, nbytes)
                yield from self._transfer(nbytes, "nvme", channel.memory.name, "gather", channel)
                self._nvme.give(key)
                channel.here[1][key] = nbytes
        locks = [lock for lock in (self._turns, channel.busy) if lock is not None]
        for lock in locks:
            yield lock.acquire()
        begin_ns = self.engine.now_ns
        yield from self._update(self.engine, channel.number, parameter.count)
        self._kernel_ns += self.engine.now_ns - begin_ns
        for lock in locks:
            lock.release()
        parameter.updated = True
        for name in parameter.sizes:
            self._touch(parameter, name)
        channel.memory.give((parameter.number, "g"))
        channel.gradient_bytes -= parameter.gradient_bytes
        self._pin(parameter, parameter.sizes, -1)
