"""How much of a link is left where flits are lost, in both directions at once.

Parameters: those of the link's bench, ``one_in`` of how many flits one is lost, and ``result``, the
file that gets the shares.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import cocotb

from golden.memory_node import Phit
from hw_tests.memory_node.link.link_bench import CONFIG, DELAY, PARAMETERS, Bench, payload_of
from hw_tests.memory_node.link.noise import NoisyWire

CYCLES = 20_000
CHANNELS = 4


class LossyWire(NoisyWire):
    """Corrupts flits, empty ones too, by chance."""

    def carry(self, phit: Phit | None) -> Phit | None:
        if phit is not None and phit.first and self._chance.random() * PARAMETERS["one_in"] < 1:
            phit = phit._replace(data=phit.data[:-1] + bytes([phit.data[-1] ^ 1]))
        return super().carry(phit)


@cocotb.test(timeout_time=10, timeout_unit="ms")
async def rate_with_losses(dut: Any) -> None:
    bench = Bench(dut)
    bench.wires = [
        LossyWire("none", CONFIG.phit_bytes, delay=DELAY, seed=direction) for direction in "ab"
    ]
    ports = await bench.reset()
    await bench.wake()
    message = payload_of((True, True, bench.chance.randbytes(64)))
    for port in ports:
        for source in port.sources:
            source.queue = deque([message] * (CYCLES // CHANNELS))
    before = [port.taken_count for port in ports]
    await bench.run(CYCLES)
    shares = [
        (port.taken_count - at) * CONFIG.phits / CYCLES
        for port, at in zip(ports, before, strict=True)
    ]
    assert not any(port.dead for port in ports)
    Path(PARAMETERS["result"]).write_text(" ".join(map(str, sorted(shares))))
