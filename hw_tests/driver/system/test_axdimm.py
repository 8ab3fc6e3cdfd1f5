"""The platform of Kim et al.: what its framework moves, evicts and keeps apart, and Table 6."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from itertools import pairwise, product
from math import inf, log
from pathlib import Path
from random import Random
from typing import Any

import pytest

from hw.narrow.formats import Formats
from sw_driver.device.errors import DeadlockError
from sw_driver.machine import Machine, MachineError
from sw_driver.system.axdimm.framework import Framework
from sw_driver.system.axdimm.platform import (
    PAPER_RATES,
    Rates,
    machine_of,
    measure,
    open_framework,
)
from sw_driver.system.axdimm.settings import FrameworkSettings
from sw_driver.system.axdimm.tables import table5, table6
from sw_driver.system.axdimm.tensors import least_gpu_bytes
from sw_driver.system.errors import NoRoomError
from sw_driver.system.log import Log, Ran, Transferred
from sw_driver.system.reproduction import Experiment, page
from sw_driver.system.runs import Runs
from sw_driver.workload import load_trace
from sw_driver.workload.trace import PHASES, Op, Stage, Tensor, Trace

PAPER = FrameworkSettings()
TINY_CHANNEL = 4 * 16384
"""Of gpt-tiny's largest parameters: what an update needs, and a gradient. No channel is smaller."""


def _small(capacity: int) -> dict[str, str]:
    return {f"module{channel}.capacity_bytes": str(capacity) for channel in range(2)}


def _open(
    trace: Trace,
    settings: FrameworkSettings = PAPER,
    changes: Mapping[str, str] | None = None,
    **options: Any,
) -> Framework:
    return open_framework(machine_of(changes=changes), trace, settings, record=True, **options)


def _log(framework: Framework) -> Log:
    assert framework.engine.log is not None
    return framework.engine.log


def _bytes_by_label(transferred: Iterable[Transferred]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for transfer in transferred:
        counts[transfer.label] += transfer.nbytes
    return dict(counts)


# What a step moves and leaves.


def _fetched_bytes(trace: Trace, ahead_ops: int) -> int:
    """A parameter is fetched anew for an operation unless one that reads it is not yet done when
    that is queued, that is, is among the ``ahead_ops`` before it."""
    fetched = 0
    for tensor in trace.tensors:
        if tensor.kind == "parameter":
            readers = [op.id for op in trace.ops if op.phase != "update" and tensor.id in op.reads]
            gaps = [after - before > ahead_ops for before, after in pairwise(readers)]
            fetched += tensor.nbytes * (bool(readers) + sum(gaps))
    return fetched


def _assert_all_in_place(framework: Framework) -> None:
    """Each parameter and state is once in its channel or on NVMe, and nothing else is anywhere."""
    trace, engine = framework.trace, framework.engine
    states: Counter[int | None] = Counter()
    expected: dict[Any, int] = {}
    channels: dict[Any, str] = {}
    parameters = [weight for weight in trace.tensors if weight.kind == "parameter"]
    for tensor in trace.tensors:
        if tensor.kind == "parameter":
            expected[tensor.id, "p"] = tensor.nbytes
            channels[tensor.id] = f"module{parameters.index(tensor) % 2}"
        elif tensor.kind == "optimizer_state":
            expected[tensor.parameter, f"s{states[tensor.parameter]}"] = tensor.nbytes
            states[tensor.parameter] += 1
    holdings: list[Any] = []
    for name in ("module0", "module1", "nvme", "gpu", "host"):
        account = engine.memory(name)
        held: dict[Any, int] = dict(account.held)
        holdings += held
        assert account.capacity_bytes - account.free_bytes == sum(held.values())
        assert held == {key: expected[key] for key in held}
        assert name == "nvme" or {channels[key[0]] for key in held} <= {name}
    assert len(holdings) == len(expected)
    assert set(holdings) == set(expected)


@pytest.mark.parametrize(
    ("model", "changes", "ahead_ops"),
    [
        ("gpt-tiny", _small(TINY_CHANNEL), 20),
        ("gpt-tiny", _small(TINY_CHANNEL), 3),
        ("gpt-tiny", _small(TINY_CHANNEL), 0),
        ("gpt-tiny", {}, 20),
        ("gpt3-large", {}, 20),
    ],
)
def test_a_step_moves_what_the_trace_says_and_loses_nothing(
    model: str, changes: dict[str, str], ahead_ops: int
) -> None:
    trace = load_trace(model)
    framework = _open(trace, replace(PAPER, ahead_ops=ahead_ops), changes)
    _assert_all_in_place(framework)
    framework.step()
    _assert_all_in_place(framework)
    before = len(_log(framework).transferred)
    result = framework.step()
    _assert_all_in_place(framework)
    framework.engine.check()

    moved = _bytes_by_label(_log(framework).transferred[before:])
    assert result.moved_bytes == moved
    assert moved.get("evict", 0) == moved.get("gather", 0)
    swaps = model == "gpt3-large" or bool(changes)
    assert (moved.get("evict", 0) > 0) == swaps
    parameters = [tensor for tensor in trace.tensors if tensor.kind == "parameter"]
    assert moved["gradient"] == sum(parameter.nbytes for parameter in parameters)
    fetched = moved.get("fetch", 0) + moved.get("fetch from nvme", 0)
    assert fetched == _fetched_bytes(trace, ahead_ops)
    kernels = [action for action in _log(framework).ran if action.queue.startswith("kernel")]
    assert len(kernels) == 2 * len(parameters)


def test_steps_repeat_and_so_do_runs() -> None:
    for settings in (PAPER, replace(PAPER, updater="cpu")):
        framework = _open(load_trace("gpt3-large"), settings)
        _, second, third = (framework.step() for _ in range(3))
        assert second == third
        again = _open(load_trace("gpt3-large"), settings)
        again.step()
        count = len(_log(again).transferred)
        assert _log(again).transferred == _log(framework).transferred[:count]
        assert measure(machine_of(), load_trace("gpt3-large"), settings) == third


def test_the_measured_step_is_one_that_repeats() -> None:
    framework = _open(load_trace("gpt3-xl"), PAPER)
    _, second, third, fourth = (framework.step() for _ in range(4))
    assert second != third == fourth
    assert measure(machine_of(), load_trace("gpt3-xl"), PAPER) == third


def test_no_settings_stop_a_step_in_the_smallest_channels() -> None:
    """What fits at all goes on, whoever waits for whom; one byte less is refused."""
    trace = load_trace("gpt-tiny")
    for updater, ahead_ops in product(("module", "cpu"), (0, 20, 1000)):
        settings = FrameworkSettings(updater=updater, ahead_ops=ahead_ops)
        framework = _open(trace, settings, _small(TINY_CHANNEL), overhead_us=1.0)
        framework.step()
        framework.step()
        framework.engine.check()
        gpu = framework.engine.memory("gpu")
        assert gpu.free_bytes == gpu.capacity_bytes
    with pytest.raises(NoRoomError, match=r"cannot hold the gradient of .*word_embeddings"):
        _open(trace, PAPER, _small(TINY_CHANNEL - 1))


# Who has a memory, or the runtime, to itself.


def _overlap(one: Transferred | Ran, other: Transferred | Ran) -> bool:
    return max(one.begin_ns, other.begin_ns) < min(one.end_ns, other.end_ns)


def _any_overlap(some: Sequence[Transferred | Ran], others: Sequence[Transferred | Ran]) -> bool:
    return any(_overlap(one, other) for one in some for other in others)


@pytest.mark.parametrize("updater", ["module", "cpu"])
def test_what_excludes_each_other_never_overlaps(updater: str) -> None:
    settings = FrameworkSettings(updater=updater)
    framework = _open(load_trace("gpt-tiny"), settings, _small(2 * TINY_CHANNEL), overhead_us=5.0)
    framework.step()
    framework.step()
    transfers = [transfer for transfer in _log(framework).transferred if transfer.label != "update"]
    updates: list[list[Transferred | Ran]] = [
        [
            *(action for action in _log(framework).ran if action.queue == f"kernel {channel}"),
            *(
                transfer
                for transfer in _log(framework).transferred
                if transfer.label == "update" and transfer.source == f"module{channel}"
            ),
        ]
        for channel in range(2)
    ]
    for channel in range(2):
        name = f"module{channel}"
        own = [transfer for transfer in transfers if name in (transfer.source, transfer.target)]
        assert own
        assert updates[channel]
        assert not _any_overlap(own, updates[channel])
    assert not any(_overlap(*both) for both in pairwise(transfers))
    assert _any_overlap(transfers, updates[0] + updates[1])


# A step by hand.


def _trace(
    sizes: Sequence[int],
    passes: Sequence[tuple[str, Sequence[int], Sequence[int]]],
    *,
    flops: int = 14 * 10**12,
) -> Trace:
    """Parameters of these bytes, each with two states of as many; a gradient for those that an
    operation makes one of. ``passes``: phase, parameters read, gradients made. Operations take the
    GPU a second each."""
    tensors = [
        Tensor(id=number, nbytes=nbytes, kind="parameter", name=f"p{number}")
        for number, nbytes in enumerate(sizes)
    ]
    gradients: dict[int, int] = {}
    for number in sorted({made_id for _, _, made in passes for made_id in made}):
        for kind in ("optimizer_state", "optimizer_state", "gradient"):
            gradients[number] = len(tensors)
            tensors.append(
                Tensor(id=len(tensors), nbytes=sizes[number], kind=kind, parameter=number)
            )
    ops = tuple(
        Op(
            id=number,
            kind=phase,
            layer=0,
            phase=phase,
            stage=0,
            reads=tuple(read),
            writes=tuple(gradients[gradient] for gradient in made),
            read_bytes=(0,) * len(read),
            write_bytes=(0,) * len(made),
            flops=flops,
        )
        for number, (phase, read, made) in enumerate(passes)
    )
    stages = (Stage(name="layer", phase="forward"),)
    return Trace(name="by hand", tensors=tuple(tensors), ops=ops, layers=("layer",), stages=stages)


def _one_channel(nbytes: int) -> Machine:
    """The platform with all of the module's memory in one channel."""
    machine = machine_of(changes={"module0.capacity_bytes": str(nbytes)})
    return replace(
        machine,
        memories=tuple(memory for memory in machine.memories if memory.name != "module1"),
        links=tuple(link for link in machine.links if link.name != "channel1"),
    )


def test_what_leaves_a_full_channel() -> None:
    """One channel for 7 of 9 tensors, all as large: 0 and 1 are there, and p2; the states of 2 are
    on NVMe. Gradients come in the order 2, 1, 0, and each update is done before the next. The first
    three that leave were never used: no update is done. Then the update of 1 needs room for one
    state, and that of 0 for its two; in the meantime 2 was updated."""
    backward = [("backward", [number], [number]) for number in (2, 1, 0)]
    trace = _trace([4000] * 3, [*(("forward", [number], ()) for number in (0, 1, 2)), *backward])
    settings = replace(PAPER, ahead_ops=0)
    framework = open_framework(_one_channel(28_000), trace, settings, record=True)
    before = len(_log(framework).held)
    assert list(framework.engine.memory("nvme").held) == [(2, "s0"), (2, "s1")]
    framework.step()
    framework.engine.check()
    held = [holding for holding in _log(framework).held[before:] if holding.memory == "nvme"]

    def names(sign: int) -> str:
        keys = (holding.key for holding in held if holding.nbytes * sign > 0)
        return " ".join(f"{number}{name}" for number, name in keys)  # type: ignore[misc]

    assert names(1) == "0s0 0s1 1s0 2p 2s0 2s1"
    assert names(-1) == "2s0 2s1 1s0 0s0 0s1"
    last = [
        transfer.label for transfer in _log(framework).transferred if "fetch" in transfer.label
    ][-1]
    assert last == "fetch"


def test_parameters_are_placed_in_turns() -> None:
    trace = _trace([4000, 8000, 4000, 4000, 12000], [("forward", [0, 1, 2, 3, 4], [])])
    framework = _open(trace)
    channel_of: dict[int, str] = {}
    for channel in range(2):
        held: dict[Any, int] = dict(framework.engine.memory(f"module{channel}").held)
        channel_of |= dict.fromkeys((number for number, _ in held), str(channel))
    assert "".join(channel_of[number] for number in range(5)) == "01010"


def test_frozen_and_shared_weights_and_no_update_phase() -> None:
    """0 has no gradient, and not its size but that of 1 decides how small a channel may be; 1 is
    used by two layers, and its gradient is complete with the second."""
    trace = _trace(
        [40_000, 4000],
        [
            ("forward", [1], []),
            ("forward", [0], []),
            ("forward", [1], []),
            ("backward", [1], [1]),
            ("backward", [0], []),
            ("backward", [], [1]),
        ],
    )
    machine = _one_channel(16_000)
    framework = open_framework(machine, trace, replace(PAPER, ahead_ops=0), record=True)
    framework.step()
    result = framework.step()
    framework.engine.check()
    assert result.moved_bytes == {
        "fetch": 3 * 4000,
        "fetch from nvme": 2 * 40_000,
        "gradient": 4000,
    }
    kernels = [action for action in _log(framework).ran if action.queue == "kernel 0"]
    ends = [action.end_ns for action in _log(framework).ran if action.queue == "gpu"]
    assert len(kernels) == 2
    assert kernels[0].begin_ns > ends[5]
    assert framework.engine.memory("gpu").held == {}
    idle = open_framework(machine, _trace([4000], [("forward", [0], [])]), PAPER).step()
    assert (idle.step_ns, idle.moved_bytes) == (idle.marks_ns["forward"], {"fetch": 4000})


def test_no_parameter_is_updated_before_its_last_use() -> None:
    """The gradient is complete with the second operation, and the third reads the parameter."""
    trace = _trace([4000], [("forward", [0], []), ("backward", [], [0]), ("backward", [0], [])])
    framework = _open(trace)
    framework.step()
    kernel = next(action for action in _log(framework).ran if action.queue.startswith("kernel"))
    ends = [action.end_ns for action in _log(framework).ran if action.queue == "gpu"]
    assert kernel.begin_ns > ends[2]


@pytest.mark.parametrize(
    ("formats", "gradient", "fetched", "kept"),
    [
        # Four blocks of 256 parameters: 1024 codes with four scales.
        ({"gradients": "bf16"}, 2048, 4000, {"p": 4096, "s0": 4096, "s1": 4096}),
        ({"states": "dynamic"}, 4000, 4000, {"p": 4096, "s0": 1040, "s1": 1040}),
        (
            {"gradients": "bf16", "parameters": "bf16", "states": "linear"},
            *(2048, 2048, {"p": 2048, "s0": 1040, "s1": 1040}),
        ),
        ({"copy": "bf16"}, 4000, 2048, {"p": 4096, "p_copy": 2048, "s0": 4096, "s1": 4096}),
        ({"copy": "fp32"}, 4000, 4000, {"p": 4000, "p_copy": 4000, "s0": 4000, "s1": 4000}),
    ],
)
def test_narrow_tensors_are_kept_and_moved_so(
    formats: dict[str, Any], gradient: int, fetched: int, kept: dict[str, int]
) -> None:
    """A parameter of 1000 elements, that the GPU has in FP32."""
    trace = _trace([4000], [("forward", [0], []), ("backward", [0], [0])])
    framework = _open(trace, replace(PAPER, formats=Formats(**formats)))
    result = framework.step()
    framework.engine.check()
    assert result.moved_bytes == {"fetch": fetched, "gradient": gradient}
    held = {(0, name): nbytes for name, nbytes in kept.items()}
    assert framework.engine.memory("module0").held == held
    on_gpu = [holding.nbytes for holding in _log(framework).held if holding.memory == "gpu"]
    assert {abs(size) for size in on_gpu} == {4000}


# What cannot be.


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("updater", "gpu", "did you mean cpu"), ("ahead_ops", -1, "expected an integer of 0 or more")],
)
def test_settings_that_cannot_be_are_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value!r}: {message}"):
        FrameworkSettings(**{name: value})  # type: ignore[arg-type]


def test_formats_that_cannot_be_are_refused() -> None:
    narrow = Formats(gradients="bf16")
    for updater, config in (("cpu", narrow), ("module", replace(narrow, skip_not_finite=True))):
        with pytest.raises(ValueError, match=r"formats is .*bf16.*: expected FP32 for the updater"):
            FrameworkSettings(updater=updater, formats=config)


def test_memories_that_are_too_small_are_refused() -> None:
    trace = _trace([4000, 4000], [("forward", [0, 1], []), ("backward", [0, 1], [0, 1])])
    with pytest.raises(NoRoomError, match=r"memory 'module0' of 15999 .* p0 .*4000 and 12000"):
        _open(trace, PAPER, _small(15_999))
    with pytest.raises(NoRoomError, match=r"'gpu': 4000 bytes never fit .* raise gpu"):
        _open(trace, PAPER, {"gpu.capacity_bytes": "3999"}).step()
    # Each has room for itself, but the operation needs both parameters and gradients.
    message = (
        "memory 'gpu' of 15999 .* needs 4000 beside the 12000 that .* raise gpu.capacity_bytes"
    )
    with pytest.raises(DeadlockError, match=message):
        _open(trace, PAPER, {"gpu.capacity_bytes": "15999"}).step()
    _open(trace, PAPER, {"gpu.capacity_bytes": "16000"}).step()
    with pytest.raises(NoRoomError, match="memory 'nvme'"):
        _open(load_trace("gpt3-large"), PAPER, {"nvme.capacity_bytes": "1000"})
    with pytest.raises(MachineError, match="module2"):
        machine_of(changes={"module2.capacity_bytes": "1"})


def _random_step(random: Random, count: int) -> Trace:
    """Operations that read and write parameters, their gradients, and what else there is."""
    tensors: list[Tensor] = []
    for _ in range(count):
        kind = random.choice(("parameter", "parameter", "activation", "temporary", "input"))
        number, nbytes = len(tensors), 4 * random.randrange(1, 1000)
        tensors.append(Tensor(id=number, nbytes=nbytes, kind=kind, name=str(number)))
        if kind == "parameter" and random.random() < 0.8:
            more = {"kind": "gradient", "parameter": number}
            tensors.append(Tensor(id=number + 1, nbytes=nbytes, **more))
    forward = [tensor.id for tensor in tensors if tensor.kind != "gradient"]
    made = [tensor.id for tensor in tensors if tensor.kind not in ("parameter", "input")]
    ops = []
    for number in range(2 * count):
        phase = PHASES[number // count]
        some = forward if phase == "forward" else range(len(tensors))
        reads = random.sample(some, min(len(some), random.randrange(3)))
        can = [number for number in made if phase == "backward" or number in forward]
        writes = random.sample(can, min(len(can), random.randrange(2)))
        no_bytes = {"read_bytes": (0,) * len(reads), "write_bytes": (0,) * len(writes)}
        ops.append(
            Op(id=number, kind=phase, layer=0, phase=phase, stage=0, reads=tuple(reads),
               writes=tuple(writes), flops=random.choice((0, 10**9)), **no_bytes)
        )  # fmt: skip
    stages = (Stage(name="layer", phase="forward"),)
    return Trace(
        name="random", tensors=tuple(tensors), ops=tuple(ops), layers=("layer",), stages=stages
    )


def test_the_least_of_the_gpus_memory_is_enough_and_no_byte_less() -> None:
    for seed in range(300):
        random = Random(seed)
        trace, ahead_ops = _random_step(random, random.randrange(1, 20)), random.randrange(6)
        least, op = least_gpu_bytes(trace, ahead_ops)
        settings = replace(PAPER, ahead_ops=ahead_ops)
        assert op < len(trace.ops)
        for short in range(2 if least else 0):
            changes = {"gpu.capacity_bytes": str(least - short)}
            framework = _open(trace, settings, changes)
            with (
                pytest.raises((NoRoomError, DeadlockError), match="gpu") if short else nullcontext()
            ):
                framework.step()
                framework.step()


# The paper's figures.


@pytest.fixture(scope="module")
def table_6() -> Experiment:
    return table6(Runs())


def test_table_6_comes_out(table_6: Experiment) -> None:
    for name, claim in table_6.claims.items():
        row, _, model = name.rpartition(", ")
        assert claim.band == (0.05 if "speedup" in row else 0.10)
        fitted = model in PASSES and "peak" not in row
        assert claim.mark == ("calibrated" if fitted else "predicted")
        assert claim.verdict == "met"
    assert len(table_6.claims) == 5 * 5


def test_the_page_has_the_figures_of_the_command(table_6: Experiment) -> None:
    path = Path(__file__).parents[3] / "docs" / "papers" / "axdimm.md"
    kept = path.read_text().splitlines()
    tables = {"table5": table5(Runs()), "table6": table_6}
    made = page("", tables, {}, ()).splitlines()
    rows = [line for line in made if line.startswith("|")]
    assert len(rows) == 4 + 3 + 7
    for row in rows:
        assert row in kept, f"{row}: run `make reproduce PAPER=axdimm ARGS='--out docs/papers'`"


PASSES = {
    "gpt3-large": {"cpu": (0.78, 8.01), "module": (0.80, 4.60)},
    "gpt3-13b": {"cpu": (25.24, 221.62), "module": (26.21, 166.25)},
}
"""Seconds of the forward and the backward pass by who updates, in Table 6: what rates are fitted
to."""


@pytest.mark.soak
def test_the_rates_are_where_the_fit_ends() -> None:
    """5 % more or less of any makes the passes that were fitted come out worse."""

    def cost(rates: Rates, enough: float = inf) -> float:
        """A sum of squares: what is left out once there is enough makes it no smaller."""
        error = 0.0
        for model, passes in PASSES.items():
            for updater, papers in passes.items():
                if error <= enough:
                    step = measure(
                        machine_of(rates),
                        load_trace(model),
                        FrameworkSettings(updater=updater),
                        overhead_us=rates.update_overhead_us,
                    )
                    forward_ns = step.marks_ns["forward"]
                    both = zip((forward_ns, step.step_ns - forward_ns), papers, strict=True)
                    error += sum(log(ns / 1e9 / paper) ** 2 for ns, paper in both)
        return error

    best = cost(PAPER_RATES)
    for field in fields(Rates):
        for factor in (0.95, 1.05):
            value = factor * getattr(PAPER_RATES, field.name)
            assert cost(replace(PAPER_RATES, **{field.name: value}), best) > best, (
                field.name,
                factor,
            )
