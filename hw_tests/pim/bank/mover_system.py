"""Loader, operand buffers, storer and memory port of a bank, for benches."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.pim.bank.buffer.buffers import CHUNK_BITS, OperandBuffers
from hw.pim.bank.buffer.interface import BufferReadSignature, ResultWriteSignature
from hw.pim.bank.move.bank_port import BankPort
from hw.pim.bank.move.loader import Loader
from hw.pim.bank.move.storer import Storer
from hw.pim.config import PimConfig
from hw.pim.memory.memory_port import memory_request_layout, memory_response_layout
from hw.pim.work.layouts import Jobs, OperandBuffer

__all__ = ["MoverSystem"]


class MoverSystem(wiring.Component):
    """A bank without its arithmetic.

    The members are those of its parts; ``first_0``, ``second_0`` and so on read the buffers.
    """

    chunk: Any
    load: Any
    store: Any
    result: Any
    request: Any
    response: Any
    done: Any
    done_buffer: Any
    freed: Any
    loader_idle: Any
    storer_idle: Any

    def __init__(self, config: PimConfig, *, lanes: int) -> None:
        self._config = config
        self._lanes = lanes
        self._reads = [f"{name}_{n}" for name in ("first", "second") for n in range(-(-lanes // 8))]
        jobs = Jobs(config)
        super().__init__(
            {
                "chunk": In(CHUNK_BITS),
                "load": In(stream.Signature(jobs.load)),
                "store": In(stream.Signature(jobs.store)),
                "result": In(ResultWriteSignature(lanes)),
                **{name: In(BufferReadSignature(jobs)) for name in self._reads},
                "request": Out(stream.Signature(memory_request_layout(config))),
                "response": In(stream.Signature(memory_response_layout())),
                "done": Out(1),
                "done_buffer": Out(OperandBuffer),
                "freed": Out(1),
                "loader_idle": Out(1),
                "storer_idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.loader = loader = Loader(self._config)
        m.submodules.storer = storer = Storer(self._config, lanes=self._lanes)
        m.submodules.port = port = BankPort(self._config)
        m.submodules.buffers = buffers = OperandBuffers(self._config, lanes=self._lanes)
        for mine, part in (
            (self.load, loader.i),
            (self.store, storer.i),
            (self.result, storer.result),
            (self.request, port.request),
            (self.response, port.response),
            *((getattr(self, name), getattr(buffers, name)) for name in self._reads),
        ):
            wiring.connect(m, wiring.flipped(mine), part)
        for ours, theirs in (
            (loader.request, port.read),
            (port.answer, loader.response),
            (storer.request, port.write),
            (loader.write, buffers.write),
        ):
            wiring.connect(m, ours, theirs)
        m.d.comb += [
            buffers.chunk.eq(self.chunk),
            storer.written.eq(port.written),
            self.done.eq(loader.done),
            self.done_buffer.eq(loader.done_buffer),
            self.freed.eq(storer.freed),
            self.loader_idle.eq(loader.idle),
            self.storer_idle.eq(storer.idle),
        ]
        return m
