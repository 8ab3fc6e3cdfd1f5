"""``nearmem bench``: the speed of the simulation."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from . import driving, integer, open_device

if TYPE_CHECKING:
    from rich.console import Console

    from sw_driver.axdimm import Axdimm

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Describes the options."""
    parser = subparsers.add_parser(
        "bench",
        help="measure the speed of the simulation",
        description="Runs Adam on both channels at once through the driver and, in the same run, "
        "the same Verilated channel in a bare loop that does nothing but clock it. Prints the "
        "simulated throughput, fabric cycles of all channels per host second and their ratio, "
        "medians over the repetitions.",
    )
    parser.add_argument("--config", default="axdimm", metavar="PRESET", help="configuration")
    parser.add_argument(
        "--parameters", type=integer(1), default=400_000, metavar="N", help="of each channel"
    )
    parser.add_argument("--repetitions", type=integer(1), default=5, metavar="N")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.set_defaults(run=run)


def _start(device: Axdimm, channel: int, parameters: int, tensors: dict[str, Any], t: int) -> Any:
    return device.RunAdamOnAxdimmAsync(
        tensors["p"], tensors["m"], tensors["v"], tensors["g"], parameters,
        1e-3, 0.9, 0.999, 1e-8, 0.0, t, channel,
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints."""
    from rich.console import Console

    from sw_driver.backends import BackendOptions

    # What is no result goes to stderr, so that --json leaves stdout to the figures.
    progress = Console(stderr=True, quiet=arguments.json)
    options = BackendOptions(
        preset=arguments.config,
        announce=lambda message: progress.print(message, highlight=False),
    )
    with (
        open_device("rtl", options) as device,
        driving(out_of_memory="measure fewer --parameters, 16 bytes of a channel each"),
    ):
        figures = _measure(device, arguments.parameters, arguments.repetitions, progress)
        channels = device.channels
    if arguments.json:
        print(json.dumps(figures))
        return 0
    print(f"Adam on {arguments.parameters} parameters in each of {channels} channels")
    print(
        f"{'simulated':>20}: {figures['mparams_per_s']:>12.2f} MP/s, "
        f"{figures['efficiency']:.2%} of the ceiling"
    )
    for name, text in (
        ("fabric_cycles_per_host_second", "through the driver"),
        ("bare_loop_fabric_cycles_per_host_second", "bare loop"),
    ):
        print(f"{text:>20}: {figures[name]:>12,.0f} fabric cycles per host second, all channels")
    print(f"{'ratio':>20}: {figures['ratio']:>12.2f}")
    return 0


def _measure(
    device: Axdimm, parameters: int, repetitions: int, progress: Console
) -> dict[str, Any]:
    import numpy as np
    from rich.progress import track

    from sw_driver.registers import kernel_registers
    from sw_driver.training.report import ceiling_mparams_per_s
    from sw_driver.verilated.transport import VerilatedTransport

    transport = device.transport
    assert isinstance(transport, VerilatedTransport)
    rng = np.random.default_rng(1)
    driven, bare, speeds = [], [], []
    channels = range(device.channels)
    tensors = []
    for channel in channels:
        names = {name: device.MallocAxdimm(4 * parameters, channel) for name in "pmvg"}
        for pointer in names.values():
            values = rng.random(parameters, dtype=np.float32)
            device.MemcpyHost2Axdimm(pointer, values, values.nbytes, backdoor=True)
        device.SetArbiterAcc(channel)
        tensors.append(names)
    for repetition in track(range(repetitions), description="measuring", console=progress):
        cycles = [transport.fabric_cycles(channel) for channel in channels]
        start = time.perf_counter()
        runs = [
            _start(device, channel, parameters, tensors[channel], repetition + 1)
            for channel in channels
        ]
        results = [each.wait() for each in runs]
        seconds = time.perf_counter() - start
        slowest = max(result.fabric_cycles for result in results)
        speeds.append(len(results) * parameters / slowest * transport.fabric_mhz)
        spent = [transport.fabric_cycles(i) - cycles[i] for i in channels]
        driven.append(sum(spent) / seconds)
        # The same work, started through the registers, without anything that looks at it.
        for channel in channels:
            kernel_registers(transport, channel).write({"control": 1})
        start = time.perf_counter()
        with ThreadPoolExecutor(device.channels) as threads:
            list(threads.map(transport.run_bare, channels, spent))
        bare.append(sum(spent) / (time.perf_counter() - start))
        for channel in channels:
            status = kernel_registers(transport, channel)
            transport.poll(
                channel, status.address("status"), status["status"]["busy"].mask, 0,
                interval_fabric_cycles=100, timeout_fabric_cycles=1_000_000,
            )  # fmt: skip
    ceiling = ceiling_mparams_per_s(device.channels, transport.fabric_mhz)
    return {
        "parameters_per_channel": parameters,
        "mparams_per_s": statistics.median(speeds),
        "efficiency": statistics.median(speeds) / ceiling,
        "fabric_cycles_per_host_second": statistics.median(driven),
        "bare_loop_fabric_cycles_per_host_second": statistics.median(bare),
        "ratio": statistics.median(a / b for a, b in zip(driven, bare, strict=True)),
    }
