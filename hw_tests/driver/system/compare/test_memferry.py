"""ZeRO-Offload and MemFerry beside other systems: as reproduced, and with the least they take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

import pytest

from hw_tests.driver.system.compare.bases import both_ways
from sw_driver.axdimm.measure import own_mparams_per_s
from sw_driver.system.compare.bases import BASES
from sw_driver.system.compare.comparison import Row, compare
from sw_driver.system.compare.memferry import SYSTEMS
from sw_driver.system.compare.system import all_parts_ns
from sw_driver.system.memferry.planners import planned
from sw_driver.system.memferry.runs import MemferryCase, profile_for
from sw_driver.system.memferry.systems import BUCKET_BYTES, System, run
from sw_driver.system.outcome import Outcome
from sw_driver.workload import load_trace

BASE = BASES["v100"]
NAMES = [system.name for system in SYSTEMS]
NATIVE, DEEPSPEED, MEMFERRY, GO, MEMFERRY_AXDIMM, GO_AXDIMM = NAMES


def rows(network: str, changes: Mapping[str, str], *names: str) -> list[Row]:
    systems = [system for system in SYSTEMS if system.name in (names or NAMES)]
    return compare(load_trace(network), BASE.override(changes), systems, lambda _: None)


def ran(network: str, name: str, changes: Mapping[str, str]) -> Outcome:
    (row,) = rows(network, changes, name)
    assert row.outcome, row.reason
    return row.outcome


@pytest.mark.parametrize("network", ["bert-base", "alexnet"])
def test_zero_offload_is_as_reproduced(network: str) -> None:
    for name, system in ((NATIVE, "native"), (DEEPSPEED, "DeepSpeed")):
        step = MemferryCase(network=network, system=system, machine="v100").result(print)
        made = ran(network, name, {})
        assert (made.step_ns, made.busy("gpu")) == (step.step_ns, step.busy("gpu"))
        assert made.peak_bytes["gpu"] == step.peak_bytes["gpu"]


@pytest.mark.parametrize(
    ("name", "reserve"), [(MEMFERRY, 1.0), (GO, 0), (MEMFERRY_AXDIMM, 1.0), (GO_AXDIMM, 0)]
)
def test_memferry_is_our_plan_in_the_gpus_memory(name: str, reserve: float) -> None:
    """Two modules, as in the reproduction, whose links are no bound."""
    nbytes = 1400 << 20
    machine = {"gpu.capacity_bytes": str(nbytes), "host.capacity_bytes": "64GiB"}
    profile = profile_for(MemferryCase(network="bert-base", machine="v100"))
    if "AXDIMM" in name:
        parameters = sum(layer.nbytes for layer in profile.layers) // 4
        profile = replace(profile, update_ns=ceil(parameters * 1000 / (2 * own_mparams_per_s())))
    step = run(profile, System(plan=planned(profile, "ours", nbytes, reserve)))
    made = ran("bert-base", name, machine | both_ways("module", 6.4))
    assert (made.step_ns, made.peak_bytes["gpu"]) == (step.step_ns, step.peak_bytes["gpu"])
    assert made.busy_ns == (
        {} if "AXDIMM" in name else {"gpu": step.busy("gpu"), "cpu": profile.update_ns}
    )


@pytest.mark.parametrize("network", ["gpt-tiny", "alexnet", "lstm-ptb", "word2vec"])
def test_what_is_needed_is_enough_and_no_byte_less_is(network: str) -> None:
    kinds = ("parameter", "gradient", "optimizer_state")
    host = sum(tensor.nbytes for tensor in load_trace(network).tensors if tensor.kind in kinds)
    made = rows(network, {})
    for row in made:
        assert row.outcome
        need, name = row.needs["gpu"], row.system.name
        assert 0 < need.growing_bytes <= need.nbytes <= row.outcome.peak_bytes["gpu"]
        assert row.needs["host"].nbytes == row.outcome.peak_bytes["host"] == host
        least = {"gpu.capacity_bytes": str(need.nbytes), "host.capacity_bytes": str(host)}
        tight = ran(network, name, least)
        assert tight.peak_bytes["gpu"] == need.nbytes
        assert tight.step_ns >= row.outcome.step_ns
        for key in least:
            (short,) = rows(network, least | {key: str(int(least[key]) - 1)}, name)
            assert short.reason.startswith("needs at least")
    native, deepspeed, memferry, go, *_ = (row.needs["gpu"] for row in made)
    assert deepspeed.nbytes - native.nbytes == BUCKET_BYTES
    assert deepspeed.growing_bytes == native.growing_bytes
    assert memferry == go


def test_parts_of_zero_offloads_step() -> None:
    """Its updates are all behind the last gradient."""
    trace, gpu, cpu = load_trace("bert-base"), BASE.device("gpu"), BASE.device("cpu")
    made = ran("bert-base", NATIVE, {})
    parts = all_parts_ns(made)
    assert parts["computing"] == sum(gpu.cost(op) for op in trace.ops if op.phase != "update")
    updating = sum(cpu.cost(op) for op in trace.ops if op.phase == "update")
    assert parts["updating"] == updating == made.busy("cpu")
    assert parts["waiting"] > 0 == parts["recomputing"]
    assert sum(parts.values()) == made.step_ns


@pytest.mark.soak
def test_faster_parts_and_more_room_make_no_step_slower() -> None:
    more = {
        "gpu": [{"gpu.capacity_bytes": f"{number}MiB"} for number in (4096, 1400, 1200)],
        "pcie": [both_ways("pcie", number) for number in (48, 12, 6)],
        "cores": [{"cpu.gb_per_s": str(number)} for number in (108, 13.5)],
    }
    for change, machines in more.items():
        for row in zip(*(rows("bert-base", machine) for machine in machines), strict=True):
            times = [made.outcome.step_ns for made in row if made.outcome]
            assert times == sorted(times), (change, row[0].system.name)
            cores = "AXDIMM" not in row[0].system.name
            assert change != "cores" or (times[0] < times[-1]) == cores


def test_a_faster_gpu_does_not_lead_the_planner_astray() -> None:
    """By more than a per cent."""
    memory = {"gpu.capacity_bytes": "2050MiB"}
    slow, fast = (
        ran("bert-base", MEMFERRY, memory | {"gpu.gb_per_s": name}).step_ns
        for name in ("900", "1800")
    )
    assert fast < 1.01 * slow


def test_modules_in_the_cores_place() -> None:
    """One for each 32 GiB that are begun. They update side by side, and carry what their links do
    together: that of one is less than half of PCIe's."""
    for name in (MEMFERRY_AXDIMM, GO_AXDIMM):
        one, same, two, all_ = (
            ran("bert-base", name, {"host.capacity_bytes": memory})
            for memory in ("3GiB", "32GiB", "33GiB", "256GiB")
        )
        assert one == same
        assert one.step_ns > two.step_ns > all_.step_ns
        assert one.busy("cpu") == 0
        slow = both_ways("pcie", 5.14)
        assert ran("bert-base", name, slow | {"host.capacity_bytes": "32GiB"}) == one
    none = ran("bert-base", MEMFERRY, {})
    assert none.busy("cpu") > 0
    assert none.step_ns > all_.step_ns


def test_a_plan_with_gradients_on_the_gpu_is_no_slower_than_one_without() -> None:
    for network in ("alexnet", "lstm-ptb"):
        gradients, none = (ran(network, name, {}) for name in (MEMFERRY, GO))
        assert gradients.step_ns <= none.step_ns
        assert gradients.step_ns < ran(network, NATIVE, {}).step_ns
