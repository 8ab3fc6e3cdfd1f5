"""Training on the heterogeneous PIM's machine: a CPU with units and cores in its main memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from sw_driver.machine import Machine
from sw_driver.machine.hetero_pim import HETERO_PIM
from sw_driver.workload import Trace

from ..hetero_pim.configurations import HEADLINE, HETERO
from ..hetero_pim.costs import Costs
from ..hetero_pim.energy import energy
from ..hetero_pim.operations import on_pools
from ..hetero_pim.profiling import modelled, offered
from ..hetero_pim.runs import CALIBRATED_RATE
from ..hetero_pim.scheduling import schedule
from ..outcome import Outcome
from .system import CannotRunError, Need, Needs, System, formats_of

__all__ = ["SYSTEMS"]

_FP32_BYTES = 4


def _needs(trace: Trace, _: Machine) -> Needs:
    if other := next((op.dtype for op in trace.ops if op.dtype != "fp32"), ""):
        captured = formats_of(trace) == "as captured"
        raise CannotRunError(
            f"{trace.name} has operations in {other.upper()}, and its units compute in FP32: "
            f"{'capture the step in FP32' if captured else 'give --precision fp32'}"
        )
    for tensor in trace.tensors:
        if tensor.kind == "parameter" and tensor.element_bytes != _FP32_BYTES:
            raise CannotRunError(
                f"the stack's units compute FP32, and parameters of {trace.name} take "
                f"{tensor.element_bytes} bytes each"
            )
    if all(on_pools(op) == "no" for op in trace.ops):
        raise CannotRunError(f"the stack's units can run no operation of {trace.name}")
    return {"stack": Need.of_all(trace)}


def _run(trace: Trace, machine: Machine, unit_rate: float) -> Outcome:
    """Run a step; ``unit_rate`` is that of :class:`~sw_driver.system.hetero_pim.costs.Costs`."""
    memories = tuple(
        machine.memory("stack") if memory.name == "stack" else memory
        for memory in HETERO_PIM.memories
    )
    costs = Costs(machine=replace(HETERO_PIM, memories=memories), unit_rate=unit_rate)
    made = schedule(trace, costs, HETERO, offered(modelled(trace, costs.machine), HEADLINE.share))
    passes, updates = [], []
    for row in made.rows:
        update = trace.ops[row.op % len(trace.ops)].phase == "update"
        (updates if update else passes).append(row)
    # All parts of an update count as work: meanwhile the passes cannot compute.
    either = [*passes, *(row._replace(part="compute") for row in updates)]
    computing_ns, either_ns = (
        made.step_ns - replace(made, rows=tuple(rows)).lost_ns for rows in (passes, either)
    )
    return Outcome(
        step_ns=made.step_ns,
        parts_ns={"computing": computing_ns, "updating": either_ns - computing_ns},
        peak_bytes={"stack": Need.of_all(trace).nbytes},
        energy_j=energy(made, costs, HETERO).total,
    )


def _faster(system: System, factor: float) -> System:
    return replace(system, run=partial(_run, unit_rate=factor * CALIBRATED_RATE))


def _system(name: str, mark: str, units: str, unit_rate: float) -> System:
    return System(
        name=f"heterogeneous PIM, {name}",
        mark=mark,
        bounds={"computing": "PIM, CPU", "updating": "PIM, CPU", "waiting": "stack"},
        hardware={"its stack's rate": ("stack.total_gb_per_s",)}
        | ({"its units' rate": _faster} if unit_rate else {}),
        assumptions=(
            "Liu et al.'s machine replaces GPU and host: a CPU of 8 cores with the stack as its "
            "main memory. The stack has 444 units and four cores.",
            units,
            "All operations are offered to the stack. They run there or on the CPU, whichever ends "
            "first.",
            "Two steps overlap: one begins without the update of the step before it. They take no "
            "more of the stack than one step in program order.",
            "While its CPU accesses memory and nothing computes, the step counts as waiting.",
            "Published figures of its parts give its energy.",
        ),
        needs=_needs,
        run=partial(_run, unit_rate=unit_rate),
    )


SYSTEMS = (
    _system(
        "our RTL's rate",
        "predicted",
        "Units and cores are as fast as the RTL's; the CPU is faster, and does most of the work.",
        0,
    ),
    _system(
        "calibrated",
        "calibrated",
        f"Each unit does {CALIBRATED_RATE} operations per cycle, so that VGG-19 takes no longer "
        "than on Liu et al.'s GPU. The cores are an ARM Cortex-A9's.",
        CALIBRATED_RATE,
    ),
)
