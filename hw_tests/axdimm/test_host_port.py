"""The queue of host requests and the fixed latency of host reads."""

from __future__ import annotations

from functools import cache

import pytest

from hw.axdimm.host_port import HostPort
from hw.verilog.writer import to_verilog
from hw_tests.bench import run_bench
from hw_tests.collisions import with_useless_collisions
from hw_tests.side_by_side import SideBySide

ADDRESS_WIDTH = 16
# The shortest latency, a usual one, and one near the longest; queues from the shortest to the
# longest.
QUEUES = {5: 8, 48: 128, 500: 24}


@cache
def verilog() -> str:
    ports = {
        f"port{latency}": HostPort(
            address_width=ADDRESS_WIDTH, read_latency=latency, queue_lines=lines
        )
        for latency, lines in QUEUES.items()
    }
    return with_useless_collisions(to_verilog(SideBySide(ports), "host_ports"))


@pytest.mark.parametrize("read_latency", QUEUES)
def test_host_port(read_latency: int) -> None:
    """Latency to the cycle, order of requests, late, refused and lost reads, start-up."""
    run_bench(
        verilog(),
        top="host_ports",
        module="hw_tests.axdimm.host_port_bench",
        parameters={
            "name": f"port{read_latency}",
            "address_width": ADDRESS_WIDTH,
            "read_latency": read_latency,
            "queue_lines": QUEUES[read_latency],
        },
    )


@pytest.mark.parametrize(
    ("parameter", "value", "message"),
    [
        ("read_latency", 4, "read_latency must be an integer from 5 to 512, got 4"),
        ("read_latency", 513, "got 513"),
        ("queue_lines", 7, "queue_lines must be an integer from 8 to 128, got 7"),
        ("queue_lines", 129, "got 129"),
    ],
)
def test_refuses(parameter: str, value: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HostPort(**{"address_width": ADDRESS_WIDTH, parameter: value})
