"""The double-buffered loop of the paper's Figure 4: one channel updates while the other is fed.

The layers of a model are spread over both channels. While the kernel of one channel updates a
layer, the gradients of the next go from the GPU to the other channel, and its updated parameters
come back. Usage: double_buffering.py [DEVICE] [TRACE], by default cycles and no trace.
"""

import sys

import numpy as np

from sw_driver.axdimm import Axdimm

LAYERS = 8
PARAMETERS = 200_000
NBYTES = 4 * PARAMETERS


def train_step(device: Axdimm, layers: list[dict], gradients, results, *, overlapped: bool) -> float:
    """Updates all layers; returns the simulated time in milliseconds."""
    began_ns = device.simulated_ns
    for number, layer in enumerate(layers):
        channel = layer["p"].channel
        stream = device.stream(channel if overlapped else 0)
        how = {"stream": stream, "modes": "wait"}
        device.MemcpyGpu2Axdimm(layer["g"], gradients + number * NBYTES, NBYTES, **how)
        device.RunAdamOnAxdimmAsync(
            layer["p"], layer["m"], layer["v"], layer["g"], PARAMETERS,
            1e-3, 0.9, 0.999, 1e-8, 0.0, 1, channel, **how,
        )
        device.MemcpyAxdimm2Gpu(results + number * NBYTES, layer["p"], NBYTES, **how)
    for channel in range(device.channels):
        device.stream(channel).wait()
    return (device.simulated_ns - began_ns) / 1e6


def main(name: str = "cycles", trace: str | None = None) -> None:
    with Axdimm(name, timeline=trace) as device:
        print(f"on {device.transport.name}, gradients on the {device.gpu.name}")
        rng = np.random.default_rng(0)
        layers = []
        for number in range(LAYERS):
            layer = {key: device.MallocAxdimm(NBYTES, number % device.channels) for key in "pmvg"}
            for key in "pmv":
                start = np.abs(rng.standard_normal(PARAMETERS)).astype(np.float32)
                device.MemcpyHost2Axdimm(layer[key], start, NBYTES, backdoor=True)
            layers.append(layer)
        gradients = device.MallocGpu(LAYERS * NBYTES)
        results = device.MallocGpu(LAYERS * NBYTES)
        values = rng.standard_normal(LAYERS * PARAMETERS).astype(np.float32)
        device.MemcpyHost2Gpu(gradients, values, values.nbytes)

        one_by_one = train_step(device, layers, gradients, results, overlapped=False)
        overlapped = train_step(device, layers, gradients, results, overlapped=True)
        print(f"one after the other: {one_by_one:.3f} ms, overlapped: {overlapped:.3f} ms, "
              f"{one_by_one / overlapped:.2f} times as fast")


if __name__ == "__main__":
    main(*sys.argv[1:])
