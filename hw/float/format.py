"""Binary floating-point formats in the IEEE 754 interchange layout."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.lib import data

from hw.logic.checks import check_types

__all__ = ["FP32", "FP32_FLUSHED", "FloatFormat"]


@dataclass(frozen=True, kw_only=True)
class FloatFormat:
    """Sign, biased exponent and fraction, with subnormals, infinities and NaNs (IEEE 754, 3.4).

    Without ``subnormals`` an operand that is subnormal counts as a zero of its sign, and a result
    whose exact value is nearer to zero than the least normal number is a zero of its sign.

    Raises ``ValueError`` for widths that the operators cannot handle: they rely on
    ``bias >= fraction_bits + 2``, from which follows that a product of two subnormal numbers
    rounds to zero and that a square root is never subnormal.
    """

    exponent_bits: int
    fraction_bits: int
    subnormals: bool = True

    def __post_init__(self) -> None:
        check_types(self)
        if self.fraction_bits < 2:
            raise ValueError(
                f"fraction_bits is {self.fraction_bits}, expected 2 or more; "
                f"choose a wider fraction"
            )
        if self.exponent_bits < 2 or self.bias < self.fraction_bits + 2:
            raise ValueError(
                f"exponent_bits is {self.exponent_bits}, expected 2 ** (exponent_bits - 1) - 1 to "
                f"be at least fraction_bits + 2 = {self.fraction_bits + 2}; choose more exponent "
                f"bits or fewer fraction bits"
            )

    @property
    def width(self) -> int:
        """Bits of a number."""
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def bias(self) -> int:
        """The exponent field of 1.0."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def max_exponent(self) -> int:
        """The exponent field of infinities and NaNs."""
        return (1 << self.exponent_bits) - 1

    @property
    def significand_bits(self) -> int:
        """Bits of the fraction with the leading bit, which is not stored."""
        return self.fraction_bits + 1

    @property
    def infinity(self) -> int:
        """The bits of plus infinity."""
        return self.max_exponent << self.fraction_bits

    @property
    def canonical_nan(self) -> int:
        """The bits of the one NaN that operators return: quiet, positive, without payload."""
        return self.infinity | 1 << (self.fraction_bits - 1)

    @property
    def layout(self) -> data.StructLayout:
        """The members ``fraction``, ``exponent`` and ``sign``, from the least significant bit."""
        return data.StructLayout(
            {"fraction": self.fraction_bits, "exponent": self.exponent_bits, "sign": 1}
        )

    @property
    def name(self) -> str:
        """``fp32`` for single precision, else for example ``float_e4m3``; without subnormals
        ``fp32_flush`` and ``float_e4m3_flush``."""
        single = (self.exponent_bits, self.fraction_bits) == (8, 23)
        name = "fp32" if single else f"float_e{self.exponent_bits}m{self.fraction_bits}"
        return name if self.subnormals else f"{name}_flush"


FP32 = FloatFormat(exponent_bits=8, fraction_bits=23)
"""IEEE 754 binary32."""

FP32_FLUSHED = FloatFormat(exponent_bits=8, fraction_bits=23, subnormals=False)
"""IEEE 754 binary32 with subnormal numbers flushed to zero."""
