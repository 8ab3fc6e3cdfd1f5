"""Plans for steps, worked out by hand."""

from __future__ import annotations

from math import inf

from sw_driver.system.sentinel.steps import Ask, StepRecord

ROUND = StepRecord(
    functions=["mm"] * 3,
    slots=[(0,), (1,), (2,)],
    made=[()] * 3,
    nbytes=[10] * 3,
    visits=[0, 1, 2],
)
"""Three layers with their parameters, of which two fit."""

THERE_AND_BACK = StepRecord(
    functions=["mm"] * 5,
    slots=[(), (0,), (1,), (1,), (0,)],
    made=[(0,), (1,), (2,), (3,), ()],
    nbytes=[10] * 4,
    born={0: 0, 1: 1, 2: 2, 3: 3},
    freed={2: 3, 1: 4, 3: 4},
    visits=[0, 1, 2, 3, 4],
)
"""Activations that are used in reverse; 2 and 3 live short, and 0 is freed behind the step."""


def test_uses_go_on_in_the_next_step_for_what_lasts() -> None:
    assert [ROUND.next_use(1, index) for index in range(3)] == [1, 1, 4]
    assert [ROUND.last_use(1, number) for number in (1, 2, 4)] == [-2, 1, 1]
    assert [THERE_AND_BACK.next_use(0, index) for index in range(6)] == [0, 1, 4, 4, 4, inf]
    assert THERE_AND_BACK.last_use(0, 4) == 1
    assert THERE_AND_BACK.last_use(0, 0) == inf


def test_parameters_come_a_layer_ahead() -> None:
    ahead = {0: [Ask(1, 1)], 1: [Ask(2, 2)], 2: [Ask(3, 0)]}
    as_there_is_room, intervals, whole = ROUND.plans(20, 61, 1e9)
    # With two there, 0 and 2 from the step before, 1 comes for 0, the last to be used.
    assert as_there_is_room.leaving == {0: [0]}
    assert as_there_is_room.asks == ahead
    assert intervals.name == "intervals of 1 layer"
    assert intervals.leaving == {0: (0,), 1: (1,), 2: (2,)}
    assert intervals.asks == ahead
    assert (whole.name, whole.asks) == ("intervals of 3 layers", {})


def test_slower_copies_leave_the_whole_step() -> None:
    """A layer's 20 ns are not enough to fill 20 bytes at a byte a ns (equation 2), and two layers
    need all of these (equation 1): then all lengths are tried."""
    names = [plan.name for plan in ROUND.plans(20, 60, 1e9)]
    assert names[1:] == [f"intervals of {name}" for name in ("1 layer", "2 layers", "3 layers")]


def test_what_the_backward_pass_needs_leaves_and_comes_again() -> None:
    # Operation 2 has 1 and makes 2: 0 leaves, last used by 1. Beside 1 and 3 it has no room.
    plan, *_ = THERE_AND_BACK.plans(20, 1, 1)
    assert (plan.leaving, plan.asks) == ({1: [0]}, {})
    # All have room. In intervals 0 leaves all the same, and comes in that before its last use.
    plan, single, *_ = THERE_AND_BACK.plans(30, 1, 1)
    assert (plan.leaving, plan.asks) == ({}, {})
    assert (single.leaving, single.asks) == ({1: (0,)}, {3: [Ask(4, 0)]})
