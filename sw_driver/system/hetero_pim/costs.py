"""Cost of an operation on the CPU, the GPU, a core of the stack, and its pools.

There are two columns, which must not be mixed. *Predicted* has the RTL's pools and core.
*Calibrated* has units that do ``unit_rate`` operations a cycle each, bound by the memory, and the
paper's ARM core.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from math import ceil, log2, prod
from typing import NamedTuple

from hw.pim.config import PIM_PRESETS, PimConfig
from sw_driver.machine import Device, Machine
from sw_driver.machine.hetero_pim import ARM_MHZ, ARM_RATE, HETERO_PIM
from sw_driver.numbers import check_fields, check_number
from sw_driver.pim.layers import Convolution, FullyConnected, Layer
from sw_driver.pim.lowering import lower
from sw_driver.pim.pass_cycles import STACK_BYTES, pass_cycles
from sw_driver.workload.cache import past_cache
from sw_driver.workload.trace import Op, Trace

from .configurations import HEADLINE, Readings
from .operations import core_kernels, cycles_of, on_pools, operation_name, plain_kind

__all__ = ["CORE_CYCLES", "OFFER_CYCLES", "Cost", "Costs", "Phase", "past"]

_ELEMENT_BYTES = 4
_PASSES = {
    "Conv2D": "forward",
    "Conv2DBackpropFilter": "backward-filter",
    "Conv2DBackpropInput": "backward-input",
}
_FLAT = 1 << 16
"""Elements in a row of an element-wise work."""
OFFER_CYCLES = 147
"""Cycles from the offer of the smallest work to its completion, without the work itself.

See ``docs/pim.md``, "The cost of a launch": 299, of which 152 are the work.
"""
CORE_CYCLES = 954
"""Further cycles of a core to offer a work and to see its end.

Measured on RTL of the preset ``tiny`` with a check of 72 cycles: a kernel ``works`` waits 1,245
cycles for a work of 136.
"""


class Cost(NamedTuple):
    """Nanoseconds of an operation: computing, data movement not hidden by it, and starts."""

    operation_ns: int
    movement_ns: int
    sync_ns: int


def past(step: Trace, device: Device) -> tuple[Op, ...]:
    """Return the step's operations with the bytes that go past the device's cache."""
    cache = device.cache_bytes
    return past_cache(step, int(cache.value) if cache else 0).ops


class Phase(NamedTuple):
    """A part of an operation on one device."""

    device: str
    """``pools`` or ``core``."""
    kernel: str
    """A pass of a layer for the pools, or the kernel of a core."""
    flops: int
    nbytes: int
    """Bytes of the operands and the results, each once."""
    layer: Layer | None = None
    """Layer of the pass, on the pools."""
    times: int = 1
    """Repetitions, on the pools."""
    elements: int = 0
    """Elements that the kernel goes over, on a core."""
    window: int = 1


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of operations on a machine.

    Parameters
    ----------
    unit_rate: operations that a unit does a cycle, in the calibrated column; 0 for predicted.
    frequency: factor of the clock of the stack, of its units, memory and cores.
    gpu_use: share of the GPU that a network uses, one of ``GPU_USE``.
    readings: what the paper leaves open of the cores.

    Examples
    --------
    >>> from sw_driver.workload import load_trace
    >>> product = next(op for op in load_trace("alexnet-32").ops if op.geometry)
    >>> costs = Costs()
    >>> product.kind, costs.cpu(product)
    ('convolution', Cost(operation_ns=14641000, movement_ns=0, sync_ns=0))
    >>> [phase.device for phase in costs.phases(product)]
    ['pools', 'pools']
    """

    machine: Machine = HETERO_PIM
    config: PimConfig = PIM_PRESETS["paper"]
    unit_rate: float = 0
    frequency: int = 1
    gpu_use: float = 1.0
    readings: Readings = HEADLINE

    def __post_init__(self) -> None:
        check_fields(self, "unit_rate")
        check_number("gpu_use", self.gpu_use, 0.01, 1)

    def cpu(self, op: Op) -> Cost:
        """Return the cost on the CPU, at least 1 ns; ``op`` has the bytes past its cache."""
        return self._cpu(op.flops, max(1, op.nbytes))

    def gpu(self, op: Op) -> Cost:
        """Return the cost on the GPU, with all tensors in its memory.

        Hidden data movement is not known there; all counts as computing.
        """
        return Cost(ceil(self.machine.device("gpu").cost(op) / self.gpu_use), 0, 0)

    def core(self, op: Op) -> Cost | None:
        """Return the cost on the cores; None if they have no kernel."""
        kernels = core_kernels(op)
        elements, window = max((*op.read_bytes, *op.write_bytes, _ELEMENT_BYTES)) // 4, 1
        if kernels == ["add_up"]:
            elements = op.flops // 2
        elif kernels and "_pool" in kernels[0]:
            window, elements = _windows(op, elements)
        whole = Phase("core", "", op.flops, op.nbytes, elements=elements, window=window)
        times_ns = [self.core_ns(whole._replace(kernel=kernel)) for kernel in kernels]
        return Cost(sum(times_ns), 0, 0) if times_ns else None

    def phases(self, op: Op) -> tuple[Phase, ...]:
        """Return the phases of an operation as a kernel on the pools.

        A recursive kernel has phases on a core, too. Empty if the pools cannot do the operation.
        """
        way = on_pools(op)
        if way == "no":
            return ()
        elements = max((*op.read_bytes, *op.write_bytes)) // _ELEMENT_BYTES
        results = max(1, op.write_bytes[0] // _ELEMENT_BYTES) if op.write_bytes else 1
        if plain_kind(op).startswith("native_batch_norm"):
            channels = min(nbytes for nbytes in op.write_bytes if nbytes) // _ELEMENT_BYTES
            return _batch_norm(elements, channels, "backward" in op.kind)
        if op.geometry is None:
            if plain_kind(op) == "sum":
                return (_sum(elements, results),)
            return (_elementwise(elements),)
        name = operation_name(op)
        if name == "BiasAddGrad":
            return (_sum(prod(op.geometry.operands[0]), op.geometry.operands[0][1]),)
        layer, pass_name, times = _layer_of(op)
        pools = Phase("pools", pass_name, op.flops, op.nbytes, layer=layer, times=times)
        biased = "addmm" in op.kind or (name == "Conv2D" and len(op.geometry.operands) > 2)
        phases = (pools, _elementwise(results)) if biased else (pools,)
        if way == "whole":
            return phases
        return (self._before(op, pools), *phases)

    def pools_ns(self, phase: Phase, banks: int) -> int:
        """Return the ns of a phase on ``banks`` banks of the stack."""
        if self.unit_rate:
            share = banks / self.config.banks
            units = phase.flops / (self.config.units * share * self.unit_rate)
            memory_ns = phase.nbytes / (self._stack_gb_per_s * share)
            return ceil(max(self._ns(units), memory_ns))
        return self._ns(_cycles(phase, self.config, banks))

    def core_ns(self, phase: Phase) -> int:
        """Return the ns of a phase on all cores."""
        cores = self.readings.cores
        if not self.unit_rate:
            return self._ns(cycles_of(phase.kernel, phase.elements, phase.window) / cores)
        rate = cores * (ARM_RATE.value if phase.kernel == "add_up" else 1)
        gb_per_s = self._stack_gb_per_s * self.readings.core_vaults / self.config.banks
        return ceil(max(phase.flops * 1000 / rate / self.core_mhz, phase.nbytes / gb_per_s))

    def cpu_ns(self, phase: Phase) -> int:
        """Return the ns of a core's phase on the CPU."""
        return sum(self._cpu(phase.flops, phase.nbytes))

    def most_banks(self, phase: Phase) -> int:
        """Return the number of banks beyond which a phase gets no faster.

        In the calibrated column, a convolution uses whole groups of units only, as in the paper: of
        444 units, one of 11 x 11 uses 241.
        """
        banks = self.config.banks
        if not self.unit_rate:
            least = _cycles(phase, self.config, banks)
            enough = 1
            while enough < banks and _cycles(phase, self.config, enough) > least:
                enough *= 2
            return min(enough, banks)
        if not isinstance(phase.layer, Convolution) or phase.kernel not in _PASSES.values():
            return banks
        taps = phase.layer.filter_height * phase.layer.filter_width
        group = taps + max(taps - 1, 1)
        units = self.config.units - self.config.units % min(group, self.config.units)
        return ceil(units * banks / self.config.units)

    @property
    def core_mhz(self) -> float:
        """Clock of the cores, in MHz."""
        clock_mhz = ARM_MHZ.value if self.unit_rate else self.config.clock_mhz
        return clock_mhz * self.frequency

    @property
    def launch_host_ns(self) -> int:
        """Overhead in ns of a work that the host launches, from its offer to its seen completion.

        The way over the link and back is included.
        """
        return self._ns(OFFER_CYCLES) + 2 * int(self.machine.link("hmc").latency_ns.value)

    @property
    def launch_core_ns(self) -> int:
        """Overhead in ns of a work that a core launches."""
        return self._ns(OFFER_CYCLES) + ceil(CORE_CYCLES * 1000 / self.core_mhz)

    def _before(self, op: Op, pools: Phase) -> Phase:
        """Return the core's phase before the pools compute a convolution's gradient.

        No copies of Figure 6 remain, as pools take any strides and padding. The core begins, and
        writes zeros if there are elements that meet no filter.
        """
        nbytes = op.write_bytes[0] if _zeroed(pools, self.config) else 0
        return Phase("core", "fill", 0, nbytes, elements=max(1, nbytes // _ELEMENT_BYTES))

    def _cpu(self, flops: int, nbytes: int) -> Cost:
        device = self.machine.device("cpu")
        computing_ns = ceil(flops / (device.tflop_per_s.value * 1000))
        moving_ns = ceil(nbytes / device.gb_per_s.value)
        return Cost(computing_ns, max(0, moving_ns - computing_ns), int(device.launch_ns.value))

    @property
    def _stack_gb_per_s(self) -> float:
        gb_per_s = self.machine.memory("stack").total_gb_per_s
        assert gb_per_s is not None
        return gb_per_s.value * self.frequency

    def _ns(self, cycles: float) -> int:
        return ceil(cycles * 1000 / (self.config.clock_mhz * self.frequency))


@cache
def _known(layer: Layer, pass_name: str, config: PimConfig) -> dict[int, int]:
    """Return the cycles on each power of two of banks, and on all; never more than on fewer."""
    counts = [1 << n for n in range(config.banks.bit_length()) if 1 << n < config.banks]
    counts.append(config.banks)
    cycles = (pass_cycles(layer, pass_name, config, count) for count in counts)
    return dict(zip(counts, accumulate(cycles, min), strict=True))


def _cycles(phase: Phase, config: PimConfig, banks: int) -> float:
    """Return the cycles on ``banks`` banks, interpolated on logarithmic scales."""
    assert phase.layer is not None
    known = _known(phase.layer, phase.kernel, config)
    fewer, more = max(n for n in known if n <= banks), min(n for n in known if n >= banks)
    part = log2(banks / fewer) / log2(more / fewer) if more > fewer else 0
    return phase.times * known[fewer] * (known[more] / known[fewer]) ** part


@cache
def _zeroed(pools: Phase, config: PimConfig) -> bool:
    assert pools.layer is not None
    return lower(pools.layer, pools.kernel, replace(config, bank_bytes=STACK_BYTES)).zeroed


def _elementwise(elements: int) -> Phase:
    """Return an element-wise phase on two operands."""
    rows = ceil(elements / _FLAT)
    layer = FullyConnected(samples=1, inputs=ceil(elements / rows), outputs=rows)
    nbytes = 3 * _ELEMENT_BYTES * elements
    return Phase("pools", "descent", elements, nbytes, layer=layer)


def _sum(elements: int, results: int) -> Phase:
    """Return a phase with one sum for each result."""
    layer = FullyConnected(samples=max(1, elements // results), inputs=1, outputs=results)
    nbytes = _ELEMENT_BYTES * (elements + results)
    return Phase("pools", "backward-bias", elements, nbytes, layer=layer)


def _batch_norm(elements: int, channels: int, backward: bool) -> tuple[Phase, ...]:
    """Return the phases of a batch norm: sums for each channel, then shift and scale."""
    nbytes = 3 * _ELEMENT_BYTES * channels
    elementwise, per_channel = _elementwise(elements), _sum(elements, channels)
    core = Phase("core", "elements", channels, nbytes, elements=channels)
    if backward:
        return per_channel, *[elementwise] * 3, per_channel, core, *[elementwise] * 4
    return per_channel, core, *[elementwise] * 2, per_channel, core, *[elementwise] * 2


def _layer_of(op: Op) -> tuple[Layer, str, int]:
    """Return a product as a pass of a layer, with the number of passes.

    A grouped convolution has one pass for each group.
    """
    geometry = op.geometry
    assert geometry is not None
    if operation_name(op) == "MatMul":
        (*_, rows, depth), result = geometry.operands[-2], geometry.result
        layer = FullyConnected(samples=rows, inputs=depth, outputs=result[-1])
        return layer, "forward", prod(result[:-2])
    first, second = geometry.operands[:2]
    x, y, weights = {
        "convolution": (first, geometry.result, second),
        "convolution_backward_filter": (second, first, geometry.result),
        "convolution_backward_input": (geometry.result, first, second),
    }[plain_kind(op)]
    if geometry.transposed:
        x, y = y, x
    down, across = geometry.padding
    layer = Convolution(
        images=x[0],
        channels=x[1] // geometry.groups,
        height=x[2],
        width=x[3],
        filters=y[1] // geometry.groups,
        filter_height=weights[2],
        filter_width=weights[3],
        stride=geometry.stride[0],
        padding=(down, down, across, across),
        dilation=geometry.dilation[0],
    )
    return layer, _PASSES[operation_name(op)], geometry.groups


def _windows(op: Op, most: int) -> tuple[int, int]:
    """Return the size of an operation's windows, and the elements of all windows.

    Windows are assumed to be as large as their distance; 3 if they overlap.
    """
    nbytes = op.read_bytes[0] if "backward" in op.kind else op.write_bytes[0]
    results = max(1, nbytes // _ELEMENT_BYTES)
    window = round((most / results) ** 0.5)
    window = 3 if window == 1 else window
    return window, results * window * window
