"""``python -m hw_tests.driver.memory_node.bandwidth``: what a device gets of its memory-nodes.

Two devices and two memory-nodes in RTL; one device copies with all its links. Bytes a fabric cycle,
beside what its links can carry (64 of 65 flits of a packet are data) and what its channels can move
(64 bytes a cycle each).
"""

from __future__ import annotations

from dataclasses import replace

from hw.memory_node.config import MEMORY_NODE_PRESETS, MemoryNodeConfig
from hw_tests.conftest import build_quickly
from sw_driver.memory_node import DeviceNode, Direction
from sw_driver.memory_node.backends.rtl import RtlNetwork
from sw_driver.memory_node.streams import Work

OUT, BACK = Direction.LOCAL_TO_REMOTE, Direction.REMOTE_TO_LOCAL
COPY_BYTES = 1 << 22
COPIES = 2
"""In each direction, one after the other: each waits until the one before has ended."""


def main() -> None:
    """Measures and prints."""
    for name in ("paper", "paper_ddr4_2400"):
        preset = MEMORY_NODE_PRESETS[name]
        part = preset.part.with_capacity(16 << 20)
        for links, channels in ((2, 2), (2, 4), (6, 10)):
            config = replace(preset, part=part, links=links, channels=channels)
            for kind, directions in (("read", [BACK]), ("write", [OUT]), ("both", [OUT, BACK])):
                measured = _measured(config, directions)
                ways = len(directions)
                by_links = ways * config.links * 64 * 64 / 65
                by_memory = config.channels * 64
                bound = min(by_links, by_memory)
                print(
                    f"{name}, {links} links, {channels} channels, {kind}: {measured:.1f} bytes a "
                    f"cycle; links {by_links:.1f}, memory {by_memory}: {measured / bound:.1%}",
                    flush=True,
                )


def _measured(config: MemoryNodeConfig, directions: list[Direction]) -> float:
    network = RtlNetwork(devices=2, config=config, local_bytes=1 << 24, announce=None)
    try:
        device = DeviceNode(Work(network), 0, page_bytes=4096)
        streams = [(device.stream(), direction) for direction in directions]
        places = [
            (device.cuda_malloc(COPY_BYTES), device.cuda_malloc_remote(COPY_BYTES))
            for _ in range(COPIES * len(directions))
        ]
        for number, (local, remote) in enumerate(places):
            stream, direction = streams[number % len(streams)]
            dst, src = (remote, local) if direction is OUT else (local, remote)
            device.cuda_memcpy_async(dst, src, COPY_BYTES, direction, stream)
        begun = network.cycles()
        for stream, _ in streams:
            stream.synchronize()
        return len(places) * COPY_BYTES / (network.cycles() - begun)
    finally:
        network.close()


if __name__ == "__main__":
    build_quickly()
    main()
