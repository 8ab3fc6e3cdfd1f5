"""``python -m hw_tests.driver.memory_node.validate``: the cycle model of a group beside the RTL.

Arguments: presets (all if none is given), and as ``name=value`` fields of
:class:`MemoryNodeConfig`, ``phit_bytes``, ``lines`` that each link asks for, and fields of
:class:`Traffic` to run no other. Prints bytes a fabric cycle of a group, from the first flit to the
last answer, and how far off the model is. Links ask as fast as they are taken; sequential requests
of a link follow each other in its part of the group's memory, reads in the first half and writes in
the second.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product

from hw.memory_node.config import MEMORY_NODE_PRESETS, MemoryNodeConfig
from sw_driver.memory_node.backends.rtl import RtlPorts
from sw_driver.memory_node.packets import REQUESTS, Operation, Packet
from sw_driver.predict.axdimm import ChannelState, RefreshState
from sw_driver.predict.memory_node import Request, answered_fabric_cycles

KINDS = ("reads", "writes", "both")
SIZES = ("64", "8", "1 to 64")
ORDERS = ("sequential", "random")
LINES = 32768
"""That a link asks for: more than the time in which refreshes are collected."""
GROUPS = 4
"""That are simulated at once: those of two nodes between two devices."""
SETTLE_CYCLES = 256
"""Until the links have heard each other."""
STEP_CYCLES = 8
LIMIT_CYCLES = 1_000_000
WIRE_CYCLES = 1
CAPACITY_BYTES = 16 << 20
"""Of a channel in RTL."""


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What each of the first ``links`` links of a group asks."""

    kind: str
    size: str
    order: str
    links: int

    def requests(self, config: MemoryNodeConfig, lines: int) -> list[list[Request]]:
        """For each link of the group, ``lines`` lines and up to a packet more."""
        rng = random.Random(repr(self))
        share = config.group_bytes // 64 // config.group_links
        return [
            list(self._of_link(rng, link * share, share, lines)) if link < self.links else []
            for link in range(config.group_links)
        ]

    def _of_link(self, rng: random.Random, first: int, share: int, lines: int) -> Iterator[Request]:
        write = self.kind == "writes"
        following = {False: 0, True: share // 2}
        while lines > 0:
            size = int(self.size) if self.size.isdigit() else rng.randint(1, 64)
            if self.order == "sequential":
                offset = following[write] % (share - 64)
                following[write] += size
            else:
                offset = rng.randrange(share - size)
                offset -= offset % size if self.size.isdigit() else 0
            yield Request(write, first + offset, size)
            lines -= size
            write ^= self.kind == "both"


def measured(
    config: MemoryNodeConfig, groups: Sequence[Sequence[Sequence[Request]]]
) -> tuple[int, list[int]]:
    """In RTL, up to four groups at once: the cycle after reset in which sending begins, and for
    each group the cycles from then on until all answers are there."""
    ports = RtlPorts(2, config, 1 << 20, None)
    half = config.group_links
    left: dict[tuple[int, int], int] = {}
    ends = [0] * len(groups)
    try:
        ports.advance(SETTLE_CYCLES)
        begin = ports.cycles()
        for number, links in enumerate(groups):
            device, side = divmod(number, 2)
            node = device if side else 1 - device
            for link, requests in enumerate(links):
                place = device, half * side + link
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
                        data=bytes(64 * request.lines) if request.write else b"",
                    ).flits()
                ]
                if flits:
                    left[place] = len(requests)
                    ports.send(*place, REQUESTS, flits)
        while left:
            ports.advance(STEP_CYCLES)
            for place in list(left):
                for _, flit in ports.received(*place):
                    assert not (flit.head and flit.payload[3]), "a request was refused"
                    left[place] -= flit.tail
                if not left[place]:
                    device, link = place
                    ends[2 * device + link // half] = ports.cycles() - begin
                    del left[place]
            assert ports.cycles() < LIMIT_CYCLES, f"there is no answer to {left}"
        return begin, ends
    finally:
        ports.close()


def predicted(config: MemoryNodeConfig, requests: Sequence[Sequence[Request]], begin: int) -> int:
    """The same cycles by the model, whose channels were reset ``begin`` cycles before."""
    fresh = ChannelState(refresh=RefreshState(owed=0, elapsed_fabric_cycles=0))
    state = fresh.after_rest(config, begin)
    answered = answered_fabric_cycles(config, requests, state, wire_cycles=WIRE_CYCLES)
    return max(each[-1] for each in answered if each)


def compared(
    config: MemoryNodeConfig, traffics: Sequence[Traffic], lines: int = LINES
) -> Iterator[tuple[Traffic, float, float]]:
    """Each with the bytes a cycle in RTL, and by the model."""
    for first in range(0, len(traffics), GROUPS):
        some = traffics[first : first + GROUPS]
        groups = [traffic.requests(config, lines) for traffic in some]
        begin, ends = measured(config, groups)
        for traffic, requests, end in zip(some, groups, ends, strict=True):
            nbytes = 64 * sum(each.lines for link in requests for each in link)
            yield traffic, nbytes / end, nbytes / predicted(config, requests, begin)


def all_traffic(config: MemoryNodeConfig) -> list[Traffic]:
    """Of one link and of all of a group."""
    links = sorted({1, config.group_links})
    return [
        Traffic(kind=kind, size=size, order=order, links=count)
        for count, order, size, kind in product(links, ORDERS, SIZES, KINDS)
    ]


def small(config: MemoryNodeConfig) -> MemoryNodeConfig:
    """With the memory that is simulated."""
    part = config.part
    return replace(config, part=part.with_capacity(min(CAPACITY_BYTES, config.channel_bytes)))


def main() -> None:
    """Compares and prints."""
    options = dict(each.split("=") for each in sys.argv[1:] if "=" in each)
    names = [each for each in sys.argv[1:] if "=" not in each] or list(MEMORY_NODE_PRESETS)
    lines = int(options.pop("lines", LINES))
    phit_bytes = options.pop("phit_bytes", None)
    only = {each.name: options.pop(each.name, None) for each in fields(Traffic)}
    for name in names:
        config = small(MEMORY_NODE_PRESETS[name])
        if phit_bytes:
            config = replace(config, link=replace(config.link, phit_bytes=int(phit_bytes)))
        config = replace(config, **{key: int(value) for key, value in options.items()})
        traffics = [
            each
            for each in all_traffic(config)
            if all(value in (None, str(getattr(each, key))) for key, value in only.items())
        ]
        print(f"\n{name}, a group: {config.group_links} links, {config.group_channels} channels\n")
        print("| links | addresses | lines | what | RTL | model | off by |")
        print("|--:|---|---|---|--:|--:|--:|", flush=True)
        for traffic, rtl, model in compared(config, traffics, lines):
            print(
                f"| {traffic.links} | {traffic.order} | {traffic.size} | {traffic.kind} | "
                f"{rtl:.1f} | {model:.1f} | {model / rtl - 1:+.1%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
