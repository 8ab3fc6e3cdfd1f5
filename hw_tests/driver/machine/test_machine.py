"""Machines: what they are made of, the ways through them, and changes by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sw_driver.axdimm.figures import BYTES_PER_PARAMETER
from sw_driver.machine import Link, Machine, MachineError, Memory, assumed, calibrated, given
from sw_driver.machine.axdimm_platform import AXDIMM_PLATFORM, TRAINING_LIMITS
from sw_driver.machine.measured import ADAM_BYTES
from sw_driver.machine.parts import MARKS, Figure
from sw_driver.machine.presets import PRESETS
from sw_driver.machine.processors import XEON_E5_2630_V3
from sw_driver.machine.sentinel import SENTINEL, TIERS
from sw_driver.machine.tiny import TINY
from sw_driver.workload.trace import Op


def _names(machine: Machine, source: str, target: str) -> list[tuple[str, bool]]:
    return [(link.name, writing) for link, writing in machine.route(source, target)]


@pytest.mark.parametrize("machine", PRESETS.values(), ids=PRESETS)
def test_every_preset_is_whole(machine: Machine) -> None:
    assert PRESETS[machine.name] is machine
    names = [memory.name for memory in machine.memories]
    for source in names:
        for target in names:
            if source != target:
                there, back = machine.route(source, target), machine.route(target, source)
                assert [(link, not writing) for link, writing in reversed(there)] == list(back)
    figures = [figure for figure in machine.keys.values() if isinstance(figure, Figure)]
    assert len(figures) == (
        len(machine.memories)
        + sum(memory.total_gb_per_s is not None for memory in machine.memories)
        + 3 * len(machine.devices)
        + sum(device.cache_bytes is not None for device in machine.devices)
        + 3 * len(machine.links)
    )
    for figure in figures:
        assert figure.mark in MARKS
        assert len(figure.source) > 10


def test_the_platform_is_the_papers() -> None:
    """The host's rate gives the limit of Table 5; module and drives are reached past the host."""
    assert AXDIMM_PLATFORM.link("ddr").rate(writing=True) / 28 == pytest.approx(228.57e6, rel=1e-4)
    channels = [AXDIMM_PLATFORM.link(f"channel{number}").rate(writing=False) for number in (0, 1)]
    assert sum(channels) / 28 == pytest.approx(914.29e6, rel=1e-4)
    module, host = (AXDIMM_PLATFORM.link(name).rate(writing=True) for name in ("module", "ddr"))
    assert 2 * module == 2 * host == channels[0] == channels[1]
    assert _names(AXDIMM_PLATFORM, "module0", "module1") == [
        ("channel0", False),
        ("channel1", True),
    ]
    assert _names(AXDIMM_PLATFORM, "nvme", "gpu") == [
        ("drives", False),
        ("direct", False),
        ("pcie", True),
    ]
    assert _names(AXDIMM_PLATFORM, "gpu", "module1") == [
        ("pcie", False),
        ("root_port", False),
        ("module", True),
        ("channel1", True),
    ]
    limited = AXDIMM_PLATFORM.override(TRAINING_LIMITS)
    host, *module = (limited.memory(name) for name in ("host", "module0", "module1"))
    assert host.capacity_bytes.value == sum(each.capacity_bytes.value for each in module) == 2**34


def test_sentinels_socket_is_the_papers() -> None:
    """12 cores of 2.3 GHz, two FMA of 8 each, half of it; what the memories do, both ways share."""
    cpu = SENTINEL.device("cpu")
    assert cpu.tflop_per_s.value == pytest.approx(12 * 2.3 * 32 / 2000)
    assert cpu.cache_bytes is not None
    assert cpu.cache_bytes.value == 30 * 2**20
    assert XEON_E5_2630_V3.tflop_per_s.value == pytest.approx(0.6144 / 2)
    slow = cpu.launch_ns.value + SENTINEL.link("cross").latency_ns.value
    assert slow == pytest.approx(182.7, abs=0.5)
    changed = SENTINEL.override({"cpu.cache_bytes": "0", "fast.capacity_bytes": "1GiB"})
    assert changed.keys["cpu.cache_bytes"].value == 0
    with pytest.raises(MachineError, match=r"cpu\.cache_bytes is -1: expected an integer of 0"):
        SENTINEL.override({"cpu.cache_bytes": "-1"})


def test_every_pair_of_memories_is_a_preset_and_moves_at_the_rate_of_its_slow_one() -> None:
    rates = {}
    for name, machine in TIERS.items():
        assert PRESETS[machine.name] is machine
        assert [memory.name for memory in machine.memories] == ["fast", "slow"]
        (device,) = machine.devices
        assert device.memory == "fast"
        assert machine.memory("fast").total_gb_per_s == device.gb_per_s
        ((slow, writing),) = machine.route("fast", "slow")
        assert writing
        total = machine.memory("slow").total_gb_per_s
        rates[name] = slow.rate(writing=False), total and total.value
    assert rates == {
        "xeon": (19 * 10**9, 19),
        "pcie3": (12 * 10**9, None),
        "pcie4": (25 * 10**9, None),
        "pcie5": (55_600_000_000, None),
        "cxl": (27_800_000_000, 36),
        "nvme": (3_450_000_000, None),
        "ddr4-800": (6_400_000_000, None),
    }
    assert {name for name, each in TIERS.items() if each.links[0].sharing == "half"} == {"ddr4-800"}
    assert TIERS["cxl"].device("cpu").tflop_per_s.value == pytest.approx(56 * 2.0 * 64 / 2000)


def _link(name: str, a: str, b: str) -> Link:
    rate = assumed(1.0, "a round number")
    none = assumed(0, "a round number")
    return Link(
        name=name,
        a=a,
        b=b,
        read_gb_per_s=rate,
        write_gb_per_s=rate,
        latency_ns=none,
        sharing="half",
    )


def _machine(links: list[Link], junctions: tuple[str, ...] = ("x", "y")) -> Machine:
    size = given(100, "a round number")
    return Machine(
        name="test",
        memories=tuple(Memory(name=name, capacity_bytes=size) for name in "abc"),
        devices=(),
        links=tuple(links),
        junctions=junctions,
    )


def test_a_route_has_the_fewest_links_and_of_as_few_the_first() -> None:
    links = [
        _link("ax", "a", "x"),
        _link("xy", "x", "y"),
        _link("by", "b", "y"),
        _link("bx", "b", "x"),
        _link("other", "b", "x"),
    ]
    assert _names(_machine(links), "a", "b") == [("ax", True), ("bx", False)]
    assert _names(_machine(links[:3]), "b", "a") == [("by", True), ("xy", False), ("ax", False)]
    assert _names(_machine(links), "x", "b") == [("bx", False)]


def test_no_route_leads_through_a_memory() -> None:
    machine = _machine([_link("ab", "a", "b"), _link("bc", "b", "c")])
    with pytest.raises(MachineError, match="from 'a' to 'c' without another memory"):
        machine.route("a", "c")
    with pytest.raises(MachineError, match="is 'd': expected one of a, b, c, x, y"):
        machine.route("a", "d")
    with pytest.raises(MachineError, match="from 'a' to itself"):
        machine.route("a", "a")


def test_an_operation_takes_as_long_as_the_slower_of_arithmetic_and_memory() -> None:
    def op(flops: int, nbytes: int) -> Op:
        return Op(
            id=0, kind="mm", layer=0, phase="forward", stage=0, reads=(0,), writes=(),
            read_bytes=(nbytes,), write_bytes=(), flops=flops,
        )  # fmt: skip

    gpu = TINY.device("gpu")  # 1000 flop and 100 bytes a ns, 10 ns to begin
    assert gpu.cost(op(0, 0)) == 10
    assert gpu.cost(op(5000, 100)) == 15
    assert gpu.cost(op(5001, 100)) == 16
    assert gpu.cost(op(1, 5001)) == 61


def test_changes_by_name() -> None:
    changed = TINY.override(
        {
            "gpu.capacity_bytes": "16GiB",
            "gpu.tflop_per_s": "2.5",
            "ddr.read_gb_per_s": "5",
            "ddr.sharing": "duplex",
            "pcie.latency_ns": "1e3",
        }
    )
    assert changed.memory("gpu").capacity_bytes.value == 1 << 34
    assert changed.device("gpu").tflop_per_s.value == 2.5
    assert changed.link("ddr").rate(writing=False) == 5 * 10**9
    assert changed.link("ddr").rate(writing=True) == 2 * 10**9
    assert changed.link("ddr").sharing == "duplex"
    assert changed.link("pcie").latency_ns.value == 1000
    fitted = TINY.override({"ddr.read_gb_per_s": "1.5"}, calibrated).link("ddr").read_gb_per_s
    assert (fitted.value, fitted.mark) == (1.5, "calibrated")
    figure = changed.memory("gpu").capacity_bytes
    assert figure.mark == "assumed"
    assert "10000 (assumed: a round number)" in figure.source
    kept = {key for key in TINY.keys if changed.keys[key] == TINY.keys[key]}
    assert len(kept) == len(TINY.keys) - 5


def test_who_has_a_memorys_rate_can_be_said_if_it_has_one() -> None:
    assert {key for key in TINY.keys if key.startswith("host.")} == {"host.capacity_bytes"}
    host = replace(TINY.memory("host"), total_gb_per_s=given(3, "a test"))
    machine = replace(TINY, memories=(TINY.memory("gpu"), host, TINY.memory("disk")))
    changed = machine.override({"host.total_gb_per_s": "4", "host.transfers": "apart"})
    rate = changed.memory("host").total_gb_per_s
    assert rate is not None
    assert (rate.value, changed.memory("host").transfers) == (4, "apart")
    with pytest.raises(MachineError, match="transfers is 'alone': expected one of shared, apart"):
        replace(host, transfers="alone")
    with pytest.raises(MachineError, match="total_gb_per_s is 3: expected a Figure"):
        replace(host, total_gb_per_s=3)
    with pytest.raises(MachineError, match="capacity_bytes is None: expected a Figure"):
        replace(host, capacity_bytes=None)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("gpu.capacity", "1", r"'gpu.capacity': did you mean gpu.capacity_bytes.*\? expected one"),
        ("dr.latency_ns", "1", "did you mean ddr.latency_ns"),
        ("xyz", "1", "the key is 'xyz': expected one of gpu.capacity_bytes, "),
        ("gpu.capacity_bytes", "16 GB", "is '16 GB': expected an integer, such as 4096"),
        ("gpu.capacity_bytes", "0", "is 0: expected an integer of 1"),
        ("ddr.read_gb_per_s", "fast", "is 'fast': expected a number, such as 6.4"),
        ("ddr.read_gb_per_s", "0", "is 0.0: expected a number from 0.001"),
        ("pcie.latency_ns", "-1", "is -1: expected an integer of 0 or more"),
        ("pcie.latency_ns", "0.5", "is '0.5': expected an integer"),
        ("ddr.sharing", "both", "is 'both': expected one of duplex, half"),
        ("gpu.accesses", "both", "gpu.accesses is 'both': expected one of in_turn, at_once"),
        ("host.transfers", "apart", "the key is 'host.transfers': "),
    ],
)
def test_changes_that_cannot_be_are_refused(key: str, value: str, said: str) -> None:
    with pytest.raises(MachineError, match=said):
        TINY.override({key: value})


def test_machines_that_cannot_be_are_refused() -> None:
    with pytest.raises(MachineError, match="an end of link pcie is 'root': expected one of"):
        replace(TINY, junctions=())
    with pytest.raises(MachineError, match="two links are named 'pcie'"):
        replace(TINY, links=(*TINY.links, TINY.links[0]))
    with pytest.raises(MachineError, match="two memories and junctions are named 'gpu'"):
        replace(TINY, junctions=("root", "gpu"))
    with pytest.raises(MachineError, match="the memory of device cpu is 'host': expected"):
        replace(TINY, memories=TINY.memories[:1], links=TINY.links[:1])
    with pytest.raises(MachineError, match="'gpu' at both ends"):
        replace(TINY.links[0], a="gpu")
    with pytest.raises(MachineError, match="expected a Figure with a source"):
        replace(TINY.memories[0], capacity_bytes=given(5, ""))
    with pytest.raises(
        MachineError, match=r"gpu\.capacity_bytes is 5\.0: expected an integer of 1"
    ):
        replace(TINY.memories[0], capacity_bytes=given(5.0, "half a paper"))
    with pytest.raises(MachineError, match=r"'a\.b' cannot name a part"):
        replace(TINY.memories[0], name="a.b")
    with pytest.raises(MachineError, match="test: link is 'z': expected one of ab"):
        _machine([_link("ab", "a", "b")]).link("z")


def test_adam_moves_the_bytes_that_its_rule_says() -> None:
    assert BYTES_PER_PARAMETER == ADAM_BYTES
