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

from ..clock import Event, Semaphore, Steps
from ..collectives import Lane, lane_ns
from ..engine import Engine
from ..outcome import Outcome, outcome_of
from ..work import Flow, Work
from .link import Mode, Plan, backward_way, every, forward_way, updates_ns
from .profile import LayerProfile, ModelProfile

__all__ = ["BUCKET_BYTES", "System", "deepspeed", "draw", "native", "run"]

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


def native(profile: ModelProfile, gpus: int = 1) -> System:
    """ZeRO-Offload as its paper has it."""
    return System(plan=every(profile, "GFGB", True), updates_last=True, gpus=gpus)


def deepspeed(profile: ModelProfile, buffer_ps_per_byte: int, gpus: int = 1) -> System:
    """ZeRO-Offload as DeepSpeed has it."""
    buffers = {"buffer_ps_per_byte": buffer_ps_per_byte, "bucket_bytes": BUCKET_BYTES}
    return replace(native(profile, gpus), **buffers)


def run(
    profile: ModelProfile,
    system: System,
    timeline: Timeline | None = None,
    *,
    check: bool = False,
) -> Outcome:
    """Simulates a step; with ``check`` as :meth:`~sw_driver.system.engine.Engine.check` has it.
    Marked are the end of the forward pass, and when the last gradient is in the host's memory."""
    layers = len(profile.layers)
    check_integer("the number of layers in the plan", len(system.plan.modes), layers, layers)
    step = _Step(profile, system, Engine(_machine(profile), timeline, record=check))
    step.engine.run()
    if check:
        step.engine.check()
    marks_ns = {"forward": step.forward_ns, "gradients": step.gradients_ns}
    return outcome_of(step.engine, marks_ns=marks_ns)


def draw(profile: ModelProfile, system: System, path: Path) -> list[Path]:
    """Writes a step's timeline as trace and pictures, to ``path`` with their endings."""
    timeline = Timeline(backend=profile.device, fabric_mhz=1000)
    run(profile, system, timeline)
    return timeline.write_all(path)


def _machine(profile: ModelProfile) -> Machine:
    none, far = assumed(0, "in the profile's times"), assumed(_NO_BOUND, "not what is asked for")
    rate = given(profile.link_bytes_per_s / _GIGA, "the profile")
    return Machine(
        name=profile.device,
        memories=tuple(Memory(name=name, capacity_bytes=far) for name in ("gpu", "host")),
        devices=(replace(MEMFERRY_V100.device("gpu"), accesses="at_once"),),
        links=(link("pcie", "host", "gpu", rate, none),),
    )


class _Step:
    """Two processes, the copies to the GPU and what it computes, and one for each gradient."""

    def __init__(self, profile: ModelProfile, system: System, engine: Engine) -> None:
        self.profile, self.system, self.engine = profile, system, engine
        self.memory = engine.memory("gpu")
        self.forward_ns = self.gradients_ns = 0
        self._updates = updates_ns(profile)
        self._missing = len(profile.layers)
        """Gradients that are not in the host's memory."""
        self._waiting: list[int] = []
        """DFGB layers, the last first, without its sign."""
        self._asked = Semaphore(engine.clock, 0)
        plan = system.plan
        self._ways = list(zip(profile.layers, plan.modes, plan.gradients_on_gpu, strict=True))
        self._loaded = [engine.clock.event() for _ in self._ways]
        for layer, mode, on_gpu in self._ways:
            kept = ((mode != "DHA") + on_gpu) * layer.nbytes
            self.memory.take(f"{layer.name}: parameters and gradients", kept)
        self.memory.take("bucket", system.bucket_bytes)
        engine.process(self._loads(), "loads")
        engine.process(self._passes(), "passes")

    def _loads(self) -> Steps:
        modes = self.system.plan.modes
        for i in [i for i, mode in enumerate(modes) if mode == "GFGB"]:
            yield self._copy(i, "host", "gpu")
            self.engine.process(self._arrive(i))
        for _ in range(modes.count("DFGB")):
            yield self._asked.acquire()
            asked = self.engine.clock.event()
            self.engine.clock.at_end(asked.happen)
            yield asked  # all that ask now
            i = -heappop(self._waiting)
            yield self._copy(i, "host", "gpu")
            self.engine.process(self._arrive(i))

    def _arrive(self, i: int) -> Steps:
        """At all GPUs."""
        yield from self._ring(i)
        self._loaded[i].happen()

    def _passes(self) -> Steps:
        gpu = self.engine.queue("gpu")
        for i, (layer, mode, _) in enumerate(self._ways):
            if mode == "GFGB":
                yield self._loaded[i]
            self.memory.take((i, "activations"), layer.activation_bytes)
            yield from self._compute(layer, mode, "forward", forward_way(layer, mode))
            if mode == "DFGB":
                heappush(self._waiting, -i)
                self._asked.release()
            if gap_ns := layer.gap_forward_ns:
                yield gpu.execute(gap_ns, f"behind {layer.name}", category="forward")
        self.forward_ns = self.engine.now_ns
        for i, (layer, mode, on_gpu) in reversed(list(enumerate(self._ways))):
            if gap_ns := layer.gap_backward_ns:
                yield gpu.execute(gap_ns, f"behind {layer.name}", category="backward")
            if mode == "DFGB":
                yield self._loaded[i]
            way = backward_way(layer, mode, on_gpu)
            yield from self._compute(layer, mode, "backward", way)
            self.memory.give((i, "activations"))
            if not on_gpu:
                self._came(i)
                continue
            self.engine.process(self._gradient(i))
            if waits_ns := layer.nbytes * self.system.buffer_ps_per_byte // 1000:
                yield self.engine.queue("buffers").execute(waits_ns, layer.name)

    def _compute(self, layer: LayerProfile, mode: Mode, phase: str, way: Sequence[int]) -> Steps:
        alone_ns, *moved = way
        flows = [
            Flow(self._bytes(ns), *ends)
            for ns, ends in zip(moved, (("host", "gpu"), ("gpu", "host")), strict=True)
            if ns
        ]
        self.memory.take("workspace", layer.workspace_bytes)
        work, label = Work(alone_ns, flows), f"{layer.name}, {mode}"
        yield self.engine.queue("gpu").work(lambda: work, label, category=phase)
        self.memory.give("workspace")

    def _gradient(self, i: int) -> Steps:
        """To the host, from all GPUs, and then its update, or all of them at the end."""
        yield from self._ring(i)
        yield self._copy(i, "gpu", "host")
        self._came(i)

    def _came(self, i: int) -> None:
        self._missing -= 1
        self.gradients_ns = self.engine.now_ns
        every = range(len(self._updates)) if not self._missing else ()
        for each in every if self.system.updates_last else (i,):
            name = self.profile.layers[each].name
            queue = self.engine.queue("updates")
            queue.execute(self._updates[each], name, category="update")

    def _copy(self, i: int, source: str, target: str) -> Event:
        layer = self.profile.layers[i]
        queue = self.engine.queue("loads" if target == "gpu" else "gradients")
        return queue.transfer(self._bytes(layer.transfer_ns), source, target, layer.name)

    def _ring(self, i: int) -> Steps:
        """Parameters to the other GPUs, or gradients from them, which takes as long."""
        layer, gpus = self.profile.layers[i], self.system.gpus
        if gpus > 1:
            rate = self.profile.link_bytes_per_s / _GIGA
            lane = Lane(gaps=(1,) * gpus, gb_per_s=rate, hop_ns=0)
            ns = lane_ns(lane, "broadcast", layer.nbytes)
            yield self.engine.queue("ring").execute(ns, layer.name)

    def _bytes(self, ns: int) -> int:
        """What the link moves in so long: a copy's latency counts as such."""
        return ns * round(self.profile.link_bytes_per_s) // _GIGA
