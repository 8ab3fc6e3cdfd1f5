"""The double-buffered loop of the paper's Figure 4: one channel is fed while the other updates.

The layers of a model lie on the channels in turn. Their gradients come from the GPU, and their
updated parameters go back to it, over the one host link; meanwhile the kernel of the other channel
updates another layer.

Usage: python docs/examples/double_buffering.py [DEVICE [TRACE]]; DEVICE is cycles by default.
"""

import sys

import numpy as np

from nearmem import Axdimm

LAYERS = 8
PARAMETERS = 200_000
NBYTES = 4 * PARAMETERS


def train_step(device, layers, gradients, results, *, overlapped, t):
    """Updates all layers; returns the simulated time, and how long the kernels worked, in ms."""
    began_ns = device.simulated_ns
    runs = []
    for number, layer in enumerate(layers):
        channel = number % device.channels
        # A stream keeps the order of what is queued in it; streams go on beside each other.
        stream = device.stream(channel if overlapped else 0)
        how = {"stream": stream, "modes": "wait"}
        at = number * NBYTES
        device.MemcpyGpu2Axdimm(layer["g"], gradients + at, NBYTES, **how)
        runs.append(
            device.RunAdamOnAxdimmAsync(
                layer["p"],
                layer["m"],
                layer["v"],
                layer["g"],
                PARAMETERS,
                1e-3,
                0.9,
                0.999,
                1e-8,
                0.0,
                t,
                channel,
                **how,
            )
        )
        device.MemcpyAxdimm2Gpu(results + at, layer["p"], NBYTES, **how)
    for channel in range(device.channels):
        device.stream(channel).wait()
    kernel_cycles = sum(run.wait().fabric_cycles for run in runs)
    kernels_ms = kernel_cycles / device.transport.fabric_mhz / 1000
    return (device.simulated_ns - began_ns) / 1e6, kernels_ms


def main(name="cycles", trace=None):
    rng = np.random.default_rng(0)
    with Axdimm(name, timeline=trace) as device:
        if not device.transport.timed:
            raise SystemExit(f"{name} has no clock: use cycles or rtl")
        layers = []
        for number in range(LAYERS):
            channel = number % device.channels
            layer = {key: device.MallocAxdimm(NBYTES, channel) for key in "pmvg"}
            for key in "pmv":
                start = rng.random(PARAMETERS, dtype=np.float32)
                device.MemcpyHost2Axdimm(layer[key], start, NBYTES, backdoor=True)
            layers.append(layer)
        gradients, results = (device.MallocGpu(LAYERS * NBYTES) for _ in range(2))
        values = rng.standard_normal(LAYERS * PARAMETERS, dtype=np.float32)
        device.MemcpyHost2Gpu(gradients, values, values.nbytes)

        print(f"{device.transport.name}, gradients and results in the {device.gpu.name}")
        one, kernels = train_step(device, layers, gradients, results, overlapped=False, t=1)
        print(f"one after the other: {one:.3f} ms, the kernels {kernels:.3f} ms of it")
        both, _ = train_step(device, layers, gradients, results, overlapped=True, t=2)
        copies = one - kernels
        print(
            f"overlapped: {both:.3f} ms, {one / both:.2f} times as fast; without overlap of "
            f"copies it would be {copies + kernels / device.channels:.3f} ms"
        )
        return one, kernels, both


if __name__ == "__main__":
    main(*sys.argv[1:])
