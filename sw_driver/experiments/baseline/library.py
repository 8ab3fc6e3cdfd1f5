"""The CPU's kernels: compiled on first use for this machine, called with arrays."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sw_driver.memory.hostbuffer import aligned_bytes
from sw_driver.simulator.buildcache import cached_build, content_key
from sw_driver.simulator.compiler import native_target, run_compiler
from sw_driver.simulator.library import load_library

__all__ = ["CpuLibrary", "Variant", "aligned_floats"]

_SOURCE = Path(__file__).with_name("adam.cpp")
_LIBRARY = "libadam.so"
_VECTORISED = "vectorised.txt"

# Without traps and errno to observe, sqrt and the test for NaN vectorise; neither changes a bit.
_FLAGS = [
    "-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math",
    "-fno-tree-loop-distribute-patterns", "-fPIC", "-shared", "-pthread",
]  # fmt: skip


class Variant(StrEnum):
    """How the compiler may treat the arithmetic."""

    EXACT = "exact"
    """As written: bit for bit ``golden.rules.adam``."""

    FAST = "fast"
    """With fused multiply-adds, reciprocals and reordering; NaNs as they come. Not bit-exact."""


# Not -ffast-math: linked with it, a library turns subnormal numbers off in the whole process.
_VARIANT_FLAGS = {
    Variant.EXACT: ["-ffp-contract=off"],
    Variant.FAST: [
        "-DNEARMEM_FAST", "-ffp-contract=fast", "-fno-signed-zeros", "-freciprocal-math",
        "-fassociative-math",
    ],
}  # fmt: skip

_CONSTANTS = (
    "lam", "beta1", "one_minus_beta1", "beta2", "one_minus_beta2", "inv_bc1", "inv_bc2", "eps",
    "lr",
)  # fmt: skip
"""In the order of the library's ``Constants``."""


Floats = NDArray[np.float32]


def aligned_floats(count: int) -> Floats:
    """An uninitialised array at a multiple of 64 bytes, for streaming stores."""
    return aligned_bytes(4 * count).view(np.float32)


def _vector_bytes(source: str, log: str, loop: str) -> int:
    """Widest vectors that ``log`` reports for the loop marked ``// vectorised: LOOP``."""
    number = next(
        number
        for number, line in enumerate(source.splitlines(), 1)
        if line.endswith(f"// vectorised: {loop}")
    )
    pattern = rf"{_SOURCE.name}:{number}:\d+: optimized: +loop vectorized using (\d+) byte vectors"
    return max((int(width) for width in re.findall(pattern, log)), default=0)


class CpuLibrary:
    """The kernels in one :class:`Variant`.

    All arrays are contiguous float32 of one length and ``threads`` is at least 1; neither is
    checked. Streaming stores go past the caches and need arrays at multiples of 64 bytes; where the
    instruction set has none (:attr:`streams`) they are ordinary ones. Raises ``CompilerError``
    if the compiler is missing or fails.
    """

    def __init__(self, variant: Variant) -> None:
        source = _SOURCE.read_text()
        flags = [*_FLAGS, *_VARIANT_FLAGS[variant]]

        def build(folder: Path) -> None:
            # A loop that became vectors is one whose width the compiler reports.
            report = f"-fopt-info-vec-optimized={folder / _VECTORISED}"
            run_compiler([*flags, report, str(_SOURCE), "-o", str(folder / _LIBRARY)])

        folder = cached_build("baseline", content_key([source, *flags, native_target()]), build)
        log = folder / _VECTORISED
        text = log.read_text() if log.exists() else ""
        self.variant = variant
        self.flags = flags
        self.vector_bytes = {
            loop: _vector_bytes(source, text, loop) for loop in ("plain", "streaming")
        }
        """Of the kernel's loops with ordinary and with streaming stores; 0 where the compiler made
        no vectors."""
        self._library = load_library(folder / _LIBRARY, _SOURCE)

    @property
    def streams(self) -> bool:
        """Whether streaming stores are any different from ordinary ones on this machine."""
        return bool(self._library.nb_streams())

    def adam(
        self,
        p: Floats,
        g: Floats,
        m: Floats,
        v: Floats,
        constants: Mapping[str, np.float32],
        *,
        threads: int = 1,
        streaming: bool = False,
    ) -> None:
        """One step in place: ``p``, ``m`` and ``v`` are updated, ``g`` is read.

        ``constants`` are those of the rule ``adam``.
        """
        values = np.array([constants[name] for name in _CONSTANTS], np.float32)
        self._library.nb_adam(
            *_addresses(p, g, m, v), p.size, values.ctypes.data, threads, streaming
        )

    def run(
        self, loop: str, *arrays: Floats, threads: int = 1, settings: tuple[int, ...] = ()
    ) -> int:
        """Another loop over arrays; those that it writes come first.

        ``update``: adds g to p, m and v, the traffic of :meth:`adam` and little else. ``read``:
        returns the exclusive or of the values' bits. ``copy`` and ``triad``: ``to = a`` and
        ``to = a + 3 * b``; their setting is whether they stream. ``fill``: repeats a pattern, by
        the threads that will work on the array; its setting is the pattern's length.
        """
        function = getattr(self._library, f"nb_{loop}")
        return function(*_addresses(*arrays), arrays[0].size, threads, *settings)


def _addresses(*arrays: Floats) -> list[int]:
    return [array.ctypes.data for array in arrays]
