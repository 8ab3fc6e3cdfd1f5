"""A training step of the paper's systems on a profile, as events on a machine's links and memory.

MemFerry follows a plan, by the rules of :mod:`~sw_driver.system.memferry.link`. That module
computes the same times in another way. GO-MemFerry's plan has no gradient in the GPU's memory.
Native ZeRO-Offload copies all parameters, and the host updates them once all gradients have arrived
(II-B). DeepSpeed's does so, too. It also creates and destroys a buffer for each gradient while the
GPU waits, and has a bucket.

Several GPUs work as in PyTorch's DataParallel. The first copies to and from the host. It sends
parameters to the others in a ring, and gradients are reduced in the ring, layer by layer, at the
rate of the link. Each GPU reads for itself by DHA, over a link of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from pathlib import Path

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.device.timeline import Timeline
from sw_driver.machine import Machine
from sw_driver.machine.memferry import MEMFERRY_V100
from sw_driver.machine.parts import Memory, assumed, given, link
from sw_driver.numbers import check_fields, check_integer

from ..clock import EngineEvent, ProcessSteps, Semaphore
from ..collectives import RingLane, lane_ns
from ..engine import Engine
from ..outcome import Outcome, outcome_of
from ..work import DeviceWork, Flow
from .link import AccessPlan, Mode, backward_way, every, forward_way, updates_ns
from .profile import LayerProfile, ModelProfile

__all__ = ["BUCKET_BYTES", "LEAST_LEAVING", "System", "deepspeed", "draw", "native", "run"]

BUCKET_BYTES = 4 * 5 * 10**8
"""Bytes of DeepSpeed's bucket: reduce_bucket_size is 5e8 elements by default, of FP32.

The source is DeepSpeed's documentation.
"""

LEAST_LEAVING = 2
"""Gradients that leave at a time, at least: one is copied while the next is computed (assumed)."""
_NO_BOUND = 10**19
_GIGA = 10**9


@dataclass(frozen=True, kw_only=True)
class System:
    """A system that runs a step, with its plan.

    Examples
    --------
    >>> from sw_driver.system.memferry.runs import MemferryCase, profile_for
    >>> profile = profile_for(MemferryCase(network="bert-base"))
    >>> system = native(profile, gpus=4)
    >>> system.gpus, run(profile, system).step_ns // 10**6
    (4, 126)
    """

    plan: AccessPlan
    updates_last: bool = False
    """True if updates begin once all gradients have arrived."""
    buffer_ps_per_byte: int = 0
    """Time that the GPU waits for each gradient's buffer, in ps a byte."""
    bucket_bytes: int = 0
    """Further bytes of the GPU's memory."""
    leaving: int | None = None
    """Most gradients in the GPU's memory at a time, if they leave it as they are made.

    The backward pass waits for room for one more. Without a number all stay until the step ends.
    """
    gpus: int = 1

    def __post_init__(self) -> None:
        check_fields(self, "buffer_ps_per_byte", "bucket_bytes")
        if self.leaving is not None:
            check_integer("leaving", self.leaving)
        if self.gpus > 1 and not all(self.plan.gradients_on_gpu):
            raise InvalidArgumentError(
                f"gpus is {self.gpus}: expected 1 for a plan that writes gradients by DHA, as "
                "nothing would add them up"
            )


def native(profile: ModelProfile, gpus: int = 1, leaving: int | None = None) -> System:
    """Return ZeRO-Offload, with gradients that stay, or leave as in its own paper.

    That they stay explains Yao et al.'s Figure 11, where it trains no larger network than MemFerry
    with all gradients on the GPU. ``leaving`` is :attr:`System.leaving`.
    """
    plan = every(profile, "GFGB", True)
    return System(plan=plan, updates_last=True, gpus=gpus, leaving=leaving)


def deepspeed(
    profile: ModelProfile, buffer_ps_per_byte: int, gpus: int = 1, leaving: int | None = None
) -> System:
    """Return ZeRO-Offload as in DeepSpeed; see :func:`native`."""
    buffers = {"buffer_ps_per_byte": buffer_ps_per_byte, "bucket_bytes": BUCKET_BYTES}
    return replace(native(profile, gpus, leaving), **buffers)


def run(
    profile: ModelProfile,
    system: System,
    timeline: Timeline | None = None,
    *,
    check: bool = False,
) -> Outcome:
    """Simulate a step; ``check`` is for :meth:`~sw_driver.system.engine.Engine.check`.

    ``marks_ns`` has the end of the forward pass, and the arrival of the last gradient in the host's
    memory.
    """
    layers = len(profile.layers)
    check_integer("the number of layers in the plan", len(system.plan.modes), layers, layers)
    step = _Step(profile, system, Engine(_machine(profile), timeline, record=check))
    step.engine.run()
    if check:
        step.engine.check()
    marks_ns = {"forward": step.forward_ns, "gradients": step.gradients_ns}
    return outcome_of(step.engine, marks_ns=marks_ns)


def draw(profile: ModelProfile, system: System, path: Path) -> list[Path]:
    """Write a step's timeline as trace and pictures, and return the files."""
    timeline = Timeline(backend=profile.device, fabric_mhz=1000)
    run(profile, system, timeline)
    return timeline.write_all(path)


def _machine(profile: ModelProfile) -> Machine:
    none, far = assumed(0, "in the profile's times"), assumed(_NO_BOUND, "not limited here")
    rate = given(profile.link_bytes_per_s / _GIGA, "the profile")
    return Machine(
        name=profile.device,
        memories=tuple(Memory(name=name, capacity_bytes=far) for name in ("gpu", "host")),
        devices=(replace(MEMFERRY_V100.device("gpu"), accesses="at_once"),),
        links=(link("pcie", "host", "gpu", rate, none),),
    )


class _Step:
    """A step: processes for the copies to the GPU, for its passes, and for each gradient."""

    def __init__(self, profile: ModelProfile, system: System, engine: Engine) -> None:
        self.profile, self.system, self.engine = profile, system, engine
        self.memory = engine.memory("gpu")
        self.forward_ns = self.gradients_ns = 0
        self._updates = updates_ns(profile)
        self._missing = len(profile.layers)
        """Gradients that have not arrived in the host's memory."""
        self._waiting: list[int] = []
        """DFGB layers that wait for a copy, as a heap of negative numbers, the last layer first."""
        self._requests = Semaphore(engine.clock, 0)
        self._room = Semaphore(engine.clock, system.leaving or 0)
        plan = system.plan
        self._ways = list(zip(profile.layers, plan.modes, plan.gradients_on_gpu, strict=True))
        self._loaded = [engine.clock.event() for _ in self._ways]
        for layer, mode, on_gpu in self._ways:
            kept = (mode != "DHA") * layer.nbytes
            if on_gpu and system.leaving is None:
                kept += layer.gradient_bytes
            self.memory.take(f"{layer.name}: parameters and gradients", kept)
        self.memory.take("bucket", system.bucket_bytes)
        engine.process(self._loads(), "loads")
        engine.process(self._passes(), "passes")

    def _loads(self) -> ProcessSteps:
        modes = self.system.plan.modes
        for i in [i for i, mode in enumerate(modes) if mode == "GFGB"]:
            yield self._copy(i, "host", "gpu")
            self.engine.process(self._arrive(i))
        for _ in range(modes.count("DFGB")):
            yield self._requests.acquire()
            settled = self.engine.clock.event()
            self.engine.clock.at_end(settled.happen)
            yield settled  # all requests of this moment
            i = -heappop(self._waiting)
            yield self._copy(i, "host", "gpu")
            self.engine.process(self._arrive(i))

    def _arrive(self, i: int) -> ProcessSteps:
        """Send a layer's parameters to the other GPUs, then mark them as loaded."""
        yield from self._ring(i)
        self._loaded[i].happen()

    def _passes(self) -> ProcessSteps:
        gpu = self.engine.queue("gpu")
        for i, (layer, mode, _) in enumerate(self._ways):
            if mode == "GFGB":
                yield self._loaded[i]
            self.memory.take((i, "activations"), layer.activation_bytes)
            yield from self._compute(layer, mode, "forward", forward_way(layer, mode))
            if mode == "DFGB":
                heappush(self._waiting, -i)
                self._requests.release()
            if gap_ns := layer.gap_forward_ns:
                yield gpu.execute(gap_ns, f"behind {layer.name}", category="forward")
        self.forward_ns = self.engine.now_ns
        for i, (layer, mode, on_gpu) in reversed(list(enumerate(self._ways))):
            if gap_ns := layer.gap_backward_ns:
                yield gpu.execute(gap_ns, f"behind {layer.name}", category="backward")
            if mode == "DFGB":
                yield self._loaded[i]
            way = backward_way(layer, mode, on_gpu)
            if self._leaves(i):
                yield self._room.acquire()
                self.memory.take((i, "gradient"), layer.gradient_bytes)
            yield from self._compute(layer, mode, "backward", way)
            self.memory.give((i, "activations"))
            if not on_gpu or (layer.frozen_bytes and not layer.gradient_bytes):
                self._came(i)
                continue
            self.engine.process(self._gradient(i))
            if waits_ns := layer.gradient_bytes * self.system.buffer_ps_per_byte // 1000:
                yield self.engine.queue("buffers").execute(waits_ns, layer.name)

    def _compute(
        self, layer: LayerProfile, mode: Mode, phase: str, way: Sequence[int]
    ) -> ProcessSteps:
        alone_ns, *moved = way
        flows = [
            Flow(self._bytes(ns), *ends)
            for ns, ends in zip(moved, (("host", "gpu"), ("gpu", "host")), strict=True)
            if ns
        ]
        self.memory.take("workspace", layer.workspace_bytes)
        work, label = DeviceWork(alone_ns, flows), f"{layer.name}, {mode}"
        yield self.engine.queue("gpu").work(lambda: work, label, category=phase)
        self.memory.give("workspace")

    def _gradient(self, i: int) -> ProcessSteps:
        """Send a gradient from every GPU to the host and schedule its update."""
        yield from self._ring(i)
        yield self._copy(i, "gpu", "host")
        if self._leaves(i):
            self.memory.give((i, "gradient"))
            self._room.release()
        self._came(i)

    def _leaves(self, i: int) -> bool:
        """Return whether a layer's gradient leaves the GPU as it is made."""
        layer, _, on_gpu = self._ways[i]
        return self.system.leaving is not None and on_gpu and layer.gradient_bytes > 0

    def _came(self, i: int) -> None:
        self._missing -= 1
        self.gradients_ns = self.engine.now_ns
        layers = range(len(self._updates)) if not self._missing else ()
        for number in layers if self.system.updates_last else (i,):
            name = self.profile.layers[number].name
            queue = self.engine.queue("updates")
            queue.execute(self._updates[number], name, category="update")

    def _copy(self, i: int, source: str, target: str) -> EngineEvent:
        layer = self.profile.layers[i]
        to_gpu = target == "gpu"
        queue = self.engine.queue("loads" if to_gpu else "gradients")
        nbytes = self._bytes(layer.transfer_ns if to_gpu else layer.gradient_ns)
        return queue.transfer(nbytes, source, target, layer.name)

    def _ring(self, i: int) -> ProcessSteps:
        """Send parameters to the other GPUs, or reduce their gradients, which takes as long."""
        layer, gpus = self.profile.layers[i], self.system.gpus
        if gpus > 1:
            rate = self.profile.link_bytes_per_s / _GIGA
            lane = RingLane(gaps=(1,) * gpus, gb_per_s=rate, hop_ns=0)
            ns = lane_ns(lane, "broadcast", layer.nbytes)
            yield self.engine.queue("ring").execute(ns, layer.name)

    def _bytes(self, ns: int) -> int:
        """Return the bytes that the link moves in ``ns``; a copy's latency counts as bytes, too."""
        return ns * round(self.profile.link_bytes_per_s) // _GIGA
