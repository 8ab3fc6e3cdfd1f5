"""Spans of a step: what an engine noted, cut to the step, and merged."""

from __future__ import annotations

from collections.abc import Sequence

from sw_driver.machine.tiny import TINY
from sw_driver.system.engine import Engine
from sw_driver.system.outcome import Span, merged, outcome_of, spans_of
from sw_driver.system.work import DeviceWork, Flow


def _plain(spans: Sequence[Span]) -> list[tuple[str, str, int, int]]:
    return [(span.lane, span.name, span.begin_ns, span.end_ns) for span in spans]


def test_work_transfers_and_access_have_lanes_from_the_begin_of_the_step() -> None:
    engine = Engine(TINY)
    engine.queue("one").execute(900, "before", category="forward")
    engine.run()
    before = outcome_of(engine)
    assert _plain(before.spans) == [("one", "forward", 0, 900)]
    copy = engine.transfer(2000, "host", "gpu", "weights")
    work = DeviceWork(500, [Flow(1000, "host", "gpu"), Flow(1000, "gpu", "gpu")])
    engine.queue("gpu").work(lambda: work, "layer", [copy], "backward")
    engine.queue("copies").transfer(200, "gpu", "host", "gradient", [copy])
    engine.queue("one").execute(0, "none")
    engine.run()
    made = outcome_of(engine, before)
    lanes = [(lane, name, begin) for lane, name, begin, _ in _plain(made.spans)]
    assert lanes == [
        ("host to gpu", "transfer", 0),
        ("gpu to host", "transfer", 1100),
        ("host to gpu", "access", 1100),
        ("gpu", "backward", 1100),
    ]
    assert max(span.end_ns for span in made.spans) == made.step_ns
    assert _plain(spans_of(engine, 1000, 2000)) == [("host to gpu", "transfer", 0, 1000)]


def test_neighbours_of_one_name_are_joined_across_gaps_that_nobody_sees() -> None:
    times = ((0, 9), (10, 19), (12, 15), (40, 50))
    spans = [Span(lane="gpu", name="forward", begin_ns=a, end_ns=b) for a, b in times]
    spans.append(Span(lane="cpu", name="update", begin_ns=20, end_ns=30))
    assert _plain(merged(spans, 42_001)) == [("gpu", "forward", 0, 50), ("cpu", "update", 20, 30)]
    assert _plain(merged(spans, 42_000)) == [
        ("gpu", "forward", 0, 19), ("cpu", "update", 20, 30), ("gpu", "forward", 40, 50),
    ]  # fmt: skip
    other = Span(lane="gpu", name="backward", begin_ns=19, end_ns=20)
    assert len(merged([*spans, other], 10**9)) == 4
