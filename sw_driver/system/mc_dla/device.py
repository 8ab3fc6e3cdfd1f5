"""Time of a product on a device-node: output-stationary, on an array of PEs.

PEs form a grid. Each keeps a tile of outputs. For a piece of the depth at a time, it keeps the rows
of its line and the columns of its file. All PEs of a line or file get these at once. A PE's buffer
has two halves: one is computed on while the other is filled. A half holds a tile and a piece. The
outputs on the grid at one time are a wave. The shapes of grid and tile are chosen for the least
time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import ceil

from sw_driver.machine import Device
from sw_driver.numbers import check_fields, check_integer

__all__ = ["Array", "Mapping", "Product", "array_of", "cost_ns", "mapping_of", "streamed_ns"]

WORD_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Array:
    """The device-node's PEs (paper, Table II), and the memory they are fed from."""

    pes: int = 1024
    macs: int = 125
    """Multiply-accumulate operations of each PE a cycle."""
    buffer_bytes: int = 32 << 10
    """Bytes of each PE's buffer, both halves."""
    mhz: float = 1000.0
    gb_per_s: float = 900.0
    latency_ns: int = 100

    def __post_init__(self) -> None:
        check_fields(self, "latency_ns")
        # Half of the buffer must hold an output, and two words to compute it from.
        check_integer("buffer_bytes", self.buffer_bytes, 2 * 3 * WORD_BYTES)


def array_of(device: Device) -> Array:
    """Return the array with the device's rates; a lower rate lowers the clock of all PEs."""
    plain = Array()
    mhz = 1e6 * device.tflop_per_s.value / 2 / plain.pes / plain.macs
    return Array(
        mhz=mhz,
        gb_per_s=float(device.gb_per_s.value),
        latency_ns=int(device.launch_ns.value),
    )


@dataclass(frozen=True, kw_only=True)
class Product:
    """A product of ``rows`` by ``depth`` and ``depth`` by ``columns``.

    Examples
    --------
    >>> product = Product(rows=512, columns=1000, depth=4096)
    >>> cost_ns(product, Array()), cost_ns(product, Array(gb_per_s=90))
    (29926, 298131)
    >>> mapping_of(product, Array()).waves
    (1, 1)
    """

    rows: int
    columns: int
    depth: int
    row_words: int = 0
    """Words of the left side, if not ``rows * depth``: a convolution's windows overlap."""

    def __post_init__(self) -> None:
        check_fields(self, "row_words")

    @property
    def left_words(self) -> int:
        """Words of the left side in memory."""
        return self.row_words or self.rows * self.depth


@dataclass(frozen=True, kw_only=True)
class Mapping:
    """A product on the grid."""

    product: Product
    lines: int
    files: int
    tile_rows: int
    tile_columns: int
    piece: int
    """Depth that is loaded at a time."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def waves(self) -> tuple[int, int]:
        """Waves down the rows and along the columns."""
        return (
            ceil(self.product.rows / (self.lines * self.tile_rows)),
            ceil(self.product.columns / (self.files * self.tile_columns)),
        )

    @property
    def moved_bytes(self) -> int:
        """Bytes from and to memory.

        The left side moves for each wave along the columns, the right one for each wave down the
        rows, and outputs once.
        """
        product, (down, along) = self.product, self.waves
        outputs = product.rows * product.columns
        right = product.columns * product.depth
        return WORD_BYTES * (product.left_words * along + right * down + outputs)

    def cycles(self, macs: int) -> int:
        """Return the compute cycles of the PE with the most work, over all waves."""
        check_integer("macs", macs)
        product, cycles = self.product, 0
        pieces = _parts(product.depth, self.piece)
        for height, down in _parts(product.rows, self.lines * self.tile_rows):
            for width, along in _parts(product.columns, self.files * self.tile_columns):
                outputs = min(height, self.tile_rows) * min(width, self.tile_columns)
                wave = sum(ceil(outputs * depth / macs) * count for depth, count in pieces)
                cycles += wave * down * along
        return cycles

    def ns(self, array: Array) -> float:
        """Return the slower of arithmetic and memory, in ns.

        They overlap, except for the first piece and the last tile.
        """
        compute_ns = 1000 * self.cycles(array.macs) / array.mhz
        memory_ns = self.moved_bytes / array.gb_per_s
        waves = self.waves[0] * self.waves[1]
        pieces = waves * ceil(self.product.depth / self.piece)
        return max(compute_ns + memory_ns / pieces, memory_ns + compute_ns / pieces)


@cache
def mapping_of(product: Product, array: Array) -> Mapping:
    """Return the fastest mapping."""
    return min(_mappings(product, array), key=lambda mapping: mapping.ns(array))


@cache
def cost_ns(product: Product, array: Array) -> int:
    """Return the ns of a product: its fastest mapping, and the memory's latency."""
    return array.latency_ns + ceil(mapping_of(product, array).ns(array))


def streamed_ns(words: int, array: Array) -> int:
    """Return the ns of operations that only read and write ``words`` words."""
    check_integer("words", words, 0)
    return array.latency_ns + ceil(WORD_BYTES * words / array.gb_per_s) if words else 0


def _mappings(product: Product, array: Array) -> Iterator[Mapping]:
    words = array.buffer_bytes // 2 // WORD_BYTES
    lines = 1
    while lines <= array.pes:
        files = array.pes // lines
        most_rows, most_columns = ceil(product.rows / lines), ceil(product.columns / files)
        tile_rows = 1
        while True:
            tile_rows = min(tile_rows, most_rows)
            # A half holds the tile, and one row and column of the depth.
            tile_columns = min(most_columns, (words - tile_rows) // (tile_rows + 1))
            if tile_columns < 1:
                break
            room = words - tile_rows * tile_columns
            yield Mapping(
                product=product,
                lines=lines,
                files=files,
                tile_rows=tile_rows,
                tile_columns=tile_columns,
                piece=min(product.depth, room // (tile_rows + tile_columns)),
            )
            if tile_rows == most_rows:
                break
            tile_rows *= 2
        lines *= 2


def _parts(whole: int, part: int) -> list[tuple[int, int]]:
    """Return the sizes of the parts of a whole, with the number of each."""
    count, rest = divmod(whole, part)
    return [(part, count)] * (count > 0) + [(rest, 1)] * (rest > 0)
