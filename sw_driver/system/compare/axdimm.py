"""The platform of Kim et al., with a module that updates parameters.

Parameters and states are in a module beside the processor. Those without room there are on drives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from hw.kernel.config import NARROW_RULES
from hw.narrow.formats import MIXTURES
from sw_driver.axdimm.figures import BYTES_PER_PARAMETER, PAPER_MPARAMS_PER_S
from sw_driver.axdimm.measure import own_mparams_per_s
from sw_driver.device.errors import DeadlockError
from sw_driver.machine import Machine
from sw_driver.workload import Trace
from sw_driver.workload.summary import alive_bytes

from ..axdimm.platform import PAPER_RATES, measure
from ..axdimm.settings import CHANNELS, MODULE, FrameworkSettings
from ..axdimm.tensors import least_gpu_bytes, placed
from ..outcome import Outcome
from .system import PLACES, CannotRunError, Need, Needs, System

__all__ = ["MODULE_LINK", "SYSTEMS", "update_bytes"]

_Faster = Callable[[System, float], System]
_FP32_BYTES = 4
_FEWER_BYTES = replace(MODULE, formats=MIXTURES["bf16_g_8bit"])


def update_bytes(trace: Trace) -> int:
    """Return the bytes that all updates together read and write.

    Raises :class:`CannotRunError` if there are none.
    """
    nbytes = sum(op.nbytes for op in trace.ops if op.phase == "update")
    if not nbytes:
        raise CannotRunError(f"{trace.name} updates no parameter: give a whole training step")
    return nbytes


def _needs(settings: FrameworkSettings, trace: Trace, machine: Machine) -> Needs:
    """Return the needs of a step.

    A channel needs room for the largest update beside a gradient. The drives hold what has no room
    in its channel beside the largest gradient. All growth of a larger model goes to the drives.
    """
    states = ("gradient", "optimizer_state")
    for tensor in () if settings.formats.usual else trace.tensors:
        if tensor.kind in states and tensor.element_bytes != _FP32_BYTES:
            raise CannotRunError(
                f"it stores gradients and states in formats of its own, from FP32, and "
                f"{trace.name} has a {tensor.kind.replace('_', ' ')} of {tensor.element_bytes:g} "
                f"bytes an element: give a mixed precision, and an optimizer such as adamw"
            )
    for op in () if settings.formats.usual else trace.ops:
        if op.phase == "update" and op.kind not in NARROW_RULES:
            raise CannotRunError(
                f"{trace.name} is updated by {op.kind}; kernels with such formats have "
                f"{' and '.join(NARROW_RULES)}"
            )
    nbytes, peak_op = least_gpu_bytes(trace, settings.ahead_ops)
    growing = min(alive_bytes(trace, "activation")[peak_op], nbytes)
    channels: list[tuple[int, int]] = []
    kept = left = 0
    parameters = placed(trace, settings.formats, CHANNELS).values()
    for number, name in enumerate(PLACES["module"]):
        capacity = int(machine.memory(name).capacity_bytes.value)
        own = [parameter for parameter in parameters if parameter.channel == number]
        gradient = max((parameter.gradient_bytes for parameter in own), default=0)
        update = max(
            (parameter.kept_bytes for parameter in own if parameter.gradient_bytes), default=0
        )
        channels.append((update + gradient, capacity))
        held = sum(parameter.kept_bytes for parameter in own)
        kept += held
        left += max(held + gradient - capacity, 0)
    # Room in one channel does not help the other.
    fits = all(need <= capacity for need, capacity in channels)
    module = sum(need if fits else max(need, capacity) for need, capacity in channels)
    return {
        "gpu": Need(nbytes=nbytes, growing_bytes=growing),
        "module": Need(nbytes=module, growing_bytes=0),
        "nvme": Need(nbytes=left, growing_bytes=max(kept, left)),
    }


def _run(
    adam_mparams_per_s: Callable[[], float],
    settings: FrameworkSettings,
    trace: Trace,
    machine: Machine,
    overhead_us: float = PAPER_RATES.update_overhead_us,
) -> Outcome:
    """Run three steps and return the last; all later ones are like it.

    The module's rate is that of both channels together.
    """
    moved, rate = update_bytes(trace), adam_mparams_per_s()
    if settings.formats.usual:
        parameters = placed(trace, settings.formats, CHANNELS).values()
        updated = sum(parameter.count for parameter in parameters if parameter.gradient_bytes)
        rate *= BYTES_PER_PARAMETER * updated / moved
    try:
        step = measure(
            machine,
            trace,
            settings,
            channel_mparams_per_s=rate / CHANNELS,
            overhead_us=overhead_us,
        )
    except DeadlockError as error:  # the first line names the memory that is too small
        raise CannotRunError(str(error).splitlines()[0]) from error
    updating_ns = step.step_ns - step.marks_ns["gradients"]
    return replace(
        step,
        busy_ns={},
        parts_ns={"computing": step.busy("gpu"), "updating": updating_ns},
        peak_bytes={
            place: sum(step.peak_bytes[name] for name in PLACES[place])
            for place in ("gpu", "module", "nvme")
        },
    )


_ASSUMPTIONS = (
    "Four rates of links, drives and the runtime are fitted to Kim et al., Table 6; they hold "
    "beside any GPU.",
    f"One of these rates is the runtime's: {PAPER_RATES.update_overhead_us:,.0f} us for each "
    "tensor's update.",
    "The kernel moves the same number of bytes per second for any optimizer and format.",
    "The runtime makes one transfer at a time. It fetches a parameter again unless it is used "
    f"within {MODULE.ahead_ops} operations.",
)

_FASTER = 38.4 / 12.8
"""Peak of a channel of DDR5-4800 as a multiple of the paper's DDR4-1600."""
_TODAY_OVERHEAD_US = 50
_TIMES = {"module": 2 * _FASTER, "channel0": _FASTER, "channel1": _FASTER, "drives": 2, "nvme": 4}
"""Rates of a module of today, and of two drives of 7 GB/s, as multiples of the fitted ones."""
_MORE_BYTES = 4


def _of_today(machine: Machine) -> Machine:
    """Return the machine with a module of DDR5-4800 and two drives on PCIe 4.0."""
    changes = {
        f"{name}.{way}_gb_per_s": f"{times * machine.link(name).rate(writing=writing) / 1e9:.9f}"
        for name, times in _TIMES.items()
        for way, writing in (("read", False), ("write", True))
    }
    for name in PLACES["module"]:
        nbytes = _MORE_BYTES * int(machine.memory(name).capacity_bytes.value)
        changes[f"{name}.capacity_bytes"] = str(nbytes)
    return machine.override(changes)


def _rate_of_today() -> float:
    """Return the rate of our RTL with fewer bytes, at the same share of a faster peak."""
    return own_mparams_per_s(_FEWER_BYTES.formats) * _FASTER


def _run_today(trace: Trace, machine: Machine, factor: float = 1) -> Outcome:
    def rate() -> float:
        return factor * _rate_of_today()

    return _run(rate, _FEWER_BYTES, trace, _of_today(machine), _TODAY_OVERHEAD_US)


_FEWER = (
    "Gradients leave the GPU in BF16. States have 8 bits per value and a scale for every 256 "
    "values. Trained parameters are in FP32.",
)

_OF_TODAY = (
    f"A module of DDR5-4800 has {_MORE_BYTES} times the bytes and {_FASTER:g} times the rate of "
    f"channels, of which the kernel keeps our RTL's share; its link is {2 * _FASTER:g} times as "
    f"fast, drives {_TIMES['nvme']} times. The runtime takes {_TODAY_OVERHEAD_US} us for each "
    "tensor's update.",
)

MODULE_LINK = ("module.read_gb_per_s", "module.write_gb_per_s")
"""Settings of a module's link."""


def _faster(rate: Callable[[], float], settings: FrameworkSettings) -> _Faster:
    """Return a function that returns a system with a faster kernel."""
    return lambda system, factor: replace(
        system, run=partial(_run, lambda: factor * rate(), settings)
    )


def _faster_today(system: System, factor: float) -> System:
    return replace(system, run=partial(_run_today, factor=factor))


_BOUNDS = {"updating": "module", "waiting": "PCIe"}

SYSTEMS = (
    *(
        System(
            name=name,
            mark="calibrated",
            assumptions=assumptions,
            bounds=_BOUNDS,
            hardware={"its link": MODULE_LINK, "its update rate": _faster(rate, settings)},
            needs=partial(_needs, settings),
            run=partial(_run, rate, settings),
        )
        for name, rate, settings, assumptions in (
            ("AXDIMM, the paper's rate", lambda: PAPER_MPARAMS_PER_S, MODULE, _ASSUMPTIONS),
            ("AXDIMM, our RTL's rate", own_mparams_per_s, MODULE, _ASSUMPTIONS),
            (
                "AXDIMM, fewer bytes",
                partial(own_mparams_per_s, _FEWER_BYTES.formats),
                _FEWER_BYTES,
                (*_ASSUMPTIONS, *_FEWER),
            ),
        )
    ),
    System(
        name="AXDIMM, DDR5-4800",
        mark="assumed",
        bounds=_BOUNDS,
        hardware={"its link": MODULE_LINK, "its update rate": _faster_today},
        assumptions=(*_ASSUMPTIONS[2:], *_FEWER, *_OF_TODAY),
        needs=lambda trace, machine: _needs(_FEWER_BYTES, trace, _of_today(machine)),
        run=_run_today,
    ),
)
