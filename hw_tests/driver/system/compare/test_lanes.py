"""Lanes of a step, by hand: what waits for what, and what runs beside it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from sw_driver.machine import Device, Machine, Memory, assumed
from sw_driver.machine.parts import link
from sw_driver.system.compare.lanes import alone
from sw_driver.system.compare.system import CannotRunError
from sw_driver.workload.offloading import MOVE
from sw_driver.workload.trace import Op, Stage, Tensor, Trace


def device(name: str, memory: str, gb_per_s: float, units: int | None = None) -> Device:
    """Return a device whose memory is the bound."""
    return Device(
        name=name,
        memory=memory,
        tflop_per_s=assumed(1000, "no bound"),
        gb_per_s=assumed(gb_per_s, "a round number"),
        launch_ns=assumed(0, "none"),
        multiprocessors=units and assumed(units, "a round number"),
    )


def machine(units: int | None = None, *, drives: bool = True) -> Machine:
    """Return a machine of 1 byte a ns on the GPU and its link, and half of it elsewhere."""
    names = ("gpu", "host", *["drive"] * drives)
    half, one, none = assumed(0.5, "half"), assumed(1, "one"), assumed(0, "none")
    room = assumed(1 << 30, "enough")
    return Machine(
        name="by hand",
        memories=tuple(Memory(name=name, capacity_bytes=room) for name in names),
        devices=(
            device("gpu", "gpu", 1, units),
            device("cpu", "host", 0.5),
            *[device("drive", "drive", 0.5)] * drives,
        ),
        links=(
            link("pcie", "port", "gpu", one, assumed(10, "a round number")),
            *[link("drive", "host", "drive", half, none, "half")] * drives,
            link("peers", "gpu", "fabric", one, none),
        ),
        junctions=("port", "fabric"),
    )


def trace(places: Mapping[str, str], *ops: tuple[str, str, str], gpus: int = 1) -> Trace:
    """Return a step of tensors of 100 bytes by name, and of operations that read and write them.

    An operation is a kind, and the names that it reads and writes as words.
    """
    ids = {name: number for number, name in enumerate(places)}
    made = []
    for number, (kind, reads, writes) in enumerate(ops):
        read, written = ([ids[name] for name in text.split()] for text in (reads, writes))
        made.append(
            Op(
                id=number, kind=kind, layer=0, phase="update" if kind == "adam" else "backward",
                stage=1, reads=tuple(read), writes=tuple(written),
                read_bytes=(100,) * len(read) if kind in (MOVE, "all_gather") else (0,) * len(read),
                write_bytes=(100,) * len(written), flops=0,
            )
        )  # fmt: skip
    tensors = (
        Tensor(id=ids[name], nbytes=100, kind="temporary", place=place, freed=len(ops))
        for name, place in places.items()
    )
    stages = tuple(Stage(name="layer", phase=phase) for phase in ("forward", "backward"))
    return Trace(
        name="by hand", tensors=tuple(tensors), ops=tuple(made), layers=("layer",), stages=stages,
        origin={"gpus": gpus},
    )  # fmt: skip


def test_moves_and_cores_work_beside_the_gpu() -> None:
    places = {"g": "gpu", "x": "gpu", "p": "gpu", "h": "host", "q": "host"}
    step = trace(
        places,
        ("mm", "", "g"),  # GPU 0 to 100
        (MOVE, "g", "h"),  # from the GPU 100 to 210
        ("mm", "", "x"),  # GPU 100 to 200
        ("adam", "h", "q"),  # CPU 210 to 410
        (MOVE, "q", "p"),  # to the GPU 410 to 520
    )
    made = alone(step, machine())
    assert made.step_ns == 520
    assert made.busy_ns == {"gpu": 200, "from the GPU": 110, "cpu": 200, "to the GPU": 110}
    assert made.parts_ns == {"computing": 200, "recomputing": 0, "updating": 320}
    assert made.peak_bytes == {"gpu": 300, "host": 200}
    spans = [(span.lane, span.begin_ns, span.end_ns) for span in made.spans]
    assert spans == [
        ("gpu", 0, 200),
        ("from the GPU", 100, 210),
        ("cpu", 210, 410),
        ("to the GPU", 410, 520),
    ]


def test_a_move_begins_where_the_program_has_it() -> None:
    """Not as early as its bytes are there, or a prefetch would take any memory."""
    step = trace(
        {"x": "gpu", "a": "host", "b": "gpu"},
        ("mm", "", "x"),  # 0 to 100
        (MOVE, "a", "b"),  # 100 to 210
    )
    assert alone(step, machine()).step_ns == 210


def test_the_gpu_waits_before_it_overwrites_what_leaves() -> None:
    step = trace(
        {"g": "gpu", "h": "host", "i": "host"},
        ("mm", "", "g"),  # 0 to 100
        (MOVE, "g", "h"),  # 100 to 210
        ("mm", "", "g"),  # 210 to 310
        (MOVE, "g", "i"),  # 310 to 420
    )
    assert alone(step, machine()).step_ns == 420


def test_a_drive_reads_or_writes_and_may_compute() -> None:
    step = trace(
        {"a": "host", "b": "host", "c": "drive", "d": "drive", "e": "drive"},
        (MOVE, "a", "d"),  # drive 0 to 200
        (MOVE, "c", "b"),  # drive 200 to 400
        ("adam", "d", "e"),  # in the drive 200 to 400
    )
    made = alone(step, machine())
    assert made.step_ns == 400
    assert made.busy_ns == {"gpu": 0, "drive": 400, "in the drive": 200}
    with pytest.raises(CannotRunError, match=r"link.*drive"):
        alone(step, machine(drives=False))


def test_a_collective_takes_multiprocessors() -> None:
    """Of two GPUs each sends a half: 50 ns, in which an operation has half of 48 units."""
    step = trace(
        {"s": "gpu", "whole": "gpu", "x": "gpu"},
        ("all_gather", "s", "whole"),
        ("mm", "", "x"),
        gpus=2,
    )
    assert alone(step, machine(48)).busy_ns == {"gpu": 125, "peers": 50}
    assert alone(step, machine()).busy_ns == {"gpu": 100, "peers": 50}


def test_a_collective_that_waits_for_a_move_takes_none_before_it_begins() -> None:
    """It runs from 110 to 160; an operation of 200 ns has half of the GPU in that time."""
    step = trace(
        {"a": "host", "s": "gpu", "whole": "gpu", "x": "gpu", "y": "gpu"},
        (MOVE, "a", "s"),
        ("all_gather", "s", "whole"),
        ("mm", "", "x y"),
        gpus=2,
    )
    assert alone(step, machine(48)).busy_ns == {"gpu": 225, "to the GPU": 110, "peers": 50}


def test_a_move_that_waits_for_another_has_no_latency_of_its_own() -> None:
    places = {"g": "gpu", "h": "host", "i": "host", "j": "host"}
    step = trace(places, *((MOVE, "g", name) for name in "hij"))
    assert alone(step, machine()).step_ns == 10 + 3 * 100
