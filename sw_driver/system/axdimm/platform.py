"""The paper's platform as a machine, and its updates.

The baseline is the same machine with the module as a plain DIMM: memory on the same DDR4-800 as the
paper's host memory, and a core that updates over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hw.rules import PAPER_RULES, rule
from sw_driver.axdimm.figures import PAPER_MPARAMS_PER_S
from sw_driver.machine import Figure, Machine, MachineError, calibrated
from sw_driver.machine.axdimm_platform import AXDIMM_PLATFORM, TRAINING_LIMITS
from sw_driver.numbers import LEAST, check_fields, check_number
from sw_driver.workload import Trace

from ..clock import ProcessSteps
from ..engine import Engine
from ..outcome import Outcome
from .framework import Framework, Update
from .settings import CHANNELS, FrameworkSettings

__all__ = [
    "PAPER_RATES",
    "Rates",
    "cpu_update",
    "machine_of",
    "measure",
    "module_update",
    "open_framework",
]

_BYTES_PER_PARAMETER = rule(PAPER_RULES[0]).bytes_per_parameter


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The four calibrated numbers.

    The defaults are least squares of the forward and backward passes of gpt3-large and gpt3-13b in
    the paper's Table 6.
    """

    memory_gb_per_s: float = 5.14
    """Rate on the DDR4-800 of the module, and of the baseline's memory; the peak is 6.4 GB/s."""
    drives_gb_per_s: float = 3.11
    """Rate between NVMe and the module or the memory, both ways."""
    direct_gb_per_s: float = 1.96
    """Rate from NVMe directly to the GPU."""
    update_overhead_us: float = 4900.0
    """Time of the runtime for each tensor's update."""

    def __post_init__(self) -> None:
        check_fields(self, "update_overhead_us", least=1e-3)

    def changes(self) -> dict[str, str]:
        """Return the changes for :meth:`~sw_driver.machine.machine.Machine.override`."""
        rates = {
            "module": self.memory_gb_per_s,
            "nvme": self.drives_gb_per_s,
            "direct": self.direct_gb_per_s,
        }
        return {
            f"{link}.{way}_gb_per_s": str(rate)
            for link, rate in rates.items()
            for way in ("read", "write")
        }


PAPER_RATES = Rates()

_UNUSED = (
    *("host.", "ddr.", "gpu.accesses"),
    *("cpu.tflop_per_s", "cpu.gb_per_s", "cpu.launch_ns", "cpu.accesses"),
)
"""Keys of parts of the machine that no transfer or operation uses."""


def machine_of(rates: Rates = PAPER_RATES, changes: Mapping[str, str] | None = None) -> Machine:
    """Return the machine with calibrated rates, the memory of the paper's runs, and ``changes``.

    Raises :class:`~sw_driver.machine.parts.MachineError` for changes that are not possible, or that
    nothing here depends on.
    """
    for key in changes or {}:
        if key.startswith(_UNUSED) and key in AXDIMM_PLATFORM.keys:
            raise MachineError(
                f"the key is {key!r}, on which nothing depends: the baseline's memory is module0 "
                "and module1 on the link module, and its core's rate that of the link cpu"
            )
    machine = AXDIMM_PLATFORM.override(TRAINING_LIMITS).override(rates.changes(), _fitted)
    return machine.override(changes or {})


def _fitted(value: int | float, source: str) -> Figure:
    return calibrated(value, f"fitted to Table 6 with three other numbers, {source}")


def module_update(channel_mparams_per_s: float, overhead_us: float) -> Update:
    """Return an update by the kernel of a channel, at its rate."""
    check_number("channel_mparams_per_s", channel_mparams_per_s, LEAST)
    check_number("overhead_us", overhead_us)

    def update(engine: Engine, channel: int, count: int) -> ProcessSteps:
        duration_ns = round(1000 * (count / channel_mparams_per_s + overhead_us))
        yield engine.queue(f"kernel {channel}").execute(duration_ns, "update", category="update")

    return update


def cpu_update(overhead_us: float) -> Update:
    """Return an update by one core, whose bytes share the bus with transfers."""
    check_number("overhead_us", overhead_us)

    def update(engine: Engine, channel: int, count: int) -> ProcessSteps:
        yield engine.clock.timeout(round(1000 * overhead_us))
        nbytes = _BYTES_PER_PARAMETER * count
        yield engine.queue("CPU core").transfer(nbytes, f"module{channel}", "core", "update")

    return update


def open_framework(
    machine: Machine,
    trace: Trace,
    settings: FrameworkSettings,
    *,
    channel_mparams_per_s: float = PAPER_MPARAMS_PER_S / CHANNELS,
    overhead_us: float = PAPER_RATES.update_overhead_us,
    record: bool = False,
) -> Framework:
    """Return the framework before its first step; ``record`` is for ``Engine.check``."""
    update = cpu_update(overhead_us)
    if settings.updater == "module":
        update = module_update(channel_mparams_per_s, overhead_us)
    memories = [memory.name for memory in machine.memories if memory.name.startswith("module")]
    engine = Engine(machine, record=record)
    return Framework(engine, trace, settings, memories=memories, update=update)


def measure(machine: Machine, trace: Trace, settings: FrameworkSettings, **options: Any) -> Outcome:
    """Return the third step of :func:`open_framework`'s framework.

    Earlier steps differ: the first finds memory as it was filled, and gpt3-xl needs one more. Steps
    repeat from the third on. Only gpt3-xl's without the module go on to differ, by 1.3 %.
    """
    framework = open_framework(machine, trace, settings, **options)
    framework.step()
    framework.step()
    return framework.step()
