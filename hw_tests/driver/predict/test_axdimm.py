"""The cycle model: cases worked out by hand, what it refuses, and random ones against RTL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from hw.axdimm.config import ModuleConfig, configure
from hw.kernel.operands import Operands, state_tables
from hw.narrow.formats import FP32_FORMATS, MIXTURES, Formats
from hw.narrow.quantizer import Quantizer
from hw.rules import rule
from sw_driver.experiments.validation import Comparison, compare, draw
from sw_driver.predict.axdimm import (
    ChannelState,
    Prediction,
    RefreshState,
    TensorAddresses,
    predict,
)
from sw_driver.predict.axdimm import model as cycles_model
from sw_driver.predict.axdimm.kernel import (
    CODES_TO_RESULT,
    NARROW_STEP_TO_FREED,
    NARROW_STEP_TO_RESULT,
    SUM_DRAIN,
)

PAPER = configure()
WITHOUT_REFRESH = configure(refresh=False)
NARROW = configure("axdimm_narrow")
ADAM = rule("adam")

# Of the paper's part, DDR4-1600, in fabric cycles by hand: activates in slot 1, precharges in 2.
T_RCD = 3  # 11 tCK from slot 1 to slot 0
T_RP = 3  # 11 tCK from slot 2 to slot 1
READ_DATA = 4  # CL 11 and four tCK of data
UNIT = 110
CHECK = 22  # 7 tensors, 3 * 4 pairs of an output and an input, 3 pairs of outputs

ROUND_TRIP = 128 << 10
"""Bytes that lie in all banks once: 16 banks with rows of 8 KB."""


def placed(count: int, stride: int = ROUND_TRIP + 32768, first: int = 0) -> TensorAddresses:
    """Tensors that begin ``stride`` bytes apart, modulo all banks."""
    step = -(-4 * count // ROUND_TRIP) * ROUND_TRIP + stride % ROUND_TRIP
    p, g, m, v = (first + index * step for index in range(4))
    return TensorAddresses(inputs=(p, g, m, v), outputs=(p, m, v))


predict_adam = partial(predict, unit_latency=UNIT)


def times(prediction: Prediction) -> dict[str, int]:
    names = ("data", "refresh", "row", "turn_around", "starved", "idle")
    return {name: getattr(prediction, f"{name}_tck") for name in names}


def test_one_line_of_each_tensor() -> None:
    """Each step of the shortest run, in a bank of its own for each tensor."""
    prediction = predict_adam(WITHOUT_REFRESH, placed(16), 16)
    # The kernel offers the first read, the controller takes it, queues it, plans its bank and
    # activates, a cycle each; the column follows tRCD later. The others are in the same bank group,
    # where activates and columns are two cycles apart.
    first_column = CHECK + 5 + T_RCD
    last_column = first_column + 3 * 2
    in_kernel = last_column + READ_DATA + 2
    # The round is taken up, computed behind a register for the operands, and offered.
    results = in_kernel + 2 + 1 + UNIT
    # The first write: offer, address, data, admission, plan, the row is open still, column.
    first_write = results + 7
    # The others again two cycles apart; the response takes two to be counted.
    done = first_write + 2 * 2 + 2
    assert prediction.fabric_cycles == done
    assert prediction.activates == 4
    assert prediction.precharges == 0
    assert prediction.bus_turns == 1
    assert (prediction.beats_read, prediction.beats_written) == (4, 3)
    # Without a request: until the first is queued, while the lanes work, and for the response.
    queued, queued_again = CHECK + 4, first_write - 2
    starved = 3 + (queued_again - last_column - 1) + 2
    # Waiting for rows: for the first, for each of the others, and until the writes are planned.
    row = (first_column - queued) + 3 + (first_write - queued_again)
    assert times(prediction) == {
        "data": 4 * 7,
        "refresh": 0,
        "row": 4 * row,
        "turn_around": 4 * 2,
        "starved": 4 * starved,
        "idle": 4 * CHECK,
    }


def test_one_line_that_is_only_stored() -> None:
    """The lanes begin with the run, when the settings are checked."""
    prediction = predict(WITHOUT_REFRESH, TensorAddresses(outputs=(0,)), 16, unit_latency=3)
    results = 1 + 1 + 1 + 1 + 3
    # As above, but that the row has to be activated when the write is admitted.
    column = results + 6 + T_RCD
    assert prediction.fabric_cycles == column + 2
    assert (prediction.beats_read, prediction.beats_written) == (0, 1)
    assert prediction.idle_tck == 4


def test_one_line_that_is_only_summed() -> None:
    prediction = predict(
        WITHOUT_REFRESH, TensorAddresses(inputs=(0,)), 16, unit_latency=5, sums=True
    )
    results = 1 + 5 + T_RCD + READ_DATA + 2 + 2 + 1 + 5
    assert prediction.fabric_cycles == results + SUM_DRAIN
    assert (prediction.beats_read, prediction.beats_written, prediction.bus_turns) == (1, 0, 0)
    assert (prediction.data_tck, prediction.state.writing) == (4, False)


def test_refreshes_while_the_last_round_is_summed_cost_nothing() -> None:
    """The interval ends while the block is loaded, and the refresh waits until that is over; there
    is time for one in advance, too."""
    start = ChannelState(refresh=RefreshState(owed=0, elapsed_fabric_cycles=1560 - 150))
    with_refresh, without = (
        predict(config, TensorAddresses(inputs=(0,)), 4096, start, unit_latency=5, sums=True)
        for config in (PAPER, WITHOUT_REFRESH)
    )
    assert (with_refresh.refreshes, without.refreshes) == (2, 0)
    assert with_refresh.fabric_cycles == without.fabric_cycles
    assert with_refresh.state.open_rows == ()
    assert with_refresh.state.refresh.owed == -1
    assert 4 * 2 * 110 <= with_refresh.refresh_tck <= 4 * (T_RP + 2 * 110 + 2)


def test_a_row_that_was_left_open_is_closed_first() -> None:
    """A precharge comes a tRP before the activate, and nothing else changes."""
    placement = placed(16)
    closed = predict_adam(WITHOUT_REFRESH, placement, 16)
    left = replace(closed.state, open_rows=tuple(row + 1 for row in closed.state.open_rows))
    opened = predict_adam(WITHOUT_REFRESH, placement, 16, left)
    # The activate would be a cycle after the plan anyway.
    assert opened.fabric_cycles == closed.fabric_cycles + T_RP - 1
    assert (opened.activates, opened.precharges) == (4, 4)
    again = predict_adam(WITHOUT_REFRESH, placement, 16, closed.state)
    assert (again.activates, again.precharges) == (0, 0)
    assert again.fabric_cycles < closed.fabric_cycles


def test_a_rest_closes_all_rows_if_it_is_long_enough_for_a_refresh() -> None:
    left = predict_adam(PAPER, placed(16), 16).state
    assert left.open_rows
    assert left.writing
    assert left.after_rest(PAPER, 10).open_rows == left.open_rows
    rested = left.after_rest(PAPER, 20 * 1560)
    assert rested.open_rows == ()
    assert rested.refresh.owed == -8
    assert left.after_rest(configure(refresh=False), 20 * 1560).open_rows == left.open_rows


@pytest.mark.parametrize("postpone", [1, 4, 8])
def test_batches_are_as_long_as_they_may_be(postpone: int) -> None:
    config = configure(refresh_postpone=postpone, refresh_pull_in=0)
    prediction = predict_adam(config, placed(100_000), 100_000)
    gap = prediction.state.refresh.longest_gap_fabric_cycles
    assert postpone * 1560 - 110 * postpone <= gap <= postpone * 1560 + 200


def test_refreshes_in_advance_are_used_up_first() -> None:
    """A run of less than eight intervals sees none if eight are in advance, and all if they are
    owed."""
    count = 20_000
    # The DRAM rests while the lanes compute the last round, but not for as long.
    config = configure(refresh_idle_cycles=1 << 16)
    rested = predict_adam(config, placed(count), count, ChannelState.after_idle(config, 500))
    assert rested.fabric_cycles < 8 * 1560
    assert (rested.refreshes, rested.refresh_tck) == (0, 0)
    assert rested.state.refresh.owed == -8 + (500 + rested.fabric_cycles) // 1560
    owing = ChannelState(refresh=RefreshState(owed=7, elapsed_fabric_cycles=1000))
    late = predict_adam(config, placed(count), count, owing)
    assert late.refreshes >= 8
    # What is given while the kernel checks its settings costs nothing.
    assert late.fabric_cycles > rested.fabric_cycles + 8 * 110 - CHECK
    refresh = late.state.refresh
    assert refresh.owed == 7 + (1000 + late.fabric_cycles) // 1560 - refresh.given


def test_a_refresh_in_progress_delays_the_start() -> None:
    count = 16
    quiet = predict_adam(PAPER, placed(count), count, ChannelState.after_idle(PAPER, 800))
    begun = predict_adam(PAPER, placed(count), count, ChannelState.after_idle(PAPER, 0))
    assert 80 < begun.fabric_cycles - quiet.fabric_cycles < 110


def tensors(inputs: int, outputs: int, count: int) -> TensorAddresses:
    """In other banks each; the last of nine are stored."""
    step = (4 * count // ROUND_TRIP + 1) * ROUND_TRIP + 32768
    return TensorAddresses(
        inputs=tuple(index * step for index in range(inputs)),
        outputs=tuple(index * step for index in range(9 - outputs, 9)),
    )


def in_formats(formats: Formats, count: int) -> TensorAddresses:
    """As the driver places the tensors, in place."""
    place, addresses = 0, {}
    for index, name in enumerate(formats.tensors(ADAM)):
        place += -place % ROUND_TRIP
        addresses[name] = place + 32768 * index % ROUND_TRIP
        place = addresses[name] + formats.tensor_bytes(ADAM, name, count)
    return TensorAddresses(
        inputs=tuple(addresses[name] for name in formats.loads(ADAM)),
        outputs=tuple(addresses[name] for name in formats.stores(ADAM)),
    )


@pytest.mark.parametrize(
    ("config", "placement", "count", "formats"),
    [
        (PAPER, placed(10**6), 900_000, FP32_FORMATS),
        (configure(refresh_postpone=2), placed(10**6, stride=0), 900_000, FP32_FORMATS),
        (WITHOUT_REFRESH, placed(10**6, first=832), 900_000, FP32_FORMATS),
        (configure(lanes=1), placed(10**6), 900_000, FP32_FORMATS),
        (
            configure(block_bytes=2048, buffer_blocks=4),
            placed(10**6, first=64),
            900_000,
            FP32_FORMATS,
        ),
        *(
            (config, tensors(*numbers, 3_000_000), 3_000_000, FP32_FORMATS)
            for config in (PAPER, WITHOUT_REFRESH)
            for numbers in ((0, 1), (1, 0), (1, 1), (5, 4))
        ),
        *(
            (NARROW, in_formats(formats, 1 << 21), 1 << 21, formats)
            for formats in (
                *MIXTURES.values(),
                Formats(states="linear", copy="bf16", skip_not_finite=True),
            )
        ),
    ],
)
def test_what_is_extrapolated_is_what_would_be_simulated(
    monkeypatch: pytest.MonkeyPatch,
    config: ModuleConfig,
    placement: TensorAddresses,
    count: int,
    formats: Formats,
) -> None:
    run = partial(
        predict,
        config,
        placement,
        count,
        unit_latency=UNIT,
        sums=not placement.outputs,
        formats=formats,
    )
    monkeypatch.setattr(cycles_model, "_USUAL_BURSTS", 1000)
    short = run()
    monkeypatch.setattr(cycles_model, "_USUAL_BURSTS", 10**9)
    whole = run()
    assert short.simulated_bursts < whole.simulated_bursts
    # Refreshes come in batches, of which an extrapolation has fractions.
    batch = config.controller.refresh_postpone * config.part.timing.t_rfc // 4
    assert short.fabric_cycles == pytest.approx(whole.fabric_cycles, rel=2e-3, abs=batch)
    for prediction in (short, whole):
        assert sum(times(prediction).values()) == 4 * prediction.fabric_cycles
        if formats.usual:
            assert prediction.beats_read == len(placement.inputs) * count // 16
            assert prediction.beats_written == len(placement.outputs) * count // 16
        assert prediction.data_tck == 4 * (prediction.beats_read + prediction.beats_written)
    for name, value in times(whole).items():
        assert abs(times(short)[name] - value) < 4e-3 * 4 * whole.fabric_cycles, name
    assert short.idle_fabric_cycles == pytest.approx(
        whole.idle_fabric_cycles, abs=0.005 * whole.fabric_cycles
    )


@pytest.mark.parametrize("name", MIXTURES)
def test_a_run_moves_what_its_formats_say(name: str) -> None:
    formats = MIXTURES[name]
    count = 5 * 4096 + 768
    prediction = predict_adam(NARROW, in_formats(formats, count), count, formats=formats)
    lines = [
        [-(-formats.tensor_bytes(ADAM, name, count) // 64) for name in names]
        for names in (formats.loads(ADAM), formats.stores(ADAM))
    ]
    assert [prediction.beats_read, prediction.beats_written] == [sum(each) for each in lines]
    assert prediction.data_tck == 4 * sum(map(sum, lines))
    assert prediction.idle_tck == 4 * 45


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
def test_latencies_of_narrow_formats_are_those_of_the_hardware(lanes: int) -> None:
    kernel = configure("axdimm_narrow", lanes=lanes).kernel
    operands = Operands(kernel)
    assert operands.late_cycles == NARROW_STEP_TO_FREED
    assert operands.latency + 2 == NARROW_STEP_TO_RESULT
    quantizer = Quantizer(lanes=lanes, tables=state_tables(kernel, "m"), format=kernel.format)
    # Numbers take two cycles to their lines, codes one after the cycles of their block.
    assert quantizer.latency - 2 == CODES_TO_RESULT + lanes.bit_length() - 1


def test_gradients_are_read_first_where_a_run_may_be_skipped() -> None:
    """Refreshes apart, the two passes add up to hardly more than their own."""
    config = configure("axdimm_narrow", refresh=False)
    count = 1 << 16
    formats = Formats(gradients="bf16", skip_not_finite=True)
    run = partial(predict_adam, config, in_formats(formats, count), count)
    both, skipped = run(formats=formats), run(formats=formats, skipped=True)
    alone = run(formats=Formats(gradients="bf16"))
    assert (skipped.beats_read, skipped.beats_written) == (count // 32, 0)
    assert (both.beats_read, both.beats_written) == (
        count // 32 + alone.beats_read,
        alone.beats_written,
    )
    # The check, what eight lanes take, and until the first are there.
    assert 45 + count // 8 < skipped.fabric_cycles < 45 + count // 8 + 200
    apart = both.fabric_cycles - skipped.fabric_cycles - (alone.fabric_cycles - 45)
    assert abs(apart) < 30
    for prediction in (both, skipped):
        assert sum(times(prediction).values()) == 4 * prediction.fabric_cycles


@pytest.mark.parametrize("block_bytes", [128, 1024, 16384, 65536])
def test_thirteen_billion_parameters(block_bytes: int) -> None:
    """Simulating more bursts than this would take longer than a second."""
    config = configure(block_bytes=block_bytes)
    count = 13_000_000_000
    prediction = predict_adam(config, placed(count), count)
    # Blocks for tests only need more of them to see a batch of refreshes.
    assert prediction.simulated_bursts <= (15_000 if block_bytes >= 1024 else 40_000)
    assert prediction.beats_read == 4 * count // 16
    assert prediction.data_tck == 4 * 7 * count // 16
    assert sum(times(prediction).values()) == 4 * prediction.fabric_cycles
    ceiling = 7 * count / 16
    if block_bytes >= 1024:
        assert 0.90 < ceiling / prediction.fabric_cycles < 1 - 440 / 6240


def test_long_runs_see_enough_batches_of_refreshes_or_are_refused() -> None:
    """Where a batch takes long, more is simulated; the refreshes are those of the standard."""
    slow = configure(allow_nonstandard=True, t_refi=50_000, t_rfc=20_000, block_bytes=1024)
    prediction = predict_adam(slow, placed(10**9), 10**9)
    intervals = 4 * prediction.fabric_cycles / slow.part.timing.t_refi
    assert prediction.refreshes == pytest.approx(intervals, rel=0.005)
    slower = configure(allow_nonstandard=True, t_refi=1 << 20, t_rfc=1 << 19, block_bytes=1024)
    with pytest.raises(ValueError, match="t_refi must be smaller, or the blocks larger"):
        predict_adam(slower, placed(10**9), 10**9)
    # What is not extrapolated needs no batches.
    assert predict_adam(slower, placed(1000), 1000).fabric_cycles > 0


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: predict_adam(PAPER, placed(1), 0), "parameters is 0: expected an integer"),
        (lambda: predict_adam(PAPER, placed(1), 1.5), "parameters is 1.5"),
        (
            lambda: predict_adam(PAPER, TensorAddresses(inputs=(0,)), 1),
            "without outputs must have sums",
        ),
        (TensorAddresses, "a run needs a tensor"),
        (
            lambda: predict_adam(PAPER, placed(256), 256, formats=MIXTURES["bf16_g"]),
            "formats are Formats.*gradients='bf16'.*: expected FP32 .* it with narrow=True",
        ),
        (
            lambda: predict_adam(NARROW, placed(256), 256, formats=MIXTURES["bf16_g_8bit"]),
            "got 4 addresses, expected those of .*'scales'",
        ),
        (
            lambda: predict_adam(
                PAPER,
                placed(1),
                1,
                ChannelState(refresh=RefreshState(owed=0, elapsed_fabric_cycles=1560)),
            ),
            "elapsed_fabric_cycles must be from 0 to tREFI - 1 = 1559, got 1560",
        ),
    ],
)
def test_refused_runs(refused: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        refused()


@pytest.fixture(scope="module")
def comparisons() -> list[Comparison]:
    """66 random configurations on six builds of the RTL."""
    return [each for group in draw(66, seed=2031, per_group=11) for each in compare(group)]


def check_errors(comparisons: list[Comparison]) -> None:
    for each in comparisons:
        where = f"{each.group.preset} {each.group.settings} {each.trial}"
        assert abs(each.error) < 0.01, f"{each.error:.2%} with {where}"
        assert each.account_error < 0.01, f"{each.account_error:.2%} of the time with {where}"
        total = sum(value for name, value in each.model.items() if name.endswith("_tck"))
        assert total == 4 * each.model["cycles"]
        for name in ("beats_read", "beats_written"):
            assert each.model[name] == each.rtl[name], where


def test_a_random_configuration_against_rtl() -> None:
    """Eleven runs on one build."""
    check_errors([each for group in draw(11, seed=7, per_group=11) for each in compare(group)])


@pytest.mark.soak
def test_random_configurations_against_rtl(comparisons: list[Comparison]) -> None:
    assert len(comparisons) >= 60
    check_errors(comparisons)


@pytest.mark.soak
def test_the_random_configurations_differ(comparisons: list[Comparison]) -> None:
    """The comparison above would be worth little if all runs were alike."""
    settings = [each.group.settings for each in comparisons]
    assert {each["lanes"] for each in settings} == {1, 2, 4, 8, 16}
    assert len({each["block_bytes"] for each in settings}) >= 6
    assert {each["refresh"] for each in settings} == {True, False}
    assert len({each.group.preset for each in comparisons}) == 5
    assert len({each.trial.formats for each in comparisons}) >= 8
    assert len({each.trial.placement for each in comparisons}) >= 8
    assert any(each.trial.count < 100 for each in comparisons)
    assert any(each.trial.count > 200_000 for each in comparisons)
    assert any(each.rtl["run_refreshes"] > 8 for each in comparisons)
