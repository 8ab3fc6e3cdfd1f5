"""FP32 operands from lines in narrow formats."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import C, Cat, Module, Mux
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.float.parts import Bits, carry, delayed_pulse, register
from hw.kernel.config import KernelConfig
from hw.logic.line import LINE_BITS
from hw.logic.shared import Shared
from hw.narrow.codes import Dequantizer
from hw.narrow.formats import CODES, SCALES_LINE_PARAMETERS, Formats
from hw.narrow.run_formats import FORMATS_WIDTH, RunFormats

__all__ = ["Operands", "ends", "places", "state_tables"]


def places(lanes: int) -> range:
    """Return the range of the lanes' steps within a line of scales."""
    return range(SCALES_LINE_PARAMETERS // lanes)


def ends(place: Any, lanes: int, parameters: int) -> Any:
    """Return whether the step at ``place`` is the last of ``parameters`` parameters."""
    bits = (parameters // lanes).bit_length() - 1
    return place[:bits].all() if bits else C(1, 1)


def state_tables(config: KernelConfig, state: str) -> tuple[str, str]:
    """Return the tables of a state's codes: the dynamic one and the linear one."""
    dynamic, linear = (
        Formats(states=states).form(config.update_rules[0], state) for states in CODES
    )
    return dynamic, linear


class Operands(wiring.Component):
    """Takes operands from the lines that stand at the input FIFOs.

    A step takes the operands of ``lanes`` parameters: codes and their scales early, and numbers in
    FP32 or BF16 ``late_cycles`` later, when the codes are numbers. So nothing has to wait in
    registers. The operands are ready two cycles after that.

    Parameters
    ----------
    config
        Configuration of the kernel.

    Members
    -------
    formats : In(9)
        Formats of the run's tensors; constant while the run goes on.
    p, g, m, v, scales : In(line)
        Line at the head of the tensor's input FIFO.
    early : In(1)
        Take the codes and scales of a step; ``late`` follows ``late_cycles`` later.
    late : In(1)
        Take the FP32 and BF16 numbers of a step.
    early_place, late_place : In(:func:`places`)
        Number of the step within a line of scales, with ``early`` and ``late``.
    late_there : In(lanes)
        Lanes that have a parameter in the step of ``late``.
    o_valid : Out(1)
        Operands of a step are at the outputs.
    o_p, o_g, o_m, o_v : Out(32 * lanes)
        FP32 operands of the step, lane 0 in the lowest bits.
    not_finite : Out(range(lanes + 1))
        Number of gradients that are infinite or NaN, one cycle after their ``o_valid``.
    """

    module_name = "narrow_operands"

    def __init__(self, config: KernelConfig) -> None:
        self._config = config
        lanes = config.lanes
        self._dequantizers = {
            state: Dequantizer(tables=state_tables(config, state), format=config.format)
            for state in ("m", "v")
        }
        self.late_cycles = self._dequantizers["m"].latency
        """Cycles from the codes of a step to its numbers."""
        self.latency = self.late_cycles + 2
        """Cycles from the codes of a step to its operands."""
        super().__init__(
            {
                "formats": In(FORMATS_WIDTH),
                **{name: In(LINE_BITS) for name in ("p", "g", "m", "v", "scales")},
                "early": In(1),
                "late": In(1),
                "early_place": In(places(lanes)),
                "late_place": In(places(lanes)),
                "late_there": In(lanes),
                "o_valid": Out(1),
                **{f"o_{name}": Out(32 * lanes) for name in ("p", "g", "m", "v")},
                "not_finite": Out(range(lanes + 1)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        lanes = self._config.lanes
        formats = RunFormats(self.formats)
        numbers = {
            name: register(m, self._word(getattr(self, name), self.late_place, 32), f"{name}_fp32")
            for name in ("p", "g", "m", "v")
        }
        for name in ("p", "g"):
            halves = register(m, self._word(getattr(self, name), self.late_place, 16), f"{name}_16")
            # The NaN need not be the canonical one; no operation distinguishes them.
            words = Cat(Cat(C(0, 16), halves[16 * lane : 16 * lane + 16]) for lane in range(lanes))
            numbers[name] = Mux(formats.bf16(name), words, numbers[name])
        # Index of the pair of scales among the eight of a line.
        pair = self.early_place[-3:]
        scales = register(m, self.scales.word_select(pair, 64), "pair")
        early = delayed_pulse(m, self.early, 1, "early_taken")
        for which, (name, dequantizer) in enumerate(self._dequantizers.items()):
            codes = register(m, self._word(getattr(self, name), self.early_place, 8), f"{name}_8")
            values = []
            for lane in range(lanes):
                placed: Any = Shared(dequantizer, name=dequantizer.module_name)
                m.submodules[f"{name}_{lane}"] = placed
                m.d.comb += [
                    placed.i_valid.eq(early),
                    placed.i_code.eq(codes[8 * lane : 8 * lane + 8]),
                    placed.i_scale.eq(scales[32 * which : 32 * which + 32]),
                    placed.select.eq(formats.linear),
                ]
                values.append(placed.o_y)
            numbers[name] = Mux(formats.codes, Cat(values), numbers[name])
        for name, value in numbers.items():
            m.d.comb += getattr(self, f"o_{name}").eq(register(m, value, f"operand_{name}"))
        m.d.comb += self.o_valid.eq(delayed_pulse(m, self.late, 2, "valid"))

        there = carry(m, 2, "there", there=self.late_there).there
        wrong = [
            self.o_g[32 * lane + 23 : 32 * lane + 31].all() & there[lane] for lane in range(lanes)
        ]
        m.d.comb += self.not_finite.eq(register(m, sum(wrong[1:], wrong[0]), "wrong"))
        return m

    def _word(self, line: Any, place: Any, bits: int) -> Bits:
        """Return the operands of a step, ``bits`` bits each."""
        size = bits * self._config.lanes
        parts = LINE_BITS // size
        return line.word_select(place[: parts.bit_length() - 1], size) if parts > 1 else line
