"""Prediction of runs of the kernel."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, fields, replace
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from hw.axdimm.config import ModuleConfig
from hw.dram.config import ControllerConfig
from hw.dram.fabric_timing import FabricTiming
from hw.dram.timing import BURST_TCK
from hw.logic.line import LINE_BYTES
from hw.narrow.formats import BLOCK_PARAMETERS, FP32_FORMATS, Formats
from sw_driver.numbers import check_integer

from ..dram.channel import ChannelState
from ..dram.controller import LOW_LEVEL, Controller, Mark, Piece
from ..dram.refresh import NEVER
from .kernel import (
    CODES_TO_RESULT,
    COLUMN_TO_ANSWERED,
    LOADED_TO_BEGIN,
    NARROW_STEP_TO_RESULT,
    SCAN_TO_RUN,
    STEP_TO_COUNTED,
    STEP_TO_RESULT,
    SUM_DRAIN,
    KernelLanes,
    Loader,
    Rounds,
    RunTensor,
    Storer,
)

__all__ = ["Prediction", "TensorAddresses", "predict"]

_TIMES = ("data", "refresh", "row", "turn_around", "starved")
"""Fields of a tally that are times."""

_USUAL_BURSTS = 3_000
"""Bursts up to which nothing is extrapolated."""
_MOST_BURSTS = 24_000
"""Simulated bursts, at most, if they contain enough repetitions."""
_LAST_BURSTS = 400_000
"""Simulated bursts, at most, in any case; some six seconds."""
_BATCHES = 12
"""Batches of refreshes to simulate for an extrapolation."""
_FEWEST_BATCHES = 6
"""Batches of refreshes that an extrapolation needs."""
_FIRST_STEADY_BATCH = 2
"""First regular batch; refreshes given in advance change the earlier ones."""


@dataclass(frozen=True, kw_only=True)
class TensorAddresses:
    """Byte addresses of a run's tensors within their channel, multiples of 64.

    ``inputs`` are loaded and ``outputs`` stored, in the order of a round; a result may replace an
    operand. Raises ``ValueError`` if there are neither, and for other addresses.

    Examples
    --------
    >>> TensorAddresses(inputs=(0, 1 << 20), outputs=(0,)).tensors
    3
    >>> TensorAddresses(inputs=(1,))
    Traceback (most recent call last):
        ...
    ValueError: address is 1: expected a multiple of 64
    """

    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.tensors:
            raise ValueError("a run needs a tensor, got neither inputs nor outputs")
        for address in self.inputs + self.outputs:
            if check_integer("address", address, 0) % LINE_BYTES:
                raise ValueError(f"address is {address}: expected a multiple of {LINE_BYTES}")

    @property
    def tensors(self) -> int:
        """Tensors loaded plus tensors stored; one that is updated in place counts twice."""
        return len(self.inputs) + len(self.outputs)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Prediction of a run from START to DONE.

    The times in tCK add up to four times ``fabric_cycles``.
    """

    fabric_cycles: int
    data_tck: int
    """Time of reads and writes, in tCK."""
    refresh_tck: int
    """Time with the controller closed for refreshes and the precharges before them, in tCK."""
    row_tck: int
    """Time in which the oldest burst waits for a precharge, an activate or tRCD, in tCK."""
    turn_around_tck: int
    """Time in which the oldest burst waits for the spacing of columns, in tCK."""
    starved_tck: int
    """Time in which the controller has no burst, in tCK."""
    idle_tck: int
    """Time in which the kernel checks its settings, in tCK."""
    activates: int
    precharges: int
    refreshes: int
    bus_turns: int
    """Columns with another direction than the previous column."""
    beats_read: int
    beats_written: int
    idle_fabric_cycles: int
    """Fabric cycles in which no line moves between kernel and controller."""
    simulated_bursts: int
    """Bursts that were simulated; the rest was extrapolated."""
    state: ChannelState
    """State of the channel at DONE."""

    def then(self, later: Prediction) -> Prediction:
        """Return the prediction of both, one after the other."""
        names = [item.name for item in fields(self) if item.name != "state"]
        both = {name: getattr(self, name) + getattr(later, name) for name in names}
        return Prediction(**both, state=later.state)


@dataclass(frozen=True, kw_only=True)
class _Pass:
    """One pass of a run over its tensors."""

    inputs: tuple[RunTensor, ...]
    outputs: tuple[RunTensor, ...]
    round_parameters: int
    check: int
    """Fabric cycles until the kernel's first request."""
    latency: int
    """Fabric cycles from operands to results."""
    drain: int | None
    """Fabric cycles from the last results to the end, if it waits for them."""

    @property
    def tensors(self) -> tuple[RunTensor, ...]:
        """Tensors loaded and stored; one that is updated in place is there twice."""
        return self.inputs + self.outputs

    @property
    def round_lines(self) -> int:
        """Lines that a full round loads and stores."""
        return _lines(self.tensors, self.round_parameters)

    def rounds(self, parameters: int) -> Rounds:
        """Return the rounds of a run on ``parameters`` parameters."""
        return Rounds(self.round_parameters, parameters)


def _lines(tensors: tuple[RunTensor, ...], parameters: int) -> int:
    return sum(tensor.lines(parameters) for tensor in tensors)


class _Run:
    """Run on a channel, one burst after the other, in the order of their admission.

    The controller takes up to ``run_length`` bursts of one direction while the other direction
    waits. It changes earlier if there are none left and its queue is nearly empty.
    """

    def __init__(
        self,
        config: ModuleConfig,
        kernel_pass: _Pass,
        parameters: int,
        state: ChannelState,
    ) -> None:
        begin = kernel_pass.check + 1
        times = FabricTiming.of(config.part.timing)
        self._controller = controller = Controller(config, state, begin=begin)
        rounds = kernel_pass.rounds(parameters)
        stores = bool(kernel_pass.outputs)
        lanes = KernelLanes(config, rounds, latency=kernel_pass.latency, stores=stores)
        if not kernel_pass.inputs:
            for _ in range(rounds.count):
                lanes.loaded(begin - LOADED_TO_BEGIN)
        self._loader = Loader(config, times, rounds.bursts(kernel_pass.inputs), lanes, begin=begin)
        self._storer = Storer(config, times, rounds.bursts(kernel_pass.outputs), lanes)
        self._marked = self._loader if kernel_pass.inputs else self._storer
        self.bursts = 0
        self.round_marks: list[Mark] = []
        """Counts after the last load of each round, or the last store if nothing is loaded."""
        self._simulate(config.controller, state.writing)
        self.done = controller.ends[-1] + COLUMN_TO_ANSWERED if stores else 0
        if kernel_pass.drain is not None:
            self.done = max(self.done, lanes.filled[-1] + kernel_pass.drain)
        controller.finish(self.done)
        self.state = controller.state(self.done)
        self.tally = controller.tally
        moved = _lines(kernel_pass.tensors, parameters)
        assert self.tally.data == moved, "a burst was never admitted"
        self.batches = controller.batches
        self._moving = _union(self._loader.beats, self._storer.beats)

    def moving(self, before: int) -> int:
        """Count the fabric cycles before a cycle in which kernel and controller moved lines."""
        starts, ends = self._moving
        return int((np.minimum(ends, before) - np.minimum(starts, before)).sum())

    def _simulate(self, settings: ControllerConfig, writing: bool) -> None:
        controller, loader, storer = self._controller, self._loader, self._storer
        queue_depth, longest_run = settings.queue_depth, settings.run_length - 1
        run = 0
        admitted = 0
        bursts: deque[Loader | Storer] = deque()
        while True:
            free = max(admitted + 1, controller.below(queue_depth))
            same, other = loader.admission(), storer.admission()
            if writing:
                same, other = other, same
            same, other = max(same, free), max(other, free)
            at = same
            turn = other <= same and run == longest_run
            if other < same:
                low = controller.below(LOW_LEVEL + 1)
                if max(other, low) < same:
                    at = max(other, low)
                    turn = True
            if at > controller.stopped:
                controller.resume()
            elif at == NEVER:
                break
            else:
                admitted = at
                if turn:
                    writing = not writing
                    run = 0
                elif run < longest_run:
                    run += 1
                side = storer if writing else loader
                burst = side.admit(admitted)
                bursts.append(side)
                self.bursts += 1
                controller.admit(writing, burst.line, burst.lines, admitted)
                if burst.last_of_round and side is self._marked:
                    self.round_marks.append(controller.mark())
            for columns in controller.served:
                bursts.popleft().serve(columns)
            controller.served.clear()


def _union(*parts: list[Piece]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return starts and ends (exclusive) of the disjoint intervals that the pieces cover."""
    pieces = np.array([piece for part in parts for piece in part], np.int64)
    starts, ends = pieces[:, 0], pieces[:, 0] + pieces[:, 1]
    order = np.argsort(starts, kind="stable")
    starts, covered = starts[order], np.maximum.accumulate(ends[order])
    first = np.concatenate([[True], starts[1:] > covered[:-1]])
    return starts[first], covered[np.concatenate([first[1:], [True]])]


def predict(
    config: ModuleConfig,
    addresses: TensorAddresses,
    parameters: int,
    state: ChannelState | None = None,
    *,
    unit_latency: int,
    sums: bool = False,
    formats: Formats = FP32_FORMATS,
    skipped: bool = False,
) -> Prediction:
    """Predict a run on ``parameters`` parameters.

    ``state`` is that of the channel at START, by default :meth:`ChannelState.after_idle`.
    ``unit_latency`` is the latency of a functional unit in fabric cycles. With ``sums``, the run
    does not end before its sums are ready. Tensors are in ``formats``, which the kernel must have;
    the addresses are then those of the tensors loaded and stored, in their order. With ``skipped``,
    the run ends when the gradients that are not finite have been counted. Long runs are simulated
    until they repeat, and the rest is extrapolated.

    Raises ``ValueError`` unless ``parameters`` is at least 1, for a run that neither stores nor
    sums, and for formats that the kernel does not have, or the addresses do not fit.
    """
    parameters = check_integer("parameters", parameters)
    check_integer("unit_latency", unit_latency, 0)
    if not addresses.outputs and not sums:
        raise ValueError("a run without outputs must have sums, or it has no result")
    state = state or ChannelState.after_idle(config)
    if not config.narrow:
        if not formats.usual:
            raise ValueError(
                f"formats are {formats}: expected FP32 without copy and skip_not_finite, since the "
                "kernel has no narrow formats; configure it with narrow=True"
            )
        kernel_pass = _usual_pass(config, addresses, unit_latency=unit_latency, sums=sums)
        return _predict_pass(config, kernel_pass, parameters, state)
    kernel_pass = _narrow_pass(config, addresses, formats, unit_latency=unit_latency)
    if not formats.skip_not_finite:
        return _predict_pass(config, kernel_pass, parameters, state)
    gradients = kernel_pass.inputs[formats.loads(config.kernel.update_rules[0]).index("g")]
    scan = replace(kernel_pass, inputs=(gradients,), outputs=(), latency=STEP_TO_COUNTED, drain=0)
    scanned = _predict_pass(config, scan, parameters, state)
    if skipped:
        return scanned
    kernel_pass = replace(kernel_pass, check=SCAN_TO_RUN)
    run = _predict_pass(config, kernel_pass, parameters, scanned.state)
    starved_tck = run.starved_tck + run.idle_tck
    return scanned.then(replace(run, idle_tck=0, starved_tck=starved_tck))


def _check_fabric_cycles(inputs: int, outputs: int) -> int:
    """Return the fabric cycles from START until the kernel's first request.

    In each, the kernel checks the settings of one tensor, or of one pair that must not overlap (an
    output and an input, or two outputs).
    """
    return inputs + outputs + outputs * inputs + outputs * (outputs - 1) // 2


def _usual_pass(
    config: ModuleConfig, addresses: TensorAddresses, *, unit_latency: int, sums: bool
) -> _Pass:
    fp32 = 32 * BLOCK_PARAMETERS
    return _Pass(
        inputs=tuple(RunTensor(address, fp32) for address in addresses.inputs),
        outputs=tuple(RunTensor(address, fp32) for address in addresses.outputs),
        round_parameters=config.block_bytes // 4,
        check=_check_fabric_cycles(len(addresses.inputs), len(addresses.outputs)),
        latency=STEP_TO_RESULT + unit_latency,
        drain=SUM_DRAIN if sums else None,
    )


def _narrow_pass(
    config: ModuleConfig, addresses: TensorAddresses, formats: Formats, *, unit_latency: int
) -> _Pass:
    """Return the pass of a run in any formats on a kernel with narrow formats.

    All its rules have the same tensors.
    """
    kernel = config.kernel
    rule = kernel.update_rules[0]

    def placed(names: tuple[str, ...], addresses: tuple[int, ...]) -> tuple[RunTensor, ...]:
        if len(names) != len(addresses):
            raise ValueError(f"got {len(addresses)} addresses, expected those of {names}")
        pairs = zip(addresses, names, strict=True)
        return tuple(RunTensor(address, formats.block_bits(rule, name)) for address, name in pairs)

    latency = NARROW_STEP_TO_RESULT + unit_latency
    if formats.codes:
        levels = kernel.lanes.bit_length() - 1
        latency += CODES_TO_RESULT + levels + BLOCK_PARAMETERS // kernel.lanes
    return _Pass(
        inputs=placed(formats.loads(rule), addresses.inputs),
        outputs=placed(formats.stores(rule), addresses.outputs),
        round_parameters=formats.round_parameters(rule, config.block_bytes),
        check=_check_fabric_cycles(len(kernel.loaded), len(kernel.stored)),
        latency=latency,
        drain=None,
    )


def _predict_pass(
    config: ModuleConfig, kernel_pass: _Pass, parameters: int, state: ChannelState
) -> Prediction:
    skipped = _skipped_rounds(config, kernel_pass, parameters)
    run = _Run(config, kernel_pass, parameters - skipped * kernel_pass.round_parameters, state)
    tally, done, after = asdict(run.tally), run.done, run.state
    still = done - run.moving(done + 1)
    if skipped:
        first, last = _repetition(config, kernel_pass, run)
        more = {name: getattr(last.tally, name) - getattr(first.tally, name) for name in tally}
        wanted = skipped * kernel_pass.round_lines

        def scaled(amount: int) -> int:
            return round(amount * wanted / more["data"])

        # Running totals are rounded, so that the sum of the times is right.
        sums_of_times = accumulate((more[name] for name in _TIMES), initial=0)
        totals = [amount * wanted // more["data"] for amount in sums_of_times]
        for name, (before, total) in zip(_TIMES, pairwise(totals), strict=True):
            tally[name] += total - before
        for name in tally.keys() - _TIMES:
            tally[name] += scaled(more[name])
        done += totals[-1]
        given = after.refresh.given + scaled(more["refreshes"])
        after = replace(after, refresh=replace(after.refresh, given=given))
        still += scaled(last.cycle - first.cycle - run.moving(last.cycle) + run.moving(first.cycle))
    return Prediction(
        fabric_cycles=done,
        idle_tck=BURST_TCK * kernel_pass.check,
        **{f"{name}_tck": BURST_TCK * tally.pop(name) for name in _TIMES},
        **tally,
        beats_read=_lines(kernel_pass.inputs, parameters),
        beats_written=_lines(kernel_pass.outputs, parameters),
        idle_fabric_cycles=still,
        simulated_bursts=run.bursts,
        state=after,
    )


def _rounds_of_banks(config: ModuleConfig, kernel_pass: _Pass) -> int:
    """Return the number of rounds after which blocks lie in the same banks again.

    The few blocks of scales are left out.
    """
    geometry = config.part.geometry
    tensors = [tensor for tensor in kernel_pass.tensors if tensor.block_bits > BLOCK_PARAMETERS]
    block_bytes = LINE_BYTES * min(tensor.lines(kernel_pass.round_parameters) for tensor in tensors)
    return max(1, geometry.banks * geometry.row_bytes // block_bytes)


def _skipped_rounds(config: ModuleConfig, kernel_pass: _Pass, parameters: int) -> int:
    """Count the rounds that need no simulation; the rest begins and ends like the whole run."""
    count = kernel_pass.rounds(parameters).count
    bursts = sum(
        1
        for tensors in (kernel_pass.inputs, kernel_pass.outputs)
        for _ in kernel_pass.rounds(kernel_pass.round_parameters).bursts(tensors)
    )
    if count * bursts <= _USUAL_BURSTS:
        return 0
    kept = _USUAL_BURSTS // bursts
    if config.controller.refresh:
        t_refi = config.part.timing.t_refi
        batch = config.controller.refresh_postpone * t_refi // BURST_TCK
        rounds_of_batch = -(-batch // kernel_pass.round_lines)
        kept = min(max(kept, _BATCHES * rounds_of_batch), _MOST_BURSTS // bursts)
        kept = max(kept, _FEWEST_BATCHES * rounds_of_batch)
        if min(kept, count) * bursts > _LAST_BURSTS:
            raise ValueError(
                f"t_refi must be smaller, or the blocks larger, to predict so long a run: with "
                f"t_refi {t_refi} and blocks of {config.block_bytes} bytes, it repeats only after "
                f"{kept * bursts} bursts, more than {_LAST_BURSTS}"
            )
    period = _rounds_of_banks(config, kernel_pass)
    return max(0, count - kept) // period * period


def _repetition(config: ModuleConfig, kernel_pass: _Pass, run: _Run) -> tuple[Mark, Mark]:
    """Return the start and the end of a period that the run repeats."""
    # The last batch may come after the last loads, or the last stores.
    steady = run.round_marks[-1 - config.buffer_blocks].cycle
    batches = [mark for mark in run.batches[_FIRST_STEADY_BATCH:] if mark.cycle < steady]
    if len(batches) > 2:
        return batches[0], batches[-1]
    period = _rounds_of_banks(config, kernel_pass)
    rounds = run.round_marks[2 * config.buffer_blocks : -1 - config.buffer_blocks]
    if len(rounds) > period:
        return rounds[(len(rounds) - 1) % period], rounds[-1]
    return rounds[0], rounds[-1]
