"""A training step of the paper's systems on a profile, as events on a machine's links and memory.

MemFerry follows a plan, as :mod:`~sw_driver.system.memferry.link` says, which finds the same times
in another way. GO-MemFerry's plan has no gradient in the GPU's memory. Native ZeRO-Offload copies
all parameters, and the host updates them when all gradients are there (II-B). DeepSpeed's does so,
too, but builds and destroys a buffer for each gradient, on which the GPU waits, and has a bucket.

On several GPUs it is as in PyTorch's DataParallel: the first has the copies to and from the host,
passes parameters on to the others in a ring and gets their gradients reduced in it, layer by layer,
at the rate of the link. What is read by DHA each reads for itself, over a link of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.device.timeline import Timeline
from sw_driver.machine import Machine
from sw_driver.machine.parts import Device, Memory, assumed, given, link
from sw_driver.numbers import check_fields, check_integer

from ..clock import Event, Semaphore, Steps
from ..engine import Engine
from ..mc_dla.collectives import Lane, lane_ns
from ..work import Flow, Work
from .link import Plan, backward_ns, link_ns, updates_ns
from .profile import LayerProfile, ModelProfile

__all__ = ["BUCKET_BYTES", "StepResult", "System", "all_on_gpu", "deepspeed", "native", "run"]

BUCKET_BYTES = 4 * 5 * 10**8
"""DeepSpeed's documentation: reduce_bucket_size is 5e8 elements by default; of FP32."""

_NO_BOUND = 10**19
_GIGA = 10**9


@dataclass(frozen=True, kw_only=True)
class System:
    """How a step goes."""

    plan: Plan
    updates_last: bool = False
    """Whether updates begin when all gradients are there."""
    buffer_ps_per_byte: int = 0
    """What the GPU waits for each gradient's buffer."""
    bucket_bytes: int = 0
    """Of the GPU's memory, besides."""
    gpus: int = 1

    def __post_init__(self) -> None:
        check_fields(self, "buffer_ps_per_byte", "bucket_bytes")
        if self.gpus > 1 and not all(self.plan.gradients_on_gpu):
            raise InvalidArgumentError(
                f"gpus is {self.gpus}: expected 1 for a plan that writes gradients by DHA, as "
                "nothing would add them up"
            )


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """A training step."""

    total_ns: int
    forward_ns: int
    """When the forward pass is over."""
    used_ns: int
    """For how long the GPU computes, or waits for what it reads or writes by DHA."""
    peak_bytes: int
    """Of the GPU's memory."""

    @property
    def utilization(self) -> float:
        return self.used_ns / self.total_ns


def all_on_gpu(profile: ModelProfile) -> Plan:
    layers = len(profile.layers)
    return Plan(modes=("GFGB",) * layers, gradients_on_gpu=(True,) * layers)


def native(profile: ModelProfile, gpus: int = 1) -> System:
    """ZeRO-Offload as its paper has it."""
    return System(plan=all_on_gpu(profile), updates_last=True, gpus=gpus)


def deepspeed(profile: ModelProfile, buffer_ps_per_byte: int, gpus: int = 1) -> System:
    """ZeRO-Offload as DeepSpeed has it."""
    return System(
        plan=all_on_gpu(profile),
        updates_last=True,
        buffer_ps_per_byte=buffer_ps_per_byte,
        bucket_bytes=BUCKET_BYTES,
        gpus=gpus,
    )


def run(
    profile: ModelProfile,
    system: System,
    timeline: Timeline | None = None,
    *,
    check: bool = False,
) -> StepResult:
    """Simulates a step; with ``check`` as :meth:`~sw_driver.system.engine.Engine.check` has it."""
    layers = len(profile.layers)
    check_integer("the number of layers in the plan", len(system.plan.modes), layers, layers)
    step = _Step(profile, system, Engine(_machine(profile), timeline, record=check))
    total_ns = step.engine.run()
    if check:
        step.engine.check()
    return StepResult(
        total_ns=total_ns,
        forward_ns=step.forward_ns,
        used_ns=step.engine.queue("gpu").busy_ns - step.buffers_ns,
        peak_bytes=step.memory.peak_bytes,
    )


def _machine(profile: ModelProfile) -> Machine:
    none, far = assumed(0, "in the profile's times"), assumed(_NO_BOUND, "not what is asked for")
    rate = given(profile.link_bytes_per_s / _GIGA, "the profile")
    return Machine(
        name=profile.device,
        memories=tuple(Memory(name=name, capacity_bytes=far) for name in ("gpu", "host")),
        devices=(
            Device(
                name="gpu",
                memory="gpu",
                tflop_per_s=assumed(1, "not used: the profile has times"),
                gb_per_s=assumed(1, "not used: the profile has times"),
                launch_ns=none,
                accesses="at_once",
            ),
        ),
        links=(link("pcie", "host", "gpu", rate, none),),
    )


class _Step:
    """Everything is asked for when it is made, but what depends on what ends first."""

    def __init__(self, profile: ModelProfile, system: System, engine: Engine) -> None:
        self.profile, self.system, self.engine = profile, system, engine
        self.memory = engine.memory("gpu")
        self.forward_ns = self.buffers_ns = 0
        self._rate = round(profile.link_bytes_per_s)
        self._lane = Lane(
            gaps=(1,) * system.gpus, gb_per_s=profile.link_bytes_per_s / _GIGA, hop_ns=0
        )
        self._updates = updates_ns(profile)
        self._missing = len(profile.layers)
        """Gradients that are not in the host's memory."""
        self._waiting: list[int] = []
        """DFGB layers, the last first, without its sign."""
        self._asked = Semaphore(engine.clock, 0)
        modes = system.plan.modes
        self._loaded: list[Event] = [engine.clock.event() for _ in modes]
        for layer, mode, on_gpu in zip(
            profile.layers, modes, system.plan.gradients_on_gpu, strict=True
        ):
            kept = ((mode != "DHA") + on_gpu) * layer.nbytes
            self.memory.take(f"{layer.name}: parameters and gradients", kept)
        self.memory.take("bucket", system.bucket_bytes)
        engine.process(self._loads(), "loads")
        for i in range(len(modes)):
            self._forward(i)
        gpu = engine.queue("gpu")
        gpu.execute(0, "backward pass", category="backward").callbacks.append(self._turn)
        for i in reversed(range(len(modes))):
            self._backward(i)

    # Parameters

    def _loads(self) -> Steps:
        modes = self.system.plan.modes
        for i, mode in enumerate(modes):
            if mode == "GFGB":
                yield self._load(i)
        for _ in range(modes.count("DFGB")):
            yield self._asked.acquire()
            yield self._load(-heappop(self._waiting))

    def _load(self, i: int) -> Event:
        layer = self.profile.layers[i]
        copy = self.engine.queue("loads").transfer(
            self._bytes(layer.transfer_ns), "host", "gpu", layer.name
        )
        copy.callbacks.append(lambda _: self._ring(layer, self._loaded[i].happen))
        return copy

    def _ring(self, layer: LayerProfile, then: Callable[[], object]) -> None:
        """Parameters to the other GPUs, or gradients from them, which takes as long."""
        if self.system.gpus == 1:
            then()
            return
        ns = lane_ns(self._lane, "broadcast", layer.nbytes)
        self.engine.queue("ring").execute(ns, layer.name).callbacks.append(lambda _: then())

    # The GPU

    def _forward(self, i: int) -> None:
        layer, mode = self.profile.layers[i], self.system.plan.modes[i]
        reads = 0
        if mode != "GFGB":
            reads = link_ns(layer, layer.forward_dha_ns, layer.forward_ns)
        takes = self._work(layer.forward_ns if mode == "GFGB" else layer.forward_dha_ns, reads, 0)

        def begin() -> Work:
            self.memory.take((i, "activations"), layer.activation_bytes)
            self.memory.take((i, "workspace"), layer.workspace_bytes)
            return takes

        def over(_: Event) -> None:
            if mode == "DFGB":
                heappush(self._waiting, -i)
                self._asked.release()

        gpu = self.engine.queue("gpu")
        waits = [self._loaded[i]] if mode == "GFGB" else []
        entry = gpu.work(begin, f"{layer.name}, {mode}", waits, "forward")
        entry.callbacks.append(over)
        self._free(entry, (i, "workspace"))
        if layer.gap_forward_ns:
            gpu.execute(layer.gap_forward_ns, f"behind {layer.name}", category="forward")

    def _turn(self, _: Event) -> None:
        self.forward_ns = self.engine.now_ns

    def _backward(self, i: int) -> None:
        system, gpu, layer = self.system, self.engine.queue("gpu"), self.profile.layers[i]
        mode, on_gpu = system.plan.modes[i], system.plan.gradients_on_gpu[i]
        reads = writes = 0
        if mode == "DHA":
            reads = link_ns(layer, layer.backward_dha_ns, layer.backward_ns)
        if not on_gpu:
            writes = link_ns(layer, layer.backward_gradient_dha_ns, layer.backward_ns)
        takes = self._work(backward_ns(layer, mode, on_gpu), reads, writes)

        def begin() -> Work:
            self.memory.take((i, "workspace"), layer.workspace_bytes)
            return takes

        def over(_: Event) -> None:
            if on_gpu:
                self._ring(layer, copied)
            else:
                self._came(i)

        def copied() -> None:
            copy = self.engine.queue("gradients").transfer(
                self._bytes(layer.transfer_ns), "gpu", "host", layer.name
            )
            copy.callbacks.append(lambda _: self._came(i))

        if layer.gap_backward_ns:
            gpu.execute(layer.gap_backward_ns, f"behind {layer.name}", category="backward")
        waits = [self._loaded[i]] if mode == "DFGB" else []
        entry = gpu.work(begin, f"{layer.name}, {mode}", waits, "backward")
        entry.callbacks.append(over)
        self._free(entry, (i, "workspace"), (i, "activations"))
        if on_gpu and system.buffer_ps_per_byte:
            waited_ns = layer.nbytes * system.buffer_ps_per_byte // 1000
            self.buffers_ns += waited_ns
            gpu.execute(waited_ns, f"{layer.name}: buffer", category="buffers")

    def _free(self, entry: Event, *keys: tuple[int, str]) -> None:
        """Before the next entry begins, which is the first that an entry's end brings about."""

        def free(_: Event) -> None:
            for key in keys:
                self.memory.give(key)

        entry.callbacks.insert(0, free)

    def _work(self, alone_ns: int, reads_ns: int, writes_ns: int) -> Work:
        flows = (
            Flow(self._bytes(reads_ns), "host", "gpu"),
            Flow(self._bytes(writes_ns), "gpu", "host"),
        )
        return Work(alone_ns, [flow for flow in flows if flow.nbytes])

    def _bytes(self, ns: int) -> int:
        """What the link moves in so long: a copy's latency counts as such."""
        return ns * self._rate // _GIGA

    # The host

    def _came(self, i: int) -> None:
        """A gradient is in the host's memory."""
        self._missing -= 1
        if not self.system.updates_last:
            self._update(i)
        elif not self._missing:
            for each in range(len(self._updates)):
                self._update(each)

    def _update(self, i: int) -> None:
        name = self.profile.layers[i].name
        self.engine.queue("updates").execute(self._updates[i], name, category="update")
