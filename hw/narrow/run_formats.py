"""Meaning of a kernel's register ``formats``: the tensors of a run and their lines."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any, TypeAlias

from amaranth.hdl import C, Mux
from amaranth.lib import data

from hw.logic.line import LINE_BYTES
from hw.narrow.formats import CHOICE_OF, CHOICES, SCALES_LINE_PARAMETERS

__all__ = ["FORMATS_FIELDS", "FORMATS_WIDTH", "RunFormats"]

_LAYOUT = data.StructLayout({**dict.fromkeys(CHOICES, 2), "skip_not_finite": 1})
_SCALES_SHIFT = (4 * SCALES_LINE_PARAMETERS // LINE_BYTES).bit_length() - 1

FORMATS_FIELDS = tuple(name for name, _ in _LAYOUT)
"""Fields of the register ``formats``, from its lowest bits up."""

FORMATS_WIDTH = _LAYOUT.size
"""Width of the register ``formats``, in bits."""

_Value: TypeAlias = Any


class RunFormats:
    """Formats of a run as signals, from the value of the register.

    They are those of :class:`~hw.narrow.formats.Formats`. All is combinational.
    """

    def __init__(self, value: _Value) -> None:
        self._fields: _Value = data.View(_LAYOUT, value)

    @property
    def unknown(self) -> _Value:
        """Flag: a field has a value that stands for no format."""
        return _any(self._fields[choice] >= len(known) for choice, known in CHOICES.items())

    @property
    def codes(self) -> _Value:
        """Flag: states are codes."""
        return ~self._has("states", "fp32")

    @property
    def linear(self) -> _Value:
        """Flag: codes are of the linear tables, not of the dynamic ones."""
        return self._has("states", "linear")

    def bf16(self, tensor: str) -> _Value:
        """Return a flag that ``tensor``, which is no state, is in BF16."""
        return self._has(CHOICE_OF[tensor], "bf16")

    @property
    def narrow(self) -> _Value:
        """Flag: a tensor is not in FP32."""
        return _any([self.codes, *map(self.bf16, CHOICE_OF)])

    @property
    def wide(self) -> _Value:
        """Flag: a tensor is in FP32; otherwise the widest are in BF16."""
        return _any(self._has(choice, "fp32") for choice in CHOICES)

    @property
    def skip_not_finite(self) -> _Value:
        """Flag: a run with infinite or NaN gradients writes nothing."""
        return self._fields.skip_not_finite

    def present(self, tensor: str) -> _Value:
        """Return a flag that the run has the tensor."""
        only_with = {"scales": self.codes, "p_copy": ~self._has("copy", "none")}
        return only_with.get(tensor, C(1))

    def lines(self, tensor: str, fp32_lines: _Value) -> _Value:
        """Return the lines of a present tensor that would take ``fp32_lines`` in FP32.

        If any tensor is not in FP32, tensors have whole blocks of parameters.
        """
        if tensor == "scales":
            # Rounded up.
            return (fp32_lines + (1 << _SCALES_SHIFT) - 1) >> _SCALES_SHIFT
        if tensor in CHOICE_OF:
            return Mux(self.bf16(tensor), fp32_lines >> 1, fp32_lines)
        return Mux(self.codes, fp32_lines >> 2, fp32_lines)

    def _has(self, choice: str, name: str) -> _Value:
        return self._fields[choice] == CHOICES[choice].index(name)


def _any(bits: Any) -> _Value:
    return reduce(or_, bits)
