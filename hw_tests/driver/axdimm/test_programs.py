"""Random programs on both channels: the RTL and the golden device make the same of each."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from hw_tests.driver.axdimm.programs import STEPS, Program, open_device, outcome
from hw_tests.driver.transports import SpoilingTransport
from sw_driver.axdimm.transport import Transport

CORPUS = Path(__file__).with_name("programs.json")


EDGES = (1, 15, 16, 17, 63, 64, 65, 128, 256, 592, 593, 600, 601, 2400)
"""Numbers about which lines, allocations and bursts end; drawn as often as all others."""


def numbers(most: int) -> st.SearchStrategy[int]:
    edges = [edge for edge in EDGES if edge <= most]
    return st.integers(0, most) | st.sampled_from(edges) if most > 100 else st.integers(0, most)


STEP = st.one_of(
    *(
        st.tuples(st.just(name), *map(numbers, most)).map(list)
        for name, most in STEPS.items()
        for _ in range(3 if name in ("read", "write", "run") else 1)
    )
)
# Lists of lists are longer than lists.
PROGRAM = st.lists(st.lists(STEP, min_size=1, max_size=9), min_size=1, max_size=6).map(
    lambda parts: [step for part in parts for step in part]
)


Opened = Callable[[], Transport]


def rtl() -> Transport:
    return open_device("rtl")


def assert_same(program: Program, modes: str, opened: Opened = rtl) -> None:
    """Have a program end alike on the golden device and on another one."""
    outcomes = []
    for transport in (open_device("golden"), opened()):
        try:
            outcomes.append(outcome(transport, program, modes))
        finally:
            transport.close()
    text = json.dumps({"about": "", "modes": modes, "program": program})
    assert outcomes[1] == outcomes[0], f"{text}\nis to be kept in {CORPUS.name}"


def search(count: int, number: int, opened: Opened = rtl) -> None:
    """Run programs drawn from a seed; raise for the shortest found that does not end alike."""

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[*HealthCheck],
    )
    @given(PROGRAM, st.sampled_from(["wait", "raise"]))
    def run(program: Program, modes: str) -> None:
        assert_same(program, modes, opened)

    run()


@pytest.mark.parametrize("kept", json.loads(CORPUS.read_text()), ids=lambda kept: kept["about"])
def test_programs_that_were_kept(kept: dict[str, Any]) -> None:
    assert_same(kept["program"], kept["modes"])


def test_drawn_programs() -> None:
    search(20, 1)


@pytest.mark.soak
def test_many_drawn_programs(pytestconfig: pytest.Config) -> None:
    """For a minute, or for half the suite's time if that is less."""
    number = int(os.environ.get("NEARMEM_TEST_SEED", "1"))
    seconds = min(60, (pytestconfig.option.soak or 120) / 2)
    search(1, 1)  # builds the simulator
    end = time.monotonic() + seconds
    programs = 0
    while time.monotonic() < end:
        search(25, number + programs)
        programs += 25
    assert programs


def test_a_fault_that_is_planted_is_found_and_its_program_short() -> None:
    """A bit of the other channel flips whenever a run ends."""

    def faulty() -> Transport:
        return SpoilingTransport(open_device("golden"), channel=1, address=0x1000)

    with pytest.raises(AssertionError, match="to be kept") as caught:
        search(100, 1, faulty)
    program = json.loads(str(caught.value).partition("\n")[0])["program"]
    assert [name for name, *_ in program] in (["run"], ["start"])
