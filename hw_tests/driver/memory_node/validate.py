"""``python -m hw_tests.driver.memory_node.validate``: the cycle model of a group beside the RTL."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from golden.cycles import ChannelState, RefreshState
from golden.cycles.memory_node import Request, answered_fabric_cycles
from hw.memory_node.config import MEMORY_NODE_PRESETS, MemoryNodeConfig
from hw_tests.conftest import build_quickly
from sw_driver.machine.memory_node import group_cycles
from sw_driver.memory_node.backends.rtl import RtlPorts
from sw_driver.memory_node.packets import REQUESTS, Operation, Packet

KINDS = ("reads", "writes", "both")
SIZES = ("64", "8", "mixed")
ORDERS = ("sequential", "random")
SETTLE_CYCLES = 256
"""Until links have heard each other."""
STEP_CYCLES = 8
LINES = 32768
"""That a link asks for: more than the time in which refreshes are collected."""
LIMIT_CYCLES = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What each of some links of a group asks."""

    kind: str
    size: str
    order: str
    links: int

    def requests(self, config: MemoryNodeConfig, lines: int) -> list[list[Request]]:
        """For each link of the group; together about ``lines`` lines on each that asks."""
        rng = random.Random(repr(self))
        share = config.group_bytes // 64 // config.group_links
        return [
            list(self._of_link(rng, link * share, share, lines)) if link < self.links else []
            for link in range(config.group_links)
        ]

    def _of_link(
        self, rng: random.Random, first: int, share: int, lines: int
    ) -> Iterable[Request]:
        write = self.kind == "writes"
        at = {False: 0, True: share // 2}
        asked = 0
        while asked < lines:
            size = rng.randint(1, 64) if self.size == "mixed" else int(self.size)
            if self.order == "random":
                offset = rng.randrange(share - size)
                if self.size != "mixed":
                    offset -= offset % size
            else:
                offset = at[write]
                at[write] = offset + size
            yield Request(write, first + offset % (share - 64), size)
            asked += size
            write ^= self.kind == "both"


def measured(
    config: MemoryNodeConfig, asked: Sequence[Sequence[Sequence[Request]]]
) -> tuple[int, list[int]]:
    """In RTL, four groups at once: the cycle in which sending begins, and for each the cycles from
    then until all answers are there."""
    ports = RtlPorts(2, config, 1 << 20, None)
    try:
        half = config.group_links
        data = [random.Random(0).randbytes(64 * 64)]
        ports.advance(SETTLE_CYCLES)
        begin = ports.cycles()
        left: dict[tuple[int, int], int] = {}
        for number, links in enumerate(asked):
            device, side = divmod(number, 2)
            node = device if side else 1 - device
            for index, requests in enumerate(links):
                place = device, half * side + index
                left[place] = len(requests)
                flits = [
                    flit
                    for request in requests
                    for flit in Packet(
                        destination=2 * node + 1,
                        source=2 * device,
                        operation=Operation.WRITE if request.write else Operation.READ,
                        status=0,
                        tag=0,
                        lines=request.lines,
                        address=64 * request.line,
                        data=data[0][: 64 * request.lines] if request.write else b"",
                    ).flits()
                ]
                if flits:
                    ports.send(*place, REQUESTS, flits)
        ends = [0] * len(asked)
        while any(left.values()):
            ports.advance(STEP_CYCLES)
            for place, count in left.items():
                if not count:
                    continue
                for _, flit in ports.received(*place):
                    if flit.head and flit.payload[3]:
                        raise AssertionError(f"refused with status {flit.payload[3]}")
                    left[place] -= flit.tail
                if not left[place]:
                    device, link = place
                    ends[2 * device + link // half] = ports.cycles() - begin
            if ports.cycles() - begin > LIMIT_CYCLES:
                raise AssertionError(f"no end: {left}")
        return begin, ends
    finally:
        ports.close()


def predicted(
    config: MemoryNodeConfig, requests: Sequence[Sequence[Request]], begin: int
) -> int:
    """By the model, whose channels begin at reset, ``begin`` cycles before."""
    group = group_cycles(config, wire_cycles=1)
    fresh = ChannelState(refresh=RefreshState(owed=0, elapsed_fabric_cycles=0))
    state = fresh.after_rest(group.channel, begin)
    answered = answered_fabric_cycles(group, requests, state)
    return max(each[-1] for each in answered if each)


def main() -> None:
    names = sys.argv[1:] or list(MEMORY_NODE_PRESETS)
    for name in names:
        config = MEMORY_NODE_PRESETS[name]
        if name != "tiny":
            config = replace(config, part=config.part.with_capacity(16 << 20))
        cells = [
            Cell(kind=kind, size=size, order=order, links=links)
            for links, order, size, kind in product(
                sorted({1, config.group_links}), ORDERS, SIZES, KINDS
            )
        ]
        while len(cells) % 4:
            cells.append(cells[0])
        for first in range(0, len(cells), 4):
            some = cells[first : first + 4]
            asked = [cell.requests(config, LINES) for cell in some]
            start = time.process_time()
            begin, ends = measured(config, asked)
            rtl_s = time.process_time() - start
            for cell, requests, end in zip(some, asked, ends, strict=True):
                start = time.process_time()
                cycles = predicted(config, requests, begin)
                took = time.process_time() - start
                lines = sum(each.lines for link in requests for each in link)
                print(
                    f"{name}, {cell.links} links, {cell.size} lines, {cell.order}, {cell.kind}: "
                    f"{64 * lines / end:.1f} bytes a cycle, model {64 * lines / cycles:.1f}, "
                    f"{cycles / end - 1:+.1%}  ({end} {cycles} begin {begin} "
                    f"{rtl_s:.1f}s {took:.2f}s)",
                    flush=True,
                )


if __name__ == "__main__":
    build_quickly()
    main()
