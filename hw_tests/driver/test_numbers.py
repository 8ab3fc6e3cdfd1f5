"""Numbers that cannot be: counts, rates, sizes and times are refused by name before anything is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from inspect import isclass
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from hw.axdimm.config import configure
from hw.memory_node.config import MEMORY_NODE_PRESETS
from hw.pim.config import PIM_PRESETS
from sw_driver.machine import Device, Link, Machine, Memory, assumed
from sw_driver.machine.mc_dla import MC_DLA, parts_of
from sw_driver.machine.tiny import TINY
from sw_driver.memory_node.address_space import AddressSpace
from sw_driver.memory_node.backends.golden import GoldenNetwork
from sw_driver.memory_node.device import DeviceNode, Direction
from sw_driver.memory_node.registers import NodeRegisters
from sw_driver.numbers import check_name
from sw_driver.pim.backends import open_pim
from sw_driver.pim.descriptor import Opcode, StridedTensor, Work
from sw_driver.pim.device import Pim
from sw_driver.pim.layers import Convolution, FullyConnected
from sw_driver.pim.lowering import cut
from sw_driver.pim.placing import StackMemory
from sw_driver.predict.axdimm import TensorAddresses, predict
from sw_driver.predict.memory_node import LinkCycles, Request, answered_fabric_cycles
from sw_driver.predict.pim import Pool
from sw_driver.simulator.sources import modules
from sw_driver.system.axdimm.platform import (
    Rates,
    cpu_update,
    module_update,
    open_framework,
)
from sw_driver.system.axdimm.settings import FrameworkSettings
from sw_driver.system.clock import EngineClock, Semaphore
from sw_driver.system.collectives import RingLane, lane_ns, sent_share
from sw_driver.system.compare.system import Need
from sw_driver.system.driving import Policy, drive
from sw_driver.system.engine import Engine
from sw_driver.system.errors import EngineError
from sw_driver.system.hetero_pim.configurations import HEADLINE
from sw_driver.system.hetero_pim.costs import Costs
from sw_driver.system.hetero_pim.ranking import Profiled
from sw_driver.system.hetero_pim.runs import HeteroPimCase
from sw_driver.system.mc_dla import designs
from sw_driver.system.mc_dla.device import Array, Mapping, Product, streamed_ns
from sw_driver.system.mc_dla.runs import McDlaCase, McDlaRuns
from sw_driver.system.mc_dla.step import step
from sw_driver.system.memferry.budget import Budget
from sw_driver.system.memferry.link import AccessPlan
from sw_driver.system.memferry.profile import LayerProfile, ModelProfile
from sw_driver.system.memferry.runs import MemferryCase
from sw_driver.system.memferry.systems import System
from sw_driver.system.reproduction import given
from sw_driver.system.sentinel.runs import SentinelCase
from sw_driver.system.work import DeviceWork, Flow
from sw_driver.workload import Geometry, GptConfig, Op, Stage, Tensor, Trace, load_trace
from sw_driver.workload.layers import Layer, load_layers
from sw_driver.workload.networks import (
    CAPTURED,
    MEMFERRY,
    BlocksConfig,
    GanConfig,
    LstmConfig,
    RecurrentConfig,
    VisionConfig,
    Word2vecConfig,
)
from sw_driver.workload.training import Training

NO_INTEGERS = (True, 1.5, nan, inf, "3", None)
NO_NUMBERS = (True, nan, inf, -inf, 1e300, "3", None)
ROOMS = ("machine", "system", "memory_node", "workload", "predict")

LAYER = Layer(
    name="a",
    rows=1,
    columns=2,
    depth=3,
    weights=0,
    input=0,
    inputs=3,
    first=True,
    needs=(),
    between_forward=0,
    between_backward=0,
)
OP = Op(
    id=0, kind="mm", layer=0, phase="forward", stage=0, reads=(), writes=(), read_bytes=(),
    write_bytes=(), flops=1,
)  # fmt: skip
TRACE = Trace(
    name="t",
    tensors=(Tensor(id=0, nbytes=4, kind="input"),),
    ops=(OP,),
    layers=("l",),
    stages=(Stage(name="l", phase="forward"),),
)
PRODUCT = Product(rows=2, columns=2, depth=2)
FERRIED = LayerProfile(
    name="a",
    nbytes=1,
    transfer_ns=1,
    forward_ns=1,
    forward_dha_ns=1,
    backward_ns=1,
    backward_dha_ns=1,
    backward_gradient_dha_ns=1,
    gap_forward_ns=1,
)
REGISTERS = NodeRegisters(lambda address: 0, lambda address, value: None)
LANE = RingLane(gaps=(1, 1), gb_per_s=1.0, hop_ns=0)

RECORDS: list[tuple[Any, set[str]]] = [
    (LANE, {"hop_ns"}),
    (designs.Port(name="a", links=1), {"links"}),
    (Array(), {"latency_ns"}),
    (PRODUCT, {"row_words"}),
    (Mapping(product=PRODUCT, lines=1, files=1, tile_rows=1, tile_columns=1, piece=1), set()),
    (McDlaCase(), set()),
    (McDlaRuns(), set()),
    (FERRIED, {field.name for field in fields(FERRIED)}),
    (ModelProfile(device="a", link_bytes_per_s=1e6, layers=(FERRIED,)), {"update_ns"}),
    (
        System(plan=AccessPlan(modes=("GFGB",), gradients_on_gpu=(True,))),
        {"buffer_ps_per_byte", "bucket_bytes"},
    ),
    (MemferryCase(network="bert-base"), {"reserve"}),
    (HeteroPimCase(network="vgg-19"), {"unit_rate"}),
    (SentinelCase(network="bert-base"), set()),
    (Costs(), {"unit_rate"}),
    (HEADLINE, {"stale_steps", "share"}),
    (Budget(room_bytes=1, gradient_bytes=1), {"room_bytes", "gradient_bytes"}),
    (Profiled(operation="a", time=1, accesses=1), {"time", "accesses"}),
    (Need(nbytes=1, growing_bytes=1), {"nbytes", "growing_bytes"}),
    (Rates(), {"update_overhead_us"}),
    (FrameworkSettings(), {"ahead_ops"}),
    (LAYER, {"weights", "input", "between_forward", "between_backward"}),
    (GptConfig(n_layers=1, d_model=2, n_heads=1, batch=1, context=1), {"dropout"}),
    (BlocksConfig(n_layers=1, d_model=2, n_heads=1, d_inner=1), set()),
    (CAPTURED["gpt2-124m"], set()),
    (CAPTURED["vit-l"], set()),
    (Training(), set()),
    (VisionConfig(network="alexnet"), set()),
    (RecurrentConfig(cell="gru", hidden=1, steps=1), set()),
    (LstmConfig(batch=1), set()),
    (Word2vecConfig(batch=1), set()),
    (GanConfig(batch=1), set()),
    (MEMFERRY["bert-base"], {"dropout"}),
    (MEMFERRY["transformer-xl-0.7b"], {"dropout"}),
    (
        Tensor(id=0, nbytes=1, kind="input", allocated=1),
        {"id", "nbytes", "allocated"},
    ),
    (Geometry(operands=((1, 2), (2, 3)), result=(1, 3)), set()),
    (OP, {"id", "layer", "stage", "flops"}),
    (TRACE, set()),
    (LinkCycles(MEMORY_NODE_PRESETS["paper"].link, 0), {"wire_cycles"}),
    (FullyConnected(samples=1, inputs=1, outputs=1), set()),
    (
        Convolution(**dict.fromkeys(("images", "channels", "height", "width", "filters"), 9),
                    filter_height=1, filter_width=1),
        set(),
    ),
]  # fmt: skip
"""A record of each kind, and its fields that may be 0."""

OF_MODELS = {
    *("CompressionStatistics", "HeteroPimStep", "Piece", "Prediction", "Step"),
    *("Burst", "ChannelState", "RefreshState", "Tally", "WorkRun", "Form", "Nest"),
    *("Claim", "Datum", "Outcome", "Parameter", "Placed", "Planned", "Rival"),
    *("Span", "BreakEven", "Compared", "MigrationSchedule", "Schedule"),
    "ScheduledRun",
    *("Gpu", "Host"),  # tables of the package
}
"""Records that only a model makes, for others to read; and those tried below."""


@pytest.mark.parametrize(("record", "zero"), RECORDS, ids=lambda each: type(each).__name__)
def test_records_refuse_what_is_no_number_of_theirs(record: Any, zero: set[str]) -> None:
    for field in fields(record):
        bad = {"int": NO_INTEGERS, "float": NO_NUMBERS}.get(str(field.type), ())
        for value in (*bad, -1, *[0] * (field.name not in zero)) if bad else ():
            with pytest.raises(ValueError, match=re.escape(f"{field.name} is {value!r}: expected")):
                replace(record, **{field.name: value})
        if bad and field.name in zero:
            assert getattr(replace(record, **{field.name: 0}), field.name) == 0


def test_every_record_is_tried() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    tried = {type(record).__name__ for record, _ in RECORDS}
    for name in modules():
        if name.startswith(tuple(f"sw_driver.{room}." for room in ROOMS)):
            module = import_module(name)
            for public in getattr(module, "__all__", ()):
                found = getattr(module, public)
                if (
                    isclass(found)
                    and is_dataclass(found)
                    and {"int", "float"} & {each.type for each in fields(found)}
                ):
                    assert public in tried | OF_MODELS, f"{name}.{public} takes numbers"


PARTS = designs.catalogue()
EMPTY = Machine(name="empty", memories=(), devices=(), links=())
NODE = MEMORY_NODE_PRESETS["tiny"]


def _part(name: str) -> Callable[[Any], object]:
    kind = Memory if name in Memory.least else Device if name in Device.least else Link
    of = next(
        each
        for each in (*TINY.memories, *TINY.devices, *TINY.links)
        if isinstance(each, kind) and hasattr(each, name)
    )
    return lambda value: replace(of, **{name: assumed(value, "a test")})


def _works(what: Any) -> int:
    engine = Engine(TINY)
    engine.queue("gpu").work(lambda: what, "op")
    return engine.run()


def _requests(line: Any, lines: Any) -> object:
    others: list[list[Request]] = [[] for _ in range(NODE.group_links - 1)]
    return answered_fabric_cycles(NODE, [[Request(False, line, lines)], *others])


def _predict(**changes: Any) -> object:
    given = {"parameters": 1, "unit_latency": 10} | changes
    return predict(configure("tiny"), TensorAddresses(outputs=(0,)), **given)


COUNTS: list[tuple[str, Callable[[Any], object], int]] = [
    ("gpu.capacity_bytes", _part("capacity_bytes"), 1),
    ("gpu.launch_ns", _part("launch_ns"), 0),
    ("pcie.latency_ns", _part("latency_ns"), 0),
    ("free", lambda v: Semaphore(EngineClock(), v), 0),
    ("a timeout in ns", lambda v: EngineClock().timeout(v), 0),
    ("at_ns", lambda v: EngineClock().at(v, print), 0),
    ("what 'op' takes, in ns,", lambda v: Engine(TINY).queue("a").execute(v, "op"), 0),
    ("what 'op' takes, in ns,", _works, 0),
    ("what 'op' takes, in ns,", lambda v: _works(DeviceWork(v)), 0),
    ("what 'op' takes, in ns,", lambda v: _works(DeviceWork(0, launch_ns=v)), 0),
    ("what 'op' moves, in bytes,", lambda v: _works(DeviceWork(0, [Flow(v, "gpu", "gpu")])), 0),
    (
        "what 'copy' moves, in bytes,",
        lambda v: Engine(TINY).transfer(v, "gpu", "host", "copy"),
        0,
    ),
    ("in bytes,", lambda v: Engine(TINY).memory("gpu").take("me", v), 0),
    ("in bytes,", lambda v: Engine(TINY).memory("gpu").room(v, "me"), 0),
    ("ahead_ops", lambda v: drive(Engine(TINY), TRACE, Policy(), ahead_ops=v), 0),
    ("participants", lambda v: sent_share("all-reduce", v), 1),
    ("a gap in hops", lambda v: replace(LANE, gaps=(1, v)), 1),
    ("nbytes", lambda v: lane_ns(LANE, "broadcast", v), 0),
    ("nbytes", LANE.busy_ns, 0),
    ("nbytes", LANE.messages, 0),
    ("devices", lambda v: designs.machine_of(designs.DESIGNS["DC-DLA"], PARTS, v), 1),
    ("devices", lambda v: designs.lanes(designs.DESIGNS["DC-DLA"], PARTS, v), 1),
    ("devices", lambda v: step(designs.DESIGNS["DC-DLA"], PARTS, [LAYER], "data", 8, devices=v), 1),
    ("batch", lambda v: step(designs.DESIGNS["DC-DLA"], PARTS, [LAYER], "data", v), 1),
    ("words", lambda v: streamed_ns(v, Array()), 0),
    ("buffer_bytes", lambda v: Array(buffer_bytes=v), 24),
    ("macs", RECORDS[4][0].cycles, 1),
    ("digits", lambda v: given(1, digits=v), 0),
    ("devices", lambda v: GoldenNetwork(devices=v, local_bytes=64, share_bytes=64), 2),
    ("links", lambda v: GoldenNetwork(links=v, local_bytes=64, share_bytes=64), 2),
    ("local_bytes", lambda v: GoldenNetwork(local_bytes=v, share_bytes=64), 1),
    ("share_bytes", lambda v: GoldenNetwork(local_bytes=64, share_bytes=v), 1),
    ("page_bytes", lambda v: AddressSpace(local_bytes=64, share_bytes=64, page_bytes=v), 1),
    ("the number of a device-node", lambda v: DeviceNode(_network(), v), 0),
    ("the number of a device-node", lambda v: _network().local(v), 0),
    ("nbytes", lambda v: _node().cuda_malloc(v), 1),
    ("nbytes", lambda v: _node().cuda_malloc_remote(v), 1),
    ("address", lambda v: _node().cuda_free(v), 0),
    ("address", lambda v: _node().write(v, np.zeros(1)), 0),
    ("address", lambda v: _node().cuda_memcpy_async(v, 0, 64, Direction.LOCAL_TO_REMOTE), 0),
    ("address", lambda v: _node().cuda_memcpy_async(0, v, 64, Direction.REMOTE_TO_LOCAL), 0),
    ("parameters", lambda v: _predict(parameters=v), 1),
    ("unit_latency", lambda v: _predict(unit_latency=v), 0),
    ("address", lambda v: TensorAddresses(outputs=(v,)), 0),
    ("lines of a request", lambda v: _requests(0, v), 1),
    ("the line of a request", lambda v: _requests(v, 1), 0),
    ("shortened", lambda v: Pool(PIM_PRESETS["tiny"], shortened=(v, 1)), 1),
    ("most_products", RECORDS[-1][0].scaled, 1),
    ("most_products", RECORDS[-2][0].scaled, 1),
    ("one of the shape of x", lambda v: StackMemory(PIM_PRESETS["tiny"]).place("x", (v,)), 1),
    ("parts", lambda v: cut(Work(opcode=Opcode.ADD), v), 1),
    ("rows", lambda v: _offer(rows=v), 0),
    ("address of a", lambda v: _offer(a=StridedTensor(address_bytes=v)), 0),
    ("group", lambda v: REGISTERS.group(v, "owner"), 0),
    ("link", lambda v: REGISTERS.link(v, "owner"), 0),
    ("pim_id", lambda v: _pim().pim_status(v), 0),
    ("timeout_cycles", lambda v: _pim().wait_any([4], timeout_cycles=v), 0),
]
"""Calls by what they say a number is, and the least that they take."""

INTEGERS: list[tuple[str, Callable[[Any], object]]] = [
    ("nbytes", lambda v: _node().read(0, v)),
    ("nbytes", lambda v: _copy(v)),
    ("work_id", lambda v: _pim().work_query(v)),
    ("work_id", lambda v: _pim().work_info(v)),
    ("work_id", lambda v: _pim().state(v)),
    ("work_id", lambda v: _pim().counters(v)),
    ("work_id", lambda v: _pim().wait(v)),
    ("address_bytes", lambda v: _pim().write_memory(v, np.zeros(1, np.float32))),
    ("address_bytes", lambda v: _pim().read_memory(v, 4)),
    ("nbytes", lambda v: _pim().read_memory(0, v)),
    ("num_pim", lambda v: _pim().pim_fix(None, Work(opcode=Opcode.ADD), StridedTensor(), v)),
]
"""Calls which have errors of their own for integers that are too small."""

RATES: list[tuple[str, Callable[[Any], object], bool]] = [
    ("gpu.gb_per_s", _part("gb_per_s"), False),
    ("gpu.total_gb_per_s", _part("total_gb_per_s"), False),
    ("pcie.read_gb_per_s", _part("read_gb_per_s"), False),
    ("overhead_us", cpu_update, True),
    ("overhead_us", lambda v: module_update(1, v), True),
    ("channel_mparams_per_s", lambda v: module_update(v, 0), False),
    ("band", lambda v: given(1, 1, section="1", band=v), True),
]
"""The same for numbers, and whether 0 is one."""


@cache
def _network() -> GoldenNetwork:
    return GoldenNetwork(local_bytes=1 << 16, share_bytes=1 << 16)


@cache
def _node() -> DeviceNode:
    return DeviceNode(_network(), 1)


@cache
def _pim() -> Pim:
    return Pim(open_pim("golden", PIM_PRESETS["tiny"]))


def _offer(**changes: Any) -> object:
    work = replace(Work(opcode=Opcode.ADD, rows=1, columns=1), **changes)
    return _pim().pim_fix(None, work, StridedTensor(), 1)


def _copy(nbytes: Any) -> object:
    node = DeviceNode(GoldenNetwork(local_bytes=1 << 16, share_bytes=1 << 16))
    there, remote = node.cuda_malloc(64), node.cuda_malloc_remote(64)
    return node.cuda_memcpy_async(remote, there, nbytes, Direction.LOCAL_TO_REMOTE)


def _refuses(name: str, call: Callable[[Any], object], values: tuple[Any, ...]) -> None:
    for value in values:
        if value is not None or name not in OPTIONAL:
            said = re.escape(f"{name} is {value!r}: expected")
            with pytest.raises((ValueError, EngineError), match=said):
                call(value)


OPTIONAL = ("ahead_ops", "timeout_cycles", "band")
"""Which may be None."""


@pytest.mark.parametrize(("name", "call", "least"), COUNTS)
def test_calls_refuse_counts(name: str, call: Callable[[Any], object], least: int) -> None:
    _refuses(name, call, (*NO_INTEGERS, -1, least - 1))


@pytest.mark.parametrize(("name", "call"), INTEGERS)
def test_calls_refuse_what_is_no_integer(name: str, call: Callable[[Any], object]) -> None:
    _refuses(name, call, NO_INTEGERS)


@pytest.mark.parametrize(("name", "call", "zero"), RATES)
def test_calls_refuse_rates(name: str, call: Callable[[Any], object], zero: bool) -> None:
    _refuses(name, call, (*NO_NUMBERS, -1, *[0] * (not zero)))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: TINY.override({"gpu.capacity_bytes": 5}), "gpu.capacity_bytes is 5: expected an"),  # type: ignore[dict-item]
        (lambda: drive(Engine(EMPTY), TRACE, Policy()), "the number of devices is 0: expected an"),
        (lambda: sent_share("gather", 2), "kind is 'gather': did you mean all-gather?"),
        (lambda: lane_ns(LANE, "gather", 2), "kind is 'gather': did you mean all-gather?"),
        (lambda: replace(LANE, gaps=()), "participants is 0: expected an integer of 1"),
        (lambda: parts_of("v100"), "parts is 'v100': "),
        (lambda: McDlaRuns().result("DC", "alexnet", "data"), "design is 'DC': "),
        (lambda: StackMemory(PIM_PRESETS["tiny"]).place("x", ()), "extents of x is 0"),
        (lambda: McDlaRuns(networks=()), "the number of networks is 0"),
        (lambda: McDlaCase(design="MC-DLA"), "design is 'MC-DLA': did you mean"),
        (
            lambda: step(designs.DESIGNS["DC-DLA"], PARTS, [], "data", 8),
            "the number of layers is 0",
        ),
        (lambda: VisionConfig(network="lenet"), "network is 'lenet': "),
        (lambda: RecurrentConfig(cell="rnn", hidden=1, steps=1), "cell is 'rnn': expected one of"),
        (lambda: check_name("thing", None, ["a"]), "thing is None: expected one of a"),  # type: ignore[arg-type]
        (lambda: GptConfig(n_layers=1, d_model=2, n_heads=1, batch=1, context=1, dropout=1.5),
         "dropout is 1.5: expected a number from 0 to 1"),
        (lambda: replace(TRACE, ops=(replace(OP, reads=(0.0,), read_bytes=(4,)),)),  # type: ignore[arg-type]
         "t: operation 0 is"),
        (lambda: replace(OP, reads=(0,)), "read_bytes is (): expected an integer of 0 or more for"),
        (lambda: replace(OP, writes=(0,), write_bytes=(-1,)), "write_bytes is (-1,): expected an"),
        (lambda: replace(TRACE.tensors[0], allocated=2, freed=1), "freed is 1: expected an"),
        (lambda: Trace(name="t", tensors=(replace(TRACE.tensors[0], parameter=1),), ops=(),
                       layers=(), stages=()), "t: tensor 0 is"),
        (lambda: open_framework(MC_DLA, load_trace("gpt-tiny"), FrameworkSettings()), "memory is"),
        (lambda: _node().cuda_malloc_remote(1, placement="left"), "placement is 'left': expected"),  # type: ignore[arg-type]
        (lambda: TensorAddresses(outputs=(32,)), "address is 32: expected a multiple of 64"),
        (lambda: _pim().pim_fix(["a"], Work(opcode=Opcode.ADD), StridedTensor(), 1), "is 'a'"),  # type: ignore[list-item]
        (lambda: _pim().pim_fix(None, "ADD", StridedTensor(), 1), "got 'ADD'"),  # type: ignore[arg-type]
        (lambda: _pim().write_memory(0, [1.0]), "got [1.0]: expected an array"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_what_else_is_refused(call: Callable[[], object], said: str) -> None:
    with pytest.raises((ValueError, EngineError), match=re.escape(said)):
        call()


@pytest.mark.parametrize("capacity_bytes", ["1", "1000000"])
def test_a_machine_too_small_for_a_step_names_its_setting(capacity_bytes: str) -> None:
    """A memory-node's half is a share of the catalogue's, which is what can be set."""
    small = designs.catalogue({"memory_node.capacity_bytes": capacity_bytes})
    layers = load_layers("alexnet")
    with pytest.raises(EngineError, match=r"'m_left'.* raise memory_node\.capacity_bytes"):
        step(designs.DESIGNS["MC-DLA(L)"], small, layers, "data", 512)
