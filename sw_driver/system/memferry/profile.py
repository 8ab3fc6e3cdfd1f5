"""What a network's layers take on a GPU with its link to the host, as a file.

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
"""A layer's times by DHA, each with what it takes in the GPU's memory."""

MEASURED = {each.stem: each for each in Path(__file__).with_name("profiles").glob("*.json")}
"""Files of profiles that :mod:`~sw_driver.torch.profiler` has made, by name."""

_MOST = 10**15
"""Of bytes and of ns, so that sums of them stay far below what a machine's memory may be."""


@dataclass(frozen=True, kw_only=True)
class LayerProfile:
    """A layer with parameters. Each time is what it takes with the link to itself."""

    name: str
    nbytes: int
    """Bytes of its parameters, and of their gradients."""
    transfer_ns: int
    """A copy of its parameters to the GPU, or of their gradients to the host."""
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
    """What is computed without parameters between this layer and the next."""
    gap_backward_ns: int = 0
    """The backward pass of that."""
    activation_bytes: int = 0
    """What the forward pass leaves in the GPU's memory for the backward pass."""
    workspace_bytes: int = 0
    """What the layer takes of the GPU's memory beside that, while it is computed."""

    def __post_init__(self) -> None:
        _check_text("a layer's name", self.name)
        for field in fields(self)[1:]:
            what = f"layer {self.name!r}: {field.name}"
            check_integer(what, getattr(self, field.name), 0, _MOST)


@dataclass(frozen=True, kw_only=True)
class ModelProfile:
    """A network on a device."""

    device: str
    link_bytes_per_s: float
    """In each direction, 1e6 or more."""
    update_ns: int = 0
    """The update of all parameters by the host."""
    layers: tuple[LayerProfile, ...]

    def __post_init__(self) -> None:
        _check_text("device", self.device)
        check_fields(self, "update_ns", least=1e6, most=_MOST)
        check_integer("the number of layers", len(self.layers))
        names = [layer.name for layer in self.layers]
        for name in names:
            if names.count(name) > 1:
                raise InvalidArgumentError(f"two layers are named {name!r}: expected one of a name")


def read_profile(path: Path) -> ModelProfile:
    """The profile in a file. Raises :class:`~sw_driver.device.errors.InvalidArgumentError` with
    the file, the layer and the field if it is none, and ``OSError`` if it cannot be read."""
    try:
        found = _known(
            ModelProfile, json.loads(path.read_text(encoding="utf-8-sig")), "the profile"
        )
        if not isinstance(found["layers"], list):
            raise InvalidArgumentError(f"layers is {short(found['layers'])}: expected a list")
        layers = (
            LayerProfile(**_known(LayerProfile, each, f"layer {number}"))
            for number, each in enumerate(found["layers"])
        )
        return ModelProfile(**{**found, "layers": tuple(layers)})
    except (ValueError, RecursionError) as error:  # no JSON and no text are such, too
        raise InvalidArgumentError(f"{path}: {error}") from error


def write_profile(path: Path, profile: ModelProfile) -> None:
    """Writes what :func:`read_profile` reads, a layer on a line. Raises ``OSError`` with the file's
    name."""
    text = json.dumps(asdict(profile)).replace('{"name"', '\n{"name"')
    write_whole(path, text + "\n")


def _known(kind: type, found: Any, what: str) -> dict[str, Any]:
    """The fields of a ``kind`` of record, no more and no fewer; 2.0 and 1e6 are integers."""
    if not isinstance(found, dict):
        raise InvalidArgumentError(f"{what} is {short(found)}: expected an object with fields")
    what = f"layer {found['name']!r}" if found.get("name") else what
    for name in found:
        check_name(f"a field of {what}", name, [field.name for field in fields(kind)])
    for field in fields(kind):
        if field.default is MISSING and field.name not in found:
            raise InvalidArgumentError(f"{what} has no {field.name}: expected one ({field.type})")
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in found.items()
    }


def _check_text(what: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidArgumentError(f"{what} is {value!r}: expected a text")
