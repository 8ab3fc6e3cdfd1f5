"""Experiment: host and kernel on one channel, exclusive modes or first come first served.

See section 3.1 of the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.axdimm.config import ModuleConfig
from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.allocator import channel_memory
from sw_driver.axdimm.backends.rtl import VerilatedTransport
from sw_driver.axdimm.figures import beats_mparams_per_s, gb_per_s
from sw_driver.axdimm.registers import ChannelRegisters, kernel_registers
from sw_driver.axdimm.rulejob import RuleJob
from sw_driver.axdimm.runs import PARAMETER_BYTES
from sw_driver.axdimm.transport import LINE_BYTES

__all__ = ["INTERVALS_FABRIC_CYCLES", "PATTERNS", "check_memory", "measure_sharing"]

INTERVALS_FABRIC_CYCLES = (2, 16, 64, 256)
"""Fabric cycles between the host's reads, from the link's full rate to one line in 256 cycles."""

PATTERNS = ("sequential", "random")

_MOST_BUFFER_BYTES = 4 << 20

_COUNTERS = ["cycles", "beats_read", "beats_written"]


def check_memory(config: ModuleConfig, *, buffer_bytes: int, parameters: int) -> None:
    """Check that a channel holds the tensors of a run and a buffer, before a simulator is built.

    Raise :class:`~sw_driver.device.errors.OutOfMemoryError` if it does not.
    """
    memory = channel_memory(config.capacity_bytes)
    for nbytes in (buffer_bytes, *[PARAMETER_BYTES * parameters] * 4):
        memory.allocate(nbytes)


def measure_sharing(
    config: ModuleConfig,
    *,
    parameters: int,
    window_fabric_cycles: int,
    announce: Callable[[str], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield a row for the kernel alone; then, by pattern and load, for the host alone and for both.

    The host reads lines at a fixed pace from its own buffer. The latency of all reads, late ones
    too, counts from the request to the data at the arbiter. ``late_share`` is the share of reads
    whose data come too late for a host with the fixed read latency. ``host_gb_per_s`` and
    ``kernel_mparams_per_s`` count the same time, about ``window_fabric_cycles``, within a run of
    ``parameters``.
    """
    buffer_bytes = min(_MOST_BUFFER_BYTES, config.capacity_bytes // 8)
    check_memory(config, buffer_bytes=buffer_bytes, parameters=parameters)
    transport = VerilatedTransport(config=config, arithmetic=False, shared=True, announce=announce)
    with Axdimm(transport) as device:
        buffer = device.MallocAxdimm(buffer_bytes, 0)
        job = RuleJob(device, parameters, fill=False)
        alone = job.mparams_per_s(job.step(1))
        yield {
            "mode": "kernel alone", "pattern": "", "interval_fabric_cycles": None,
            "kernel_mparams_per_s": alone, "kernel_share": 1.0,
        }  # fmt: skip
        kernel = kernel_registers(transport, 0)
        rng = np.random.default_rng(1)
        for pattern in PATTERNS:
            for interval in INTERVALS_FABRIC_CYCLES:
                # With host and kernel, a line waits for about one burst of the kernel.
                count = window_fabric_cycles // max(interval, 72)
                lines = np.arange(count, dtype=np.uint64) % (buffer_bytes // LINE_BYTES)
                if pattern == "random":
                    lines = rng.integers(0, buffer_bytes // LINE_BYTES, count, np.uint64)
                addresses = lines * np.uint64(LINE_BYTES) + np.uint64(buffer.address)
                about = {"pattern": pattern, "interval_fabric_cycles": interval}
                device.SetArbiterNormal(0)
                yield {"mode": "host alone", **about, **_host(transport, addresses, interval)}
                device.SetArbiterAcc(0)
                # The registers still hold the settings of the previous run.
                kernel.write("control", kernel["control"]["start"].mask)
                # Wait until the counters belong to this run and the kernel's queues are full.
                _host(transport, addresses[: count // 4], interval)
                before = kernel.read_many(_COUNTERS)
                host = _host(transport, addresses, interval)
                both = _kernel_mparams_per_s(kernel, before, transport.fabric_mhz)
                yield {
                    "mode": "both", **about, **host,
                    "kernel_mparams_per_s": both, "kernel_share": both / alone,
                }  # fmt: skip
                kernel.poll("status", {"busy": 0}, interval=256, timeout=64 * parameters)


def _host(
    transport: VerilatedTransport, addresses: NDArray[np.uint64], interval: int
) -> dict[str, Any]:
    start = transport.fabric_cycles(0)
    reads = np.zeros(addresses.size, np.bool_)
    latencies, late = transport.stream(0, addresses, reads, interval_fabric_cycles=interval)
    cycles, fabric_mhz = transport.fabric_cycles(0) - start, transport.fabric_mhz
    cycle_ns = 1e3 / fabric_mhz
    return {
        "offered_gb_per_s": gb_per_s(LINE_BYTES, interval, fabric_mhz),
        "host_gb_per_s": gb_per_s(addresses.size * LINE_BYTES, cycles, fabric_mhz),
        "latency_median_ns": float(np.median(latencies)) * cycle_ns,
        "latency_p99_ns": float(np.percentile(latencies, 99)) * cycle_ns,
        "latency_worst_ns": float(latencies.max()) * cycle_ns,
        "late_share": late / addresses.size,
    }


def _kernel_mparams_per_s(
    kernel: ChannelRegisters, before: dict[str, int], fabric_mhz: float
) -> float:
    """Return the throughput since ``before``; raise ``RuntimeError`` if the run is over."""
    after = kernel.read_many(_COUNTERS)
    if kernel.read_field("status", "done"):
        raise RuntimeError("the kernel ended before the host's reads: measure with more parameters")
    cycles = after["cycles"] - before["cycles"]
    beats = sum(after[name] - before[name] for name in ("beats_read", "beats_written"))
    return beats_mparams_per_s(beats, cycles, fabric_mhz)
