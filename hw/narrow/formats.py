"""Tensor formats of a run, and the sizes derived from them."""

from __future__ import annotations

from dataclasses import dataclass, fields

from hw.logic.line import LINE_BYTES
from hw.rules.update_rule import UpdateRule

__all__ = [
    "BLOCK_PARAMETERS",
    "CHOICES",
    "CHOICE_OF",
    "CODES",
    "FP32_FORMATS",
    "MIXTURES",
    "PAIR_BYTES",
    "SCALES_LINE_PARAMETERS",
    "Formats",
    "most_tensors",
]

BLOCK_PARAMETERS = 256
"""Parameters with a common scale. A run that is not all in FP32 has a multiple of them."""

CODES = ("dynamic", "linear")
"""Kinds of tables for the codes of states."""

CHOICES = {
    "gradients": ("fp32", "bf16"),
    "parameters": ("fp32", "bf16"),
    "states": ("fp32", *CODES),
    "copy": ("none", "fp32", "bf16"),
}
"""Formats by field of :class:`Formats`; the position of a format is its code in a register."""

CHOICE_OF = {"g": "gradients", "p": "parameters", "p_copy": "copy"}
"""Field of :class:`Formats` that holds the format of a tensor, by tensor."""

PAIR_BYTES = 2 * 4
"""Bytes of the pair of scales of a block."""

SCALES_LINE_PARAMETERS = BLOCK_PARAMETERS * LINE_BYTES // PAIR_BYTES
"""Parameters with their scales in one line."""

_BITS = {"fp32": 32, "bf16": 16}
_CODE_BITS = 8
_TITLES = {"scales": "scales of the states", "p_copy": "another copy of the new parameters"}
"""Descriptions of tensors that no rule names."""


@dataclass(frozen=True, kw_only=True)
class Formats:
    """Formats of a run's tensors, see ``docs/formats.md``; the default is FP32 for all.

    Raises ``ValueError`` for formats outside :data:`CHOICES`.

    Examples
    --------
    >>> from hw.rules import rule
    >>> small = Formats(gradients="bf16", parameters="bf16", states="dynamic")
    >>> small.loads(rule("adam"))
    ('p', 'g', 'm', 'v', 'scales')
    >>> [formats.bytes_per_parameter(rule("adam")) for formats in (Formats(), small)]
    [28.0, 10.0625]
    """

    gradients: str = "fp32"
    """Format of ``g``."""
    parameters: str = "fp32"
    """Format of ``p``; ``bf16`` is rounded stochastically."""
    states: str = "fp32"
    """Format of all states of the rule: FP32, or codes of the dynamic or of the linear tables."""
    copy: str = "none"
    """Format of ``p_copy``, another copy of the new parameters, rounded to nearest; ``none`` leaves
    it out."""
    skip_not_finite: bool = False
    """Protection against infinite or NaN gradients: a run that has any writes nothing. It reads
    the gradients twice."""

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name} is {value!r}, expected one of {', '.join(known)}")
        if not isinstance(self.skip_not_finite, bool):
            raise ValueError(f"skip_not_finite is {self.skip_not_finite!r}, expected a bool")

    @property
    def codes(self) -> bool:
        """True if states are codes."""
        return self.states != "fp32"

    @property
    def narrow(self) -> bool:
        """True if a tensor is not in FP32.

        Some settings need a kernel with narrow formats even if this is False; see :attr:`usual`.
        """
        return self.codes or "bf16" in (self.gradients, self.parameters, self.copy)

    @property
    def usual(self) -> bool:
        """True if a kernel without narrow formats can do the run.

        All is in FP32 then, without a copy and without ``skip_not_finite``.
        """
        return self == FP32_FORMATS

    def loads(self, rule: UpdateRule) -> tuple[str, ...]:
        """Return the tensors that a run loads, in the order of a round."""
        return (*rule.inputs, *(["scales"] if self.codes else []))

    def stores(self, rule: UpdateRule) -> tuple[str, ...]:
        """Return the tensors that a run stores, in the order of a round."""
        return (
            *rule.outputs,
            *(["scales"] if self.codes else []),
            *([] if self.copy == "none" else ["p_copy"]),
        )

    def tensors(self, rule: UpdateRule) -> dict[str, str]:
        """Return a description of each tensor of a run, by name."""
        names = (*rule.tensors, *self.loads(rule), *self.stores(rule))
        return {name: rule.tensors.get(name) or _TITLES[name] for name in names}

    def form(self, rule: UpdateRule, tensor: str) -> str:
        """Return the format of a tensor's numbers.

        It is ``fp32``, ``bf16``, or the table of the tensor's codes, such as ``dynamic_signed``.
        """
        if tensor in rule.states and self.codes:
            return f"{self.states}_{rule.states[tensor]}"
        return getattr(self, CHOICE_OF[tensor]) if tensor in CHOICE_OF else "fp32"

    def forms(self, rule: UpdateRule) -> dict[str, str]:
        """Return the :meth:`form` of each tensor of the rule."""
        return {name: self.form(rule, name) for name in rule.tensors}

    def block_bits(self, rule: UpdateRule, tensor: str) -> int:
        """Return the bits of a tensor for each 256 parameters."""
        if tensor == "scales":
            return 8 * PAIR_BYTES
        return _BITS.get(self.form(rule, tensor), _CODE_BITS) * BLOCK_PARAMETERS

    def tensor_bytes(self, rule: UpdateRule, tensor: str, count: int) -> int:
        """Return the bytes of a tensor of ``count`` parameters: whole blocks if :attr:`narrow`."""
        return count * self.block_bits(rule, tensor) // (8 * BLOCK_PARAMETERS)

    def tensor_lines(self, rule: UpdateRule, tensor: str, count: int) -> int:
        """Return the 64-byte lines of a tensor of ``count`` parameters; the last may be partial."""
        return -(-self.tensor_bytes(rule, tensor, count) // LINE_BYTES)

    def bytes_per_parameter(self, rule: UpdateRule) -> float:
        """Return the bytes that a run loads and stores for each parameter.

        Gradients that are read twice are counted once.
        """
        tensors = (*self.loads(rule), *self.stores(rule))
        return sum(self.block_bits(rule, tensor) for tensor in tensors) / (8 * BLOCK_PARAMETERS)

    def round_parameters(self, rule: UpdateRule, block_bytes: int) -> int:
        """Return the parameters of a round: as many as fill a block of the widest tensor."""
        widest = max(self.block_bits(rule, tensor) for tensor in self.tensors(rule))
        return 8 * block_bytes * BLOCK_PARAMETERS // widest

    def code(self) -> int:
        """Return the value of a kernel's register ``formats``."""
        places = (CHOICES[name].index(getattr(self, name)) for name in CHOICES)
        value = sum(code << 2 * place for place, code in enumerate(places))
        return value | self.skip_not_finite << 2 * len(CHOICES)

    @classmethod
    def of_code(cls, value: int) -> Formats | None:
        """Return the formats with the :meth:`code` ``value``, or None if there are none."""
        given = {}
        for place, (name, known) in enumerate(CHOICES.items()):
            code = value >> 2 * place & 3
            if code >= len(known):
                return None
            given[name] = known[code]
        return cls(**given, skip_not_finite=bool(value >> 2 * len(CHOICES) & 1))


FP32_FORMATS = Formats()
"""Formats of a run with all tensors in FP32."""
MIXTURES = {
    "fp32": FP32_FORMATS,
    "bf16_g": Formats(gradients="bf16"),
    "bf16_g_8bit": Formats(gradients="bf16", states="dynamic"),
    "bf16_gp_8bit": Formats(gradients="bf16", parameters="bf16", states="dynamic"),
}
"""Named formats: from all in FP32 to ``g`` and ``p`` in BF16 and states of 8 bits."""


def most_tensors(narrow: bool) -> Formats:
    """Return the formats with the most tensors that a kernel's run can have.

    ``narrow`` tells if the kernel has narrow formats.
    """
    return Formats(states=CODES[0], copy="fp32") if narrow else FP32_FORMATS


assert tuple(CHOICES) == tuple(field.name for field in fields(Formats))[:-1]
