"""A training step on one of the device-nodes, which all do the same.

The forward and backward passes run in the network's order. Each layer's feature map moves to the
store once it is computed. It comes back for the backward pass as early as there is room. What lies
between two layers is recomputed instead. Collectives run one after the other, beside the backward
pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sw_driver.device.timeline import Timeline
from sw_driver.machine import Machine
from sw_driver.numbers import check_integer
from sw_driver.workload.layers import Layer

from ..clock import Action, EngineEvent, ProcessSteps
from ..collectives import lane_ns, sent_share
from ..engine import Engine
from ..errors import EngineError
from ..outcome import Outcome, outcome_of
from ..residency import Residency
from .designs import DEVICES, Design, lanes, machine_of
from .device import WORD_BYTES, Product, array_of, cost_ns, streamed_ns

__all__ = ["MODES", "TrainingStep", "step"]

_STORES = "stores"
"""Place name for the memories of a design's stores, each with a part of a feature map."""

MODES = ("data", "model")
"""Ways to split work among the device-nodes: the batch, or the outputs of each layer."""


@dataclass(frozen=True, kw_only=True)
class _Costs:
    forward_ns: int
    between_ns: int
    again_ns: int
    """Operations behind the layer: recomputation and backward pass, in ns."""
    inputs_ns: int
    weights_ns: int


class TrainingStep:
    """A step of a network on a design.

    Parameters
    ----------
    mode: one of :data:`MODES`.
    batch: samples of all device-nodes together.
    """

    def __init__(
        self,
        design: Design,
        parts: Machine,
        layers: Sequence[Layer],
        mode: str,
        batch: int,
        *,
        devices: int = DEVICES,
        timeline: Timeline | None = None,
        record: bool = False,
    ) -> None:
        if mode not in MODES:
            raise EngineError(f"mode is {mode!r}: expected one of {', '.join(MODES)}")
        check_integer("devices", devices)
        check_integer("the number of layers", len(layers))
        if check_integer("batch", batch, error=EngineError) % devices:
            raise EngineError(f"batch is {batch}: expected a multiple of the {devices} devices")
        self.design, self.layers, self.mode = design, layers, mode
        self.devices, self.batch = devices, batch
        self.samples = batch // devices if mode == "data" else batch
        self.split = 1 if mode == "data" else devices
        self.parts = parts
        self.machine = machine_of(design, parts, devices)
        self.engine = Engine(self.machine, timeline, record=record)
        self.array = array_of(parts.device("node"))
        self.lanes = lanes(design, parts, devices)
        self.sync_bytes = 0
        self.uses = Counter(layer.weights for layer in layers)
        self.residency = Residency(
            self.engine,
            lambda number, _: self._bytes(number),
            name=lambda number: layers[number].name,
            spread={_STORES: design.stores} if design.stores else None,
        )
        self._gathered: dict[int, EngineEvent] = {}
        self._complete: dict[int, list[Layer]] = {}
        """Readers of inputs that are gathered once a layer is done, one for each input."""
        self._first_reader: dict[int, int] = {}
        self._first_use: dict[int, int] = {}
        for number, layer in enumerate(layers):
            if self.split > 1 and not layer.first and layer.input not in self._first_reader:
                self._complete.setdefault(layer.needs[-1], []).append(layer)
            self._first_reader.setdefault(layer.input, number)
            self._first_use.setdefault(layer.weights, number)

    def run(self) -> Outcome:
        """Simulate the step.

        ``moved_bytes`` has ``overlay`` for moves to the stores and back, and ``sync`` for the bytes
        that each device-node sends.
        """
        self.engine.process(self._forward(), "forward")
        self.engine.run()
        out = sum(self._bytes(number) for number in range(len(self.layers)))
        overlay = 2 * out if self.design.stores else 0
        moved_bytes = {"overlay": overlay, "sync": self.sync_bytes}
        return outcome_of(self.engine, moved_bytes=moved_bytes)

    @cached_property
    def costs(self) -> list[_Costs]:
        """Costs of each layer."""
        return [self._cost(layer) for layer in self.layers]

    def _cost(self, layer: Layer) -> _Costs:
        samples, array = self.samples, self.array
        rows, columns = samples * layer.rows, -(-layer.columns // self.split)
        # The gradient of an input is a product: each input sums over the windows that read it.
        across = -(-layer.inputs // layer.rows)
        deep = -(-layer.depth * columns // across)
        forward = Product(
            rows=rows, columns=columns, depth=layer.depth, row_words=samples * layer.inputs
        )
        at_once = self.uses[layer.weights]
        weights = Product(
            rows=layer.depth,
            columns=columns,
            depth=rows * at_once,
            row_words=samples * layer.inputs * at_once,
        )
        inputs = Product(rows=rows, columns=across, depth=deep, row_words=rows * columns)
        before, after = (
            samples * words // self.split
            for words in (layer.between_forward, layer.between_backward)
        )
        recomputed = before if self.design.stores else 0
        return _Costs(
            forward_ns=cost_ns(forward, array),
            between_ns=streamed_ns(before, array),
            again_ns=streamed_ns(recomputed + after, array),
            inputs_ns=0 if layer.first else cost_ns(inputs, array),
            weights_ns=cost_ns(weights, array),
        )

    def _bytes(self, number: int) -> int:
        """Return the bytes of a layer's results."""
        layer = self.layers[number]
        return WORD_BYTES * self.samples * layer.rows * -(-layer.columns // self.split)

    def _forward(self) -> ProcessSteps:
        engine, out = self.engine, None
        for number, (layer, cost) in enumerate(zip(self.layers, self.costs, strict=True)):
            if layer.input in self._gathered:
                yield self._gathered[layer.input]
            yield self.residency.room(number, "node")
            yield self._compute(cost.forward_ns, layer.name, "forward")
            if self.design.stores:
                out = self.residency.move(number, _STORES, "out")
            yield self._compute(cost.between_ns, f"after {layer.name}", "forward")
            for reader in self._complete.get(number, ()):
                self._gathered[reader.input] = self._collective("all-gather", reader)
        if out is not None:
            yield out
        for number in reversed(range(len(self.layers))):
            self._back(number)
        engine.process(self._backward(), "backward")

    def _back(self, number: int) -> EngineEvent:
        """Return the event at which a layer's feature map is in the node."""
        return self.residency.move(number, "node", "back")

    def _backward(self) -> ProcessSteps:
        # A device-node keeps only its share of gathered inputs, and gathers them once more.
        again: dict[int, EngineEvent] = {}
        reduced: dict[int, EngineEvent] = {}
        for number in reversed(range(len(self.layers))):
            layer, cost = self.layers[number], self.costs[number]
            yield self._back(number)
            for reader in self._complete.get(number, ()):
                yield reduced[reader.input]
            exchanged = self.split > 1 and not layer.first
            if exchanged and layer.input not in again:
                yield self._back(layer.needs[-1])
                again[layer.input] = self._collective("all-gather", layer)
            yield self._compute(cost.again_ns, f"behind {layer.name}", "backward")
            if not layer.first:
                yield self._compute(cost.inputs_ns, f"{layer.name} dX", "backward")
            if exchanged and self._first_reader[layer.input] == number:
                reduced[layer.input] = self._collective("all-reduce", layer)
            if layer.input in again:
                yield again[layer.input]
            complete = self._first_use[layer.weights] == number
            if complete:
                yield self._compute(cost.weights_ns, f"{layer.name} dW", "backward")
            self.residency.free(number, "node")
            if complete and self.mode == "data":
                self._collective("all-reduce", layer)

    def _compute(self, duration_ns: int, label: str, category: str) -> Action:
        return self.engine.queue("compute").execute(duration_ns, label, category=category)

    def _collective(self, kind: str, layer: Layer) -> EngineEvent:
        """Start a collective of a layer's input, or of its weights, on all rings at once.

        It shares the links' rates with moves.
        """
        engine, lanes_, name = self.engine, self.lanes, layer.name
        if self.devices == 1:
            return engine.clock.timeout(0)
        words = layer.parameters if self.mode == "data" else self.batch * layer.inputs
        nbytes = WORD_BYTES * words
        sent = sent_share(kind, self.devices) * nbytes
        self.sync_bytes += int(sent)
        # Transfers model the links' rates and one hop; the rest of the hops is waiting.
        part = -(-nbytes // len(lanes_))
        carried = int(sent / len(lanes_))
        waiting_ns = max(
            lane_ns(lane, kind, part) - lane.busy_ns(carried) - lane.hop_ns for lane in lanes_
        )

        def run() -> ProcessSteps:
            yield engine.clock.timeout(max(waiting_ns, 0))
            parts = []
            for port in self.design.ports:
                if port.rings:
                    part = int(sent * port.links / self.design.ring_links)
                    for ends in (("node", port.name), (port.name, "node")):
                        parts.append(engine.transfer(part, *ends, f"{kind} {name}"))
            yield from parts

        return engine.queue("sync").call(run, f"{kind} {name}", category="sync")


def step(
    design: Design, parts: Machine, layers: Sequence[Layer], mode: str, batch: int, **options: Any
) -> Outcome:
    """Simulate a training step; see :class:`TrainingStep`."""
    return TrainingStep(design, parts, layers, mode, batch, **options).run()
