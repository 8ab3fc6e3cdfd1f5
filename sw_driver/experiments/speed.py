"""Speed of the simulation, with and without the driver."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.figures import ceiling_mparams_per_s
from sw_driver.axdimm.registers import kernel_registers
from sw_driver.axdimm.rulejob import RuleJob
from sw_driver.report import Report, Table, Watch, count, share

if TYPE_CHECKING:
    from hw.axdimm.config import ModuleConfig

__all__ = ["measure_driven", "report"]


def report(
    device: Axdimm,
    config: ModuleConfig,
    parameters: int,
    repetitions: int,
    watch: Watch = Watch(),
) -> Report:
    """Report the speed of the simulation of ``config``; see :func:`measure_driven`."""
    figures = measure_driven(device, parameters, repetitions, watch)
    lanes = device.configuration(0).lanes
    speed = f"{figures['mparams_per_s']:.2f} MP/s"
    rows = [["simulated", speed, f"{share(figures['efficiency'], 2)} of the ceiling"]]
    for name, text, counted in (
        ("fabric_cycles_per_host_second", "through the driver", "all channels"),
        ("bare_loop_fabric_cycles_per_host_second", "bare loop", "all channels"),
        ("one_channel_fabric_cycles_per_host_second", "one channel alone", "through the driver"),
    ):
        unit = f"fabric cycles per host second, {counted}"
        rows.append([text, count(figures[name]), unit])
    rows.append(["ratio", f"{figures['ratio']:.2f}", "through the driver to bare loop"])
    table = Table(
        title=f"Adam on {parameters} parameters in each of {device.channels} channels, "
        f"{lanes} lanes",
        headings=["", "", ""],
        rows=rows,
        words=(0, 2),
    )
    workload = {"parameters_per_channel": parameters, "repetitions": repetitions}
    return Report(results=figures, parts=[table], machine=config.describe(), workload=workload)


def measure_driven(
    device: Axdimm, parameters: int, repetitions: int, watch: Watch = Watch()
) -> dict[str, Any]:
    """Return medians over the repetitions; ``device`` needs the backend ``rtl``.

    ``mparams_per_s``, ``efficiency``: simulated throughput, see
    :func:`sw_driver.axdimm.figures.ceiling_mparams_per_s`.
    ``fabric_cycles_per_host_second``: all channels at once through the driver, cycles added.
    ``bare_loop_fabric_cycles_per_host_second``: the same work in a loop that only clocks the model.
    ``ratio``: the first of these rates divided by the second.
    ``one_channel_fabric_cycles_per_host_second``: one channel through the driver, on one host core.
    """
    from sw_driver.axdimm.backends.rtl import VerilatedTransport

    transport = device.transport
    assert isinstance(transport, VerilatedTransport)
    channels = range(device.channels)
    job = RuleJob(device, parameters)
    driven, bare, alone, speeds = [], [], [], []
    for repetition in watch.track(range(repetitions), "measuring"):
        before = [transport.fabric_cycles(channel) for channel in channels]
        start = time.perf_counter()
        results = job.step(repetition + 1)
        seconds = time.perf_counter() - start
        speeds.append(job.mparams_per_s(results))
        spent = [transport.fabric_cycles(i) - before[i] for i in channels]
        driven.append(sum(spent) / seconds)
        # The same work, started through the registers, without polling.
        for channel in channels:
            kernel_registers(transport, channel).write("control", 1)
        start = time.perf_counter()
        transport.run_bare(spent)
        bare.append(sum(spent) / (time.perf_counter() - start))
        for channel in channels:
            status = kernel_registers(transport, channel)
            transport.poll(
                channel, status.address("status"), status["status"]["busy"].mask, 0,
                interval_fabric_cycles=100, timeout_fabric_cycles=1_000_000,
            )  # fmt: skip
        cycles = transport.fabric_cycles(0)
        start = time.perf_counter()
        job.start(0, repetition + 1).wait()
        seconds = time.perf_counter() - start
        alone.append((transport.fabric_cycles(0) - cycles) / seconds)
    ceiling = ceiling_mparams_per_s(
        device.channels, transport.fabric_mhz, job.rule.bytes_per_parameter
    )
    return {
        "mparams_per_s": statistics.median(speeds),
        "efficiency": statistics.median(speeds) / ceiling,
        "fabric_cycles_per_host_second": statistics.median(driven),
        "bare_loop_fabric_cycles_per_host_second": statistics.median(bare),
        "ratio": statistics.median(a / b for a, b in zip(driven, bare, strict=True)),
        "one_channel_fabric_cycles_per_host_second": statistics.median(alone),
    }
