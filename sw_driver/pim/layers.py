"""Layers of neural networks: their sizes, and smaller ones of the same kind for simulation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from sw_driver.device.errors import InvalidArgumentError

__all__ = ["Convolution", "FullyConnected", "Layer"]

_MOST = 65535
"""Largest size of an image, a filter or a batch in a descriptor."""


def _check_sizes(layer: Any, zero: Iterable[str] = (), most: int = _MOST) -> None:
    for item in fields(layer):
        value = getattr(layer, item.name)
        least = int(item.name not in zero)
        integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not integer or not least <= value <= most:
            raise InvalidArgumentError(
                f"{item.name} is {value!r}: expected an integer from {least} to {most}",
                name=item.name,
                value=value,
            )


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A 2-D convolution of ``images`` x ``channels`` x ``height`` x ``width`` with ``filters``.

    Padding is the same on all sides. With ``groups``, a group of filters sees only its own group of
    channels. Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for sizes that do not
    fit together.
    """

    images: int
    channels: int
    height: int
    width: int
    filters: int
    filter_height: int
    filter_width: int
    stride: int = 1
    padding: int = 0
    groups: int = 1

    def __post_init__(self) -> None:
        _check_sizes(self, zero=("padding",))
        if self.channels % self.groups or self.filters % self.groups:
            raise InvalidArgumentError(
                f"groups is {self.groups}: expected a divisor of channels, {self.channels}, and "
                f"filters, {self.filters}",
                groups=self.groups,
                channels=self.channels,
                filters=self.filters,
            )
        for size, filter_size in (
            (self.height, self.filter_height),
            (self.width, self.filter_width),
        ):
            if size + 2 * self.padding < filter_size:
                raise InvalidArgumentError(
                    f"a filter of {self.filter_height} x {self.filter_width} does not fit into an "
                    f"image of {self.height} x {self.width} with a padding of {self.padding}: take "
                    "a larger image or a smaller filter",
                    filter_size=filter_size,
                    size=size,
                    padding=self.padding,
                )

    @property
    def rows(self) -> int:
        """Rows of the result."""
        return (self.height + 2 * self.padding - self.filter_height) // self.stride + 1

    @property
    def columns(self) -> int:
        """Columns of the result."""
        return (self.width + 2 * self.padding - self.filter_width) // self.stride + 1

    @property
    def group_channels(self) -> int:
        """Channels that a filter sees."""
        return self.channels // self.groups

    @property
    def products(self) -> int:
        """Multiplications of the forward pass."""
        taps = self.group_channels * self.filter_height * self.filter_width
        return self.images * self.filters * self.rows * self.columns * taps

    def describe(self) -> str:
        """The sizes in words."""
        return (
            f"{self.images} x {self.channels} x {self.height} x {self.width}, {self.filters} "
            f"filters of {self.filter_height} x {self.filter_width}"
            f"{f', stride {self.stride}' if self.stride > 1 else ''}"
            f"{f', padding {self.padding}' if self.padding else ''}"
            f"{f', {self.groups} groups' if self.groups > 1 else ''}"
        )

    def scaled(self, most_products: int) -> Convolution:
        """The layer with some sizes halved, so that it takes ``most_products`` or fewer.

        The batch first, down to two images; then the result's rows, of which each is computed like
        the others; then in turn its columns, channels and filters, each down to a size below which
        a work does not show how the pool does. Filter sizes, stride and padding stay. If that is
        not enough the batch becomes a single image, and the layer remains larger than asked for if
        even that does not do.
        """
        layer = self
        while layer.products > most_products and layer.images >= 4:
            layer = replace(layer, images=layer.images // 2)
        # No size can be halved more than 16 times.
        for name in (*["rows"] * 16, *["columns", "channels", "filters"] * 16):
            if layer.products > most_products:
                layer = layer._halved(name)
        return layer if layer.products <= most_products else replace(layer, images=1)

    def _halved(self, name: str) -> Convolution:
        size: int = getattr(self, name)
        least = {"rows": 4, "columns": 8, "channels": 4 * self.groups, "filters": 16 * self.groups}
        if size < 2 * least[name]:
            return self
        if name in ("channels", "filters"):
            return replace(self, **{name: size // (2 * self.groups) * self.groups})
        image_size, filter_size = {
            "rows": ("height", self.filter_height),
            "columns": ("width", self.filter_width),
        }[name]
        needed = (size // 2 - 1) * self.stride + filter_size - 2 * self.padding
        return replace(self, **{image_size: needed})


@dataclass(frozen=True, kw_only=True)
class FullyConnected:
    """A fully connected layer: ``samples`` vectors of ``inputs`` to as many of ``outputs``.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for sizes out of range.
    """

    samples: int
    inputs: int
    outputs: int

    def __post_init__(self) -> None:
        _check_sizes(self, most=(1 << 24) - 1)

    @property
    def products(self) -> int:
        """Multiplications of the forward pass."""
        return self.samples * self.inputs * self.outputs

    def describe(self) -> str:
        """The sizes in words."""
        return f"{self.samples} x {self.inputs} to {self.outputs}"

    def scaled(self, most_products: int) -> FullyConnected:
        """The layer with as few halvings as bring it to ``most_products``, of the size that is
        furthest from a least useful one."""
        layer = self
        while layer.products > most_products:
            sizes = {
                "samples": (layer.samples, 4),
                "inputs": (layer.inputs, 64),
                "outputs": (layer.outputs, 64),
            }
            name = max(sizes, key=lambda name: sizes[name][0] / sizes[name][1])
            size, least = sizes[name]
            if size < 2 * least:
                break
            layer = replace(layer, **{name: size // 2})
        return layer


Layer = Convolution | FullyConnected
