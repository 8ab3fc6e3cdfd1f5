"""A user of a port to the memory of the stack, for benches."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from hw.pim.config import PimConfig
from hw.pim.memory.memory_port import MEMORY_TAG_BITS, memory_request_layout, memory_response_layout
from hw_tests.streams import StreamSink, StreamSource, pack, unpack

__all__ = ["MemoryRequest", "MemoryUser"]


@dataclass
class MemoryRequest:
    """A beat, and what became of it."""

    address: int
    """In beats."""
    write: bool = False
    data: int = 0
    strobe: int = (1 << 32) - 1
    tag: int = 0
    answer: int = 0
    """What was read."""


class MemoryUser:
    """Asks at the port ``name`` of ``dut``, with as many requests under way as there are tags.

    Tags are used again once they came back. :meth:`step` once a cycle.
    """

    def __init__(self, dut: Any, name: str, clock: Any, config: PimConfig, *, pause: float) -> None:
        self._config = config
        self.source = StreamSource(dut, f"{name}_request", clock, pause=pause)
        self.sink = StreamSink(dut, f"{name}_response", clock, pause=pause)
        self.queue: deque[MemoryRequest] = deque()
        """Not yet given."""
        self.under_way: dict[int, MemoryRequest] = {}
        """By tag."""
        self.answered: list[MemoryRequest] = []
        """In the order of their answers."""
        self._tags = deque(range(1 << MEMORY_TAG_BITS))
        self._seen = 0

    @property
    def done(self) -> bool:
        return not self.queue and not self.under_way

    def step(self) -> None:
        for payload in self.sink.taken[self._seen :]:
            answer = unpack(memory_response_layout(), payload)
            request = self.under_way.pop(answer["tag"])
            assert answer["write"] == request.write
            request.answer = answer["data"]
            self.answered.append(request)
            self._tags.append(request.tag)
        self._seen = len(self.sink.taken)
        # One ahead, so that there is never a pause that was not asked for.
        while self.queue and self._tags and len(self.source.queue) < 2:
            request = self.queue.popleft()
            request.tag = self._tags.popleft()
            self.under_way[request.tag] = request
            self.source.queue.append(self.pack(request))

    def pack(self, request: MemoryRequest) -> int:
        """The payload of a request."""
        return pack(
            memory_request_layout(self._config),
            address=request.address,
            write=int(request.write),
            data=request.data,
            strobe=request.strobe,
            tag=request.tag,
        )
