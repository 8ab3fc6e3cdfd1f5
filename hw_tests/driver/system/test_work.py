"""What an operation takes by where its tensors are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from sw_driver.machine import Machine, MachineError, assumed
from sw_driver.machine.presets import PRESETS
from sw_driver.machine.tiny import TINY
from sw_driver.system.engine import Engine
from sw_driver.system.work import DeviceWork, Flow, work_of
from sw_driver.workload import load_trace
from sw_driver.workload.trace import Op

OP = Op(
    id=0,
    kind="mm",
    layer=0,
    stage=0,
    phase="forward",
    reads=(0, 1, 2),
    writes=(1, 3),
    read_bytes=(1000, 200, 50),
    write_bytes=(200, 300),
    flops=20_001,
)


def _of(
    places: Mapping[int, str], machine: Machine = TINY, device: str = "gpu"
) -> DeviceWork | int:
    return work_of(machine, OP, device, lambda tensor: places.get(tensor, ""))


def _fast(machine: Machine, memory: str) -> Machine:
    """So fast a memory that it bounds nothing."""
    memories = (
        replace(of_machine, total_gb_per_s=assumed(1e6, "a test"))
        if of_machine.name == memory
        else of_machine
        for of_machine in machine.memories
    )
    return replace(machine, memories=tuple(memories))


def test_bytes_go_where_each_tensor_is() -> None:
    assert _of({}) == _of(dict.fromkeys(range(4), "gpu")) == 31  # 21 for the flops
    reads = Flow(1050, "host", "gpu")
    assert _of({0: "host", 2: "host"}) == DeviceWork(21, [Flow(700, "gpu", "gpu"), reads], 10)
    assert _of(dict.fromkeys(range(4), "host")) == DeviceWork(
        21, [Flow(1250, "host", "gpu"), Flow(500, "gpu", "host")], 10
    )
    assert _of({}, _fast(TINY, "gpu")) == DeviceWork(21, [Flow(1750, "gpu", "gpu")], 10)
    assert _of({3: "disk"}, device="cpu") == DeviceWork(
        201, [Flow(1450, "host", "host"), Flow(300, "host", "disk")], 0
    )
    with pytest.raises(MachineError, match="device is 'cpus': did you mean cpu"):
        _of({}, device="cpus")


def test_what_shares_nothing_takes_what_the_device_says_to_the_ns() -> None:
    plain = PRESETS["axdimm_platform"]
    machine = _fast(plain, "gpu")
    engine, trace = Engine(machine), load_trace("gpt-tiny")
    gpu = machine.device("gpu")
    for op in trace.ops:
        work = work_of(machine, op, "gpu", lambda _: "")
        assert work_of(plain, op, "gpu", lambda _: "gpu") == gpu.cost(op)
        done = engine.queue("gpu").work(lambda work=work: work, op.kind)
        engine.run()
        assert done.end_ns - done.begin_ns == gpu.cost(op)
