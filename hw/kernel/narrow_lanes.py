"""Lanes of a kernel with narrow formats, between input and output FIFOs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from amaranth.hdl import C, Cat, Elaboratable, EnableInserter, Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from hw.float.parts import delayed_pulse
from hw.kernel.config import COUNT_WIDTH, KernelConfig
from hw.kernel.lanes import Lanes
from hw.kernel.operands import Operands, ends, places
from hw.kernel.results import Results
from hw.logic.counter import under_way
from hw.logic.shared import Shared
from hw.narrow.formats import SCALES_LINE_PARAMETERS
from hw.narrow.run_formats import FORMATS_WIDTH, RunFormats
from hw.stream.rounds import RoundWalker

__all__ = ["NarrowLanes"]


class NarrowLanes(Lanes):
    """Lanes with tensors in the formats of the run.

    They differ from :class:`~hw.kernel.lanes.Lanes` as follows. A round has as many parameters as
    fill a block of the widest tensor; the walks over ``rounds`` count its lines. Codes leave the
    input FIFOs first and are numbers when those of the other tensors leave. Lines of results come a
    few cycles later, and lines of codes only when the scale of their block is known.

    Members
    -------
    formats, seed, t : In(9), In(64), In(32)
        Of the run; must hold still until it is done.
    scan : In(1)
        The run only counts gradients; likewise.
    not_finite : Out(COUNT_WIDTH)
        Gradients of the last run that are infinite or NaN; when ``idle``.
    freed : Out(1)
        Pulse: the input FIFOs lose the last of a round.
    others
        Those of :class:`~hw.kernel.lanes.Lanes`.
    """

    _more_members: ClassVar = {
        "formats": In(FORMATS_WIDTH),
        "seed": In(64),
        "t": In(32),
        "scan": In(1),
        "not_finite": Out(COUNT_WIDTH),
    }

    def __init__(self, config: KernelConfig, *, units: Sequence[Any]) -> None:
        super().__init__(config, units=units)
        self._operands = Operands(config)
        self._results = Results(config)
        self._latencies = [self._operands.latency + unit.latency for unit in self._units]
        if min(self._latencies) <= self._results.words_ahead:
            raise ValueError(
                f"units must take more than {self._results.words_ahead - self._operands.latency} "
                f"cycles with narrow formats, as long as random words do, got "
                f"{[unit.latency for unit in self._units]}"
            )

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        config, lanes = self._config, self._config.lanes
        m.submodules.issue_walker = issue = RoundWalker(layout=config.rounds, tensors=1)
        m.submodules.result_walker = result = RoundWalker(layout=config.rounds, tensors=1)
        # Set if the widest tensor is in BF16.
        narrow = Signal()
        m.d.comb += narrow.eq(~RunFormats(self.formats).wide)
        enable, done = Signal(), Signal()
        register_enable, resetting = self._compute_domain(m, enable)

        def placed(name: str, component: Any) -> Any:
            shared: Any = Shared(
                component, name=component.module_name, domain="compute", enable=register_enable
            )
            m.submodules[name] = shared
            return shared

        operands, results = placed("operands", self._operands), placed("results", self._results)
        working, step = self._take(m, issue, operands, narrow)
        most = max(self._latencies) + self._results.most_cycles
        _, none_due = under_way(m, "results", most, begun=step, ended=done)
        units_done, values, _ = self._connect_units(
            m,
            operands.o_valid & ~self.scan,
            [getattr(operands, f"o_{name}") for name in ("p", "g", "m", "v")],
            register_enable,
        )
        history = Signal(max(self._latencies), name="issued")
        m.d.sync += history.eq(Cat(step & ~self.scan, history))
        with m.Switch(self.rule):
            for number, latency in enumerate(self._latencies):
                with m.Case(number):
                    soon = latency - self._results.words_ahead
                    m.d.comb += results.i_soon.eq(history[soon - 1])
        m.d.comb += [
            results.clear.eq(self.load),
            results.formats.eq(self.formats),
            results.seed.eq(self.seed),
            results.t.eq(self.t),
            # After a reset old results may show for two cycles.
            results.i_valid.eq(units_done & ~none_due),
            *(getattr(results, f"i_{name}").eq(value)
              for name, value in zip(("p", "m", "v"), values, strict=True)),
        ]  # fmt: skip

        counts, counted = Signal(), Signal()
        m.d.sync += [counts.eq(operands.o_valid), counted.eq(counts)]
        with m.If(self.load & self.start):
            m.d.sync += self.not_finite.eq(0)
        with m.Elif(counts & ~none_due):
            m.d.sync += self.not_finite.eq(self.not_finite + operands.not_finite)
        place = Signal(places(lanes))
        line_end = done & self._line_ends(place, narrow)
        with m.If(self.load):
            m.d.sync += place.eq(0)
        with m.Elif(done):
            m.d.sync += place.eq(place + 1)
        over = ~working & none_due & (~issue.active | self.stop)
        round_done = line_end & ~self.scan & result.round_end
        m.d.comb += [
            done.eq(Mux(self.scan, counted, results.done) & ~none_due),
            enable.eq(working | ~none_due | resetting | self.load),
            result.load.eq(self.load),
            result.start.eq(self.start),
            result.rounds.eq(self.rounds),
            result.step.eq(line_end),
            result.step_beats.eq(1),
            self.filled.eq(round_done),
            self.idle.eq(over),
            self.walk_upset.eq(issue.upset | result.upset),
        ]
        for name in ("p", "m", "v", "p_copy", "scales"):
            o = getattr(self.o, name)
            full = getattr(results, f"{name}_valid")
            if name == "scales":
                full = full & (results.scales_full | round_done)
            m.d.comb += [o.valid.eq(full & ~none_due), o.payload.eq(getattr(results, name))]
        return m if register_enable is None else EnableInserter({"compute": register_enable})(m)

    def _take(self, m: Any, issue: RoundWalker, operands: Any, narrow: Any) -> tuple[Any, Any]:
        """Start rounds and take lines from the input FIFOs.

        Return whether a round is at work, and whether a step's codes are taken.
        """
        formats, lanes = RunFormats(self.formats), self._config.lanes
        late_cycles = self._operands.late_cycles
        codes = formats.codes & ~self.scan
        step = Signal()
        place, late_place = Signal(places(lanes)), Signal(places(lanes))
        line_end = step & self._line_ends(place, narrow)
        round_end = line_end & issue.round_end
        _, working = self._take_rounds(m, issue, round_end, any_load=C(1, 1), any_store=~self.scan)
        late = delayed_pulse(m, step, late_cycles, "late")
        late_round_end = delayed_pulse(m, round_end, late_cycles, "late_round_end")
        last_line = issue.last_round & issue.tensor_end
        late_last_line = delayed_pulse(m, last_line, late_cycles, "late_last_line")
        for counter, moves in ((place, step), (late_place, late)):
            with m.If(self.load):
                m.d.sync += counter.eq(0)
            with m.Elif(moves):
                m.d.sync += counter.eq(counter + 1)
        i = self.i
        # Numbers leave the FIFOs later than codes and are there by then.
        early_there = Cat(i.m.valid, i.v.valid, i.scales.valid).all() | ~codes
        part = late_place[: max(16 // lanes, 1).bit_length() - 1] if lanes < 16 else C(0, 1)
        m.d.comb += [
            step.eq(working & early_there),
            issue.step.eq(line_end),
            self.freed.eq(late_round_end),
            operands.formats.eq(self.formats),
            operands.early.eq(step),
            operands.early_place.eq(place),
            operands.late.eq(late),
            operands.late_place.eq(late_place),
            operands.late_there.eq(
                self.last_parameters.word_select(part, lanes) | ~late_last_line.replicate(lanes)
            ),
            *(getattr(operands, name).eq(getattr(i, name).payload)
              for name in ("p", "g", "m", "v", "scales")),
            i.p.ready.eq(late & ~self.scan & self._line_ends(late_place, formats.bf16("p"))),
            i.g.ready.eq(late & self._line_ends(late_place, formats.bf16("g"))),
            i.scales.ready.eq(step & codes & ends(place, lanes, SCALES_LINE_PARAMETERS)),
        ]  # fmt: skip
        for name in ("m", "v"):
            early = step & ends(place, lanes, 64)
            number = late & ~self.scan & ends(late_place, lanes, 16)
            m.d.comb += getattr(i, name).ready.eq(Mux(codes, early, number))
        return working, step

    def _line_ends(self, place: Any, narrow: Any) -> Any:
        """Return whether the step at ``place`` ends a line, of BF16 if ``narrow``, else of FP32."""
        lanes = self._config.lanes
        return Mux(narrow, ends(place, lanes, 32), ends(place, lanes, 16))
