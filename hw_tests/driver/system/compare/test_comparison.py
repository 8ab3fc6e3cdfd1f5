"""Rows of a comparison: who runs, why others do not, and what of a machine and a step is varied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from hw_tests.driver.system.sentinel.steps import a_step
from sw_driver.machine import Machine
from sw_driver.simulator.workers import processes
from sw_driver.system.compare.bases import BASES, machine_of
from sw_driver.system.compare.comparison import Row, TrainedSteps, compare, size
from sw_driver.system.compare.device import RECOMPUTED
from sw_driver.system.compare.page import (
    _memory,
    _numbered,
    _ranges,
    advice,
    page,
    table,
)
from sw_driver.system.compare.summary import Compared, bound, reasons, summary_table, verdict
from sw_driver.system.compare.system import (
    _FORMATS,
    CannotRunError,
    Need,
    Needs,
    System,
    all_parts_ns,
    always,
)
from sw_driver.system.compare.systems import (
    ADAPTERS,
    DEFAULT,
    DRAWN,
    IN_USE,
    SYSTEMS,
    WITHOUT_HARDWARE,
)
from sw_driver.system.compare.variation import FACTORS, outcomes, varied
from sw_driver.system.outcome import Outcome
from sw_driver.workload import Trace, load_trace
from sw_driver.workload.batches import batched
from sw_driver.workload.training import Training

GB = 1 << 30
STEP = a_step(1, (0, "p0 > a0"), (1, "a0 p0 > g0"), (-1, "g0 p0 > p0"), sizes={
    "p0": 4 * GB, "a0": GB, "g0": 4 * GB,
})  # fmt: skip
"""Of 1024**3 parameters."""
MACHINE = BASES["v100"].override({"gpu.capacity_bytes": str(9 * GB)})


def a_system(
    name: str,
    needs: Callable[[Trace, Machine], Needs],
    outcome: Outcome | str,
    mark: str = "predicted",
) -> System:
    def run(trace: Trace, machine: Machine) -> Outcome:
        if isinstance(outcome, str):
            raise CannotRunError(outcome)
        return outcome

    return System(name=name, mark=mark, assumptions=(f"As {name}.",), needs=needs, run=run)


def outcome(step_ns: int, gpu_bytes: int) -> Outcome:
    return Outcome(
        step_ns=step_ns,
        parts_ns={"computing": 6 * 10**8, "updating": 10**8},
        peak_bytes={"gpu": gpu_bytes, "host": 16 * GB},
        busy_ns={"gpu": 8 * 10**8, "cpu": 2 * 10**8},
    )


def needs(**nbytes: tuple[int, int]) -> Callable[[Trace, Machine], Needs]:
    made = {
        name: Need(nbytes=all_of, growing_bytes=all_of - own)
        for name, (all_of, own) in nbytes.items()
    }
    return lambda trace, machine: made


def ours() -> list[Row]:
    def refuses(trace: Trace, machine: Machine) -> Needs:
        raise CannotRunError("it has no such part")

    fits = needs(gpu=(5 * GB, GB), host=(16 * GB, 0))
    systems = (
        a_system("fast", fits, outcome(10**9, 8 * GB)),
        a_system("small", needs(gpu=(2 * GB, 0)), outcome(15 * 10**8, 3 * GB), "calibrated"),
        a_system("large", needs(gpu=(10 * GB, 0), host=(300 * GB, 0)), ""),
        a_system("late", needs(gpu=(GB, 0)), "The plan has no room."),
        a_system("other", refuses, ""),
    )
    return compare(STEP, MACHINE, systems, lambda _: None)


def test_a_row_says_what_a_system_takes_or_why_it_cannot_run() -> None:
    fast, small, large, late, other = (row.describe() for row in ours())
    assert fast == {
        "system": "fast",
        "step_ns": 10**9,
        "memory_bytes": {"gpu": 8 * GB, "host": 16 * GB},
        "least_bytes": {"gpu": 5 * GB, "host": 16 * GB},
        "parts_ns": {
            "computing": 6 * 10**8, "recomputing": 0, "updating": 10**8, "waiting": 3 * 10**8,
        },
        # A V100 takes 250 W, the cores 105.
        "energy_j": pytest.approx(0.8 * 250 + 0.2 * 105),
        # (9 - 1) / (5 - 1) times as large a model.
        "largest_parameters": 2 * GB,
        "mark": "predicted",
        "reason": "",
    }  # fmt: skip
    assert small["largest_parameters"] == 4.5 * GB
    assert large["step_ns"] is None
    assert large["parts_ns"] is None
    assert large["memory_bytes"] == {"gpu": 10 * GB, "host": 300 * GB}
    assert "10.0 GiB of GPU memory" in large["reason"]
    assert "300.0 GiB of host memory" in large["reason"]
    assert late["reason"] == "The plan has no room."
    assert (other["reason"], other["memory_bytes"]) == ("it has no such part", {})


def test_what_is_fixed_must_have_room_in_a_model_of_any_size() -> None:
    fits = needs(gpu=(10 * GB, 10 * GB), host=(16 * GB, 0))
    (row,) = compare(STEP, MACHINE, [a_system("fixed", fits, "")], lambda _: None)
    assert row.largest_parameters == 0


def test_a_larger_input_is_no_larger_model() -> None:
    trace = load_trace("gpt-tiny")
    number = next(tensor.id for tensor in trace.tensors if tensor.kind == "input")
    larger = [*trace.tensors]
    larger[number] = replace(larger[number], nbytes=GB)
    for system in SYSTEMS:
        before, after = (
            compare(step, MACHINE, [system], lambda _: None)[0].needs
            for step in (trace, replace(trace, tensors=tuple(larger)))
        )
        for place, need in after.items():
            assert need.growing_bytes == before[place].growing_bytes, system.name


def test_a_table_shows_rows_and_who_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sw_driver.system.compare.page.WITHOUT_HARDWARE", ("small",))
    rows = ours()
    assumed = _numbered(["0", "1", "2", "3"], [rows])
    assert assumed[4:] == ["As fast.", "As small.", "As large.", "As late."]
    assert table(rows, assumed).rows == [
        ["fast", "1.0 s", "8.0 GiB", "host 16.0 GiB", "2.1 bn", "221.0 J", "5"],
        ["small", "1.5 s c", "3.0 GiB", "host 16.0 GiB", "4.8 bn", "221.0 J", "6"],
        ["large", "cannot", "10.0 GiB", "host 300.0 GiB", "916.3 M", "", "7"],
        ["late", "cannot", "1.0 GiB", "", "9.7 bn", "", "8"],
        ["other", "cannot", "", "", "", "", ""],
    ]
    assert [reason.split(":")[0] for reason in reasons(rows)] == ["large", "late", "other"]
    alone = outcome(8 * 10**8, 9 * GB)
    last = "With everything in the GPU's memory: 800.0 ms, with gpu 9.0 GiB, host 16.0 GiB"
    assert advice(rows, alone) == [
        "Fastest: fast, 1.0 s, with gpu 8.0 GiB, host 16.0 GiB",
        "Fastest without additional hardware: small, 1.5 s, with gpu 3.0 GiB, host 16.0 GiB",
        "Least GPU memory: small, 1.5 s, with gpu 3.0 GiB, host 16.0 GiB",
        last,
    ]
    needed = "Smallest need: late, gpu 1.0 GiB"
    assert advice(rows[2:4], alone) == ["No system can run it", needed, last]
    assert advice(rows[4:], alone) == ["No system can run it", last]
    steps = TrainedSteps(STEP, Training())
    cases = [
        Compared(network=name, words=words, steps=steps, machine=MACHINE, gpus=1, rows=rows)
        for name, words in (("a", "fp32"), ("b", "as captured"))
    ]
    made = page("nearmem compare a b", cases, {}, [], assumed)
    assert "Times of a step on v100 with 9.0 GiB, fp32 or as captured; a system" in made
    assert "## b, as captured\n\nb, as captured, 1 x v100 with 9.0 GiB: fits plainly" in made
    assert "|large|||" in made
    assert made.count("- late: The plan has no room.\n") == 2


def test_a_verdict_names_who_is_the_fastest_with_and_without_hardware(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A billion parameters, so that the smaller one is at the end."""
    monkeypatch.setattr("sw_driver.system.compare.summary.WITHOUT_HARDWARE", ("small", "late"))
    batch = replace(STEP, origin={"batch": 3})
    steps = TrainedSteps(batch, Training())
    case = Compared(network="a", words="fp32", steps=steps, machine=MACHINE, gpus=1, rows=ours())
    assert verdict(case) == (
        "a, fp32, 1 x v100 with 9.0 GiB: fits plainly; fastest that fits: small at 1.50 s, "
        "2.00 samples/s; with added hardware: fast at 1.00 s, 3.00 samples/s; least GPU memory: "
        "small, 3.0 GiB."
    )
    made = summary_table(case)
    gpu = MACHINE.device("gpu")
    limit = "GPU FLOP/s" if gpu.compute_ns(STEP.ops[0]) >= gpu.cost(STEP.ops[0]) else "GPU memory"
    assert made.rows == [
        ["fast", "yes", "1.00 s", "3.00", "8.00", "host 16.0", "73.7 J", limit],
        ["small c", "yes", "1.50 s", "2.00", "3.00", "host 16.0", "73.7 J", "CPU"],
        ["large", "no", "", "", "10.0", "host 300", "", ""],
        ["late", "no", "", "", "1.00", "", "", ""],
        ["other", "no", "", "", "", "", "", ""],
    ]
    assert made.caption == "Memory in GiB; energy a sample; c: calibrated to the paper."
    none = replace(case, rows=case.rows[2:])
    assert verdict(none).endswith(
        "fits plainly; no system can run it; smallest need: late, 1.0 GiB of GPU memory."
    )


@pytest.mark.parametrize(
    ("parts", "busy", "words"),
    [
        ({"computing": 60, "updating": 30}, {}, "GPU FLOP/s"),
        ({"computing": 30, "updating": 60}, {"cpu": 50, "to the GPU": 9}, "CPU"),
        ({"computing": 30, "updating": 10}, {"drive": 40, "from the GPU": 55}, "PCIe"),
        ({"computing": 30, "recomputing": 31, "updating": 32}, {"peers": 99}, "GPU FLOP/s"),
        ({"computing": 30}, {"gpu": 99}, "waits"),
    ],
)
def test_the_largest_part_of_a_step_bounds_it(
    parts: dict[str, int], busy: dict[str, int], words: str
) -> None:
    made = Outcome(step_ns=100, parts_ns=parts, busy_ns=busy, peak_bytes={"gpu": GB})
    (row,) = compare(STEP, MACHINE, [a_system("one", needs(), made)], lambda _: None)
    slow = MACHINE.override({"gpu.tflop_per_s": "1e-6"})
    assert bound(row, load_trace("gpt-tiny"), slow) == words


def test_what_runs_again_is_its_share_of_what_is_computed() -> None:
    """Operations 0 and 1 of the passes cost the same, the update is none of them."""
    system = a_system("one", needs(gpu=(GB, 0)), outcome(10**9, GB))
    again = replace(STEP, origin={"recomputed": [0]})
    (row,) = compare(again, MACHINE, [system], lambda _: None)
    assert row.assumptions == ("As one.", RECOMPUTED)
    costs = [MACHINE.device("gpu").cost(op) for op in STEP.ops[:2]]
    again = 6 * 10**8 * costs[0] // sum(costs)
    assert row.outcome is not None
    assert all_parts_ns(row.outcome) == {
        "computing": 6 * 10**8 - again,
        "recomputing": again,
        "updating": 10**8,
        "waiting": 3 * 10**8,
    }


@pytest.mark.parametrize(
    ("nbytes", "message"),
    [(0, "0.0 B"), (1023, "1,023.0 B"), (1024, "1.0 KiB"), (24 << 30, "24.0 GiB"),
     (3 << 50, "3,072.0 TiB")],
)  # fmt: skip
def test_sizes_are_as_memories_are_sold(nbytes: int, message: str) -> None:
    assert size(nbytes) == message


def test_places_without_bytes_are_not_named() -> None:
    assert _memory({"gpu": GB, "host": 0, "memory_node": 2 * GB}) == (
        "gpu 1.0 GiB, memory node 2.0 GiB"
    )


def test_numbers_in_a_row_are_a_range() -> None:
    assert _ranges([7, 9, 10, 11, 13, 14]) == "7, 9-11, 13-14"


def test_every_system_has_its_place() -> None:
    names = [system.name for system in SYSTEMS]
    assert len(set(names)) == len(names)
    assert {*WITHOUT_HARDWARE} < {*names}
    assert [name for name in names if name in DRAWN] == [*DRAWN]
    assert {*DEFAULT} | {*IN_USE} | {*ADAPTERS} <= {*names}
    assert not {*IN_USE} & {*ADAPTERS}
    several = {"DDP", "ZeRO-1", "ZeRO-2", "FSDP (ZeRO-3)"}
    on_several = [one.name for one in SYSTEMS if one.several_gpus and one.name in DEFAULT]
    assert max(len({*DEFAULT} - several), len(on_several)) <= 12
    own = (text for system in SYSTEMS for text in system.assumptions)
    texts = {text if isinstance(text, str) else text[0] for text in own}
    for assumption in {*texts, *_FORMATS.values(), *always(STEP, MACHINE)}:
        assert assumption[0].isupper(), assumption
        assert assumption.endswith("."), assumption


def test_memory_links_and_batch_are_varied_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[TrainedSteps, Machine]] = []

    @contextmanager
    def here(jobs: int, work: Any) -> Iterator[Any]:
        assert work is outcomes

        def submit(both: tuple[TrainedSteps, Machine]) -> Future[list[None]]:
            seen.append(both)
            future: Future[list[None]] = Future()
            future.set_result([None])
            return future

        yield submit

    monkeypatch.setattr("sw_driver.system.compare.variation.processes", here)
    base, trace = machine_of("h100x8"), load_trace("gpt-tiny")
    training, reported = Training(gpus=8), [outcome(10**9, 1)]
    steps = TrainedSteps(trace, training)
    variations = varied(steps, base, reported, lambda _: None)
    # 359,912 bytes at the peak: from 22 to 720 kB.
    sizes = [5 << n for n in range(13, 18)]
    assert [*variations["memory"]] == [*sizes, 80 << 30]
    assert [*variations["links"]] == [*variations["batch"]] == [*FACTORS]
    assert (
        variations["links"][1]
        == variations["memory"][80 << 30]
        == variations["batch"][1]
        == reported
    )
    memory, links, batch = seen[:5], seen[5:8], seen[8:]
    changes = [{"gpu.capacity_bytes": size} for size in sizes]
    rates = [
        f"{link}.{way}_gb_per_s"
        for link in ("pcie", "cxl", "node", "peers")
        for way in ("read", "write")
    ]
    values = [base.keys[rate].value for rate in rates]  # pyright: ignore[reportAttributeAccessIssue]
    for (step, machine), change in zip(memory, changes, strict=True):
        assert step.usual == training.apply(trace)
        assert machine == base.override({key: str(value) for key, value in change.items()})
    for (step, machine), factor in zip(links, (0.5, 2, 4), strict=True):
        assert step.usual == training.apply(trace)
        now = [machine.keys[rate].value for rate in rates]  # pyright: ignore
        assert now == pytest.approx([factor * number for number in values])
        assert machine.memories == base.memories
    for (step, machine), factor in zip(batch, (0.5, 2, 4), strict=True):
        assert machine is base
        assert step.usual == training.apply(batched(trace, factor))


def test_a_case_in_another_process_is_as_one_here() -> None:
    trace = load_trace("word2vec")
    with processes(1, outcomes) as submit:
        assert submit((trace, MACHINE)).result() == outcomes((trace, MACHINE))


def test_parts_and_places_that_there_are_not_are_refused() -> None:
    with pytest.raises(ValueError, match="parts_ns take 3: expected step_ns, 2, at most"):
        Outcome(step_ns=2, parts_ns={"computing": 1, "updating": 2})
    for made, message in (
        (Outcome(step_ns=1, parts_ns={"waiting": 1}), "part is 'waiting': "),
        (Outcome(step_ns=1, peak_bytes={"node": 1}), "place is 'node': "),
    ):
        with pytest.raises(ValueError, match=message):
            compare(STEP, MACHINE, [a_system("one", needs(), made)], lambda _: None)
