"""Lines in narrow formats from FP32 results."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.float.parts import Bits, delayed_pulse, register
from hw.kernel.config import KernelConfig
from hw.kernel.operands import ends, state_tables
from hw.logic.line import LINE_BITS
from hw.logic.shared import Shared
from hw.narrow.bf16 import ToBf16
from hw.narrow.formats import BLOCK_PARAMETERS
from hw.narrow.philox import RandomWords
from hw.narrow.quantizer import Quantizer
from hw.narrow.run_formats import FORMATS_WIDTH, RunFormats

__all__ = ["Results"]


class Results(wiring.Component):
    """Packs the results of the lanes into lines for the output FIFOs.

    Parameters
    ----------
    config
        Configuration of the kernel.

    Members
    -------
    clear : In(1)
        Begin a run; no results of another run may be inside.
    formats : In(9)
        Formats of the run's tensors; constant while the run goes on.
    seed : In(64)
        Seed of the run's random words; constant while the run goes on.
    t : In(32)
        Number of the optimizer's step, for the random words; constant while the run goes on.
    i_soon : In(1)
        Results come in ``words_ahead`` cycles: draw the random words to round them.
    i_valid : In(1)
        Results of a step are at the inputs.
    i_p, i_m, i_v : In(32 * lanes)
        FP32 results of the step, lane 0 in the lowest bits.
    p_valid, m_valid, v_valid, p_copy_valid : Out(1)
        The tensor's line is full.
    scales_valid : Out(1)
        A block's pair of scales has been put into the line of scales.
    scales_full : Out(1)
        The pair of ``scales_valid`` was the last of its line.
    p, m, v, p_copy, scales : Out(line)
        Line for the tensor's output FIFO.
    done : Out(1)
        A step's results of all tensors are in lines.
    """

    module_name = "narrow_results"
    words_ahead = RandomWords.latency

    def __init__(self, config: KernelConfig) -> None:
        self._config = config
        self._quantizers = {
            state: Quantizer(
                lanes=config.lanes, tables=state_tables(config, state), format=config.format
            )
            for state in ("m", "v")
        }
        self.most_cycles = BLOCK_PARAMETERS // config.lanes + self._quantizers["m"].latency + 4
        """Upper bound of the cycles from results to ``done``."""
        lanes = config.lanes
        lines = ("p", "m", "v", "p_copy", "scales")
        super().__init__(
            {
                "clear": In(1),
                "formats": In(FORMATS_WIDTH),
                "seed": In(64),
                "t": In(32),
                "i_soon": In(1),
                "i_valid": In(1),
                **{f"i_{name}": In(32 * lanes) for name in ("p", "m", "v")},
                **{f"{name}_valid": Out(1) for name in lines},
                **{name: Out(LINE_BITS) for name in lines},
                "scales_full": Out(1),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        formats = RunFormats(self.formats)
        codes = formats.codes
        # Numbers in BF16 take one cycle more; FP32 numbers of the same tensors are delayed, too.
        rounded = delayed_pulse(m, self.i_valid, 1, "rounded")
        p_fp32 = register(m, self.i_p, "p_fp32")
        words = self._random_words(m)
        for name, random in (("p", words), ("p_copy", None)):
            halves = self._rounded(m, name, random)
            valid = rounded & formats.present(name)
            self._pack(m, name, valid, formats.bf16(name), halves, p_fp32)
        quantized = C(0, 1)
        scales = []
        for name, model in self._quantizers.items():
            quantizer: Any = Shared(model, name=model.module_name)
            m.submodules[f"quantizer_{name}"] = quantizer
            values = getattr(self, f"i_{name}")
            m.d.comb += [
                quantizer.i_valid.eq(self.i_valid & codes),
                quantizer.select.eq(formats.linear),
                *(port.eq(values[32 * lane : 32 * lane + 32])
                  for lane, port in enumerate(quantizer.i)),
            ]  # fmt: skip
            valid = Mux(codes, quantizer.o_valid, self.i_valid)
            self._pack(m, name, valid, codes, Cat(quantizer.o), values)
            quantized = quantizer.o_valid
            scales.append(quantizer.o_scale)
        self._pack_scales(m, quantized, Cat(scales))
        done = delayed_pulse(m, Mux(codes, quantized, rounded), 1, "done")
        m.d.comb += self.done.eq(done)
        return m

    def _random_words(self, m: Any) -> list[Any]:
        model = RandomWords(lanes=self._config.lanes)
        m.submodules.random = random = Shared(model, name=model.module_name)
        words: Any = random
        group = Signal(32)
        with m.If(self.clear):
            m.d.sync += group.eq(0)
        with m.Elif(self.i_soon):
            m.d.sync += group.eq(group + 1)
        m.d.comb += [
            words.i_valid.eq(self.i_soon),
            words.i_group.eq(group),
            words.step.eq(self.t),
            words.seed.eq(self.seed),
        ]
        return list(words.o)

    def _rounded(self, m: Any, name: str, random: list[Any] | None) -> Bits:
        """Return the parameters in BF16, one cycle late; round to nearest without ``random``."""
        model = ToBf16()
        halves = []
        for lane in range(self._config.lanes):
            rounder: Any = Shared(model, name=model.module_name)
            m.submodules[f"{name}_{lane}"] = rounder
            m.d.comb += [
                rounder.i_valid.eq(self.i_valid),
                rounder.i_a.eq(self.i_p[32 * lane : 32 * lane + 32]),
                rounder.stochastic.eq(random is not None),
                rounder.i_random.eq(0 if random is None else random[lane]),
            ]
            halves.append(rounder.o_y)
        return Cat(halves)

    def _pack(self, m: Any, name: str, valid: Any, narrow: Any, few: Any, many: Any) -> None:
        """Shift a step's words into a line: ``few`` bits if ``narrow``, else ``many`` in FP32."""
        lanes = self._config.lanes
        line = Signal(LINE_BITS, name=f"line_{name}", reset_less=True)
        place = Signal(range(LINE_BITS // len(few)), name=f"place_{name}")
        full = Signal(name=f"full_{name}")
        of_few, of_many = (
            ends(place, lanes, LINE_BITS * lanes // len(bits)) for bits in (few, many)
        )
        with m.If(self.clear):
            m.d.sync += place.eq(0)
        with m.Elif(valid):
            m.d.sync += place.eq(place + 1)
        with m.If(valid):
            m.d.sync += line.eq(
                Mux(narrow, Cat(line, few)[len(few) :], Cat(line, many)[len(many) :])
            )
        m.d.sync += full.eq(valid & Mux(narrow, of_few, of_many))
        m.d.comb += [getattr(self, name).eq(line), getattr(self, f"{name}_valid").eq(full)]

    def _pack_scales(self, m: Any, valid: Any, pair: Bits) -> None:
        """Put a pair of scales in its place with the last codes of its block."""
        steps = BLOCK_PARAMETERS // self._config.lanes
        step = Signal(range(steps))
        place = Signal(3)
        pair_there = Signal()
        was_last = Signal()
        last_step = valid & (step == steps - 1)
        line = Signal(LINE_BITS, name="line_scales", reset_less=True)
        with m.If(self.clear):
            m.d.sync += [step.eq(0), place.eq(0)]
        with m.Elif(valid):
            m.d.sync += step.eq(step + 1)
            with m.If(last_step):
                m.d.sync += place.eq(place + 1)
        with m.If(last_step):
            m.d.sync += line.word_select(place, 64).eq(pair)
        m.d.sync += [pair_there.eq(last_step), was_last.eq(place == 7)]
        m.d.comb += [
            self.scales.eq(line),
            self.scales_valid.eq(pair_there),
            self.scales_full.eq(was_last),
        ]
