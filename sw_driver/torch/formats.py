"""Formats of an optimizer's tensors on the module, and the entries of a parameter's state.

If states are codes, the state has two tensors for each that PyTorch names, such as ``exp_avg``.
Codes are called ``exp_avg_dynamic`` or ``exp_avg_linear`` by their format, and the scales of their
blocks ``exp_avg_scales``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from golden.narrow import Quantized, code_of_zero, dequantize, quantize
from hw.kernel.config import NARROW_RULES
from hw.narrow.formats import BLOCK_PARAMETERS, CHOICES, CODES, Formats
from hw.rules import rule
from sw_driver.device.errors import shown
from sw_driver.numbers import check_name

__all__ = ["NARROW_RULE", "Entry", "chosen_formats", "entries_of", "in_format", "strangers"]

NARROW_RULE = rule(NARROW_RULES[0])
"""A rule with narrow formats; all such rules have the same tensors."""
_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A tensor of a parameter's state: a tensor on the module, or a part of one."""

    tensor: str
    """Name of the tensor on the module."""
    dtype: torch.dtype = torch.float32
    place: int | None = None
    """Index of the scale in each pair of scales; None for other tensors."""
    filling: int = 0
    """Value that stands for zero."""

    def shape(self, parameter: torch.Size) -> torch.Size:
        """Return the entry's shape for a parameter's shape."""
        blocks = -(-parameter.numel() // BLOCK_PARAMETERS)
        return parameter if self.place is None else torch.Size([blocks])

    def part(self, values: Tensor) -> Tensor:
        """Return the entry's values out of a parameter's values on the module."""
        return values if self.place is None else values[self.place :: len(NARROW_RULE.states)]

    def view(self, values: Tensor, parameter: torch.Size) -> Tensor:
        """Return the entry's values without padding, in the entry's shape."""
        shape = self.shape(parameter)
        return self.part(values)[: shape.numel()].view(shape)

    def check(self, name: str, value: Any, parameter: torch.Size) -> None:
        """Raise ``ValueError`` for a value that does not fit the entry.

        It must have the entry's shape. Codes must be bytes, scales finite and not negative.
        """
        wanted = self.shape(parameter)
        if value.shape != wanted:
            raise ValueError(f"{name} has the shape {tuple(value.shape)}: expected {tuple(wanted)}")
        if self.dtype == torch.uint8 != value.dtype:
            raise ValueError(f"{name} is {value.dtype}: expected torch.uint8")
        if self.place is not None and not (good := value.isfinite() & (value >= 0)).all():
            block = int((~good).nonzero()[0])
            raise ValueError(
                f"{name} has {value[block].item()} for block {block}: expected finite numbers from "
                "0 on"
            )


def chosen_formats(
    gradient_dtype: torch.dtype, parameter_dtype: torch.dtype, states: str
) -> Formats:
    """Return the formats that an optimizer's options name; raise ``ValueError`` for others."""
    for role, dtype in (("gradient", gradient_dtype), ("parameter", parameter_dtype)):
        if dtype not in _NAMES:
            raise ValueError(
                f"{role}_dtype is {shown(dtype)}: expected torch.float32 or torch.bfloat16"
            )
    check_name("states", states, CHOICES["states"], ValueError)
    return Formats(
        gradients=_NAMES[gradient_dtype], parameters=_NAMES[parameter_dtype], states=states
    )


def entries_of(keys: Mapping[str, str], formats: Formats) -> dict[str, Entry]:
    """Return the entries of a state by name; ``keys`` has PyTorch's names by the rule's tensors."""
    if not formats.codes:
        return {key: Entry(tensor=tensor) for tensor, key in keys.items()}
    entries = {}
    for place, tensor in enumerate(NARROW_RULE.states):
        if tensor not in keys:
            continue
        zero = code_of_zero(formats.form(NARROW_RULE, tensor))
        codes = Entry(tensor=tensor, dtype=torch.uint8, filling=zero)
        entries[f"{keys[tensor]}_{formats.states}"] = codes
        entries[f"{keys[tensor]}_scales"] = Entry(tensor="scales", place=place)
    return entries


def strangers(keys: Mapping[str, str], formats: Formats) -> set[str]:
    """Return the names that a state has only in other formats."""
    endings = ["", "_scales", *(f"_{states}" for states in CODES)]
    names = {key + ending for key in keys.values() for ending in endings}
    return names - entries_of(keys, formats).keys()


def in_format(
    state: Mapping[str, Any],
    keys: Mapping[str, str],
    formats: Formats,
    name: str,
    parameter: torch.Size,
) -> dict[str, Any]:
    """Return a state of a state dict in ``formats``: FP32 as codes, or codes as FP32.

    Raises ``ValueError`` for codes and scales that do not fit the parameter ``name``. Scales that
    are not finite are refused, too, including those that FP32 states would get.
    """
    result = dict(state)
    for tensor in NARROW_RULE.states:
        if (key := keys.get(tensor)) is None:
            continue
        scales = f"{key}_scales"
        codes_here = f"{key}_{formats.states}"
        if formats.codes and state.get(key) is not None and codes_here not in state:
            Entry(tensor=tensor).check(f"{key} of {name}", state[key], parameter)
            values = result.pop(key).detach().to("cpu", torch.float32).contiguous().view(-1)
            made = quantize(_filled(values), formats.form(NARROW_RULE, tensor))
            codes = torch.from_numpy(made.codes)[: parameter.numel()]
            result[codes_here] = codes.view(parameter)
            result[scales] = torch.from_numpy(made.scales)
        for states in CODES:
            codes_key = f"{key}_{states}"
            if codes_key not in result:
                continue
            if scales not in result:
                raise ValueError(f"the state dict has no {scales} for {name}: save a whole one")
            form = Formats(states=states)
            entries = entries_of(keys, form)
            for entry in (codes_key, scales):
                entries[entry].check(f"{entry} of {name}", result[entry], parameter)
            if not formats.codes and key not in result:
                stored = Quantized(
                    codes=_filled(result.pop(codes_key).cpu().contiguous().view(-1)),
                    scales=result.pop(scales).detach().to("cpu", torch.float32).numpy(),
                )
                read = torch.from_numpy(dequantize(stored, form.form(NARROW_RULE, tensor)))
                result[key] = read[: parameter.numel()].view(parameter)
    return result


def _filled(values: Tensor) -> Any:
    """Return the values padded to whole blocks."""
    return np.pad(values.numpy(), (0, -len(values) % BLOCK_PARAMETERS))
