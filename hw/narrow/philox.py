"""Random numbers from counters: Philox4x32-10 (Salmon et al., SC 2011)."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import C, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.float.parts import Bits, carry, cat, delayed_pulse, register, wire
from hw.logic.checks import check_int
from hw.logic.shared import Shared
from hw.narrow.rom import lookup

__all__ = ["Philox", "RandomWords"]

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_WIDE_BITS, _NARROW_BITS = 26, 17
"""Widths of the unsigned operands of an AMD DSP48E2 multiplier, in bits."""


class Philox(wiring.Component):
    """128 random bits of a counter of 128 bits a cycle, 41 cycles later.

    A product of 32 by 32 bits has two parts: the lower 26 bits times the constant, in two DSP48E2,
    and the upper 6 bits times the constant, from a table. There are 40 DSP48E2.

    Members
    -------
    i_valid, i_0, i_1, i_2, i_3 : In(1), In(32)
        The counter's words.
    key : In(64)
        Must hold still while counters are in flight.
    o_valid, o_0, o_1, o_2, o_3 : Out(1), Out(32)
        Random words.

    Examples
    --------
    >>> from hw.sim.outputs import outputs
    >>> words = outputs(Philox(), Philox.latency, i_valid=1, i_0=7, key=42)
    >>> [hex(words[f"o_{word}"]) for word in range(4)]
    ['0x5bbd83b1', '0x68784c85', '0x172067aa', '0x2e6b75b7']
    >>> from golden.philox import philox
    >>> [hex(word) for word in philox((7, 0, 0, 0), (42, 0))]
    ['0x5bbd83b1', '0x68784c85', '0x172067aa', '0x2e6b75b7']
    """

    latency = 1 + 4 * _ROUNDS
    module_name = "philox4x32_10"

    def __init__(self) -> None:
        super().__init__(
            {
                "i_valid": In(1),
                **{f"i_{word}": In(32) for word in range(4)},
                "key": In(64),
                "o_valid": Out(1),
                **{f"o_{word}": Out(32) for word in range(4)},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        words = [register(m, getattr(self, f"i_{word}"), f"word_{word}_0") for word in range(4)]
        keys: list[Bits] = [self.key[:32], self.key[32:]]
        for place in range(_ROUNDS):
            # Each round has its own key register: its wires are long enough without an adder.
            keys = [
                register(m, (key + step * (place > 0))[:32], f"key_{which}_{place}")
                for which, (key, step) in enumerate(zip(keys, _KEY_STEPS, strict=True))
            ]
            odd = carry(m, 3, f"odd_{place}", one=words[1], three=words[3])
            left, right = (
                self._product(m, words[2 * which], constant, f"product_{2 * which}_{place}")
                for which, constant in enumerate(_MULTIPLIERS)
            )
            mixed = (
                right[32:] ^ odd.one ^ keys[0],
                right[:32],
                left[32:] ^ odd.three ^ keys[1],
                left[:32],
            )
            words = [
                register(m, value, f"word_{word}_{place + 1}") for word, value in enumerate(mixed)
            ]
        m.d.comb += [
            *(getattr(self, f"o_{word}").eq(value) for word, value in enumerate(words)),
            self.o_valid.eq(delayed_pulse(m, self.i_valid, self.latency, "valid")),
        ]
        return m

    @staticmethod
    def _product(m: Module, word: Bits, constant: int, name: str) -> Bits:
        """Return ``word`` times ``constant`` three cycles later, in 64 bits."""
        word = register(m, word, f"{name}_word")
        wide = word[:_WIDE_BITS]
        low = register(m, wide * C(constant % (1 << _NARROW_BITS), _NARROW_BITS), f"{name}_low")
        high = register(m, wide * C(constant >> _NARROW_BITS), f"{name}_high")
        products = [upper * constant for upper in range(1 << (32 - _WIDE_BITS))]
        top = lookup(m, f"{name}_table", products, 64 - _WIDE_BITS, word[_WIDE_BITS:])
        top = register(m, top, f"{name}_top")
        total = low + cat(C(0, _NARROW_BITS), high) + cat(C(0, _WIDE_BITS), top)
        return register(m, total[:64], name)


class RandomWords(wiring.Component):
    """A random number of 16 bits for each parameter, ``lanes`` parameters a cycle.

    Parameter i of the run gets half-word i mod 8 of the generator's block i // 8. The counter's
    words are the lower and the upper half of i // 8, ``step`` and 0. There is a generator for each
    eight lanes; with fewer lanes, one generator makes each block several times.

    Parameters
    ----------
    lanes
        Number of lanes: 1, 2, 4, 8 or 16.

    Members
    -------
    i_valid, i_group : In(1), In(32)
        Which parameters: their numbers divided by ``lanes``.
    step, seed : In(32), In(64)
        Must hold still while parameters are in flight.
    o_valid : Out(1)
        Numbers leave.
    o : Out(16), one for each lane
        The numbers.

    Examples
    --------
    >>> from hw.sim.outputs import outputs
    >>> unit = RandomWords(lanes=4)
    >>> numbers = outputs(unit, unit.latency, i_valid=1, step=1, seed=42)
    >>> [numbers[f"o_{lane}"] for lane in range(4)]
    [14185, 659, 59667, 8273]
    """

    latency = Philox.latency

    def __init__(self, *, lanes: int) -> None:
        check_int("lanes", lanes, 1, 16, power_of_two=True)
        self._lanes = lanes
        super().__init__(
            {
                "i_valid": In(1),
                "i_group": In(32),
                "step": In(32),
                "seed": In(64),
                "o_valid": Out(1),
                "o": Out(16).array(lanes),
            }
        )

    @property
    def module_name(self) -> str:
        """Name of the Verilog module."""
        return f"random_words_{self._lanes}_lanes"

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        blocks = max(self._lanes // 8, 1)
        parts = max(8 // self._lanes, 1)
        block_bits, part_bits = blocks.bit_length() - 1, parts.bit_length() - 1
        generator = Philox()
        words: list[Bits] = []
        for block in range(blocks):
            philox: Any = Shared(generator, name=generator.module_name)
            m.submodules[f"philox_{block}"] = philox
            number = cat(C(block, block_bits), self.i_group[part_bits:], C(0, 64))
            m.d.comb += [
                philox.i_valid.eq(self.i_valid),
                philox.i_0.eq(number[:32]),
                philox.i_1.eq(number[32:64]),
                philox.i_2.eq(self.step),
                philox.key.eq(self.seed),
            ]
            words += [getattr(philox, f"o_{word}") for word in range(4)]
            m.d.comb += self.o_valid.eq(philox.o_valid)
        halves = cat(*words)
        if parts > 1:
            part = carry(m, self.latency, "part", part=self.i_group[:part_bits]).part
            halves = wire(m, halves, "halves").word_select(part, 16 * self._lanes)
        m.d.comb += [o.eq(halves[16 * lane : 16 * lane + 16]) for lane, o in enumerate(self.o)]
        return m
