"""Sizes of neural network layers, and smaller layers of the same kind for simulation."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.numbers import check_fields, check_integer

__all__ = ["MOST_SIZE", "Convolution", "FullyConnected", "Layer"]

MOST_SIZE = 65535
"""Largest size of an image, a filter or a batch, and largest padding, in a descriptor."""

_SIDES = ("top", "bottom", "left", "right")


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A 2-D convolution of ``images`` x ``channels`` x ``height`` x ``width`` with ``filters``.

    ``stride`` and ``dilation`` apply to rows and columns alike, as in a descriptor. ``padding`` is
    one integer for all sides, or four for top, bottom, left and right. With ``groups``, a group of
    filters reads only its own group of channels. Raises
    :class:`~sw_driver.device.errors.InvalidArgumentError` for sizes that do not fit together.

    Examples
    --------
    >>> images = {"images": 32, "channels": 3, "height": 227, "width": 227}
    >>> layer = Convolution(**images, filters=96, filter_height=11, filter_width=11, stride=4)
    >>> layer.rows, layer.columns, layer.products
    (55, 55, 3373286400)
    >>> print(layer.describe())
    32 x 3 x 227 x 227, 96 filters of 11 x 11, stride 4
    """

    images: int
    channels: int
    height: int
    width: int
    filters: int
    filter_height: int
    filter_width: int
    stride: int = 1
    padding: int | tuple[int, int, int, int] = 0
    groups: int = 1
    dilation: int = 1

    def __post_init__(self) -> None:
        check_fields(self, most=MOST_SIZE)
        if len(self.sides) != len(_SIDES):
            raise InvalidArgumentError(
                f"padding is {self.padding!r}: expected an integer, or four: of "
                f"{', '.join(_SIDES)}",
                padding=self.padding,
            )
        for pad in self.sides:
            check_integer("padding", pad, 0, MOST_SIZE)
        if self.channels % self.groups or self.filters % self.groups:
            raise InvalidArgumentError(
                f"groups is {self.groups}: expected a divisor of channels, {self.channels}, and "
                f"filters, {self.filters}",
                groups=self.groups,
                channels=self.channels,
                filters=self.filters,
            )
        if min(self.rows, self.columns) < 1:
            raise InvalidArgumentError(
                f"a filter of {self.filter_height} x {self.filter_width}"
                f"{f' with a dilation of {self.dilation}' if self.dilation > 1 else ''} does not "
                f"fit into an image of {self.height} x {self.width} with a padding of "
                f"{self.padding}: take a larger image or a smaller filter",
                padding=self.padding,
            )

    @property
    def sides(self) -> tuple[int, int, int, int]:
        """Padding at the top, bottom, left and right."""
        if isinstance(self.padding, tuple):
            return self.padding
        return self.padding, self.padding, self.padding, self.padding

    @property
    def rows(self) -> int:
        """Rows of the result."""
        return (self.height - self._beside("rows")) // self.stride + 1

    @property
    def columns(self) -> int:
        """Columns of the result."""
        return (self.width - self._beside("columns")) // self.stride + 1

    def _beside(self, name: str) -> int:
        """Return the image size that yields one row (or column) of the result with the padding."""
        top, bottom, left, right = self.sides
        filter_size, padding = {
            "rows": (self.filter_height, top + bottom),
            "columns": (self.filter_width, left + right),
        }[name]
        return self.dilation * (filter_size - 1) + 1 - padding

    @property
    def group_channels(self) -> int:
        """Channels that one filter reads."""
        return self.channels // self.groups

    @property
    def products(self) -> int:
        """Number of multiplications in the forward pass."""
        taps = self.group_channels * self.filter_height * self.filter_width
        return self.images * self.filters * self.rows * self.columns * taps

    def describe(self) -> str:
        """Return the sizes as text."""
        return (
            f"{self.images} x {self.channels} x {self.height} x {self.width}, {self.filters} "
            f"filters of {self.filter_height} x {self.filter_width}"
            f"{f', stride {self.stride}' if self.stride > 1 else ''}"
            f"{f', dilation {self.dilation}' if self.dilation > 1 else ''}"
            f"{f', padding {self.padding}' if any(self.sides) else ''}"
            f"{f', {self.groups} groups' if self.groups > 1 else ''}"
        )

    def scaled(self, most_products: int) -> Convolution:
        """Return the layer with some sizes halved, to ``most_products`` multiplications at most.

        First halve the batch, down to two images, and then the result's rows, which are all
        computed alike. Then halve its columns, channels and filters in turn. Each keeps a least
        size; smaller works do not show how the pool performs. Filter sizes, stride and padding
        stay. If that is not enough, take a single image; the layer may then still be too large.
        """
        check_integer("most_products", most_products)
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
        needed = (size // 2 - 1) * self.stride + self._beside(name)
        if needed < 1:  # The padding alone yields more rows or columns.
            return self
        return replace(self, **{"height" if name == "rows" else "width": needed})


@dataclass(frozen=True, kw_only=True)
class FullyConnected:
    """A fully connected layer from ``samples`` x ``inputs`` to ``samples`` x ``outputs``.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for sizes out of range.

    Examples
    --------
    >>> layer = FullyConnected(samples=32, inputs=9216, outputs=4096)
    >>> layer.products
    1207959552
    >>> FullyConnected(samples=0, inputs=9216, outputs=4096)
    Traceback (most recent call last):
        ...
    sw_driver.device.errors.InvalidArgumentError: samples is 0: expected an integer from 1 ...
    """

    samples: int
    inputs: int
    outputs: int

    def __post_init__(self) -> None:
        check_fields(self, most=(1 << 24) - 1)

    @property
    def products(self) -> int:
        """Number of multiplications in the forward pass."""
        return self.samples * self.inputs * self.outputs

    def describe(self) -> str:
        """Return the sizes as text."""
        return f"{self.samples} x {self.inputs} to {self.outputs}"

    def scaled(self, most_products: int) -> FullyConnected:
        """Return the layer with some sizes halved, to ``most_products`` multiplications at most.

        Each step halves the size with the largest ratio to its least size: 4 samples, 64 inputs or
        64 outputs. No size falls below its least size, so the layer may stay too large.
        """
        check_integer("most_products", most_products)
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
