"""Binary floating-point formats in the IEEE 754 interchange layout."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.lib import data

from hw.logic.checks import check_types

__all__ = ["FP32", "FP32_FLUSHED", "FloatFormat"]


@dataclass(frozen=True, kw_only=True)
class FloatFormat:
    """Sign, biased exponent and fraction, with subnormals, infinities and NaNs (IEEE 754, 3.4).

    Without ``subnormals`` a subnormal operand counts as a zero of its sign. A result with an exact
    value nearer to zero than the smallest normal number becomes a zero of its sign.

    Raises ``ValueError`` for widths that the operators cannot handle. They rely on
    ``bias >= fraction_bits + 2``: a product of two subnormal numbers then rounds to zero, and a
    square root is never subnormal.

    Examples
    --------
    >>> half = FloatFormat(exponent_bits=5, fraction_bits=10)
    >>> half.name, half.width, half.bias
    ('float_e5m10', 16, 15)
    >>> hex(half.infinity), hex(half.canonical_nan)
    ('0x7c00', '0x7e00')
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
        """Exponent field of 1.0."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def max_exponent(self) -> int:
        """Exponent field of infinities and NaNs."""
        return (1 << self.exponent_bits) - 1

    @property
    def significand_bits(self) -> int:
        """Bits of the fraction plus the leading bit, which is not stored."""
        return self.fraction_bits + 1

    @property
    def infinity(self) -> int:
        """Bits of plus infinity, as an integer."""
        return self.max_exponent << self.fraction_bits

    @property
    def canonical_nan(self) -> int:
        """Bits of the one NaN that operators return: quiet, positive, without payload."""
        return self.infinity | 1 << (self.fraction_bits - 1)

    @property
    def layout(self) -> data.StructLayout:
        """Layout of ``fraction``, ``exponent`` and ``sign``, from the least significant bit."""
        return data.StructLayout(
            {"fraction": self.fraction_bits, "exponent": self.exponent_bits, "sign": 1}
        )

    @property
    def name(self) -> str:
        """Name such as ``fp32`` for single precision, or ``float_e4m3``.

        Without subnormals it ends in ``_flush``.
        """
        single = (self.exponent_bits, self.fraction_bits) == (8, 23)
        name = "fp32" if single else f"float_e{self.exponent_bits}m{self.fraction_bits}"
        return name if self.subnormals else f"{name}_flush"


FP32 = FloatFormat(exponent_bits=8, fraction_bits=23)
"""IEEE 754 binary32."""

FP32_FLUSHED = FloatFormat(exponent_bits=8, fraction_bits=23, subnormals=False)
"""IEEE 754 binary32 with subnormal numbers flushed to zero."""
