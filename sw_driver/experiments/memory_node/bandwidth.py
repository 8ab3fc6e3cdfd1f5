"""Bandwidth of a device to its memory-nodes, in RTL.

``python -m sw_driver.experiments.memory_node.bandwidth [COPIES MIB]`` simulates two devices and two
memory-nodes; one device copies over all its links. It prints bytes per fabric cycle, beside the
limits of the links (64 of 65 flits of a packet are data) and of the channels (64 bytes per cycle
each). Each direction has COPIES copies of MIB MiB, one after the other; the defaults are 2 and 4.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from hw.memory_node.config import MEMORY_NODE_PRESETS, MemoryNodeConfig
from sw_driver.memory_node import DeviceNode, Direction
from sw_driver.memory_node.backends.rtl import RtlNetwork

__all__ = ["main"]

OUT, BACK = Direction.LOCAL_TO_REMOTE, Direction.REMOTE_TO_LOCAL


def main(copies: int = 2, copy_mib: int = 4) -> None:
    """Measure and print the bandwidths."""
    nbytes = copy_mib << 20
    preset = MEMORY_NODE_PRESETS["paper"]
    part = preset.part.with_capacity(16 << 20)
    for links, channels in ((2, 2), (2, 4), (6, 10)):
        config = replace(preset, part=part, links=links, channels=channels)
        for kind, directions in (("read", [BACK]), ("write", [OUT]), ("both", [OUT, BACK])):
            ways = len(directions)
            measured = ways * copies * nbytes / _cycles(config, directions, copies, nbytes)
            print(
                f"{links} links, {channels} channels, {kind}: {measured:.1f} bytes a cycle; links "
                f"{ways * links * 64 * 64 / 65:.1f}, memory {channels * 64}",
                flush=True,
            )


def _cycles(config: MemoryNodeConfig, directions: list[Direction], copies: int, nbytes: int) -> int:
    network = RtlNetwork(devices=2, config=config, local_bytes=1 << 24, announce=None)
    try:
        device = DeviceNode(network, 0, page_bytes=4096)
        streams = [(device.stream(), direction) for direction in directions]
        places = [
            (device.cuda_malloc(nbytes), device.cuda_malloc_remote(nbytes))
            for _ in range(copies * len(directions))
        ]
        for number, (local, remote) in enumerate(places):
            stream, direction = streams[number % len(streams)]
            dst, src = (remote, local) if direction is OUT else (local, remote)
            device.cuda_memcpy_async(dst, src, nbytes, direction, stream)
        begun = network.cycles()
        for stream, _ in streams:
            stream.synchronize()
        return network.cycles() - begun
    finally:
        network.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
