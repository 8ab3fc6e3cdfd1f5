"""An integer programme for the least time of a small step in a fast and a slow memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from math import ceil, inf

import numpy as np
from scipy.optimize import milp

from sw_driver.machine import Machine
from sw_driver.system.engine import Engine
from sw_driver.system.placing import FAST, SLOW, life
from sw_driver.workload.trace import LASTING, Trace, TraceError

__all__ = ["MOST_TENSORS", "Optimum", "optimum"]

MOST_TENSORS = 10
"""Most tensors of a step: an integer programme takes exponentially longer for more."""

_EXACT = 1e-8
"""Relative error of a time."""


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The best of the steps that end as they begin."""

    step_ns: int
    used_fast: Mapping[int, frozenset[int]]
    """The tensors that each operation uses in the fast memory."""
    moved_bytes: int
    """Both ways together."""


def optimum(step: Trace, machine: Machine) -> Optimum:
    """Return the best step on a machine's first device: no policy has a shorter one.

    Steps end as they begin.

    An operation uses a tensor in the fast memory if all of it is there when it begins. It takes its
    launch, and then the longer of its arithmetic and its bytes, which move as the device's
    ``accesses`` says; and at least what each link and memory takes for these and for what is moved
    meanwhile. Moves have no latency, go on in pieces, and take room by the byte: so an engine may
    take longer.

    Raises :class:`~sw_driver.workload.trace.TraceError` for more than :data:`MOST_TENSORS`.
    """
    if len(step.tensors) > MOST_TENSORS:
        raise TraceError(
            f"{step.name} has {len(step.tensors)} tensors: expected up to {MOST_TENSORS}, as the "
            "optimum of more takes too long to find"
        )
    column = count()
    lives = [(owner.id, op) for owner in step.tensors for op in life(step, owner)]
    uses = {(number, op): next(column) for number, ops in enumerate(step.accesses) for op in ops}
    times = [next(column) for _ in step.ops]
    share, come, go = ({key: next(column) for key in lives} for _ in range(3))
    unit = np.eye(next(column) + 1)  # columns, and the constant 1
    rows = [unit[share[key]] - unit[use] for key, use in uses.items()]
    """What may not be negative."""
    for owner in step.tensors:
        ops = life(step, owner)
        for op, then in zip(ops, [*ops[1:], *ops[: owner.kind in LASTING]], strict=False):
            key = owner.id, op
            kept = unit[share[key]] + unit[come[key]] - unit[go[key]] - unit[share[owner.id, then]]
            rows += [kept, -kept]

    device = machine.devices[0]
    path = Engine(machine).network.path
    unit_ns = max(1, *map(device.cost, step.ops))
    """Of times, so that no factors are much larger than others."""
    capacity = int(machine.memory(FAST).capacity_bytes.value)
    moves = np.zeros(len(unit))
    for op in step.ops:
        own, read, written, coming, going, held = (np.zeros(len(unit)) for _ in range(6))
        for tensors, sizes, slow in (
            (op.reads, op.read_bytes, read),
            (op.writes, op.write_bytes, written),
        ):
            for tensor, nbytes in zip(tensors, sizes, strict=True):
                use = unit[uses[tensor, op.id]]
                own += nbytes * use
                slow += nbytes * (unit[-1] - use)
        for owner in step.tensors:
            if (key := (owner.id, op.id)) in share:
                held += owner.nbytes * unit[share[key]]
                coming += owner.nbytes * unit[come[key]]
                going += owner.nbytes * unit[go[key]]
        rows.append(unit[-1] - held / capacity)
        moves += coming + going
        channels: dict[str, np.ndarray] = {}
        """The ns of each."""
        alone = []
        for nbytes, ends, worker in (
            (own, (FAST, FAST), device.name),
            (read, (SLOW, FAST), device.name),
            (written, (FAST, SLOW), device.name),
            (coming, (SLOW, FAST), ""),
            (going, (FAST, SLOW), ""),
        ):
            ns_per_byte = {
                channel.name: weight / channel.budget * 1e9
                for channel, weight in path(*ends, worker).shares
            }
            for name, ns in ns_per_byte.items():
                channels[name] = channels.get(name, 0) + ns * nbytes
            if worker:
                alone.append(max(ns_per_byte.values()) * nbytes)
        launch = int(device.launch_ns.value) * unit[-1]
        work = [sum(alone)] if device.accesses == "in_turn" else alone
        for least in (
            launch + device.compute_ns(op) * unit[-1],
            *(launch + work_ns for work_ns in work),
            *channels.values(),
        ):
            rows.append(unit[times[op.id]] - least / unit_ns)

    factors = np.array(rows)
    costs = unit[times].sum(axis=0)[:-1]
    least, most = np.zeros(len(costs)), np.where(costs, inf, 1)

    def solve() -> np.ndarray:
        solved = milp(
            costs,
            integrality=np.arange(len(costs)) < len(uses),
            bounds=(least, most),
            constraints=(factors[:, :-1], -factors[:, -1], inf),
            options={"mip_rel_gap": 0},
        )
        assert solved.x is not None, solved.message
        return solved.x

    used = solve()[: len(uses)].round()
    least[: len(uses)] = most[: len(uses)] = used
    solution = solve()  # whose integers are exact
    return Optimum(
        step_ns=ceil(float(costs @ solution) * unit_ns * (1 - _EXACT)),
        used_fast={
            op.id: frozenset(number for number in op.reads + op.writes if used[uses[number, op.id]])
            for op in step.ops
        },
        moved_bytes=round(float(moves[:-1] @ solution)),
    )
