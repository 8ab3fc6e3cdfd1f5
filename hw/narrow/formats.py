"""In which formats a run has its tensors, and what follows from them."""

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
"""Parameters whose codes have a scale. A run that is not all in FP32 has a multiple of them."""

CODES = ("dynamic", "linear")
"""Tables that a state's codes may have."""

CHOICES = {
    "gradients": ("fp32", "bf16"),
    "parameters": ("fp32", "bf16"),
    "states": ("fp32", *CODES),
    "copy": ("none", "fp32", "bf16"),
}
"""Formats by the fields of :class:`Formats`; each has its place as its code in a register."""

CHOICE_OF = {"g": "gradients", "p": "parameters", "p_copy": "copy"}
"""The field of :class:`Formats` that each of these tensors has."""

PAIR_BYTES = 2 * 4
"""Bytes of the pair of scales that a block has."""

SCALES_LINE_PARAMETERS = BLOCK_PARAMETERS * LINE_BYTES // PAIR_BYTES
"""Parameters whose scales are in a line."""

_BITS = {"fp32": 32, "bf16": 16}
_CODE_BITS = 8
_TITLES = {"scales": "scales of the states", "p_copy": "another copy of the new parameters"}
"""What tensors are that no rule names."""


@dataclass(frozen=True, kw_only=True)
class Formats:
    """The formats of a run's tensors, see ``docs/formats.md``; usually all are FP32.

    Raises ``ValueError`` for what is none of :data:`CHOICES`.
    """

    gradients: str = "fp32"
    """Of ``g``."""
    parameters: str = "fp32"
    """Of ``p``, which is rounded stochastically if it is ``bf16``."""
    states: str = "fp32"
    """Of all states of the rule: FP32, or codes of the dynamic or of the linear tables."""
    copy: str = "none"
    """Of ``p_copy``, another copy of the new parameters, rounded to nearest; or that there is
    none."""
    skip_not_finite: bool = False
    """Whether a run with infinite or NaN gradients writes nothing. They are read twice then."""

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name} is {value!r}, expected one of {', '.join(known)}")
        if not isinstance(self.skip_not_finite, bool):
            raise ValueError(f"skip_not_finite is {self.skip_not_finite!r}, expected a bool")

    @property
    def codes(self) -> bool:
        """Whether states are codes."""
        return self.states != "fp32"

    @property
    def narrow(self) -> bool:
        """Whether a tensor is not in FP32. Less than what only a kernel with narrow formats does,
        which is all that is not :attr:`usual`."""
        return self.codes or "bf16" in (self.gradients, self.parameters, self.copy)

    @property
    def usual(self) -> bool:
        """Whether a kernel without narrow formats does the same: no copy and no ``skip_not_finite``
        either."""
        return self == FP32_FORMATS

    def loads(self, rule: UpdateRule) -> tuple[str, ...]:
        """The tensors that a run loads, in the order of a round."""
        return (*rule.inputs, *(["scales"] if self.codes else []))

    def stores(self, rule: UpdateRule) -> tuple[str, ...]:
        """The tensors that a run stores, in the order of a round."""
        return (
            *rule.outputs,
            *(["scales"] if self.codes else []),
            *([] if self.copy == "none" else ["p_copy"]),
        )

    def tensors(self, rule: UpdateRule) -> dict[str, str]:
        """What each tensor of a run is, by its name."""
        names = (*rule.tensors, *self.loads(rule), *self.stores(rule))
        return {name: rule.tensors.get(name) or _TITLES[name] for name in names}

    def form(self, rule: UpdateRule, tensor: str) -> str:
        """The format of a tensor's numbers: ``fp32``, ``bf16``, or the table of its codes, such as
        ``dynamic_signed``."""
        if tensor in rule.states and self.codes:
            return f"{self.states}_{rule.states[tensor]}"
        return getattr(self, CHOICE_OF[tensor]) if tensor in CHOICE_OF else "fp32"

    def forms(self, rule: UpdateRule) -> dict[str, str]:
        """:meth:`form` of each tensor of the rule."""
        return {name: self.form(rule, name) for name in rule.tensors}

    def block_bits(self, rule: UpdateRule, tensor: str) -> int:
        """Bits that a tensor has for each 256 parameters."""
        if tensor == "scales":
            return 8 * PAIR_BYTES
        return _BITS.get(self.form(rule, tensor), _CODE_BITS) * BLOCK_PARAMETERS

    def tensor_bytes(self, rule: UpdateRule, tensor: str, count: int) -> int:
        """Bytes of a tensor of ``count`` parameters, which are whole blocks if :attr:`narrow`."""
        return count * self.block_bits(rule, tensor) // (8 * BLOCK_PARAMETERS)

    def tensor_lines(self, rule: UpdateRule, tensor: str, count: int) -> int:
        """Lines of 64 bytes of a tensor of ``count`` parameters; the last one may not be full."""
        return -(-self.tensor_bytes(rule, tensor, count) // LINE_BYTES)

    def bytes_per_parameter(self, rule: UpdateRule) -> float:
        """Bytes that a run loads and stores for each parameter; gradients that are read twice are
        counted once."""
        tensors = (*self.loads(rule), *self.stores(rule))
        return sum(self.block_bits(rule, each) for each in tensors) / (8 * BLOCK_PARAMETERS)

    def round_parameters(self, rule: UpdateRule, block_bytes: int) -> int:
        """Parameters of a round: as many as fill a block of the widest tensor."""
        widest = max(self.block_bits(rule, each) for each in self.tensors(rule))
        return 8 * block_bytes * BLOCK_PARAMETERS // widest

    def code(self) -> int:
        """The value of a kernel's register ``formats``."""
        places = (CHOICES[name].index(getattr(self, name)) for name in CHOICES)
        value = sum(code << 2 * place for place, code in enumerate(places))
        return value | self.skip_not_finite << 2 * len(CHOICES)

    @classmethod
    def of_code(cls, value: int) -> Formats | None:
        """The formats whose :meth:`code` is ``value``; None if there are none."""
        given = {}
        for place, (name, known) in enumerate(CHOICES.items()):
            code = value >> 2 * place & 3
            if code >= len(known):
                return None
            given[name] = known[code]
        return cls(**given, skip_not_finite=bool(value >> 2 * len(CHOICES) & 1))


FP32_FORMATS = Formats()
"""All in FP32."""
MIXTURES = {
    "fp32": FP32_FORMATS,
    "bf16_g": Formats(gradients="bf16"),
    "bf16_g_8bit": Formats(gradients="bf16", states="dynamic"),
    "bf16_gp_8bit": Formats(gradients="bf16", parameters="bf16", states="dynamic"),
}
"""Formats that have a name: from all in FP32 to ``g`` and ``p`` in BF16 and states of 8 bits."""


def most_tensors(narrow: bool) -> Formats:
    """Formats with which a run has all tensors that it may have, in a kernel with narrow formats or
    without."""
    return Formats(states=CODES[0], copy="fp32") if narrow else FP32_FORMATS


assert tuple(CHOICES) == tuple(each.name for each in fields(Formats))[:-1]
