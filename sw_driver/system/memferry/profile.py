"""File with the times and bytes of a network's layers, on a GPU with its link to the host.

The file is JSON with the fields of :class:`ModelProfile`, and in ``layers`` those of
:class:`LayerProfile`, first layer first.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from reprlib import repr as short
from typing import Any

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.files import write_whole
from sw_driver.numbers import check_fields, check_integer, check_name

__all__ = ["DHA_TIMES", "MEASURED", "LayerProfile", "ModelProfile", "read_profile", "write_profile"]

DHA_TIMES = {
    "forward_dha_ns": "forward_ns",
    "backward_dha_ns": "backward_ns",
    "backward_gradient_dha_ns": "backward_ns",
}
"""A layer's times by DHA, each with the time on the GPU's memory."""

MEASURED = {path.stem: path for path in Path(__file__).with_name("profiles").glob("*.json")}
"""Files of profiles made by :mod:`~sw_driver.torch.profiler`, by name."""

_MOST = 10**15
"""Largest value of bytes and of ns, so that sums stay far below a machine's limits."""


@dataclass(frozen=True, kw_only=True)
class LayerProfile:
    """A layer with parameters. Each time is with the link free for it alone."""

    name: str
    nbytes: int
    """Bytes of its parameters, and of their gradients."""
    transfer_ns: int
    """Copy of its parameters to the GPU, or of their gradients to the host."""
    forward_ns: int
    """Forward pass on parameters in the GPU's memory."""
    forward_dha_ns: int
    """Forward pass on parameters in the host's memory."""
    backward_ns: int
    """Backward pass with parameters and gradients in the GPU's memory."""
    backward_dha_ns: int
    """Backward pass on parameters in the host's memory, with gradients in the GPU's."""
    backward_gradient_dha_ns: int
    """Backward pass on parameters in the GPU's memory, with gradients written to the host's."""
    gap_forward_ns: int
    """Computation without parameters between this layer and the next."""
    gap_backward_ns: int = 0
    """Backward pass of that computation."""
    activation_bytes: int = 0
    """Bytes that the forward pass leaves in the GPU's memory for the backward pass."""
    workspace_bytes: int = 0
    """Further bytes of the GPU's memory while the layer is computed."""

    def __post_init__(self) -> None:
        _check_text("a layer's name", self.name)
        for field in fields(self)[1:]:
            name = f"layer {self.name!r}: {field.name}"
            check_integer(name, getattr(self, field.name), 0, _MOST)


@dataclass(frozen=True, kw_only=True)
class ModelProfile:
    """A network on a device.

    Examples
    --------
    >>> forward = {"forward_ns": 20, "forward_dha_ns": 100, "gap_forward_ns": 0}
    >>> backward = {"backward_ns": 40, "backward_dha_ns": 200, "backward_gradient_dha_ns": 300}
    >>> layer = LayerProfile(name="one", nbytes=80, transfer_ns=80, **forward, **backward)
    >>> ModelProfile(device="mine", link_bytes_per_s=0, layers=(layer,))
    Traceback (most recent call last):
        ...
    sw_driver.device.errors.InvalidArgumentError: link_bytes_per_s is 0: expected a number ...
    """

    device: str
    link_bytes_per_s: float
    """Rate in each direction, 1e6 or more."""
    update_ns: int = 0
    """Update of all parameters by the host."""
    layers: tuple[LayerProfile, ...]

    def __post_init__(self) -> None:
        _check_text("device", self.device)
        check_fields(self, "update_ns", least=1e6, most=_MOST)
        check_integer("the number of layers", len(self.layers))
        names = [layer.name for layer in self.layers]
        for name in names:
            if names.count(name) > 1:
                raise InvalidArgumentError(f"two layers are named {name!r}: expected unique names")


def read_profile(path: Path) -> ModelProfile:
    """Read a profile from a file.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` with the file, the layer and the
    field for an invalid one, and ``OSError`` if it cannot be read.
    """
    try:
        read = _known(ModelProfile, json.loads(path.read_text(encoding="utf-8-sig")), "the profile")
        if not isinstance(read["layers"], list):
            raise InvalidArgumentError(f"layers is {short(read['layers'])}: expected a list")
        layers = (
            LayerProfile(**_known(LayerProfile, layer, f"layer {number}"))
            for number, layer in enumerate(read["layers"])
        )
        return ModelProfile(**{**read, "layers": tuple(layers)})
    except (ValueError, RecursionError) as error:  # also invalid JSON or UTF-8
        raise InvalidArgumentError(f"{path}: {error}") from error


def write_profile(path: Path, profile: ModelProfile) -> None:
    """Write a file for :func:`read_profile`, with one layer on a line.

    Raises ``OSError`` with the file's name.
    """
    text = json.dumps(asdict(profile)).replace('{"name"', '\n{"name"')
    write_whole(path, text + "\n")


def _known(kind: type, value: Any, name: str) -> dict[str, Any]:
    """Return the fields of a ``kind`` of record; 2.0 and 1e6 count as integers.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for missing or unknown fields.
    """
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"{name} is {short(value)}: expected an object with fields")
    name = f"layer {value['name']!r}" if value.get("name") else name
    for key in value:
        check_name(f"a field of {name}", key, [field.name for field in fields(kind)])
    for field in fields(kind):
        if field.default is MISSING and field.name not in value:
            raise InvalidArgumentError(f"{name} has no {field.name}: expected one ({field.type})")
    return {
        key: int(number) if isinstance(number, float) and number.is_integer() else number
        for key, number in value.items()
    }


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidArgumentError(f"{name} is {value!r}: expected a text")
